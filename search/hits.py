"""Hits and answers of a search. This module loads no numerical library, because `search.client` uses it."""

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, SupportsIndex, TypeVar, overload

from indexer.errors import ConfigError
from indexer.lazy_imports import require_extra
from search.formatting import counted, excerpt, html_table

if TYPE_CHECKING:
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from indexer.store.manifest import SegmentEntry

Found = TypeVar("Found")
_NAMED, _TITLE = 3, 40  # hits in `repr`, and characters of each
_LISTED, _TEXT = 20, 160  # hits in a notebook, and characters of each text


@dataclass(frozen=True, slots=True)
class Window:
    """The window of a document that matched.

    Characters are counted in the joined text, which consists of the stripped columns (`joined_text`).
    """

    start: int
    """Its first character, from 0."""
    end: int
    """The character after its last one."""
    text: str
    """Its text."""
    columns: dict[str, tuple[int, int]]
    """Start and end in each original column of the window."""


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a hit in its file."""

    lines: tuple[int, int] | None = None
    """First and last line of the matching window, from 1; None if the file's text is extracted, as from HTML or PDF."""
    page: int | None = None
    """Page of a PDF or slide of a PPTX, from 1."""
    section: tuple[str, ...] = ()
    """Headings above the window, outermost first."""


@dataclass(frozen=True, slots=True)
class FoldedHit:
    """A near-duplicate folded under a better hit."""

    id: str
    """Id of the document."""
    score: float
    """Its score for the query."""
    similarity: float
    """Inner product of its vector and the better hit's."""
    title: str | None
    """Its title."""


@dataclass(frozen=True, slots=True)
class HybridScores:
    """The parts of a hybrid score."""

    vector: float
    """Inner product of the unit vectors."""
    bm25: float
    """BM25; 0 for a document without a word of the query."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A document of an answer."""

    id: str
    """Id of the document."""
    score: float
    """Inner product of two unit vectors: higher is closer, at most 1. With `hybrid`, `parts` fused by the recipe's
    `[hybrid]`: a weighted sum of both, scaled for the query, or a sum of reciprocal ranks. With `similarity` "js",
    1 - JS / ln 2."""
    title: str | None
    """Title of the document."""
    text: str
    """Whole text of the document."""
    metadata: dict[str, Any]
    """Values of the metadata columns."""
    window: Window | None = None
    """The window that matched, if documents are chunked."""
    folded: tuple[FoldedHit, ...] = ()
    """With `fold`: near-duplicates under this hit, best first, at most 100."""
    folded_count: int = 0
    """With `fold`: number of all near-duplicates under this hit."""
    parts: HybridScores | None = None
    """With `hybrid`: the two scores that `score` fuses."""
    rerank_score: float | None = None
    """Score of the cross-encoder, by which reranked hits are ordered."""
    place: Place | None = None
    """Place in the file, for documents that are files and for windows by structure."""
    link: str | None = None
    """Address of the document, in answers of a server with a link template (`isotrope serve --link`)."""

    @property
    def matched(self) -> str:
        """The text of the window that matched, or the whole text of a document without windows."""
        return self.window.text if self.window else self.text

    def to_dict(self, rank: int | None = None) -> dict[str, Any]:
        """Return JSON types, with `rank` if given, without fields that do not apply."""
        plain: dict[str, Any] = {} if rank is None else {"rank": rank}
        plain |= {name: getattr(self, name) for name in ("id", "score", "title", "text", "metadata")}
        if self.rerank_score is not None:
            plain["rerank_score"] = self.rerank_score
        if self.parts:
            plain["parts"] = asdict(self.parts)
        if self.window:
            plain["window"] = asdict(self.window)
        if self.place:
            plain["place"] = asdict(self.place)
        if self.folded:
            plain |= {"folded": [asdict(hit) for hit in self.folded], "folded_count": self.folded_count}
        if self.link:
            plain["link"] = self.link
        return plain


@dataclass(frozen=True)
class Truncated:
    """A text that was truncated at the encoder's limit."""

    tokens: int
    """Tokens before truncation."""
    limit: int
    """Tokens that were encoded."""


