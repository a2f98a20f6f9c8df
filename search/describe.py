"""The facts of an index as JSON types, and their wording in `inspect`, `add`, `refit` and the report."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from indexer.errors import as_shown, spelled
from indexer.models.identity import UNLIMITED
from indexer.store import layout
from indexer.typed_json import convert_json
from search.formatting import counted, number, size
from search.index import Index

if TYPE_CHECKING:
    from indexer.store.quality import Drift, HeldOut, IndexFigures, RecallEntry, SegmentFigures


_SHAPING = (
    "kind",
    "pooling",
    "layers",
    "max_length",
    "truncate_dim",
    "precision",
)  # settings of the encoder that are shown
_KINDS = {"vectors": "none: the embeddings came with the corpus", "server": "{0}, at {1}"}  # other kinds: the settings


def settings_in_words(facts: dict[str, Any]) -> dict[str, str]:
    """Return the build settings of an index in words, from `describe_index`, for `inspect` and the report."""
    encoder, transform, whitening = facts["encoder"], facts["transform"], facts["config"]["whitening"]
    chunk = facts["config"]["chunk"]
    ends = f"with an overlap of {chunk['overlap']}"
    if chunk.get("by") == "structure":
        ends = "by structure, with the headings above" if chunk["headings"] else "by structure"
    windows = {"windows": f"at most {chunk['tokens']} tokens, {ends}"}
    shaping = [f"{key} {encoder[key]}" for key in _SHAPING if encoder.get(key) and encoder[key] != UNLIMITED]
    sizes = f"{encoder['dim']} -> {transform['dim']} dimensions"
    return {
        "model": facts["model"] or "not named",
        "encoder": _KINDS.get(encoder["kind"], "{0}").format(", ".join(shaping), facts["config"]["encoder"].get("url")),
        **_prompts(encoder),
        **(windows if chunk["tokens"] else {}),
        "fingerprint": facts["fingerprint"],
        "transform": f"{transform['kind']}, {sizes}, {_fitted(whitening, transform)}",
        **_queries(facts["config"].get("queries", {})),
        **_fused(facts["config"].get("hybrid", {})),
        **_reranked(facts["config"].get("rerank", {})),
    }


def _prompts(encoder: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts that are put before documents and queries, if there are any."""
    prompts = {role: encoder.get(f"{role}_prefix") for role in ("query", "document")}
    shown = [f"{role} {json.dumps(text, ensure_ascii=False)}" for role, text in prompts.items() if text]
    return {"prompts": ", ".join(shown)} if shown else {}


