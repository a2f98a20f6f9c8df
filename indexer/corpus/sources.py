"""The files to read, in a fixed order, for the sources of a user: files, globs, folders, "-"."""

import glob
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Literal, NoReturn

from indexer.corpus.files.markup import FILE_KINDS
from indexer.corpus.readers.hub import download_dataset, is_on_hub
from indexer.corpus.readers.remote import find_objects
from indexer.corpus.row import ENDING
from indexer.errors import ConfigError, CorpusError, as_argument, set_to, spelled
from indexer.recipe.loading import nearest_sibling
from indexer.store.bucket import StoredObject
from indexer.system.urls import local_path, url_of

FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".tsv": "tsv", ".parquet": "parquet",
           ".pq": "parquet", ".arrow": "arrow", ".feather": "arrow", ".ipc": "arrow", ".txt": "text",
           ".text": "text"}  # fmt: skip
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_FORMAT_NAMES = sorted(set(FORMATS.values()))
_ARRAY, _ID_LIST = ".npy", ".ids"  # X.npy contains embeddings; X.ids.txt, X.ids.parquet and so on their ids
_TEXTS = (
    "README",
    "CHANGELOG",
    "CHANGES",
    "NEWS",
    "LICENSE",
    "LICENCE",
    "COPYING",
    "NOTICE",
    "AUTHORS",
    "INSTALL",
    "TODO",
)  # fmt: skip - texts with any unknown suffix, such as README.Debian
_BEIR_CORPUS = [f"corpus.jsonl{suffix}" for suffix in ("", *COMPRESSIONS)]


@dataclass(frozen=True)
class SourceFile:
    """One file to read; `path` is None for stdin, and for an object, which has a `url`.

    Messages use `display_name`, records of sources `label`.
    """

    path: Path | None
    display_name: str
    label: str
    format: str  # a value of FORMATS, "npy", or "file": the file is a document
    compression: str = ""  # a value of COMPRESSIONS, or "" for none
    url: str = ""  # in object storage
    stored: StoredObject | None = None  # the listing of an object that is a document

    @property
    def etag(self) -> str:
        """The ETag of an object that is a document, when it was found; empty for other files."""
        return self.stored.version if self.stored else ""

    @property
    def is_stdin(self) -> bool:
        return self.path is None and not self.url


def find_sources(
    sources: Iterable[str | Path], file_format: str = "", arrays: bool = False
) -> tuple[list[SourceFile], list[str]]:
    """Return the files to read, in order, and the files of unknown type in folders and globs.

    A non-empty `file_format` overrides the extensions. With `arrays`, .npy files are read too; the list of ids of one
    (see `id_list_beside`) is then not read as a file. Raises ConfigError for an unknown format, and CorpusError for a
    missing path (with the closest sibling), a glob without a match, a folder with nothing to read or one that cannot be
    listed.
    """
    if file_format and file_format not in _FORMAT_NAMES:
        raise ConfigError(f'unknown format "{file_format}"; expected one of {", ".join(_FORMAT_NAMES)}.')
    files: list[SourceFile] = []
    ignored: list[str] = []
    for source in sources:
        if not str(source):
            raise ConfigError("a source is empty; expected a file, a folder such as ., a glob, or - for stdin.")
        try:
            paths, unknown = _expand(str(source), file_format, arrays)
        except OSError as error:
            shown = os.fsdecode(error.filename or source)  # a folder below it
            raise CorpusError(f"{shown}: cannot be listed: {error.strerror or error}.") from error
        files += paths
        ignored += unknown
    if not files:
        raise ConfigError("no source was given; expected files, folders, globs, or - for stdin.")
    if sum(file.is_stdin for file in files) > 1:
        raise ConfigError("stdin (-) was given twice; it can be read only once.")
    beside = (id_list_beside(file) for file in files if file.format == "npy")
    lists = {ids.path.resolve() for ids in beside if ids and ids.path}
    if lists:
        files = [file for file in files if file.path is None or file.path.resolve() not in lists]
    times = Counter(file.label for file in files)  # files of the same name get their path as label
    return [replace(file, label=file.display_name) if times[file.label] > 1 else file for file in files], ignored


def id_list_beside(file: SourceFile) -> SourceFile | None:
    """Return the list of ids of X.npy: the only file of a known format named X.ids.*; None if there is none.

    Raises CorpusError for several lists.
    """
    shown = file.display_name
    if file.path is None:
        raise CorpusError(f"{shown}: arrays of embeddings are read from local folders only. Fix: pass a local file.")
    lists = _id_lists(file.path)
    if len(lists) > 1:
        names = " and ".join(each.label for each in lists)
        raise CorpusError(f"{shown}: several lists of ids ({names}); expected one. Fix: move the others.")
    return lists[0] if lists else None


