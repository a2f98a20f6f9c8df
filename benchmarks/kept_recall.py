"""Recall of an index that grows by additions of another distribution, with kept and with fixed search parameters.

    python -m benchmarks.kept_recall TABLE --start CORPUS --added CORPUS [--added CORPUS] [--log CORPUS] \\
        --set "index.type=Pad128,IVF512,PQ64x4fsr,Refine(SQfp16)" [-o benchmarks/results/kept-recall.json]

TABLE is a model2vec folder. The texts of the corpora are cut into sentences, without duplicates. Those of --start, in
the order of a hash, build the index; those of --added are added in their order, in additions of one size. Of each,
1,000 sentences spread over it are never indexed: they are questions. After each addition, recall@10 of half of them is
measured by comparing them with every vector: with the search parameters that the index stores, and with the parameters
that each segment had when it was written. "measured" is the entry of the manifest's history, if the addition has one.
Times are CPU seconds, which depend little on other programs.

With --log the questions change: index.queries is a file that contains the other half of the questions like --start at
build, and 500 sentences of the corpus --log from the first addition on. Another 500 of its sentences are measured, in
place of questions like --added.
"""

import re
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.interleaved import machine, save
from indexer import BuildConfig, Document, RunOptions, add_documents, build_index, read_corpus
from indexer.arrays import Vectors
from indexer.encoders.load import load_encoder
from indexer.progress import NoProgress
from indexer.store.manifest import load_manifest
from search import Index, SearchEngine
from search.cli.output import print_table

_QUESTIONS, _SHORTEST = 1000, 12  # of each corpus; characters of a sentence
_DEPTH, _TIE = 10, 1e-6
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
_LOG = "questions.txt"
_OPTIONS = RunOptions(device="cpu")
Parameters = dict[str, dict[str, int]]


@click.command()
@click.argument("table", type=click.Path(path_type=Path))
@click.option("--start", multiple=True, required=True, help="Corpus of the first sentences.")
@click.option("--added", multiple=True, required=True, help="Corpus of the sentences that are added.")
@click.option("--built", default=100_000, show_default=True, help="Sentences that the index is built from.")
@click.option("--adds", default=30, show_default=True, help="Additions.")
@click.option("--rows", default=10_000, show_default=True, help="Sentences of an addition.")
@click.option("--set", "settings", multiple=True, help="A setting of the recipe.")
@click.option("--log", multiple=True, help="Corpus of the questions of index.queries after the build.")
@click.option("-o", "--output", type=click.Path(path_type=Path))
def main(table: Path, start: tuple[str, ...], added: tuple[str, ...], **options: Any) -> None:
    """Measure an index that grows."""
    old, old_questions = _split(sorted(sentences(start), key=lambda text: sha256(text.encode()).digest()))
    built = options["built"]
    new, new_questions = _split(list(sentences(added, [*old[:built], *old_questions])))
    if len(old) < built or len(new) < options["adds"] * options["rows"]:
        raise click.ClickException(f"the corpora have only {len(old):,} and {len(new):,} sentences")
    config = BuildConfig.load("static").with_overrides([f"encoder.model={table}", *options["settings"]])
    documents = [Document(str(number), text) for number, text in enumerate([*old[:built], *new])]
    ends = [built + number * options["rows"] for number in range(options["adds"] + 1)]
    steps = [documents[first:end] for first, end in zip([0, *ends], ends, strict=False)]
    with tempfile.TemporaryDirectory() as folder:
        if options["log"]:
            _, new_questions = _split(list(sentences(options["log"])))
            config = config.with_overrides([f"index.queries={Path(folder) / _LOG}"])
        rows = list(grow(Path(folder), steps, config, [old_questions, new_questions]))
    if options["output"]:
        save(options["output"], {"machine": machine(0), "command": sys.argv[1:], "steps": rows})


def sentences(corpora: Iterable[str], seen: Iterable[str] = ()) -> Iterator[str]:
    """Yield the distinct sentences of corpora that are not in `seen`."""
    known = set(seen)
    for document in read_corpus(*corpora):
        for sentence in map(str.strip, _SENTENCE.split(document.text)):
            if len(sentence) >= _SHORTEST and sentence not in known:
                known.add(sentence)
                yield sentence


