"""The encoder of a published index: found, hashed, and refused if it is another one now."""

from dataclasses import replace
from pathlib import Path

from indexer.config import BuildConfig
from indexer.encoders.identity import mismatch, resolve_spec, with_state
from indexer.encoders.model_files import file_sha256
from indexer.encoders.model_folder import cached_snapshot
from indexer.encoders.protocol import EncoderSpec
from indexer.errors import IsotropeError, MismatchError, ModelError
from indexer.hashing import fingerprint
from indexer.store import layout
from indexer.store.manifest import Manifest


def published_spec(index: Path, manifest: Manifest, model: str | Path | None = None) -> EncoderSpec:
    """The encoder an index was built with; `model` is its folder if it has moved.

    Raises ModelError when it is not to be found, and MismatchError if it is another one now.
    """
    folder = model or _known_folder(index, manifest.encoder["folder"])
    if not folder and (spec := _spec_at_hand(index, manifest)) is not None:
        return spec
    spec = _resolved(index, manifest, folder)
    if spec.fingerprint != manifest.fingerprint:
        raise MismatchError(
            f"{index}: the encoder at hand is not the one this index was built with: "
            f"{_difference(manifest, spec)}. "
            "Point --model to the original model folder, or build the index again with this one."
        )
    return spec


def _difference(manifest: Manifest, found: EncoderSpec) -> str:
    """In what the encoder differs; of one that differs before it is fitted, the state says nothing."""
    expected = manifest.encoder["identity"]
    if "state" not in found.identity:
        expected = {key: value for key, value in expected.items() if key != "state"}
    return mismatch(expected, found)


def _known_folder(index: Path, folder: str) -> str | None:
    """Where the model lay when the index was built; None for a model that is looked up by its hub id."""
    if folder and not Path(folder).exists():
        raise ModelError(f"{index}: its model lay at {folder}, which is gone. Point --model to where it is now.")
    return folder or None


def _spec_at_hand(index: Path, manifest: Manifest) -> EncoderSpec | None:
    """The encoder in the Hugging Face cache, if its hashes say that it is the index's; without the hub's library."""
    snapshot = cached_snapshot(BuildConfig.from_dict(manifest.config).encoder.model)
    if snapshot is None:
        return None
    try:
        spec = _resolved(index, manifest, snapshot)
    except IsotropeError:  # not whole: the ordinary way says what is wrong
        return None
    return replace(spec, local=False) if spec.fingerprint == manifest.fingerprint else None


def _resolved(index: Path, manifest: Manifest, folder: str | Path | None) -> EncoderSpec:
    """The encoder in `folder` by the rules of the index, with the fitted state that lies in the index, hashed anew."""
    identity = manifest.encoder["identity"]
    config = replace(BuildConfig.from_dict(manifest.config).encoder, fitted="")  # the index has it by now
    spec = resolve_spec(config, folder, identity["rules"])
    unfitted = {key: value for key, value in identity.items() if key != "state"}
    if "state" not in identity or spec.fingerprint != fingerprint(unfitted):
        return spec
    state = index / layout.state_folder(spec.fingerprint)
    return with_state(spec, state, {name: file_sha256(state / name) for name in identity["state"]})
