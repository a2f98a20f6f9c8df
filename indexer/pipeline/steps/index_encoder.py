"""The encoder of a build, and its fitted state in the index, which was fitted before.

The state lies in `encoder/`, in a folder named after the encoder without it. Later generations of the index keep it:
with another state every document would have to be encoded again. To use another one, build at another path.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from indexer.encoders.fitted_state import RECIPE, load_fitted_state
from indexer.encoders.load import open_encoder, warm_backend
from indexer.encoders.protocol import Encoder
from indexer.errors import ConfigError, MismatchError
from indexer.hashing import fingerprint
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.resolution import resolve_spec, spec_difference, with_fitted_state
from indexer.pipeline.generation import Generation
from indexer.pipeline.published_index import PublishedIndex
from indexer.recipe.config import BuildConfig
from indexer.recipe.run_options import RunOptions
from indexer.store import layout
from indexer.store.files import FileDigest, atomic_write_bytes, digest_file, make_folder
from indexer.store.integrity import check_sizes, read_checked
from indexer.system.regular_files import read_regular
from indexer.typed_json import convert_json, decode_json


@dataclass(frozen=True)
class StoredState:
    """The fitted state of an encoder in an index: its files by name relative to the index."""

    files: dict[str, FileDigest]
    key: str = ""  # of what it was fitted on
    trained: bool = False  # taken from a folder that `encoder.fitted` named

    def of(self, index: Path, spec: EncoderSpec) -> EncoderSpec:
        """Return the encoder with the state."""
        files = {Path(name).name: digest.sha256 for name, digest in self.files.items()
                 if not name.endswith(layout.STATE)}  # fmt: skip
        return with_fitted_state(spec, index / layout.state_folder(spec.base_fingerprint), files)


def stored_state(index: Path, spec: EncoderSpec) -> StoredState | None:
    """Return the state of an encoder that lies complete in an index, None where there is none."""
    files = state_files(index, spec)
    if not files or not all(
        (index / name).is_file() and digest_file(index / name) == digest for name, digest in files.items()
    ):
        return None
    stated = _stated(index, spec)
    return StoredState(files, stated.get("key", ""), stated.get("trained", False))


def write_state(index: Path, spec: EncoderSpec, files: Mapping[str, bytes], key: str, trained: bool = False) -> None:
    """Write a state into an index; `state.json`, which makes it complete, comes last."""
    folder = index / layout.state_folder(spec.base_fingerprint)
    make_folder(folder)
    digests = {
        name: msgspec.structs.asdict(atomic_write_bytes(folder / name, data)) for name, data in sorted(files.items())
    }
    atomic_write_bytes(folder / layout.STATE, json.dumps({"key": key, "trained": trained, "files": digests}).encode())


def finished_encoder(generation: Generation, spec: EncoderSpec) -> EncoderSpec:
    """Return the encoder with its fitted state in the index, as it is where it needs none or there is none.

    The state is that of the index whose transform is reused, that of `encoder.fitted`, or the one in the index: of the
    published generation, of an interrupted build, or put there by the command line. Raises ConfigError and
    MismatchError where another state was published, and what reading a state raises.
    """
    if not spec.needs_state:
        return spec
    index, there = generation.index, stored_state(generation.index, spec)
    published = is_published(generation.published, spec)
    if generation.donor:
        return _with_state_of(generation.donor, generation, spec, there)
    if spec.trained:
        fitted = load_fitted_state(spec)
        if there is None or there.of(index, spec).identity != fitted.identity:
            if published:
                raise _another_state(index, f"that of encoder.fitted ({spec.trained})")
            state = fitted.identity.state or {}
            files = {name: read_regular(Path(spec.trained) / name) for name in state}
            write_state(index, spec, files, fingerprint({"trained": state}), trained=True)
        return with_fitted_state(spec, index / layout.state_folder(spec.fingerprint), fitted.identity.state or {})
    if there is None:
        return spec
    if there.trained and published:
        raise _another_state(index, "one that is fitted on its own corpus")
    return there.of(index, spec)


def _with_state_of(
    donor: PublishedIndex, generation: Generation, spec: EncoderSpec, there: StoredState | None
) -> EncoderSpec:
    """Copy the state from another index, unless it is there already."""
    index, folder = generation.index, layout.state_folder(spec.fingerprint)
    wanted = {name: digest for name, digest in donor.manifest.files.items() if name.startswith(f"{folder}/")}
    if there is None or there.files != wanted:
        if is_published(generation.published, spec):
            raise MismatchError(
                f"{donor.index}: its encoder was fitted to another corpus than that of {index}, so its transform is of "
                "other embeddings. Build at another path."
            )
        make_folder(index / folder)
        for name in sorted(wanted, key=lambda name: name.endswith(layout.STATE)):  # the mark of completeness last
            atomic_write_bytes(index / name, read_checked(donor.index / name, wanted[name]))
    return StoredState(wanted).of(index, spec)


def _another_state(index: Path, wanted: str) -> ConfigError:
    return ConfigError(
        f"{index}: holds embeddings of another fitted encoder than the recipe asks for, {wanted}. Fix: build at "
        "another path."
    )


def require_finished(spec: EncoderSpec) -> None:
    """Raise ConfigError, with the command that fits the encoder, for one that is not fitted yet."""
    if not spec.needs_state:
        return
    int8 = spec.identity.precision == "int8"
    setting = 'precision is "int8"' if int8 else f'pooling is "{spec.identity.pooling}"'
    raise ConfigError(
        f"encoder.{setting}, which is fitted to a corpus before a build, and encoder.fitted names no folder. Fix: "
        f"isotrope train {'int8' if int8 else spec.identity.pooling} CORPUS -o FOLDER, then build with --config "
        f"FOLDER/{RECIPE}. (In Python: indexer.train_encoder.)"
    )


def require_same_encoder(donor: PublishedIndex, spec: EncoderSpec) -> None:
    """Raises MismatchError unless an index, whose transform is to be taken over, was built with this encoder."""
    check_sizes(donor.index, donor.manifest)
    identity = {key: value for key, value in donor.manifest.encoder["identity"].items() if key != "state"}
    if identity != spec.identity.to_dict():
        raise MismatchError(
            f"{donor.index}: its transform was fitted to another encoder's embeddings: "
            f"{spec_difference(identity, spec)}. Take the transform of an index that was built with this recipe's "
            "encoder."
        )


def is_published(published: PublishedIndex | None, spec: EncoderSpec) -> bool:
    """Return whether the newest generation names a state of this encoder."""
    folder = layout.state_folder(spec.base_fingerprint)
    return published is not None and any(name.startswith(f"{folder}/") for name in published.manifest.files)


def _stated(index: Path, spec: EncoderSpec) -> dict[str, Any]:
    """What `state.json` says: nothing while it is not there or cannot be read."""
    from indexer.store.manifest import StateFields

    path = index / layout.state_folder(spec.base_fingerprint) / layout.STATE
    try:
        stated = decode_json(read_regular(path, follow_links=False), dict[str, Any])
        convert_json(stated, StateFields)
    except (OSError, ValueError):
        return {}
    return stated


def state_files(index: Path, spec: EncoderSpec) -> dict[str, FileDigest]:
    """What a manifest says of the encoder's state: file, relative to the index -> digest; nothing while incomplete."""
    folder, stated = layout.state_folder(spec.base_fingerprint), _stated(index, spec)
    if not stated:
        return {}
    files = {f"{folder}/{name}": FileDigest(**digest) for name, digest in stated["files"].items()}
    return files | {f"{folder}/{layout.STATE}": digest_file(index / folder / layout.STATE)}


