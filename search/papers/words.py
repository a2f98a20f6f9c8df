"""`isotrope evaluate words`: static word vectors on word-level data sets.

The vectors are the rows of a static table (encoder.kind = "static"), or come from a transformer: the first principal
component of a word's vectors in the texts of a corpus, for each average of layers.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from indexer.corpus.corpus import read_corpus
from indexer.corpus.document import joined_text
from indexer.corpus.sources import find_sources
from indexer.encoders.precomputed import cannot_encode
from indexer.encoders.static.tables import load_table
from indexer.encoders.token_embeddings import TokenEmbeddings
from indexer.errors import ConfigError, EvaluationError
from indexer.lazy_imports import require_extra
from indexer.models.resolution import num_layers, resolve_layers, resolve_spec
from indexer.progress import NoProgress, Progress
from indexer.recipe.paper_methods import POOLINGS
from search.evaluation.bootstrap import LEVEL, RESAMPLES
from search.evaluation.result import Clock, Result, how_built
from search.evaluation.target import Target
from search.formatting import counted
from search.papers.word_scores import RUNS, WHOLE, Score, score
from search.papers.word_sets import WordSet
from search.papers.word_vectors import (
    ContextOptions,
    ReadingLog,
    WordVectors,
    context_vectors,
    read_contexts,
    table_vectors,
)
from search.result_files import source_hashes

OCCURRENCES = 100
BOOTSTRAP = {"resamples": RESAMPLES, "level": LEVEL, "resampled": "pairs, or questions within their sections"}
PROTOCOL = {
    "similarity": "Spearman's correlation of cosines and human scores",
    "analogy": "accuracy of 3CosAdd, the words of the question left out of the candidates",
    "categorisation": f"purity of k-means over unit vectors, the best of {RUNS} runs by the sum of squares",
    "unknown": "items with a word that has no vector are left out",
}


@dataclass(frozen=True)
class WordsOptions:
    """The data and settings of the vectors.

    For a transformer: `corpus`, averages of `layers` (none: the recipe's), and the number of occurrences that count.
    For a table: the number of its first rows that are candidates for analogies, in addition to the words of the sets.
    """

    corpus: Path | None = None
    layers: tuple[tuple[int, ...], ...] = ()
    occurrences: int | None = None  # None: OCCURRENCES
    candidates: int = 0

    def __post_init__(self) -> None:
        if self.occurrences is not None and self.occurrences < 1:
            raise ConfigError(f"--occurrences is {self.occurrences}; expected at least 1.")
        if self.candidates < 0:
            raise ConfigError(f"--candidates is {self.candidates}; expected 0 (the words of the sets only) or more.")


@dataclass(frozen=True)
class VectorSource:
    """Word vectors to measure: `of(words)` returns those that exist. `layers` is None without layers.

    `about` describes them in the provenance (JSON types), complete after `of`.
    """

    label: str
    layers: tuple[int, ...] | None
    of: Callable[[Sequence[str]], WordVectors]
    about: dict[str, Any] = field(default_factory=dict)


def evaluate_words(
    subject: Target, sets: Sequence[WordSet], plan: WordsOptions, progress: Progress | None = None
) -> Result:
    """Return the result of `isotrope evaluate words`.

    A row is one set (or a section of analogies) with one source of vectors; figures are from 0 to 1, with 95 %
    bootstrap intervals for correlations and accuracies. "items" counts the set's items, "covered" those whose words
    all have vectors. Raises ConfigError for a plan that does not suit the encoder, EvaluationError if no set has a
    figure, and the errors of reading and encoding the corpus.
    """
    clock = Clock()
    require_extra("scipy.stats", "eval")  # fail now, not after minutes of encoding
    if not sets:
        raise EvaluationError("nothing to measure; expected at least one word-level data set.")
    sources, files = choose_sources(subject, plan, progress or NoProgress())
    results, notes = measure_words(sources, sets)
    provenance = clock.provenance(
        subject.spec,
        {name: digest for word_set in sets for name, digest in word_set.files.items()} | files,
        protocol=PROTOCOL,
        vectors={source.label: source.about for source in sources},
        bootstrap=BOOTSTRAP,
        **how_built(subject.config, subject.index),
    )
    return Result("words", provenance, results, None, notes)


def measure_words(sources: Sequence[VectorSource], sets: Sequence[WordSet]) -> tuple[list[dict[str, Any]], list[str]]:
    """Return rows of results, and notes, for any source of vectors."""
    words = list(dict.fromkeys(word for word_set in sets for word in word_set.words()))
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for source in sources:
        vectors = source.of(words)
        if missing := len(words) - len(vectors.rows):
            notes.append(f"{source.label}: {missing:,} of {len(words):,} words without a vector")
        notes += vectors.notes
        for word_set in sets:
            for result in score(word_set, vectors):
                rows.append(_row(source, word_set, result, vectors))
                if result.why:
                    section = "" if result.section == WHOLE else f', section "{result.section}"'
                    notes.append(f"{source.label}, {word_set.name}{section}: no figure: {result.why}")
    if all(row["value"] is None for row in rows):
        raise EvaluationError(f"no set has a figure. {'. '.join(notes)}.")
    return rows, list(dict.fromkeys(notes))


def _row(source: VectorSource, word_set: WordSet, result: Score, vectors: WordVectors) -> dict[str, Any]:
    figure = result.figure.to_dict() if result.figure else {"value": None, "low": None, "high": None}
    row = {
        "vectors": source.label,
        "layers": None if source.layers is None else list(source.layers),
        "task": word_set.name,
        "kind": word_set.kind,
        "section": result.section,
        "measure": result.measure,
        **figure,
        "items": result.items,
        "covered": result.covered,
        "candidates": len(vectors.vectors) if word_set.kind == "analogy" else None,
    }
    if result.section == WHOLE:
        row["unknown"] = sorted({word for word in word_set.words() if word not in vectors.rows})
    return row


def choose_sources(
    subject: Target, plan: WordsOptions, progress: Progress
) -> tuple[list[VectorSource], dict[str, str]]:
    """Return the encoder's sources of vectors, and the sha256 of the files of a corpus. Loads no model.

    Raises ConfigError for a plan that does not suit the encoder.
    """
    if not subject.spec.traits.encodes_texts:
        raise ConfigError(f"{cannot_encode(subject.spec)} Word vectors need a static table or a transformer.")
    if subject.spec.traits.is_remote:
        raise ConfigError(
            'encoder.kind is "server", which returns no word vectors; expected a static table or a transformer.'
        )
    if subject.spec.traits.has_table:
        given = {"--corpus": plan.corpus, "--layers": plan.layers, "--occurrences": plan.occurrences}
        if names := [name for name, value in given.items() if value]:
            raise ConfigError(f"a static table contains word vectors. Fix: leave out {', '.join(names)}.")
        return [_table_source(subject, plan)], {}
    if plan.candidates:
        raise ConfigError("--candidates is for a static table, but the encoder is a transformer. Fix: leave it out.")
    if plan.corpus is None:
        raise ConfigError("a transformer needs texts with the words. Fix: add --corpus PATH.")
    if str(plan.corpus) == "-":
        raise ConfigError("--corpus - : standard input cannot be hashed. Fix: write it to a file and name the file.")
    if subject.options.backend not in ("auto", "torch"):
        raise ConfigError(f'--backend is "{subject.options.backend}"; expected torch, which computes token vectors.')
    hashes = source_hashes(find_sources([plan.corpus])[0])
    return _context_sources(subject, plan, plan.corpus, progress), hashes


def _table_source(subject: Target, plan: WordsOptions) -> VectorSource:
    about = {"from": "table", "candidates": plan.candidates}

    def of(words: Sequence[str]) -> WordVectors:
        table = load_table(Path(subject.spec.folder))
        about["rows"] = len(table.vectors)
        return dataclasses.replace(table_vectors(table, words, plan.candidates), notes=table.notes)

    return VectorSource("table", None, of, about)


def _context_sources(subject: Target, plan: WordsOptions, corpus: Path, progress: Progress) -> list[VectorSource]:
    averages = list(dict.fromkeys(plan.layers or (subject.config.encoder.layers,)))
    encoder = subject.config.encoder
    pooling = "mean" if encoder.pooling in POOLINGS else encoder.pooling  # unused, and "mean" needs no fit
    union = tuple(dict.fromkeys(layer for average in averages for layer in average))
    config = dataclasses.replace(encoder, layers=union, pooling=pooling, fitted="")
    spec = resolve_spec(config, subject.spec.folder, subject.spec.identity.rules)
    blocks = num_layers(spec.files)
    most = plan.occurrences or OCCURRENCES

    @cache
    def outputs() -> TokenEmbeddings:
        return TokenEmbeddings(spec, subject.options, special=False)

    def source(average: tuple[int, ...]) -> VectorSource:
        layers, log = tuple(resolve_layers(average, blocks)), ReadingLog()
        about: dict[str, Any] = {"from": "contexts", "corpus": str(corpus), "layers": list(layers), "occurrences": most}

        def of(words: Sequence[str]) -> WordVectors:
            progress.phase(f"contexts, layers {label}", None)
            from_left = outputs().encoder.tokenizer.facts.from_left
            reading = ContextOptions(layers, most, spec.identity.document_prefix, from_left)
            texts = _texts(subject, corpus, progress)
            vectors = context_vectors(read_contexts(outputs(), texts, words, reading, log), words)
            about.update(texts=log.texts, encoded=log.encoded, truncated=log.truncated)
            return dataclasses.replace(vectors, notes=_notes(log))

        label = ",".join(map(str, average))
        return VectorSource(f"layers {label}", average, of, about)

    return [source(average) for average in averages]


def _texts(subject: Target, corpus: Path, progress: Progress) -> Iterator[str]:
    config = subject.config.corpus
    for document in read_corpus(corpus, config=config):
        progress.advance(1)
        yield joined_text(document, config.text)


def _notes(log: ReadingLog) -> tuple[str, ...]:
    if not log.truncated:
        return ()
    cut = counted(log.truncated, "text was", "texts were")
    return (f"{cut} longer than encoder.max_length and cut there: words after the cut do not count",)
