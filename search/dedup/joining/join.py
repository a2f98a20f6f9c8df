"""All pairs of vectors that score at least a threshold.

Codes rule out nearly all pairs (`codes`, `tiles`); what is left gets its score from the vectors themselves.
"""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from indexer.parallel import available_cores, single_blas_thread
from indexer.progress import NoProgress, Progress
from search.dedup.joining.basis import fit_basis
from search.dedup.joining.codes import Kernel, choose_kernel, full_sums
from search.dedup.joining.tiles import Coded, Tile
from search.dedup.joining.workers import Workers
from search.dedup.pairs import Pairs, Rows, Vectors
from search.dedup.scores import pair_scores, tile_scores
from search.dedup.settings import JoinOptions

_DENSE = 0.05  # hits a cell of a tile: above it all of its scores are computed by one product
Task = tuple[int, Callable[[], Iterator[Tile]]]  # rows it deals with, and how


class VectorJoin:
    """The pairs of distinct unit vectors (m, d) that score at least `lowest`: all of them.

    Codes are written to `folder`; beside them memory holds a few tiles a thread and 4 bytes a vector.
    """

    def __init__(
        self,
        vectors: Vectors,
        lowest: np.float32,
        folder: Path,
        options: JoinOptions = JoinOptions(),  # noqa: B008 - frozen
        progress: Progress | None = None,
        kernel: Kernel | None = None,
    ) -> None:
        self.vectors, self.lowest, self.options = vectors, lowest, options
        self.progress = progress or NoProgress()
        # A score is rounded to float32, so one of `lowest` may stand for a sum that is lower by less than one step.
        self.threshold = float(np.nextafter(lowest, np.float32(-2)))
        self.kernel = kernel or choose_kernel(fit_basis(vectors, self.threshold), options)
        self.progress.phase("coding vectors", len(vectors))
        self.coded = Coded.of(vectors, self.kernel, folder / "codes", self.progress.advance)

    def within(self, members: Rows) -> Iterator[Pairs]:
        """See `PairSource`."""
        step = self.kernel.tile[0]
        self.progress.phase("comparing vectors", len(members))
        return self.pairs_of(
            (len(members[first : first + step]), self._within(members, first, first + step))
            for first in range(0, len(members), step)
        )

    def between(self, left: Rows, right: Rows) -> Iterator[Pairs]:
        """See `PairSource`."""
        step = self.kernel.tile[0]
        self.progress.phase("comparing with those kept", len(left))
        blocks = (left[first : first + step] for first in range(0, len(left), step))
        return self.pairs_of((len(block), self._between(block, right)) for block in blocks)

    def pairs_of(self, tasks: Iterator[Task]) -> Iterator[Pairs]:
        """Do the tasks on all threads; their pairs in any order, a tile's at a time."""
        with full_sums(), single_blas_thread(), Workers(self.options.threads or available_cores()) as workers:
            for rows, pairs in workers.run((rows, self._scored(tiles)) for rows, tiles in tasks):
                self.progress.advance(rows)
                if pairs is not None:
                    yield pairs

    def _within(self, members: Rows, first: int, last: int) -> Callable[[], Iterator[Tile]]:
        return lambda: self.coded.compare_within(members, first, last, self.threshold)

    def _between(self, left: Rows, right: Rows) -> Callable[[], Iterator[Tile]]:
        return lambda: self.coded.compare(left, right, self.threshold)

    def _scored(self, tiles: Callable[[], Iterator[Tile]]) -> Callable[[], Iterator[Pairs]]:
        return lambda: (pairs for tile in tiles() if len(pairs := self._exact(tile)))

    def _exact(self, tile: Tile) -> Pairs:
        left, right = tile.left[tile.rows], tile.right[tile.columns]
        if len(tile.rows) > _DENSE * len(tile.left) * len(tile.right):
            scores = tile_scores(self.vectors[tile.left], self.vectors[tile.right])[tile.rows, tile.columns]
        else:
            scores = pair_scores(self.vectors[left], self.vectors[right])
        keep = scores >= self.lowest
        return Pairs(left[keep], right[keep], scores[keep])
