"""The batch plan: texts of like length together, under a budget of tokens, the same for any thread count."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from indexer.encoders.tokens import Tokens

Ints = npt.NDArray[np.int64]
CPU_TOKENS = 1024  # a budget that suits the caches of a CPU core
AHEAD = 4  # batches a lane that wait, so that a long one holds nobody up


@dataclass(frozen=True)
class BatchPlan:
    """How the texts of a group become batches: neighbours in length together, padded to the longest.

    `exact`: as many batches as can be filled hold texts of one length only, so that nothing is padded and attention
    needs no mask; what is left of each length goes together. That suits a CPU, where small batches are as fast as
    large ones; a GPU wants batches far larger than the texts of one length.
    """

    budget: int  # tokens in a batch, padding included
    exact: bool
    multiple: int = 1  # padded lengths are multiples of this

    def __call__(self, lengths: Sequence[int] | Ints) -> list[Ints]:
        """Positions 0..n-1 cut into batches of at most `budget` tokens; longest texts first.

        A text longer than the budget is a batch of its own. Ties keep their order, so the plan depends on the
        lengths alone.
        """
        lengths = np.asarray(lengths, np.int64)
        order = np.argsort(-lengths, kind="stable")
        if not self.exact:
            return self._cut(order, lengths)
        filled, left = [], []
        for same in np.split(order, np.flatnonzero(np.diff(lengths[order])) + 1):
            rows = max(1, self.budget // max(1, self.padded(int(lengths[same[0]])))) if len(same) else 1
            whole = len(same) - len(same) % rows
            filled += np.split(same[:whole], whole // rows) if whole else []
            left.append(same[whole:])
        batches = filled + self._cut(np.concatenate(left), lengths)
        return sorted(batches, key=lambda batch: -int(lengths[batch[0]]))

    def _cut(self, order: Ints, lengths: Ints) -> list[Ints]:
        batches, start = [], 0
        while start < len(order):
            longest = self.padded(int(lengths[order[start]]))
            rows = max(1, self.budget // max(1, longest))
            batches.append(order[start : start + rows])
            start += rows
        return batches

    def padded(self, length: int) -> int:
        """The length that texts of at most `length` tokens are padded to."""
        return -(-length // self.multiple) * self.multiple


@dataclass(frozen=True)
class Batch:
    """Token ids of some texts as one rectangle, padded on the right; all integers int64."""

    ids: Ints  # (rows, tokens)
    types: Ints | None  # (rows, tokens); None: all 0, or the tokenizer has none
    lengths: Ints  # (rows,)

    @classmethod
    def of(cls, tokens: Tokens, positions: Ints, padding: int, width: int = 0) -> "Batch":
        """The texts at some positions, filled up with the token `padding` to the longest, or to `width`."""
        lengths = tokens.starts[positions + 1] - tokens.starts[positions]
        places = tokens.starts[positions][:, None] + np.arange(max(width, int(lengths.max())))
        real = np.arange(places.shape[1]) < lengths[:, None]
        places = np.minimum(places, len(tokens.ids) - 1)
        ids = np.where(real, tokens.ids[places], padding).astype(np.int64)
        types = None if tokens.types is None else np.where(real, tokens.types[places], 0).astype(np.int64)
        return cls(ids, types, lengths)

    def __len__(self) -> int:
        return len(self.lengths)

    @property
    def mask(self) -> Ints | None:
        """1 for tokens, 0 for padding, (rows, tokens); None when nothing is padded."""
        width = self.ids.shape[1]
        if (self.lengths == width).all():
            return None
        return (np.arange(width) < self.lengths[:, None]).astype(np.int64)

    def halves(self) -> "tuple[Batch, Batch]":
        """The first and the second half of the rows."""
        middle = (len(self) + 1) // 2
        return self._rows(slice(None, middle)), self._rows(slice(middle, None))

    def _rows(self, rows: slice) -> "Batch":
        lengths = self.lengths[rows]
        types = None if self.types is None else self.types[rows]
        return Batch(self.ids[rows], types, lengths)
