"""Ridge regression of vectors on the tokens of their texts, by conjugate gradients.

Row i of A holds the share of each token in text i; the rows of W are vectors of tokens, so A W are averages of token
vectors. W minimises |A W - E|^2 + penalty |W|^2 for the vectors E of the texts. Each column of W is a least-squares
problem of its own with the same matrix, so all are solved together, each with its own step lengths (Hestenes and
Stiefel, 1952). Frequencies of tokens differ by orders of magnitude, so gradients are divided by the diagonal of
A'A + penalty.
"""

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from indexer.arrays import Float32Array, Int64Array

if TYPE_CHECKING:
    import torch

_STEPS = 100
_TOLERANCE = 1e-3  # of the gradient's norm at W = 0


@dataclass(frozen=True)
class TokenShares:
    """The sparse matrix A (texts, tokens): text i has `shares[starts[i]:starts[i + 1]]` of `tokens[...]`."""

    starts: Int64Array
    tokens: Int64Array
    shares: Float32Array
    vocabulary: int

    @classmethod
    def of(cls, starts: Int64Array, tokens: Int64Array, importance: Float32Array) -> "TokenShares":
        """Return the shares of tokens in texts, in proportion to their `importance` (vocabulary,); they sum to 1."""
        weights = importance[tokens]
        totals = np.add.reduceat(np.append(weights, np.float32(0)), starts[:-1])
        totals[starts[:-1] == starts[1:]] = 1  # of a text without tokens
        return cls(starts, tokens, weights / np.repeat(totals, np.diff(starts)), len(importance))

    def __len__(self) -> int:
        return len(self.starts) - 1

    def times(self, vectors: Float32Array) -> Float32Array:
        """Return A times `vectors` (vocabulary, k), the averages (texts, k)."""
        import torch

        product: Float32Array = (self.matrix @ torch.from_numpy(vectors)).numpy()
        return product

    @cached_property
    def matrix(self) -> "torch.Tensor":
        """A as a sparse tensor."""
        return _sparse(self.starts, self.tokens, self.shares, (len(self), self.vocabulary))

    @cached_property
    def transposed(self) -> "torch.Tensor":
        """The transpose of A as a sparse tensor."""
        order = np.argsort(self.tokens, kind="stable")
        texts = np.repeat(np.arange(len(self)), np.diff(self.starts))[order]
        starts = np.searchsorted(self.tokens[order], np.arange(self.vocabulary + 1))
        return _sparse(starts, texts, self.shares[order], (self.vocabulary, len(self)))


def _sparse(starts: Int64Array, columns: Int64Array, values: Float32Array, size: tuple[int, int]) -> "torch.Tensor":
    import torch

    first, second, third = (torch.from_numpy(np.ascontiguousarray(array)) for array in (starts, columns, values))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state")
        return torch.sparse_csr_tensor(first, second, third, size=size, check_invariants=False)


def solve_ridge(shares: TokenShares, targets: Float32Array, penalty: float) -> Float32Array:
    """Return W (vocabulary, k) for the vectors `targets` (texts, k). Tokens that no text has get zeros."""
    import torch

    forward, back = shares.matrix, shares.transposed
    squares = np.bincount(shares.tokens, shares.shares.astype(np.float64) ** 2, minlength=shares.vocabulary)
    scale = torch.from_numpy((1 / (squares + penalty)).astype(np.float32))[:, None]
    residual = back @ torch.from_numpy(targets)
    solution, direction = torch.zeros_like(residual), residual * scale
    size = _dot(residual, direction)
    enough = _TOLERANCE**2 * float(size.sum())
    for _ in range(_STEPS):
        image = (back @ (forward @ direction)).add_(direction, alpha=penalty)
        length = size / _dot(direction, image).clamp_min(1e-30)
        solution.addcmul_(direction, length)
        residual.addcmul_(image, length, value=-1)
        scaled = torch.mul(residual, scale, out=image)
        before, size = size, _dot(residual, scaled)
        if float(size.sum()) <= enough:
            break
        direction.mul_(size / before.clamp_min(1e-30)).add_(scaled)
    solved: Float32Array = solution.numpy()
    return solved


def _dot(first: "torch.Tensor", second: "torch.Tensor") -> "torch.Tensor":
    """Return the inner product of each column, (k,)."""
    return (first * second).sum(0)
