"""Proving a file of duplicates right, from the file and the index alone.

What is proved, of the documents in priority order (those of the other index first, which all stay):

1. For every dropped document stands a kept one that scores at least the threshold with it, as stated, bit by bit; no
   kept document scores higher, or as high and comes before that one. (Where equal texts are dropped: or the two have
   the same normalised text, and then no kept document scores enough, and none with that text comes before.)
2. No two kept documents score the threshold or more (or, there, have the same text).
3. Every dropped document has a duplicate that is kept and comes before it.

2 and 3 leave one set of kept documents only, that of the rule "in priority order a document is kept unless a kept one
is its duplicate". For take two such sets and the first document in which they differ: what comes before it is alike,
so either it has a kept duplicate before it, and 2 forbids to keep it, or it has none, and 3 forbids to drop it. 1 then
leaves one document to stand for each dropped one. So nothing else than this file could be right.

No step of the search is used for it: every document is compared with every kept one. Of that search the verifier
shares what defines a score and the priority order, and how vectors are read.
"""

import hashlib
import tempfile
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from indexer.arrays import Mask, RowIds, Scores, Vectors
from indexer.corpus.document import joined_text
from indexer.errors import ConfigError
from indexer.progress import NoProgress, Progress
from search.dedup.brute_force import Comparison, Evidence, Violations, named_scores
from search.dedup.duplicates_file import read_duplicates
from search.dedup.findings import DedupVerifyReport, Findings, StatedDuplicates, check_facts, read_stated
from search.dedup.origin import check_origin, check_other, require_same_encoder
from search.dedup.priority import priority
from search.dedup.settings import DedupSettings, JoinOptions
from search.dedup.vectors import write_index_vectors
from search.index import Index, LiveRows


@dataclass(frozen=True)
class Judgement:
    """What a file states, and the vectors, ranks and texts to hold it against; violations go into `found`.

    `texts` (documents,) numbers the normalised texts; -1: blank.
    """

    stated: StatedDuplicates
    evidence: Evidence
    texts: RowIds
    settings: DedupSettings
    found: Findings

    def judge(self, options: JoinOptions, progress: Progress) -> Comparison:
        """Check every row by itself, then every document against every kept one."""
        scores = named_scores(self.evidence)
        fits = (scores >= self.settings.lowest) | (self._same_text & self._drop_texts)
        self._check_rows(scores, fits)
        first = self._first_of_text()
        if self._drop_texts:
            self._check_texts(scores, first)
        comparison = Comparison(self.evidence, scores, self._unproven(fits, first), options)
        comparison.run(progress)
        self._tell(comparison)
        return comparison

    @property
    def _drop_texts(self) -> bool:
        return self.settings.text_duplicates == "drop"

    @property
    def _same_text(self) -> Mask:
        """Which documents have the text of the one that stands for them; of kept ones it means nothing."""
        same: Mask = (self.texts >= 0) & (self.texts == self.texts[self.evidence.kept_by])
        return same

    def _check_rows(self, scores: Scores, fits: Mask) -> None:
        """Each row by itself: its score, whether it is enough, and its reason."""
        stated, lowest = self.stated, self.settings.lowest
        exact, fit, same = scores[stated.dropped], fits[stated.dropped], self._same_text[stated.dropped]
        self._add(
            "score", stated.scores != exact, lambda row: f"stated as {stated.scores[row]:.9g}, is {exact[row]:.9g}"
        )
        self._add("no duplicate", ~fit, lambda row: f"score {exact[row]:.9g}, below {lowest:.9g}")
        foreign = stated.kept_by < stated.others
        reasons = np.where(foreign, np.where(same, "against-text", "against"), np.where(same, "text", "similar"))
        self._add(
            "reason", stated.reasons != reasons, lambda row: f'is "{stated.reasons[row]}", should be "{reasons[row]}"'
        )
        if self.settings.only_against:
            self._add("own document", ~foreign, lambda _: "only those of the other index were to be compared with")

    def _add(self, kind: str, wrong: Mask, what: Callable[[int], str]) -> None:
        """Violations of rows of the table."""
        rows, stated = np.flatnonzero(wrong).tolist(), self.stated
        lines = (
            f"{stated.name(int(stated.dropped[row]))} -> {stated.name(int(stated.kept_by[row]))}: {what(row)}"
            for row in rows
        )
        self.found.add(kind, lines, len(rows))

    def _first_of_text(self) -> RowIds:
        """For each document the lowest rank of those that are kept and have its text; the number of documents if none.

        Of the other index alone where documents are compared with that alone.
        """
        evidence = self.evidence
        count = len(evidence.rank)
        compared = (evidence.kept_by < 0) & (self.texts >= 0)
        if self.settings.only_against:
            compared[self.stated.others :] = False
        first = np.full(count + 1, count)  # one more: that of blank texts, number -1
        np.minimum.at(first, self.texts[compared], evidence.rank[compared])
        return first[self.texts]

    def _check_texts(self, scores: Scores, first: RowIds) -> None:
        """Where equal texts are dropped: no two are kept, and the first that is stands for those that only share it."""
        evidence, stated = self.evidence, self.stated
        kept = evidence.kept_by < 0
        kept[: stated.others] = False
        again = np.flatnonzero(kept & (first < evidence.rank))
        self.found.add(
            "kept texts",
            (f"{stated.name(one)} has the text of a kept one before it" for one in again.tolist()),
            len(again),
        )
        by_text = (scores < self.settings.lowest) & self._same_text
        late = by_text & (evidence.rank[evidence.kept_by] != first)
        self._add("representative", late[stated.dropped], lambda _: "another kept one with this text comes before")

    def _unproven(self, fits: Mask, first: RowIds) -> Mask:
        """Dropped documents of which it is yet to be seen that a kept duplicate comes before them."""
        evidence = self.evidence
        proven = fits & (evidence.rank[evidence.kept_by] < evidence.rank)
        if self._drop_texts:
            proven |= first < evidence.rank
        return (evidence.kept_by >= 0) & ~proven

    def _tell(self, comparison: Comparison) -> None:
        name, evidence = self.stated.name, self.evidence
        missed = "kept pairs" if self.settings.method == "exact" else "missed pairs"
        self._tell_pairs(missed, comparison.kept_pairs, lambda _: "both are kept")
        self._tell_pairs(
            "representative",
            comparison.closer,
            lambda one: f"a better one to stand for it than {name(int(evidence.kept_by[one]))}",
        )
        early = np.flatnonzero(comparison.unproven)
        lines = (f"{name(one)} has no kept duplicate before it, so it is to be kept" for one in early.tolist())
        self.found.add("dropped wrongly", lines, len(early))

    def _tell_pairs(self, kind: str, violations: Violations, what: Callable[[int], str]) -> None:
        name = self.stated.name
        lines = (
            f"{name(one)}, {name(other)}: score {score:.9g}, {what(one)}" for one, other, score in violations.first
        )
        self.found.add(kind, lines, violations.count)


