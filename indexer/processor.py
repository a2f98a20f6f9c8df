"""The processor as the system tells of it."""

import platform
from dataclasses import dataclass
from pathlib import Path

CPUINFO = Path("/proc/cpuinfo")


@dataclass(frozen=True)
class Processor:
    """A name, and instruction sets as Linux names them; none where the system tells of none."""

    name: str
    flags: frozenset[str]

    @classmethod
    def here(cls, cpuinfo: Path | None = None) -> "Processor":
        """This one: the first that `cpuinfo` tells of."""
        try:
            lines = (cpuinfo or CPUINFO).read_text(encoding="utf-8").partition("\n\n")[0].splitlines()
        except OSError:
            return cls(platform.processor() or platform.machine(), frozenset())
        facts = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        flags = facts.get("flags") or facts.get("Features") or ""
        return cls(facts.get("model name") or platform.machine(), frozenset(flags.split()))
