"""The files that are documents among those that a user names: files, globs, folders, URLs.

Entries that are left out are counted by their reason. The order is that of the parts of paths.
"""

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from indexer.corpus.files.ignore_rules import IgnoreRules
from indexer.corpus.files.markup import FILE_KINDS
from indexer.corpus.files.trees import Entry, LocalTree, ObjectTree, Tree
from indexer.corpus.readers.hub import download_dataset, is_on_hub
from indexer.corpus.readers.remote import list_objects, no_match
from indexer.corpus.readers.streams import open_source
from indexer.corpus.row import BadRow, described
from indexer.corpus.sources import SourceFile, as_documents, kind_of_source, matches_of, readable, suffix_of
from indexer.errors import ConfigError, CorpusError
from indexer.system.urls import local_path, url_of

Place = tuple[Tree, str]  # a file by its path below the tree
_EXAMPLES = ".md .rst .txt .html .pdf .docx .py"
_UNKNOWN = "of unknown type"


@dataclass
class LeftOut:
    """The files and folders that are left out, counted by reason, and the paths of the files of unknown type."""

    reasons: Counter[str] = field(default_factory=Counter)
    unknown: list[str] = field(default_factory=list)

    def add(self, reason: str, tree: Tree, path: str) -> None:
        """Count a file or folder."""
        self.reasons[reason] += 1
        if reason == _UNKNOWN:
            self.unknown.append(f"{tree.shown}/{readable(path)}")


@dataclass(frozen=True)
class _Found:
    """The files of one source; `prefix` tells the ids of several sources apart."""

    source: str
    prefix: str
    places: list[Place]


def find_documents(sources: Iterable[str | Path]) -> tuple[list[SourceFile], LeftOut]:
    """Return the files of all sources, each a document, and what was left out.

    The id of a file, its label, is its path below the source; with several sources, the name of the folder comes
    first. A file that is named itself is read although it is hidden, ignored or a link. Raises ConfigError for no or
    an empty source, and CorpusError for a missing one, for one without files, for a folder that cannot be listed, and
    for files of two sources with the same id.
    """
    left_out = LeftOut()
    given = list(map(str, sources))
    if not given:
        raise ConfigError("no source was given; expected files, folders or globs.")
    found = [_find(source, left_out) for source in given]
    files: list[SourceFile] = []
    owners: dict[str, int] = {}
    for number, each in enumerate(found):
        prefix = f"{each.prefix}/" if each.prefix and len(found) > 1 else ""
        for tree, path in each.places:
            label = readable(f"{prefix}{path}")
            if owners.setdefault(label, number) != number:
                raise CorpusError(
                    f'{found[owners[label]].source} and {each.source} each contain a file with the id "{label}". Fix: '
                    "pass the folder that contains both, or rename one."
                )
            files.append(tree.source_file(path, label))
    return files, left_out


def file_digest(file: SourceFile) -> str:
    """Return the sha256 of a local file as hexadecimal digits, or the ETag of an object.

    Raises BadRow ("unreadable").
    """
    if file.url:
        return file.etag
    try:
        with open_source(file) as content:
            return hashlib.file_digest(content, "sha256").hexdigest()
    except OSError as error:
        raise unreadable_file(error) from error


def joint_digest(files: Iterable[SourceFile]) -> str:
    """Return a hash of the ids and digests of files; those that cannot be read count by their id."""
    joint = hashlib.sha256()
    for file in files:
        try:
            digest = file_digest(file)
        except BadRow:
            digest = ""
        joint.update(f"{digest} {file.label}\0".encode())
    return joint.hexdigest()


def unreadable_file(error: OSError) -> BadRow:
    """Return an OSError as the reason to reject a file."""
    return BadRow("unreadable", f"cannot be read: {error.strerror or error}", "change its permissions, or remove it")


