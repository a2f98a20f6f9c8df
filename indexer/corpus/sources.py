"""From what the user names (files, globs, folders, "-") to the list of files to read, in a fixed order."""

import difflib
import glob
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import NoReturn

from indexer.corpus.readers.remote import find_objects
from indexer.corpus.row import ENDING
from indexer.errors import ConfigError, CorpusError
from indexer.system.urls import local_path, url_of

FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".tsv": "tsv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".txt": "text",
    ".text": "text",
}
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}
_FORMAT_NAMES = sorted(set(FORMATS.values()))
_ARRAY, _ID_LIST = ".npy", ".ids"  # X.npy holds embeddings, X.ids.txt or X.ids.parquet and so on whose they are
_BEIR_CORPUS = [f"corpus.jsonl{suffix}" for suffix in ("", *COMPRESSIONS)]


@dataclass(frozen=True)
class SourceFile:
    """One file to read; `path` is None for stdin, and for an object, which `url` names.

    `display_name` stands in messages, `label` in records of what was read.
    """

    path: Path | None
    display_name: str
    label: str
    format: str  # a value of FORMATS, or "npy"
    compression: str = ""  # a value of COMPRESSIONS, or "" for none
    url: str = ""  # in object storage

    @property
    def is_stdin(self) -> bool:
        return self.path is None and not self.url


def find_sources(
    sources: Iterable[str | Path], file_format: str = "", arrays: bool = False
) -> tuple[list[SourceFile], list[str]]:
    """The files to read, in order, and those found in folders or by globs that are of no known type.

    A non-empty `file_format` replaces what the extensions say. With `arrays`, .npy files are read too; the list of ids
    beside one (see `id_list_beside`) is then no file of its own. Raises ConfigError for an unknown format, and
    CorpusError for a missing path (naming the nearest sibling), a glob without a match, a folder with nothing to
    read or one that cannot be listed.
    """
    if file_format and file_format not in _FORMAT_NAMES:
        raise ConfigError(f'unknown format "{file_format}"; expected one of {", ".join(_FORMAT_NAMES)}.')
    files: list[SourceFile] = []
    ignored: list[str] = []
    for source in sources:
        if not str(source):
            raise ConfigError(
                "a source is empty; expected a file, a folder, a glob, or - for stdin. (. is the folder.)"
            )
        try:
            found, unknown = _expand(str(source), file_format, arrays)
        except OSError as error:
            shown = os.fsdecode(error.filename or source)  # the folder below it that could not be listed
            raise CorpusError(f"{shown}: cannot be looked at: {error.strerror or error}.") from error
        files += found
        ignored += unknown
    if not files:
        raise ConfigError("no source was given; expected files, folders, globs, or - for stdin.")
    if sum(file.is_stdin for file in files) > 1:
        raise ConfigError("stdin (-) was given twice; it can be read only once.")
    return _told_apart(_without_id_lists(files)), ignored


def id_list_beside(file: SourceFile) -> SourceFile:
    """The list of ids beside X.npy: the one file of a known format called X.ids.*. Raises CorpusError."""
    if file.path is None:
        raise CorpusError(
            f"{file.display_name}: an array of embeddings needs a list of ids beside it. Way out: name a file."
        )
    found = _id_lists(file.path)
    if len(found) == 1:
        return found[0]
    stem = f"{_plain(file.path).stem}{_ID_LIST}"
    if found:
        names = " and ".join(each.label for each in found)
        raise CorpusError(
            f"{file.display_name}: there are {names} beside it; expected one list of ids. Way out: move one."
        )
    raise CorpusError(
        f"{file.display_name}: there is no list of ids beside it. Way out: write {stem}.txt, an id a line in the order "
        f"of the vectors, or {stem}.jsonl, .csv or .parquet with a row for each: an id and what else is known."
    )


def paths_of(file: SourceFile) -> list[Path]:
    """Every file that is read for it: of an array of embeddings also the list of its ids."""
    beside = _id_lists(file.path) if file.format == "npy" and file.path else []
    return [each.path for each in (file, *beside) if each.path]


