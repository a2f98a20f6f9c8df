"""Speed on a GPU: encoding compared with sentence-transformers, near-duplicate joins, exact search.

    python -m benchmarks.gpu [--device cuda] [--tiny] [-o FILE]

Models have random weights, because speed does not depend on the values. Text lengths follow a normal distribution (mean
128 tokens, deviation 40, limited to 8 and 256), or are 128 tokens each. Utilisation is the required arithmetic of the
model a second, divided by the rate of torch's bfloat16 products on the device.
"""

import json
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np
import torch

from benchmarks.dedup_peers import isotrope_ann, isotrope_exact
from benchmarks.flops import model_flops
from benchmarks.interleaved import machine, run_in_turns, save
from indexer.arrays import Float32Array
from indexer.encoders.load import load_encoder
from indexer.models.hub import locate_model
from indexer.recipe.config import EncoderConfig
from indexer.recipe.run_options import RunOptions
from search.cli.output import print_table

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
_SPECIAL = 2  # tokens that open and close a text
SHORTEST, LONGEST = 8, 256
_TOKENIZER = "sentence-transformers/all-MiniLM-L6-v2"
_BASE = "sentence-transformers float16"
_DIM = 384
_CHUNK = 1 << 20  # rows of an exact search that are scored at once
_QUERIES = 1000
_K = 10
Encode = Callable[[list[str]], Any]


@dataclass(frozen=True)
class Shape:
    """Sizes of a BERT."""

    hidden: int
    blocks: int
    heads: int
    inner: int


@dataclass(frozen=True)
class Work:
    """Texts to encode, with their tokens and the required arithmetic."""

    texts: list[str]
    tokens: int
    flops: float


SHAPES = {"bert-base": Shape(768, 12, 12, 3072), "MiniLM": Shape(384, 6, 12, 1536)}
TINY = {"tiny": Shape(32, 2, 4, 64)}


@click.command()
@click.option("--device", default="cuda", show_default=True)
@click.option("--tiny", is_flag=True, help="Use sizes that a CPU finishes in seconds: a test, not a measurement.")
@click.option("--texts", type=int, default=20_000, show_default=True, help="Texts of each mix of lengths.")
@click.option("--rows", multiple=True, type=int, default=(1_000_000, 10_000_000), show_default=True, help="Vectors "
              "to join and search; repeatable; 0: none.")  # fmt: skip
@click.option("--rounds", type=int, default=3, show_default=True)
@click.option("--compiled", is_flag=True, help="Also measure Isotrope's encoder with torch.compile.")
@click.option("-o", "--output", type=click.Path(path_type=Path))
def main(device: str, tiny: bool, rows: tuple[int, ...], compiled: bool, output: Path | None, **given: int) -> None:
    """Measure a GPU."""
    texts, rows, rounds = (24, (2000,), 1) if tiny else (given["texts"], rows, given["rounds"])
    peak = gemm_peak(device, 128 if tiny else 8192)
    encoding = []
    for name, shape in (TINY if tiny else SHAPES).items():
        with TemporaryDirectory() as folder:
            tokenizer = locate_model(_TOKENIZER).folder
            model = write_model(Path(folder) / name, shape, tokenizer)
            ways = encoders(model, device, compiled)
            for mix, lengths in {"normal": normal_lengths(texts), "128 tokens": [128] * texts}.items():
                work = Work(texts_of(lengths, tokenizer), sum(lengths), flops_of(model, lengths))
                encoding += compare(f"{name}, {mix}", ways, work, peak, rounds)
    show_encoding(encoding, peak)
    vectors = [measure_vectors(count, device) for count in rows if count]
    show_vectors(vectors)
    about = machine(torch.get_num_threads(), ("sentence-transformers",)) | {"device": device_name(device)}
    click.echo(f"{about['device']}, {about['date']}, {about['versions']}")
    if output:
        result = {"machine": about, "command": sys.argv[1:], "gemm_peak_bfloat16": peak, "encoding": encoding}
        save(output, {**result, "vectors": vectors})


def device_name(device: str) -> str:
    """Return the name of the device."""
    return torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU"


