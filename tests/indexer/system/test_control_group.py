"""Limits of containers, as versions 1 and 2 of control groups state them."""

from pathlib import Path

import pytest

from indexer.system import threads as parallel
from indexer.system.control_group import cpu_limit, memory_limit
from indexer.system.threads import available_cores


def machine(root: Path, group: str, files: dict[str, str]) -> Path:
    """Make a root with the control group of this process, and files below /sys/fs/cgroup."""
    for name, text in {
        "proc/self/cgroup": group,
        **{f"sys/fs/cgroup/{name}": text for name, text in files.items()},
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    return root


@pytest.mark.parametrize(
    ("group", "files", "cores", "memory"),
    [
        ("0::/\n", {"cpu.max": "150000 100000\n", "memory.max": "1073741824\n"}, 1.5, 1 << 30),
        ("0::/a/b\n", {"a/cpu.max": "50000 100000", "a/b/cpu.max": "max 100000", "a/b/memory.max": "max"}, 0.5, None),
        ("0::/a\n", {"a/memory.max": "max", "a/memory.high": "4096", "memory.max": "8192"}, None, 4096),
        ("0::/not/there\n", {"cpu.max": "200000 100000"}, 2.0, None),
        (
            "4:memory:/docker/x\n3:cpu,cpuacct:/docker/x\n",
            {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000",
             "memory/memory.limit_in_bytes": "9223372036854771712"},
            3.0,
            None,
        ),
        ("3:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1", "cpu/cpu.cfs_period_us": "100000"}, None, None),
        ("0::/\n", {}, None, None),
    ],
)  # fmt: skip
def test_the_lowest_limit_on_the_way_up_counts(
    tmp_path: Path, group: str, files: dict[str, str], cores: float | None, memory: int | None
) -> None:
    root = machine(tmp_path, group, files)
    assert (cpu_limit(root), memory_limit(root)) == (cores, memory)


def test_a_system_without_control_groups_limits_nothing(tmp_path: Path) -> None:
    assert cpu_limit(tmp_path) is memory_limit(tmp_path) is None


@pytest.mark.parametrize(("limit", "want"), [(None, 8), (0.2, 1), (1.5, 2), (2.0, 2), (64.0, 8)])
def test_cores_are_those_allowed_and_paid_for(monkeypatch: pytest.MonkeyPatch, limit: float | None, want: int) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(parallel, "cpu_limit", lambda: limit)
    assert available_cores() == want
