"""A proof that a file of duplicates is correct, from the file and the index alone.

The verifier proves, in priority order of the documents (first the other index, which is kept whole):

1. The representative of each dropped document is kept and scores at least the threshold with it, bit by bit as stated;
   no kept document scores higher, or as high with a higher priority. (If equal texts are dropped, the representative
   may have the same normalised text instead; then no kept document reaches the threshold, and none with that text
   comes before.)
2. No two kept documents score the threshold or more (or, if equal texts are dropped, have the same text).
3. Every dropped document has a kept duplicate that comes before it.

2 and 3 allow only one set of kept documents, that of the rule "in priority order a document is kept unless a kept
document is its duplicate". Proof: take the first document in which two such sets differ. The documents before it are
decided alike. If one of them is a kept duplicate, 2 forbids to keep the document; otherwise 3 forbids to drop it. 1
then allows only one representative of each dropped document. So this file is the only correct result.

The verifier compares every document with every kept document, without any step of the join. It shares only the
definition of the score, the priority order and the reading of vectors.
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
from indexer.transforms import Transform
from indexer.typed_arguments import checked
from search.dedup.brute_force import Comparison, DecidedWindows, Violations, named_scores
from search.dedup.duplicates_file import read_duplicates
from search.dedup.findings import DedupVerifyReport, Findings, StatedDuplicates, check_facts, read_stated
from search.dedup.priority import priority
from search.dedup.provenance import check_origin, check_other, require_same_encoder
from search.dedup.settings import DedupSettings, JoinOptions
from search.dedup.vectors import write_vectors
from search.index import Index, LiveRows


@dataclass(frozen=True)
class DuplicatesCheck:
    """The statements of a file, the vectors, ranks and texts to check them, and the violations `findings`.

    `texts` (documents,) numbers the normalised texts; -1: blank.
    """

    stated: StatedDuplicates
    decided: DecidedWindows
    texts: RowIds
    settings: DedupSettings
    findings: Findings

    def run(self, options: JoinOptions, progress: Progress) -> Comparison:
        """Check each row, then compare every document with every kept document."""
        scores = named_scores(self.decided)
        fits = (scores >= self.settings.lowest) | (self._same_text & self._drop_texts)
        self._check_rows(scores, fits)
        first = self._first_of_text()
        if self._drop_texts:
            self._check_texts(scores, first)
        comparison = Comparison(self.decided, scores, self._unproven(fits, first), options)
        comparison.run(progress)
        self._report(comparison)
        return comparison

    @property
    def _drop_texts(self) -> bool:
        return self.settings.text_duplicates == "drop"

    @property
    def _same_text(self) -> Mask:
        """Dropped documents with the text of their representative; undefined for kept documents."""
        same: Mask = (self.texts >= 0) & (self.texts == self.texts[self.decided.kept_by])
        return same

    def _check_rows(self, scores: Scores, fits: Mask) -> None:
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
            self._add("own document", ~foreign, lambda _: "only the other index was to be compared")

    def _add(self, kind: str, wrong: Mask, what: Callable[[int], str]) -> None:
        rows, stated = np.flatnonzero(wrong).tolist(), self.stated
        lines = (
            f"{stated.name(int(stated.dropped[row]))} -> {stated.name(int(stated.kept_by[row]))}: {what(row)}"
            for row in rows
        )
        self.findings.add(kind, lines, len(rows))

    def _first_of_text(self) -> RowIds:
        """Return for each document the lowest rank of a kept document with its text, or the number of documents.

        With `only_against`, only the other index counts.
        """
        decided = self.decided
        count = len(decided.rank)
        compared = (decided.kept_by < 0) & (self.texts >= 0)
        if self.settings.only_against:
            compared[self.stated.others :] = False
        first = np.full(count + 1, count)  # the last place is for blank texts, number -1
        np.minimum.at(first, self.texts[compared], decided.rank[compared])
        return first[self.texts]

    def _check_texts(self, scores: Scores, first: RowIds) -> None:
        """Check that no two kept texts are equal, and that the first kept text is the representative of its copies."""
        decided, stated = self.decided, self.stated
        kept = decided.kept_by < 0
        kept[: stated.others] = False
        again = np.flatnonzero(kept & (first < decided.rank))
        lines = (f"{stated.name(number)} has the text of a kept document before it" for number in again.tolist())
        self.findings.add("kept texts", lines, len(again))
        by_text = (scores < self.settings.lowest) & self._same_text
        late = by_text & (decided.rank[decided.kept_by] != first)
        self._add("representative", late[stated.dropped], lambda _: "another kept document with this text comes before")

    def _unproven(self, fits: Mask, first: RowIds) -> Mask:
        """Return a mask of dropped documents without a known kept duplicate before them."""
        decided = self.decided
        proven = fits & (decided.rank[decided.kept_by] < decided.rank)
        if self._drop_texts:
            proven |= first < decided.rank
        return (decided.kept_by >= 0) & ~proven

    def _report(self, comparison: Comparison) -> None:
        name, kept_by = self.stated.name, self.decided.kept_by
        missed = "kept pairs" if self.settings.method == "exact" else "missed pairs"
        self._report_pairs(missed, comparison.kept_pairs, lambda _: "both are kept")
        self._report_pairs(
            "representative", comparison.closer, lambda row: f"a better representative than {name(int(kept_by[row]))}"
        )
        early = np.flatnonzero(comparison.unproven)
        lines = (f"{name(number)} has no kept duplicate before it, so it must be kept" for number in early.tolist())
        self.findings.add("dropped wrongly", lines, len(early))

    def _report_pairs(self, kind: str, violations: Violations, what: Callable[[int], str]) -> None:
        name = self.stated.name
        lines = (
            f"{name(document)}, {name(kept)}: score {score:.9g}, {what(document)}"
            for document, kept, score in violations.first
        )
        self.findings.add(kind, lines, violations.count)


@checked
def verify_duplicates(
    path: str | Path,
    index: str | Path | Index,
    progress: Progress | None = None,
    against: str | Path | Index | None = None,
    options: JoinOptions = JoinOptions(),  # noqa: B008 - frozen
) -> DedupVerifyReport:
    """Check a file of duplicates on the CPU, as described in the module; the report lists violations.

    `against` is the other index, if there was one. Pairs that an approximate join missed are violations too. Raises
    MismatchError if the file was made from another index or generation, and what `read_duplicates`, opening an index
    and `write_vectors` raise.
    """
    if options.device not in ("auto", "cpu"):
        raise ConfigError(f"device is {options.device}; verification runs on the CPU only. Fix: leave it at auto.")
    path = Path(path)
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
    findings = Findings()
    stated = read_stated(duplicates, opened, other, findings)
    if stated is not None:
        report.dropped = len(stated.dropped)
        check_facts(facts, stated, findings)
        comparison = _compare(stated, (opened, other), settings, findings, options, progress)
        report.compared, report.exact = comparison.compared, comparison.exact
    report.violations, report.problems = findings.counts, findings.lines()
    return report


def _compare(
    stated: StatedDuplicates,
    indexes: tuple[Index, Index | None],
    settings: DedupSettings,
    findings: Findings,
    options: JoinOptions,
    progress: Progress,
) -> Comparison:
    opened, other = indexes
    with tempfile.TemporaryDirectory(prefix="isotrope-verify-") as folder:
        progress.phase("reading vectors", None)
        own = _vectors(opened, opened.transform, Path(folder) / "own.npy")
        foreign = _vectors(other, opened.transform, Path(folder) / "other.npy") if other else own[:0]
        kept_by = np.full(len(stated.ids), -1)
        kept_by[stated.dropped] = stated.kept_by
        ranks = np.concatenate([np.arange(stated.others), stated.others + priority(opened, settings.prefer)])
        document_of = np.concatenate([_documents_of(other), _documents_of(opened) + stated.others])
        decided = DecidedWindows(own, foreign, document_of, ranks, kept_by, settings.lowest, settings.only_against)
        progress.phase("reading texts", None)
        texts = _number_texts([index for index in (other, opened) if index is not None])
        return DuplicatesCheck(stated, decided, texts, settings, findings).run(options, progress)


def _opened(index: str | Path | Index) -> Index:
    return index if isinstance(index, Index) else Index.open(index)


def _documents_of(index: Index | None) -> RowIds:
    return index.numbering.documents_of(np.arange(index.manifest.rows)) if index else np.zeros(0, np.int64)


def _vectors(index: Index, transform: Transform, path: Path) -> Vectors:
    stored = LiveRows(index)
    blocks = ((first, transform.transform(block, "document")) for first, block in stored.embedding_blocks())
    return write_vectors(blocks, len(stored), transform.dim, path)


def _number_texts(indexes: Iterable[Index]) -> RowIds:
    """Number texts that are equal in NFKC with white space folded; -1: blank."""
    digests, blank = bytearray(), bytearray()
    for index in indexes:
        for document in index.documents.all_documents():
            words = unicodedata.normalize("NFKC", joined_text(document, index.config.corpus.text)).split()
            digests += hashlib.sha256(" ".join(words).encode("utf-8", "surrogatepass")).digest()[:16]
            blank.append(not words)
    _, numbers = np.unique(np.frombuffer(digests, "V16"), return_inverse=True)
    result: RowIds = np.where(np.frombuffer(blank, bool), -1, numbers)
    return result
