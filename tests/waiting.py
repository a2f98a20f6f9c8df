"""Waiting for another thread or process, with a limit that only a hang reaches."""

import asyncio
import time
from collections.abc import Callable

PATIENCE = 300  # seconds


def wait_until(holds: Callable[[], object]) -> None:
    """Return once `holds()` is true; fail if it never is."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


async def until(holds: Callable[[], object]) -> None:
    """Do as `wait_until` while the event loop runs."""
    async with asyncio.timeout(PATIENCE):
        while not holds():
            await asyncio.sleep(0.005)
