"""How well a setting lets each question find its own document: its reciprocal rank among all of them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from indexer.config import Role
from indexer.encoders.identity import PoolingKey
from indexer.moments import Moments
from indexer.transforms import Transform
from search.evaluation.fits import fit_setting, transform_hash
from search.evaluation.settings import Setting
from search.evaluation.states import Rows

Array = npt.NDArray[np.float64]
_BLOCK = 1024  # questions compared at once


@dataclass(frozen=True)
class Questions:
    """Embeddings of pairs under every (layers, pooling): row i of `queries` asks for document i.

    The rows of document i in `documents` start at `starts[i]`: one, or one for each of its windows.
    `fits` are the moments each transform is fitted on. With `role` "document" both sides are treated alike, as STS
    and de-duplication treat them; with "query" the questions are centred by their own mean, as queries are by that
    of query-like texts.
    """

    queries: Mapping[PoolingKey, Rows]
    documents: Mapping[PoolingKey, Rows]
    starts: npt.NDArray[np.int64]
    fits: Mapping[PoolingKey, Moments]
    role: Role


@dataclass(frozen=True)
class Measured:
    """A setting, what it scored on each question, and what its vectors take."""

    setting: Setting
    values: Array  # (questions,), 0 to 1
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


def measure(questions: Questions, settings: Sequence[Setting]) -> list[Measured]:
    """Every setting's reciprocal ranks."""
    return [_measured(questions, setting) for setting in settings]


def reciprocal_ranks(queries: Rows, documents: Rows, starts: npt.NDArray[np.int64] | None = None) -> Array:
    """1 / rank of document i for row i of `queries` (n, k) by the inner product of its best row, (n,).

    `documents` (rows, k) has one row for each, or those of document i from `starts[i]` on. Documents that tie with
    the own one count half, so that duplicates favour nobody.
    """
    found = []
    for start in range(0, len(queries), _BLOCK):
        block = slice(start, start + _BLOCK)
        scores = queries[block] @ documents.T
        if starts is not None and len(starts) < len(documents):
            scores = np.maximum.reduceat(scores, starts, axis=1)
        own = np.take_along_axis(scores, np.arange(start, start + len(scores))[:, None], axis=1)
        better, equal = (scores > own).sum(axis=1), (scores == own).sum(axis=1)
        found.append(1 / (better + (equal + 1) / 2))
    return np.concatenate(found)


def _measured(questions: Questions, setting: Setting) -> Measured:
    asked, answers = questions.queries[setting.key], questions.documents[setting.key]
    transform = _fitted(questions, setting, asked)
    sides = transform.transform(asked, questions.role), transform.transform(answers, "document")
    values = reciprocal_ranks(*sides, questions.starts)
    digest = None if setting.raw else transform_hash(transform)
    return Measured(setting, values, transform.dim, digest, transform.settings()["note"])


def _fitted(questions: Questions, setting: Setting, asked: Rows) -> Transform:
    # Of moments only the mean is used for queries; their scatter would cost as much as the fit.
    mean = Moments(len(asked), asked.mean(axis=0, dtype=np.float64), np.zeros((0, 0)))
    return fit_setting(setting, questions.fits[setting.key], mean)