class Answer(Sequence[Found]):
    """The hits of one query, best first: a sequence, equal to every list of the same hits.

    `missing` are the segments that did not answer and could have changed the answer: none unless
    `SearchOptions.partial` is set.
    """

    __hash__ = None  # type: ignore[assignment]

    def __init__(
        self,
        hits: Iterable[Found] = (),
        missing: "tuple[SegmentEntry, ...]" = (),
        schema: Mapping[str, Any] | None = None,
    ) -> None:
        """`hits` is read when the answer is first read. `schema` has the metadata columns of the index, as in its
        manifest, for tables without a hit."""
        self._hits = hits if isinstance(hits, Collection) else list(hits)
        self.missing, self._schema = missing, schema or {}

    @overload
    def __getitem__(self, place: SupportsIndex) -> Found: ...

    @overload
    def __getitem__(self, place: slice) -> "Answer[Found]": ...

    def __getitem__(self, place: SupportsIndex | slice) -> "Found | Answer[Found]":
        """Return a hit, or for a slice an answer with the same missing segments."""
        if isinstance(place, slice):
            return Answer(self._read()[place], self.missing, self._schema)
        return self._read()[place]

    def __len__(self) -> int:
        return len(self._hits)

    def __iter__(self) -> Iterator[Found]:
        return iter(self._read())

    def __eq__(self, other: object) -> bool:
        return self._read() == list(other) if isinstance(other, list | Answer) else NotImplemented

    def __reduce__(self) -> tuple[Any, ...]:
        return Answer, (self._read(), self.missing, self._schema)

    def _read(self) -> list[Found]:
        """Return the hits, made from the columns of a search at the first call."""
        if not isinstance(self._hits, list):
            self._hits = list(self._hits)
        return self._hits

    @property
    def partial(self) -> bool:
        """Whether segments are missing."""
        return bool(self.missing)

    def to_arrow(self: "Answer[Hit]") -> "pa.Table":
        """Return a table with a row for each hit: rank (from 1), id, score, title and text, then the metadata columns
        of these hits, with their types; without hits, those of the index.

        Columns of `Hit` that only some searches fill follow the text, if a hit has them: rerank_score, vector_score and
        bm25_score (`parts`), window_start and window_end, place_line (the first), place_page and place_section
        (`place`), folded_count. A metadata column with one of these names is called `metadata.NAME`. Raises
        ConfigError for ranked documents, whose texts were not read.
        """
        import pyarrow as pa

        from indexer.corpus.schema import infer_schema, schema_from_json

        hits = self._require_hits()
        metadata = infer_schema(hit.metadata for hit in hits) if hits else schema_from_json(self._schema)
        columns = {
            name: pa.array([value(rank, hit) for rank, hit in enumerate(hits, start=1)], kind)
            for name, (kind, value) in _COLUMNS.items()
        }
        kept = {name: values for name, values in columns.items() if name in _ALWAYS or values.null_count < len(hits)}
        for field in metadata:
            values = pa.array([hit.metadata.get(field.name) for hit in hits], field.type)
            kept[_free_name(field.name, metadata.names)] = values
        return pa.table(kept)

    def to_pandas(self: "Answer[Hit]") -> "pd.DataFrame":
        """Return the table of `to_arrow` as a pandas DataFrame. Whole numbers and booleans of a column with gaps keep
        their type, as pandas' `Int64` and `boolean`. Raises MachineError if pandas is not installed."""
        pd = require_extra("pandas", "pandas")
        table = self.to_arrow()
        frame = table.to_pandas()
        for name, column in zip(table.column_names, table.columns, strict=True):
            if column.null_count and (kind := {"int64": "Int64", "bool": "boolean"}.get(str(column.type))):
                frame[name] = pd.array(column.to_pylist(), dtype=kind)
        return frame

    def to_polars(self: "Answer[Hit]") -> "pl.DataFrame":
        """Return the table of `to_arrow` as a Polars DataFrame. Raises MachineError if Polars is not installed."""
        frame: pl.DataFrame = require_extra("polars", "polars").from_arrow(self.to_arrow())
        return frame

    def __repr__(self) -> str:
        if not all(isinstance(hit, Hit) for hit in self):
            return f"Answer({self._read()!r})"
        named = [f'{hit.score:.3f} {excerpt(hit.id, _TITLE)} "{_title(hit)}"' for hit in self._require_hits()[:_NAMED]]
        more = ["..."] if len(self) > _NAMED else []
        lost = [f"{counted(len(self.missing), 'segment')} missing"] if self.missing else []
        return f"Answer({counted(len(self), 'hit')}{': ' if named else ''}{', '.join([*named, *more, *lost])})"

    def _repr_html_(self) -> str | None:
        """Return the first hits as a table for notebooks, which show `repr` for None."""
        if not all(isinstance(hit, Hit) for hit in self):
            return None
        hits = self._require_hits()[:_LISTED]
        columns = {
            "": range(1, len(hits) + 1),
            "rerank score": [None if hit.rerank_score is None else f"{hit.rerank_score:.3f}" for hit in hits],
            "score": [f"{hit.score:.3f}" for hit in hits],
            "id": [hit.id for hit in hits],
            "title": [excerpt(hit.title, _TEXT) if hit.title else None for hit in hits],
            "section": [excerpt(section, _TEXT) if (section := section_of(hit.place)) else None for hit in hits],
            "text": [excerpt(hit.matched, _TEXT) for hit in hits],
        }
        header = [name for name, cells in columns.items() if any(cell is not None for cell in cells)]
        rows = [
            ["" if cell is None else cell for cell in row]
            for row in zip(*(columns[name] for name in header), strict=True)
        ]
        shown = f", the first {_LISTED} shown" if len(self) > _LISTED else ""
        lost = f"; {counted(len(self.missing), 'segment')} missing" if self.missing else ""
        return html_table(f"{counted(len(self), 'hit')}{shown}{lost}", rows, header)

    def _require_hits(self) -> "list[Hit]":
        hits: list[Hit] = [hit for hit in self if isinstance(hit, Hit)]
        if len(hits) < len(self):
            raise ConfigError(
                "the answer has ranked documents without texts; expected hits. Fix: call SearchEngine.hits."
            )
        return hits


