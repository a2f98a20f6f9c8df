"""The constants that a plan is made with: each a value, its unit, and where, when and by what command it was found.

They stand in `constants.json` beside this file. "measured" ones come from runs on a machine that is named; "published"
ones from a maker's data sheet; "extrapolated" ones carry what was measured on one machine or size to another.
"""

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

from indexer.errors import ConfigError
from indexer.settings import did_you_mean

Origin = Literal["measured", "published", "extrapolated"]
_FILE = Path(__file__).with_name("constants.json")
_CPU = ("cpu", "cpu-amx")


@dataclass(frozen=True)
class Constant:
    """One figure. `machine` is where it was measured; `command` gives it, or names the file or page that holds it."""

    name: str
    value: float
    unit: str
    origin: Origin
    date: str
    machine: str
    command: str

    @property
    def source(self) -> str:
        """Where it comes from, in words."""
        where = f" on {self.machine}" if self.machine else ""
        return f"{self.origin}, {self.date}{where}: {self.command}"

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return dict(vars(self))


@cache
def constants() -> MappingProxyType[str, Constant]:
    """All of them, by name."""
    plain = json.loads(_FILE.read_text(encoding="utf-8"))
    machines = plain["machines"]
    found = {}
    for name, row in plain["constants"].items():
        found[name] = Constant(name=name, **{**row, "machine": machines.get(row["machine"], row["machine"])})
    return MappingProxyType(found)


def devices() -> list[str]:
    """What a plan can encode on: names of processors and of GPUs whose peak is known."""
    return [*_CPU, *(name.removesuffix(".peak") for name in constants() if name.endswith(".peak"))]


def require_gpu(name: str) -> str:
    """The name of a GPU as the constants have it. Raises ConfigError for one that they do not."""
    known = [device for device in devices() if device not in _CPU]
    if name.lower() not in known:
        raise ConfigError(f"--gpu: {did_you_mean('GPU', name, known)}")
    return name.lower()
