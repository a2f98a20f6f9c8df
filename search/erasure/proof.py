"""`erase_documents` and `verify_erased`: erase documents, write the proof, and repeat its search."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from indexer.corpus.row import ENDING
from indexer.errors import ConfigError, ExistsError, StoreError, as_argument, spelled
from indexer.models.rescorer_spec import is_rescorer
from indexer.pipeline.erase import Counts, Erasure, damaged, erase_from_index, finish, keyed_id, read_erasure
from indexer.pipeline.generation import finish_erasure
from indexer.progress import NoProgress, Progress
from indexer.recipe.config import BuildConfig
from indexer.recipe.loading import named_path
from indexer.recipe.run_options import RunOptions
from indexer.store import layout
from indexer.store.files import atomic_write_bytes
from indexer.store.layout import Hash
from indexer.store.manifest import load_manifest
from indexer.store.stores import store_at
from indexer.system.blob_cache import blob_cache
from indexer.system.cache import cache_folder
from indexer.system.output_files import check_output, refuse_inside_index
from indexer.typed_arguments import checked
from indexer.typed_json import decode_json
from search.erasure.scan import POSSIBLE, Scanner, SearchedFile
from search.erasure.traces import Traces, mark, without_remaining
from search.ranking.bm25 import WORDS
from search.ranking.rescorer import VECTORS

_NOT_SEARCHED = (layout.LOCK, layout.ERASE)  # an empty file, and the keyed hashes themselves
_HOW = (
    "id: the values of id fields in Parquet and JSON files",
    "word: ids between other words of a text file, which may be other words with the same letters",
    "text: windows of 16 letters, digits and spaces, in the bytes and in the decoded values of each file",
    "vector: the first and last 32 bytes of embeddings and unquantised vectors, and hashes of texts",
    "code: the first and last 32 bytes of each row's code in a quantised segment, except codes that a row of the new "
    "segments has and codes that FAISS packs for 32 rows together; the segments were trained and written again",
    "file: the sha256 of each file that contained a document, such as moments and codes, and of each transform fitted "
    "to one; those after were computed from the remaining rows",
)
_LIMITS = (
    "ids and texts can be guessed and compared with the keyed hashes of this file: keep it as confidential as the ids",
    "the corpus, exports, other results, distilled tables, maps, rescorers that the recipe does not name, backups and "
    "copies of the index are not searched",
    "programs that had the index open keep the old generation in memory until they reload or end",
    "texts of fewer than 8 letters, digits and spaces are searched for by id, vector and whole file only",
)
_REMOTE_LIMITS = (
    "versions of objects that the bucket keeps (versioning, soft delete) are out of reach: remove them with its tools",
    "lists of rejected rows, which commands write into the folder that they run in, are not searched",
    "the caches of other machines that read the index are out of reach: delete the folder of ISOTROPE_CACHE there",
)


class Proof(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A proof file: which documents were erased, how to recognise them, and every file that was searched.

    `ids` and the traces are keyed with `salt`. `files` are those of all generations before, and those after.
    """

    format: Literal[1] = 1
    index: str
    before: Counts
    after: Counts
    salt: Hash
    ids: list[Hash]
    files: list[SearchedFile]
    how: tuple[str, ...] = _HOW
    notes: list[str]
    limits: tuple[str, ...]
    traces: Traces
    checksum: str = ""
    """The sha256 of the proof without it, against accidents; a forger can compute it too."""


class ErasedReport(Struct, frozen=True, kw_only=True):
    """Result of an erasure or of its verification. `problems` is empty if no trace of the documents was found.

    `changed` are the files in the index that were changed, added or removed since the proof.
    """

    index: Path
    generation: int
    documents: int
    erased: int
    files: int
    problems: list[str]
    changed: list[str]
    notes: list[str]

    @property
    def passed(self) -> bool:
        return not self.problems


