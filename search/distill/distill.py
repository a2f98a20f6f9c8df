"""`distill_index`: a static table that answers the questions of an index in place of its encoder."""

import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from indexer.arrays import Float32Array, Int64Array
from indexer.encoders.protocol import EncodeStats
from indexer.encoders.static.tables import EmbeddingTable, load_table
from indexer.errors import ConfigError, as_shown, spelled
from indexer.progress import NoProgress, Progress
from indexer.recipe.loading import named_path, require_at_least
from indexer.recipe.run_options import RunOptions
from indexer.system.output_files import check_output_folder, refuse_inside_index
from indexer.typed_arguments import checked
from search.distill.loss import OWN, TABLE, Engines, Losses, measure_drawn, measure_judged, measure_similar
from search.distill.table import (
    FittedTable,
    choose_penalty,
    fit_table,
    own_tokenizer,
    read_tokenizer,
    single_tokens,
    tokenise,
    write_folder,
)
from search.engine import SearchEngine
from search.evaluation.result import Clock, Result, how_built, write_result
from search.evaluation.retrieval.beir import read_judged
from search.evaluation.sts.data import read_tasks
from search.evaluation.tune.unlabelled import LEAST_PAIRS, DrawnPair, pairs_of_index
from search.index import Index
from search.result_files import open_output_folder

MEASUREMENT = "measurement.json"
_QUESTIONS = 500  # drawn for the measurement, at most one of `_SHARE` documents
_SHARE = 10


@checked
@dataclass(frozen=True)
class DistillOptions:
    """The documents to fit a table to, and the sets to measure it on.

    `tokenizer` is the folder of a model whose tokenizer the table uses, by default the index's own model; `model` is
    the folder of that model if it has moved.
    """

    sample: int = 100_000  # documents
    beir: tuple[Path, ...] = ()  # folders of judged queries
    sts: tuple[Path, ...] = ()
    hybrid: bool = False  # also measure judged queries with BM25
    tokenizer: Path | None = None
    model: Path | None = None

    def __post_init__(self) -> None:
        require_at_least("sample", self.sample, LEAST_PAIRS)


@checked
def distill_index(
    index: str | Path,
    output: str | Path,
    task: DistillOptions | None = None,
    options: RunOptions | None = None,
    progress: Progress | None = None,
) -> Result:
    """Fit a static table to the vectors of an index, write it to the folder `output`, and return its losses.

    No document is encoded. The result is in `measurement.json` of the folder too. Judged queries and STS pairs are
    measured with the written table, drawn questions with a table that was not fitted to their documents.

    Raises EvaluationError for an index with too few documents, ConfigError for an index without a tokenizer, and
    ExistsError if `output` is not empty.
    """
    clock, task, options = Clock(), task or DistillOptions(), options or RunOptions()
    progress, folder = progress or NoProgress(), named_path(output, "the table")
    opened = Index.open(named_path(index, "the index"))
    check_output_folder(folder)
    refuse_inside_index(folder, "the table")
    if not opened.encoder.traits.encodes_texts:
        raise ConfigError(
            f"{opened.path}: its embeddings came with the corpus, so there is no encoder whose questions a table could "
            "learn. Fix: build an index with an encoder."
        )
    judged = [read_judged(folder) for folder in task.beir]
    similar = read_tasks(*task.sts) if task.sts else []
    progress.phase("reading", None)
    pairs = _questions(opened)
    spec = opened.encoder_spec(task.model)
    tokenizer = read_tokenizer(task.tokenizer) if task.tokenizer else own_tokenizer(spec)
    empty = _empty_table(tokenizer)
    alone = _alone(opened, empty, task, options, progress)
    texts = tokenise(opened, spec, _sample(opened, task.sample), empty, progress)
    asked = np.isin(texts.documents, list(opened.ids.find({pair.id for pair in pairs}).values()))
    unseen, held_out = texts.of(~asked), texts.of(asked)
    penalty = choose_penalty(unseen, held_out, alone, progress)
    losses, space = Losses(), opened.manifest.space
    with tempfile.TemporaryDirectory(prefix="isotrope-") as scratch:
        progress.phase("measuring drawn questions", None)
        write_folder(Path(scratch), tokenizer, fit_table(unseen, alone, penalty).vectors, space)
        with _engines(opened, Path(scratch), task, options) as engines:
            measure_drawn(engines, pairs, losses)
    progress.phase("fitting the table", None)
    table = fit_table(texts, alone, penalty)
    with open_output_folder(folder) as written:
        write_folder(written, tokenizer, table.vectors, space)
        with _engines(opened, written, task, options) as engines:
            for queries in judged:
                measure_judged(engines, queries, task.hybrid, losses, progress)
            for each in similar:
                measure_similar(engines, each, losses, progress)
        result = _result(clock, opened, losses, table, folder)
        write_result(written / MEASUREMENT, result)
    return result


