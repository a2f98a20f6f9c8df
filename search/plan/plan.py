"""A plan: building, keeping, serving and de-duplicating a corpus, line by line, with the arithmetic shown.

Nothing is run and no model is loaded. Every figure is a formula (`formulas.py`) over the settings and the constants of
`constants.json`; the lines say which.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from indexer.errors import ConfigError
from indexer.recipe.config import MOST_IN_A_PART
from indexer.store.manifest import MOST_BYTES
from search.plan.formulas import Planner, Segments
from search.plan.ledger import Ledger, constants, number, show_bytes
from search.plan.models import ModelShape, model_shape
from search.plan.settings import PlanSettings

_MEASURED_WIDTH = 381  # dimensions of the widest vectors that joins were measured with


@dataclass(frozen=True)
class Plan:
    """All lines. `notes` name impossible figures first, then unmeasured ones and the settings that are not counted."""

    settings: PlanSettings
    shape: ModelShape
    segments: Segments
    ledger: Ledger
    notes: tuple[str, ...]

    def value(self, key: str) -> float:
        """Return a figure by its key."""
        return self.ledger.value(key)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        asked = self.settings
        return {
            "documents": asked.documents,
            "tokens": asked.tokens,
            "rows": asked.rows,
            "model": vars(self.shape) | {"parameters": self.shape.parameters},
            "hardware": vars(asked.hardware),
            "prices": vars(asked.prices),
            "index": vars(self.segments.kind) | {"segments": self.segments.count, "shards": self.segments.hosts},
            "figures": {line.key: line.value for line in self.ledger.lines},
            "lines": [line.to_dict() for line in self.ledger.lines],
            "constants": [vars(constant) for constant in self.ledger.used()],
            "notes": list(self.notes),
        }


def make_plan(settings: PlanSettings) -> Plan:
    """Return the plan. Raises ConfigError for an unknown model, and for a model that has no use for the settings."""
    shape = model_shape(settings.config.encoder)
    _require_use(settings, shape)
    planner = Planner(settings, shape)
    planner.run()
    segments, ledger = planner.segments, planner.ledger
    notes = (*_broken(settings, segments, ledger), *_uncounted(settings), *_extrapolated(settings, shape))
    return Plan(settings, shape, segments, ledger, notes)


def _require_use(settings: PlanSettings, shape: ModelShape) -> None:
    """Raises ConfigError for hardware that would stand idle, and for more dimensions than the encoder gives."""
    hardware, dim = settings.hardware, settings.config.whitening.dim
    if not shape.blocks and (hardware.gpus or hardware.amx):
        option = f"--gpus is {hardware.gpus}" if hardware.gpus else "--amx is given"
        raise ConfigError(
            f"{option}, but {shape.name} is a static table: tokens are looked up on CPU cores, and nothing is "
            f"multiplied. Leave out {option.split()[0]}; --cores says how many there are."
        )
    if dim > shape.hidden:
        raise ConfigError(
            f"whitening.dim (--dim) is {dim:,}, but {shape.name} gives {shape.hidden:,} dimensions. Ask for at "
            "most that."
        )


def _broken(settings: PlanSettings, segments: Segments, ledger: Ledger) -> Iterator[str]:
    """Limits that a build or a search would meet."""
    if (manifest := ledger.value("storage.manifest")) > MOST_BYTES:
        yield (
            f"this index could not be opened: its manifest would have {show_bytes(manifest)}, and one of more than "
            f"{show_bytes(MOST_BYTES)} is refused. {_smaller_manifest(settings, ledger, manifest)}"
        )
    if not segments.fit:
        yield (
            f"a segment of {segments.rows:,} rows takes {show_bytes(segments.size)}, more than a host has beside the "
            f"libraries ({show_bytes(settings.hardware.memory)}). Lower index.segment_rows, or leave it out: the plan "
            "then says how many rows fit"
        )


def _smaller_manifest(settings: PlanSettings, ledger: Ledger, manifest: float) -> str:
    """The way out of a manifest that is too large: larger parts, or, where they do not help enough, fewer documents."""
    moments = 16 * ledger.value("storage.moments") / settings.parts / (1 << 20)  # digests of those of a part
    a_part = constants()["manifest.part"].value + moments
    rest, size = manifest - settings.parts * a_part, settings.config.store.part_documents
    while (most := rest + settings.documents / size * a_part) > MOST_BYTES and 2 * size <= MOST_IN_A_PART:
        size *= 2
    if most <= MOST_BYTES:
        return f"Make fewer, larger parts, such as --set store.part_documents={size}"
    fewer = int(settings.documents * MOST_BYTES / most)
    digit = 10 ** (len(str(fewer)) - 1)
    return (
        f"Parts of {size:,} documents would still make it {show_bytes(most)}: split the corpus into indexes of at most "
        f"{fewer // digit * digit:,} documents each, in such parts (--set store.part_documents={size})"
    )


def _uncounted(settings: PlanSettings) -> Iterator[str]:
    """What of the texts or of the recipe is not counted."""
    config = settings.config
    if settings.row_tokens < settings.whole_tokens:
        what, way_out = (
            ("window", "Lower --chunk") if config.chunk.tokens else ("document", "Make windows with --chunk")
        )
        yield (
            f"of the {number(settings.whole_tokens)} tokens of a {what} only {number(settings.row_tokens)} are encoded "
            f"and counted: encoder.max_length cuts the rest off. {way_out}, or raise it as far as the model goes"
        )
    if config.chunk.tokens:
        yield "windows are counted for a document of mean length; a corpus of mixed lengths has more"
    if config.index.type not in ("auto", "flat"):
        yield f'index.type "{config.index.type}" is not counted: the figures are of the kind that "auto" would choose'


def _extrapolated(settings: PlanSettings, shape: ModelShape) -> Iterator[str]:
    index, join = constants()["index.largest"].value, constants()["join.largest"].value
    if settings.hardware.gpus:
        yield "no GPU was measured here: GPU time is a data sheet's peak times the share that CPUs reached"
    if settings.rows > index:
        yield (
            f"the largest index measured has {index:,.0f} rows: kind, recall and building time of larger ones are "
            "extrapolated"
        )
    if settings.rows > join:
        yield f"the largest join measured has {join:,.0f} rows; larger ones are extrapolated"
    if (dim := settings.dim(shape.hidden)) > _MEASURED_WIDTH:
        yield f"joins were measured with {_MEASURED_WIDTH} dimensions, which stand here for {dim}"