class LazyEncoder:
    """A recipe and its encoder, which is loaded when it is first needed, and only once.

    `spec` may be a function that finds it, for changes that mostly need none. A copy sent to a worker loads its own.
    """

    def __init__(self, config: BuildConfig, options: RunOptions, spec: EncoderSpec | Callable[[], EncoderSpec]) -> None:
        self.config, self._options, self._spec = config, options, spec
        self._encoder: Encoder | None = None

    @property
    def spec(self) -> EncoderSpec:
        """Which encoder. Raises what finding it raises."""
        if not isinstance(self._spec, EncoderSpec):
            self._spec = self._spec()
        return self._spec

    def get(self) -> Encoder:
        """The encoder. Raises MismatchError if its files have changed since it was found, ModelError, MachineError."""
        if self._encoder is None:
            # On a worker's machine a hub id's files may lie elsewhere.
            moved = not self.spec.local and not Path(self.spec.folder).exists()
            folder = None if moved else self.spec.folder
            now = resolve_spec(self.config, folder, self.spec.identity.rules)
            if now.fingerprint != self.spec.base_fingerprint:
                raise MismatchError(
                    f"{self.spec.folder}: the model changed while the build was running: "
                    f"{spec_difference(self.spec.identity, now)}. Put it back, or start again with the new one."
                )
            self._spec = replace(self.spec, folder=now.folder, found=now.found)
            self._encoder = open_encoder(self._spec, self._options)
        return self._encoder

    def prepare(self) -> None:
        """Make what workers would otherwise all make at the same time."""
        warm_backend(self.spec, self._options)

    def for_worker(self, worker: int, threads: int) -> "LazyEncoder":
        """The encoder for one of several processes: with its share of the threads, and its own GPU."""
        options = replace(self._options, device=_device_of(worker, self._options.device), threads=threads)
        return LazyEncoder(self.config, options, self.spec)

    def with_state_in(self, index: Path) -> "LazyEncoder":
        """The encoder whose fitted state, if it has one, lies in the folder that stands for the index here."""
        spec = self.spec
        if spec.state is None:
            return self
        return LazyEncoder(
            self.config, self._options, replace(spec, state=str(index / layout.state_folder(spec.base_fingerprint)))
        )

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_encoder": None, "_spec": self.spec}


def _device_of(worker: int, device: str) -> str:
    if device not in ("auto", "cuda"):
        return device
    import torch  # only to count the GPUs

    count = torch.cuda.device_count()
    return f"cuda:{worker % count}" if count else device


def unknown_note(quality: Mapping[str, Any]) -> tuple[str, ...]:
    """That some texts hold nothing the table knows, if so."""
    count = quality.get("without_tokens", 0)
    said = f"{count:,} texts hold nothing that the table knows; each stands as the mean of the table's vectors"
    return (said,) if count else ()
