"""The section of a report on near-duplicates: counts, cluster sizes, scores and sample clusters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from indexer.arrays import RowIds
from indexer.corpus.document import Document
from indexer.hashing import canonical_sha256
from search.dedup.duplicates_file import read_duplicates
from search.dedup.settings import IDENTICAL
from search.evaluation.report import svg
from search.evaluation.report.sections import Block, Section, figure
from search.evaluation.tables import Table
from search.formatting import counted, number, percent
from search.index import Index

LARGEST, SPREAD, MEMBERS = 5, 5, 5  # largest clusters, further clusters by size, documents of each
_TEXT_SHOWN, _NAME_SHOWN = 160, 80  # characters
_CLASSES = (2, 3, 4, 5, 10, 100, 1000, 10_000, 100_000, 1_000_000)  # lower bounds of classes of cluster sizes
_REASONS = {
    "similar": "similar",
    "text": "equal text",
    "against": "similar, in the other index",
    "against-text": "equal text, in the other index",
}
_PREFERENCES = {
    "first": "the first in the corpus",
    "last": "the last in the corpus",
    "longest": "the longest text",
}


@dataclass(frozen=True)
class DuplicateClusters:
    """A file of duplicates, sorted by cluster, with the start and the size of each cluster (with its kept document)."""

    name: str
    facts: Mapping[str, Any]
    table: pa.Table
    starts: RowIds
    sizes: RowIds

    @property
    def scores(self) -> npt.NDArray[np.float32]:
        """The score of each dropped document with its kept document."""
        scores: npt.NDArray[np.float32] = self.table.column("score").to_numpy()
        return scores

    @property
    def by_text(self) -> npt.NDArray[np.bool_]:
        """Mask of the documents that were dropped for a text equal to that of the kept document."""
        reasons = self.table.column("reason").to_numpy(zero_copy_only=False)
        equal: npt.NDArray[np.bool_] = np.isin(reasons.astype(str), ["text", "against-text"])
        return equal

    def members(self, cluster: int) -> list[dict[str, Any]]:
        """Return the first dropped documents of a cluster by ascending score."""
        rows = self.table.slice(self.starts[cluster], self.sizes[cluster] - 1)
        order = np.argsort(rows.column("score").to_numpy(), kind="stable")
        documents: list[dict[str, Any]] = rows.take(pa.array(order[:MEMBERS])).to_pylist()
        return documents


def read_listing(path: Path) -> DuplicateClusters:
    """Read a file of duplicates. Raises what `read_duplicates` raises."""
    file = read_duplicates(path)
    clusters = file.table.column("cluster").to_numpy()
    order = np.argsort(clusters, kind="stable")
    _, starts, dropped = np.unique(clusters[order], return_index=True, return_counts=True)
    return DuplicateClusters(path.name, file.facts, file.table.take(pa.array(order)), starts, dropped + 1)


def sample_clusters(sizes: RowIds) -> RowIds:
    """Return the clusters to show: the `LARGEST`, then `SPREAD` evenly spaced among the others, by size."""
    order = np.argsort(-sizes, kind="stable")
    largest, rest = order[:LARGEST], order[LARGEST:]
    places = np.linspace(0, len(rest) - 1, min(SPREAD, len(rest))).round().astype(np.int64)
    return np.concatenate([largest, rest[places]])


def duplicates(index: Index, listing: DuplicateClusters) -> Section:
    """Return the dropped documents by reason, the sizes and scores, and sample clusters with the index's texts."""
    blocks: list[Block] = [("cards", _cards(listing))]
    blocks += [("remark", remark) for remark in _remarks(index, listing)]
    blocks += [
        ("text", _lead(listing) if len(listing.sizes) else "No document was dropped."),
        ("facts", _facts(listing)),
    ]
    if len(listing.sizes):
        blocks += [("table", _reasons(listing)), *figure(svg.cluster_sizes(listing.sizes), _CLUSTERS)]
        blocks += [("table", _sizes(listing.sizes))]
        blocks += figure(svg.scores(listing.scores, listing.by_text, listing.facts["lowest"]), _SCORES)
        blocks += [("clusters", _samples(index, listing))]
    return Section("Duplicates", blocks)


_CLUSTERS = "Clusters by size: a kept document with the documents dropped for it."
_SCORES = "Scores of the dropped documents with their kept documents; dashed: the threshold."


def _cards(listing: DuplicateClusters) -> list[tuple[str, str]]:
    documents, kept, dropped = listing.facts["documents"], listing.facts["kept"], len(listing.table)
    return [
        ("documents", number(documents)),
        (f"kept, {percent(kept / max(1, documents))}", number(kept)),
        (f"dropped, {percent(dropped / max(1, documents))}", number(dropped)),
        ("clusters", number(len(listing.sizes))),
        ("largest cluster", number(int(listing.sizes.max())) if len(listing.sizes) else "none"),
        ("threshold", f"{listing.facts['threshold']:g}"),
    ]


def _lead(listing: DuplicateClusters) -> str:
    texts = ", or has the same text" if listing.facts["text_duplicates"] == "drop" else ""
    return (
        f"Every dropped document scores at least {listing.facts['threshold']:g} with a kept document{texts}. Its kept "
        "document is the one with the highest score. A cluster is a kept document with the documents dropped for it."
    )


