"""Which setting to take, when several cannot be told apart.

The questions are a sample, so the highest score is partly luck. Taken is the plainest of the settings that the
questions cannot tell from the best one (their paired 95 % bootstrap interval holds 0): raw embeddings if they are
among them, so that nobody whitens for nothing; else the best one with the layers of the best, role means and as
little shrinkage as there is among them. On the collections that were measured this chose better than the highest
score alone, because the strength matters more than the other two and so is told apart more reliably.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from search.evaluation.resampling import Array, Difference, difference, draw_counts, resampled_mean
from search.evaluation.tune.objective import Measured

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
        return f"it is the best of the plainest among {len(self.tied)} settings that cannot be told from the highest"


def choose(measured: Sequence[Measured]) -> Choice:
    """Decide. Some raw setting must be among `measured`, and all have values for the same questions."""
    counts = draw_counts(len(measured[0].values), "tune")
    resampled = {id(one): resampled_mean(one.values, counts) for one in measured}

    def beyond(one: Measured, other: Measured) -> Difference:
        return difference(one.score, other.score, resampled[id(one)], resampled[id(other)])

    best = max(measured, key=lambda one: one.score)
    tied = tuple(one for one in measured if one is best or not beyond(one, best).decided)
    raws = [one for one in measured if one.setting.raw]
    raw = max(raws, key=lambda one: one.score)
    plain = [one for one in tied if one.setting.raw]
    taken = max(plain, key=lambda one: one.score) if plain else min(tied, key=lambda one: _strangeness(one, best))
    return Choice(taken, best, raw, tied, beyond(raw, taken), counts)


def _strangeness(one: Measured, best: Measured) -> tuple[object, ...]:
    """What a setting has that needs a reason, and then how far it falls short."""
    whitening = one.setting.whitening
    return one.setting.key != best.setting.key, whitening.centre != _PRIOR_CENTRE, whitening.shrinkage, -one.score
