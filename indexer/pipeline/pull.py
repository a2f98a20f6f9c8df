"""`pull_index`: download the newest generation of an index from the Hugging Face hub.

Only files that the folder lacks are downloaded, and every file is compared with its digest in the manifest, which is
written last. An interrupted pull leaves complete files, which the next one keeps.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from indexer.errors import ConfigError, CorruptIndexError, ExistsError
from indexer.models.hub import quiet_hub
from indexer.pipeline.generation import require_index_folder, require_no_erasure, require_no_pending
from indexer.pipeline.hub import HubRepository, HubSnapshot
from indexer.progress import NoProgress, Progress
from indexer.recipe.loading import named_path
from indexer.store import layout
from indexer.store.files import FileDigest, digest_file, make_folder, move_in, remove_tree, writer_lock
from indexer.store.manifest import MOST_BYTES, Manifest, list_generations, load_manifest
from indexer.store.stores import store_at
from indexer.system.threads import ordered_map
from indexer.typed_arguments import checked

_DOWNLOADS = 8  # at a time


@dataclass(frozen=True)
class PullReport:
    """Result of a pull. `published` is false if the folder had the generation already."""

    url: str
    index: Path
    generation: int
    documents: int
    files: int
    fetched: int
    bytes_fetched: int
    published: bool


@checked
def pull_index(url: str, index: str | Path, progress: Progress | None = None) -> PullReport:
    """Download the newest generation of an index from `hf://user/name` into a folder: a new one, or one with an earlier
    generation of the same index, whose readers keep their files.

    Damaged and missing files are downloaded again. Raises ConfigError for an index in object storage, NotAnIndexError
    for a repository without an index, ExistsError for a folder with another index, changes of its own or an unfinished
    build, CorruptIndexError for a download that differs from the manifest, LockedError, and StoreError with a fix.
    """
    folder, repository = named_path(index, "the index"), HubRepository(url)
    require_folder(folder, repository.url)
    require_index_folder(folder)
    with quiet_hub():
        snapshot = repository.snapshot()
        manifest, data = repository.manifest(snapshot)
        make_folder(folder)
        with writer_lock(folder):
            published = not _has(folder, manifest, data, repository.url)
            fetched = _fetch(folder, repository, snapshot, manifest.files, progress or NoProgress())
            if published:
                store_at(folder).publish(manifest.generation, data)
            remove_tree(folder, layout.PULLED)
    return PullReport(
        repository.url,
        folder,
        manifest.generation,
        manifest.documents,
        len(manifest.files),
        len(fetched),
        sum(digest.bytes for digest in fetched.values()),
        published,
    )


def require_folder(index: Path, url: str) -> None:
    """Raise ConfigError for an index in object storage."""
    if store_at(index).url:
        raise ConfigError(f"{index}: is in object storage; {url} needs a folder. Fix: copy the objects to a folder.")


def _has(folder: Path, manifest: Manifest, data: bytes, url: str) -> bool:
    """Whether the folder has this generation already. Raises ExistsError unless the rest of it is an earlier one."""
    require_no_pending(folder)
    require_no_erasure(folder)
    store = store_at(folder)
    if not list_generations(folder):
        if store.has(layout.PARTS) and not store.has(layout.PULLED):
            raise ExistsError(
                f"{folder}: contains an unfinished build; nothing was changed. Fix: pull into another folder."
            )
        return False
    local = load_manifest(folder)
    if local.generation == manifest.generation:
        name = layout.manifest_name(local.generation)
        if store.read_manifest(name, MOST_BYTES) == data:
            return True
    elif local.generation > manifest.generation and _agree(local, manifest):
        raise ExistsError(
            f"{folder}: contains generation {local.generation}, newer than generation {manifest.generation} of {url}; "
            "nothing was changed. Fix: push it, or pull into another folder."
        )
    if local.generation >= manifest.generation or not _agree(local, manifest):
        raise ExistsError(
            f"{folder}: contains an index other than {url}, or one that was changed since it was pulled; nothing was "
            "changed. Fix: pull into another folder."
        )
    return False


def _agree(one: Manifest, other: Manifest) -> bool:
    """Whether files of the same name have the same bytes, as in two generations of one index."""
    return all(digest == other.files.get(name, digest) for name, digest in one.files.items())


def _fetch(
    folder: Path,
    repository: HubRepository,
    snapshot: HubSnapshot,
    files: Mapping[str, FileDigest],
    progress: Progress,
) -> dict[str, FileDigest]:
    """Download the files that the folder lacks, and return them."""
    remove_tree(folder, layout.PULLED)
    make_folder(folder / layout.PULLED)  # marks the folder as an unfinished pull, too
    progress.phase("comparing files", len(files))
    missing = dict(_lacking(folder, files, progress))

    def fetch(name: str) -> int:
        path = repository.download(snapshot, name, folder / layout.PULLED)
        if digest_file(path) != files[name]:
            raise CorruptIndexError(
                f"{repository.url}: the downloaded bytes of {name} differ from the manifest (checksum mismatch); "
                "nothing was published. Fix: run the same command again; if it fails again, push the index again."
            )
        move_in(path, folder / name)
        return files[name].bytes

    progress.phase("downloading bytes", sum(digest.bytes for digest in missing.values()))
    for count in ordered_map(fetch, list(missing), _DOWNLOADS):
        progress.advance(count)
    return missing


def _lacking(folder: Path, files: Mapping[str, FileDigest], progress: Progress) -> Iterator[tuple[str, FileDigest]]:
    for name, digest in files.items():
        try:
            if digest_file(folder / name) != digest:
                yield name, digest
        except CorruptIndexError:  # missing
            yield name, digest
        progress.advance(1)