def _find(source: str, left_out: LeftOut) -> _Found:
    if not source:
        raise ConfigError("a source is empty; expected a file, a folder such as ., or a glob.")
    if source == "-":
        raise ConfigError("stdin (-) is one stream; expected files, folders or globs for documents that are files.")
    if is_on_hub(source):
        source = download_dataset(source, FILE_KINDS)
    before = left_out.reasons.copy()
    found = _find_objects(url, left_out) if (url := url_of(source)) else _find_local(source, left_out)
    if not found.places:
        counted = described(left_out.reasons - before)
        raise CorpusError(
            f"{readable(source)}: no files that can be documents{f'; left out: {counted}' if counted else ''}. "
            f"Expected files such as {_EXAMPLES}."
        )
    return found


def _find_local(source: str, left_out: LeftOut) -> _Found:
    path = local_path(source)
    kind = kind_of_source(path)
    if kind == "file":
        return _named(LocalTree(path.parent), path.name)
    if kind == "glob":
        folder, matches = matches_of(str(path))
        tree = LocalTree(folder)
        return _Found(source, tree.name, list(_matching(tree, [name for _, name in matches], left_out)))
    tree = LocalTree(path)
    return _Found(source, tree.name, list(_walk(tree, left_out)))


def _find_objects(url: str, left_out: LeftOut) -> _Found:
    found = list_objects(url)
    tree = ObjectTree(found.folder, found.objects)
    if found.kind == "file":
        return _named(tree, found.names[0])
    if found.kind == "glob":
        if not found.names:
            raise no_match(url)
        return _Found(url, tree.name, list(_matching(tree, sorted(found.names), left_out)))
    return _Found(url, tree.name, list(_walk(tree, left_out)))


def _named(tree: Tree, name: str) -> _Found:
    if reason := _unfit(tree, name):
        fix = f" Fix: give a text file the suffix .txt; build an index of a table without {as_documents()}."
        raise CorpusError(
            f"{tree.shown}/{readable(name)}: cannot be a document: it is {reason}; expected a file such as "
            f"{' '.join(FILE_KINDS)}.{fix if reason == _UNKNOWN else ''}"
        )
    return _Found(f"{tree.shown}/{readable(name)}", "", [(tree, name)])


def _walk(tree: Tree, left_out: LeftOut) -> Iterator[Place]:
    rules = IgnoreRules(tree)
    waiting = list(reversed(tree.entries("")))  # a stack: a tree can be deeper than Python's own
    while waiting:
        entry = waiting.pop()
        if reason := _left_out(tree, rules, entry):
            left_out.add(reason, tree, entry.path)
        elif entry.kind == "folder":
            waiting += reversed(tree.entries(entry.path))
        else:
            yield tree, entry.path


def _matching(tree: Tree, paths: Iterable[str], left_out: LeftOut) -> Iterator[Place]:
    """Yield the matches of a glob that are documents. A pattern decides itself about hidden files."""
    rules = IgnoreRules(tree)
    for path in paths:
        parts = path.split("/")
        folders = ["/".join(parts[:count]) for count in range(1, len(parts))]
        entries = [Entry(folder, "link" if tree.kind_of(folder) == "link" else "folder") for folder in folders]
        entries.append(Entry(path, tree.kind_of(path)))
        if reason := next(filter(None, (_left_out(tree, rules, entry, hidden=False) for entry in entries)), ""):
            left_out.add(reason, tree, path)
        else:
            yield tree, path


def _left_out(tree: Tree, rules: IgnoreRules, entry: Entry, hidden: bool = True) -> str:
    """Return the reason to leave an entry out, or ""."""
    if hidden and entry.name.startswith("."):
        return "hidden"
    if name := rules.ignoring(entry.path, entry.kind == "folder"):
        return f"ignored by {name}"
    if entry.kind == "link":
        return "linked"
    if entry.kind == "special":
        return "pipes, sockets or devices"
    if entry.kind == "folder":
        return "indexes" if tree.is_index(entry.path) else ""
    return _unfit(tree, entry.path)


def _unfit(tree: Tree, path: str) -> str:
    """Return the reason why a file cannot be a document, or ""."""
    suffix = suffix_of(path)
    if suffix and suffix not in FILE_KINDS:
        return _UNKNOWN
    if tree.is_empty(path):
        return "empty"
    return "binary" if not suffix and tree.looks_binary(path) else ""