def _fused(hybrid: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of hybrid search in words; nothing for older indexes without them."""
    if not hybrid:
        return {}
    by = "reciprocal ranks"
    if hybrid["fusion"] == "convex":
        by = f"weight of the vectors {hybrid['weight']:g}, scaled by {hybrid['scaling']}"
    unit = f", by {hybrid['unit']}" if hybrid["unit"] != "document" else ""
    return {"hybrid": f"{by}; BM25 of {hybrid['terms']}, language {hybrid['language']}{unit}"}


def _queries(queries: Mapping[str, Any]) -> dict[str, str]:
    """Return the query encoder in words, if the recipe names one."""
    named = queries.get("encoder")
    return {"queries": f"encoded by {named}, sha256 {queries['sha256'][:16]}..."} if named else {}


def _reranked(rerank: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings of reranking in words, if the recipe names a model."""
    if not rerank.get("model"):
        return {}
    digest = f", sha256 {rerank['sha256'][:16]}..." if rerank["sha256"] else ""
    return {"reranked": f"the first {rerank['depth']:,} by {rerank['model']}, {rerank['precision']}{digest}"}


def _fitted(whitening: dict[str, Any], transform: Mapping[str, Any]) -> str:
    if transform["kind"] == "normalisation" and transform["note"]:
        return str(transform["note"])
    kind = whitening.get("kind", "whitening")
    if kind == "hellinger":
        return "nothing fitted"
    strength = [f"strength {whitening['strength']}"] if kind == "whitening" else []
    strength += [f"shrinkage {whitening['shrinkage']}"] * bool(strength and whitening["shrinkage"])
    centred = kind == "flow" or whitening["strength"] != "none"  # without whitening nothing is subtracted
    return ", ".join([*strength, f"centre {whitening['centre'] if centred else 'none'}"])


def describe_index(index: Index) -> dict[str, Any]:
    """Return the facts that `isotrope inspect` shows, as JSON types."""
    manifest = index.manifest
    encoder = {key: value for key, value in manifest.encoder["identity"].items() if not isinstance(value, dict)}
    kinds: Counter[str] = Counter()
    for name, digest in manifest.files.items():
        kinds[Path(name).name if name.startswith(layout.PARTS) else name.partition("/")[0]] += digest.bytes
    return {
        "index": as_shown(str(index.path)),
        "format": layout.FORMAT,
        "generation": manifest.generation,
        "created": manifest.created,
        "documents": manifest.documents,
        "rows": manifest.rows,
        "deleted": manifest.stored_documents - manifest.documents,
        "parts": len(manifest.parts),
        "model": manifest.encoder["model"],
        "fingerprint": manifest.fingerprint,
        "encoder": encoder | {"dim": manifest.encoder["dim"]},
        "transform": manifest.transform,
        "segments": [msgspec.structs.asdict(entry) for entry in manifest.segments],
        "metadata": manifest.schema,
        "quality": manifest.quality,
        "bytes": kinds | {"total": sum(kinds.values())},
        "config": index.config.to_dict(),
        "versions": manifest.versions,
    }


def facts_in_words(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """Return (name, text) of the facts of `describe_index` for `inspect`, with "timing" if measured; "" if absent."""
    from indexer.store.quality import Quality

    encoder, quality = facts["encoder"], Quality.of(facts["quality"])
    stored = sum(entry["rows"] for entry in facts["segments"])
    compact = spelled("compact_index", "isotrope compact")
    return [
        ("index", f"{facts['index']} (format {facts['format']}, generation {facts['generation']}, {facts['created']})"),
        ("documents", documents_in_words(facts)),
        ("deleted", f"{facts['deleted']:,} still on disk, until {compact}" if facts["deleted"] else ""),
        ("drift", drift_in_words(quality.drift, facts["index"]) if quality.drift else ""),
        *settings_in_words(facts).items(),
        ("query mean", query_mean_in_words(facts)),
        ("segments", "; ".join(map(_segment, facts["segments"]))),
        *_search(quality.index, facts.get("timing")),
        *_others(facts["segments"], quality.segments),
        *[("recall now", recall_in_words(entry)) for entry in quality.recall_history[-1:]],
        ("recalls", _recalls(quality.recall_history)),
        ("metadata", metadata_in_words(facts)),
        ("truncated", f"{quality.truncated:,} of {stored:,} at {encoder['max_length']} tokens"
                      if encoder.get("max_length", UNLIMITED) < UNLIMITED else ""),
        ("unknown", f"{quality.without_tokens:,} texts without a known token" if quality.without_tokens else ""),
        ("gates", ", ".join(f"{name} {number(gate.value)}" for name, gate in quality.gates.items())),
        ("held out", _held_out(quality.held_out)),
        ("size", f"{size(facts['bytes']['total'])}: "
                 + ", ".join(f"{name} {size(count)}" for name, count in facts["bytes"].items() if name != "total")),
    ]  # fmt: skip


def documents_in_words(facts: dict[str, Any]) -> str:
    """Return the numbers of documents, parts and vectors."""
    return f"{facts['documents']:,} in {counted(facts['parts'], 'part')}; {counted(facts['rows'], 'vector')}"


def query_mean_in_words(facts: dict[str, Any]) -> str:
    """Return the number and source of the texts of the query mean, or "none" without one."""
    texts = facts["transform"]["query_texts"]
    return f"of {counted(texts['texts'], 'text')} ({texts['source']})" if texts["texts"] else "none"


def metadata_in_words(facts: dict[str, Any]) -> str:
    """Return the columns with their types: "year int64, tags list of string, by struct (name string)"."""
    return _columns(facts["metadata"]) or "none"


def _columns(forms: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {_kind(form)}" for name, form in forms.items())


def _kind(form: Any) -> str:
    match form:
        case {"list": element}:
            return f"list of {_kind(element)}"
        case {"struct": fields}:
            return f"struct ({_columns(fields)})"
    return str(form)


def _segment(entry: dict[str, Any]) -> str:
    parameters = "".join(f", {name} {value}" for name, value in entry["search_parameters"].items())
    return f"{entry['factory']}, {entry['rows']:,} rows{parameters}"


def _search(figures: "IndexFigures | None", timing: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Return the type of the index with the reason for it, its recall, and its speed on this machine."""
    rows = []
    if figures:
        by = f", with {figures.queries:,} queries ({figures.query_origin})" if figures.queries else ""
        rows = [("index type", f"{figures.factory}: {figures.why}"), ("recall", _recall(figures, by))]
    if timing:
        latency = ", ".join(f"{name} {value:.2f} ms" for name, value in timing["single_ms"].items())
        batch = ", ".join(f"{rate:,.0f} on {threads}" for threads, rate in timing["batch_per_second"].items())
        rows += [
            ("one by one", f"{timing['single_per_second']:,.0f} queries a second on one thread; {latency}"),
            ("in batches", f"of {timing['batch']}, queries a second by threads: {batch}"),
        ]
    return rows


def _recall(figures: "IndexFigures", by: str = "") -> str:
    return f"recall@10 {figures.recall_at_10:.4f}{by}; {figures.bytes_per_vector:,.0f} bytes per vector"


def _others(segments: list[dict[str, Any]], measured: "Mapping[str, SegmentFigures]") -> list[tuple[str, str]]:
    """Return the recall of each approximate segment except the first."""
    others = ((entry["factory"], measured[entry["file"]].index) for entry in segments if entry["file"] in measured)
    return [("other recall", f"{factory}: {_recall(about)}") for factory, about in others if about and about.queries]


def recall_in_words(entry: "RecallEntry") -> str:
    """Return one line about a measurement of the whole index after a change."""
    before = "" if entry.recall_before is None else f"{entry.recall_before:.4f} before its search parameters were set, "
    missed = f", below index.recall {entry.promised:g}" if entry.recall_at_10 < entry.promised else ""
    by = f"with {entry.queries:,} queries ({entry.query_origin})" if entry.queries else entry.query_origin
    return (
        f"recall@10 {entry.recall_at_10:.4f} of {counted(entry.rows, 'vector')} in generation "
        f"{entry.generation:,}{missed}; {before}{by}"
    )


def _recalls(history: "Sequence[RecallEntry]") -> str:
    """Return the recall of each measured generation, if there are several."""
    each = [f"{entry.recall_at_10:.4f} in {entry.generation:,}" for entry in history]
    return f"by generation: {', '.join(each)}" if len(each) > 1 else ""


def _held_out(figures: "HeldOut | None") -> str:
    if not figures:
        return "not measured"
    expected = "undefined" if figures.expected is None else f"{figures.expected:.3f}"
    return (
        f"mean variance {figures.mean_variance:.3f} on {figures.held_out:,} unseen rows after a fit on "
        f"{figures.fitted:,}; ideal Gaussian data gives {expected}"
    )


def index_type_in_words(quality: Mapping[str, Any]) -> str:
    """Return the type of an index with its recall and its bytes per vector."""
    from indexer.store.quality import SegmentFigures

    figures = convert_json(quality, SegmentFigures).index
    if figures is None:
        return "not measured"
    return f"{figures.factory}, recall@10 {figures.recall_at_10:.4f}, {figures.bytes_per_vector:,.0f} bytes per vector"


def drift_in_words(drift: "Drift", index: object) -> str:
    """Return one line about the drift of the documents added since the transform was fitted."""
    refit = spelled(f'refit_index("{index}")', f"isotrope refit {index}")
    advice = f"; a refit is advised: {refit}" if drift.refit_advised else ""
    return (
        f"{drift.rows:,} added since the fit: mean shifted by {drift.mean_shift:.3f} standard deviations "
        f"(chance {drift.expected_mean_shift:.3f}), variances off by {drift.covariance:.3f} "
        f"(chance {drift.expected_covariance:.3f}){advice}"
    )
