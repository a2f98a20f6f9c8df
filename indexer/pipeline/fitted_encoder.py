"""Encoders with a fitted state: int8 ranges, token counts or an auto-encoder, fitted on a sample of the corpus, once.

The state lies in `encoder/`, in a folder named after the encoder without it. An interrupted build finds it there
again, and later generations of the index keep it: another one would mean to encode everything anew. To fit on another
corpus, build at another path.
"""

import json
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path

from indexer.config import RunOptions
from indexer.corpus.document import joined_text
from indexer.encoders.calibration import CALIBRATION_TEXTS
from indexer.encoders.fitting import fit_state, trained_state
from indexer.encoders.identity import with_state
from indexer.encoders.protocol import EncoderSpec
from indexer.errors import ConfigError
from indexer.pipeline.context import BuildContext
from indexer.pipeline.fit import chosen_documents
from indexer.pipeline.progress import Progress, told_of_steps
from indexer.pipeline.stored_transform import Donor
from indexer.sampling import Population
from indexer.store import layout
from indexer.store.checked import read_checked
from indexer.store.files import FileStamp, make_folder, stamp_file, write_bytes

_BLOCK = 1024  # documents whose texts are in memory together


def require_fittable(spec: EncoderSpec) -> None:
    """Raise what would stop the encoder from being fitted, as far as it can be known before a corpus is read."""
    if spec.trained:
        trained_state(spec)
    elif spec.needs_state and spec.identity["precision"] == "int8":
        from indexer.encoders.calibration import require_calibration

        require_calibration()


def with_kept_state(index: Path, spec: EncoderSpec) -> EncoderSpec:
    """The encoder with the state that an earlier run left in the index, if it needs one and it is whole."""
    stamps = state_files(index, spec) if spec.needs_state else {}
    if not stamps or not all(
        (index / name).is_file() and stamp_file(index / name) == stamp for name, stamp in stamps.items()
    ):
        return spec
    files = {Path(name).name: stamp.sha256 for name, stamp in stamps.items() if not name.endswith(layout.STATE)}
    return with_state(spec, index / layout.state_folder(spec.fingerprint), files)


def adopt_state(index: Path, spec: EncoderSpec, donor: Donor) -> None:
    """Copy the encoder's fitted state from another index, unless there is one here or none is needed."""
    if not spec.needs_state or state_files(index, spec):
        return
    folder = layout.state_folder(spec.fingerprint)
    make_folder(index / folder)
    names = [name for name in donor.manifest.files if name.startswith(f"{folder}/")]
    for name in sorted(names, key=lambda name: name.endswith(layout.STATE)):  # the mark of completeness last
        write_bytes(index / name, read_checked(donor.index / name, donor.manifest.files[name]))


def fit_encoder(build: BuildContext, population: Population, options: RunOptions, progress: Progress) -> BuildContext:
    """The build with the encoder's state, fitted now if there is none. The sample: smallest hashes of ids.

    Raises ConfigError when the index holds another state than the trained one that the recipe names.
    """
    _require_same_state(build)
    if not build.spec.needs_state:
        return build
    size = CALIBRATION_TEXTS if build.spec.identity["precision"] == "int8" else build.config.whitening.sample
    chosen = population.draw(size)

    def texts() -> Iterator[list[str]]:
        documents = chosen_documents(chosen)
        while block := list(islice(documents, _BLOCK)):
            yield build.cutter([joined_text(document, build.config.corpus.text) for document in block]).texts

    folder = build.index / layout.state_folder(build.spec.fingerprint)
    progress.phase("fitting the encoder", None)
    with tempfile.TemporaryDirectory(prefix="isotrope-") as beside:
        fit_state(build.spec, texts, Path(beside), options, told_of_steps(progress, "training"))
        make_folder(folder)
        stamps = {
            path.name: asdict(write_bytes(folder / path.name, path.read_bytes()))
            for path in sorted(Path(beside).iterdir())
        }
    fitted_on = 0 if build.spec.trained else sum(map(len, texts()))
    write_bytes(folder / layout.STATE, json.dumps({"texts": fitted_on, "files": stamps}).encode())
    return replace(build, spec=with_kept_state(build.index, build.spec))


def _require_same_state(build: BuildContext) -> None:
    spec = build.spec
    if spec.trained and spec.state and spec.identity["state"] != trained_state(_without_state(spec)).identity["state"]:
        raise ConfigError(
            f"{build.index}: holds embeddings of another auto-encoder than encoder.fitted names ({spec.trained}); "
            "build at another path."
        )


def _without_state(spec: EncoderSpec) -> EncoderSpec:
    identity = {key: value for key, value in spec.identity.items() if key != "state"}
    return replace(spec, identity=identity, fingerprint=spec.unfitted, state=None, without_state="")


def state_files(index: Path, spec: EncoderSpec) -> dict[str, FileStamp]:
    """What a manifest says of the encoder's state: file, relative to the index -> stamp; nothing while incomplete."""
    folder = layout.state_folder(spec.unfitted)
    path = index / folder / layout.STATE
    try:
        stated = json.loads(path.read_bytes())["files"]
        files = {f"{folder}/{name}": FileStamp(**stamp) for name, stamp in stated.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}
    return files | {f"{folder}/{layout.STATE}": stamp_file(path)}