def _id_lists(path: Path) -> list[SourceFile]:
    start = f"{_plain(path).stem}{_ID_LIST}."
    try:
        beside = sorted(other for other in path.parent.iterdir() if other.name.startswith(start) and other.is_file())
    except OSError as error:
        raise CorpusError(f"{path.parent}: cannot be looked at: {error.strerror or error}.") from error
    files = [_typed(other, other.name, "") for other in beside if not other.name.endswith(ENDING)]
    return [file for file in files if file is not None]


def _without_id_lists(files: list[SourceFile]) -> list[SourceFile]:
    lists = {ids.resolve() for file in files if file.format == "npy" if (ids := id_list_beside(file).path)}
    return [file for file in files if not lists or file.path is None or file.path.resolve() not in lists]


def _told_apart(files: list[SourceFile]) -> list[SourceFile]:
    """Files of the same name in different folders get their path as label."""
    times = Counter(file.label for file in files)
    return [replace(file, label=file.display_name) if times[file.label] > 1 else file for file in files]


def _expand(source: str, file_format: str, arrays: bool) -> tuple[list[SourceFile], list[str]]:
    if source == "-":
        return [_stdin(file_format)], []
    if url := url_of(source):
        return _objects(url, file_format)
    path = local_path(source)
    source = str(path)
    if _is_index(path):
        raise CorpusError(f"{path}: is an index, not a corpus. Way out: name the files that it was built of.")
    if path.is_dir():
        return _folder(path, file_format, arrays)
    if path.exists():
        _require_regular(path)
        return [_explicit(path, file_format, arrays)], []
    if glob.has_magic(source):
        return _matches(source, file_format, arrays)
    raise CorpusError(f"{source}: no such file or folder{_nearest_sibling(path)}")


def _require_regular(path: Path) -> None:
    if not path.is_file():
        raise CorpusError(
            f"{path}: is a pipe, socket or device; expected a regular file. Way out: pipe its content in, as the "
            "source - with --format."
        )


def _objects(url: str, file_format: str) -> tuple[list[SourceFile], list[str]]:
    """What a URL in object storage means. Arrays of embeddings are read on this machine only."""
    folder, names, is_one = find_objects(url)
    beir = [name for name in _BEIR_CORPUS if name in names]
    files, ignored = [], []
    for name in names if is_one else beir[:1] or names:
        place = PurePosixPath(name)
        file = None if name.endswith(ENDING) and not is_one else _typed(Path(name), str(place), file_format)
        if file is None and is_one:
            raise _unknown_type(f"{folder}/{name}")
        if file is None:
            ignored.append(f"{folder}/{name}")
        else:
            files.append(replace(file, path=None, url=f"{folder}/{name}", display_name=f"{folder}/{name}"))
    if not files:
        raise CorpusError(f"{url}: nothing to read there; expected files such as {' '.join(FORMATS)}.")
    return files, ignored


def _stdin(file_format: str) -> SourceFile:
    if not file_format:
        raise ConfigError(f"reading stdin (-) needs --format, one of {', '.join(_FORMAT_NAMES)}.")
    return SourceFile(None, "stdin", "stdin", file_format)


def _explicit(path: Path, file_format: str, arrays: bool) -> SourceFile:
    file = _typed(path, path.name, file_format, arrays)
    if file is None and _plain(path).suffix.lower() == _ARRAY:
        raise CorpusError(f"{path}: an array of embeddings. Way out: pass --set encoder.kind=vectors to take them.")
    if file is None:
        raise _unknown_type(str(path))
    return file


def _unknown_type(shown: str) -> CorpusError:
    known = f"{' '.join(FORMATS)} (each also with {' '.join(COMPRESSIONS)})"
    return CorpusError(
        f"{shown}: unknown type of file; expected one of {known}. "
        f"Way out: pass --format, one of {', '.join(_FORMAT_NAMES)}."
    )


