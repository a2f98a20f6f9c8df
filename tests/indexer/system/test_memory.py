"""Free memory: of the system, and of the containers that limit this process."""

from pathlib import Path

import pytest

from indexer.system.memory import free_memory, total_memory
from tests.indexer.system.test_control_group import machine

SYSTEM = "MemTotal:       16000000 kB\nMemFree:          100000 kB\nMemAvailable:    8000000 kB\n"
CACHED = "anon 100\ninactive_file 1000\nactive_file 500\n"


@pytest.mark.parametrize(
    ("group", "files", "free"),
    [
        ("0::/\n", {}, 8_192_000_000),
        ("0::/a\n", {"a/memory.max": "5000", "a/memory.current": "3000", "a/memory.stat": CACHED}, 3500),
        ("0::/a\n", {"a/memory.max": "5000", "a/memory.current": "5100"}, 0),
        ("0::/a\n", {"a/memory.max": "9000", "a/memory.current": "1", "memory.high": "50", "memory.current": "1"}, 49),
        (
            "4:memory:/\n",
            {"memory/memory.limit_in_bytes": "5000", "memory/memory.usage_in_bytes": "4000",
             "memory/memory.stat": "inactive_file 1\ntotal_inactive_file 2000\ntotal_active_file 7\n"},
            3007,
        ),
        ("0::/a\n", {"a/memory.max": "99000000000000", "a/memory.current": "1"}, 8_192_000_000),
    ],
)  # fmt: skip
def test_the_lowest_counts_and_cached_files_are_free(
    tmp_path: Path, group: str, files: dict[str, str], free: int
) -> None:
    root = machine(tmp_path, group, files)
    (root / "proc/meminfo").write_text(SYSTEM, encoding="utf-8")
    assert free_memory(root) == free


def test_all_memory_is_free_where_the_system_does_not_say(tmp_path: Path) -> None:
    assert free_memory(tmp_path) == total_memory() >= free_memory() > 0