def verify_duplicates(
    path: Path,
    index: str | Path | Index,
    progress: Progress | None = None,
    against: str | Path | Index | None = None,
    options: JoinOptions = JoinOptions(),  # noqa: B008 - frozen
) -> DedupVerifyReport:
    """Check a file of duplicates as the module says, on the CPU; what is wrong is listed, not raised.

    `against` is the other index, if there was one. A result of an approximate search is held to the same
    guarantees: pairs that it missed are violations. Raises MismatchError when the file was made from another index or
    generation, and what `read_duplicates`, opening an index and `write_index_vectors` raise.
    """
    if options.device not in ("auto", "cpu"):
        raise ConfigError(f"device is {options.device}; the proof is made on the CPU, on purpose. Leave it at auto.")
    duplicates, opened, progress = read_duplicates(path), _opened(index), progress or NoProgress()
    facts = duplicates.facts
    check_origin(facts, opened, path)
    other = None if against is None else _opened(against)
    check_other(facts, other, path)
    if other is not None:
        require_same_encoder(opened, other)
    settings = DedupSettings(
        facts["threshold"], facts["prefer"], facts["method"]["name"], facts["text_duplicates"], facts["only_against"]
    )
    report = DedupVerifyReport(path, opened.path, settings.threshold, settings.method, opened.manifest.documents)
    found = Findings()
    stated = read_stated(duplicates, opened, other, found)
    if stated is not None:
        report.dropped = len(stated.dropped)
        check_facts(facts, stated, found)
        comparison = _judge(stated, (opened, other), settings, found, options, progress)
        report.compared, report.exact = comparison.compared, comparison.exact
    report.violations, report.problems = found.counts, found.lines()
    return report


def _judge(
    stated: StatedDuplicates,
    indexes: tuple[Index, Index | None],
    settings: DedupSettings,
    found: Findings,
    options: JoinOptions,
    progress: Progress,
) -> Comparison:
    opened, other = indexes
    with tempfile.TemporaryDirectory(prefix="isotrope-verify-") as folder:
        progress.phase("reading vectors", None)
        own = _vectors(opened, opened, Path(folder) / "own")
        foreign = _vectors(other, opened, Path(folder) / "other") if other else own[:0]
        kept_by = np.full(len(stated.ids), -1)
        kept_by[stated.dropped] = stated.kept_by
        ranks = np.concatenate([np.arange(stated.others), stated.others + priority(opened, settings.prefer)])
        document_of = np.concatenate([_documents_of(other), _documents_of(opened) + stated.others])
        evidence = Evidence(own, foreign, document_of, ranks, kept_by, settings.lowest, settings.only_against)
        progress.phase("reading texts", None)
        texts = _number_texts([index for index in (other, opened) if index is not None])
        return Judgement(stated, evidence, texts, settings, found).judge(options, progress)


def _opened(index: str | Path | Index) -> Index:
    return index if isinstance(index, Index) else Index.open(index)


def _documents_of(index: Index | None) -> RowIds:
    """The document of each row."""
    return index.numbering.documents_of(np.arange(index.manifest.rows)) if index else np.zeros(0, np.int64)


def _vectors(index: Index, transformed_by: Index, folder: Path) -> Vectors:
    """All vectors of an index, by the transform of the index that was deduplicated."""
    folder.mkdir()
    return write_index_vectors(LiveRows(index), folder, transformed_by.transform)


def _number_texts(indexes: Iterable[Index]) -> RowIds:
    """A number for each text, the same for those that are equal in NFKC with white space folded; -1: blank."""
    digests, blank = bytearray(), bytearray()
    for index in indexes:
        for document in index.documents.all_documents():
            words = unicodedata.normalize("NFKC", joined_text(document, index.config.corpus.text)).split()
            digests += hashlib.sha256(" ".join(words).encode("utf-8", "surrogatepass")).digest()[:16]
            blank.append(not words)
    _, numbers = np.unique(np.frombuffer(digests, "V16"), return_inverse=True)
    found: RowIds = np.where(np.frombuffer(blank, bool), -1, numbers)
    return found
