"""The sections of a page, and those on the index: its description, vectors, documents and gates.

`page.html` renders the blocks of a section. Everything except plots is escaped.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from indexer.store.quality import HeldOut, Quality, RecallEntry
from search.describe import (
    documents_in_words,
    metadata_in_words,
    query_mean_in_words,
    recall_in_words,
    settings_in_words,
)
from search.evaluation.report import svg
from search.evaluation.report.statistics import IndexStatistics, VectorStatistics
from search.evaluation.tables import Table
from search.formatting import counted, decimal, number, percent

# text, remark: a string. facts: pairs of a name and a value, without empty values. cards: pairs of a name and a value.
# table, explained (with a wrapped last column): a `tables.Table`. figure: an SVG and its caption. meanings: pairs of a
# term and its meaning. clusters: see `duplicates`.
Kind = Literal["text", "remark", "facts", "cards", "table", "explained", "figure", "meanings", "clusters"]
Block = tuple[Kind, Any]
Facts = dict[str, Any]
_MANY_CUT = 0.05  # of the documents: shown as a remark
_AT_LEAST = ("self_hit", "recall_at_10")  # gates with a lower limit
_GATES = {
    "covariance": "largest deviation of the transformed sample's covariance from its target",
    "not_finite": "embeddings with NaN or infinity",
    "zero_embeddings": "embeddings of zeros",
    "zero_vectors": "documents whose vector is zero",
    "missing_rows": "rows lost during the build",
    "self_hit": "share of documents found by their own vector",
    "recall_at_10": "recall@10 against exact search",
}
_MEASURES: list[tuple[str, Callable[[VectorStatistics], str], str]] = [
    ("mean cosine", lambda cloud: number(cloud.mean_cosine, 3),
     "the mean cosine of random pairs of vectors; 0 when no direction is preferred"),
    ("cosine deviation", lambda cloud: number(cloud.cosine_deviation, 3), "the standard deviation of these cosines"),
    ("partition ratio", lambda cloud: number(cloud.partition, 3),
     "min Z(c) / max Z(c) with Z(c) the sum of exp(c . v) over unit vectors v, c running over the eigenvectors of "
     "their second moment and both signs (Mu and Viswanath, 2018); 1 when isotropic"),
    ("effective dimensions", lambda cloud: number(cloud.participation, 4),
     "the participation ratio (sum l)² / sum l² of the covariance's eigenvalues l: the number of equally strong "
     "directions with the same spread"),
    ("IsoScore", lambda cloud: number(cloud.isoscore, 3),
     "(effective dimensions - 1) / (dimensions - 1) (Rudman et al., 2022); 0 on a line, 1 when isotropic"),
    ("first direction", lambda cloud: percent(cloud.leading(1)), "share of the variance in the strongest direction"),
    ("first 10 directions", lambda cloud: percent(cloud.leading(10)), "share of the variance in the ten strongest"),
    ("dimensions", lambda cloud: number(cloud.dim), "numbers per vector"),
]  # fmt: skip


@dataclass(frozen=True)
class Section:
    """A heading and the blocks below it."""

    heading: str
    blocks: list[Block]


def figure(svg: str | None, caption: str) -> list[Block]:
    """Return the block of a plot; none without a plot."""
    return [] if svg is None else [("figure", {"svg": svg, "caption": caption})]


def cards(facts: Facts, figures: IndexStatistics) -> list[tuple[str, str]]:
    """Return the key figures."""
    gates = Quality.of(facts["quality"]).gates
    passed = sum(gate.passed for gate in gates.values())
    return [
        ("documents", number(facts["documents"])),
        *([("windows", number(facts["rows"]))] if figures.windowed else []),
        ("dimensions", f"{figures.before.dim} → {figures.after.dim}"),
        ("effective dimensions", _change(figures, lambda cloud: number(cloud.participation, 3))),
        ("mean cosine", _change(figures, lambda cloud: decimal(cloud.mean_cosine))),
        *([("truncated", percent(figures.truncated / max(1, len(figures.lengths))))] if figures.max_length else []),
        ("gates passed", f"{passed} of {len(gates)}"),
    ]


def description(facts: Facts) -> Section:
    """Return the description of the index, as in `isotrope inspect`."""
    segments = [
        " ".join([entry["factory"], *(f"{name} {value}" for name, value in entry["search_parameters"].items())])
        + f", {counted(entry['rows'], 'row')}"
        for entry in facts["segments"]
    ]
    size = facts["bytes"]["total"] / 1e6
    rows = [
        ("index", f"{facts['index']}, format {facts['format']}, generation {facts['generation']}"),
        ("created", facts["created"]),
        ("documents", documents_in_words(facts)),
        *((name, words.replace("->", "→")) for name, words in settings_in_words(facts).items()),
        ("note", facts["transform"]["note"]),
        ("query mean", query_mean_in_words(facts)),
        ("segments", "; ".join(segments)),
        ("metadata", metadata_in_words(facts)),
        ("size", f"{size:,.1f} MB" if size >= 1 else f"{1000 * size:,.0f} kB"),
    ]  # fmt: skip
    return Section("Index", [("facts", rows)])


def isotropy(facts: Facts, figures: IndexStatistics) -> Section:
    """Return spectrum, cosines and isotropy, before and after the transform."""
    both = [("before", figures.before), ("after", figures.after)]
    sides = [("before = after", figures.before)] if figures.unchanged else both
    rows = [[name, *(write(cloud) for _, cloud in sides)] for name, write, _ in _MEASURES]
    lead = (
        "The transform only scales to unit length, so before and after are the same."
        if figures.unchanged
        else "Before: the raw embeddings scaled to unit length, because scores compare directions only. "
        "After: the stored vectors. Variances are about the mean."
    )
    pairs = f"{counted(len(figures.before.cosines), 'pair')} among {counted(figures.paired, figures.noun)}"
    caption = f"Cosines of {pairs}{'' if figures.unchanged else ', the same before and after'}; dashed: the mean."
    spectrum = "Eigenvalues of the covariance of the unit vectors, as shares of their sum."
    blocks: list[Block] = [("text", lead + _sampled(figures)), *figure(svg.spectrum(figures), spectrum)]
    blocks += figure(svg.cosines(figures), caption)
    blocks += [
        ("table", Table("", ["", *(name for name, _ in sides)], rows)),
        ("meanings", [(name, meaning) for name, _, meaning in _MEASURES]),
        ("text", _offset(facts, figures)),
    ]
    return Section("What the transform does", blocks)


def documents(figures: IndexStatistics) -> Section:
    """Return norms and lengths."""
    low, high = float(figures.norms.min()), float(figures.norms.max())
    constant = high - low < 1e-4 * high
    text = f"All raw embeddings have the norm {low:.4g}."
    if not constant:
        mean = number(float(figures.norms.mean()))
        text = f"Norms of the raw embeddings range from {number(low)} to {number(high)}, with a mean of {mean}."
    blocks: list[Block] = [("text", text + _sampled(figures))]
    if not constant:
        blocks += figure(svg.norms(figures), "Norms of the raw embeddings, before any transform.")
    return Section("Documents", blocks + ([] if figures.max_length is None else _lengths(figures, figures.max_length)))


_LENGTHS = "Tokens per {0} before truncation, including special tokens; all {0}s."


def _lengths(figures: IndexStatistics, limit: int) -> list[Block]:
    total, cut = len(figures.lengths), figures.truncated
    lost = int((figures.lengths - limit).clip(min=0).sum())
    tokens = int(figures.lengths.sum(dtype="int64"))
    truncated = (
        f"{cut:,} of {counted(total, figures.noun)} ({percent(cut / total)}) are longer than {limit:,} tokens "
        f"and were truncated: {lost:,} of {tokens:,} tokens ({percent(lost / max(1, tokens))}) were not encoded."
        if cut
        else f"No {figures.noun} is longer than the encoder's limit of {limit:,} tokens; nothing was truncated."
    )
    kind: Kind = "remark" if cut > _MANY_CUT * total else "text"
    return [(kind, truncated), *figure(svg.lengths(figures), _LENGTHS.format(figures.noun))]


def gates(facts: Facts) -> Section:
    """Return the build gates and the recall measured by the build."""
    quality = Quality.of(facts["quality"])
    rows = [
        [
            name,
            "passed" if gate.passed else "FAILED",
            number(gate.value),
            f"{'at least' if name in _AT_LEAST else 'at most'} {number(gate.limit)}",
            _GATES.get(name, ""),
        ]
        for name, gate in quality.gates.items()
    ]
    recall, index = quality.gates.get("recall_at_10"), quality.index
    text = "The index compares a query with every vector, so its recall is 1 by construction."
    if recall:
        by = f", with {counted(index.queries, 'query', 'queries')} ({index.query_origin})" if index else ""
        text = f"At build, recall@10 against exact search was {number(recall.value)}{by}."
    if quality.recall_history:
        text += f" Measured again after a change: {recall_in_words(quality.recall_history[-1])}."
    blocks: list[Block] = [
        ("text", "An index is published only if it passes all gates."),
        ("explained", Table("", ["gate", "", "value", "limit", "meaning"], rows)),
        ("text", text),
    ]
    if quality.recall_history:
        blocks.append(("table", _recalls(quality.recall_history)))
    if quality.held_out:
        blocks.append(("text", _held_out(quality.held_out)))
    return Section("Build gates", blocks)


def _recalls(history: Sequence[RecallEntry]) -> Table:
    rows = [
        [
            number(entry.generation),
            entry.date[:10],
            number(entry.rows),
            "" if entry.recall_before is None else f"{entry.recall_before:.4f}",
            f"{entry.recall_at_10:.4f}",
            number(entry.promised),
        ]
        for entry in history
    ]
    columns = ["generation", "date", "vectors", "with the parameters before", "recall@10", "index.recall"]
    return Table("The recall of the whole index, measured after changes", columns, rows)


def _held_out(held_out: HeldOut) -> str:
    expected = "is undefined" if held_out.expected is None else f"is {number(held_out.expected)}"
    return (
        f"After a fit on {held_out.fitted:,} rows, {counted(held_out.held_out, 'unseen row')} have a mean variance of "
        f"{number(held_out.mean_variance)} in the fitted directions, where 1 is perfect; for ideal Gaussian data it "
        f"{expected}."
    )


def _offset(facts: Facts, figures: IndexStatistics) -> str:
    centre = facts["config"]["whitening"]["centre"]
    if facts["transform"]["kind"] == "hellinger":
        return "Queries and documents are square roots of probabilities; nothing is centred."
    if facts["transform"]["kind"] == "flow" and facts["transform"]["query_texts"]["texts"]:
        return "Queries have a separate mean: they are shifted by the difference of the means before the flow."
    if figures.offset is None:
        return "" if figures.unchanged else f'Queries and documents have the same centre ("{centre}").'
    return (
        f"Queries have a separate mean. Its distance from the documents' mean is {number(figures.offset, 3)} times the "
        "typical distance of a document from that mean (the root of the summed variances). With one common mean this "
        "offset would be in every score."
    )


def _change(figures: IndexStatistics, write: Callable[[VectorStatistics], str]) -> str:
    before = write(figures.before)
    return before if figures.unchanged else f"{before} → {write(figures.after)}"


def _sampled(figures: IndexStatistics) -> str:
    if figures.sampled == figures.rows:
        return f" Measured on all {figures.rows:,} rows." if figures.rows > 1 else ""
    return f" Measured on the {figures.sampled:,} of {figures.rows:,} rows with the smallest hashes of their ids."
