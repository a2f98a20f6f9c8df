"""Encoders with a fitted state: int8 ranges are calibrated on a sample of the corpus, once for an index.

The state lies in `encoder/`, in a folder named after the encoder without it. An interrupted build finds it there
again, and later generations of the index keep it: another one would mean to encode everything anew. To calibrate on
another corpus, build at another path.
"""

import json
import tempfile
from dataclasses import asdict, replace
from pathlib import Path

from indexer.corpus.document import joined_text
from indexer.encoders.identity import with_state
from indexer.encoders.protocol import EncoderSpec
from indexer.pipeline.context import BuildContext
from indexer.pipeline.fit import chosen_documents
from indexer.pipeline.progress import Progress
from indexer.pipeline.stored_transform import Donor
from indexer.sampling import Population
from indexer.store import layout
from indexer.store.checked import read_checked
from indexer.store.files import FileStamp, make_folder, stamp_file, write_bytes


def require_fittable(spec: EncoderSpec) -> None:
    """Raise ConfigError when the encoder needs a calibration and nothing that calibrates is installed."""
    if spec.needs_state:
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


def fit_encoder(build: BuildContext, population: Population, progress: Progress) -> BuildContext:
    """The build with the encoder's state, fitted now if there is none. The sample: smallest hashes of ids."""
    if not build.spec.needs_state:
        return build
    from indexer.encoders.calibration import CALIBRATION_TEXTS, calibrate

    progress.phase("calibrating", None)
    documents = chosen_documents(population.draw(CALIBRATION_TEXTS))
    joined = [joined_text(document, build.config.corpus.text) for document in documents]
    texts = _spread(build.cutter(joined).texts, CALIBRATION_TEXTS)
    folder = build.index / layout.state_folder(build.spec.fingerprint)
    with tempfile.TemporaryDirectory(prefix="isotrope-") as beside:
        calibrate(build.spec, texts, Path(beside))
        make_folder(folder)
        stamps = {
            path.name: asdict(write_bytes(folder / path.name, path.read_bytes()))
            for path in sorted(Path(beside).iterdir())
        }
    write_bytes(folder / layout.STATE, json.dumps({"texts": len(texts), "files": stamps}).encode())
    return replace(build, spec=with_kept_state(build.index, build.spec))


def _spread(texts: list[str], most: int) -> list[str]:
    """At most so many of the texts, at even distances."""
    if len(texts) <= most:
        return texts
    return [texts[place * len(texts) // most] for place in range(most)]


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
