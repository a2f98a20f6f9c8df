"""Which files of a static table decide its results. Loads no numerical library."""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from indexer.encoders.model_files import hash_files, inside, require_plain_files
from indexer.encoders.model_json import read_config, read_modules
from indexer.errors import ModelError

TableKind = Literal["words", "model2vec", "sentence-transformers"]
_HASHED_AS = "words"  # the name of a word file in the hashes: its own says nothing
_STATIC = (["StaticEmbedding"], ["StaticEmbedding", "Normalize"])


@dataclass(frozen=True)
class TableFiles:
    """The files of one table. Names are relative to `root`, POSIX style; a word file has only `weights`."""

    kind: TableKind
    root: Path
    weights: tuple[str, ...]
    tokenizer: tuple[str, ...] = ()
    config: tuple[str, ...] = ()


def is_word_file(path: Path) -> bool:
    """Whether a table is a file of word vectors: every other one is a folder."""
    return path.is_file()


def table_files(path: Path) -> TableFiles:
    """List the files that decide a table's results.

    Raises ModelError saying what was found and what was expected when there is no table, when a file of it is missing,
    or when something besides the table would change the embedding.
    """
    if is_word_file(path):
        return TableFiles("words", path.parent, (path.name,))
    if not path.is_dir():
        raise ModelError(f"{path}: no such file or folder; expected a file of word vectors, or a model2vec folder.")
    require_plain_files(path)
    if _model_type(path) == "model2vec":
        return _complete(TableFiles("model2vec", path, ("model.safetensors",), ("tokenizer.json",), ("config.json",)))
    module = _static_module(path)
    weights, tokenizer = (str(module / name) for name in ("model.safetensors", "tokenizer.json"))
    return _complete(TableFiles("sentence-transformers", path, (weights,), (tokenizer,), ("modules.json",)))


def hash_table(files: TableFiles) -> dict[str, dict[str, str]]:
    """sha256 of each file by name, as "weights", "tokenizer" and "config". A word file is the same under any name."""
    weights = hash_files(files.root, files.weights)
    if files.kind == "words":
        weights = dict.fromkeys([_HASHED_AS], *weights.values())
    return {
        "weights": weights,
        "tokenizer": hash_files(files.root, files.tokenizer),
        "config": hash_files(files.root, files.config),
    }


def _model_type(folder: Path) -> str | None:
    config = folder / "config.json"
    return read_config(config).model_type if config.exists() else None


def _static_module(folder: Path) -> PurePosixPath:
    """Where the StaticEmbedding of a sentence-transformers folder lies in it."""
    entries = read_modules(folder)
    kinds = [entry.kind for entry in entries]
    if "StaticEmbedding" not in kinds:
        raise ModelError(_no_table(folder, kinds))
    if kinds not in _STATIC:
        raise ModelError(
            f"{folder}: its modules are {', '.join(kinds)}; expected StaticEmbedding and at most Normalize after it."
        )
    inside(folder, entries[0].path)
    return PurePosixPath(entries[0].path)


def _no_table(folder: Path, kinds: list[str]) -> str:
    named = _model_type(folder)
    found = f"modules.json names {', '.join(kinds)}" if kinds else f"found {_listing(folder)}"
    found = f'config.json has the model type "{named}"' if named else found
    way_out = ' If it is a transformer, set encoder.kind = "transformer".' if named or kinds else ""
    return (
        f"{folder}: no static table ({found}); expected config.json with the model type model2vec, or modules.json "
        f"with a StaticEmbedding.{way_out}"
    )


def _complete(files: TableFiles) -> TableFiles:
    missing = [name for name in (*files.weights, *files.tokenizer) if not (files.root / name).is_file()]
    if missing:
        raise ModelError(
            f"{files.root}: no {' and no '.join(missing)} (found {_listing(files.root)}); expected the vectors of "
            f"{files.kind} and the tokenizer they belong to."
        )
    return files


def _listing(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "") if names else "nothing"
