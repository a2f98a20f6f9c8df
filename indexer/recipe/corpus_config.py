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
    """The kind of document and the columns of a corpus. Empty names mean the usual columns (see the README).

    With `documents = "files"` each file of a folder is a document: its text is extracted, and its path is its id.
    """

    documents: DocumentSource = "rows"  # of tables; a line of plain text is a row
    text: tuple[str, ...] = ("title", "text")  # columns joined for encoding
    id_column: str = ""
    title_column: str = ""
    text_column: str = ""
    vector_column: str = ""  # embeddings, with encoder.kind = "vectors"
    columns: dict[str, str] = field(default_factory=dict)  # metadata column -> its type
    drop: tuple[str, ...] = ()  # ignored columns

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
    """Windows of long documents, each with a vector; see `indexer.encoders.windows`.

    `by = "structure"` ends windows at headings, paragraphs, list items and functions. "auto" is "structure" for files
    and "tokens" for rows of tables.
    """

    tokens: int = 0  # at most in a window, without special tokens and prefix; 0: one vector a document
    overlap: int = 32  # tokens that a window shares with the previous one, at least; by "tokens"
    by: ChunkBy = "auto"
    headings: bool = True  # put the title and the headings above a window in front of it; by "structure"

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
