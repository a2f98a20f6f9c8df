"""The segment of vectors that a transform makes of all rows of some parts: written, and judged."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from indexer.config import BuildConfig, RunOptions
from indexer.errors import QualityError
from indexer.pipeline.contents import Contents
from indexer.pipeline.fit import QueryEncoder
from indexer.pipeline.index import Filled, SegmentSource, fill_segment
from indexer.pipeline.judging import judge_segment
from indexer.pipeline.stored_transform import StoredTransform
from indexer.progress import Progress
from indexer.store import layout, parts
from indexer.store.files import FileDigest, make_folder, remove_file
from indexer.store.manifest import SegmentEntry
from indexer.transforms import Transform


@dataclass(frozen=True)
class NewSegment:
    """A segment that was written and found good."""

    filled: Filled
    quality: dict[str, Any]

    def entry(self, index: Path, first_row: int = 0) -> tuple[SegmentEntry, FileDigest]:
        """What the manifest says of it, when its rows follow on `first_row` others."""
        filled = self.filled
        name = filled.path.relative_to(index).as_posix()
        return SegmentEntry(name, first_row, filled.rows, filled.factory, filled.search_parameters), filled.stamp


def segment_source(contents: Contents, transform: Transform) -> SegmentSource:
    """All rows of some parts, as one segment is made of them."""
    firsts = [0, *accumulate(contents.rows)]
    hashes = contents.hashes[contents.document_of]
    return SegmentSource(transform, list(contents.folders), firsts, hashes, contents.live_rows)


def write_segment_of(
    index: Path,
    generation: int,
    contents: Contents,
    records: Sequence[parts.PartRecord],
    stored: StoredTransform,
    config: BuildConfig,
    source: QueryEncoder,
    options: RunOptions,
    progress: Progress,
    small: bool = False,
) -> NewSegment:
    """Write the vectors of all rows of `contents` as one segment and judge it; a bad one does not stay.

    With `small` it is exact whatever the recipe says. An index.queries file that is not where it was when the index was
    built is done without, and a note says so. Raises QualityError, ConfigError and StoreError.
    """
    path = index / layout.segment_name(generation, 0)
    make_folder(path.parent)
    rows = segment_source(contents, stored.transform)

    def encode_queries(texts: list[str]) -> Any:
        return source.get().encode(texts, "query")

    settings, notes = config.index, tuple[str, ...]()
    if settings.queries and not Path(settings.queries).exists():
        notes = (f"index.queries: {settings.queries} is not there; held-out documents stand in for its queries",)
        settings = replace(settings, queries="")
    filled = fill_segment(rows, settings, path, options, progress, encode_queries, small)
    filled = replace(filled, notes=(*notes, *filled.notes))
    try:
        quality = judge_segment(filled, rows, list(records), config, options, progress, stored.fitted)
    except QualityError:
        remove_file(index, layout.segment_name(generation, 0))
        raise
    return NewSegment(filled, quality)
