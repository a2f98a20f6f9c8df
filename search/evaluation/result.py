"""The result of an evaluation: how it was made, and what its file holds."""
# TODO-DOC search.provenance:
# TODO-DOC What a result file says about how it was made.
# TODO-DOC search.evaluation.report.result_schema:
# TODO-DOC What a report reads of the result files of `isotrope evaluate`, as types. Whatever else they hold is passed over.

import platform
import shlex
import sys
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from indexer.config import BuildConfig
from indexer.encoders import EncoderSpec
from indexer.hashing import canonical_sha256
from indexer.versions import library_versions
from search.index import Index

_MEASURING = ("scipy", "ir_measures", "pytrec_eval-terrier", "bm25s", "PyStemmer", "datasets", "matplotlib")


class Clock:
    """Started when a measurement begins; `provenance` says when that was and how long it took."""

    def __init__(self) -> None:
        self.started = datetime.now(UTC)

    def provenance(
        self, encoder: EncoderSpec | None, data: Mapping[str, str], command: str = "", **more: Any
    ) -> dict[str, Any]:
        """JSON types. `data` maps names of data files to their sha256; `command` defaults to this process's own.

        Only "created" and "seconds" differ between two runs of the same command.
        """
        found: dict[str, Any] = {
            "command": _on_one_line(command or shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])),
            "created": self.started.isoformat(timespec="seconds"),
            "seconds": round((datetime.now(UTC) - self.started).total_seconds(), 1),
            "machine": platform.machine(),
            "versions": library_versions(_MEASURING),
            "data": {_on_one_line(name): digest for name, digest in sorted(data.items())},
        }
        if encoder is not None:
            found["encoder"] = {"model": encoder.model, "identity": encoder.identity.to_dict()}
        return found | more


def how_built(config: BuildConfig, index: Index | None = None) -> dict[str, Any]:
    """For provenance, JSON types: the "recipe" that was measured, and the "index" it comes from, if any."""
    found: dict[str, Any] = {"recipe": config.to_dict()}
    if index:
        manifest = index.manifest
        found["index"] = {"generation": manifest.generation, "manifest": canonical_sha256(manifest.to_dict())}
    return found


def _on_one_line(text: str) -> str:
    """Names of files may hold line breaks, and bytes that are no text; a recipe's remarks and JSON may not."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in text)


_Number = int | float | None


class IndexProvenance(msgspec.Struct, frozen=True):
    """The index that was measured."""

    manifest: str | None = None


class Provenance(msgspec.Struct, frozen=True):
    """How a result came to be. `encoder` is an object with the encoder's "identity", where there is one encoder."""

    command: str | None = None
    created: str | None = None
    index: IndexProvenance | None = None
    encoder: dict[str, Any] | None = None


class Stored(msgspec.Struct, frozen=True):
    """A result file."""

    provenance: dict[str, Any]
    results: list[dict[str, Any]]
    comparisons: list[dict[str, Any]] | None = None
    notes: list[str] | None = None


class Figure(msgspec.Struct, frozen=True):
    """A value with the ends of its interval."""

    value: _Number = None
    low: _Number = None
    high: _Number = None
    decided: bool | None = None


class Row(msgspec.Struct, frozen=True):
    """What rows of every kind may have."""

    setting: str | None = None
    encoder: str | None = None
    notes: list[str] | None = None
    low: _Number = None
    high: _Number = None


class StsRow(Row, frozen=True):
    """A row of `isotrope evaluate sts`."""

    model: str | None = None
    protocol: str | None = None
    fit: str | None = None
    task: str | None = None
    spearman: _Number = None
    standard_deviation: _Number = None


class Accuracy(msgspec.Struct, frozen=True):
    """Answers at a threshold."""

    accuracy: _Number = None
    low: _Number = None
    high: _Number = None
    threshold: _Number = None


class RteRow(Row, frozen=True):
    """A row of `isotrope evaluate rte`."""

    fit: str | None = None
    majority: _Number = None
    pairs: int | None = None
    train: Accuracy | None = None
    best: Accuracy | None = None


class RetrievalRow(Row, frozen=True):
    """A row of `isotrope evaluate retrieval`."""

    measure: dict[str, Figure] = {}


class RecallRow(Row, frozen=True):
    """A row of `isotrope evaluate recall`."""

    k: int | None = None
    recall: _Number = None
    exact: bool | None = None
    queries: int | None = None
    origin: str | None = None
    index_type: str | None = None
    search_parameters: list[dict[str, Any]] | None = None
    bytes_per_vector: _Number = None
    latency_ms: dict[str, dict[str, _Number] | None] | None = None


class DivergenceRow(Row, frozen=True):
    """A row of recall of the ranking by divergence."""

    k: int | None = None
    recall: _Number = None
    proven: _Number = None
    queries: int | None = None
    origin: str | None = None
    candidates: int | None = None


class WordsRow(Row, frozen=True):
    """A row of `isotrope evaluate words`."""

    vectors: str | None = None
    task: str | None = None
    section: str | None = None
    measure: str | None = None
    value: _Number = None
    covered: int | None = None
    items: int | None = None


class Comparison(msgspec.Struct, frozen=True):
    """A paired difference of two settings."""

    model: str | None = None
    setting: str | None = None
    against: str | None = None
    protocol: str | None = None
    measure: dict[str, Figure] | None = None
    difference: _Number = None
    low: _Number = None
    high: _Number = None
    decided: bool | None = None
