"""Settings measured on the same queries, each with its interval, and compared in pairs."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from search.evaluation.resampling import difference, draw_counts, interval, resampled_mean
from search.evaluation.settings import Setting

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Measured:
    """One setting, or a baseline without one: a value for each measure and query, `values[measure]` (queries,)."""

    label: str
    setting: Setting | None
    values: Mapping[str, Array]
    facts: dict[str, Any]  # what else its result says, JSON types
    hybrid: bool = False  # the setting's vectors fused with BM25


@dataclass(frozen=True)
class Comparison:
    """Everything that was measured on one set of queries. All share the same resamples, so that they pair."""

    measured: Sequence[Measured]

    @cached_property
    def results(self) -> list[dict[str, Any]]:
        """One entry for each setting, JSON types: its settings and every measure with its interval."""
        return [self._result(one) for one in self.measured]

    @cached_property
    def pairs(self) -> list[dict[str, Any]]:
        """Differences of paired settings, JSON types; see `baselines`."""
        return [self._pair(one, other) for one in self.measured for other in baselines(one, self.measured)]

    @cached_property
    def _counts(self) -> Array:
        return draw_counts(len(next(iter(self.measured[0].values.values()))), "retrieval")

    def _result(self, one: Measured) -> dict[str, Any]:
        found = {
            name: interval(float(values.mean()), resampled_mean(values, self._counts)).to_dict()
            for name, values in one.values.items()
        }
        settings = one.setting.to_dict() if one.setting else dict.fromkeys(_SETTINGS)
        return {"setting": one.label, **settings, "measure": found, **one.facts}

    def _pair(self, one: Measured, other: Measured) -> dict[str, Any]:
        found = {name: self._difference(other.values[name], values) for name, values in one.values.items()}
        return {"setting": one.label, "against": other.label, "measure": found}

    def _difference(self, before: Array, after: Array) -> dict[str, Any]:
        resampled = resampled_mean(before, self._counts), resampled_mean(after, self._counts)
        found = difference(float(before.mean()), float(after.mean()), *resampled)
        counts = {"won": after > before, "tied": after == before, "lost": after < before}
        return found.to_dict() | {name: int(np.count_nonzero(which)) for name, which in counts.items()}


def baselines(one: Measured, measured: Sequence[Measured]) -> Iterator[Measured]:
    """What a setting is compared with.

    The raw embeddings of the same layers and pooling, else the first raw ones, else the first setting; then, for
    centre "role", the same setting with other centres; a hybrid only with the vectors it is made of. Then whatever is
    no setting, such as BM25.
    """
    if one.setting is None:
        return
    vectors = [other for other in measured if not other.hybrid]
    seen = {one.label}
    others = [_reference(one.setting, vectors), *_other_centres(one.setting, vectors)]
    for other in [other for other in vectors if other.setting == one.setting] if one.hybrid else others:
        if other.label not in seen:
            seen.add(other.label)
            yield other
    yield from (other for other in measured if other.setting is None)


def _reference(setting: Setting, measured: Sequence[Measured]) -> Measured:
    settings = [one for one in measured if one.setting]
    raw = [one for one in settings if one.setting and one.setting.raw]
    own = [one for one in raw if one.setting and one.setting.key == setting.key]
    is_raw = setting.raw
    return (raw if is_raw else own or raw or settings)[0]


def _other_centres(setting: Setting, measured: Sequence[Measured]) -> list[Measured]:
    if setting.raw or setting.whitening.centre != "role":
        return []
    others = [
        dataclasses.replace(setting, whitening=dataclasses.replace(setting.whitening, centre=centre))
        for centre in ("common", "none")
    ]
    return [one for one in measured if one.setting in others]


_SETTINGS = ("pooling", "layers", "strength", "dim", "shrinkage", "centre")
