"""Removal of documents from an index and from all its generations, in steps that an interrupted run continues.

`erase.json` in the index is written first: from then on other changes are refused. One generation without the documents
is published, then one of the remaining documents only, with a transform fitted on them; then everything older is
removed. `finish` removes `erase.json`, once a proof is written. Each step is recognised by what the newest generation
contains, so a run that was stopped anywhere is continued by the next one.
"""

import hmac
import secrets
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from msgspec import Struct
from msgspec.structs import replace as with_fields

from indexer.corpus.query_file import is_npy, query_file_sha256
from indexer.corpus.schema import schema_from_json
from indexer.errors import ConfigError, CorruptIndexError, ExistsError, StoreError, spelled
from indexer.models.query_encoder_spec import require_no_query_encoder
from indexer.models.rescorer_spec import is_rescorer
from indexer.pipeline.compact import fold, remove_generations
from indexer.pipeline.generation import Generation, finish_erasure, open_generation
from indexer.progress import NoProgress, Progress
from indexer.recipe.run_options import RunOptions
from indexer.store import layout
from indexer.store.documents import DocumentReader
from indexer.store.files import remove_temporary, writer_lock
from indexer.store.layout import Count, Hash
from indexer.store.manifest import MOST_BYTES, Manifest, list_generations, load_generation
from indexer.store.stores import open_stored, store_at
from indexer.typed_json import decode_json

_SALT_BYTES = 32

Copies = list[tuple[Manifest, list[int]]]  # a generation, and the stored numbers of the documents to erase
Mark = Callable[[Generation, Copies, str], dict[str, Any]]  # the third argument is the salt


class Counts(Struct, frozen=True):
    """Number of the newest generation, and its live documents and rows."""

    generation: Count
    documents: Count
    rows: Count

    @classmethod
    def of(cls, manifest: Manifest) -> "Counts":
        return cls(manifest.generation, manifest.documents, manifest.rows)


