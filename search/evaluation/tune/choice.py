"""Which setting to take, when several cannot be told apart.

The questions are a sample, so the highest score is partly luck. A setting is told from another when it is better in
at least `TOLD` of the paired bootstrap resamples. If raw embeddings cannot be told from the best setting and score no
less than the recipe's own they are taken, so that nobody whitens for nothing. Else, if the recipe's own setting cannot
be told from the best it stays, so that nobody changes an index for nothing. Else, of the settings that cannot be told
from the best and have its layers, those with the recipe's centre and the least shrinkage are kept, and of their
strengths the middle one is taken: scores are flat near the best strength, so the middle of what is tied is steadier
than the highest. Whatever is taken scores at least as high as the recipe's own.

Questions drawn from documents favour some centres more than users' questions do. So another centre than the recipe's
can be required to score higher by a margin: else its settings are measured and shown, and none is taken.
"""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from indexer.arrays import Float64Array
from indexer.models.identity import PoolingKey
from search.evaluation.bootstrap import Difference, draw_counts, mean_difference
from search.evaluation.settings import Setting


@dataclass(frozen=True)
class MeasuredSetting:
    """A setting, what it scored on each question, and what its vectors take."""

    setting: Setting
    values: Float64Array  # (questions,), 0 to 1
    dim: int
    transform: str | None = None  # sha256; None for raw
    note: str = ""  # what the fit could not do as asked

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


TOLD = 0.9  # of the resamples
_USUAL_CENTRE = "role"


def is_better(difference: Difference) -> bool:
    """Whether a setting is significantly better than another: it wins in `TOLD` of the resamples."""
    return difference.better is not None and difference.better >= TOLD


@dataclass(frozen=True)
class Choice:
    """The setting taken and why, the one that scored highest, and the raw embeddings they are compared with."""

    taken: MeasuredSetting
    reason: str
    best: MeasuredSetting
    raw: MeasuredSetting
    tied: tuple[MeasuredSetting, ...]  # what cannot be told from the best, which is among them
    counts: Float64Array  # the resamples that all of this rests on
    own: MeasuredSetting | None = None  # the recipe's, if it is among what was measured
    candidates: tuple[MeasuredSetting, ...] = ()  # of which one is taken

    @property
    def gain(self) -> Difference:
        """Of the taken over raw."""
        return self.beyond(self.raw, self.taken)

    def beyond(self, one: MeasuredSetting, other: MeasuredSetting) -> Difference:
        """Second minus first, paired."""
        return other.less(one, self.counts)

    def told(self, one: MeasuredSetting, other: MeasuredSetting) -> bool:
        """Whether the second is told to be better than the first."""
        return is_better(self.beyond(one, other))

    def instead(self, taken: MeasuredSetting, reason: str) -> "Choice":
        """The same with another setting taken."""
        return dataclasses.replace(self, taken=taken, reason=reason)


def choose(measured: Sequence[MeasuredSetting], own: Setting | None = None, margin: float = 0.0) -> Choice:
    """Decide. Some raw setting must be among `measured`, and all have values for the same questions; `own` is what the
    recipe has now. With another centre than its own, settings must score higher by more than `margin`, 0 to 1."""
    counts = draw_counts(len(measured[0].values), "tune")
    candidates = _candidates(measured, own, margin, counts) if own and margin else tuple(measured)
    best = max(candidates, key=lambda one: one.score)
    tied = tuple(one for one in candidates if one is best or not is_better(best.less(one, counts)))
    raw = max((one for one in measured if one.setting.raw), key=lambda one: one.score)
    present = next((one for one in measured if one.setting == own), None)
    highest = "highest" if best.score >= max(one.score for one in measured) else "highest with the recipe's centre"
    choice = Choice(raw, _why_raw(raw, best, highest), best, raw, tied, counts, present, candidates)
    least = present.score if present else 0.0
    if any(one is raw for one in tied) and raw.score >= least:
        return choice
    if present is None or all(one is not present for one in tied):
        centre = own.whitening.centre if own else _USUAL_CENTRE
        sound = (one for one in _preferred(tied, best, centre) if raw.score < least or choice.told(raw, one))
        taken = next(one for one in sound if one.score >= least)
        return choice.instead(taken, _why(taken, best, len(tied), highest))
    return choice.instead(present, "it is the recipe's own, and no setting can be told to be better")


def _candidates(
    measured: Sequence[MeasuredSetting], own: Setting, margin: float, counts: Float64Array
) -> tuple[MeasuredSetting, ...]:
    """Raw embeddings, settings with the recipe's centre, and settings with centres that are better by the margin.

    A centre is better if the 95 % interval of its best setting's difference from the best with the recipe's centre,
    for the same layers and pooling, lies above the margin.
    """
    groups: dict[tuple[PoolingKey, str], list[MeasuredSetting]] = {}
    for one in measured:
        if not one.setting.raw:
            groups.setdefault((one.setting.key, one.setting.whitening.centre), []).append(one)
    best = {name: max(group, key=lambda one: one.score) for name, group in groups.items()}

    def is_allowed(key: PoolingKey, centre: str) -> bool:
        usual = best.get((key, own.whitening.centre))
        if usual is None or centre == own.whitening.centre:
            return True
        low = best[key, centre].less(usual, counts).low
        return low is not None and low > margin

    allowed = {name for name in groups if is_allowed(*name)}
    return tuple(
        one for one in measured if one.setting.raw or (one.setting.key, one.setting.whitening.centre) in allowed
    )


def _why_raw(raw: MeasuredSetting, best: MeasuredSetting, highest: str) -> str:
    if raw is best:
        return f"raw embeddings scored {highest}: whitening earns nothing on this corpus"
    return "no setting can be told from raw embeddings: whitening earns nothing that shows on this corpus"


def _why(one: MeasuredSetting, best: MeasuredSetting, tied: int, highest: str) -> str:
    if one is best:
        return f"it scored {highest}"
    return f"it is the middle of the plainest of {tied} settings that cannot be told from the {highest}"


def _preferred(tied: Sequence[MeasuredSetting], best: MeasuredSetting, centre: str) -> list[MeasuredSetting]:
    """The middle strength, the softer of two, among the plainest of the tied; then the best of those; then the best."""

    def plainness(one: MeasuredSetting) -> tuple[bool, bool, float]:
        whitening = one.setting.whitening
        return one.setting.key != best.setting.key, whitening.centre != centre, whitening.shrinkage

    plainest = min(map(plainness, tied))
    group = sorted((one for one in tied if plainness(one) == plainest), key=_strength)
    return [group[(len(group) - 1) // 2], max(group, key=lambda one: one.score), best]


def _strength(one: MeasuredSetting) -> float:
    strength = one.setting.whitening.strength
    return 0.0 if strength == "none" else strength