def id_lists_of(path: Path) -> str:
    """Return the names of the possible lists of ids of an array, and their contents."""
    stem = f"{_plain(path).stem}{_ID_LIST}"
    return (
        f"{stem}.txt with one id per line, in the order of the vectors, or {stem}.jsonl, .csv or .parquet with one row "
        "per vector: an id and any other columns, such as title and text"
    )


def require_id_lists(files: Iterable[SourceFile], index: Path) -> None:
    """Raise CorpusError for an array without a list of ids, whose numbered rows would replace documents of an index."""
    for file in files:
        if file.format == "npy" and file.path and id_list_beside(file) is None:
            raise CorpusError(
                f"{file.display_name}: no list of ids in its folder. Its row numbers would replace documents of "
                f"{index} with the same ids. Fix: write {id_lists_of(file.path)}."
            )


def paths_of(file: SourceFile) -> list[Path]:
    """Return every path that is read for a file, including the list of ids of an array."""
    lists = _id_lists(file.path) if file.format == "npy" and file.path else []
    return [each.path for each in (file, *lists) if each.path]


def _id_lists(path: Path) -> list[SourceFile]:
    start = f"{_plain(path).stem}{_ID_LIST}."
    try:
        paths = sorted(other for other in path.parent.iterdir() if other.name.startswith(start) and other.is_file())
    except OSError as error:
        raise CorpusError(f"{path.parent}: cannot be listed: {error.strerror or error}.") from error
    files = [_typed(other, other.name, "") for other in paths if not other.name.endswith(ENDING)]
    return [file for file in files if file is not None]


def _expand(source: str, file_format: str, arrays: bool) -> tuple[list[SourceFile], list[str]]:
    if source == "-":
        if not file_format:
            raise ConfigError(f"reading stdin (-) needs {as_argument('format')}, one of {', '.join(_FORMAT_NAMES)}.")
        return [SourceFile(None, "stdin", "stdin", file_format)], []
    if is_on_hub(source):
        source = download_dataset(source, [f"{end}{packed}" for end in FORMATS for packed in ("", *COMPRESSIONS)])
    if url := url_of(source):
        return _objects(url, file_format)
    path = local_path(source)
    source = str(path)
    kind = kind_of_source(path)
    if kind == "folder":
        return _folder(path, file_format, arrays)
    if kind == "file":
        return [_explicit(path, file_format, arrays)], []
    return _matches(source, file_format, arrays)


def kind_of_source(path: Path) -> Literal["file", "folder", "glob"]:
    """Return what a source names. Raises CorpusError for an index, a pipe, socket or device, and a missing path."""
    if is_index(path):
        raise CorpusError(f"{path}: is an index, not a corpus. Fix: pass the files that it was built from.")
    if path.is_dir():
        return "folder"
    if path.exists():
        if path.is_file():
            return "file"
        raise CorpusError(
            f"{path}: is a pipe, socket or device; expected a regular file. Fix: pipe its content in, with - as "
            f"the source and {as_argument('format')}."
        )
    if glob.has_magic(str(path)):
        return "glob"
    raise CorpusError(f"{path}: no such file or folder{nearest_sibling(path)}")


def _objects(url: str, file_format: str) -> tuple[list[SourceFile], list[str]]:
    """Return the files of a URL in object storage, and the ignored ones. Arrays are read from local folders only."""
    folder, names, is_one = find_objects(url)
    beir = [name for name in _BEIR_CORPUS if name in names]
    files, ignored = [], []
    for name in names if is_one else beir[:1] or names:
        skipped = name.endswith(ENDING) and not is_one
        file = None if skipped else _typed(Path(name), str(PurePosixPath(name)), file_format)
        if file is None and is_one:
            raise _unknown_type(f"{folder}/{name}")
        if file is None:
            ignored.append(f"{folder}/{name}")
        else:
            files.append(replace(file, path=None, url=f"{folder}/{name}", display_name=f"{folder}/{name}"))
    if not files:
        raise CorpusError(
            f"{url}: no files to read; expected files such as {' '.join(FORMATS)}.{_as_documents(ignored)}"
        )
    return files, ignored


def _explicit(path: Path, file_format: str, arrays: bool) -> SourceFile:
    file = _typed(path, path.name, file_format, arrays)
    if file is None and _plain(path).suffix.lower() == _ARRAY:
        raise CorpusError(f"{path}: an array of embeddings. Fix: use them with {set_to('encoder.kind', 'vectors')}.")
    if file is None:
        raise _unknown_type(str(path))
    return file


def _unknown_type(shown: str) -> CorpusError:
    return CorpusError(
        f"{shown}: unknown file type; expected one of {' '.join(FORMATS)} (each also with {' '.join(COMPRESSIONS)}). "
        f"Fix: pass {as_argument('format')}, one of {', '.join(_FORMAT_NAMES)}.{_as_documents([shown], 'Or build')}"
    )


def as_documents() -> str:
    """Return the argument with which each file is a document."""
    return spelled('CorpusConfig(documents="files")', "--documents files")


