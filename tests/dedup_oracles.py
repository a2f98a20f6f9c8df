"""Slow, simple oracles for the near-duplicate search."""

import math
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

from indexer.arrays import RowIds, Scores, Vectors
from search.dedup.duplicates_file import SCHEMA, Duplicates
from search.dedup.greedy import Decision, DedupDocuments
from search.dedup.pairs import Pairs, tile_scores
from search.dedup.priority import priority
from search.dedup.provenance import origin_of, origin_of_other
from search.dedup.settings import DedupSettings
from search.index import Index, LiveRows


class BrutePairs:
    """A PairSource that scores all pairs and rejects invalid calls.

    `within_calls` and `between_calls` record the arguments; `taken` counts the pairs yielded by the latest call.
    """

    def __init__(self, vectors: Vectors, lowest: np.float32 | float, batch: int = 3) -> None:
        self.scores, self.lowest, self.batch = tile_scores(vectors, vectors), np.float32(lowest), batch
        self.within_calls: list[RowIds] = []
        self.between_calls: list[tuple[RowIds, RowIds]] = []
        self.taken = 0

    def within(self, members: RowIds) -> Iterator[Pairs]:
        assert len(members) > 1
        assert (np.diff(members) > 0).all()
        self.within_calls.append(members)
        yield from self._batches(np.triu(self.scores[np.ix_(members, members)] >= self.lowest, 1), members, members)

    def between(self, left: RowIds, right: RowIds) -> Iterator[Pairs]:
        assert len(left)
        assert len(right)
        assert (np.diff(left) > 0).all()
        assert (np.diff(right) > 0).all()
        assert not set(left.tolist()) & set(right.tolist())
        self.between_calls.append((left, right))
        yield from self._batches(self.scores[np.ix_(left, right)] >= self.lowest, left, right)

    def _batches(self, found: np.ndarray, left: RowIds, right: RowIds) -> Iterator[Pairs]:
        rows, columns = np.nonzero(found)
        self.taken = 0
        for start in range(0, len(rows), self.batch):
            one, other = left[rows[start : start + self.batch]], right[columns[start : start + self.batch]]
            self.taken += len(one)
            yield Pairs(one, other, self.scores[one, other])


def document_scores(collection: DedupDocuments, vectors: Vectors) -> Scores:
    """Return the score of every pair of documents: that of their best pair of windows; -inf without windows."""
    scores = tile_scores(vectors, vectors)
    found = np.full((len(collection), len(collection)), -np.inf, np.float32)
    windows = list(zip(collection.document_of.tolist(), collection.vector_of.tolist(), strict=True))
    for one, left in windows:
        for other, right in windows:
            found[one, other] = max(found[one, other], scores[left, right])
    return found


def decide_slowly(
    collection: DedupDocuments, vectors: Vectors, lowest: np.float32 | float, drop_texts: bool, among: bool = True
) -> Decision:
    """Apply the greedy rule literally, over all pairs of documents."""
    scores = document_scores(collection, vectors)
    text, rank = collection.text_of.tolist(), collection.rank.tolist()

    def same_text(one: int, other: int) -> bool:
        return drop_texts and text[one] == text[other] != -1

    kept: list[int] = []
    for document in sorted(range(len(rank)), key=rank.__getitem__):
        rivals = kept if among else kept[: collection.others]
        duplicate = any(scores[document, one] >= np.float32(lowest) or same_text(document, one) for one in rivals)
        if document < collection.others or not duplicate:
            kept.append(document)
    kept_by, named = np.full(len(rank), -1), np.full(len(rank), np.nan, np.float32)
    for document in sorted(set(range(len(rank))) - set(kept)):
        rivals = kept if among else kept[: collection.others]
        similar = [one for one in rivals if scores[document, one] >= np.float32(lowest)]
        if similar:
            kept_by[document] = min(similar, key=lambda one: (-float(scores[document, one]), rank[one]))
            named[document] = scores[document, kept_by[document]]
        else:
            kept_by[document] = min((one for one in rivals if same_text(document, one)), key=rank.__getitem__)
    return Decision(kept_by, named)


def missing_last(values: list[float | None], descending: bool) -> list[int]:
    """Return the numbers of the values in order, ties as given, missing values last."""
    present = [(value, number) for number, value in enumerate(values) if value is not None and not math.isnan(value)]
    ordered = sorted(present, key=lambda item: (-item[0] if descending else item[0], item[1]))
    return [number for _, number in ordered] + sorted(set(range(len(values))) - {number for _, number in present})


def duplicates_slowly(index: Path, settings: DedupSettings, other: Path | None = None) -> Duplicates:
    """Return the file of duplicates of a small index by the literal rule, row by row."""
    opened = [Index.open(path) for path in (other, index) if path is not None]
    held = [document for one in opened for document in one.documents.all_documents()]
    others = opened[0].manifest.documents if other else 0
    vectors = np.concatenate(
        [
            opened[-1].transform.transform(block, "document")
            for one in opened
            for _, block in LiveRows(one).embedding_blocks()
        ]
    )
    texts = [" ".join(unicodedata.normalize("NFKC", document.text).split()) for document in held]
    numbers = {text: number for number, text in enumerate(dict.fromkeys(texts))}
    rank = np.concatenate([np.arange(others), others + priority(opened[-1], settings.prefer)])
    rows, text_of = np.arange(len(held)), np.array([numbers[text] if text else -1 for text in texts])
    collection = DedupDocuments(rows, rows, text_of, rank, np.ones(len(held), np.float32), others)
    decision = decide_slowly(
        collection, vectors, settings.lowest, settings.text_duplicates == "drop", not settings.only_against
    )
    found = []
    for document in np.flatnonzero(decision.kept_by >= 0).tolist():
        kept = int(decision.kept_by[document])
        score = tile_scores(vectors[document : document + 1], vectors[kept : kept + 1])[0, 0]
        reasons = ("against", "against-text") if kept < others else ("similar", "text")
        reason = reasons[texts[document] == texts[kept] != ""]
        found.append({"document": document, "kept": kept, "score": score, "reason": reason})
    kept_documents = sorted({row["kept"] for row in found}, key=lambda kept: (kept < others, kept))
    found.sort(key=lambda row: (kept_documents.index(row["kept"]), row["document"]))
    table = pa.table(
        {
            "id": [held[row["document"]].id for row in found],
            "kept_id": [held[row["kept"]].id for row in found],
            "score": [row["score"] for row in found],
            "reason": [row["reason"] for row in found],
            "cluster": [kept_documents.index(row["kept"]) for row in found],
        },
        schema=SCHEMA,
    )
    sizes = [1 + sum(row["kept"] == kept for row in found) for kept in kept_documents]
    stated = table.column("reason").to_pylist()
    facts = {
        "format": 1,
        "threshold": settings.threshold,
        "lowest": float(settings.lowest),
        "prefer": settings.prefer,
        "method": {"name": settings.method},
        "text_duplicates": settings.text_duplicates,
        "only_against": settings.only_against,
        **origin_of(opened[-1]),
        "against": origin_of_other(opened[0] if other else None),
        "documents": len(held) - others,
        "kept": len(held) - others - len(found),
        "dropped": len(found),
        "reasons": {reason: stated.count(reason) for reason in sorted(set(stated))},
        "clusters": len(kept_documents),
        "cluster_sizes": {str(size): sizes.count(size) for size in sorted(set(sizes))},
    }
    return Duplicates(facts, table)
