"""What a report reads of the result files of `isotrope evaluate`, as types. Whatever else they hold is passed over."""

from typing import Any

import msgspec

_Number = int | float | None


class Index(msgspec.Struct, frozen=True):
    """The index that was measured."""

    manifest: str | None = None


class Provenance(msgspec.Struct, frozen=True):
    """How a result came to be. `encoder` is an object with the encoder's "identity", where there is one encoder."""

    command: str | None = None
    created: str | None = None
    index: Index | None = None
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
