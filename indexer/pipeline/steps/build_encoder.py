"""The encoder of a build, and its previously fitted state in the index.

The state lies in `encoder/`, in a folder named after the unfitted encoder. Later generations keep it, because another
state would require encoding every document again. To use another state, build at another path.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from indexer.encoders.fitted_state import RECIPE, load_fitted_state
from indexer.encoders.load import open_encoder, size_in_memory, warm_backend
from indexer.encoders.protocol import Encoder
from indexer.errors import ConfigError, CorruptIndexError, MismatchError, spelled
from indexer.hashing import fingerprint
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.identity import identity_difference
from indexer.models.resolution import resolve_spec, with_fitted_state
from indexer.pipeline.generation import Generation
from indexer.pipeline.published_index import PublishedIndex
from indexer.recipe.config import BuildConfig
from indexer.recipe.run_options import RunOptions
from indexer.store import layout
from indexer.store.files import FileDigest, atomic_write_bytes, digest_file, make_folder
from indexer.store.integrity import check_sizes, read_checked
from indexer.store.manifest import StateFields
from indexer.system.regular_files import read_regular
from indexer.typed_json import decode_json


@dataclass(frozen=True)
class StoredState:
    """The fitted state of an encoder in an index: its files by name relative to the index."""

    files: dict[str, FileDigest]
    key: str = ""
    trained: bool = False

    def of(self, index: Path, spec: EncoderSpec) -> EncoderSpec:
        """Return the encoder with the state."""
        files = {Path(name).name: digest.sha256 for name, digest in self.files.items()
                 if not name.endswith(layout.STATE)}  # fmt: skip
        return with_fitted_state(spec, index / layout.state_folder(spec.base_fingerprint), files)


def stored_state(index: Path, spec: EncoderSpec) -> StoredState | None:
    """Return the complete, intact state of an encoder in an index, or None."""
    stated, files = _stated(index, spec), state_files(index, spec)
    if stated is None or not all(
        (index / name).is_file() and digest_file(index / name) == digest for name, digest in files.items()
    ):
        return None
    return StoredState(files, stated.key, stated.trained)


def write_state(index: Path, spec: EncoderSpec, files: Mapping[str, bytes], key: str, trained: bool = False) -> None:
    """Write a state into an index; `state.json`, which marks it complete, is written last."""
    folder = index / layout.state_folder(spec.base_fingerprint)
    make_folder(folder)
    digests = {
        name: msgspec.structs.asdict(atomic_write_bytes(folder / name, data)) for name, data in sorted(files.items())
    }
    atomic_write_bytes(folder / layout.STATE, json.dumps({"key": key, "trained": trained, "files": digests}).encode())


def finished_encoder(generation: Generation, spec: EncoderSpec) -> EncoderSpec:
    """Return the encoder with its fitted state in the index, or unchanged if it needs no state or has none.

    The state is that of the index whose transform is reused, that of `encoder.fitted`, or the state in the index: of
    the published generation, of an interrupted build, or written by the command line. Raises ConfigError and
    MismatchError if another state was published, CorruptIndexError for damaged probes, and as reading a state does.
    """
    if not spec.identity.needs_state:
        return spec
    index, stored = generation.index, stored_state(generation.index, spec)
    published = is_published(generation.published, spec)
    if generation.transform_source:
        return _with_state_of(generation.transform_source, generation, spec, stored)
    if spec.fitted:
        fitted = load_fitted_state(spec)
        if stored is None or stored.of(index, spec).identity != fitted.identity:
            if published:
                raise _another_state(index, f"that of encoder.fitted ({spec.fitted})")
            state = fitted.identity.state or {}
            files = {name: read_regular(Path(spec.fitted) / name) for name in state}
            write_state(index, spec, files, fingerprint({"trained": state}), trained=True)
        return with_fitted_state(spec, index / layout.state_folder(spec.fingerprint), fitted.identity.state or {})
    if stored is None and spec.traits.is_remote and published:  # others would stand for another model
        raise CorruptIndexError(
            f"{index}: the stored embeddings of the probe texts are missing or damaged. Fix: restore the file that "
            f"{spelled('verify_index', 'isotrope verify')} names, or build at another path."
        )
    if stored is None:
        return spec
    if stored.trained and published:
        raise _another_state(index, "one that is fitted on its own corpus")
    return stored.of(index, spec)


def _with_state_of(
    source: PublishedIndex, generation: Generation, spec: EncoderSpec, stored: StoredState | None
) -> EncoderSpec:
    """Copy the state from another index, unless it is stored already."""
    index, folder = generation.index, layout.state_folder(spec.fingerprint)
    wanted = {name: digest for name, digest in source.manifest.files.items() if name.startswith(f"{folder}/")}
    if stored is None or stored.files != wanted:
        if is_published(generation.published, spec):
            raise MismatchError(
                f"{source.index}: its encoder was fitted to another corpus than the encoder of {index}, so the "
                "transform does not fit these embeddings. Fix: build at another path."
            )
        make_folder(index / folder)
        for name in sorted(wanted, key=lambda name: name.endswith(layout.STATE)):  # state.json last
            atomic_write_bytes(index / name, read_checked(source.index / name, wanted[name]))
    return StoredState(wanted).of(index, spec)


def probed_encoder(generation: Generation) -> EncoderSpec:
    """Return the generation's encoder; a server without a state is asked for the probes. Raises what asking raises."""
    index, spec = generation.index, generation.spec
    if not (spec.traits.is_remote and spec.identity.needs_state):
        return spec
    from indexer.encoders.server.encoder import ServerEncoder
    from indexer.encoders.server.probes import FILE, probe_bytes

    write_state(index, spec, {FILE: probe_bytes(ServerEncoder(spec, RunOptions()).probes())}, key="")
    files = state_files(index, spec)
    generation.sender.share({}, files)  # a run on another machine needs the same state
    return StoredState(files).of(index, spec)


