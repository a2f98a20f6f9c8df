"""`delete_documents`: write a list of deleted document numbers. Needs no encoder."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from indexer.arrays import RowIds
from indexer.errors import ConfigError, as_argument
from indexer.pipeline.generation import Generation, open_generation
from indexer.pipeline.published_index import PublishedIndex
from indexer.pipeline.rows import RowView
from indexer.pipeline.steps.kept_recall import keep_recall
from indexer.progress import NoProgress, Progress
from indexer.recipe.loading import named_path
from indexer.recipe.run_options import RunOptions
from indexer.typed_arguments import checked

_NAMED = 5  # ids in an error


@dataclass(frozen=True)
class DeleteReport:
    """Result of a deletion. `documents` and `rows` count the resulting index."""

    index: Path
    generation: int
    deleted: int
    documents: int
    rows: int
    missing: tuple[str, ...] = ()  # ids that are not in the index
    notes: tuple[str, ...] = ()


@checked
def delete_documents(index: str | Path, ids: Sequence[str], ignore_missing: bool = False) -> DeleteReport:
    """Delete documents by id. With `ignore_missing`, unknown ids are only reported.

    Raises ConfigError for unknown ids, for one string in place of a list and for an unusable index.queries,
    CorruptIndexError for a damaged file with which recall is measured, LockedError and StoreError.
    """
    with open_generation(named_path(index, "the index")) as generation:
        wanted = list(dict.fromkeys(ids))
        numbers = generation.previous.documents.find_ids(wanted)
        missing = tuple(identity for identity in wanted if identity not in numbers)
        if missing and not ignore_missing:
            raise ConfigError(_unknown(generation.previous, missing))
        return publish_deletions(generation, np.array(sorted(numbers.values()), np.int64), missing)


def delete_numbers(index: str | Path, numbers: RowIds, generation: int) -> DeleteReport:
    """Delete documents by their numbers in `generation`. Raises ConfigError if a later one has been published."""
    with open_generation(named_path(index, "the index")) as draft:
        newest = draft.previous.manifest.generation
        if newest != generation:
            raise ConfigError(
                f"{index}: generation {newest} was published while documents of generation {generation} were chosen. "
                "Nothing was deleted. Fix: run the command again."
            )
        return publish_deletions(draft, numbers)


def publish_deletions(
    generation: Generation,
    numbers: RowIds,
    missing: tuple[str, ...] = (),
    options: RunOptions | None = None,
    progress: Progress | None = None,
) -> DeleteReport:
    """Publish a generation without some documents; publish nothing if there are none."""
    index, published = generation.index, generation.previous.manifest
    if not len(numbers):
        return DeleteReport(index, published.generation, 0, published.documents, published.rows, missing)
    generation.keep_everything()
    generation.delete(generation.previous.stored(numbers))

    def all_rows() -> RowView:
        return replace(generation.previous.rows(), live=generation.live())

    kept = keep_recall(generation, all_rows, published.quality, options or RunOptions(), progress or NoProgress())
    manifest = generation.publish(kept.figures)
    notes = tuple(filter(None, [kept.note, generation.sweep(), generation.compaction_note()]))
    return DeleteReport(index, manifest.generation, len(numbers), manifest.documents, manifest.rows, missing, notes)


def _unknown(published: PublishedIndex, missing: tuple[str, ...]) -> str:
    close = {identity: published.documents.closest_id(identity) for identity in missing[:_NAMED]}
    shown = ", ".join(f'"{name}"' + (f' (did you mean "{near}"?)' if near else "") for name, near in close.items())
    more = f" and {len(missing) - _NAMED:,} more" if len(missing) > _NAMED else ""
    return (
        f"{published.index}: contains no document with id {shown}{more}; nothing was deleted. "
        f"Fix: correct the ids, or pass {as_argument('ignore_missing', True)}."
    )
