"""What must be known beside the figures of a plan: what was not measured, what cannot be, and what is not counted."""

from collections.abc import Iterator

from indexer.config import MOST_IN_A_PART
from indexer.store.manifest import MOST_BYTES
from search.plan.constants import constants
from search.plan.ledger import Ledger, number, show_bytes
from search.plan.models import ModelShape
from search.plan.segments import Segments
from search.plan.settings import PlanSettings

_MEASURED_WIDTH = 381  # dimensions of the widest vectors that joins were measured with


def notes_on(settings: PlanSettings, shape: ModelShape, segments: Segments, ledger: Ledger) -> tuple[str, ...]:
    """What cannot be comes first."""
    return (*_broken(settings, segments, ledger), *_uncounted(settings), *_extrapolated(settings, shape))


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
