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
    return min((limit for _, limit in _memory_limits(root)), default=None)


def memory_left(root: Path = Path("/")) -> int | None:
    """Return the bytes up to the memory limit, counting cached files as free; None without a limit."""
    return min((limit - _memory_used(folder) for folder, limit in _memory_limits(root)), default=None)


def _memory_limits(root: Path) -> Iterator[tuple[Path, int]]:
    """Yield the folder and the bytes of each limit."""
    names = ("memory.max", "memory.high", "memory.limit_in_bytes")
    for folder in _folders(root, "memory"):
        words = [word for name in names for word in _words(folder / name)]
        yield from ((folder, int(word)) for word in words if word.isdigit() and int(word) < _UNLIMITED)


def _memory_used(folder: Path) -> int:
    """Return the bytes that a group and those below it use, without cached files, which the system drops at need."""
    used = sum(int(word) for name in ("memory.current", "memory.usage_in_bytes") for word in _words(folder / name))
    words = _words(folder / "memory.stat")
    stated = dict(zip(words[::2], words[1::2], strict=False))
    totals = "total_" if "total_inactive_file" in stated else ""  # version 1
    return used - sum(int(stated.get(f"{totals}{name}", 0)) for name in ("active_file", "inactive_file"))


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