def _split(texts: list[str]) -> tuple[list[str], list[str]]:
    """Return the texts to index and the questions, which are spread evenly."""
    chosen = set(np.linspace(0, len(texts) - 1, _QUESTIONS).round().astype(int).tolist())
    return [text for at, text in enumerate(texts) if at not in chosen], [texts[at] for at in sorted(chosen)]


def grow(
    folder: Path, steps: Sequence[Sequence[Document]], config: BuildConfig, questions: Sequence[Sequence[str]]
) -> Iterator[dict[str, Any]]:
    """Build an index of the first documents, add the others step by step, and yield what each step measures."""
    index = folder / "index"
    encoder, as_written, timer = load_encoder(config, _OPTIONS), Parameters(), Timer()
    print_table(_HEADS, [], "recall@10 of questions like the first texts / of the other questions")
    for number, documents in enumerate(steps):
        (folder / _LOG).write_text("\n".join(questions[min(number, 1)][::2]), encoding="utf-8")
        begun, timer.measuring = time.process_time(), None
        if number:
            notes = add_documents(documents, index, _OPTIONS, timer, encoder=encoder).notes
        else:
            notes = build_index(documents, index, config, _OPTIONS).notes
        ended = time.process_time()
        manifest = load_manifest(index)
        kept = {entry.file: entry.search_parameters for entry in manifest.segments}
        as_written |= {file: parameters for file, parameters in kept.items() if file not in as_written}
        history = [entry for entry in manifest.measured.recall_history if entry.generation == manifest.generation]
        with SearchEngine(index) as engine:
            vectors = [engine.embed(list(texts[1::2])) for texts in questions]
            recalls = measure(engine.index, vectors, [as_written, kept])
        yield _shown(
            {
                "rows": manifest.rows,
                "segments": len(manifest.segments),
                "parameters": next(iter(kept.values())),
                "fixed": recalls[0],
                "kept": recalls[1],
                "measured": history[0].recall_at_10 if history else None,
                "cpu_seconds": ended - begun,
                "cpu_seconds_measuring": None if timer.measuring is None else ended - timer.measuring,
                "notes": [note for note in notes if "recall" in note],
            }
        )


class Timer(NoProgress):
    """The CPU time at which an addition begins to measure recall."""

    measuring: float | None = None

    def phase(self, name: str, total: int | None) -> None:
        """Note the time."""
        if name == "measuring recall":
            self.measuring = time.process_time()


def measure(index: Index, questions: Sequence[Vectors], settings: Sequence[Parameters]) -> list[list[float]]:
    """Return the recall@10 of each set of questions for each of some search parameters."""
    vectors = index.vectors(np.arange(index.manifest.rows))
    least = [_last_scores(asked, vectors) for asked in questions]
    recalls = list[list[float]]()
    for parameters in settings:
        for segment in index.segments:
            segment.set_search_parameters(parameters[segment.entry.file])
        recalls.append([])
        for asked, cut in zip(questions, least, strict=True):
            found = np.array([rows[:_DEPTH] for _, rows in index.search(asked, _DEPTH)])
            scores = np.einsum("nk,nmk->nm", asked, vectors[found])
            recalls[-1].append(float(np.mean(scores >= cut[:, None] - _TIE)))
    return recalls


def _last_scores(questions: Vectors, vectors: Vectors) -> Vectors:
    """Return the score of the tenth best vector of each question, (n,)."""
    blocks = [questions[start : start + 100] @ vectors.T for start in range(0, len(questions), 100)]
    return np.concatenate([np.partition(block, -_DEPTH, axis=1)[:, -_DEPTH] for block in blocks])


_HEADS = ["rows", "segments", "parameters", "fixed", "kept", "measured", "CPU seconds", "of them measuring"]


def _shown(step: dict[str, Any]) -> dict[str, Any]:
    """Print a step as it ends, and return it."""
    cells = [
        f"{step['rows']:,}",
        step["segments"],
        ", ".join(f"{name} {value}" for name, value in step["parameters"].items()) or "exact",
        *(" / ".join(f"{recall:.4f}" for recall in step[name]) for name in ("fixed", "kept")),
        "" if step["measured"] is None else f"{step['measured']:.4f}",
        f"{step['cpu_seconds']:.1f}",
        "" if step["cpu_seconds_measuring"] is None else f"{step['cpu_seconds_measuring']:.1f}",
    ]
    print(" | ".join(map(str, cells)), *step["notes"], sep="\n  ", flush=True)
    return step


if __name__ == "__main__":
    main()
