"""A repository on the Hugging Face hub with the files of an index.

It is a dataset repository. Its files have the names that they have in the folder of the index, so that a download of
the repository is an index. A commit replaces one generation by another in one step.
"""

import hashlib
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from indexer.errors import ConfigError, CorruptIndexError, NotAnIndexError, StoreError, spelled
from indexer.store import layout
from indexer.store.files import FileDigest
from indexer.store.manifest import MOST_BYTES, Manifest, parse_manifest
from indexer.system.escaping import shown
from indexer.system.hub_errors import LOGIN, hub_requests

KIND = "dataset"
MOST_FILES = 25_000  # new files of a commit, by the hub's rules
_URL = re.compile(r"hf:/+(?:datasets/)?([\w.-]+/[\w.-]+)(?:@([\w./-]+))?/?", re.ASCII | re.IGNORECASE)


@dataclass(frozen=True)
class HubFile:
    """A file of a repository. `sha256` is empty for a small file that Git itself stores."""

    size: int
    sha256: str
    git_sha1: str

    def equals(self, digest: FileDigest, read: Callable[[], bytes]) -> bool:
        """Whether the file has the bytes with this digest, which `read` returns."""
        if self.sha256 or self.size != digest.bytes:
            return (self.size, self.sha256) == (digest.bytes, digest.sha256)
        data = read()
        return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest() == self.git_sha1


@dataclass(frozen=True)
class HubSnapshot:
    """The files of a repository at one commit."""

    commit: str
    private: bool
    files: Mapping[str, HubFile]

    @property
    def generation(self) -> int:
        """The newest generation with a manifest; 0 if the repository has no index."""
        names = (name.removeprefix(f"{layout.MANIFESTS}/") for name in self.files if name.startswith(layout.MANIFESTS))
        return max((int(name[:8]) for name in names if layout.MANIFEST_NAME.fullmatch(name)), default=0)

    @property
    def index_files(self) -> set[str]:
        """The names that belong to an index."""
        manifests = rf"{layout.MANIFESTS}/{layout.MANIFEST_NAME.pattern}\Z"
        return {name for name in self.files if re.match(rf"{layout.FILE_PATTERN}|{manifests}", name, re.ASCII)}


class HubRepository:
    """A dataset repository named by `hf://user/name`, with a branch, tag or commit after "@".

    Raises ConfigError for an invalid URL, and StoreError, which names the URL and the fix, for a failed request.
    """

    def __init__(self, url: str) -> None:
        match = _URL.fullmatch(url)
        if match is None:
            raise ConfigError(f'"{shown(url)}" is not a repository on the Hugging Face hub; expected hf://user/name.')
        self._name, self._revision = match[1], match[2] or "main"
        self.url = f"hf://{match[1]}" + (f"@{match[2]}" if match[2] else "")

    @property
    def _api(self) -> Any:
        from huggingface_hub import HfApi  # takes 0.3 s

        return HfApi(library_name="isotrope")

    def require_token(self) -> None:
        """Raise StoreError without a token of the hub."""
        from huggingface_hub import get_token

        if not get_token():
            raise StoreError(f"{self.url}: no token for the Hugging Face hub was found. {LOGIN}.")

    def snapshot(self) -> HubSnapshot:
        """Return the newest commit. Raises NoRepositoryError."""
        with hub_requests(self.url):
            place = {"repo_type": KIND, "revision": self._revision}
            about = self._api.repo_info(self._name, **place)
            entries = self._api.list_repo_tree(self._name, recursive=True, repo_type=KIND, revision=about.sha)
            files = [entry for entry in entries if hasattr(entry, "blob_id")]
        return HubSnapshot(
            about.sha,
            bool(about.private),
            {file.path: HubFile(file.size, file.lfs.sha256 if file.lfs else "", file.blob_id) for file in files},
        )

    def create(self, private: bool) -> None:
        """Create the repository."""
        with hub_requests(self.url):
            self._api.create_repo(self._name, repo_type=KIND, private=private)

    def read(self, snapshot: HubSnapshot, name: str) -> bytes:
        """Return the bytes of a small file."""
        with TemporaryDirectory(prefix="isotrope-") as folder:
            return self.download(snapshot, name, Path(folder)).read_bytes()

    def manifest(self, snapshot: HubSnapshot) -> tuple[Manifest, bytes]:
        """Return the manifest of the newest generation and its bytes, after comparing the size of every file that it
        lists. Raises NotAnIndexError, CorruptIndexError."""
        if not snapshot.generation:
            push = spelled("push_index(index, url)", "isotrope push INDEX URL")
            raise NotAnIndexError(f"{self.url}: contains no index (it has no manifest). Fix: {push}.")
        name = layout.manifest_name(snapshot.generation)
        if snapshot.files[name].size > MOST_BYTES:
            raise CorruptIndexError(f"{self.url}: {name} has more than {MOST_BYTES:,} bytes.")
        data = self.read(snapshot, name)
        manifest = parse_manifest(data, f"{self.url}/{name}", snapshot.generation)
        for file, digest in manifest.files.items():
            entry = snapshot.files.get(file)
            if entry is None or entry.size != digest.bytes:
                found = f"has {entry.size:,} bytes, the manifest says {digest.bytes:,}" if entry else "is missing"
                raise CorruptIndexError(f"{self.url}: {file} {found}. Fix: push the index again from its source.")
        return manifest, data

    def download(self, snapshot: HubSnapshot, name: str, folder: Path) -> Path:
        """Download a file into a folder, under its name, and return its path."""
        with hub_requests(self.url):
            place = {"repo_type": KIND, "revision": snapshot.commit, "local_dir": folder}
            return Path(self._api.hf_hub_download(self._name, name, **place))

    def upload(self, files: Mapping[str, Path] | Mapping[str, bytes]) -> list[Any]:
        """Upload files and return the additions for `commit`, before which they are invisible. The hub keeps them, so
        that a repeated upload sends nothing."""
        from huggingface_hub import CommitOperationAdd

        with hub_requests(self.url):
            additions = [CommitOperationAdd(name, content) for name, content in files.items()]
            self._api.preupload_lfs_files(
                self._name, additions, repo_type=KIND, revision=self._revision, free_memory=False
            )
            return additions

    def commit(self, parent: HubSnapshot, additions: Sequence[Any], removed: Collection[str], message: str) -> str:
        """Publish uploaded files and remove others, in one step, and return the commit. Raises StoreError if `parent`
        is no longer the newest commit."""
        from huggingface_hub import CommitOperationDelete

        with hub_requests(self.url):
            operations = [*additions, *map(CommitOperationDelete, sorted(removed))]
            place = {"repo_type": KIND, "revision": self._revision, "parent_commit": parent.commit}
            done = self._api.create_commit(self._name, operations, commit_message=message, **place)
            return str(done.oid)
