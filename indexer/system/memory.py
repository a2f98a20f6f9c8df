"""The memory of this machine: what there is, and what is free."""

import os
from pathlib import Path

from indexer.system.control_group import memory_left, memory_limit


def total_memory() -> int:
    """Return the bytes of memory, within the limit of the container. It does not change while a build runs."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min(memory, memory_limit() or memory)


def free_memory(root: Path = Path("/")) -> int:
    """Return the bytes that this process can still use, counting cached files as free; `root`: the folder with /proc.

    On systems that do not state it, such as macOS, all memory counts as free.
    """
    free, left = _stated(root / "proc/meminfo"), memory_left(root)
    free = total_memory() if free is None else free
    return free if left is None else max(0, min(free, left))


def _stated(path: Path) -> int | None:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)
