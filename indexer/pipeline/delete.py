"""`delete_documents`: a list of numbers beside the index; nothing else is written, and no encoder is needed."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from indexer.errors import ConfigError
from indexer.pipeline.add import published_segments
from indexer.pipeline.change import Change, change
from indexer.pipeline.publication import next_generation, publish_generation, published_parts, published_recipe
from indexer.pipeline.stored_transform import published_transform
from indexer.pipeline.sweep import sweep_after
from indexer.settings import named_path
from indexer.store.numbering import Numbers

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
    with change(named_path(index, "the index")) as opened:
        wanted = list(dict.fromkeys(ids))
        numbers = opened.documents.find_ids(wanted)
        missing = tuple(identity for identity in wanted if identity not in numbers)
        if missing and not ignore_missing:
            raise ConfigError(_unknown(opened, missing))
        return _delete(opened, np.array(sorted(numbers.values()), np.int64), missing)


def delete_numbers(index: str | Path, numbers: Numbers, generation: int) -> DeleteReport:
    """Take documents out of an index by their numbers in `generation`. Raises ConfigError if another has come since."""
    with change(named_path(index, "the index")) as opened:
        if opened.published.generation != generation:
            raise ConfigError(
                f"{index}: generation {opened.published.generation} was published while the documents of generation "
                f"{generation} were chosen. Nothing was deleted; run the command again."
            )
        return _delete(opened, numbers, ())


def _delete(opened: Change, numbers: Numbers, missing: tuple[str, ...]) -> DeleteReport:
    index, published = opened.index, opened.published
    if not len(numbers):
        return DeleteReport(index, published.generation, 0, published.documents, published.rows, missing)
    if len(numbers) == published.documents:
        raise ConfigError(
            f"{index}: this would delete all {published.documents:,} documents, and an index holds at least one. "
            "Remove the folder instead, or add other documents first."
        )
    live = opened.live
    live[opened.stored(numbers)] = False
    manifest = publish_generation(
        index,
        next_generation(index),
        published_recipe(published),
        published_parts(published),
        published_transform(index, published),
        published_segments(published),
        live,
        published.quality,
    )
    left = sweep_after(index)
    notes = (left,) if left else ()
    return DeleteReport(index, manifest.generation, len(numbers), manifest.documents, manifest.rows, missing, notes)


def _unknown(opened: Change, missing: tuple[str, ...]) -> str:
    shown = ", ".join(f'"{identity}"' for identity in missing[:_NAMED])
    more = f" and {len(missing) - _NAMED:,} more" if len(missing) > _NAMED else ""
    close = difflib.get_close_matches(missing[0], opened.documents.ids(range(min(1000, len(opened.documents)))), n=1)
    hint = f' Did you mean "{close[0]}"?' if close else ""
    return (
        f"{opened.index}: holds no document with id {shown}{more}; nothing was deleted.{hint} "
        "Correct the ids, or pass --ignore-missing."
    )
