"""Encoders with a fitted state: int8 ranges, token counts or an auto-encoder, fitted on a sample of the corpus, once.

The state lies in `encoder/`, in a folder named after the encoder without it. An interrupted build finds it there
again, and later generations of the index keep it: another one would mean to encode everything anew. To fit on another
corpus, build at another path.
"""

import dataclasses
import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any, Protocol

from indexer.config import BuildConfig, RunOptions
from indexer.corpus.document import joined_text
from indexer.encoders import Encoder, EncoderSpec, resolve_spec, spec_difference
from indexer.encoders.chunker import DocumentChunker
from indexer.encoders.fitting import Texts, fit_state, load_fitted_state
from indexer.encoders.int8 import CALIBRATION_TEXTS
from indexer.encoders.load import open_encoder, warm_backend
from indexer.encoders.spec import spec_of_index, with_fitted_state
from indexer.errors import ConfigError, MismatchError
from indexer.hashing import fingerprint
from indexer.parallel import available_cores
from indexer.pipeline.change import Change
from indexer.pipeline.context import BuildContext
from indexer.pipeline.rows import Population, drawn_documents
from indexer.pipeline.stored_transform import Donor
from indexer.progress import Progress, step_callback
from indexer.regular_files import read_regular
from indexer.store import layout
from indexer.store.checked import read_checked
from indexer.store.files import FileDigest, atomic_write_bytes, digest_file, make_folder
from indexer.store.manifest import Manifest
from indexer.typed_json import convert_json, decode_json

# TODO-DOC indexer.pipeline.late_encoder: The encoder of a published index for changes that mostly need none.

# TODO-DOC indexer.pipeline.static_notes: What is said of texts and words that a static table does not know.

_BLOCK = 1024  # documents whose texts are in memory together


def require_fittable(spec: EncoderSpec) -> None:
    """Raise what would stop the encoder from being fitted, as far as it can be known before a corpus is read."""
    if spec.trained:
        load_fitted_state(spec)
    elif spec.needs_state and spec.identity.precision == "int8":
        from indexer.encoders.int8 import require_calibration

        require_calibration()


def with_kept_state(index: Path, spec: EncoderSpec) -> EncoderSpec:
    """The encoder with the state that an earlier run left in the index, if it needs one and it is whole."""
    stamps = state_files(index, spec) if spec.needs_state else {}
    if not stamps or not all(
        (index / name).is_file() and digest_file(index / name) == stamp for name, stamp in stamps.items()
    ):
        return spec
    files = {Path(name).name: stamp.sha256 for name, stamp in stamps.items() if not name.endswith(layout.STATE)}
    return with_fitted_state(spec, index / layout.state_folder(spec.fingerprint), files)


def adopt_state(index: Path, spec: EncoderSpec, donor: Donor, published: Manifest | None) -> None:
    """Copy the encoder's fitted state from another index, if one is needed.

    Raises MismatchError where this index was published with another one.
    """
    if not spec.needs_state:
        return
    folder = layout.state_folder(spec.fingerprint)
    there = {name: stamp for name, stamp in donor.manifest.files.items() if name.startswith(f"{folder}/")}
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


def require_same_state(build: BuildContext) -> None:
    """Raises ConfigError when a published index holds another auto-encoder than the recipe asks for."""
    spec = build.spec
    if spec.state is None or build.taken or not _is_published(build.published, spec):
        return
    trained = _stated(build.index, spec).get("trained", False)
    wanted = load_fitted_state(_without_state(spec)).identity.state if spec.trained else None
    if (spec.trained and spec.identity.state != wanted) or (trained and not spec.trained):
        asked = f"that of encoder.fitted ({spec.trained})" if spec.trained else "one that is fitted on its own corpus"
        raise ConfigError(
            f"{build.index}: holds embeddings of another auto-encoder than the recipe asks for, {asked}; build at "
            "another path."
        )


def fit_encoder(build: BuildContext, population: Population, options: RunOptions, progress: Progress) -> BuildContext:
    """The build with the encoder's state, fitted now unless there is one of the same texts. The sample: smallest hashes
    of ids. What was published with the index is kept, whatever it was fitted on."""
    spec = build.spec
    if not (spec.needs_state or spec.state) or (spec.state and (build.taken or _is_published(build.published, spec))):
        return build
    texts = _sampled_texts(build, population)
    key = _key(spec, texts)
    if spec.state and _stated(build.index, spec).get("key", key) == key:
        return build
    spec = _without_state(spec) if spec.state else spec
    folder = build.index / layout.state_folder(spec.fingerprint)
    progress.phase("fitting the encoder", None)
    with tempfile.TemporaryDirectory(prefix="isotrope-") as beside:
        fit_state(spec, texts, Path(beside), options, step_callback(progress, "training"))
        make_folder(folder)
        stamps = {
            path.name: asdict(atomic_write_bytes(folder / path.name, path.read_bytes()))
            for path in sorted(Path(beside).iterdir())
        }
    stated = {"key": key, "trained": bool(spec.trained), "files": stamps}
    atomic_write_bytes(folder / layout.STATE, json.dumps(stated).encode())
    return replace(build, spec=with_kept_state(build.index, spec))


