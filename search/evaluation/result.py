"""Results of evaluations with their provenance, as JSON files that are checked when read.

A `Result` is also a mapping with the keys of its file, so programs read results and files alike. `tables.py` shows
each kind of result as tables.
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

from indexer.errors import EvaluationError, spelled
from indexer.hashing import canonical_sha256, fingerprint
from indexer.models.encoder_spec import EncoderSpec
from indexer.recipe.config import BuildConfig
from indexer.system.regular_files import read_regular
from indexer.system.versions import library_versions
from indexer.typed_arguments import checked
from indexer.typed_json import convert_json, decode_json
from search.formatting import counted, html_line, html_table
from search.index import Index
from search.result_files import write_json

_MEASURING = ("scipy", "ir_measures", "pytrec_eval-terrier", "bm25s", "PyStemmer", "datasets", "matplotlib")
_MOST_BYTES = 1 << 28
_UNIT = "fraction"  # correlations, accuracies, nDCG and similar figures are from 0 to 1
_WANTED = 'expected a result file of an evaluation: a JSON object with "provenance" and "results"'
Kind = Literal[
    "sts",
    "layers",
    "methods",
    "whiteningbert",
    "retrieval",
    "recall",
    "divergence",
    "rte",
    "words",
    "tune",
    "chunks",
    "diff",
    "migrate",
    "distill",
    "other",
]
Row = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True)
class KindFormat:
    """The heading, tables and schema of a kind.

    `tables` and `schema` are names "module:name", imported for results of this kind only.
    """

    heading: str
    tables: str
    added: tuple[str, ...] = ()  # further keys of its files
    schema: str = ""  # a Struct of further keys


_TABLES, _PAPERS = "search.evaluation.tables", "search.papers.tables"
_OF_PAPERS = f"{_PAPERS}:PaperFile"
KINDS: dict[Kind, KindFormat] = {
    "sts": KindFormat("Similarity (STS)", f"{_TABLES}:similarity_tables"),
    "layers": KindFormat(
        "Layers on similarity (STS)", f"{_PAPERS}:layers_tables", ("layers", "best", "paper"), _OF_PAPERS
    ),
    "methods": KindFormat("Methods on similarity (STS)", f"{_PAPERS}:methods_tables", ("published",), _OF_PAPERS),
    "whiteningbert": KindFormat("WhiteningBERT, Table 1", f"{_PAPERS}:whiteningbert_tables", ("table",), _OF_PAPERS),
    "recall": KindFormat("Recall against exact search", f"{_TABLES}:recall_tables"),
    "divergence": KindFormat("Ranking by divergence", f"{_PAPERS}:divergence_tables", schema=_OF_PAPERS),
    "rte": KindFormat("Entailment (RTE)", f"{_PAPERS}:rte_tables", schema=_OF_PAPERS),
    "words": KindFormat("Word vectors", f"{_PAPERS}:words_tables", schema=_OF_PAPERS),
    "retrieval": KindFormat("Retrieval", f"{_TABLES}:retrieval_tables"),
    "tune": KindFormat("Tuning", f"{_TABLES}:tune_tables", ("frontier", "choice")),
    "chunks": KindFormat("Windows", f"{_TABLES}:other_tables", ("command",)),
    "diff": KindFormat(
        "Difference between two indexes",
        "search.evaluation.diff.tables:diff_tables",
        ("documents", "settings", "examples"),
    ),
    "migrate": KindFormat("Another encoder", "search.migration.tables:migration_tables", ("price", "choice")),
    "distill": KindFormat("A table for questions", "search.distill.tables:distill_tables", ("table", "command")),
    "other": KindFormat("Results", f"{_TABLES}:other_tables"),
}


@dataclass(frozen=True, eq=False, repr=False)
class Result(Mapping[str, Any]):
    """Rows (in most kinds one for each setting), their paired comparisons, and notes, all JSON types.

    `added` are further keys of a kind: "table", "published", "best", "paper", "layers", "frontier", "choice",
    "recipe". `comparisons` is None for kinds without comparisons. `source` names the origin and is not written.
    """

    kind: Kind
    provenance: dict[str, Any]
    results: Sequence[Row]
    comparisons: Sequence[Row] | None = None
    notes: Sequence[str] = ()
    added: Mapping[str, Any] = field(default_factory=dict)
    source: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the content of its file."""
        compared = {} if self.comparisons is None else {"comparisons": list(self.comparisons)}
        return {
            "kind": self.kind,
            "unit": _UNIT,
            "provenance": self.provenance,
            "results": list(self.results),
            **compared,
            **self.added,
            "notes": list(self.notes),
        }

    def __getitem__(self, key: str) -> Any:
        return self.to_dict()[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.to_dict())

    def __len__(self) -> int:
        return len(self.to_dict())

    def __repr__(self) -> str:
        return f"Result({KINDS[self.kind].heading}: {counted(len(self.results), 'row')})"

    def _repr_html_(self) -> str:
        """Return the tables that the command prints, and the notes, for notebooks."""
        tables = resolve_name(f"{_TABLES}:tables_of")(self)
        shown = [html_table(table.caption, table.rows, table.columns, table.remarks) for table in tables]
        return "".join([*shown, *map(html_line, self.notes)])

    @property
    def encoders(self) -> set[str]:
        """Fingerprints of the measured encoders, if the result names any."""
        named = {str(row["encoder"]) for row in self.results if row.get("encoder")}
        encoder = self.provenance.get("encoder")
        if not named and isinstance(encoder, Mapping) and isinstance(encoder.get("identity"), Mapping):
            named = {fingerprint(dict(encoder["identity"]))}
        return named