def can_be_documents(paths: Iterable[str]) -> bool:
    """Return whether some of the files that are no tables have a text of their own."""
    return any(suffix_of(path) in FILE_KINDS for path in paths)


def _as_documents(ignored: Iterable[str], start: str = "Fix: build") -> str:
    return f" {start} with {as_documents()}, to make each file a document." * can_be_documents(ignored)


def suffix_of(path: str) -> str:
    """Return the lower-case suffix of a file's name, such as ".md"; "" for README, README.Debian and hidden names."""
    name = PurePosixPath(path)
    suffix = name.suffix.lower()
    is_text = name.stem in _TEXTS and suffix not in FILE_KINDS
    return suffix if len(suffix) > 1 and not is_text else ""


def _folder(folder: Path, file_format: str, arrays: bool) -> tuple[list[SourceFile], list[str]]:
    beir = [folder / name for name in _BEIR_CORPUS if (folder / name).is_file()]
    indexes: list[str] = []
    paths = beir[:1] or sorted(_files_below(folder, indexes), key=lambda path: path.relative_to(folder).parts)
    files, unknown = _sorted_out([(path, path.relative_to(folder).as_posix()) for path in paths], file_format, arrays)
    if not files:
        raise CorpusError(
            f"{folder}: no files to read in this folder; expected files such as {' '.join(FORMATS)}."
            f"{_as_documents(unknown)}"
        )
    return files, [*indexes, *unknown, *map(str, beir[1:])]


def _matches(pattern: str, file_format: str, arrays: bool) -> tuple[list[SourceFile], list[str]]:
    _, matches = matches_of(pattern)
    places = [(path, label) for path, label in matches if not any(map(is_index, path.parents))]
    files, ignored = _sorted_out(places, file_format, arrays)
    if not files:
        result = f"matches only files of unknown type ({ignored[0]}, ...)" if ignored else "matches no file"
        fix = f"Fix: check the path, or pass {as_argument('format')}.{_as_documents(ignored, 'Or build')}"
        raise CorpusError(f"{pattern}: this pattern {result}. {fix}")
    return files, ignored


def matches_of(pattern: str) -> tuple[Path, list[tuple[Path, str]]]:
    """Return the folder before the first wildcard, and the matches without folders, with their paths below it."""
    matches = map(Path, sorted(glob.glob(pattern, recursive=True)))  # noqa: PTH207 - absolute patterns too
    head = pattern[: min(pattern.find(sign) for sign in "*?[" if sign in pattern)]
    fixed = Path(f"{head}x").parent
    return fixed, [(path, os.path.relpath(path, fixed)) for path in matches if not path.is_dir()]


def _sorted_out(
    places: Iterable[tuple[Path, str]], file_format: str, arrays: bool
) -> tuple[list[SourceFile], list[str]]:
    """Return the files to read among (path, label) pairs, and the other paths."""
    files: list[SourceFile] = []
    ignored: list[str] = []
    for path, label in places:
        file = None if path.name.endswith(ENDING) else _typed(path, label, file_format, arrays)
        if file is None:
            ignored.append(str(path))
        else:
            files.append(file)
    return files, ignored


def format_of(path: Path) -> tuple[str, str]:
    """Return the format and the compression by a file's name; "" for unknown ones."""
    compression = COMPRESSIONS.get(path.suffix.lower(), "")
    return FORMATS.get(_plain(path).suffix.lower(), ""), compression


def _plain(path: Path) -> Path:
    """Return the path without the suffix of its compression."""
    return path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path


def _typed(path: Path, label: str, file_format: str, arrays: bool = False) -> SourceFile | None:
    """Return the file with its format; None if neither `file_format` nor the extension gives one."""
    kind, compression = format_of(path)
    if arrays and _plain(path).suffix.lower() == _ARRAY:
        kind = "npy"
    if not (kind := file_format or kind):
        return None
    return SourceFile(path, str(path), readable(label), kind, compression)


def readable(name: str) -> str:
    """Return the name of a file as text that can be stored: names need not be UTF-8."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def _files_below(folder: Path, ignored: list[str]) -> Iterator[Path]:
    """Yield every file in the folder except hidden ones and the markers of job runners (_SUCCESS).

    Folders of indexes are skipped, too, and added to `ignored`: people build indexes inside their corpus.
    """
    for root, folders, names in os.walk(folder, onerror=_raise):
        indexes = [name for name in folders if is_index(Path(root, name))]
        ignored += [str(Path(root, name)) for name in sorted(indexes)]
        folders[:] = [name for name in folders if not name.startswith((".", "_")) and name not in indexes]
        for name in names:
            if not name.startswith((".", "_")):
                yield Path(root, name)


def is_index(folder: Path) -> bool:
    """Return whether a folder is an index, or one that an interrupted build left."""
    return (folder / "manifests").is_dir() or ((folder / "parts").is_dir() and (folder / "lock").is_file())


def _raise(error: OSError) -> NoReturn:
    raise error
