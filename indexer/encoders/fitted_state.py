"""The state fitted to an encoder before a build: int8 ranges, or the state of a paper's pooling.

A state is a few files in a folder; `with_fitted_state` adds them to the encoder. `isotrope train` also writes
`fitted.json`, which records the encoder and the hashes of the files, and a recipe to build with.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from indexer.encoders.token_embeddings import OnStep, Texts
from indexer.errors import MismatchError, ModelError, spelled
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.model_files import file_sha256
from indexer.models.resolution import with_fitted_state
from indexer.recipe.paper_methods import POOLINGS, load_method
from indexer.recipe.run_options import RunOptions
from indexer.system.regular_files import read_regular
from indexer.typed_json import decode_json

RECIPE = "recipe.toml"  # in the same folder: the recipe to build with
FITTED = "fitted.json"


@dataclass(frozen=True)
class FittedRecord:
    """`fitted.json`: the fingerprint of the encoder that was fitted, its model's name, and file name -> sha256."""

    encoder: str
    model: str
    files: dict[str, str]


def fit_state(
    spec: EncoderSpec, texts: Texts, folder: Path, options: RunOptions, on_step: OnStep | None = None
) -> dict[str, Any]:
    """Write the state of an encoder, fitted on `texts`, into `folder`; return facts about the fit (JSON types).

    `on_step(done, total)` is called during the training of an auto-encoder. Raises ConfigError if there is no text.
    """
    if spec.identity.precision == "int8":
        from indexer.encoders.int8 import CALIBRATION_TEXTS, quantise

        sample = [text for block in texts() for text in block]
        count = min(len(sample), CALIBRATION_TEXTS)
        quantise(spec, [sample[place * len(sample) // count] for place in range(count)], folder)  # evenly spaced
        return {}
    facts: dict[str, Any] = load_method(POOLINGS[spec.identity.pooling]).fit(spec, texts, folder, options, on_step)
    return facts


def fitted_record(spec: EncoderSpec, folder: Path) -> bytes:
    """Return the bytes of `fitted.json` for the state in a folder."""
    files = {path.name: file_sha256(path) for path in sorted(folder.iterdir())}
    return json.dumps(asdict(FittedRecord(_fitted_encoder(spec), spec.model, files)), indent=1).encode() + b"\n"


def _trainer() -> str:
    return spelled("train_encoder", "`isotrope train`")


def load_fitted_state(spec: EncoderSpec) -> EncoderSpec:
    """Return the encoder with the state that `isotrope train` wrote into its `fitted` folder; unchanged without one.

    Raises ModelError for a folder without a state, MismatchError for a state of another encoder or other settings.
    """
    if not spec.fitted:
        return spec
    folder, paper = Path(spec.fitted), POOLINGS.get(spec.identity.pooling)
    if not folder.is_dir():
        raise ModelError(f"encoder.fitted: {folder}: no such folder; expected one that {_trainer()} wrote.")
    record = _record(folder)
    if record is not None and record.encoder != _fitted_encoder(spec):
        raise MismatchError(
            f"encoder.fitted: {folder} was trained on the token vectors of another encoder, or with other settings "
            f"({record.model}). Fix: train with this recipe, or build with "
            + spelled(f'BuildConfig.load("{folder / RECIPE}")', f"--config {folder / RECIPE}")
        )
    if paper:
        load_method(paper).check_state(spec, folder)
    names = tuple(record.files) if record else load_method(paper).STATE_FILES if paper else ()
    missing = [name for name in names if not (folder / name).is_file()]
    if not names or missing:
        raise ModelError(
            f"encoder.fitted: {folder} does not contain {', '.join(missing) or FITTED}; expected a folder that "
            f"{_trainer()} wrote for this encoder."
        )
    digests = {name: file_sha256(folder / name) for name in names}
    if record and digests != record.files:
        raise ModelError(f"encoder.fitted: {folder}: its files differ from {FITTED}. Fix: train again.")
    return with_fitted_state(spec, folder, digests)


def _fitted_encoder(spec: EncoderSpec) -> str:
    """Return the fingerprint of what a state depends on: int8 ranges on everything, a pooling on the token vectors."""
    return spec.base_fingerprint if spec.identity.precision == "int8" else spec.identity.token_fingerprint


def _record(folder: Path) -> FittedRecord | None:
    """Return the record; None for a folder of an earlier version."""
    path = folder / FITTED
    try:
        return decode_json(read_regular(path), FittedRecord)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read: {error}. Fix: train again.") from error
