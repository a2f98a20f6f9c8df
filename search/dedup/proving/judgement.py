"""Judging a file of duplicates once its documents are known by number: all that the verifier proves."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from indexer.progress import Progress
from search.dedup.pairs import Rows, Scores
from search.dedup.proving.brute_force import Comparison, Evidence, Flags, Violations, named_scores
from search.dedup.proving.proof import Findings
from search.dedup.proving.stated import Stated
from search.dedup.settings import DedupSettings, JoinOptions


@dataclass(frozen=True)
class Case:
    """What a file states, and the vectors, ranks and texts to hold it against; violations go into `found`.

    `texts` (documents,) numbers the normalised texts; -1: blank.
    """

    stated: Stated
    evidence: Evidence
    texts: Rows
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
    def _same_text(self) -> Flags:
        """Which documents have the text of the one that stands for them; of kept ones it means nothing."""
        same: Flags = (self.texts >= 0) & (self.texts == self.texts[self.evidence.kept_by])
        return same

    def _check_rows(self, scores: Scores, fits: Flags) -> None:
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

    def _add(self, kind: str, wrong: Flags, what: Callable[[int], str]) -> None:
        """Violations of rows of the table."""
        rows, stated = np.flatnonzero(wrong).tolist(), self.stated
        lines = (
            f"{stated.name(int(stated.dropped[row]))} -> {stated.name(int(stated.kept_by[row]))}: {what(row)}"
            for row in rows
        )
        self.found.add(kind, lines, len(rows))

    def _first_of_text(self) -> Rows:
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

    def _check_texts(self, scores: Scores, first: Rows) -> None:
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

    def _unproven(self, fits: Flags, first: Rows) -> Flags:
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