@checked
def erase_documents(
    index: str | Path,
    ids: Sequence[str],
    proof: str | Path,
    options: RunOptions | None = None,
    progress: Progress | None = None,
    model: str | Path | None = None,
) -> ErasedReport:
    """Erase documents and everything made of them from an index, search all files for traces, and write a proof.

    An interrupted erasure is finished by the same call, or with no ids. The index has no older generations afterwards.
    Raises ConfigError for unknown ids, ExistsError for an existing proof of other documents, StoreError if traces are
    left, and otherwise as `compact_index`.
    """
    path, proof, progress = named_path(index, "the index"), Path(proof), progress or NoProgress()
    refuse_inside_index(proof, as_argument("proof"))
    erasure = read_erasure(path)
    if proof.exists():
        earlier = read_proof(proof)
        if erasure is None and ids and {keyed_id(earlier.salt, one) for one in ids} == set(earlier.ids):
            report = verify_erased(proof, path)
            if report.passed:  # nothing to do
                return report
        if erasure is None and not ids:
            raise ExistsError(f"{path}: no erasure is unfinished, and {proof} is the proof of a finished one.")
        if erasure is None or earlier.salt != erasure.salt:
            raise ExistsError(f"{proof}: is the proof of another or an earlier erasure. Fix: choose another file.")
    check_output(proof, as_argument("proof"), force=True, stream=False)
    if not proof.absolute().parent.is_dir():
        raise ConfigError(f"{proof}: its folder does not exist. Fix: create the folder, or choose another file.")
    # The recall of the remaining rows is shown by inspect: it is no reason to keep the documents.
    options = replace(options or RunOptions(), allow_low_recall=True)
    erasure = erase_from_index(path, ids, mark, options, progress, model)
    _clear_caches(path)
    progress.phase("searching files", None)
    written = _proof(path, erasure, lambda: progress.advance(1))
    report = _report(path, written, written.files, [])
    if not report.passed:
        raise StoreError(f"{path}: erased, but traces are left: {'; '.join(report.problems)}. Fix: remove these files, "
                         f"and finish the erasure: {finish_erasure(path)}")  # fmt: skip
    atomic_write_bytes(proof, _encoded(written))
    proof.chmod(0o600)  # ids can be guessed from it
    finish(path)
    return report


@checked
def verify_erased(
    proof: str | Path, index: str | Path | None = None, on_file: Callable[[], None] = lambda: None
) -> ErasedReport:
    """Search an index again for the documents of a proof, by default at the path in the proof.

    Raises ConfigError for a file that is no proof, NotAnIndexError and StoreError.
    """
    proof = Path(proof)
    stated = read_proof(proof)
    path = named_path(index if index is not None else stated.index, "the index")
    _ = load_manifest(path)  # raises NotAnIndexError
    scanner = Scanner(stated.salt, stated.ids, stated.traces)
    found = _search(path, scanner, {}, on_file)
    inside = [
        {file.file: file.after for file in files if file.after and not Path(file.file).is_absolute()}
        for files in (stated.files, found)
    ]
    changed = sorted({name for name, _ in inside[0].items() ^ inside[1].items()})
    report = _report(path, stated, found, changed)
    if inside[0] and {*inside[0].values()}.isdisjoint(inside[1].values()):
        report.notes.append(f"no file of the proof, which is of {stated.index}, is in {path}: is it another index?")
    return report


def read_proof(path: Path) -> Proof:
    """Return a proof. Raises ConfigError."""
    try:
        proof = decode_json(path.read_bytes(), Proof)
        if proof.checksum != _checksum(proof):
            raise ValueError("it was changed after it was written")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}; expected a proof.") from error
    except ValueError as error:
        made = spelled("erase_documents", "isotrope erase")
        raise ConfigError(f"{path}: is no proof of {made} ({error}). Fix: name another file.") from error
    return proof


def _checksum(proof: Proof) -> str:
    return sha256(msgspec.json.encode(msgspec.structs.replace(proof, checksum=""))).hexdigest()


def _encoded(proof: Proof) -> bytes:
    """Return the contents of a proof file."""
    stated = msgspec.structs.replace(proof, checksum=_checksum(proof))
    return msgspec.json.format(msgspec.json.encode(stated), indent=1) + b"\n"