def _folder(folder: Path, file_format: str, arrays: bool) -> tuple[list[SourceFile], list[str]]:
    beir = [folder / name for name in _BEIR_CORPUS if (folder / name).is_file()]
    indexes: list[str] = []
    paths = beir[:1] or sorted(_files_below(folder, indexes), key=lambda path: path.relative_to(folder).parts)
    files, unknown = _sorted_out([(path, path.relative_to(folder).as_posix()) for path in paths], file_format, arrays)
    if not files:
        raise CorpusError(f"{folder}: nothing to read in this folder; expected files such as {' '.join(FORMATS)}.")
    return files, [*indexes, *unknown, *map(str, beir[1:])]


def _matches(pattern: str, file_format: str, arrays: bool) -> tuple[list[SourceFile], list[str]]:
    matches = map(Path, sorted(glob.glob(pattern, recursive=True)))  # noqa: PTH207 - absolute patterns too
    paths = [path for path in matches if not path.is_dir() and not any(map(_is_index, path.parents))]
    places = [(path, os.path.relpath(path, _fixed_part(pattern))) for path in paths]
    files, ignored = _sorted_out(places, file_format, arrays)
    if not files:
        found = f"matches only files of unknown type ({ignored[0]}, ...)" if ignored else "matches no file"
        raise CorpusError(f"{pattern}: this pattern {found}. Way out: check the path, or pass --format.")
    return files, ignored


def _sorted_out(
    places: Iterable[tuple[Path, str]], file_format: str, arrays: bool
) -> tuple[list[SourceFile], list[str]]:
    """Return the files to read among paths with their labels, and the other paths."""
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
    """The format and the compression that a file's name tells; "" for one that it does not tell."""
    compression = COMPRESSIONS.get(path.suffix.lower(), "")
    return FORMATS.get(_plain(path).suffix.lower(), ""), compression


def _plain(path: Path) -> Path:
    """The path without the ending that says how the file is compressed."""
    return path.with_suffix("") if path.suffix.lower() in COMPRESSIONS else path


def _typed(path: Path, label: str, file_format: str, arrays: bool = False) -> SourceFile | None:
    """The file with its format; None where neither `file_format` nor the extension tells."""
    told, compression = format_of(path)
    if arrays and _plain(path).suffix.lower() == _ARRAY:
        told = "npy"
    kind = file_format or told
    if not kind:
        return None
    # names of files need not be UTF-8, but labels are stored
    label = os.fsencode(label).decode("utf-8", "backslashreplace")
    return SourceFile(path, str(path), label, kind, compression)


def _files_below(folder: Path, ignored: list[str]) -> Iterator[Path]:
    """Every file in the folder; hidden ones and the markers of job runners (_SUCCESS) are left out.

    So are the folders of indexes, which are added to `ignored`: people build them beside their corpus.
    """
    for root, folders, names in os.walk(folder, onerror=_raise):
        indexes = [name for name in folders if _is_index(Path(root, name))]
        ignored += [str(Path(root, name)) for name in sorted(indexes)]
        folders[:] = [name for name in folders if not name.startswith((".", "_")) and name not in indexes]
        for name in names:
            if not name.startswith((".", "_")):
                yield Path(root, name)


def _is_index(folder: Path) -> bool:
    return (folder / "manifests").is_dir() or ((folder / "parts").is_dir() and (folder / "lock").is_file())


def _fixed_part(pattern: str) -> str:
    """The folder before the first wildcard: labels are what comes after it."""
    head = pattern[: min(pattern.find(sign) for sign in "*?[" if sign in pattern)]
    return str(Path(f"{head}x").parent)


def _raise(error: OSError) -> NoReturn:
    raise error


def _nearest_sibling(path: Path) -> str:
    if not path.parent.is_dir():
        return f"; the folder {path.parent} does not exist either."
    close = difflib.get_close_matches(path.name, [entry.name for entry in path.parent.iterdir()], n=1)
    return f'; did you mean "{path.parent / close[0]}"?' if close else "."
