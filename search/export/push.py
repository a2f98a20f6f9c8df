"""`push_index`: upload the newest generation of an index to the Hugging Face hub.

Only files that the repository lacks are uploaded. The manifest is in the same commit, which also removes the files of
the generation before: the repository always contains one complete index.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from indexer.errors import ConfigError, ExistsError, as_argument, spelled
from indexer.models.hub import quiet_hub
from indexer.pipeline.hub import MOST_FILES, HubRepository, HubSnapshot
from indexer.pipeline.pull import require_folder
from indexer.progress import NoProgress, Progress
from indexer.recipe.loading import named_path
from indexer.store import layout
from indexer.store.files import FileDigest
from indexer.store.integrity import check_file
from indexer.store.manifest import MOST_BYTES, Manifest
from indexer.store.stores import store_at
from indexer.system.hub_errors import NoRepositoryError
from indexer.typed_arguments import checked
from search.export.index_card import CARD, with_section
from search.formatting import counted
from search.index import Index

_UPLOADS = 64  # files that are uploaded together


@checked
@dataclass(frozen=True)
class PushOptions:
    """Options of a push. A new repository is `private`; `force` replaces another or a newer index."""

    private: bool = False
    force: bool = False


@dataclass(frozen=True)
class PushReport:
    """Result of a push. `commit` is the newest commit; `sent` is 0 if the repository had everything."""

    url: str
    index: Path
    generation: int
    documents: int
    files: int
    sent: int
    bytes_sent: int
    removed: int
    commit: str
    notes: tuple[str, ...] = ()


@checked
def push_index(
    index: str | Path, url: str, options: PushOptions | None = None, progress: Progress | None = None
) -> PushReport:
    """Upload the newest generation of an index to `hf://user/name`, a dataset repository, which is created if needed.

    Raises ConfigError for an index in object storage and for a public repository with `private`, ExistsError for a
    repository with another or a newer index, CorruptIndexError for a damaged file, NotAnIndexError, and StoreError
    with a fix.
    """
    options, repository = options or PushOptions(), HubRepository(url)
    require_folder(named_path(index, "the index"), repository.url)
    opened = Index.open(index)
    with quiet_hub():
        repository.require_token()
        snapshot = _snapshot(repository, options.private)
        return _Push(opened, repository, snapshot).run(options.force, progress or NoProgress())


def _snapshot(repository: HubRepository, private: bool) -> HubSnapshot:
    """Return the newest commit; a missing repository is created."""
    try:
        snapshot = repository.snapshot()
    except NoRepositoryError:
        repository.create(private)
        return repository.snapshot()
    if private and not snapshot.private:
        raise ConfigError(
            f"{repository.url}: is public, and {as_argument('private')} is for new repositories; nothing was uploaded. "
            "Fix: make it private on its page of the hub, or push to another name."
        )
    return snapshot


class _Push:
    """The difference between an index and a repository."""

    def __init__(self, index: Index, repository: HubRepository, snapshot: HubSnapshot) -> None:
        self._index, self._repository, self._snapshot = index, repository, snapshot
        manifest = index.manifest
        self._name = layout.manifest_name(manifest.generation)
        self._manifest = store_at(index.path).read_manifest(self._name, MOST_BYTES)
        self._missing = {name: digest for name, digest in manifest.files.items() if not self._has(name, digest)}
        self._stale = snapshot.index_files - manifest.files.keys() - {self._name}

    def run(self, force: bool, progress: Progress) -> PushReport:
        manifest = self._index.manifest
        texts, notes = self._texts()
        if not force:
            self._require_earlier(manifest)
        if len(self._missing) > MOST_FILES:
            raise ConfigError(
                f"{self._index.path}: has {len(self._missing):,} new files, but the hub accepts at most "
                f"{MOST_FILES:,} at once. Fix: build with larger parts (store.part_documents)."
            )
        commit = self._snapshot.commit
        if self._missing or self._stale or texts:
            additions = self._upload(progress) + self._repository.upload(texts)
            message = f"Isotrope index, generation {manifest.generation}: {counted(manifest.documents, 'document')}"
            commit = self._repository.commit(self._snapshot, additions, self._stale, message)
        sizes = [*(digest.bytes for digest in self._missing.values()), *(len(text) for text in texts.values())]
        return PushReport(
            url=self._repository.url,
            index=self._index.path,
            generation=manifest.generation,
            documents=manifest.documents,
            files=len(manifest.files) + 1,
            sent=len(sizes),
            bytes_sent=sum(sizes),
            removed=len(self._stale),
            commit=commit,
            notes=(*notes, *self._notes()),
        )

    def _has(self, name: str, digest: FileDigest) -> bool:
        entry = self._snapshot.files.get(name)
        return entry is not None and entry.equals(digest, (self._index.path / name).read_bytes)

    def _holds(self, name: str, data: bytes) -> bool:
        entry = self._snapshot.files.get(name)
        return entry is not None and entry.equals(FileDigest(len(data), sha256(data).hexdigest()), lambda: data)

    def _require_earlier(self, manifest: Manifest) -> None:
        """Raise ExistsError unless the repository has no index, this generation, or an earlier one of this index."""
        there, url = self._snapshot.generation, self._repository.url
        if not there or self._holds(self._name, self._manifest):
            return
        if changed := sorted(self._missing.keys() & self._snapshot.files):
            raise ExistsError(
                f"{url}: contains another index ({changed[0]} differs); nothing was changed. Fix: push to another "
                f"name, or pass {as_argument('force', True)} to replace it."
            )
        if there >= manifest.generation:
            raise ExistsError(
                f"{url}: contains generation {there}, and {self._index.path} has generation {manifest.generation}; "
                f"nothing was changed. Fix: {spelled('pull_index', 'isotrope pull')}, or pass "
                f"{as_argument('force', True)} to replace it."
            )

    def _texts(self) -> tuple[dict[str, bytes], list[str]]:
        """Return the manifest and the card, unless the repository has them, and a note about a card of another form."""
        page = self._repository.read(self._snapshot, CARD) if CARD in self._snapshot.files else None
        card = with_section(page, self._index, self._repository.url)
        texts: Mapping[str, bytes | None] = {self._name: self._manifest, CARD: card}
        new = {name: text for name, text in texts.items() if text and not self._holds(name, text)}
        left = [] if card else [f"{CARD} of the repository stays as it is, because it has no section for an index."]
        return new, left

    def _upload(self, progress: Progress) -> list[Any]:
        """Compare the new files with their digests and upload them. Raises CorruptIndexError."""
        progress.phase("uploading bytes", sum(digest.bytes for digest in self._missing.values()))
        names, additions = list(self._missing), list[Any]()
        for start in range(0, len(names), _UPLOADS):
            batch = names[start : start + _UPLOADS]
            for name in batch:
                check_file(self._index.path / name, self._missing[name])
            additions += self._repository.upload({name: self._index.path / name for name in batch})
            progress.advance(sum(self._missing[name].bytes for name in batch))
        return additions

    def _notes(self) -> list[str]:
        manifest, notes = self._index.manifest, list[str]()
        if deleted := manifest.stored_documents - manifest.documents:
            documents = counted(deleted, "deleted document")
            compact = spelled("compact_index", "isotrope compact")
            notes.append(f"the files still contain {documents}; {compact} removes them before a push.")
        if manifest.encoder["folder"]:
            notes.append(
                f"the encoder is a folder on this machine; queries elsewhere need {as_argument('model')} with the "
                "folder of a copy."
            )
        return notes
