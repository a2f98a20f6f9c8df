"""OpenVINO is imported without reports, and the rest of the program is unchanged."""

import subprocess
import sys
from pathlib import Path

import pytest

from indexer.encoders.openvino.graph import not_importable


@pytest.mark.parametrize("imported", [False, True])
def test_a_module_is_out_of_reach_for_as_long_as_the_block_lasts(
    imported: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "reporting_module").mkdir()
    for name in ("__init__.py", "backend.py"):
        (tmp_path / "reporting_module" / name).touch()
    monkeypatch.syspath_prepend(tmp_path)
    before = __import__("reporting_module") if imported else None
    for _ in range(2):
        with not_importable("reporting_module"), pytest.raises(ImportError):
            __import__("reporting_module.backend")
        assert sys.modules.get("reporting_module") is before
    assert __import__("reporting_module.backend").backend
    for name in ("reporting_module", "reporting_module.backend"):
        del sys.modules[name]


@pytest.mark.check
def test_a_program_that_uses_openvino_itself_misses_nothing() -> None:
    program = """
import sys
from indexer.encoders.openvino.graph import openvino
module = openvino()
assert not [name for name in sys.modules if "telemetry" in name or "tools.ovc" in name]
import openvino_telemetry
sys.modules["openvino_telemetry"] = None  # the converter would report this test
assert callable(module.convert_model)
assert "openvino.tools.ovc" in sys.modules
"""
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": ":".join(sys.path)})