def _another_state(index: Path, wanted: str) -> ConfigError:
    return ConfigError(
        f"{index}: contains embeddings of another fitted encoder; the recipe expects {wanted}. Fix: build at another "
        "path."
    )


def require_finished(spec: EncoderSpec) -> None:
    """Raise ConfigError, with the command that fits the encoder, if it is not fitted yet."""
    if not spec.identity.needs_state:
        return
    int8 = spec.identity.precision == "int8"
    setting = 'precision is "int8"' if int8 else f'pooling is "{spec.identity.pooling}"'
    raise ConfigError(
        f"encoder.{setting}, which must be fitted to a corpus before a build, but encoder.fitted names no folder. Fix: "
        + spelled(
            f'train_encoder(corpus, FOLDER, config), then build with BuildConfig.load("FOLDER/{RECIPE}").',
            f"isotrope train {'int8' if int8 else spec.identity.pooling} CORPUS -o FOLDER, then build with --config "
            f"FOLDER/{RECIPE}.",
        )
    )


def require_same_encoder(source: PublishedIndex, spec: EncoderSpec) -> None:
    """Raise MismatchError unless the index whose transform is reused was built with this encoder."""
    check_sizes(source.index, source.manifest)
    identity = {key: value for key, value in source.manifest.encoder["identity"].items() if key != "state"}
    if identity != spec.identity.to_dict():
        raise MismatchError(
            f"{source.index}: its transform was fitted to another encoder's embeddings: "
            f"{identity_difference(identity, spec.identity)}. Fix: reuse the transform of an index built with this "
            "recipe's encoder."
        )


def is_published(published: PublishedIndex | None, spec: EncoderSpec) -> bool:
    """Return whether the newest generation names a state of this encoder."""
    folder = layout.state_folder(spec.base_fingerprint)
    return published is not None and any(name.startswith(f"{folder}/") for name in published.manifest.files)