def _questions(index: Index) -> list[DrawnPair]:
    """Return the drawn questions. Raises EvaluationError if there are too few documents."""
    size = max(LEAST_PAIRS, min(_QUESTIONS, index.manifest.documents // _SHARE))
    return pairs_of_index(
        index,
        size,
        f"measure a table with; expected {LEAST_PAIRS}. A table needs thousands of documents. Fix: add documents, or "
        "query the index with its own encoder.",
    )


def _sample(index: Index, size: int) -> Int64Array:
    """Return the numbers of the documents with the smallest id hashes."""
    return np.argsort(index.ids.hashes, kind="stable")[:size].astype(np.int64)


def _empty_table(tokenizer: str) -> EmbeddingTable:
    """Return a table without vectors, whose tokenizer is that of the written one."""
    with tempfile.TemporaryDirectory(prefix="isotrope-") as scratch:
        size = 1 + max(Tokenizer.from_str(tokenizer).get_vocab().values())
        write_folder(Path(scratch), tokenizer, np.zeros((size, 1), np.float32), "")
        return load_table(Path(scratch))


def _alone(
    index: Index, table: EmbeddingTable, task: DistillOptions, options: RunOptions, progress: Progress
) -> Float32Array:
    """Return the vectors (vocabulary, k) of single tokens; zeros for blank ones, and if a server would encode them."""
    vectors = np.zeros((len(table.vectors), index.transform.dim), np.float32)
    if index.encoder.traits.is_remote:
        return vectors
    texts = single_tokens(table.tokenizer)
    progress.phase("encoding single tokens", len(texts))
    with SearchEngine(index.path, task.model, options) as engine:
        log = EncodeStats(on_batch=progress.advance)
        vectors[list(texts)] = np.asarray(engine.embed(list(texts.values()), "document", log))
    return vectors


@contextmanager
def _engines(index: Index, table: Path, task: DistillOptions, options: RunOptions) -> Iterator[Engines]:
    """Yield engines that encode queries by the index's encoder and by the table."""
    own, distilled = (SearchEngine(index.path, task.model, options) for _ in range(2))
    with own, distilled:
        own.encode_queries_by("")
        distilled.encode_queries_by(table)
        yield {OWN: own, TABLE: distilled}


def _result(clock: Clock, index: Index, losses: Losses, table: FittedTable, folder: Path) -> Result:
    path = as_shown(str(index.path))
    command = spelled(
        f"refit_index({path!r}, ['queries.encoder={folder}'])",
        shlex.join(["isotrope", "refit", path, "--queries-by", str(folder)]),
    )
    facts = {"documents": table.texts, "tokens": table.tokens, "penalty": table.penalty, "dim": table.vectors.shape[1]}
    protocol = {"kind": "questions answered by a static table", "hits": 10}
    provenance = clock.provenance(None, losses.files, protocol=protocol, **how_built(index.config, index))
    added = {"table": facts, "command": command}
    return Result("distill", provenance, losses.rows, losses.pairs, losses.notes, added)
