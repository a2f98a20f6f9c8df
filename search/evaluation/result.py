"""THE result of an evaluation: what was measured and how it was made; written as JSON, read again, checked as read.

A `Result` is a mapping too, with the keys its file has, so that a program reads a result and a file of one alike.
How each kind is laid out for people is in `tables.py`.
"""

import platform
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal, TypeVar

from msgspec import Struct

from indexer.errors import EvaluationError
from indexer.hashing import canonical_sha256, fingerprint
from indexer.models.encoder_spec import EncoderSpec
from indexer.recipe.config import BuildConfig
from indexer.system.regular_files import read_regular
from indexer.system.versions import library_versions
from indexer.typed_json import convert_json, decode_json
from search.files import write_json
from search.index import Index

_MEASURING = ("scipy", "ir_measures", "pytrec_eval-terrier", "bm25s", "PyStemmer", "datasets", "matplotlib")
_MOST_BYTES = 1 << 28
_WANTED = 'expected a result file of isotrope evaluate: a JSON object with "provenance" and "results"'
Kind = Literal[
    "sts", "layers", "methods", "whiteningbert", "retrieval", "recall", "divergence", "rte", "words", "tune", "other"
]
Unit = Literal["fraction", "percent"]
"""Of correlations, accuracies, nDCG and other figures: "fraction" is from 0 to 1, "percent" times 100, as in files of
older versions. Cosines, latencies and sizes are in no such unit."""
Row = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class KindFormat:
    """How results of a kind are headed, laid out, and told apart in files of older versions that name no kind.

    `tables` and `schema` are places, "module:name", which are imported for a result of this kind only.
    """

    heading: str
    tables: str
    own_key: str = "-"  # a key that only its rows have
    added: tuple[str, ...] = ()  # what it adds to a file
    once_in_percent: bool = False  # older files hold its figures times 100
    schema: str = ""  # a Struct of what is read of its file besides `_File`


_TABLES, _PAPERS = "search.evaluation.tables", "search.papers.tables"
_OF_PAPERS = f"{_PAPERS}:PaperFile"
KINDS: dict[Kind, KindFormat] = {
    "sts": KindFormat("Similarity (STS)", f"{_TABLES}:similarity_tables", "spearman", once_in_percent=True),
    "layers": KindFormat("Layers on similarity (STS)", f"{_PAPERS}:layers_tables", added=("layers", "best", "paper"),
                         once_in_percent=True, schema=_OF_PAPERS),
    "methods": KindFormat("Methods on similarity (STS)", f"{_PAPERS}:methods_tables", added=("published",),
                          once_in_percent=True, schema=_OF_PAPERS),
    "whiteningbert": KindFormat("WhiteningBERT, Table 1", f"{_PAPERS}:whiteningbert_tables", added=("table",),
                                once_in_percent=True, schema=_OF_PAPERS),
    "recall": KindFormat("Recall against exact search", f"{_TABLES}:recall_tables", "latency_ms"),
    "divergence": KindFormat("Ranking by divergence", f"{_PAPERS}:divergence_tables", "proven", schema=_OF_PAPERS),
    "rte": KindFormat("Entailment (RTE)", f"{_PAPERS}:rte_tables", "majority", once_in_percent=True, schema=_OF_PAPERS),
    "words": KindFormat("Word vectors", f"{_PAPERS}:words_tables", "covered", once_in_percent=True, schema=_OF_PAPERS),
    "retrieval": KindFormat("Retrieval", f"{_TABLES}:retrieval_tables", "measure"),
    "tune": KindFormat("Tuning", f"{_TABLES}:tune_tables", added=("frontier", "choice")),
    "other": KindFormat("Results", f"{_TABLES}:other_tables"),
}  # fmt: skip


