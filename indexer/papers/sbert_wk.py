"""SBERT-WK pooling: token states of several layers to one row a text, each layer and each token weighted.

After Wang and Kuo, "SBERT-WK: A Sentence Embedding Method by Dissecting BERT-based Word Models" (IEEE/ACM
Transactions on Audio, Speech and Language Processing 28, 2020). A token has vectors v^1 to v^L, one a layer. With C
the vectors of the `WINDOW` layers on either side of layer i, and QR = [C, v^i], r the last column of R:

    beta  = mean of the columns of R[:-1, :-1], each of unit length, times r[:-1] / |r[:-1]|
    alignment_i = 1 / (2 K beta), K the columns of [C, v^i]          novelty_i = |r[-1]| / |r|
    alpha = (alignment / sum + novelty / sum) / 2                    token vector = sum over i of alpha_i v^i

A token's weight is the variance of cos(v^i, v^(i+1)) over i = 1 to L - 1, divided by the sum over the tokens of the
text; with two layers there is one cosine and no variance, and all tokens weigh the same. The first token ([CLS])
counts and the last ([SEP]) does not, as in the authors' code.

Two things differ from that code on purpose. At the borders C is what exists, as in the paper; there, the slice that
should give layers i - 2 and i - 1 is empty for the second layer, whose first neighbour is lost. And what is
undefined there is finite here:

- beta of at most `LEAST_ALIGNMENT`, which would give an infinite or a negative weight, counts as that: a layer with
  nothing in common with its neighbours takes (nearly) all of the weight by alignment;
- context vectors that lie in the span of the others add nothing to it;
- a zero vector gets no weight, and has cosine 0 with every other;
- where no layer has novelty, or no token has variance, the weights are equal. Both are taken for zero where their
  square, or the variance, is at most `ROUNDING`.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from indexer.errors import ConfigError

WINDOW = 2  # layers on either side, as published
LEAST_ALIGNMENT = 1e-6
ROUNDING = 1e-12  # squared, of unit vectors: float32 has told nothing apart below it


def sbert_wk(layers: Sequence[Tensor], mask: Tensor | None) -> Tensor:
    """Pool two or more layers, each (rows, tokens, d), over the tokens where `mask` (rows, tokens) is not 0.

    Gives (rows, d) float32, not normalised; multiplying all layers by a number multiplies it. Layers are in ascending
    order; without a mask every token counts. Every row must have at least one token, and padding must be on the right.
    The last token of a text is left out unless it is the only one. What the model left in padded places and in that
    token never counts, not even NaN or infinity; a non-finite value elsewhere shows in the result.

    Raises ConfigError for fewer than two layers: one alone has no neighbour.
    """
    if len(layers) < 2:
        raise ConfigError(
            f"SBERT-WK weighs layers against one another, but {len(layers)} was given; expected at least 2. Name them "
            "in encoder.layers."
        )
    device, counted = layers[0].device, _counted(layers[0], mask)
    stacked = torch.stack(list(layers), dim=2)  # (rows, tokens, layers, d)
    if device.type == "mps":  # it has no float64
        stacked, counted = stacked.cpu(), counted.cpu()
    # Layers that follow one another are nearly alike: float32 would lose the little that is new in a cosine of 0.99.
    vectors = stacked.double().masked_fill_(~counted[..., None, None], 0.0)
    cosines = _cosines(vectors @ vectors.mT)
    weights = layer_weights(cosines) * token_weights(cosines, counted).unsqueeze(-1)
    pooled: Tensor = weights.flatten(1).unsqueeze(1) @ vectors.flatten(1, 2)
    return pooled.squeeze(1).float().to(device)


class SbertWkPooler:
    """The `indexer.encoders.pooling.Pooler` of SBERT-WK."""

    def __call__(self, states: Sequence[Tensor], ids: Tensor, mask: Tensor | None) -> Tensor:
        return sbert_wk(states, mask)

    def width(self, size: int) -> int:
        return size


def open_pooler(spec: Any, vocabulary: int) -> SbertWkPooler:
    """Return the pooler, which needs nothing of the model."""
    return SbertWkPooler()


def layer_weights(cosines: Tensor) -> Tensor:
    """alpha (..., layers) of each token, summing to 1, from the cosines (..., layers, layers) between its layers."""
    # R itself is never made. With D of signs, Q D and D R are a QR as well, and libraries differ in D: only what no D
    # changes can be meant. |r[-1]| / |r| is the sine of the angle between v and the span of C, |r[:-1]| / |r| its
    # cosine, and Q keeps angles: the mean in beta, times r[:-1], is the mean cosine of v and the columns of C, times
    # |r|. All of it follows from cosines.
    layers, places, there = cosines.shape[-1], *_windows(cosines)
    grams = cosines[..., places.unsqueeze(-1), places.unsqueeze(-2)] * (there.unsqueeze(-1) * there.unsqueeze(-2))
    own, columns = grams[..., -1, -1], there.sum(dim=-1)  # own: 1, or 0 for a zero vector
    new = _outside_span(grams)
    known = own - new
    mean = grams[..., :-1, -1].sum(dim=-1) / (columns - 1)
    beta = torch.where(known > ROUNDING, mean / known.clamp(min=ROUNDING).sqrt(), 0.0).clamp(min=LEAST_ALIGNMENT)
    alignment, novelty = own / (2 * columns * beta), new.sqrt()
    equal = torch.full_like(own, 1 / layers)
    return (_shares(alignment, equal) + _shares(novelty, equal)) / 2


def token_weights(cosines: Tensor, counted: Tensor) -> Tensor:
    """Weights (rows, tokens), summing to 1 over the tokens of a text that are `counted` (rows, tokens; others: 0).

    `cosines` (rows, tokens, layers, layers) are those between the layers of each token.
    """
    steps = cosines.diagonal(offset=1, dim1=-2, dim2=-1)
    variance = steps.var(dim=-1, correction=0) * counted
    variance = torch.where(variance > ROUNDING, variance, 0.0)
    return _shares(variance, counted / counted.sum(dim=-1, keepdim=True).double())


def _counted(states: Tensor, mask: Tensor | None) -> Tensor:
    """Which tokens count, (rows, tokens): those under the mask but the last, unless it is the only one."""
    real = torch.ones_like(states[..., 0], dtype=torch.bool) if mask is None else mask.ne(0)
    place = real.cumsum(dim=1)
    return real & ((place < place[:, -1:]) | (place[:, -1:] == 1))


def _cosines(products: Tensor) -> Tensor:
    """Dot products (..., layers, layers) as cosines; a zero vector has 0 with every other and with itself."""
    squares = products.diagonal(dim1=-2, dim2=-1)
    norms = (squares.unsqueeze(-1) * squares.unsqueeze(-2)).sqrt()
    return products / torch.where(norms == 0, 1.0, norms)


def _windows(cosines: Tensor) -> tuple[Tensor, Tensor]:
    """Of every layer the numbers of those around it, itself the last (layers, 2 WINDOW + 1), and 1 where there is one.

    Where there is none the number is 0.
    """
    layers = cosines.shape[-1]
    offsets = [*range(-WINDOW, 0), *range(1, WINDOW + 1), 0]
    places = torch.arange(layers, device=cosines.device).unsqueeze(1) + torch.tensor(offsets, device=cosines.device)
    there = (places >= 0) & (places < layers)
    return places * there, there.to(cosines.dtype)


def _outside_span(grams: Tensor) -> Tensor:
    """Squared distance (...) of the last of some vectors from the span of the others, given their Gram matrices.

    Gram and Schmidt's process on the matrix alone: each vector in turn is taken out of those after it.
    """
    for number in range(grams.shape[-1] - 1):
        row = grams[..., number, :]
        square = row[..., number, None, None]  # of what it adds to the span
        inverse = torch.where(square > ROUNDING, 1 / square.clamp(min=ROUNDING), 0.0)
        grams = grams - row.unsqueeze(-1) * row.unsqueeze(-2) * inverse
    left = grams[..., -1, -1]
    return torch.where(left > ROUNDING, left, 0.0)


def _shares(values: Tensor, equal: Tensor) -> Tensor:
    """Values that are not negative, divided by their sum over the last dimension; `equal` where it is 0."""
    total = values.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, values / torch.where(total > 0, total, 1.0), equal)
