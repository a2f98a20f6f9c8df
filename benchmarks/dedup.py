"""Comparison of near-duplicate joins: time, pair recall, and violations of the two guarantees.

    python -m benchmarks.dedup INDEX... [--rows 50000 --rows 100000] [--threshold 0.95] [-o FILE]

The vectors are the distinct vectors of all indexes (of one encoder) by the first index's transform, in a fixed random
order. A tenth of them is replaced by near copies of others with cosines of 0.85 to 0.99. Rows beyond the number of
vectors are near copies too.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks import dedup_peers as peers
from benchmarks.ann_peers import distinct_vectors
from benchmarks.interleaved import machine, run_in_turns, save
from indexer.arrays import Vectors
from search.cli.output import print_table

_BASE = "float32 products"
_PLANTED = 0.1
_MANY = 300_000  # rows, above which the quadratic peers are skipped


@click.command()
@click.argument("indexes", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--rows", multiple=True, type=int, default=(100_000,), show_default=True, help="Vectors; repeatable.")
@click.option("--threshold", "thresholds", multiple=True, type=float, default=(0.95, 0.9), show_default=True)
@click.option("--rounds", type=int, default=3, show_default=True, help="Runs of each, in turns.")
@click.option("--warm-up/--no-warm-up", default=True, help="Add one uncounted run of each.")
@click.option("--only", multiple=True, help="Joins to run, by their name in the table; repeatable.")
@click.option("--check/--no-check", default=True, help="Also find all pairs by float32 products, and count misses.")
@click.option("--threads", type=int, default=2, show_default=True)
@click.option("--device", default="cpu", show_default=True, help="Device of Isotrope's join.")
@click.option("--semhash/--no-semhash", default=True, help="Include semhash (pip install 'isotrope[bench]').")
@click.option("-o", "--output", type=click.Path(path_type=Path))
def main(
    indexes: tuple[Path, ...], rows: tuple[int, ...], thresholds: tuple[float, ...], output: Path | None, **given: Any
) -> None:
    """Compare joins on the vectors of some indexes."""
    options, results = Options(**given), list[dict[str, Any]]()
    for count in rows:
        vectors = corpus(indexes, count)
        for threshold in thresholds:
            results += compare(vectors, threshold, options)
    about = machine(options.threads, ("semhash", "usearch", "faiss-cpu"))
    if options.device != "cpu":
        import torch

        about["device"] = torch.cuda.get_device_name()
    click.echo(f"{about['processor']}, {options.threads} threads, {about['date']}, {about['versions']}")
    if output:
        save(output, {"machine": about, "results": results})


@dataclass(frozen=True)
class Options:
    """The joins to run and their settings."""

    rounds: int
    warm_up: bool
    only: tuple[str, ...]
    semhash: bool
    check: bool
    threads: int
    device: str

    def runners(self, vectors: Vectors, threshold: float) -> dict[str, Callable[[], peers.Outcome]]:
        """Return the requested joins, above `_MANY` rows only Isotrope's."""
        runners: dict[str, Callable[[], peers.Outcome]] = {}
        for name, join in peers.JOINS.items():
            ours = name.startswith("isotrope")
            if (ours or len(vectors) <= _MANY) and (not self.only or name in self.only):
                more = {"device": self.device} if ours else {}
                runners[name] = partial(join, vectors, threshold, self.threads, **more)
        return runners


def compare(vectors: Vectors, threshold: float, options: Options) -> list[dict[str, Any]]:
    """Measure all joins on the same vectors, print a table and return its rows."""
    is_checked = options.check and len(vectors) <= _MANY
    truth = peers.true_pairs(vectors, threshold, options.threads) if is_checked else None
    timed = run_in_turns(options.runners(vectors, threshold), options.rounds, options.warm_up)
    if options.semhash and truth is not None:  # minutes: once
        once = partial(peers.semhash_deduplication, vectors, threshold, options.threads)
        timed |= run_in_turns({"semhash": once}, 1, warm_up=False)
    base = timed[_BASE].median if _BASE in timed else None
    about = {"rows": len(vectors), "dimensions": vectors.shape[1], "threshold": threshold}
    table = []
    for name, run in timed.items():
        if run.result is not None:
            ratio = base / run.median if base else None
            row = {"name": name, **about, "seconds": run.median, "ratio": ratio}
            table.append(row | _accuracy(run.result, truth, vectors))
    pairs = f"{len(truth):,} pairs" if truth is not None else "pairs not checked"
    print_table(
        ["", "s", "x faster", "pairs", "pair recall", "wrong pairs", "violations 1 / 2", "dropped"],
        [[row["name"], f"{row['seconds']:.2f}", _shown(row["ratio"], ".1f"), *_counts(row)] for row in table],
        f"{len(vectors):,} vectors of {vectors.shape[1]} dimensions, threshold {threshold:g}, {pairs}",
    )
    return table


def _accuracy(outcome: peers.Outcome, truth: peers.Keys | None, vectors: Vectors) -> dict[str, Any]:
    row: dict[str, Any] = {"pairs": len(outcome.pairs) if outcome.kept is None or len(outcome.pairs) else None}
    if truth is not None and row["pairs"] is not None:
        right = len(np.intersect1d(outcome.pairs, truth, assume_unique=True))
        row |= {"recall": right / max(1, len(truth)), "wrong": len(outcome.pairs) - right}
    if truth is not None and outcome.kept is not None:
        row |= peers.violations(outcome, truth, vectors)
    return row


def _counts(row: dict[str, Any]) -> list[str]:
    first, second = row.get("dropped without a kept duplicate"), row.get("kept pairs above the threshold")
    broken = "" if first is None else f"{first:,} / {second:,}"
    return [
        _shown(row["pairs"], ","), _shown(row.get("recall"), ".5f"), _shown(row.get("wrong"), ","), broken,
        _shown(row.get("dropped"), ","),
    ]  # fmt: skip


def _shown(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"


def corpus(indexes: tuple[Path, ...], count: int) -> Vectors:
    """Return `count` vectors as described above."""
    real, draw = distinct_vectors(indexes), np.random.default_rng(0)
    vectors = real[draw.permutation(len(real))[:count]]
    planted = max(count - len(vectors), round(_PLANTED * count))
    vectors = vectors[: count - planted]
    return np.concatenate([vectors, _near_copies(vectors, planted, draw)])


def _near_copies(vectors: Vectors, count: int, draw: np.random.Generator) -> Vectors:
    """Return copies with noise, whose cosines with the originals are uniform from 0.85 to 0.99."""
    copies = np.empty((count, vectors.shape[1]), np.float32)
    for start in range(0, count, 8192):
        part = copies[start : start + 8192]
        originals = vectors[draw.integers(0, len(vectors), len(part))].astype(np.float64)
        noise = draw.standard_normal(part.shape)
        noise -= (noise * originals).sum(1, keepdims=True) * originals
        noise /= np.linalg.norm(noise, axis=1, keepdims=True)
        cosines = draw.uniform(0.85, 0.99, (len(part), 1))
        moved = cosines * originals + np.sqrt(1 - cosines**2) * noise
        part[:] = moved / np.linalg.norm(moved, axis=1, keepdims=True)
    return copies


if __name__ == "__main__":
    main()