def check_keys(result: Mapping[str, Any], function: str, *keys: str) -> None:
    """Raise EvaluationError unless the result has the keys that the results of a public function have."""
    if missing := [key for key in keys if key not in result]:
        raise EvaluationError(f"the result has no {', '.join(missing)}; expected a result of `{function}`.")


@checked
def write_result(path: Path, result: Mapping[str, Any], force: bool = False) -> None:
    """Write a result atomically as strict JSON; overwrite a file only with `force`."""
    write_json(path, result, force)


@checked
def read_result(path: Path) -> Result:
    """Read a result file; one without "kind" is of the kind "other".

    Raises EvaluationError that names the unexpected value and its place.
    """
    try:
        stored = decode_json(read_regular(path, _MOST_BYTES), dict[str, Any])
    except OSError as error:
        raise EvaluationError(f"{path}: cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        made = spelled("write_result(FILE.json, result)", "isotrope evaluate or isotrope tune with -o FILE.json")
        raise EvaluationError(
            f"{path}: {error}; {_WANTED}. Fix: write one with {made}; a .toml file is a recipe."
        ) from None
    checked = _checked(path, stored, _File)
    if not checked.results:
        raise EvaluationError(f'{path}: its "results" are empty; {_WANTED}.')
    form = KINDS[checked.kind]
    if form.schema:
        _checked(path, stored, resolve_name(form.schema))
    if missing := [name for name in form.added if stored.get(name) is None]:
        raise EvaluationError(
            f'{path}: its kind is "{checked.kind}", but it has no "{missing[0]}". Fix: measure it again.'
        )
    rows, added = stored["results"], {name: value for name, value in stored.items() if name not in _SHARED}
    notes = [note for listed in (checked.notes, *(row.notes for row in checked.results)) for note in listed or ()]
    return Result(checked.kind, stored["provenance"], rows, stored.get("comparisons"), notes, added, path.name)


def _checked(path: Path, stored: dict[str, Any], schema: type[T]) -> T:
    try:
        return convert_json(stored, schema)
    except ValueError as error:
        raise EvaluationError(f"{path}: {error}; {_WANTED}.") from None


_SHARED = ("kind", "unit", "provenance", "results", "comparisons", "notes")


class Clock:
    """The start of a measurement; `provenance` records it with the duration."""

    def __init__(self) -> None:
        self.started = datetime.now(UTC)

    def provenance(
        self, encoder: EncoderSpec | None, data: Mapping[str, str], command: str = "", **more: Any
    ) -> dict[str, Any]:
        """Return JSON types. `data` maps names of data files to their sha256; `command` defaults to this process's.

        Only "created" and "seconds" differ between two runs of the same command.
        """
        measured = {} if encoder is None else {"model": encoder.model, "identity": encoder.identity.to_dict()}
        return {
            "command": _on_one_line(command or shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])),
            "created": self.started.isoformat(timespec="seconds"),
            "seconds": round((datetime.now(UTC) - self.started).total_seconds(), 1),
            "machine": platform.machine(),
            "versions": library_versions(_MEASURING),
            "data": {_on_one_line(name): digest for name, digest in sorted(data.items())},
            **({"encoder": measured} if measured else {}),
            **more,
        }


def how_built(config: BuildConfig, index: Index | None = None) -> dict[str, Any]:
    """Return JSON types for provenance: the measured "recipe", and the "index" that it comes from, if any."""
    recipe: dict[str, Any] = {"recipe": config.to_dict()}
    if index is None:
        return recipe
    manifest = index.manifest
    return recipe | {"index": {"generation": manifest.generation, "manifest": canonical_sha256(manifest.to_dict())}}


def _on_one_line(text: str) -> str:
    """Escape line breaks and undecodable bytes in names of files, for JSON and the remarks of recipes."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


Number = int | float | None


class _IndexProvenance(Struct):
    manifest: str | None = None


class _Reranker(Struct):
    model: str
    backend: str
    sha256: str | None = None
    pairs: int = 0
    cut: int = 0  # truncated pairs


class _Reranked(Struct):
    of: str  # the setting whose first hits were reranked
    depth: int
    ms: int | float  # per query


class _Provenance(Struct):
    command: str | None = None
    created: str | None = None
    index: _IndexProvenance | None = None
    encoder: dict[str, Any] | None = None
    rerank: _Reranker | None = None


class Figure(Struct):
    """A value with the ends of its interval; an accuracy has its threshold."""

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
    """The keys that are read from rows of any kind. A name has one type in all kinds."""

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
    """The smallest vectors that are not significantly worse."""

    dim: int
    bytes: int
    strength: str | int | float | None = None  # if it differs from that of the chosen setting


class _Choice(Struct):
    setting: str
    reason: str
    gain: Figure
    over_present: Figure | None = None
    enough: _Enough | None = None


class _RerankDepth(Struct):
    depth: int  # 0: not reranked
    value: Number
    ms: int | float
    tied: bool
    taken: bool
    gain: Figure | None = None
    low: Number = None
    high: Number = None


class _RerankAdvice(Struct):
    measure: str
    questions: int
    advice: str
    by: _Reranker
    depths: list[_RerankDepth]


class _File(Struct):
    """The keys that are read from a result file; others are ignored."""

    provenance: _Provenance
    results: list[CheckedRow]
    kind: Kind = "other"
    unit: Literal["fraction"] = "fraction"
    comparisons: list[CheckedRow] | None = None
    notes: list[str] | None = None
    frontier: list[CheckedRow] | None = None
    choice: _Choice | None = None
    rerank: _RerankAdvice | None = None
