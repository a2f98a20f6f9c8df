"""What a container, or whoever started this process, lets it have: CPU time and memory of its control groups (Linux).

A limit holds for a group and all below it, so the lowest of a group and those above it counts. Within a container the
system may name a group by a path that is not there; the limits are then at the top.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_UNLIMITED = 1 << 60  # bytes; version 1 has a number near 2**63 for none


def cpu_limit(root: Path = Path("/")) -> float | None:
    """Cores' worth of time that may be used, such as 1.5; None where nothing limits it. `root`: where /proc lies."""
    found = []
    for folder in _folders(root, "cpu"):
        if words := _words(folder / "cpu.max"):
            found += [words] if len(words) == len(("quota", "period")) else []
        elif words := _words(folder / "cpu.cfs_quota_us"):
            found.append([*words, *_words(folder / "cpu.cfs_period_us")])
    shares = [int(quota) / int(period) for quota, period in found if quota.isdigit() and int(period)]
    return min(shares, default=None)


def memory_limit(root: Path = Path("/")) -> int | None:
    """Bytes that may be used; None where nothing limits them."""
    names = ("memory.max", "memory.high", "memory.limit_in_bytes")
    words = [word for folder in _folders(root, "memory") for name in names for word in _words(folder / name)]
    sizes = [int(word) for word in words if word.isdigit() and int(word) < _UNLIMITED]
    return min(sizes, default=None)


def _folders(root: Path, controller: str) -> Iterator[Path]:
    """Where the limits of a controller may be: of the group this process is in, and of those above it."""
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
