"""SBERT-WK pooling: weights layers and tokens to pool the token states of several layers into one row a text.

After Wang and Kuo, "SBERT-WK: A Sentence Embedding Method by Dissecting BERT-based Word Models" (IEEE/ACM
Transactions on Audio, Speech and Language Processing 28, 2020). A token has vectors v^1 to v^L, one per layer. With C
the vectors of the `WINDOW` layers on either side of layer i, and QR = [C, v^i], r the last column of R:

    beta  = mean of the columns of R[:-1, :-1], each of unit length, times r[:-1] / |r[:-1]|
    alignment_i = 1 / (2 K beta), K the columns of [C, v^i]          novelty_i = |r[-1]| / |r|
    alpha = (alignment / sum + novelty / sum) / 2                    token vector = sum over i of alpha_i v^i

A token's weight is the variance of cos(v^i, v^(i+1)) over i = 1 to L - 1, divided by the sum over the tokens of the
text; with two layers there is only one cosine, and all tokens weigh the same. The first token ([CLS]) counts and the
last ([SEP]) does not, as in the authors' code.

Two deliberate differences from that code: C contains every existing neighbour, as in the paper, while the code's slice
for layers i - 2 and i - 1 is empty at the second layer. And undefined values are finite:

- beta is at least `LEAST_ALIGNMENT`, because smaller values give infinite or negative weights: a layer with nothing in
  common with its neighbours gets (nearly) all of the alignment weight;
- context vectors in the span of the others add nothing to it;
- a zero vector gets no weight, and has cosine 0 with every other vector;
- if no layer has novelty, or no token has variance, the weights are equal. Novelty counts as zero if its square is at
  most `ROUNDING`, and so does a variance of at most `ROUNDING`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from indexer.encoders.pooling import Pooler
from indexer.errors import ConfigError

WINDOW = 2  # layers on either side, as published
LEAST_ALIGNMENT = 1e-6
ROUNDING = 1e-12  # squared, of unit vectors: below the resolution of float32


def sbert_wk(layers: Sequence[Tensor], mask: Tensor | None) -> Tensor:
    """Pool two or more layers, each (rows, tokens, d), over the tokens where `mask` (rows, tokens) is not 0.

    Returns (rows, d) float32, not normalised, proportional to the layers. Layers are in ascending order; without a mask
    every token counts. Every row must have at least one token, and padding must be on the right. The last token of a
    text is excluded unless it is the only one. Values at padding and at that token are ignored, even NaN or infinity;
    a non-finite value elsewhere appears in the result.

    Raises ConfigError for fewer than two layers, because a single layer has no neighbour.
    """
    if len(layers) < 2:
        raise ConfigError(
            f"SBERT-WK weighs layers against each other, but {len(layers)} was given; expected at least 2. Fix: name "
            "them in encoder.layers."
        )
    device, counted = layers[0].device, _counted(layers[0], mask)
    stacked = torch.stack(list(layers), dim=2)  # (rows, tokens, layers, d)
    if device.type == "mps":  # it has no float64
        stacked, counted = stacked.cpu(), counted.cpu()
    # Consecutive layers are nearly equal: float32 would lose the small difference of a cosine of 0.99 from 1.
    vectors = stacked.double().masked_fill_(~counted[..., None, None], 0.0)
    cosines = _cosines(vectors @ vectors.mT)
    weights = layer_weights(cosines) * token_weights(cosines, counted).unsqueeze(-1)
    pooled: Tensor = weights.flatten(1).unsqueeze(1) @ vectors.flatten(1, 2)
    return pooled.squeeze(1).float().to(device)


class SbertWkPooler(Pooler):
    """The pooler of SBERT-WK."""

    def __call__(self, states: Sequence[Tensor], ids: Tensor, mask: Tensor | None) -> Tensor:
        return sbert_wk(states, mask)


def open_pooler(spec: Any, vocabulary: int) -> SbertWkPooler:
    """Return the pooler, which does not depend on the model."""
    return SbertWkPooler()


def layer_weights(cosines: Tensor) -> Tensor:
    """Return alpha (..., layers) of each token, summing to 1, from the cosines (..., layers, layers) of its layers."""
    # R is never computed. For a diagonal D of signs, Q D and D R are a QR decomposition too, and libraries differ in D,
    # so only quantities independent of D are meaningful. |r[-1]| / |r| is the sine of the angle between v and the span
    # of C, |r[:-1]| / |r| its cosine, and Q preserves angles: the mean in beta, times r[:-1], is the mean cosine of v
    # and the columns of C, times |r|. All of this follows from cosines.
    layers, places, exists = cosines.shape[-1], *_windows(cosines)
    grams = cosines[..., places.unsqueeze(-1), places.unsqueeze(-2)] * (exists.unsqueeze(-1) * exists.unsqueeze(-2))
    square, columns = grams[..., -1, -1], exists.sum(dim=-1)  # square: 1, or 0 for a zero vector
    new = _outside_span(grams)
    known = square - new
    mean = grams[..., :-1, -1].sum(dim=-1) / (columns - 1)
    beta = torch.where(known > ROUNDING, mean / known.clamp(min=ROUNDING).sqrt(), 0.0).clamp(min=LEAST_ALIGNMENT)
    alignment, novelty = square / (2 * columns * beta), new.sqrt()
    equal = torch.full_like(square, 1 / layers)
    return (_shares(alignment, equal) + _shares(novelty, equal)) / 2


def token_weights(cosines: Tensor, counted: Tensor) -> Tensor:
    """Return weights (rows, tokens) that sum to 1 over the `counted` tokens (rows, tokens) of a text; others get 0.

    `cosines` (rows, tokens, layers, layers) are between the layers of each token.
    """
    steps = cosines.diagonal(offset=1, dim1=-2, dim2=-1)
    variance = steps.var(dim=-1, correction=0) * counted
    variance = torch.where(variance > ROUNDING, variance, 0.0)
    return _shares(variance, counted / counted.sum(dim=-1, keepdim=True).double())


def _counted(states: Tensor, mask: Tensor | None) -> Tensor:
    """Return which tokens count, (rows, tokens): all under the mask except the last, unless it is the only one."""
    real = torch.ones_like(states[..., 0], dtype=torch.bool) if mask is None else mask.ne(0)
    place = real.cumsum(dim=1)
    return real & ((place < place[:, -1:]) | (place[:, -1:] == 1))


def _cosines(products: Tensor) -> Tensor:
    """Return dot products (..., layers, layers) as cosines; a zero vector has cosine 0 with every vector."""
    squares = products.diagonal(dim1=-2, dim2=-1)
    norms = (squares.unsqueeze(-1) * squares.unsqueeze(-2)).sqrt()
    return products / torch.where(norms == 0, 1.0, norms)


def _windows(cosines: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each layer its neighbours' numbers and, last, its own (layers, 2 WINDOW + 1), and which exist (1).

    The number of a missing neighbour is 0.
    """
    layers = cosines.shape[-1]
    offsets = [*range(-WINDOW, 0), *range(1, WINDOW + 1), 0]
    places = torch.arange(layers, device=cosines.device).unsqueeze(1) + torch.tensor(offsets, device=cosines.device)
    exists = (places >= 0) & (places < layers)
    return places * exists, exists.to(cosines.dtype)


def _outside_span(grams: Tensor) -> Tensor:
    """Return the squared distance (...) of the last vector from the span of the others, given their Gram matrices.

    Gram-Schmidt on the matrix: each vector in turn is projected out of the later ones.
    """
    for number in range(grams.shape[-1] - 1):
        row = grams[..., number, :]
        square = row[..., number, None, None]  # of the vector's component outside the span so far
        inverse = torch.where(square > ROUNDING, 1 / square.clamp(min=ROUNDING), 0.0)
        grams = grams - row.unsqueeze(-1) * row.unsqueeze(-2) * inverse
    left = grams[..., -1, -1]
    return torch.where(left > ROUNDING, left, 0.0)


def _shares(values: Tensor, equal: Tensor) -> Tensor:
    """Return non-negative values divided by their sum over the last dimension; `equal` where the sum is 0."""
    total = values.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, values / torch.where(total > 0, total, 1.0), equal)