@dataclass(frozen=True, eq=False)
class Result(Mapping[str, Any]):
    """What was measured: a row a setting (or what else a kind measures), paired comparisons of them, and notes.

    All of it is of JSON types. `added` is what a kind adds: "table", "published", "best", "paper", "layers",
    "frontier", "choice", "recipe". `comparisons` None: the kind compares nothing. `source` names where it was read
    from, and is not written.
    """

    kind: Kind
    provenance: dict[str, Any]
    results: Sequence[Row]
    comparisons: Sequence[Row] | None = None
    notes: Sequence[str] = ()
    added: Mapping[str, Any] = field(default_factory=dict)
    unit: Unit = "fraction"
    source: str = ""

    def to_dict(self) -> dict[str, Any]:
        """As its file holds it."""
        found: dict[str, Any] = {
            "kind": self.kind,
            "unit": self.unit,
            "provenance": self.provenance,
            "results": list(self.results),
        }
        if self.comparisons is not None:
            found["comparisons"] = list(self.comparisons)
        return {**found, **self.added, "notes": list(self.notes)}

    def __getitem__(self, key: str) -> Any:
        return self.to_dict()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_dict())

    def __len__(self) -> int:
        return len(self.to_dict())

    @property
    def encoders(self) -> set[str]:
        """Fingerprints of the encoders measured, as far as it names any."""
        named = {str(row["encoder"]) for row in self.results if row.get("encoder")}
        encoder = self.provenance.get("encoder")
        if not named and isinstance(encoder, Mapping) and isinstance(encoder.get("identity"), Mapping):
            named = {fingerprint(dict(encoder["identity"]))}
        return named


def write_result(path: Path, result: Mapping[str, Any], force: bool = False) -> None:
    """A result as strict JSON, whole or not at all; over another file only with `force`."""
    write_json(path, result, force)


def read_result(path: Path) -> Result:
    """Read a result file, also of a version that wrote no "kind" and "unit".

    Raises EvaluationError naming what is not as expected, and where.
    """
    try:
        stored = decode_json(read_regular(path, _MOST_BYTES), dict[str, Any])
    except OSError as error:
        raise EvaluationError(f"{path}: cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise EvaluationError(f"{path}: {error}; {_WANTED}.") from None
    checked = _checked(path, stored, _File)
    if not checked.results:
        raise EvaluationError(f'{path}: its "results" are empty; {_WANTED}.')
    kind = checked.kind or _kind_of(stored)
    form = KINDS[kind]
    if form.schema:
        _checked(path, stored, resolve_name(form.schema))
    if missing := [name for name in form.added if stored.get(name) is None]:
        raise EvaluationError(f'{path}: its kind is "{kind}", but it has no "{missing[0]}". Measure it again.')
    rows, added = stored["results"], {name: value for name, value in stored.items() if name not in _SHARED}
    notes = [note for listed in (checked.notes, *(row.notes for row in checked.results)) for note in listed or ()]
    unit = checked.unit or ("percent" if form.once_in_percent else "fraction")
    return Result(kind, stored["provenance"], rows, stored.get("comparisons"), notes, added, unit, path.name)


def _checked(path: Path, stored: dict[str, Any], schema: type[T]) -> T:
    try:
        return convert_json(stored, schema)
    except ValueError as error:
        raise EvaluationError(f"{path}: {error}; {_WANTED}.") from None


def _kind_of(stored: Mapping[str, Any]) -> Kind:
    """Return the kind of a file that does not name it, by the keys that only this kind has."""
    for kind, form in KINDS.items():
        if form.added and all(name in stored for name in form.added):
            return kind
    return next((kind for kind, form in KINDS.items() if form.own_key in stored["results"][0]), "other")


_SHARED = ("kind", "unit", "provenance", "results", "comparisons", "notes")


class Clock:
    """Started when a measurement begins; `provenance` says when that was and how long it took."""

    def __init__(self) -> None:
        self.started = datetime.now(UTC)

    def provenance(
        self, encoder: EncoderSpec | None, data: Mapping[str, str], command: str = "", **more: Any
    ) -> dict[str, Any]:
        """JSON types. `data` maps names of data files to their sha256; `command` defaults to this process's own.

        Only "created" and "seconds" differ between two runs of the same command.
        """
        found: dict[str, Any] = {
            "command": _on_one_line(command or shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])),
            "created": self.started.isoformat(timespec="seconds"),
            "seconds": round((datetime.now(UTC) - self.started).total_seconds(), 1),
            "machine": platform.machine(),
            "versions": library_versions(_MEASURING),
            "data": {_on_one_line(name): digest for name, digest in sorted(data.items())},
        }
        if encoder is not None:
            found["encoder"] = {"model": encoder.model, "identity": encoder.identity.to_dict()}
        return found | more


