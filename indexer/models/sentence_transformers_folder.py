"""Settings of a sentence-transformers folder for `pooling = "auto"`: pooling, prompts, max_seq_length, lower-casing.

The layouts of versions up to 5 and of version 6 are supported. A final Normalize module is left out on purpose: an
index stores embeddings before normalisation, and every vector is normalised after the transform. Any other module or
setting that would change the embedding is refused, never ignored.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec

from indexer.errors import ModelError
from indexer.models.model_files import require_plain_files, safe_join
from indexer.models.model_json import read_json, read_modules
from indexer.recipe.config import PoolingMode

_FIX = 'Fix: name a pooling instead of "auto" (cls, mean or max) to use the transformer alone.'
_LEGACY_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_MODES: dict[str, PoolingMode] = {"cls": "cls", "mean": "mean", "max": "max"}
_LONGEST = 1 << 27  # tokens
# Settings of the Transformer module that would change its results.
_REFUSED = ("query_expansion", "query_length", "document_length", "processor_kwargs", "tokenizer_args", "config_kwargs")


class _Pooling(msgspec.Struct, frozen=True):
    """1_Pooling/config.json: `pooling_mode`, or in older versions a switch for each mode."""

    pooling_mode: str | list[str] | None = None
    pooling_mode_cls_token: bool | None = None
    pooling_mode_max_tokens: bool | None = None
    pooling_mode_mean_tokens: bool | None = None
    pooling_mode_mean_sqrt_len_tokens: bool | None = None
    pooling_mode_weightedmean_tokens: bool | None = None
    pooling_mode_lasttoken: bool | None = None
    include_prompt: bool | None = True


class _Transformer(msgspec.Struct, frozen=True):
    """The settings of the Transformer module."""

    max_seq_length: Annotated[int, msgspec.Meta(ge=0, le=_LONGEST)] | None = None
    do_lower_case: bool | None = None
    transformer_task: str = "feature-extraction"
    query_expansion: Any = None
    query_length: Any = None
    document_length: Any = None
    processor_kwargs: Any = None
    tokenizer_args: Any = None
    config_kwargs: Any = None


class _Prompts(msgspec.Struct, frozen=True):
    """config_sentence_transformers.json."""

    prompts: dict[str, str | None] | None = None
    default_prompt_name: str | None = None


@dataclass(frozen=True)
class FolderSettings:
    """The settings of a folder. `max_length` 0: the folder states none."""

    pooling: PoolingMode
    max_length: int
    query_prompt: str
    document_prompt: str
    lowercase: bool


def read_folder_settings(folder: Path) -> FolderSettings:
    """Read the settings of a sentence-transformers folder.

    Raises ModelError if it is no such folder, or for a module or mode that is not supported here.
    """
    if not (folder / "modules.json").is_file():
        raise ModelError(
            f'{folder}: encoder.pooling is "auto", which reads a sentence-transformers folder, '
            "but there is no modules.json. Fix: name the pooling: cls, mean or max."
        )
    require_plain_files(folder)
    transformer, pooling = _modules(folder)
    mode, include_prompt = _pooling(safe_join(folder, pooling) / "config.json")
    settings = _transformer_settings(safe_join(folder, transformer))
    query, document = _prompts(folder / "config_sentence_transformers.json")
    if not include_prompt and (query or document):
        raise ModelError(f"{folder}: leaves its prompt out of the pooling, which is not supported here. {_FIX}")
    return FolderSettings(mode, settings.max_seq_length or 0, query, document, bool(settings.do_lower_case))


def _modules(folder: Path) -> tuple[str, str]:
    """Return the paths of the Transformer and Pooling modules. Raises ModelError for any module except Normalize."""
    entries = read_modules(folder)
    kinds = [entry.kind for entry in entries]
    if kinds not in (["Transformer", "Pooling"], ["Transformer", "Pooling", "Normalize"]):
        raise ModelError(
            f"{folder}: its modules are {', '.join(kinds) or 'none'}; "
            f"expected Transformer, Pooling and at most Normalize. {_FIX}"
        )
    return entries[0].path, entries[1].path


def _pooling(path: Path) -> tuple[PoolingMode, bool]:
    config = read_json(path, _Pooling)
    stated = config.pooling_mode
    if stated is None:
        stated = [mode for key, mode in _LEGACY_MODES.items() if getattr(config, key)] or ["mean"]
    modes = [stated] if isinstance(stated, str) else stated
    if len(modes) != 1 or modes[0] not in _MODES:
        raise ModelError(f"{path}: the pooling is {', '.join(modes)}; cls, mean or max is supported. {_FIX}")
    return _MODES[modes[0]], bool(config.include_prompt)


def _transformer_settings(folder: Path) -> _Transformer:
    """Read the Transformer module's file, whose name depends on the version and architecture that wrote it."""
    paths = sorted(folder.glob("sentence_*_config.json"))
    settings = read_json(paths[0], _Transformer) if paths else _Transformer()
    task = settings.transformer_task
    refused = [key for key in _REFUSED if getattr(settings, key) not in (None, {}, [], False)]
    if task != "feature-extraction" or refused:
        setting = f'the task "{task}"' if task != "feature-extraction" else ", ".join(refused)
        raise ModelError(f"{paths[0]}: sets {setting}, which is not supported here. {_FIX}")
    return settings


def _prompts(path: Path) -> tuple[str, str]:
    """Return the prompts of queries (`query`) and documents (`document`, `passage` or `corpus`), or the default."""
    config = read_json(path, _Prompts) if path.exists() else _Prompts()
    prompts, default = config.prompts or {}, config.default_prompt_name or ""

    def first(*names: str) -> str:
        return next((prompts[name] or "" for name in names if name in prompts), "")

    return first("query", default), first("document", "passage", "corpus", default)