def _stated(index: Path, spec: EncoderSpec) -> StateFields | None:
    """Return the contents of `state.json`; None if it is missing or cannot be read."""
    path = index / layout.state_folder(spec.base_fingerprint) / layout.STATE
    try:
        return decode_json(read_regular(path, follow_links=False), StateFields)
    except (OSError, ValueError):
        return None


def state_files(index: Path, spec: EncoderSpec) -> dict[str, FileDigest]:
    """Return the encoder's state files, as a manifest lists them: path in the index -> digest; empty if incomplete."""
    folder, stated = layout.state_folder(spec.base_fingerprint), _stated(index, spec)
    if stated is None:
        return {}
    files = {f"{folder}/{name}": digest for name, digest in stated.files.items()}
    return files | {f"{folder}/{layout.STATE}": digest_file(index / folder / layout.STATE)}


class LazyEncoder:
    """A recipe and its encoder, which is loaded once, on first use.

    `spec` may be a function that resolves it, for changes that rarely need an encoder. `loaded` is this encoder if the
    caller has loaded it. A worker's copy loads its own encoder.
    """

    def __init__(
        self,
        config: BuildConfig,
        options: RunOptions,
        spec: EncoderSpec | Callable[[], EncoderSpec],
        loaded: Encoder | None = None,
    ) -> None:
        self.config, self._options, self._spec, self._encoder = config, options, spec, loaded

    @property
    def spec(self) -> EncoderSpec:
        if not isinstance(self._spec, EncoderSpec):
            self._spec = self._spec()
        return self._spec

    def get(self) -> Encoder:
        """Return the encoder. Raises MismatchError if its files have changed, ModelError, MachineError."""
        if self._encoder is None:
            # On a worker's machine the files of a hub id may be in another folder.
            has_files = not (self.spec.local or self.spec.traits.is_remote)
            moved = has_files and not Path(self.spec.folder).exists()
            folder = None if moved else self.spec.folder
            now = resolve_spec(self.config, folder, self.spec.identity.rules)
            if now.fingerprint != self.spec.base_fingerprint:
                raise MismatchError(
                    f"{self.spec.folder}: the model changed while the build was running: "
                    f"{identity_difference(self.spec.identity, now.identity)}. Fix: restore it, or start again with "
                    "the new model."
                )
            self._spec = replace(self.spec, folder=now.folder, found=now.found)
            self._encoder = open_encoder(self._spec, self._options)
        return self._encoder

    def encode_queries(self, texts: list[str]) -> npt.NDArray[np.floating]:
        """Return the embeddings (n, d) of queries. Raises as `get`."""
        return self.get().encode(texts, "query")

    @property
    def size(self) -> str:
        """The parameters and bytes that loading the encoder takes, as `size_in_memory`."""
        return size_in_memory(self.spec, self._options)

    def prepare(self) -> None:
        """Create the shared files that otherwise all workers would create at the same time."""
        warm_backend(self.spec, self._options)

    def for_worker(self, worker: int, threads: int) -> "LazyEncoder":
        """Return the encoder for one of several processes, with its share of the threads and its own GPU."""
        options = replace(self._options, device=_device_of(worker, self._options.device), threads=threads)
        return LazyEncoder(self.config, options, self.spec)

    def with_state_in(self, index: Path) -> "LazyEncoder":
        """Return the encoder with its fitted state, if any, in this machine's folder of the index."""
        if self.spec.state is None:
            return self
        state = str(index / layout.state_folder(self.spec.base_fingerprint))
        return LazyEncoder(self.config, self._options, replace(self.spec, state=state))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_encoder": None, "_spec": self.spec}


def _device_of(worker: int, device: str) -> str:
    if device not in ("auto", "cuda"):
        return device
    import torch  # only to count the GPUs

    count = torch.cuda.device_count()
    return f"cuda:{worker % count}" if count else device


def unknown_note(quality: Mapping[str, Any]) -> tuple[str, ...]:
    """Return a note on texts without known tokens, if there are any."""
    count = quality.get("without_tokens", 0)
    return (f"{count:,} texts have no known tokens and get the mean vector of the table",) if count else ()
