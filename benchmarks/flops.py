"""The required arithmetic of a transformer encoder, and this machine's peak rate, to compute utilisation."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

_SIZES = ((256, 256, 256), (1024, 1024, 1024), (2048, 2048, 2048), (1024, 768, 3072), (4096, 384, 1536))
_SECONDS = 0.15  # a size is repeated for at least this long
_EMULATED = 5e9  # FLOP/s below which the processor emulates such products: larger sizes take minutes for no gain


def model_flops(config: dict[str, Any], lengths: Sequence[int]) -> float:
    """Return the FLOPs of one forward pass over texts of these lengths (tokens), for BERT's architecture.

    Without padding: 2 x parameters of the blocks x tokens, and per block 4 x hidden x tokens squared for the products
    of queries with keys and of weights with values.
    """
    hidden, blocks = config["hidden_size"], config["num_hidden_layers"]
    weights = blocks * (4 * hidden * hidden + 2 * hidden * config["intermediate_size"])
    return float(sum(2 * weights * length + 4 * blocks * hidden * length * length for length in lengths))


class Peaks:
    """Peak rates of matrix products on some threads."""

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)

    def flops(self, numbers: str) -> float:
        """Return FLOP/s (a multiplication and an addition are two) of a number type, the best of several sizes."""
        best = 0.0
        for size in _SIZES:
            best = max(best, _rate(_product(numbers, *size), *size))
            if best < _EMULATED:
                break
        return best


def _rate(product: Callable[[], Any], rows: int, inner: int, columns: int) -> float:
    product()
    fastest, end = float("inf"), time.perf_counter() + _SECONDS
    while time.perf_counter() < end:
        start = time.perf_counter()
        product()
        fastest = min(fastest, time.perf_counter() - start)
    return 2 * rows * inner * columns / fastest


def _product(numbers: str, rows: int, inner: int, columns: int) -> Callable[[], Any]:
    if numbers == "int8":
        left = torch.randint(-127, 127, (rows, inner), dtype=torch.int8)
        right = torch.randint(-127, 127, (inner, columns), dtype=torch.int8)
        return lambda: torch._int_mm(left, right)
    kind = getattr(torch, numbers)
    a, b = torch.randn(rows, inner).to(kind), torch.randn(inner, columns).to(kind)
    return lambda: torch.matmul(a, b)
