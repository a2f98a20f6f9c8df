"""`isotrope evaluate words`: static word vectors on word-level data sets.

The vectors are the rows of a static table (encoder.kind = "static"), or made by a transformer: the first principal
component of a word's vectors in the texts of a corpus, one set of them for each average of layers.
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
from indexer.lazy import require_extra
from indexer.models.resolution import num_layers, resolve_layers, resolve_spec
from indexer.progress import NoProgress, Progress
from indexer.recipe.paper_methods import POOLINGS
from search.evaluation.bootstrap import LEVEL, RESAMPLES
from search.evaluation.result import Clock, Result, how_built
from search.evaluation.target import Target
from search.files import source_hashes
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
from search.text import counted

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
    """What the vectors are made of.

    Of a transformer: `corpus`, its averages of `layers` (none: the recipe's), and how many places of a word count.
    Of a table: how many of its first rows are candidates for analogies beside the words of the sets.
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
    """Word vectors to measure: `of(words)` makes those that there are. `layers` None: there are none.

    `about` is what provenance says of them (JSON types), complete when they have been made.
    """

    label: str
    layers: tuple[int, ...] | None
    of: Callable[[Sequence[str]], WordVectors]
    about: dict[str, Any] = field(default_factory=dict)


def evaluate_words(
    subject: Target, sets: Sequence[WordSet], plan: WordsOptions, progress: Progress | None = None
) -> Result:
    """The result of `isotrope evaluate words`.

    A row is of one set (and of each section of analogies), under one source of vectors; figures are from 0 to 1, with
    95 % bootstrap intervals for correlations and accuracies. "items" are those of the set, "covered" those whose words
    have vectors. Raises ConfigError for a plan that does not suit the encoder, EvaluationError where no set has
    a figure, and what reading and encoding the corpus raise.
    """
    clock = Clock()
    require_extra("scipy.stats", "eval")  # now, not after minutes of encoding
    if not sets:
        raise EvaluationError("nothing to measure; expected at least one word-level data set.")
    sources, files = choose_sources(subject, plan, progress or NoProgress())
    results, notes = measure_words(sources, sets)
    provenance = clock.provenance(
        subject.spec,
        {name: digest for one in sets for name, digest in one.files.items()} | files,
        protocol=PROTOCOL,
        vectors={source.label: source.about for source in sources},
        bootstrap=BOOTSTRAP,
        **how_built(subject.config, subject.index),
    )
    return Result("words", provenance, results, None, notes)


def measure_words(sources: Sequence[VectorSource], sets: Sequence[WordSet]) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of results and notes, for any source of vectors."""
    words = list(dict.fromkeys(word for one in sets for word in one.words()))
    rows: list[dict[str, Any]] = []
    notes: list[str] = []
    for source in sources:
        vectors = source.of(words)
        if missing := len(words) - len(vectors.rows):
            notes.append(f"{source.label}: {missing:,} of {len(words):,} words without a vector")
        notes += vectors.notes
        for one in sets:
            scores = score(one, vectors)
            rows += [_row(source, one, found, vectors) for found in scores]
            notes += [f"{source.label}, {_shown(one, found)}: no figure: {found.why}" for found in scores if found.why]
    if all(row["value"] is None for row in rows):
        raise EvaluationError(f"no set has a figure. {'. '.join(notes)}.")
    return rows, list(dict.fromkeys(notes))


def _row(source: VectorSource, one: WordSet, found: Score, vectors: WordVectors) -> dict[str, Any]:
    figure = found.figure.to_dict() if found.figure else {"value": None, "low": None, "high": None}
    row = {
        "vectors": source.label,
        "layers": None if source.layers is None else list(source.layers),
        "task": one.name,
        "kind": one.kind,
        "section": found.section,
        "measure": found.measure,
        **figure,
        "items": found.items,
        "covered": found.covered,
        "candidates": len(vectors.vectors) if one.kind == "analogy" else None,
    }
    if found.section == WHOLE:
        row["unknown"] = sorted({word for word in one.words() if word not in vectors.rows})
    return row


def _shown(one: WordSet, found: Score) -> str:
    return one.name if found.section == WHOLE else f'{one.name}, section "{found.section}"'


def choose_sources(
    subject: Target, plan: WordsOptions, progress: Progress
) -> tuple[list[VectorSource], dict[str, str]]:
    """The sources of vectors that the recipe's encoder offers, and the sha256 of the files of a corpus.

    Loads no model yet. Raises ConfigError for a plan that does not suit the encoder.
    """
    if not subject.spec.traits.encodes_texts:
        raise ConfigError(f"{cannot_encode(subject.spec)} Word vectors need a static table or a transformer.")
    if subject.spec.traits.has_table:
        given = {"--corpus": plan.corpus, "--layers": plan.layers, "--occurrences": plan.occurrences}
        if names := [name for name, value in given.items() if value]:
            raise ConfigError(f"a static table has vectors of words as it is; leave out {', '.join(names)}.")
        return [_table_source(subject, plan)], {}
    if plan.candidates:
        raise ConfigError(
            "--candidates takes the first rows of a static table, and a transformer has none; leave it out."
        )
    if plan.corpus is None:
        raise ConfigError("a transformer has no vectors of words without text around them: pass --corpus PATH.")
    if str(plan.corpus) == "-":
        raise ConfigError("--corpus - : standard input cannot be hashed; write it to a file and name that.")
    if subject.options.backend not in ("auto", "torch"):
        raise ConfigError(f'--backend is "{subject.options.backend}", but vectors of tokens are computed by torch.')
    hashes = source_hashes(find_sources([plan.corpus])[0])
    return _context_sources(subject, plan, plan.corpus, progress), hashes


def _table_source(subject: Target, plan: WordsOptions) -> VectorSource:
    about = {"from": "table", "candidates": plan.candidates}

    def of(words: Sequence[str]) -> WordVectors:
        table = load_table(Path(subject.spec.folder))
        found = table_vectors(table, words, plan.candidates)
        about["rows"] = len(table.vectors)
        return dataclasses.replace(found, notes=table.notes)

    return VectorSource("table", None, of, about)


def _context_sources(subject: Target, plan: WordsOptions, corpus: Path, progress: Progress) -> list[VectorSource]:
    averages = list(dict.fromkeys(plan.layers or (subject.config.encoder.layers,)))
    own = subject.config.encoder
    pooling = "mean" if own.pooling in POOLINGS else own.pooling  # nothing is pooled, so nothing need be fitted
    union = tuple(dict.fromkeys(layer for average in averages for layer in average))
    config = dataclasses.replace(own, layers=union, pooling=pooling, fitted="")
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
            reading = ContextOptions(layers, most, spec.identity.document_prefix, outputs().tokenizer.facts.from_left)
            texts = _texts(subject, corpus, progress)
            found = context_vectors(read_contexts(outputs(), texts, words, reading, log), words)
            about.update(texts=log.texts, encoded=log.encoded, truncated=log.truncated)
            return dataclasses.replace(found, notes=_notes(log))

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
    return (f"{cut} longer than encoder.max_length and cut there: words behind the cut were not seen",)
