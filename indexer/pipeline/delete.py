"""`delete_documents`: a list of numbers beside the index; nothing else is written, and no encoder is needed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from indexer.arrays import RowIds
from indexer.errors import ConfigError
from indexer.pipeline.generation import Generation, open_generation
from indexer.pipeline.published_index import PublishedIndex
from indexer.recipe.loading import named_path

_NAMED = 5  # ids in an error


@dataclass(frozen=True)
class DeleteReport:
    """What a deletion did; `documents` and `rows` are those of the index now."""

    index: Path
    generation: int
    deleted: int
    documents: int
    rows: int
    missing: tuple[str, ...] = ()  # ids that are not in the index
    notes: tuple[str, ...] = ()


def delete_documents(index: str | Path, ids: Sequence[str], ignore_missing: bool = False) -> DeleteReport:
    """Take documents out of an index by their ids. With `ignore_missing`, ids that it does not hold are only reported.

    Raises ConfigError for unknown ids, for one string in place of a list and for a deletion that would leave nothing,
    LockedError and StoreError.
    """
    if isinstance(ids, str):
        raise ConfigError(f'ids is one string; expected a list of strings, such as ["{ids}"].')
    with open_generation(named_path(index, "the index")) as generation:
        wanted = list(dict.fromkeys(ids))
        numbers = generation.followed.documents.find_ids(wanted)
        missing = tuple(identity for identity in wanted if identity not in numbers)
        if missing and not ignore_missing:
            raise ConfigError(_unknown(generation.followed, missing))
        return _delete(generation, np.array(sorted(numbers.values()), np.int64), missing)


def delete_numbers(index: str | Path, numbers: RowIds, generation: int) -> DeleteReport:
    """Take documents out of an index by their numbers in `generation`. Raises ConfigError if another has come since."""
    with open_generation(named_path(index, "the index")) as following:
        found = following.followed.manifest.generation
        if found != generation:
            raise ConfigError(
                f"{index}: generation {found} was published while the documents of generation "
                f"{generation} were chosen. Nothing was deleted; run the command again."
            )
        return _delete(following, numbers, ())


def _delete(generation: Generation, numbers: RowIds, missing: tuple[str, ...]) -> DeleteReport:
    index, published = generation.index, generation.followed.manifest
    if not len(numbers):
        return DeleteReport(index, published.generation, 0, published.documents, published.rows, missing)
    if len(numbers) == published.documents:
        raise ConfigError(
            f"{index}: this would delete all {published.documents:,} documents, and an index holds at least one. "
            "Remove the folder instead, or add other documents first."
        )
    generation.keep_everything()
    generation.delete(generation.followed.stored(numbers))
    manifest = generation.publish(published.quality)
    left = generation.sweep()
    notes = (left,) if left else ()
    return DeleteReport(index, manifest.generation, len(numbers), manifest.documents, manifest.rows, missing, notes)


def _unknown(published: PublishedIndex, missing: tuple[str, ...]) -> str:
    shown = ", ".join(f'"{identity}"{_meant(published, identity)}' for identity in missing[:_NAMED])
    more = f" and {len(missing) - _NAMED:,} more" if len(missing) > _NAMED else ""
    return (
        f"{published.index}: holds no document with id {shown}{more}; nothing was deleted. "
        "Correct the ids, or pass --ignore-missing (in Python ignore_missing=True)."
    )


def _meant(published: PublishedIndex, identity: str) -> str:
    close = published.documents.closest_id(identity)
    return f' (did you mean "{close}"?)' if close else ""
