"""Waiting for what another thread or process does. How long it takes is for no test to say."""

import asyncio
import time
from collections.abc import Callable

PATIENCE = 300  # seconds; only a hang takes as long


def wait_until(holds: Callable[[], object]) -> None:
    """Return once this holds; fail where it never does."""
    end = time.monotonic() + PATIENCE
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.005)


async def until(holds: Callable[[], object]) -> None:
    """`wait_until` that lets the event loop run meanwhile."""
    async with asyncio.timeout(PATIENCE):
        while not holds():
            await asyncio.sleep(0.005)
