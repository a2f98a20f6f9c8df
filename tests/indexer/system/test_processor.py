"""The description of the processor."""

from pathlib import Path

import pytest

from indexer.system.processor import Processor


@pytest.mark.parametrize(
    ("text", "name", "flags", "kind"),
    [
        ("model name\t: Xeon\nflags\t\t: fpu avx2\n\nmodel name : other\n", "Xeon", {"fpu", "avx2"}, "AVX2"),
        ("flags : avx2 avx512f avx512_vnni\n", None, {"avx2", "avx512f", "avx512_vnni"}, "VNNI"),
        ("flags : avx2 avx512_vnni avx512_bf16\n", None, {"avx2", "avx512_vnni", "avx512_bf16"}, "AVX512_BF16"),
        ("flags : avx512_vnni avx512_bf16 amx_bf16\n", None, {"avx512_vnni", "avx512_bf16", "amx_bf16"}, "AMX"),
        ("processor : 0\nFeatures : asimd bf16\n", None, {"asimd", "bf16"}, "Arm BF16"),
        (None, None, set(), "unknown"),
    ],
)
def test_the_processor_is_what_the_system_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, name: str | None, flags: set[str], kind: str
) -> None:
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text, encoding="utf-8")
    monkeypatch.setattr("indexer.system.processor.CPUINFO", tmp_path / "cpuinfo")
    found = Processor.here()
    assert found.flags == flags
    assert found.kind == kind
    assert found.name == name if name else found.name