def _facts(listing: DuplicateClusters) -> list[tuple[str, str]]:
    stated = listing.facts
    other = stated["against"]
    compared = "each other" if other is None else f"each other and {_other(other)}"
    return [
        ("file", listing.name),
        ("threshold", "identical up to rounding" if stated["threshold"] >= IDENTICAL else ""),
        ("pairs", _method(stated["method"])),
        ("kept document", _PREFERENCES.get(stated["prefer"], stated["prefer"])),
        ("equal texts", "dropped at any score" if stated["text_duplicates"] == "drop" else "dropped at the threshold "
         "or above"),
        ("compared with", _other(other) if stated["only_against"] and other is not None else compared),
    ]  # fmt: skip


def _method(method: Mapping[str, Any]) -> str:
    if method.get("name") == "exact":
        return "all found, exactly"
    figures = [f"{key.replace('_', ' ')} {number(value)}" for key, value in method.items() if key != "name"]
    return ", ".join(["approximate search" if method.get("name") == "ann" else "", *figures])


def _other(other: Mapping[str, Any]) -> str:
    return f"{number(other.get('documents'))} documents of another index ({other.get('index', 'unnamed')})"


def _reasons(listing: DuplicateClusters) -> Table:
    counts = {entry["values"]: entry["counts"] for entry in listing.table.column("reason").value_counts().to_pylist()}
    known = [reason for reason in _REASONS if reason in counts]
    rows = [
        [_REASONS.get(reason, reason), number(counts[reason]), percent(counts[reason] / len(listing.table))]
        for reason in [*known, *sorted(counts.keys() - _REASONS)]
    ]
    return Table("", ["reason", "dropped", "share"], rows)


def _sizes(sizes: RowIds) -> Table:
    """Return the number of clusters in each class of sizes."""
    rows = []
    for low, high in zip(_CLASSES, [*_CLASSES[1:], np.inf], strict=True):
        within = sizes[(sizes >= low) & (sizes < high)]
        name = f"{low:,}" if high == low + 1 else f"{low:,} or more" if high == np.inf else f"{low:,} to {high - 1:,}"
        if len(within):
            rows.append([name, number(len(within)), number(int((within - 1).sum()))])
    return Table("", ["documents", "clusters", "dropped"], rows)


def _samples(index: Index, listing: DuplicateClusters) -> dict[str, Any]:
    shown = sample_clusters(listing.sizes).tolist()
    members = [listing.members(cluster) for cluster in shown]
    ids = {identity for rows in members for row in rows for identity in _own_ids(row)}
    known = {document.id: document for document in index.documents.fetch(sorted(index.ids.find(ids).values()))}
    which = "All clusters, the largest first."
    if len(shown) < len(listing.sizes):
        which = f"The {LARGEST} largest clusters, then {len(shown) - LARGEST} evenly spaced among the others by size."
    sizes = (int(listing.sizes[cluster]) for cluster in shown)
    return {
        "lead": f"{which} Each is shown with its lowest-scoring documents, which are the most doubtful.",
        "clusters": [_cluster(size, rows, known) for size, rows in zip(sizes, members, strict=True)],
    }


def _cluster(size: int, rows: Sequence[Mapping[str, Any]], known: Mapping[str, Document]) -> dict[str, Any]:
    first = rows[0]
    foreign = str(first["reason"]).startswith("against")
    more = size - 1 - len(rows)
    return {
        "size": counted(size, "document"),
        "label": "kept, in the other index" if foreign else "kept",
        "kept": _document(first["kept_id"], None if foreign else known.get(first["kept_id"])),
        "dropped": [(_score(row), _document(row["id"], known.get(row["id"]))) for row in rows],
        "more": f"and {more:,} more" if more else "",
    }


def _score(row: Mapping[str, Any]) -> str:
    return f"{row['score']:.4f} {_REASONS.get(row['reason'], row['reason']).partition(',')[0]}"


def _document(identity: str, document: Document | None) -> dict[str, str]:
    title, text = ("", "") if document is None else (document.title or "", document.text)
    return {"id": _cut(identity, _NAME_SHOWN), "title": _cut(title, _NAME_SHOWN), "text": _cut(text, _TEXT_SHOWN)}


def _cut(text: str, length: int) -> str:
    """Return the beginning of a text with white space folded, cut between words if possible."""
    words = " ".join(text[: 8 * length].split())
    if len(words) <= length and len(text) <= 8 * length:
        return words
    return f"{words[:length].rpartition(' ')[0] or words[:length]} …"


def _own_ids(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (row["id"],) if str(row["reason"]).startswith("against") else (row["id"], row["kept_id"])


def _remarks(index: Index, listing: DuplicateClusters) -> list[str]:
    """Return remarks if the file is of another index or incomplete."""
    manifest, remarks = index.manifest, []
    if listing.facts["fingerprint"] != manifest.fingerprint:
        other = f"{listing.facts['fingerprint'][:12]}… instead of {manifest.fingerprint[:12]}…"
        remarks.append(f"{listing.name} was made with another encoder than the index's: {other}.")
    if listing.facts["index"].get("manifest") != canonical_sha256(manifest.to_dict()):
        remarks.append(
            f"{listing.name} was made from another index, or from another generation of this index. The texts below "
            "come from this index's documents with the same ids."
        )
    if listing.facts["method"].get("name") == "ann":
        remarks.append(_approximate(listing.facts["method"]))
    return remarks


def _approximate(method: Mapping[str, Any]) -> str:
    remark = "The search for pairs was approximate, so some duplicates may be among the kept documents"
    pairs, sampled = method.get("found_pairs"), method.get("sampled_pairs")
    if not isinstance(pairs, int) or not isinstance(sampled, int) or not 0 <= pairs <= sampled or not sampled:
        return f"{remark}."
    return f"{remark}: the search found {pairs:,} of {counted(sampled, 'sampled pair')} ({percent(pairs / sampled)})."
