"""The markup of a file by its suffix: how its text is extracted, and how its structure is read."""

from dataclasses import dataclass
from typing import Any, Literal

Markup = Literal["markdown", "rst", "plain", "code"]


@dataclass(frozen=True)
class FileKind:
    """Properties of the files with a suffix."""

    markup: Markup  # of the extracted text
    has_lines: bool = True  # whether the text is the file, line by line
    language: str = ""  # of source code
    reader: str = ""  # "html", "pdf", "docx", "pptx" or "epub"; empty: the file is its text


def _code(language: str) -> FileKind:
    return FileKind("code", language=language)


def _extracted(reader: str) -> FileKind:
    return FileKind("markdown", has_lines=False, reader=reader)


FILE_KINDS: dict[str, FileKind] = {
    **dict.fromkeys((".md", ".markdown", ".mdx"), FileKind("markdown")),
    ".rst": FileKind("rst"),
    **dict.fromkeys((".txt", ".text", ".org", ".adoc", ".tex", ".log"), FileKind("plain")),
    **dict.fromkeys((".html", ".htm", ".xhtml"), _extracted("html")),
    **{f".{name}": _extracted(name) for name in ("pdf", "docx", "pptx", "epub")},
    **dict.fromkeys((".py", ".pyi"), _code("python")),
    **dict.fromkeys((".js", ".mjs", ".cjs", ".jsx"), _code("javascript")),
    **dict.fromkeys((".ts", ".tsx"), _code("typescript")),
    **dict.fromkeys((".c", ".h"), _code("c")),
    **dict.fromkeys((".cc", ".cpp", ".cxx", ".hh", ".hpp"), _code("cpp")),
    **dict.fromkeys((".sh", ".bash"), _code("bash")),
    ".go": _code("go"),
    ".rs": _code("rust"),
    ".java": _code("java"),
    ".kt": _code("kotlin"),
    ".cs": _code("csharp"),
    ".rb": _code("ruby"),
    ".php": _code("php"),
    ".swift": _code("swift"),
    ".scala": _code("scala"),
    ".lua": _code("lua"),
    ".r": _code("r"),
    ".sql": _code("sql"),
}
"""The kinds of files that become documents, by lower-case suffix."""

_OF_TABLES = FileKind("markdown")  # texts of tables are read as Markdown, whose structure plain text also has


def kind_of(metadata: dict[str, Any]) -> FileKind:
    """Return the kind of a document's text, by the column `suffix` of files."""
    return FILE_KINDS.get(str(metadata.get("suffix", "")).lower(), _OF_TABLES)
