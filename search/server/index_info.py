"""The description of a served index."""

from importlib.metadata import version
from typing import Any

from indexer.store.quality import Quality
from search.describe import describe_index
from search.server.generations import OpenGeneration
from search.server.settings import ServerSettings

_LIMITS = ("k", "queries", "characters", "hits", "rerank_depth", "reranked", "body_bytes")


def facts_of(generation: OpenGeneration, settings: ServerSettings) -> dict[str, Any]:
    """Return the description of a served index as JSON types. Models and files appear by name, without their paths."""
    facts = describe_index(generation.engine.index)
    quality = Quality.of(facts["quality"])
    figures = quality.index
    recipe = facts["config"]
    recipe["encoder"]["model"] = facts["model"] = _last_name(facts["model"])
    paths = (("index", "queries"), ("whitening", "query_sample"), ("rerank", "model"), ("queries", "encoder"))
    for section, key in paths:
        recipe[section][key] = _last_name(recipe[section][key])
    kept = ("generation", "fingerprint", "created", "documents", "rows", "deleted", "model", "encoder", "transform")
    return {
        "name": settings.name,
        **{name: facts[name] for name in kept},
        "index_type": figures.factory if figures else None,
        "recall_at_10": quality.last_recall,
        "recipe": recipe,
        "metadata": facts["metadata"],
        "limits": {name: getattr(settings.limits, name) for name in _LIMITS},
        "version": version("isotrope"),
        "examples": generation.examples(),
        "columns": [facet.to_dict() for facet in generation.facets()],
    }


def _last_name(path: str | None) -> str | None:
    """Return the last part of a path; other text unchanged."""
    return path.rstrip("/").rpartition("/")[2] if path and path.startswith(("/", ".", "~")) else path
