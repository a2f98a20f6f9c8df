"""The section of a report about near-duplicates: how many, in clusters of which size, and some of them to read."""

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
from search.evaluation.cells import Table
from search.evaluation.report import svg
from search.evaluation.report.blocks import Block, Section, figure
from search.index import Index
from search.text import counted, number, percent

LARGEST, SPREAD, MEMBERS = 5, 5, 5  # clusters shown whatever they are, clusters drawn by size, documents of each
_TEXT_SHOWN, _NAME_SHOWN = 160, 80  # characters
_CLASSES = (2, 3, 4, 5, 10, 100, 1000, 10_000, 100_000, 1_000_000)  # where classes of cluster sizes begin
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
    """A file of duplicates. Its rows are sorted by cluster; `starts` and `sizes` (documents, the kept one included)
    are of each cluster."""

    name: str
    facts: Mapping[str, Any]
    table: pa.Table
    starts: RowIds
    sizes: RowIds

    @property
    def scores(self) -> npt.NDArray[np.float32]:
        """Of the dropped documents, with the one kept in their place."""
        scores: npt.NDArray[np.float32] = self.table.column("score").to_numpy()
        return scores

    @property
    def by_text(self) -> npt.NDArray[np.bool_]:
        """Which documents were dropped for a text equal to that of the kept one."""
        reasons = self.table.column("reason").to_numpy(zero_copy_only=False)
        found: npt.NDArray[np.bool_] = np.isin(reasons.astype(str), ["text", "against-text"])
        return found

    def members(self, cluster: int) -> list[dict[str, Any]]:
        """The dropped documents of a cluster, the lowest score first."""
        rows = self.table.slice(self.starts[cluster], self.sizes[cluster] - 1)
        order = np.argsort(rows.column("score").to_numpy(), kind="stable")
        found: list[dict[str, Any]] = rows.take(pa.array(order[:MEMBERS])).to_pylist()
        return found


def read_listing(path: Path) -> DuplicateClusters:
    """Read a file of duplicates. Raises what `read_duplicates` raises."""
    found = read_duplicates(path)
    clusters = found.table.column("cluster").to_numpy()
    order = np.argsort(clusters, kind="stable")
    _, starts, dropped = np.unique(clusters[order], return_index=True, return_counts=True)
    return DuplicateClusters(path.name, found.facts, found.table.take(pa.array(order)), starts, dropped + 1)


def sample_clusters(sizes: RowIds) -> RowIds:
    """The clusters to show: the `LARGEST`, then `SPREAD` at even distances in the others, which are sorted by size."""
    order = np.argsort(-sizes, kind="stable")
    largest, rest = order[:LARGEST], order[LARGEST:]
    places = np.linspace(0, len(rest) - 1, min(SPREAD, len(rest))).round().astype(np.int64)
    return np.concatenate([largest, rest[places]])


def duplicates(index: Index, listing: DuplicateClusters) -> Section:
    """Return what was dropped and why, sizes and scores, and sample clusters with the index's texts."""
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


_CLUSTERS = "Clusters by size: a kept document with those dropped for it."
_SCORES = "Scores of the dropped documents, each with the one that was kept in its place; dashed: the threshold."


def _cards(listing: DuplicateClusters) -> list[tuple[str, str]]:
    stated = listing.facts
    documents, dropped = stated["documents"], len(listing.table)
    largest = number(int(listing.sizes.max())) if len(listing.sizes) else "none"
    return [
        ("documents", number(documents)),
        (f"kept, {percent(stated['kept'] / max(1, documents))}", number(stated["kept"])),
        (f"dropped, {percent(dropped / max(1, documents))}", number(dropped)),
        ("clusters", number(len(listing.sizes))),
        ("largest cluster", largest),
        ("threshold", f"{stated['threshold']:g}"),
    ]


def _lead(listing: DuplicateClusters) -> str:
    texts = ", or has the same text" if listing.facts["text_duplicates"] == "drop" else ""
    return (
        f"Every dropped document scores at least {listing.facts['threshold']:g} with a kept one{texts}. Of several "
        "the highest-scoring stands for it. A cluster is a kept document with all that it stands for."
    )