def how_built(config: BuildConfig, index: Index | None = None) -> dict[str, Any]:
    """For provenance, JSON types: the "recipe" that was measured, and the "index" it comes from, if any."""
    found: dict[str, Any] = {"recipe": config.to_dict()}
    if index:
        manifest = index.manifest
        found["index"] = {"generation": manifest.generation, "manifest": canonical_sha256(manifest.to_dict())}
    return found


def _on_one_line(text: str) -> str:
    """Names of files may hold line breaks, and bytes that are no text; a recipe's remarks and JSON may not."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


Number = int | float | None


class _IndexProvenance(Struct):
    """The index that was measured."""

    manifest: str | None = None


class _Reranker(Struct):
    """What reranked, and of how many pairs some were cut."""

    model: str
    backend: str
    sha256: str | None = None
    pairs: int = 0
    cut: int = 0


class _Reranked(Struct):
    """Of which setting the first hits were reranked, how many, and how long that took for a query."""

    of: str
    depth: int
    ms: int | float


class _Provenance(Struct):
    """How a result came to be; `encoder` has the encoder's "identity", where there is one encoder."""

    command: str | None = None
    created: str | None = None
    index: _IndexProvenance | None = None
    encoder: dict[str, Any] | None = None
    rerank: _Reranker | None = None


class Figure(Struct):
    """A value with the ends of its interval; an accuracy says at which threshold."""

    value: Number = None
    accuracy: Number = None
    low: Number = None
    high: Number = None
    threshold: Number = None
    decided: bool | None = None
    better: Number = None
    won: int | None = None
    tied: int | None = None
    lost: int | None = None


class CheckedRow(Struct):
    """What is read of a row of any kind of result. A name has one type in all kinds."""

    notes: list[str] | None = None
    model: str | None = None
    encoder: str | None = None
    setting: str | None = None
    against: str | None = None
    protocol: str | None = None
    fit: str | None = None
    task: str | None = None
    origin: str | None = None
    index_type: str | None = None
    pooling: str | None = None
    centre: str | None = None
    strength: Number | str = None
    shrinkage: Number = None
    layers: list[int] | None = None
    measure: dict[str, Figure] | str | None = None
    spearman: Number = None
    value: Number = None
    recall: Number = None
    difference: Number = None
    low: Number = None
    high: Number = None
    decided: bool | None = None
    exact: bool | None = None
    tied: bool | None = None
    taken: bool | None = None
    k: int | None = None
    queries: int | None = None
    rows: int | None = None
    dim: int | None = None
    dimensions: int | None = None
    bytes: int | None = None
    pairs: int | None = None
    bytes_per_vector: Number = None
    search_parameters: list[dict[str, Any]] | None = None
    latency_ms: dict[str, dict[str, Number] | None] | None = None
    rerank: _Reranked | None = None


class _Enough(Struct):
    """The smallest vectors that do as well."""

    dim: int
    bytes: int
    strength: str | int | float | None = None  # where it is another than what was taken has


class _Choice(Struct):
    """What `tune` took."""

    setting: str
    reason: str
    gain: Figure
    over_present: Figure | None = None
    enough: _Enough | None = None


class _RerankDepth(Struct):
    """How good a depth of reranking is, 0 for none, and what it gains."""

    depth: int
    value: Number
    ms: int | float
    tied: bool
    taken: bool
    gain: Figure | None = None
    low: Number = None
    high: Number = None


class _RerankAdvice(Struct):
    """What `tune` says of reranking."""

    measure: str
    questions: int
    advice: str
    by: _Reranker
    depths: list[_RerankDepth]


class _File(Struct):
    """A result file: what is read of it. Whatever else it holds is passed over."""

    provenance: _Provenance
    results: list[CheckedRow]
    kind: Kind | None = None
    unit: Unit | None = None
    comparisons: list[CheckedRow] | None = None
    notes: list[str] | None = None
    frontier: list[CheckedRow] | None = None
    choice: _Choice | None = None
    rerank: _RerankAdvice | None = None
