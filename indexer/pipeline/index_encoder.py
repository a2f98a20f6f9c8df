"""Encoders with a fitted state: int8 ranges, token counts or an auto-encoder, fitted on a sample of the corpus, once.

The state lies in `encoder/`, in a folder named after the encoder without it. An interrupted build finds it there
again, and later generations of the index keep it: another one would mean to encode everything anew. To fit on another
corpus, build at another path.
"""

import hashlib
import json
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec

from indexer.config import BuildConfig
from indexer.corpus.document import joined_text
from indexer.encoders import Encoder, EncoderSpec, resolve_spec, spec_difference
from indexer.encoders.fitted_state import Texts, fit_state, load_fitted_state
from indexer.encoders.int8 import CALIBRATION_TEXTS
from indexer.encoders.load import open_encoder, warm_backend
from indexer.encoders.spec import with_fitted_state
from indexer.errors import ConfigError, MismatchError
from indexer.hashing import fingerprint
from indexer.pipeline.generation import Generation
from indexer.pipeline.published_index import PublishedIndex
from indexer.pipeline.rows import RowView
from indexer.progress import Progress, step_callback
from indexer.regular_files import read_regular
from indexer.run_options import RunOptions
from indexer.store import layout
from indexer.store.files import FileDigest, atomic_write_bytes, digest_file, make_folder
from indexer.store.integrity import check_sizes, read_checked
from indexer.typed_json import convert_json, decode_json

_BLOCK = 1024  # documents whose texts are in memory together


def require_fittable(spec: EncoderSpec) -> None:
    """Raise what would stop the encoder from being fitted, as far as it can be known before a corpus is read."""
    if spec.trained:
        load_fitted_state(spec)
    elif spec.needs_state and spec.identity.precision == "int8":
        from indexer.encoders.int8 import require_calibration

        require_calibration()


def with_stored_state(index: Path, spec: EncoderSpec) -> EncoderSpec:
    """The encoder with the state that an earlier run left in the index, if it needs one and it is whole."""
    digests = state_files(index, spec) if spec.needs_state else {}
    if not digests or not all(
        (index / name).is_file() and digest_file(index / name) == digest for name, digest in digests.items()
    ):
        return spec
    files = {Path(name).name: digest.sha256 for name, digest in digests.items() if not name.endswith(layout.STATE)}
    return with_fitted_state(spec, index / layout.state_folder(spec.fingerprint), files)


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


def copy_state(index: Path, spec: EncoderSpec, donor: PublishedIndex, published: PublishedIndex | None) -> None:
    """Copy the encoder's fitted state from another index, if one is needed.

    Raises MismatchError where this index was published with another one.
    """
    if not spec.needs_state:
        return
    folder = layout.state_folder(spec.fingerprint)
    there = {name: digest for name, digest in donor.manifest.files.items() if name.startswith(f"{folder}/")}
    if state_files(index, spec) == there:
        return
    if _is_published(published, spec):
        raise MismatchError(
            f"{donor.index}: its encoder was fitted to another corpus than that of {index}, so its transform is of "
            "other embeddings. Build at another path."
        )
    make_folder(index / folder)
    for name in sorted(there, key=lambda name: name.endswith(layout.STATE)):  # the mark of completeness last
        atomic_write_bytes(index / name, read_checked(donor.index / name, there[name]))


def require_same_state(generation: Generation) -> None:
    """Raises ConfigError when a published index holds another auto-encoder than the recipe asks for."""
    spec = generation.spec
    if spec.state is None or generation.donor or not _is_published(generation.published, spec):
        return
    trained = _stated(generation.index, spec).get("trained", False)
    wanted = load_fitted_state(_without_state(spec)).identity.state if spec.trained else None
    if (spec.trained and spec.identity.state != wanted) or (trained and not spec.trained):
        asked = f"that of encoder.fitted ({spec.trained})" if spec.trained else "one that is fitted on its own corpus"
        raise ConfigError(
            f"{generation.index}: holds embeddings of another auto-encoder than the recipe asks for, {asked}; build at "
            "another path."
        )


def fit_encoder(generation: Generation, rows: RowView, options: RunOptions, progress: Progress) -> bool:
    """Give the generation's encoder its state, fitted now unless there is one of the same texts. The sample: smallest
    hashes of ids. What was published with the index is kept, whatever it was fitted on.

    Returns whether it is another encoder than before, so that embeddings at hand are not its own.
    """
    spec = generation.spec
    is_kept = spec.state and (generation.donor or _is_published(generation.published, spec))
    if is_kept or not (spec.needs_state or spec.state):
        return False
    texts = _sampled_texts(generation, rows)
    key = _key(spec, texts)
    if spec.state and _stated(generation.index, spec).get("key", key) == key:
        return False
    plain = _without_state(spec) if spec.state else spec
    folder = generation.index / layout.state_folder(plain.fingerprint)
    progress.phase("fitting the encoder", None)
    with tempfile.TemporaryDirectory(prefix="isotrope-") as beside:
        fit_state(plain, texts, Path(beside), options, step_callback(progress, "training"))
        make_folder(folder)
        digests = {
            path.name: msgspec.structs.asdict(atomic_write_bytes(folder / path.name, path.read_bytes()))
            for path in sorted(Path(beside).iterdir())
        }
    stated = {"key": key, "trained": bool(plain.trained), "files": digests}
    atomic_write_bytes(folder / layout.STATE, json.dumps(stated).encode())
    generation.set_spec(with_stored_state(generation.index, plain))
    return spec.state is not None and generation.spec.fingerprint != spec.fingerprint


def kept_state_note(generation: Generation) -> str:
    """What is said where a new generation keeps what its encoder was fitted with."""
    if generation.spec.state and generation.overwrite and _is_published(generation.published, generation.spec):
        return "what the encoder was fitted with is kept from the generation before; build elsewhere to fit it anew"
    return ""


def _sampled_texts(generation: Generation, rows: RowView) -> Texts:
    config = generation.config
    int8 = generation.spec.identity.precision == "int8"

    def texts() -> Iterator[list[str]]:
        documents = rows.sampled_documents(CALIBRATION_TEXTS if int8 else config.whitening.sample)
        while block := list(islice(documents, _BLOCK)):
            yield generation.chunker([joined_text(document, config.corpus.text) for document in block]).texts

    return texts


def _key(spec: EncoderSpec, texts: Texts) -> str:
    """What a state is fitted on: the texts, or what was trained beforehand."""
    if spec.trained:
        plain = _without_state(spec) if spec.state else spec
        return fingerprint({"trained": load_fitted_state(plain).identity.state})
    digest = hashlib.sha256()
    for block in texts():
        for text in block:
            digest.update(hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).digest())
    return digest.hexdigest()


def _is_published(published: PublishedIndex | None, spec: EncoderSpec) -> bool:
    """Whether the newest generation names a state of this encoder."""
    folder = layout.state_folder(spec.base_fingerprint)
    return published is not None and any(name.startswith(f"{folder}/") for name in published.manifest.files)


def _without_state(spec: EncoderSpec) -> EncoderSpec:
    return replace(
        spec, identity=spec.identity.without_state(), fingerprint=spec.base_fingerprint, state=None, without_state=""
    )


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
            now = resolve_spec(self.config.encoder, folder, self.spec.identity.rules)
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