class Erasure(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The contents of `erase.json`: which documents are erased, and how their traces are recognised.

    `ids` are `keyed` ids. `before` describes the newest generation before, `files` the sha256 of the files of all
    generations before. `marks` are those of `Mark`, JSON types.
    """

    format: Literal[1] = 1
    salt: Hash
    ids: list[Hash]
    before: Counts
    files: dict[str, list[Hash]]
    marks: dict[str, Any]
    notes: list[str]


def keyed(salt: str, data: bytes) -> str:
    """Return the HMAC-SHA256 of some bytes under a salt. With the salt, anyone can test a guess of the bytes."""
    return hmac.digest(bytes.fromhex(salt), data, "sha256").hex()


def keyed_id(salt: str, identity: str) -> str:
    return keyed(salt, identity.encode("utf-8", "surrogatepass"))


def erase_from_index(
    index: Path,
    ids: Sequence[str],
    mark: Mark,
    options: RunOptions | None = None,
    progress: Progress | None = None,
    model: str | Path | None = None,
) -> Erasure:
    """Remove documents, and everything made of them, from all generations; the caller calls `finish` later.

    Continues an erasure that has begun; `ids` are then the same or none. Raises ConfigError for unknown ids,
    LockedError if another machine changes the index meanwhile, and otherwise as `compact_index`.
    """
    options, progress = options or RunOptions(), progress or NoProgress()
    with open_generation(index, erasing=True) as generation:
        generation.model = model
        erasure = read_erasure(index)
        if erasure is not None and _is_overtaken(generation, erasure):
            generation.store.remove(layout.ERASE)
            erasure = None
        if erasure is None:
            erasure = _begin(generation, list(dict.fromkeys(ids)), mark)
        else:
            _require_same(index, erasure, ids)
        if numbers := _live_numbers(generation, erasure):
            generation.keep_everything()
            generation.delete(generation.previous.stored(np.array(numbers, np.int64)))
            generation.publish(generation.previous.manifest.quality)  # recall is measured when it is compacted
        kind = generation.config.index.type
    try:
        _rewrite(index, erasure, options, progress, model)
    except ConfigError as error:  # too few rows are left to train this type of index
        if kind == "auto":
            raise
        _rewrite(index, erasure, options, progress, model, "auto")
        why = str(error).partition(" Fix: ")[0]
        note = f'index.type is now "auto", because "{kind}" does not fit the remaining documents: {why}'
        erasure = with_fields(erasure, notes=[*erasure.notes, note])
    return erasure


def _rewrite(
    index: Path, erasure: Erasure, options: RunOptions, progress: Progress, model: str | Path | None, kind: str = ""
) -> None:
    """Publish a generation of the remaining documents, with another index.type if it is given; remove all others."""
    with open_generation(index, erasing=True) as generation:
        generation.model = model
        manifest, config = generation.previous.manifest, generation.config
        generation.config = replace(config, index=replace(config.index, type=kind or config.index.type))
        if not _is_rewritten(manifest, erasure):
            fold(generation, options, progress, refitting="taken_from" not in manifest.transform)
        _, named = remove_generations(generation, 1, float("-inf"))
        if failure := generation.sweep(named.union(erasure.files)):
            raise StoreError(f"{index}: the erasure is unfinished: {failure}")
        remove_temporary(index, layout.MANIFESTS)


def read_erasure(index: Path) -> Erasure | None:
    """Return the erasure that has begun, None if there is none. Raises CorruptIndexError and StoreError."""
    path = index / layout.ERASE
    try:
        with open_stored(path) as file:
            return decode_json(file.read(MOST_BYTES), Erasure)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise damaged(index, error) from error


def damaged(index: Path, error: ValueError) -> CorruptIndexError:
    """Return the error for an `erase.json` that cannot be used."""
    return CorruptIndexError(
        f"{index / layout.ERASE}: damaged ({error}). Fix: remove it, and erase the documents again."
    )


def finish(index: Path) -> None:
    """Remove `erase.json`, after which other changes are possible."""
    with writer_lock(index):
        store_at(index).remove(layout.ERASE)


def _begin(generation: Generation, ids: list[str], mark: Mark) -> Erasure:
    """Find the documents in all generations, and write `erase.json`."""
    index, manifest, salt = generation.index, generation.previous.manifest, secrets.token_hex(_SALT_BYTES)
    if not ids:
        raise ConfigError(f"{index}: no erasure is unfinished, and no id is given. Fix: name the ids to erase.")
    files: dict[str, list[str]] = {}
    manifests = _manifests(generation, files)
    copies, found = _copies(index, manifests, ids)
    if missing := [identity for identity in ids if identity not in found]:
        shown = ", ".join(f'"{identity}"' for identity in missing[:5])
        raise ConfigError(
            f"{index}: no generation has a document with id {shown}; nothing was erased. Fix: correct the ids. "
            "Documents that were deleted and compacted before are gone from the files, and can have no proof."
        )
    _require_inputs(generation)
    erasure = Erasure(
        salt=salt,
        ids=[keyed_id(salt, identity) for identity in ids],
        before=Counts.of(manifest),
        files=files,
        marks=mark(generation, copies, salt),
        notes=_out_of_reach(generation),
    )
    data = msgspec.json.encode(erasure)
    if len(data) > MOST_BYTES:  # an interrupted erasure could not be continued
        raise ConfigError(
            f"{index}: the traces of {len(ids):,} documents take {len(data):,} bytes; the limit is {MOST_BYTES:,}. "
            "Nothing was erased. Fix: erase fewer documents at once."
        )
    generation.store.create(layout.ERASE, data)
    return erasure


def _require_inputs(generation: Generation) -> None:
    """Raise ConfigError and ModelError for what the new transform and segments need, before anything is changed."""
    config, fits = generation.config, "taken_from" not in generation.previous.manifest.transform
    require_no_query_encoder(config, str(generation.index))
    questions = config.index.queries if Path(config.index.queries).exists() else ""  # a removed file is not used
    query_file_sha256(questions, "index.queries")
    query_file_sha256(config.whitening.query_sample if fits else "", "whitening.query_sample")
    encodes = (fits and config.whitening.centres_by_role) or (questions and not is_npy(questions))
    if config.encoder.traits.encodes_texts and encodes:
        _ = generation.spec


def _manifests(generation: Generation, files: dict[str, list[str]]) -> list[Manifest]:
    """Return the readable manifests, newest first, and add the sha256 of all files to `files`."""
    manifests = []
    for number in reversed(list_generations(generation.index)):
        name = layout.manifest_name(number)
        files[name] = [sha256(generation.store.read_manifest(name, MOST_BYTES)).hexdigest()]
        with suppress(CorruptIndexError):  # its files are removed like those of other old generations
            manifests.append(load_generation(generation.index, number))
            for file, digest in manifests[-1].files.items():
                if digest.sha256 not in files.setdefault(file, []):
                    files[file].append(digest.sha256)
    return manifests


def _copies(index: Path, manifests: Sequence[Manifest], ids: Sequence[str]) -> tuple[Copies, set[str]]:
    """Return the stored numbers of the documents in each generation with other files than newer ones, and found ids."""
    wanted, found, seen = set(ids), set[str](), set[str]()
    copies: Copies = []
    for manifest in manifests:
        digests = {digest.sha256 for digest in manifest.files.values()}
        if digests <= seen:
            continue
        seen |= digests
        with closing(DocumentReader(index, manifest, schema_from_json(manifest.schema))) as reader:
            numbers = [(number, name) for number, name in enumerate(reader.all_ids()) if name in wanted]
        found |= {name for _, name in numbers}
        copies.append((manifest, [number for number, _ in numbers]))
    return copies, found


def _live_numbers(generation: Generation, erasure: Erasure) -> list[int]:
    """Return the numbers of the documents in the newest generation."""
    ids, gone = generation.previous.documents.all_ids(), set(erasure.ids)
    return [number for number, identity in enumerate(ids) if keyed_id(erasure.salt, identity) in gone]


def _is_overtaken(generation: Generation, erasure: Erasure) -> bool:
    """Whether another machine published the documents again after the erasure began, before it removed anything."""
    newest = generation.previous.manifest.generation
    return newest != erasure.before.generation and bool(_live_numbers(generation, erasure))


def _is_rewritten(manifest: Manifest, erasure: Erasure) -> bool:
    """Whether a generation has only live documents, and neither transform nor segments of an earlier one."""
    fitted = [] if "taken_from" in manifest.transform else [manifest.transform["file"]]
    names = {*fitted, *(entry.file for entry in manifest.segments)}
    written = manifest.generation > erasure.before.generation and names.isdisjoint(erasure.files)
    return written and manifest.deleted is None


def _out_of_reach(generation: Generation) -> list[str]:
    """Return what may still depend on the documents: state that was fitted elsewhere or before."""
    manifest, rescorer, notes = generation.previous.manifest, generation.config.rerank.model, []
    build = spelled("build_index", "isotrope build --overwrite")
    again = f"build the index again from the remaining documents: {build}"
    if "taken_from" in manifest.transform:
        notes.append(
            f"the transform is that of another index, which may have been fitted on the documents. Fix: {again}"
        )
    if any(name.startswith(f"{layout.ENCODER}/") for name in manifest.files):
        notes.append(
            f"the encoder has state that was fitted on a corpus, which may include the documents. Fix: {again}"
        )
    if is_rescorer(rescorer):
        made = spelled("rescore_index", "isotrope migrate --mode rescore")
        notes.append(
            f"the transform of the rescorer {rescorer} was fitted on the documents. Fix: make it again: {made}"
        )
    return notes


def _require_same(index: Path, erasure: Erasure, ids: Sequence[str]) -> None:
    if ids and {keyed_id(erasure.salt, identity) for identity in ids} != set(erasure.ids):
        raise ExistsError(
            f"{index}: an erasure of other documents is unfinished. Fix: first finish it: {finish_erasure(index)}"
        )
