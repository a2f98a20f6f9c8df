"""Limits on CPU time and memory from the control groups of this process (Linux), set for example by a container.

A limit applies to a group and all below it, so the lowest of a group and its parents counts. In a container the
system may give a path of the group that does not exist; the limits are then at the top.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_UNLIMITED = 1 << 60  # bytes; version 1 has a number near 2**63 for none


def cpu_limit(root: Path = Path("/")) -> float | None:
    """Return the CPU time limit in cores, such as 1.5; None without a limit. `root`: the folder with /proc."""
    limits = []
    for folder in _folders(root, "cpu"):
        if words := _words(folder / "cpu.max"):
            limits += [words] if len(words) == len(("quota", "period")) else []
        elif words := _words(folder / "cpu.cfs_quota_us"):
            limits.append([*words, *_words(folder / "cpu.cfs_period_us")])
    shares = [int(quota) / int(period) for quota, period in limits if quota.isdigit() and int(period)]
    return min(shares, default=None)


def memory_limit(root: Path = Path("/")) -> int | None:
    """Return the memory limit in bytes; None without a limit."""
    names = ("memory.max", "memory.high", "memory.limit_in_bytes")
    words = [word for folder in _folders(root, "memory") for name in names for word in _words(folder / name)]
    sizes = [int(word) for word in words if word.isdigit() and int(word) < _UNLIMITED]
    return min(sizes, default=None)


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Yield the folders with limits of a controller: of the group of this process, and of its parents."""
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return
    for line in lines:
        _, names, path = line.split(":", 2)
        if not names:
            top = root / "sys/fs/cgroup"
        elif controller in names.split(","):
            top = root / "sys/fs/cgroup" / controller
        else:
            continue
        group = PurePosixPath(path.lstrip("/"))
        yield from (top / part for part in (group, *group.parents))


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").split()
    except OSError:
        return []
