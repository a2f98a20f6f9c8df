"""The lines of a plan: each a figure with its arithmetic in words and the constants that went into it."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from search.plan.constants import Constant, constants

_BYTES = ("B", "kB", "MB", "GB", "TB", "PB", "EB")


@dataclass(frozen=True)
class Line:
    """A figure. `key` is its place, as "storage.embeddings"; `shown` is the value for people."""

    key: str
    title: str
    value: float
    unit: str
    arithmetic: str
    constants: tuple[str, ...] = ()
    beyond: bool = False  # larger than anything that was measured

    @property
    def shown(self) -> str:
        """The value with its unit, for people."""
        return show(self.value, self.unit)

    @property
    def extrapolated(self) -> bool:
        """Whether it is beyond what was measured, or a constant in it was carried over from another kind of machine."""
        return self.beyond or any(constants()[name].origin != "measured" for name in self.constants)

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return {**vars(self), "constants": list(self.constants), "extrapolated": self.extrapolated}


@dataclass
class Ledger:
    """Lines, in order."""

    lines: list[Line] = field(default_factory=list)

    def add(self, line: Line) -> float:
        """Take in a line; gives its value."""
        self.lines.append(line)
        return line.value

    def value(self, key: str) -> float:
        """A figure that is there; 0 where the plan has no such line."""
        return next((line.value for line in self.lines if line.key == key), 0.0)

    def used(self) -> Iterator[Constant]:
        """The constants of all lines, each once."""
        yield from (constants()[name] for name in dict.fromkeys(name for line in self.lines for name in line.constants))


def show(value: float, unit: str) -> str:
    """A value with its unit, in three digits: bytes in powers of 1000, seconds in hours where they are many."""
    if unit == "bytes":
        return show_bytes(value)
    if unit == "money":
        return f"{value:,.2f}"
    if unit in ("core-seconds", "GPU-seconds", "seconds"):
        many = value >= 3600
        name = unit.replace("seconds", "hours") if many else unit
        return f"{number(value / 3600 if many else value)} {name}"
    shown = number(value)
    return f"{shown} {unit.removesuffix('s') if shown == '1' else unit}".rstrip()


def show_bytes(value: float) -> str:
    """Bytes in powers of 1000."""
    size, place = value, 0
    while size >= 999.5 and place < len(_BYTES) - 1:
        size, place = size / 1000, place + 1
    return f"{number(size)} {_BYTES[place]}"


def number(value: float) -> str:
    """A number in three digits, or all those before the point."""
    if value >= 1e15:
        return f"{value:.3g}"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