def gemm_peak(device: str, size: int) -> float:
    """Return FLOP/s of square bfloat16 products, the best of ten."""
    left, right = (torch.randn(size, size, device=device).to(torch.bfloat16) for _ in range(2))
    fastest = min(_seconds(lambda: left @ right, device) for _ in range(10))
    return 2 * size**3 / fastest


def encoders(model: Path, device: str, compiled: bool) -> dict[str, Encode]:
    """Return the encoders: Isotrope, and sentence-transformers with default and with large batches."""
    config = EncoderConfig(model=str(model), precision="bfloat16", max_length=LONGEST)
    ways: dict[str, Encode] = {}
    for numbers in ("float16", "bfloat16"):
        peer = _sentence_transformers(model, device, numbers)
        ways[f"sentence-transformers {numbers}"] = partial(peer, batch_size=32)
        ways[f"sentence-transformers {numbers}, batches of 256"] = partial(peer, batch_size=256)
    ours = load_encoder(config, RunOptions(device=device, backend="torch"))
    ways["isotrope bfloat16"] = lambda texts: ours.encode(texts, "document")
    if compiled:
        faster = load_encoder(config, RunOptions(device=device, backend="torch", compile=True))
        ways["isotrope bfloat16, compiled"] = lambda texts: faster.encode(texts, "document")
    return ways


def _sentence_transformers(model: Path, device: str, numbers: str) -> Callable[..., Any]:
    from sentence_transformers import SentenceTransformer

    loaded = SentenceTransformer(
        str(model), device=device, local_files_only=True, model_kwargs={"dtype": getattr(torch, numbers)}
    )
    loaded.max_seq_length = LONGEST

    def encode(texts: list[str], batch_size: int) -> Any:
        return loaded.encode(texts, batch_size=batch_size, show_progress_bar=False)

    return encode


def flops_of(model: Path, lengths: list[int]) -> float:
    """Return the required FLOPs of a model for texts of these lengths in tokens."""
    return model_flops(json.loads((model / "config.json").read_text(encoding="utf-8")), lengths)


def compare(name: str, ways: dict[str, Encode], work: Work, peak: float, rounds: int) -> list[dict[str, Any]]:
    """Measure all encoders on the same texts, in turns."""
    timed = run_in_turns({way: partial(encode, work.texts) for way, encode in ways.items()}, rounds)
    return [
        {
            "model": name,
            "way": way,
            "texts_per_second": len(work.texts) / run.median,
            "tokens_per_second": work.tokens / run.median,
            "ratio": timed[_BASE].median / run.median,
            "utilisation": work.flops / run.median / peak,
            "seconds": run.seconds,
        }
        for way, run in timed.items()
    ]


def measure_vectors(count: int, device: str) -> dict[str, Any]:
    """Measure joins and exact search of `count` vectors, a tenth of which are near copies of others."""
    vectors = random_vectors(count)
    figures: dict[str, Any] = {"rows": count, "dimensions": _DIM}
    for name, join in (("exact", isotrope_exact), ("ann", isotrope_ann)):
        start = time.perf_counter()
        outcome = join(vectors, 0.95, torch.get_num_threads(), device=device)
        figures[f"join_{name}"] = {"seconds": time.perf_counter() - start, "pairs": len(outcome.pairs)}
    for kind in (torch.float32, torch.bfloat16):
        numbers = str(kind).removeprefix("torch.")
        figures[f"search_{numbers}"] = {"queries_per_second": search_rate(vectors, device, kind)}
    return figures


def random_vectors(count: int) -> Float32Array:
    """Return unit vectors (count, 384): nine tenths random, the others copies with a cosine of about 0.97."""
    chance = np.random.default_rng(0)
    vectors = np.empty((count, _DIM), np.float32)
    for start in range(0, count, _CHUNK):
        part = vectors[start : start + _CHUNK]
        part[:] = chance.standard_normal(part.shape, np.float32)
        copies = len(part) // 10
        part[-copies:] = part[:copies] + 0.25 * part[-copies:]
        part /= np.linalg.norm(part, axis=1, keepdims=True)
    return vectors


def search_rate(vectors: Float32Array, device: str, kind: torch.dtype) -> float:
    """Return queries a second of an exact search: products with all vectors, a chunk at a time, and a top-k."""
    rows = torch.empty(vectors.shape, dtype=kind, device=device)
    for start in range(0, len(vectors), _CHUNK):
        rows[start : start + _CHUNK] = torch.from_numpy(vectors[start : start + _CHUNK]).to(device, kind)
    queries = rows[: min(_QUERIES, len(rows))]
    exact_search(rows, queries, _K)
    return len(queries) / median(_seconds(lambda: exact_search(rows, queries, _K), device) for _ in range(3))


