"""Settings of the corpus: which columns or files become documents, and how long documents are cut into windows."""

from dataclasses import dataclass, field, replace
from typing import Literal, cast

from indexer.errors import ConfigError
from indexer.typed_arguments import checked

DocumentSource = Literal["rows", "files"]
ChunkBy = Literal["auto", "tokens", "structure"]
STRUCTURE_TOKENS = 160  # the default of chunk.tokens with chunk.by = "structure"
FEWEST_TOKENS = 8  # in a window


class ResolvedBy(str):
    """A value of `chunk.by` that "auto" became; it changes with the documents of the recipe."""

    __slots__ = ()


@checked
@dataclass(frozen=True)
class CorpusConfig:
    """Documents and columns of a corpus."""

    documents: DocumentSource = "rows"
    """Source of a document: a row of a table or line of plain text ("rows"), or a whole file, whose text is extracted
    and whose path is the id ("files")."""
    text: tuple[str, ...] = ("title", "text")
    """Columns that are joined by a space and encoded. A row is blank only if all of them are."""
    id_column: str = ""
    """Column of the ids. Empty: `_id`, `id` or `docid`; in a corpus without these, an id is a hash of its row."""
    title_column: str = ""
    """Column of the titles. Empty: `title`."""
    text_column: str = ""
    """Column of the texts. Empty: `text`, `contents` or `document_text`."""
    vector_column: str = ""
    """Column of the embeddings, with `encoder.kind = "vectors"`. Empty: `vector`."""
    columns: dict[str, str] = field(default_factory=dict)
    """Types of metadata columns by name: string, int, float, bool, timestamp, date or json."""
    drop: tuple[str, ...] = ()
    """Metadata columns to leave out."""

    @property
    def usual_on_error(self) -> Literal["fail", "skip"]:
        """How a bad row is treated by default: a folder usually has some files without a readable text."""
        return "skip" if self.documents == "files" else "fail"

    def __post_init__(self) -> None:
        if self.documents == "files":
            self._require_no_roles()
        if not self.text:
            raise ConfigError('corpus.text is empty; expected the columns to encode, such as ["title", "text"].')
        named = (self.id_column, self.title_column, self.text_column, *self.drop)
        if self.vector_column and self.vector_column in named:
            raise ConfigError(
                f'corpus.vector_column is "{self.vector_column}", which is also the id, title or text column, or '
                "dropped; expected another column."
            )

    def _require_no_roles(self) -> None:
        for role in ("id", "title", "text", "vector"):
            if column := getattr(self, f"{role}_column"):
                raise ConfigError(
                    f'corpus.{role}_column is "{column}", but corpus.documents is "files", and files have no such '
                    'column. Fix: leave it out, or set corpus.documents = "rows".'
                )


@checked
@dataclass(frozen=True)
class ChunkConfig:
    """Windows of long documents, each with a vector; see `indexer.encoders.windows`."""

    tokens: int = 0
    """Most tokens of a window, 8 or more, without special tokens and prompt. 0: one vector per document, or windows of
    160 with `chunk.by = "structure"`."""
    overlap: int = 32
    """Least number of tokens that a window shares with the previous one, with `chunk.by = "tokens"`."""
    by: ChunkBy = "auto"
    """Where a window ends: after its tokens ("tokens"), or at a heading, paragraph, list item or function
    ("structure"). "auto": "structure" for files, "tokens" for rows."""
    headings: bool = True
    """Put the title and the headings above a window in front of it, with `chunk.by = "structure"`."""

    def __post_init__(self) -> None:
        if self.tokens != 0 and self.tokens < FEWEST_TOKENS:
            raise ConfigError(f"chunk.tokens is {self.tokens}; expected 0 (no windows), or at least {FEWEST_TOKENS}.")
        if self.overlap < 0:
            raise ConfigError(f"chunk.overlap is {self.overlap}; expected 0 or more.")
        if 0 < self.tokens <= self.overlap:
            raise ConfigError(f"chunk.overlap is {self.overlap}; expected less than chunk.tokens, {self.tokens}.")

    def resolved(self, documents: DocumentSource) -> "ChunkConfig":
        """Return the settings without "auto", for documents of this source."""
        by = self.by
        if by == "auto" or isinstance(by, ResolvedBy):
            by = cast(ChunkBy, ResolvedBy("structure" if documents == "files" else "tokens"))
        tokens = self.tokens or STRUCTURE_TOKENS if by == "structure" else self.tokens
        return replace(self, by=by, tokens=tokens)
