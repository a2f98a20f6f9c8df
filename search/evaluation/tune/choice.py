"""Choice of a setting when several do not differ significantly.

The questions are a sample, so the highest score is partly luck. A setting is significantly better than another if it
wins in at least `SIGNIFICANT` of the paired bootstrap resamples. The first rule that applies decides:

1. Raw embeddings, if the best setting is not significantly better than them and they score no less than the recipe's
   own setting: whitening needs a measurable gain.
2. The recipe's own setting, if the best is not significantly better: a change of the index needs a measurable gain.
3. Of the settings that the best does not beat significantly and that have its layers, those with the recipe's centre
   and the least shrinkage, and of these the middle strength. Scores are flat near the best strength, so the middle of
   the tied strengths is more robust than the highest score.

The choice always scores at least as high as the recipe's own setting.

Questions drawn from documents favour some centres more than users' questions do. With a margin, settings with another
centre than the recipe's must score higher by more than the margin; otherwise they are measured and shown only.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from indexer.arrays import Float64Array
from indexer.models.identity import PoolingKey
from search.evaluation.bootstrap import Difference, draw_counts, mean_difference
from search.evaluation.sweep import Setting


@dataclass(frozen=True)
class MeasuredSetting:
    """A setting with its score on each question and the size of its vectors."""

    setting: Setting
    values: Float64Array  # (questions,), 0 to 1
    dim: int
    transform: str | None = None  # sha256; None for raw
    note: str = ""  # on a fit that deviates from the request

    @property
    def score(self) -> float:
        return float(self.values.mean())

    @property
    def bytes(self) -> int:
        """Bytes of a float32 vector."""
        return 4 * self.dim

    def less(self, other: "MeasuredSetting", counts: Float64Array) -> Difference:
        """Return the paired difference from another setting."""
        return mean_difference(other.values, self.values, counts)


SIGNIFICANT = 0.9  # of the resamples
_USUAL_CENTRE = "role"


def is_better(difference: Difference) -> bool:
    """Return whether a setting is significantly better than another: it wins in `SIGNIFICANT` of the resamples."""
    return difference.better is not None and difference.better >= SIGNIFICANT


@dataclass(frozen=True)
class Choice:
    """The chosen setting and the reason, the setting with the highest score, and the raw embeddings as a baseline."""

    taken: MeasuredSetting
    reason: str
    best: MeasuredSetting
    raw: MeasuredSetting
    tied: tuple[MeasuredSetting, ...]  # the best, and the settings that it does not beat significantly
    counts: Float64Array  # of the resamples
    own: MeasuredSetting | None = None  # the recipe's setting, if it was measured
    candidates: tuple[MeasuredSetting, ...] = ()

    @property
    def gain(self) -> Difference:
        """The difference between the chosen setting and raw embeddings."""
        return self.beyond(self.raw, self.taken)

    def beyond(self, first: MeasuredSetting, second: MeasuredSetting) -> Difference:
        """Return the paired difference second minus first."""
        return second.less(first, self.counts)

    def significant(self, first: MeasuredSetting, second: MeasuredSetting) -> bool:
        """Return whether the second setting is significantly better than the first."""
        return is_better(self.beyond(first, second))

    def instead(self, taken: MeasuredSetting, reason: str) -> "Choice":
        """Return the same with another chosen setting."""
        return dataclasses.replace(self, taken=taken, reason=reason)


def choose(measured: Sequence[MeasuredSetting], own: Setting | None = None, margin: float = 0.0) -> Choice:
    """Choose one of `measured`, which share their questions and include a raw setting; `own` is the recipe's setting.

    Settings with another centre than that of `own` must score higher by more than `margin`, 0 to 1.
    """
    counts = draw_counts(len(measured[0].values), "tune")
    candidates = _candidates(measured, own, margin, counts) if own and margin else tuple(measured)
    best = _highest(candidates)
    tied = tuple(other for other in candidates if other is best or not is_better(best.less(other, counts)))
    raw = _highest([other for other in measured if other.setting.raw])
    present = next((other for other in measured if other.setting == own), None)
    highest = "highest" if best.score >= _highest(measured).score else "highest with the recipe's centre"
    why_raw = f"raw embeddings scored {highest}" if raw is best else "no setting is significantly better than raw"
    reason = f"{why_raw}: whitening shows no measurable gain on this corpus"
    choice = Choice(raw, reason, best, raw, tied, counts, present, candidates)
    least = present.score if present else 0.0
    if any(other is raw for other in tied) and raw.score >= least:
        return choice
    if present is not None and any(other is present for other in tied):
        return choice.instead(present, "it is the recipe's own, and no setting is significantly better")
    preferred = _preferred(tied, best, own.whitening.centre if own else _USUAL_CENTRE)
    allowed = (other for other in preferred if raw.score < least or choice.significant(raw, other))
    taken = next(other for other in allowed if other.score >= least)
    if taken is best:
        return choice.instead(taken, f"it scored {highest}")
    plainest = f"it is the middle of the plainest of {len(tied)} settings"
    return choice.instead(taken, f"{plainest} that do not differ significantly from the {highest}")


def _highest(measured: Sequence[MeasuredSetting]) -> MeasuredSetting:
    return max(measured, key=lambda entry: entry.score)


def _candidates(
    measured: Sequence[MeasuredSetting], own: Setting, margin: float, counts: Float64Array
) -> tuple[MeasuredSetting, ...]:
    """Return raw embeddings, settings with the recipe's centre, and settings with centres better by the margin.

    A centre is better if the 95 % interval of its best setting's difference from the best with the recipe's centre,
    for the same layers and pooling, lies above the margin.
    """
    groups: dict[tuple[PoolingKey, str], list[MeasuredSetting]] = {}
    for entry in measured:
        if not entry.setting.raw:
            groups.setdefault((entry.setting.key, entry.setting.whitening.centre), []).append(entry)
    best = {name: _highest(group) for name, group in groups.items()}

    def is_allowed(key: PoolingKey, centre: str) -> bool:
        usual = best.get((key, own.whitening.centre))
        if usual is None or centre == own.whitening.centre:
            return True
        low = best[key, centre].less(usual, counts).low
        return low is not None and low > margin

    allowed = {name for name in groups if is_allowed(*name)}
    return tuple(
        entry
        for entry in measured
        if entry.setting.raw or (entry.setting.key, entry.setting.whitening.centre) in allowed
    )


def _preferred(tied: Sequence[MeasuredSetting], best: MeasuredSetting, centre: str) -> list[MeasuredSetting]:
    """Return the middle strength (the lower of two) of the plainest tied settings, the best of these, and `best`."""

    def plainness(entry: MeasuredSetting) -> tuple[bool, bool, float]:
        whitening = entry.setting.whitening
        return entry.setting.key != best.setting.key, whitening.centre != centre, whitening.shrinkage

    def strength(entry: MeasuredSetting) -> float:
        return 0.0 if entry.setting.whitening.strength == "none" else entry.setting.whitening.strength

    plainest = min(map(plainness, tied))
    group = sorted((entry for entry in tied if plainness(entry) == plainest), key=strength)
    return [group[(len(group) - 1) // 2], _highest(group), best]
