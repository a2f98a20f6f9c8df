"""Deduplication of an index: pairs, decision and output."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from indexer.arrays import RowIds
from indexer.corpus.corpus import Corpus
from indexer.errors import ConfigError, as_argument, spelled
from indexer.progress import NoProgress, Progress
from indexer.store.files import FileDigest
from indexer.typed_arguments import checked
from search.dedup.duplicates_file import SCHEMA, Duplicates, write_duplicates, write_list
from search.dedup.greedy import HELD_PAIR_BYTES, Decision, DedupDocuments, decide
from search.dedup.inputs import DedupInputs, open_inputs, place_of
from search.dedup.join.approximate import ApproximateJoin
from search.dedup.join.distributed import DistributedJoin
from search.dedup.join.exact import ExactJoin
from search.dedup.kept_documents import write_kept
from search.dedup.pairs import Pairs, PairSource
from search.dedup.pairs_file import PairsFile, PairsFileWriter
from search.dedup.priority import priority
from search.dedup.provenance import origin_of, origin_of_other
from search.dedup.settings import DedupFiles, DedupSettings, JoinOptions, PairFiles, duplicates_format, lowest_score
from search.index import Index
from search.result_files import check_outputs, read_by


@dataclass(frozen=True)
class Deduplication(Duplicates):
    """The result: the contents of the file of duplicates, the index, and the kept documents.

    `kept` are document numbers of the index, ascending. `written` has the bytes of the files written so far, by name;
    `notes` are those of the build of the index.
    """

    index: Index
    kept: RowIds
    other: Index | None = None  # the index that documents were compared with
    written: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @checked
    def write(self, path: str | Path, force: bool = False) -> FileDigest:
        """Write the file of duplicates atomically; overwrite only with `force`.

        The suffix of `path` selects the format: .parquet for `verify_duplicates`; .csv and .jsonl with the texts of
        both documents. Raises ConfigError for another suffix and for a path that cannot be written, such as one inside
        an index, ExistsError, StoreError.
        """
        if duplicates_format(Path(path)) != "parquet":
            return write_list(Path(path), self.table, self.index, self.other, force)
        return write_duplicates(Path(path), self, force)

    @checked
    def write_kept(self, path: str | Path, corpus: Corpus | None = None, force: bool = False) -> FileDigest:
        """Write the kept documents, copied from the indexed `corpus` if given. Raises as `search.write_kept`."""
        return write_kept(Path(path), self.index, self.kept, corpus, force)

    @checked
    def write_files(
        self, files: DedupFiles, corpus: Corpus | None = None, progress: Progress | None = None
    ) -> dict[str, int]:
        """Write `files`, except pairs, which exist by now; return the bytes of each file, pairs included."""
        written = {}
        if files.dropped:
            written[str(files.dropped)] = self.write(files.dropped, files.force).bytes
        if files.kept:
            (progress or NoProgress()).phase("writing kept documents", None)
            written[str(files.kept)] = self.write_kept(files.kept, corpus, files.force).bytes
        if files.pairs.write:
            written[str(files.pairs.write)] = files.pairs.write.stat().st_size
        return written


@checked
def deduplicate_index(
    index: str | Path | Index,
    settings: DedupSettings | float,
    against: str | Path | Index | None = None,
    pairs: PairFiles = PairFiles(),  # noqa: B008 - frozen
    options: JoinOptions = JoinOptions(),  # noqa: B008 - frozen
    progress: Progress | None = None,
) -> Deduplication:
    """Decide which documents of an index to keep; `settings` may be just the threshold.

    In priority order a document is kept unless it scores at least the threshold with a kept document. So (1) every
    dropped document has a kept representative that scores at least the threshold: of all kept documents, also later
    ones, that with the highest score, the first in priority among equals; (2) no two kept documents reach the
    threshold. `against` names another index of the same encoder: its documents come first and are all kept, so
    documents similar to them are dropped. Method "ann" may miss pairs, which breaks (2); its recall is measured.

    Raises NotAnIndexError, CorruptIndexError, StoreError (also for a full disk), ConfigError, and MismatchError for
    indexes of different encoders or pairs of another index.
    """
    settings = settings if isinstance(settings, DedupSettings) else DedupSettings(settings)
    check_settings(settings, pairs, against)
    if pairs.write:  # `whole`, because the file is read again
        saved = spelled("pairs.write", "--save-pairs")
        check_outputs({saved: pairs.write}, read_by(*map(place_of, (index, against))), pairs.force, whole=[saved])
    with open_inputs(index, against, progress) as inputs:
        order = priority(inputs.index, settings.prefer)
        source, method = _source(inputs, settings, pairs, options)
        documents = _documents(inputs, source, order)
        limit = max(1, options.memory // HELD_PAIR_BYTES)
        drop_texts = settings.text_duplicates == "drop"
        decision = decide(documents, source, drop_texts, limit, among=not settings.only_against)
        return _result(inputs, settings, method, documents, _filled(decision, inputs))


def check_settings(settings: DedupSettings, pairs: PairFiles, against: str | Path | Index | None) -> None:
    """Raise ConfigError for contradicting settings."""
    pairs.check(settings)
    if settings.only_against and not against:
        raise ConfigError(
            f"{as_argument('only_against')} needs another index. Fix: name it with {as_argument('against', 'INDEX')}."
        )


def _source(
    inputs: DedupInputs, settings: DedupSettings, pairs: PairFiles, options: JoinOptions
) -> tuple[PairSource, dict[str, Any]]:
    """Return the source of pairs and the facts of the method."""
    if pairs.read:
        stored = PairsFile(pairs.read, settings.threshold, options.memory // 4)
        stored.check(inputs.index, inputs.other)
        return stored, stored.facts["method"]
    floor = settings.threshold if pairs.floor is None else pairs.floor
    join, method = _join(inputs, floor, settings, options)
    is_shared = not options.pool.is_this_process(2)
    if not pairs.write and not is_shared:
        return join, method
    saved = pairs.write or inputs.folder / "pairs.parquet"  # workers find all pairs once; later calls read the file
    every = np.arange(len(inputs.distinct.first))
    batches = join.within(every) if pairs.write else _needed_pairs(inputs, join, settings)
    save_pairs(inputs, batches, method, floor, saved, pairs.force)
    return PairsFile(saved, settings.threshold, options.memory // 4), method


def _join(
    inputs: DedupInputs, floor: float, settings: DedupSettings, options: JoinOptions
) -> tuple[PairSource, dict[str, Any]]:
    arguments = (inputs.distinct_vectors, lowest_score(floor), inputs.folder, options, inputs.progress)
    join = (ApproximateJoin if settings.method == "ann" else ExactJoin)(*arguments)
    is_local = options.pool.is_this_process(2)
    source = join if is_local else DistributedJoin(join, inputs.folder, options.pool)
    return inputs.across_documents(source), {"name": settings.method, **join.figures}


def _needed_pairs(inputs: DedupInputs, join: PairSource, settings: DedupSettings) -> Iterator[Pairs]:
    """Yield the pairs that a decision can need: none of two vectors of the other index only, which are all kept."""
    is_own = inputs.document_of >= inputs.others
    own, foreign = (np.unique(inputs.distinct.number_of[rows]) for rows in (is_own, ~is_own))
    among = np.intersect1d(own, foreign) if settings.only_against else own
    alone, rest = np.setdiff1d(own, among), np.setdiff1d(foreign, own)
    if len(among) > 1:
        yield from join.within(among)
    for left, right in ((alone, foreign), (among, rest)):
        if len(left) and len(right):
            yield from join.between(left, right)


def save_pairs(
    inputs: DedupInputs, pairs: Iterable[Pairs], method: dict[str, Any], floor: float, path: Path, force: bool = False
) -> FileDigest:
    """Write the pairs of distinct vectors that score at least `floor`, and the rows with equal vectors."""
    distinct = inputs.distinct
    writer = PairsFileWriter(inputs.folder, inputs.rows)
    for batch in pairs:
        writer.add(distinct.first[batch.left], distinct.first[batch.right], batch.scores)
    copies = np.setdiff1d(np.arange(inputs.rows), distinct.first, assume_unique=True)
    number = distinct.number_of[copies]
    writer.add(distinct.first[number], copies, inputs.self_scores[number], identical=True)
    against = origin_of_other(inputs.other)
    return writer.save(path, {"floor": floor, "method": method, **origin_of(inputs.index), "against": against}, force)


def _documents(inputs: DedupInputs, source: PairSource, order: RowIds) -> DedupDocuments:
    stored = source if isinstance(source, PairsFile) else inputs
    others = np.arange(inputs.others)
    return DedupDocuments(
        document_of=inputs.document_of,
        vector_of=stored.distinct.number_of,
        text_of=inputs.text_of,
        rank=np.concatenate([others, order + inputs.others]),
        self_scores=stored.self_scores,
        others=inputs.others,
    )


def _filled(decision: Decision, inputs: DedupInputs) -> Decision:
    """Return a decision with the scores of documents that were dropped for equal text only."""
    unscored = np.flatnonzero((decision.kept_by >= 0) & np.isnan(decision.scores))
    if not len(unscored):
        return decision
    scores = decision.scores.copy()
    scores[unscored] = inputs.score(unscored, decision.kept_by[unscored])
    return Decision(decision.kept_by, scores)


def _result(
    inputs: DedupInputs,
    settings: DedupSettings,
    method: dict[str, Any],
    documents: DedupDocuments,
    decision: Decision,
) -> Deduplication:
    kept_by, others = decision.kept_by, inputs.others
    dropped = np.flatnonzero(kept_by >= 0)
    representatives = kept_by[dropped]
    # Clusters are numbered by the position of the kept document in the corpus; the other index comes last.
    place = np.where(representatives < others, representatives + len(kept_by), representatives)
    _, clusters, sizes = np.unique(place, return_inverse=True, return_counts=True)
    arranged = np.lexsort((dropped, clusters))
    reasons = _reasons(documents, dropped, representatives)
    ids = pa.array([name for index in (inputs.other, inputs.index) if index for name in index.documents.all_ids()])
    table = pa.table(
        [ids.take(pa.array(dropped)), ids.take(pa.array(representatives)), pa.array(decision.scores[dropped]),
         pa.array(reasons, pa.string()), pa.array(clusters, pa.int64())], names=SCHEMA.names
    ).cast(SCHEMA).take(pa.array(arranged))  # fmt: skip
    counted, times = np.unique(sizes + 1, return_counts=True)
    facts = {
        "format": 1,
        "threshold": settings.threshold,
        "lowest": float(settings.lowest),
        "prefer": settings.prefer,
        "method": method,
        "text_duplicates": settings.text_duplicates,
        "only_against": settings.only_against,
        **origin_of(inputs.index),
        "against": origin_of_other(inputs.other),
        "documents": len(kept_by) - others,
        "kept": len(kept_by) - others - len(dropped),
        "dropped": len(dropped),
        "reasons": {name: int(np.count_nonzero(reasons == name)) for name in np.unique(reasons).tolist()},
        "clusters": len(sizes),
        "cluster_sizes": {str(size): int(many) for size, many in zip(counted, times, strict=True)},
    }
    kept = np.flatnonzero(kept_by[others:] < 0)
    return Deduplication(facts, table, inputs.index, kept, inputs.other)


def _reasons(documents: DedupDocuments, dropped: RowIds, representatives: RowIds) -> npt.NDArray[np.str_]:
    texts = documents.text_of
    same = (texts[dropped] == texts[representatives]) & (texts[dropped] >= 0)
    foreign = representatives < documents.others
    return np.where(foreign, np.where(same, "against-text", "against"), np.where(same, "text", "similar"))
