"""Constants and lines of a plan. A line has a figure, its arithmetic, and the constants in it.

A constant of `constants.json` is "measured" on a named machine, "published" in a data sheet, or "extrapolated" from a
measurement on another machine or of another size.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

Origin = Literal["measured", "published", "extrapolated"]
_FILE = Path(__file__).with_name("constants.json")
_BYTES = ("B", "kB", "MB", "GB", "TB", "PB", "EB")
_KILOBYTES, _TERA = 10_000, 1e12  # smallest constants shown in the larger unit


@dataclass(frozen=True)
class Constant:
    """A constant. `command` produces it, or names the file or page that contains it."""

    name: str
    value: float
    unit: str
    origin: Origin
    date: str
    machine: str
    command: str

    @property
    def source(self) -> str:
        """Origin, date, machine and command as text."""
        where = f" on {self.machine}" if self.machine else ""
        return f"{self.origin}, {self.date}{where}: {self.command}"

    @property
    def shown(self) -> str:
        """The value as formulas show it: 9.2 µs for 9.2e-6 "s a row"."""
        value, quantity = self.value, self.unit.split()[0]
        if quantity == "s" and 0 < value < 0.1:
            power = min(4, math.ceil(-math.log10(value) / 3))
            return f"{value * 1000**power:.3g} {('', 'm', 'µ', 'n', 'p')[power]}s"
        if quantity == "B":
            return show_bytes(value) if value >= _KILOBYTES else f"{value:.4g} B"
        if quantity == "FLOP/s":
            return f"{value / 1e12:.4g} TFLOP/s" if value >= _TERA else f"{value / 1e9:.4g} GFLOP/s"
        return f"{value:.4g} s" if quantity == "s" else f"{value:.4g}"


@cache
def read_constants() -> Any:
    """Return `constants.json`: "machines", "models" and "constants"."""
    return json.loads(_FILE.read_text(encoding="utf-8"))


@cache
def constants() -> Mapping[str, Constant]:
    """Return all constants by name."""
    machines = read_constants()["machines"]
    return {
        name: Constant(name=name, **record | {"machine": machines.get(record["machine"], record["machine"])})
        for name, record in read_constants()["constants"].items()
    }


@dataclass(frozen=True)
class Line:
    """A figure. `key` is section and name, such as "storage.embeddings"."""

    key: str
    title: str
    value: float
    unit: str
    arithmetic: str
    constants: tuple[str, ...]
    beyond: bool  # larger than anything measured

    @property
    def shown(self) -> str:
        """The value with its unit."""
        return show(self.value, self.unit)

    @property
    def extrapolated(self) -> bool:
        """Whether the figure is larger than anything measured, or a constant in it was not measured."""
        return self.beyond or any(constants()[name].origin != "measured" for name in self.constants)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        return {**vars(self), "constants": list(self.constants), "extrapolated": self.extrapolated}


@dataclass
class Ledger:
    """Lines in order. Each line gets the constants read since the previous line."""

    lines: list[Line] = field(default_factory=list)
    _read: dict[str, None] = field(default_factory=dict)

    def constant(self, name: str) -> float:
        """Return the value of a constant and record it for the next line."""
        self._read[name] = None
        return constants()[name].value

    def shown(self, name: str) -> str:
        """Return a constant as formulas show it and record it for the next line."""
        self._read[name] = None
        return constants()[name].shown

    def add(self, key: str, title: str, value: float, unit: str, arithmetic: str, beyond: bool = False) -> float:
        """Append a line with the recorded constants; return its value."""
        self.lines.append(Line(key, title, value, unit, arithmetic, tuple(self._read), beyond))
        self._read.clear()
        return value

    def value(self, key: str) -> float:
        """Return the figure of a line; 0 if there is none."""
        return next((line.value for line in self.lines if line.key == key), 0.0)

    def used(self) -> list[Constant]:
        """Return each constant of all lines once."""
        return [constants()[name] for name in dict.fromkeys(name for line in self.lines for name in line.constants)]


def show(value: float, unit: str) -> str:
    """Return a value with its unit and three digits: bytes in powers of 1000, seconds from 3,600 as hours."""
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
    """Return bytes in powers of 1000."""
    size, place = value, 0
    while size >= 999.5 and place < len(_BYTES) - 1:
        size, place = size / 1000, place + 1
    return f"{number(size)} {_BYTES[place]}"


def number(value: float) -> str:
    """Return a number with three digits, or all digits before the point."""
    if value >= 1e15:
        return f"{value:.3g}"
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"
