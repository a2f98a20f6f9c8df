"""Settings of a sentence-transformers folder: pooling, later modules, prompts, max_seq_length, lower-casing.

The layouts of versions up to 5 and of version 6 are supported. A final Normalize module is left out on purpose: an
index stores embeddings before normalisation, and every vector is normalised after the transform. Any other module or
setting that would change the embedding is refused, never ignored.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import msgspec

from indexer.errors import ModelError
from indexer.models.model_files import require_plain_files, safe_join
from indexer.models.model_json import ModuleEntry, read_json, read_modules
from indexer.models.output_modules import KINDS, OutputModule
from indexer.recipe.config import BasicPooling

_FIX = "Fix: set encoder.model_settings = false to use the transformer alone."
LEGACY_MODES = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
_LONGEST = 1 << 27  # tokens
# Settings of the Transformer module that would change its results.
_REFUSED = ("query_expansion", "query_length", "document_length", "processor_kwargs", "tokenizer_args", "config_kwargs")
_OF_QUERIES, _OF_DOCUMENTS = ("query",), ("document", "passage", "corpus")


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
    """The settings of a model's folder. A plain transformer has no pooling, prompts and modules.

    `max_length` 0: the folder states none. `prompts` are all by name; `query_prompt` and `document_prompt` are texts.
    """

    pooling: BasicPooling | None = None
    max_length: int = 0
    prompts: dict[str, str] = field(default_factory=dict)
    query_prompt: str = ""
    document_prompt: str = ""
    lowercase: bool = False
    modules: tuple[OutputModule, ...] = ()


def read_folder_settings(folder: Path) -> FolderSettings:
    """Read the settings of a sentence-transformers folder; those of a folder without modules.json are empty.

    Raises ModelError for a module or mode that is not supported here.
    """
    if not (folder / "modules.json").is_file():
        return FolderSettings()
    require_plain_files(folder)
    transformer, pooling, *others = _modules(folder)
    mode, include_prompt = _pooling(safe_join(folder, pooling.path) / "config.json")
    settings = _transformer_settings(safe_join(folder, transformer.path))
    prompts = read_prompts(folder)
    if not include_prompt and (prompts.query_prompt or prompts.document_prompt):
        raise ModelError(f"{folder}: leaves its prompt out of the pooling, which is not supported here. {_FIX}")
    return replace(
        prompts,
        pooling=mode,
        max_length=settings.max_seq_length or 0,
        lowercase=bool(settings.do_lower_case),
        modules=tuple(OutputModule(entry.kind, safe_join(folder, entry.path)) for entry in others),
    )


def read_prompts(folder: Path) -> FolderSettings:
    """Return only the prompts of a folder: all by name, and those of both roles, which may be the default prompt."""
    path = folder / "config_sentence_transformers.json"
    config = read_json(path, _Prompts) if path.is_file() else _Prompts()
    prompts = {name: prompt or "" for name, prompt in (config.prompts or {}).items()}
    default = config.default_prompt_name or ""

    def first(*names: str) -> str:
        return next((prompts[name] for name in (*names, default) if name in prompts), "")

    return FolderSettings(prompts=prompts, query_prompt=first(*_OF_QUERIES), document_prompt=first(*_OF_DOCUMENTS))


def _modules(folder: Path) -> list[ModuleEntry]:
    """Return Transformer, Pooling and the modules after them, without a final Normalize. Raises ModelError."""
    entries = read_modules(folder)
    kinds = [entry.kind for entry in entries]
    if kinds[:2] != ["Transformer", "Pooling"] or not set(kinds[2:]) <= set(KINDS):
        raise ModelError(
            f"{folder}: its modules are {', '.join(kinds) or 'none'}; expected Transformer, Pooling and then only "
            f"{', '.join(KINDS)}. {_FIX}"
        )
    while kinds[-1] == "Normalize":
        kinds.pop()
    return entries[: len(kinds)]


def _pooling(path: Path) -> tuple[BasicPooling, bool]:
    config = read_json(path, _Pooling)
    stated = config.pooling_mode
    if stated is None:
        stated = [mode for key, mode in LEGACY_MODES.items() if getattr(config, key)] or ["mean"]
    modes = [stated] if isinstance(stated, str) else stated
    if len(modes) != 1 or modes[0] not in get_args(BasicPooling):
        raise ModelError(
            f"{path}: the pooling is {', '.join(modes)}; one of {', '.join(get_args(BasicPooling))} is supported. "
            f"{_FIX}"
        )
    return cast(BasicPooling, modes[0]), bool(config.include_prompt)


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