_COLUMNS: dict[str, tuple[str, Callable[[int, Hit], Any]]] = {
    "rank": ("int64", lambda rank, _: rank),
    "id": ("string", lambda _, hit: hit.id),
    "score": ("float64", lambda _, hit: hit.score),
    "title": ("string", lambda _, hit: hit.title),
    "text": ("string", lambda _, hit: hit.text),
    "rerank_score": ("float64", lambda _, hit: hit.rerank_score),
    "vector_score": ("float64", lambda _, hit: hit.parts.vector if hit.parts else None),
    "bm25_score": ("float64", lambda _, hit: hit.parts.bm25 if hit.parts else None),
    "window_start": ("int64", lambda _, hit: hit.window.start if hit.window else None),
    "window_end": ("int64", lambda _, hit: hit.window.end if hit.window else None),
    "place_line": ("int64", lambda _, hit: hit.place.lines[0] if hit.place and hit.place.lines else None),
    "place_page": ("int64", lambda _, hit: hit.place.page if hit.place else None),
    "place_section": ("string", lambda _, hit: section_of(hit.place)),
    "folded_count": ("int64", lambda _, hit: hit.folded_count or None),
}
_ALWAYS = ("rank", "id", "score", "title", "text")


def _free_name(name: str, others: Iterable[str]) -> str:
    """Return the name of a metadata column in a table, which differs from all names in `_COLUMNS`."""
    if name not in _COLUMNS:
        return name
    taken, name = {*others}, f"metadata.{name}"
    while name in taken:
        name = f"metadata.{name}"
    return name


def section_of(place: Place | None) -> str | None:
    """Return the headings above a place as one text."""
    return " > ".join(place.section) if place and place.section else None


def _title(hit: Hit) -> str:
    """Return the title, or the beginning of the text that matched."""
    return excerpt(hit.title if hit.title and hit.title.strip() else hit.matched, _TITLE)


def bytes_of(value: object) -> int:
    """Return the bytes of memory of a value, including the values in its lists and objects."""
    if isinstance(value, dict):
        return sum(bytes_of(name) + bytes_of(inner) for name, inner in value.items())
    if isinstance(value, list | tuple):
        return sum(map(bytes_of, value))
    return sys.getsizeof(value)
