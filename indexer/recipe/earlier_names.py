"""Settings of recipes and manifests under the names that earlier versions gave them.

A recipe once stated pooling, prompts and maximum length of every model, and only `pooling = "auto"` read them from the
model's folder. Manifests of that time contain all of them, so they keep their meaning (`_model_settings`).
"""

from collections.abc import Mapping
from typing import Any

from indexer.recipe.paper_methods import POOLINGS, TRANSFORMS

_OF_PAPERS = {
    "encoder.sif_a": "papers.sif.a",
    "encoder.latte_mix": "papers.latte_mix",
    "whitening.flow": "papers.flow",
}
_PROMPTS = {"query_prefix": "query_prompt", "document_prefix": "document_prompt"}
_MOVED = {**_OF_PAPERS, **{f"encoder.{old}": f"encoder.{new}" for old, new in _PROMPTS.items()}}
_FORMER_LENGTH = 256  # the default of encoder.max_length, which a static table and pooling "auto" ignored


def current_name(setting: str) -> str:
    """Return the current name of a setting."""
    for old, new in _MOVED.items():
        if setting == old or setting.startswith(f"{old}."):
            return new + setting.removeprefix(old)
    return setting


def with_current_names(data: Mapping[str, Any], used_only: bool) -> dict[str, Any]:
    """Return a recipe with its settings under their current names.

    Manifests contain every setting of every paper: with `used_only` the settings of unused methods are dropped, so that
    no paper is imported for them.
    """
    moved: dict[str, Any] = {name: dict(value) if isinstance(value, Mapping) else value for name, value in data.items()}
    _move_papers(moved, used_only)
    if isinstance(moved.get("encoder"), dict):
        moved["encoder"] = _model_settings(moved["encoder"])
    return moved


def _move_papers(moved: dict[str, Any], used_only: bool) -> None:
    uses = {
        method.section
        for table, methods, key in (("encoder", POOLINGS, "pooling"), ("whitening", TRANSFORMS, "kind"))
        if isinstance(moved.get(table), dict) and (method := _named(methods, moved[table].get(key)))
    }
    for old, new in _OF_PAPERS.items():
        (table, key), (_, section, *rest) = old.split("."), new.split(".")
        if not isinstance(moved.get(table), dict) or key not in moved[table]:
            continue
        value = moved[table].pop(key)
        if section in uses or not used_only:
            moved["papers"] = {section: {rest[0]: value} if rest else value} | moved.get("papers", {})


def _named(methods: Mapping[str, Any], name: Any) -> Any:
    return methods.get(name) if isinstance(name, str) else None


def _model_settings(encoder: dict[str, Any]) -> dict[str, Any]:
    """Return the encoder's settings with prompts under their current names.

    Settings that are complete are those of a manifest: they say all that their encoder did.
    """
    complete = {*_PROMPTS, "pooling", "max_length"} <= encoder.keys()
    renamed = {_PROMPTS.get(name, name): value for name, value in encoder.items()}
    if not complete:
        return renamed
    kind, auto = encoder.get("kind"), encoder["pooling"] == "auto"
    if kind == "vectors":
        dropped = {"pooling", "max_length", *_PROMPTS.values()}
    else:
        dropped = {new for old, new in _PROMPTS.items() if auto and not encoder[old]}
        if (auto or kind == "static") and encoder["max_length"] == _FORMER_LENGTH:
            dropped.add("max_length")
        renamed["model_settings"] = auto
    return {name: value for name, value in renamed.items() if name not in dropped}