def _facts(listing: DuplicateClusters) -> list[tuple[str, str]]:
    stated = listing.facts
    other = stated["against"]
    compared = "each other" if other is None else f"each other and {_other(other)}"
    return [
        ("file", listing.name),
        ("threshold", "identical up to rounding" if stated["threshold"] >= IDENTICAL else ""),
        ("pairs", _method(stated["method"])),
        ("kept of several", _PREFERENCES.get(stated["prefer"], stated["prefer"])),
        ("equal texts", "dropped whatever they score" if stated["text_duplicates"] == "drop" else "dropped if they "
         "score the threshold"),
        ("compared with", _other(other) if stated["only_against"] and other is not None else compared),
    ]  # fmt: skip


def _method(method: Mapping[str, Any]) -> str:
    if method.get("name") == "exact":
        return "all found, exactly"
    figures = [f"{key.replace('_', ' ')} {number(value)}" for key, value in method.items() if key != "name"]
    return ", ".join(["searched for approximately" if method.get("name") == "ann" else "", *figures])


def _other(other: Mapping[str, Any]) -> str:
    return f"{number(other.get('documents'))} documents of another index ({other.get('index', 'unnamed')})"


def _reasons(listing: DuplicateClusters) -> Table:
    counted = {entry["values"]: entry["counts"] for entry in listing.table.column("reason").value_counts().to_pylist()}
    known = [reason for reason in _REASONS if reason in counted]
    rows = [
        [_REASONS.get(reason, reason), number(counted[reason]), percent(counted[reason] / len(listing.table))]
        for reason in [*known, *sorted(counted.keys() - _REASONS)]
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
    known = _look_up(index, {identity for rows in members for row in rows for identity in _own_ids(row)})
    few = len(shown) == len(listing.sizes)
    which = (
        "All clusters, the largest first."
        if few
        else f"The {LARGEST} largest clusters, then {len(shown) - LARGEST} at even distances in the list of the others "
        "by size."
    )
    sizes = (int(listing.sizes[cluster]) for cluster in shown)
    return {
        "lead": f"{which} Of each the documents with the lowest scores, which are the ones to doubt.",
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
    return {
        "id": _cut(identity, _NAME_SHOWN),
        "title": _cut(title, _NAME_SHOWN),
        "text": _cut(text, _TEXT_SHOWN),
    }


def _cut(text: str, length: int) -> str:
    """The beginning of a text, white space folded, cut between words where there are any."""
    words = " ".join(text[: 8 * length].split())
    if len(words) <= length and len(text) <= 8 * length:
        return words
    return f"{words[:length].rpartition(' ')[0] or words[:length]} …"


def _own_ids(row: Mapping[str, Any]) -> tuple[str, ...]:
    return (row["id"],) if str(row["reason"]).startswith("against") else (row["id"], row["kept_id"])


def _look_up(index: Index, ids: set[str]) -> dict[str, Document]:
    return {document.id: document for document in index.documents.fetch(sorted(index.ids.find(ids).values()))}


def _remarks(index: Index, listing: DuplicateClusters) -> list[str]:
    """Return why the file may not be about this index, or not be complete."""
    manifest, remarks = index.manifest, []
    if listing.facts["fingerprint"] != manifest.fingerprint:
        other = f"{listing.facts['fingerprint'][:12]}… instead of {manifest.fingerprint[:12]}…"
        remarks.append(f"{listing.name} was made with another encoder than the index's: {other}.")
    if listing.facts["index"].get("manifest") != canonical_sha256(manifest.to_dict()):
        remarks.append(
            f"{listing.name} was made from another index, or from another generation of this one. Texts below are of "
            "this index's documents with the same ids, where there are any."
        )
    if listing.facts["method"].get("name") == "ann":
        remarks.append(_approximate(listing.facts["method"]))
    return remarks


def _approximate(method: Mapping[str, Any]) -> str:
    said = "Pairs were searched for approximately, so some duplicates may be among the kept documents"
    found, known = method.get("found_pairs"), method.get("sampled_pairs")
    if not isinstance(found, int) or not isinstance(known, int) or not 0 <= found <= known or not known:
        return f"{said}."
    return f"{said}: of {counted(known, 'pair')} of a sample {found:,} ({percent(found / known)}) were found."
