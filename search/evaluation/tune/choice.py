"""Which setting to take, when several cannot be told apart.

The questions are a sample, so the highest score is partly luck. A setting counts as told from the best one when the
best is better in at least `TOLD` of the paired bootstrap resamples. If raw embeddings cannot be told from it they are
taken, so that nobody whitens for nothing. Else, of the settings that cannot be told from it and have its layers,
those with role means and the least shrinkage are kept, and of their strengths the middle one is taken: scores are
flat near the best strength, so the middle of what is tied is steadier than the highest.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from search.evaluation.resampling import Array, Difference, difference, draw_counts, resampled_mean
from search.evaluation.tune.objective import Measured

TOLD = 0.9  # of the resamples
_PRIOR_CENTRE = "role"


@dataclass(frozen=True)
class Choice:
    """The setting taken, the one that scored highest, and the raw embeddings they are compared with."""

    taken: Measured
    best: Measured
    raw: Measured
    tied: tuple[Measured, ...]  # what cannot be told from the best, which is among them
    gain: Difference  # of the taken over raw
    counts: Array  # the resamples that all of this rests on

    @property
    def reason(self) -> str:
        """In one sentence."""
        if self.taken.setting.raw and self.best.setting.raw:
            return "raw embeddings scored highest: whitening earns nothing on this corpus"
        if self.taken.setting.raw:
            return "no setting can be told from raw embeddings: whitening earns nothing that shows on this corpus"
        if self.taken is self.best:
            return "it scored highest"
        return f"it is the middle of {len(self.tied)} settings that cannot be told from the highest"


def choose(measured: Sequence[Measured]) -> Choice:
    """Decide. Some raw setting must be among `measured`, and all have values for the same questions."""
    counts = draw_counts(len(measured[0].values), "tune")
    resampled = {id(one): resampled_mean(one.values, counts) for one in measured}

    def beyond(one: Measured, other: Measured) -> Difference:
        return difference(one.score, other.score, resampled[id(one)], resampled[id(other)])

    best = max(measured, key=lambda one: one.score)
    tied = tuple(one for one in measured if one is best or not _told(beyond(one, best)))
    raw = max((one for one in measured if one.setting.raw), key=lambda one: one.score)
    taken = raw if any(one is raw for one in tied) else _middle(tied, best)
    return Choice(taken, best, raw, tied, beyond(raw, taken), counts)


def _told(beyond: Difference) -> bool:
    return beyond.better is not None and beyond.better >= TOLD


def _middle(tied: Sequence[Measured], best: Measured) -> Measured:
    """The middle strength, the softer of two, among the plainest of the tied settings."""

    def plainness(one: Measured) -> tuple[bool, bool, float]:
        whitening = one.setting.whitening
        return one.setting.key != best.setting.key, whitening.centre != _PRIOR_CENTRE, whitening.shrinkage

    plainest = min(map(plainness, tied))
    group = sorted((one for one in tied if plainness(one) == plainest), key=_strength)
    return group[(len(group) - 1) // 2]


def _strength(one: Measured) -> float:
    strength = one.setting.whitening.strength
    return 0.0 if strength == "none" else strength