def _proof(index: Path, erasure: Erasure, on_file: Callable[[], None]) -> Proof:
    manifest, store = load_manifest(index), store_at(index)
    try:
        marks = msgspec.convert(erasure.marks, Traces)
    except ValueError as error:
        raise damaged(index, error) from error
    traces = without_remaining(marks, erasure.salt, index, manifest)
    files = _search(index, Scanner(erasure.salt, erasure.ids, traces), erasure.files, on_file)
    there = {file.file for file in files}
    files += [SearchedFile(file=name, before=erasure.files[name]) for name in sorted(erasure.files.keys() - there)]
    return Proof(
        index=store.url or str(index.absolute()),
        before=erasure.before,
        after=Counts.of(manifest),
        salt=erasure.salt,
        ids=erasure.ids,
        files=files,
        notes=erasure.notes,
        limits=(*_LIMITS, *(_REMOTE_LIMITS if store.url else ())),
        traces=traces,
    )


def _search(
    index: Path, scanner: Scanner, before: dict[str, list[str]], on_file: Callable[[], None]
) -> list[SearchedFile]:
    """Search the files in the index, the results beside it, its mirror folder, and the cache of words."""
    store, searched, name = store_at(index), [], ""
    try:
        names = [name for name in store.files() if name not in _NOT_SEARCHED]
        for name in [*names, *map(str, _outside(index, bool(store.url)))]:
            with nullcontext(Path(name)) if Path(name).is_absolute() else store.fetched(name) as path:
                searched.append(scanner.search(path, name, before.get(name, [])))
            on_file()
    except OSError as error:
        place, why = index / name if name else error.filename or index, str(error.strerror or error).strip()
        raise StoreError(f"{place}: cannot be searched: {why}. Fix: repair or remove the file.") from error
    return searched


def _outside(index: Path, is_remote: bool) -> Iterator[Path]:
    """Yield the other files on this machine that may contain documents."""
    own = index.absolute()
    if is_remote:
        yield from (path for path in _files_in(own) if path.name not in _NOT_SEARCHED)
    else:
        yield from (path for path in sorted(own.parent.iterdir()) if path.is_file() and _is_result(path, own.name))
    yield from _files_in(cache_folder().absolute() / WORDS)


def _files_in(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.rglob("*")) if path.is_file()]


def _is_result(path: Path, index: str) -> bool:
    """Whether a file beside an index is its list of rejected rows, a report, or the result of a measurement."""
    if path.name.startswith(f"{index}.") and path.name.endswith(ENDING):
        return True
    if path.suffix not in (".html", ".json"):
        return False
    with path.open("rb") as file:
        return (b"Isotrope report" if path.suffix == ".html" else b'"provenance"') in file.read(1 << 16)


def _clear_caches(index: Path) -> None:
    """Remove word indexes, the vectors of the rescorer, and cached files of object storage: all are made again when
    needed."""
    words, manifest = cache_folder() / WORDS, load_manifest(index)
    rescorer = BuildConfig.from_dict(manifest.config).rerank.model
    try:
        if is_rescorer(rescorer):
            (Path(rescorer).expanduser() / VECTORS).unlink(missing_ok=True)
        if words.is_dir():
            shutil.rmtree(words)
        if store_at(index).url:
            blob_cache().clear()
            for path in _files_in(index):
                if (name := path.relative_to(index).as_posix()) not in manifest.files and name not in _NOT_SEARCHED:
                    path.unlink()
    except OSError as error:
        raise StoreError(f"{error.filename}: cannot be removed from the cache: {error.strerror}.") from error


def _report(index: Path, proof: Proof, searched: Sequence[SearchedFile], changed: list[str]) -> ErasedReport:
    manifest, problems, notes = load_manifest(index), [], list(proof.notes)
    for one in searched:
        if kinds := [kind for kind in one.found if kind != POSSIBLE]:
            problems.append(f"{one.file}: contains an erased document ({', '.join(kinds)})")
        elif one.found:
            notes.append(f"{one.file}: contains a word that equals an erased id. Fix: check whether it is the id")
    return ErasedReport(
        index=index,
        generation=manifest.generation,
        documents=manifest.documents,
        erased=len(proof.ids),
        files=sum(one.after is not None for one in searched),
        problems=problems,
        changed=changed,
        notes=notes,
    )
