"""Deduplicating an index: pairs, decision, and what is written of it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from indexer.arrays import RowIds
from indexer.corpus.corpus import Corpus
from indexer.errors import ConfigError
from indexer.progress import NoProgress, Progress
from indexer.store.files import FileDigest
from search.dedup.duplicates_file import SCHEMA, Duplicates, write_duplicates, write_list
from search.dedup.greedy import HELD_PAIR_BYTES, Decision, DedupDocuments, decide
from search.dedup.inputs import DedupInputs, open_inputs, place_of
from search.dedup.join.approximate import ApproximateJoin
from search.dedup.join.distributed import DistributedJoin
from search.dedup.join.exact import ExactJoin
from search.dedup.kept import write_kept
from search.dedup.origin import origin_of, origin_of_other
from search.dedup.pairs import Pairs, PairSource
from search.dedup.pairs_file import PairsFile, PairsFileWriter, pair_facts
from search.dedup.priority import priority
from search.dedup.settings import (
    DedupFiles,
    DedupSettings,
    JoinOptions,
    PairFiles,
    duplicates_format,
    lowest_score,
)
from search.files import check_outputs, read_by
from search.index import Index

_SAVED = "--save-pairs"


@dataclass(frozen=True)
class Deduplication:
    """What was found: the index, the file's contents (facts and one row a dropped document), and the kept rows.

    `kept` are document numbers of the index, ascending. `written` are the bytes of the files that were written already,
    by name; `notes` is what was noticed while an index was built for this.
    """

    index: Index
    duplicates: Duplicates
    kept: RowIds
    other: Index | None = None  # that the documents were compared with
    written: Mapping[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def facts(self) -> dict[str, Any]:
        """Counts, settings and origin, JSON types; the keys of `duplicates_file.Facts`."""
        return dict(self.duplicates.facts)

    @property
    def table(self) -> pa.Table:
        """id, kept_id, score, reason, cluster of each dropped document."""
        return self.duplicates.table

    def write(self, path: str | Path, force: bool = False) -> FileDigest:
        """Write the file of duplicates, whole or not at all; over another file only with `force`.

        The suffix of `path` chooses the format: .parquet is what `verify_duplicates` reads; .csv and .jsonl have the
        texts of both documents. Raises ConfigError for another suffix and for a place that cannot be written, such as
        one inside an index, ExistsError, StoreError.
        """
        if duplicates_format(Path(path)) != "parquet":
            return write_list(Path(path), self.table, self.index, self.other, force)
        return write_duplicates(Path(path), self.duplicates, force=force)

    def write_kept(self, path: str | Path, corpus: Corpus | None = None, force: bool = False) -> FileDigest:
        """Write the documents that stay, as they were in the `corpus` that was indexed, if that is at hand.

        Raises what `search.write_kept` raises.
        """
        return write_kept(Path(path), self.index, self.kept, corpus, force)

    def write_files(
        self, files: DedupFiles, corpus: Corpus | None = None, progress: Progress | None = None
    ) -> dict[str, int]:
        """Write what `files` names, but for pairs, which are there by now; the bytes of each, pairs included."""
        written = {}
        if files.duplicates:
            written[str(files.duplicates)] = self.write(files.duplicates, files.force).bytes
        if files.kept:
            (progress or NoProgress()).phase("writing what is kept", None)
            written[str(files.kept)] = self.write_kept(files.kept, corpus, files.force).bytes
        if files.pairs.write:
            written[str(files.pairs.write)] = files.pairs.write.stat().st_size
        return written


def deduplicate(
    index: str | Path | Index,
    settings: DedupSettings | float,
    against: str | Path | Index | None = None,
    pairs: PairFiles = PairFiles(),  # noqa: B008 - frozen
    options: JoinOptions = JoinOptions(),  # noqa: B008 - frozen
    progress: Progress | None = None,
) -> Deduplication:
    """Decide which documents of an index stay; `settings` may be just the threshold.

    In priority order a document is kept unless a kept one scores at least the threshold against it. So (1) every
    dropped document has a kept representative that scores as much: of all that are kept, also later ones, the one
    with the highest score, the first in priority among equals; (2) no two kept documents score as much. `against`
    names another index of the same encoder: its documents come first and are all kept, so a document that is like one
    of them is dropped. With method "ann" pairs may be missed, and (2) with them; the share that is found is measured.

    Raises NotAnIndexError, CorruptIndexError, StoreError (also for a full disk), ConfigError, and MismatchError for
    indexes of different encoders or pairs of another index.
    """
    wanted = settings if isinstance(settings, DedupSettings) else DedupSettings(settings)
    check_settings(wanted, pairs, against)
    if pairs.write:  # they are read again, so that they are no stream
        check_outputs({_SAVED: pairs.write}, read_by(*map(place_of, (index, against))), pairs.force, whole=[_SAVED])
    with open_inputs(index, against, progress) as inputs:
        order = priority(inputs.index, wanted.prefer)
        source, method = _source(inputs, wanted, pairs, options)
        documents = _documents(inputs, source, order)
        limit = max(1, options.memory // HELD_PAIR_BYTES)
        drop_texts = wanted.text_duplicates == "drop"
        decision = decide(documents, source, drop_texts, limit, among=not wanted.only_against)
        return _result(inputs, wanted, method, documents, _filled(decision, inputs))


def check_settings(settings: DedupSettings, pairs: PairFiles, against: str | Path | Index | None) -> None:
    """Raises ConfigError for settings that make no sense together."""
    pairs.check(settings)
    if settings.only_against and not against:
        raise ConfigError("documents are to be compared with another index alone, but none is named (--against INDEX).")


def _source(
    inputs: DedupInputs, settings: DedupSettings, pairs: PairFiles, options: JoinOptions
) -> tuple[PairSource, dict[str, Any]]:
    """Where pairs come from, and how they were found."""
    if pairs.read:
        stored = PairsFile(pairs.read, settings.threshold, options.memory // 4)
        stored.check(inputs.index, inputs.other)
        return stored, stored.facts["method"]
    floor = settings.threshold if pairs.floor is None else pairs.floor
    join, method = _join(inputs, floor, settings, options)
    is_shared = not options.pool.is_this_process(2)
    if not pairs.write and not is_shared:
        return join, method
    saved = pairs.write or inputs.folder / "pairs.parquet"  # workers find all pairs once; what asks again reads them
    found = (
        join.within(np.arange(len(inputs.distinct.first))) if pairs.write else _pairs_asked_for(inputs, join, settings)
    )
    save_pairs(inputs, found, method, floor, saved, pairs.force)
    return PairsFile(saved, settings.threshold, options.memory // 4), method


def _join(
    inputs: DedupInputs, floor: float, settings: DedupSettings, options: JoinOptions
) -> tuple[PairSource, dict[str, Any]]:
    arguments = (inputs.distinct_vectors, lowest_score(floor), inputs.folder, options, inputs.progress)
    if settings.method == "ann":
        approximate = ApproximateJoin(*arguments)
        return inputs.across_documents(_placed(approximate, inputs)), {"name": "ann", **approximate.figures}
    return inputs.across_documents(_placed(ExactJoin(*arguments), inputs)), {"name": "exact"}


def _placed(join: ExactJoin, inputs: DedupInputs) -> PairSource:
    """Where a join runs: on threads of this process, or on workers."""
    pool = join.options.pool
    return join if pool.is_this_process(2) else DistributedJoin(join, inputs.folder, pool)


def _pairs_asked_for(inputs: DedupInputs, join: PairSource, settings: DedupSettings) -> Iterator[Pairs]:
    """The pairs that a decision can ask for: none of two vectors that only the other index has, which all stay."""
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
    """Write pairs of distinct vectors, which score at least `floor`, and which rows hold the same vector."""
    distinct = inputs.distinct
    writer = PairsFileWriter(inputs.folder, inputs.rows)
    for found in pairs:
        writer.add(distinct.first[found.left], distinct.first[found.right], found.scores)
    copies = np.setdiff1d(np.arange(inputs.rows), distinct.first, assume_unique=True)
    number = distinct.number_of[copies]
    writer.add(distinct.first[number], copies, inputs.self_scores[number], identical=True)
    origin, other = origin_of(inputs.index), origin_of_other(inputs.other)
    return writer.save(path, pair_facts(floor, method, origin, other), force=force)


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
    """With the scores of those documents that were dropped for their text alone."""
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
    # Clusters go by where the kept document lies in the corpus; those of the other index come last.
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
    return Deduplication(inputs.index, Duplicates(facts, table), kept, inputs.other)


def _reasons(documents: DedupDocuments, dropped: RowIds, representatives: RowIds) -> npt.NDArray[np.str_]:
    texts = documents.text_of
    same = (texts[dropped] == texts[representatives]) & (texts[dropped] >= 0)
    foreign = representatives < documents.others
    return np.where(foreign, np.where(same, "against-text", "against"), np.where(same, "text", "similar"))