def kept_state_note(build: BuildContext) -> str:
    """What is said where a new generation keeps what its encoder was fitted with."""
    if build.spec.state and build.overwrite and _is_published(build.published, build.spec):
        return "what the encoder was fitted with is kept from the generation before; build elsewhere to fit it anew"
    return ""


def _sampled_texts(build: BuildContext, population: Population) -> Texts:
    int8 = build.spec.identity.precision == "int8"
    drawn = population.draw_documents(CALIBRATION_TEXTS if int8 else build.config.whitening.sample)

    def texts() -> Iterator[list[str]]:
        documents = drawn_documents(population.folders, drawn)
        while block := list(islice(documents, _BLOCK)):
            yield build.cutter([joined_text(document, build.config.corpus.text) for document in block]).texts

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


def _is_published(published: Manifest | None, spec: EncoderSpec) -> bool:
    """Whether the newest generation names a state of this encoder."""
    folder = layout.state_folder(spec.unfitted)
    return published is not None and any(name.startswith(f"{folder}/") for name in published.files)


def _without_state(spec: EncoderSpec) -> EncoderSpec:
    return replace(
        spec, identity=spec.identity.without_state(), fingerprint=spec.unfitted, state=None, without_state=""
    )


def _stated(index: Path, spec: EncoderSpec) -> dict[str, Any]:
    """What `state.json` says: nothing while it is not there or cannot be read."""
    from indexer.store.manifest_schema import StateFields

    path = index / layout.state_folder(spec.unfitted) / layout.STATE
    try:
        stated = decode_json(read_regular(path, follow_links=False), dict[str, Any])
        convert_json(stated, StateFields)
    except (OSError, ValueError):
        return {}
    return stated


def state_files(index: Path, spec: EncoderSpec) -> dict[str, FileDigest]:
    """What a manifest says of the encoder's state: file, relative to the index -> stamp; nothing while incomplete."""
    folder, stated = layout.state_folder(spec.unfitted), _stated(index, spec)
    if not stated:
        return {}
    files = {f"{folder}/{name}": FileDigest(**stamp) for name, stamp in stated["files"].items()}
    return files | {f"{folder}/{layout.STATE}": digest_file(index / folder / layout.STATE)}


class LateEncoder:
    """The encoder of an index, found and loaded when the first text needs it; `model` is its folder if it has moved."""

    def __init__(self, opened: Change, config: BuildConfig, options: RunOptions, model: str | Path | None) -> None:
        self.config, self._opened, self._options, self._model = config, opened, options, model

    def get(self) -> Encoder:
        """The encoder. Raises ModelError and MismatchError."""
        return self._loaded

    @cached_property
    def _loaded(self) -> Encoder:
        return open_encoder(spec_of_index(self._opened.index, self._opened.published, self._model), self._options)


def unknown_note(quality: Mapping[str, Any]) -> tuple[str, ...]:
    """That some texts hold nothing the table knows, if so."""
    count = quality.get("without_tokens", 0)
    said = f"{count:,} texts hold nothing that the table knows; each stands as the mean of the table's vectors"
    return (said,) if count else ()


class EncoderSource:
    """Loads the encoder when it is first needed, and only once; a copy sent to a worker loads its own."""

    def __init__(self, config: BuildConfig, options: RunOptions, spec: EncoderSpec) -> None:
        self.config, self.spec, self._options = config, spec, options
        self.cutter = DocumentChunker(spec, config.chunk)
        self._encoder: Encoder | None = None

    def get(self) -> Encoder:
        """The encoder. Raises MismatchError if its files have changed since the build began."""
        if self._encoder is None:
            now = resolve_spec(self.config.encoder, self.spec.folder, self.spec.identity.rules)
            if now.fingerprint != self.spec.unfitted:
                raise MismatchError(
                    f"{self.spec.folder}: the model changed while the build was running: "
                    f"{spec_difference(self.spec.identity, now)}. Put it back, or start again with the new one."
                )
            self._encoder = open_encoder(self.spec, self._options)
        return self._encoder

    def prepare(self) -> None:
        """Make what workers would otherwise all make at the same time."""
        warm_backend(self.spec, self._options)

    def for_worker(self, worker: int) -> "EncoderSource":
        """The source for one of several processes: its share of the threads, and its own GPU."""
        cores = self._options.threads or available_cores()
        options = dataclasses.replace(
            self._options,
            device=_device_of(worker, self._options.device),
            threads=max(1, cores // self._options.workers),
        )
        return EncoderSource(self.config, options, self.spec)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_encoder": None}


def _device_of(worker: int, device: str) -> str:
    if device not in ("auto", "cuda"):
        return device
    import torch  # only to count the GPUs

    count = torch.cuda.device_count()
    return f"cuda:{worker % count}" if count else device


class QueryEncoder(Protocol):
    """A recipe with its encoder, loaded when it is first asked for."""

    config: BuildConfig

    def get(self) -> Encoder:
        """The encoder."""
        ...