def exact_search(rows: torch.Tensor, queries: torch.Tensor, k: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return scores and row numbers (queries, k) of the rows (n, d) with the highest inner products."""
    scores, numbers = [], []
    for start in range(0, len(rows), _CHUNK):
        chunk = rows[start : start + _CHUNK]
        best = (queries @ chunk.T).topk(min(k, len(chunk)))
        scores.append(best.values)
        numbers.append(best.indices + start)
    merged = torch.cat(scores, dim=1).topk(min(k, len(rows)))
    return merged.values, torch.cat(numbers, dim=1).gather(1, merged.indices)


def _seconds(run: Callable[[], Any], device: str) -> float:
    _wait(device)
    start = time.perf_counter()
    run()
    _wait(device)
    return time.perf_counter() - start


def _wait(device: str) -> None:
    if device.startswith("cuda"):
        torch.cuda.synchronize(device)


def show_encoding(rows: list[dict[str, Any]], peak: float) -> None:
    """Print the table of encoders."""
    cells = [
        [f"{row['model']}: {row['way']}", f"{row['texts_per_second']:,.0f}", f"{row['tokens_per_second']:,.0f}",
         f"{row['ratio']:.2f}", f"{row['utilisation']:.0%}"]
        for row in rows
    ]  # fmt: skip
    title = f"Encoding; bfloat16 products reach {peak / 1e12:,.2f} TFLOP/s"
    print_table(["", "texts/s", "tokens/s", f"x {_BASE}", "of peak"], cells, title)


def show_vectors(rows: list[dict[str, Any]]) -> None:
    """Print the table of joins and searches."""
    columns = ["vectors", "exact join, s", "ann join, s", "pairs", "queries/s float32", "queries/s bfloat16"]
    cells = [
        [f"{row['rows']:,}", f"{row['join_exact']['seconds']:.1f}", f"{row['join_ann']['seconds']:.1f}",
         f"{row['join_exact']['pairs']:,}", f"{row['search_float32']['queries_per_second']:,.0f}",
         f"{row['search_bfloat16']['queries_per_second']:,.0f}"]
        for row in rows
    ]  # fmt: skip
    print_table(columns, cells)


# --- models with random weights, and texts of known lengths


def write_model(folder: Path, shape: Shape, tokenizer: Path) -> Path:
    """Write a BERT with random weights and the tokenizer of another folder to the new `folder`, and return it."""
    from transformers import BertConfig, BertModel

    folder.mkdir(parents=True)
    for name in _TOKENIZER_FILES:
        if (tokenizer / name).is_file():
            shutil.copy(tokenizer / name, folder / name)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(_vocabulary(tokenizer)),
        hidden_size=shape.hidden,
        num_hidden_layers=shape.blocks,
        num_attention_heads=shape.heads,
        intermediate_size=shape.inner,
    )
    BertModel(config).save_pretrained(folder)
    return folder


def normal_lengths(count: int, mean: int = 128, deviation: int = 40) -> list[int]:
    """Return lengths in tokens, normally distributed within `SHORTEST` and `LONGEST`, with a fixed seed."""
    drawn = np.random.default_rng(0).normal(mean, deviation, count)
    lengths: list[int] = np.clip(np.rint(drawn), SHORTEST, LONGEST).astype(int).tolist()
    return lengths


def texts_of(lengths: list[int], tokenizer: Path) -> list[str]:
    """Return texts of random words, each one token, with these lengths including special tokens."""
    words = [word for word in _vocabulary(tokenizer) if word.isascii() and word.isalpha() and word.islower()]
    chance = np.random.default_rng(1)
    return [" ".join(words[i] for i in chance.integers(0, len(words), length - _SPECIAL)) for length in lengths]


def _vocabulary(tokenizer: Path) -> list[str]:
    from tokenizers import Tokenizer

    return sorted(Tokenizer.from_file(str(tokenizer / "tokenizer.json")).get_vocab())


if __name__ == "__main__":
    main()
