"""A plan for building, storing, serving and de-duplicating a corpus.

Nothing is run and no model is loaded. Every figure is a formula (`formulas.py`) of the settings and the constants of
`constants.json`; each line shows its arithmetic and names its constants.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from indexer.errors import ConfigError
from indexer.recipe.index_config import MOST_IN_A_PART
from indexer.store.manifest import MOST_BYTES
from search.plan.formulas import Planner, Segments
from search.plan.ledger import Ledger, constants, number, show_bytes
from search.plan.model_shape import ModelShape, model_shape
from search.plan.request import PlanSettings

_MEASURED_WIDTH = 381  # dimensions of the widest vectors that joins were measured with


@dataclass(frozen=True)
class Plan:
    """All lines, and notes: first limits that the plan exceeds, then settings and sizes that it does not cover."""

    settings: PlanSettings
    shape: ModelShape
    segments: Segments
    ledger: Ledger
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        settings = self.settings
        return {
            "documents": settings.documents,
            "tokens": settings.tokens,
            "rows": settings.rows,
            "model": vars(self.shape) | {"parameters": self.shape.parameters},
            "hardware": vars(settings.hardware),
            "prices": vars(settings.prices),
            "index": vars(self.segments.kind) | {"segments": self.segments.count, "shards": self.segments.hosts},
            "figures": {line.key: line.value for line in self.ledger.lines},
            "lines": [line.to_dict() for line in self.ledger.lines],
            "constants": [vars(constant) for constant in self.ledger.used()],
            "notes": list(self.notes),
        }


def make_plan(settings: PlanSettings) -> Plan:
    """Return the plan. Raises ConfigError for an unknown model, and for settings that do not apply to the model."""
    shape = model_shape(settings.config.encoder)
    _check_settings(settings, shape)
    planner = Planner(settings, shape)
    planner.run()
    segments, ledger = planner.segments, planner.ledger
    notes = (*_limits(settings, segments, ledger), *_uncounted(settings, shape), *_extrapolated(settings, shape))
    return Plan(settings, shape, segments, ledger, notes)


def _check_settings(settings: PlanSettings, shape: ModelShape) -> None:
    hardware, dim = settings.hardware, settings.config.whitening.dim
    if not shape.blocks and (hardware.gpus or hardware.amx):
        option = f"--gpus is {hardware.gpus}" if hardware.gpus else "--amx is set"
        reason = "is a static table: CPU cores look tokens up, without multiplications"
        if settings.config.encoder.traits.is_remote:
            reason = "runs on a server, whose hardware is not planned here"
        raise ConfigError(
            f"{option}, but {shape.name} {reason}. Fix: leave out {option.split()[0]}; set the number of cores with "
            "--cores."
        )
    if dim > shape.dim:
        raise ConfigError(
            f"whitening.dim (--dim) is {dim:,}, but {shape.name} has {shape.dim:,} dimensions; expected at most that."
        )


def _limits(settings: PlanSettings, segments: Segments, ledger: Ledger) -> Iterator[str]:
    if (manifest := ledger.value("storage.manifest")) > MOST_BYTES:
        yield (
            f"this index could not be opened: its manifest would take {show_bytes(manifest)}, more than the limit of "
            f"{show_bytes(MOST_BYTES)}. {_smaller_manifest(settings, ledger, manifest)}"
        )
    if not segments.fit:
        yield (
            f"a segment of {segments.rows:,} rows takes {show_bytes(segments.size)}, more than a host has left "
            f"({show_bytes(settings.hardware.memory)} without the libraries). Fix: lower index.segment_rows, or leave "
            "it out: the plan then shows how many rows fit"
        )
    gpu, needed = settings.hardware.gpu, ledger.value("encode.memory")
    if gpu and needed > (memory := constants()[f"{gpu}.memory"].value):
        yield (
            f"the encoder and a batch take {show_bytes(needed)}, but {gpu} has {show_bytes(memory)}: batches are "
            "halved until they fit, and a model that does not fit is refused. Fix: choose a larger --gpu or a smaller "
            "model, or lower encoder.batch_tokens"
        )


def _smaller_manifest(settings: PlanSettings, ledger: Ledger, manifest: float) -> str:
    """Return the fix for a manifest that is too large: larger parts or, if they are not enough, fewer documents."""
    moments = 16 * ledger.value("storage.moments") / settings.parts / (1 << 20)  # digests of a part's moments
    a_part = constants()["manifest.part"].value + moments
    rest, size = manifest - settings.parts * a_part, settings.config.store.part_documents
    while (most := rest + settings.documents / size * a_part) > MOST_BYTES and 2 * size <= MOST_IN_A_PART:
        size *= 2
    if most <= MOST_BYTES:
        return f"Fix: make fewer, larger parts, such as --set store.part_documents={size}"
    fewer = int(settings.documents * MOST_BYTES / most)
    digit = 10 ** (len(str(fewer)) - 1)
    return (
        f"Parts of {size:,} documents would still need {show_bytes(most)}. Fix: split the corpus into indexes of at "
        f"most {fewer // digit * digit:,} documents each, with such parts (--set store.part_documents={size})"
    )


def _uncounted(settings: PlanSettings, shape: ModelShape) -> Iterator[str]:
    config = settings.config
    if config.encoder.traits.is_remote:
        yield "the time of the server's answers is not covered: add it to the elapsed time"
    if (tokens := settings.row_tokens(shape.limit)) < settings.whole_tokens:
        text, fix = ("window", "lower --chunk") if config.chunk.tokens else ("document", "make windows with --chunk")
        limit = "the model's own limit" if config.encoder.max_length in (0, shape.limit) else "encoder.max_length"
        yield (
            f"only {number(tokens)} of the {number(settings.whole_tokens)} tokens of a {text} are encoded and counted, "
            f"because of {limit}. Fix: {fix}, or raise encoder.max_length as far as the model allows"
        )
    if config.chunk.tokens:
        yield "windows are counted for a document of mean length; a corpus of mixed lengths has more"
    if config.index.type not in ("auto", "flat"):
        yield f'the plan does not cover index.type "{config.index.type}"; the figures are for the choice of "auto"'


def _extrapolated(settings: PlanSettings, shape: ModelShape) -> Iterator[str]:
    index, join = constants()["index.largest"].value, constants()["join.largest"].value
    if settings.hardware.gpus:
        yield "no GPU was measured: GPU time is the peak of the data sheet times the share that CPUs reached"
    if settings.rows > index:
        yield (
            f"the largest measured index has {index:,.0f} rows: kind, recall and build time of larger indexes are "
            "extrapolated"
        )
    if settings.rows > join:
        yield f"the largest measured join has {join:,.0f} rows; larger joins are extrapolated"
    if (dim := settings.dim(shape.dim)) > _MEASURED_WIDTH:
        yield f"joins were measured with {_MEASURED_WIDTH} dimensions; their times are used for {dim}"
