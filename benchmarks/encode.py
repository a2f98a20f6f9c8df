"""Comparison of encoders: speed on two mixes of lengths, and fidelity of vectors after the transform.

    python -m benchmarks.encode CORPUS [--sts FOLDER] [--texts 1500] [--rounds 3] [--threads 2] [-o FILE]

Each way to encode is loaded once, in its own process. The ways take turns, and medians are compared. Tokenising is
included. Speeds are measured on documents of the corpus, drawn with a fixed seed, and on STS sentences. Utilisation is
the required arithmetic of the model a second, divided by torch's rate in products of the same number type on this
machine. Fidelity is the cosine of each text's vector with that of float32, both after one whitening fitted in float32.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.children import Child, ChildFailed
from benchmarks.encode_ways import BASE, WAYS, Way
from benchmarks.flops import model_flops
from benchmarks.interleaved import Timed, machine, run_in_turns, save
from indexer.arrays import Float32Array, Float64Array
from indexer.corpus.corpus import read_corpus
from indexer.corpus.document import joined_text
from indexer.models.hub import locate_model
from indexer.moments import Moments
from indexer.recipe.config import BuildConfig, WhiteningConfig
from indexer.transforms import Transform, fit_whitening
from search.cli.output import print_table
from search.evaluation.sts.data import Task, read_tasks
from search.evaluation.sts.readers import Subset
from search.evaluation.sts.score import cosines, spearman

Encode = Callable[[Sequence[str]], Float32Array]
_STRENGTHS = {"default": WhiteningConfig(), "strength 1": WhiteningConfig(strength=1.0)}
_SEED = 0
_WARM_UP = 64  # texts
_CALIBRATION = 300  # texts of all mixes together
_SENTENCES = "STS sentences"
_DOCUMENTS = "documents"
_PEERS = ("openvino", "nncf", "onnxruntime", "sentence-transformers")


@dataclass(frozen=True)
class Options:
    """The ways to compare and the settings."""

    folder: Path
    texts: int
    fidelity_texts: int
    rounds: int
    threads: int
    max_length: int
    peer_python: str
    only: tuple[str, ...]

    def ways(self) -> list[Way]:
        """Return the requested ways with their references."""
        chosen = [way for name, way in WAYS.items() if not self.only or any(part in name for part in self.only)]
        needed = {BASE, *(way.reference for way in chosen), *(way.name for way in chosen)}
        return [way for name, way in WAYS.items() if name in needed]


@dataclass
class Row:
    """Measurements of a way, or the reason in `missing` if it could not be loaded."""

    way: Way
    missing: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    timed: dict[str, Timed[float]] = field(default_factory=dict)
    fidelity: dict[str, Any] = field(default_factory=dict)


class Fidelity:
    """Comparison of ways on the same texts, one mix of lengths at a time. Measure references first."""

    def __init__(self, texts: Mapping[str, Sequence[str]], tasks: Sequence[Task] = ()) -> None:
        self.texts = texts
        self._sts_b = next((task.subsets[0] for task in tasks if task.name == "STSB"), None)
        self._references: dict[str, dict[str, Float32Array]] = {}

    def of(self, name: str, reference: str, encode: Encode) -> dict[str, Any]:
        """Return minimum and mean cosine with the reference over all texts, for the default recipe and for strength 1.

        With STS-B, also return the gain of its correlation in points.
        """
        rows = {mix: encode(texts) for mix, texts in self.texts.items() if texts}
        if self._sts_b is not None:
            rows["STS-B"] = encode(_sentences(self._sts_b))
        if name == reference:
            self._references[name] = rows
        exact = self._references[reference]
        figures: dict[str, Any] = {}
        for setting, config in _STRENGTHS.items():
            scores = np.concatenate(
                [_cosines(_fitted(exact[mix], config), exact[mix], rows[mix]) for mix in self.texts if mix in rows]
            )
            figures[setting] = {"minimum": float(scores.min()), "mean": float(scores.mean()), "texts": len(scores)}
        if self._sts_b is not None:
            transform = _fitted(exact["STS-B"], WhiteningConfig())
            before, after = (self._correlation(transform, each["STS-B"]) for each in (exact, rows))
            figures["sts_b"] = after - before
        return figures

    def _correlation(self, transform: Transform, rows: Float32Array) -> float:
        assert self._sts_b is not None
        pairs = len(self._sts_b.scores)
        first, second = np.arange(pairs), np.arange(pairs, 2 * pairs)
        scores = cosines(transform.project(rows, "document"), first, second)
        return 100 * spearman(scores, self._sts_b.scores, "STS-B")


def _sentences(pairs: Subset) -> list[str]:
    return [*pairs.first, *pairs.second]


def _fitted(rows: Float32Array, config: WhiteningConfig) -> Transform:
    return fit_whitening(Moments.of(rows), config)


def _cosines(transform: Transform, exact: Float32Array, rows: Float32Array) -> Float64Array:
    ours, theirs = (transform.transform(each, "document").astype(np.float64) for each in (exact, rows))
    norms = np.linalg.norm(ours, axis=1) * np.linalg.norm(theirs, axis=1)
    scores: Float64Array = (ours * theirs).sum(axis=1) / norms
    return scores


@click.command()
@click.argument("corpus", nargs=-1, required=True)
@click.option("--sts", type=click.Path(path_type=Path), help="Folder of STS sets, for sentences and for STS-B.")
@click.option("--model", default="sentence-transformers/all-MiniLM-L6-v2", show_default=True)
@click.option("--texts", type=int, default=1500, show_default=True, help="Texts of each mix to time.")
@click.option(
    "--fidelity-texts", type=int, default=1000, show_default=True, help="Texts of each mix to compare; 0: none."
)
@click.option("--rounds", type=int, default=3, show_default=True)
@click.option("--threads", type=int, default=2, show_default=True)
@click.option("--max-length", type=int, default=256, show_default=True, help="Most tokens of a text.")
@click.option("--only", multiple=True, help="Ways whose name contains this; repeatable.")
@click.option("--peer-python", default=sys.executable, help="Interpreter with optimum-intel and optimum-onnx, which "
              "need other versions.")  # fmt: skip
@click.option("-o", "--output", type=click.Path(path_type=Path))
def main(corpus: tuple[str, ...], sts: Path | None, model: str, output: Path | None, **given: Any) -> None:
    """Compare ways to encode."""
    options = Options(folder=locate_model(model).folder, **given)
    mixes = {_DOCUMENTS: documents(corpus, max(options.texts, options.fidelity_texts))}
    tasks = read_tasks(sts) if sts else []
    if tasks:
        sentences = [text for task in tasks for part in task.subsets for text in (*part.first, *part.second)]
        mixes[_SENTENCES] = drawn(sentences, max(options.texts, options.fidelity_texts))
    fidelity = Fidelity({name: texts[: options.fidelity_texts] for name, texts in mixes.items()}, tasks)
    timed_texts = {name: texts[: options.texts] for name, texts in mixes.items()}
    rows, peaks = measure(options, timed_texts, fidelity)
    lengths = {name: token_lengths(options, texts) for name, texts in timed_texts.items()}
    results = [result_of(row, rows[0], peaks, lengths, options) for row in rows]
    show(results, lengths)
    about = machine(options.threads, _PEERS)
    tera = ", ".join(f"{numbers} {peak / 1e12:.2f}" for numbers, peak in peaks.items())
    click.echo(f"GEMM peaks in TFLOP/s: {tera}")
    click.echo(f"{about['processor']}, {options.threads} threads, {about['date']}, {about['versions']}")
    if output:
        save(output, {"machine": about, "command": sys.argv[1:], "peak_flops": peaks, "results": results})


def documents(sources: Sequence[str], count: int) -> list[str]:
    """Return the texts to encode of documents drawn with a fixed seed."""
    config = BuildConfig()
    texts = (joined_text(document, config.corpus.text) for document in read_corpus(*sources))
    return drawn([text for text in texts if text], count)


def drawn(texts: Sequence[str], count: int) -> list[str]:
    """Return `count` of the distinct texts in random order, with a fixed seed."""
    distinct = list(dict.fromkeys(texts))
    order = np.random.default_rng(_SEED).permutation(len(distinct))[:count]
    return [distinct[position] for position in order]


def measure(options: Options, texts: dict[str, list[str]], fidelity: Fidelity) -> tuple[list[Row], dict[str, float]]:
    """Measure speed and fidelity of all ways, and the best GEMM rate of each number type."""
    rows = [Row(way) for way in options.ways()]
    sample = [text for mix in texts.values() for text in mix[: _CALIBRATION // len(texts)]]
    with ExitStack() as stack:
        children = {}
        for row in rows:
            if child := _open(row, options, sample, texts):
                children[row.way.name] = stack.enter_context(child)
                row.versions = child.call("versions") if row.way.peer else {}
        peaks = stack.enter_context(Child("benchmarks.flops:Peaks", options.threads, threads=options.threads))
        best = dict.fromkeys(("float32", "bfloat16", "int8"), 0.0)
        for _ in range(options.rounds):
            best = {numbers: max(rate, peaks.call("flops", numbers)) for numbers, rate in best.items()}
            for mix in texts:
                runners = {name: partial(child.call, "run", mix) for name, child in children.items()}
                for name, timed in run_in_turns(runners, 1, warm_up=False).items():
                    row = next(row for row in rows if row.way.name == name)
                    row.timed.setdefault(mix, Timed()).seconds.append(timed.result or timed.median)
        if any(fidelity.texts.values()):
            for row in sorted(rows, key=lambda row: row.way.name != row.way.reference):
                if {row.way.name, row.way.reference} <= set(children):
                    encode = partial(children[row.way.name].call, "embeddings")
                    row.fidelity = fidelity.of(row.way.name, row.way.reference, encode)
    return rows, best


def _open(row: Row, options: Options, sample: Sequence[str], texts: dict[str, list[str]]) -> Child | None:
    way = row.way
    python = options.peer_python if way.peer else sys.executable
    arguments = (way.name, str(options.folder), options.threads, sample, options.max_length)
    child = None
    try:
        child = Child("benchmarks.encode_ways:Runner", *arguments, threads=options.threads, python=python)
        for mix, mix_texts in texts.items():
            child.call("hold", mix, mix_texts, _WARM_UP)
    except ChildFailed as error:
        row.missing = str(error)
        if child:
            child.close()
        return None
    return child


def token_lengths(options: Options, texts: Sequence[str]) -> list[int]:
    """Return the number of encoded tokens of each text, including special tokens."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(options.folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return [min(len(encoding.ids), options.max_length) for encoding in tokenizer.encode_batch_fast(list(texts))]


def result_of(
    row: Row, base: Row, peaks: dict[str, float], lengths: dict[str, list[int]], options: Options
) -> dict[str, Any]:
    """Return a row of the table as JSON types."""
    config = json.loads((options.folder / "config.json").read_text(encoding="utf-8"))
    mixes = {}
    for mix, timed in row.timed.items():
        tokens = lengths[mix]
        mixes[mix] = {
            "texts_per_second": len(tokens) / timed.median,
            "tokens_per_second": sum(tokens) / timed.median,
            "ratio": base.timed[mix].median / timed.median,
            "utilisation": model_flops(config, tokens) / timed.median / peaks[row.way.numbers],
            "seconds": timed.seconds,
            "fastest": min(timed.seconds),
        }
    return {
        "name": row.way.name,
        "missing": row.missing,
        "versions": row.versions,
        "mixes": mixes,
        "fidelity": row.fidelity,
    }


def show(results: Sequence[dict[str, Any]], lengths: dict[str, list[int]]) -> None:
    """Print the table."""
    columns = ["way"]
    for mix in lengths:
        columns += [f"{mix}/s", "tokens/s", f"x {BASE}", "of peak"]
    columns += ["cosine, min / mean", "at strength 1", "STS-B"]
    cells = []
    for result in results:
        line = [result["name"]]
        for mix in lengths:
            line += _speeds(result["mixes"].get(mix))
        cells.append(line + _closeness(result["fidelity"]))
    title = ", ".join(f"{len(tokens):,} {mix} of {np.mean(tokens):.0f} tokens" for mix, tokens in lengths.items())
    print_table(columns, cells, title)
    for result in results:
        if result["versions"]:
            click.echo(f"{result['name']}: {result['versions']}")
        if result["missing"]:
            click.echo(f"{result['name']}: not measured: {result['missing']}")


def _speeds(mix: dict[str, Any] | None) -> list[str]:
    if mix is None:
        return ["", "", "", ""]
    speeds = [f"{mix['texts_per_second']:,.1f}", f"{mix['tokens_per_second']:,.0f}"]
    return [*speeds, f"{mix['ratio']:.2f}", f"{mix['utilisation']:.0%}"]


def _closeness(fidelity: dict[str, Any]) -> list[str]:
    if not fidelity:
        return ["", "", ""]
    soft, full = fidelity["default"], fidelity["strength 1"]
    points = fidelity.get("sts_b")
    return [
        f"{soft['minimum']:.5f} / {soft['mean']:.5f}",
        f"{full['minimum']:.5f} / {full['mean']:.5f}",
        "" if points is None else f"{points:+.3f}",
    ]


if __name__ == "__main__":
    main()
