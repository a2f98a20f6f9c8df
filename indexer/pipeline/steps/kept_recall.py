"""The recall of the whole index, measured again after a change, and search parameters that keep the promised recall.

Exact scores decide between segments, so a search finds a right row if the segment of the row returns it: the right rows
that the segments find add up to those of the whole index. An exact segment finds all of its rows without a search.

Parameters are chosen by one level of recall: each approximate segment takes the cheapest point of its curve that
reached the level when it was built. The level rises from index.recall until the whole index reaches index.recall; if
the curves end before, all parameters double a few times. So no segment gets less than its build chose.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace as with_fields

from indexer import ann
from indexer.arrays import Int64Array, Mask
from indexer.corpus.query_file import is_npy
from indexer.pipeline.drift import AddedSince
from indexer.pipeline.generation import Generation
from indexer.pipeline.rows import RowView, VectorBlocks
from indexer.pipeline.steps.fit import refit_command
from indexer.pipeline.steps.recall_queries import NEIGHBOUR_ROWS, QUERIES, Encode, RecallQueries, recall_queries
from indexer.progress import Progress
from indexer.recipe.index_config import IndexConfig
from indexer.recipe.run_options import RunOptions
from indexer.store import layout
from indexer.store.integrity import BackgroundCheck, check_file
from indexer.store.manifest import SegmentEntry
from indexer.store.quality import LEAST_SHARE, MeasuredPoint, Quality, RecallEntry
from indexer.store.segments import open_segment_file

MOST_ENTRIES = 50  # of the history
EXACT = "every segment is exact"
_LEVELS = 6  # of recall above index.recall that are tried
_DOUBLINGS = 5
Settings = dict[str, dict[str, int]]
"""The search parameters of the approximate segments, by file."""


class ReachedRecall(NamedTuple):
    """A recall@10 of the whole index, and the search parameters that reach it."""

    recall: float
    settings: Settings


class KeptRecall(NamedTuple):
    """Figures for the manifest, and a note for the report, "" without one."""

    figures: dict[str, Any]
    note: str = ""


def keep_recall(
    generation: Generation,
    rows: Callable[[], RowView],
    figures: dict[str, Any],
    options: RunOptions,
    progress: Progress,
    encode: Encode | None = None,
) -> KeptRecall:
    """Measure the draft of a changed index, and give its segments search parameters that reach index.recall.

    Measures only an index with an approximate segment whose changes since the last measurement are at least
    `LEAST_SHARE` of its live rows. `rows` returns all stored rows. Without `encode`, moved documents replace queries of
    texts. Raises CorruptIndexError for a damaged file.
    """
    if not _approximate(generation) or not _is_due(generation):
        return KeptRecall(figures)
    return _measured(generation, rows(), figures, options, progress, encode)


def begin_again(
    generation: Generation,
    rows: RowView,
    figures: dict[str, Any],
    options: RunOptions,
    progress: Progress,
    encode: Encode,
) -> KeptRecall:
    """Measure the draft of an index whose segments were all written again, and continue the published history.

    A single segment was measured when it was written. The first build of an index begins no history.
    """
    if generation.published is None or not generation.segments:
        return KeptRecall(figures)
    history = generation.published.manifest.measured.recall_history
    figures = {**figures, "recall_history": msgspec.to_builtins(history)} if history else figures
    if len(generation.segments) > 1 and _approximate(generation):
        return _measured(generation, rows, figures, options, progress, encode)
    about = Quality.of(figures).index
    if not history or about is None:
        return KeptRecall(figures)
    measured = {"recall_at_10": about.recall_at_10, "queries": about.queries}
    return KeptRecall(_with_entry(generation, figures, **measured, query_origin=about.query_origin or EXACT))


def _measured(
    generation: Generation,
    view: RowView,
    figures: dict[str, Any],
    options: RunOptions,
    progress: Progress,
    encode: Encode | None,
) -> KeptRecall:
    entries, promised = _approximate(generation), generation.config.index.recall
    _check_parts(generation)
    queries, replaced = _queries(generation, view, encode)
    builder = ann.GroundTruthBuilder(queries.vectors, excluded=queries.own, origins=queries.origins)
    blocks = VectorBlocks(view, generation.transform, options.threads, progress, "measuring recall")
    blocks.fill(lambda vectors, threads: None, builder)
    if not len(truth := ann.GroundTruth.of(builder)):
        return KeptRecall(figures)
    progress.phase("tuning", None)
    whole = WholeIndex(generation, truth, view.live_rows)
    settings = {entry.file: entry.search_parameters for entry in entries}
    before = ReachedRecall(whole.recall(settings), settings)
    curves = _curves(generation, None if replaced else Quality.of(figures))
    after = choose(whole, curves, promised, before)
    whole.require_sound()
    for place, entry in enumerate(generation.segments):
        parameters = after.settings.get(entry.file, entry.search_parameters)
        generation.segments[place] = with_fields(entry, search_parameters=parameters)
    figures = _with_entry(
        generation,
        figures,
        recall_before=before.recall,
        recall_at_10=after.recall,
        queries=len(truth),
        query_origin=queries.described + replaced,
    )
    return KeptRecall(figures, _note(before.recall, after.recall, promised, generation.config.index))


def _with_entry(generation: Generation, figures: Mapping[str, Any], **measured: Any) -> dict[str, Any]:
    """Return figures with a new last entry of the history, of which the last `MOST_ENTRIES` stay."""
    documents, rows = generation.counts()
    entry = RecallEntry(
        generation=generation.number,
        documents=documents,
        rows=rows,
        stored_rows=generation.stored_rows,
        promised=generation.config.index.recall,
        search_parameters={entry.file: entry.search_parameters for entry in _approximate(generation)},
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        **measured,
    )
    history = [*figures.get("recall_history", ()), msgspec.to_builtins(entry)]
    return {**figures, "recall_history": history[-MOST_ENTRIES:]}


def _approximate(generation: Generation) -> list[SegmentEntry]:
    return [entry for entry in generation.segments if not ann.is_exact(entry.factory)]


def _is_due(generation: Generation) -> bool:
    """Whether the rows added and deleted since the last measurement are at least `LEAST_SHARE` of the live rows."""
    published = generation.previous.manifest
    history, since = published.measured.recall_history, AddedSince.of(published)
    if history:
        stored, deleted = history[-1].stored_rows, history[-1].stored_rows - history[-1].rows
    else:  # measured by the build, before it had deleted rows
        stored, deleted = sum(part.rows for part in published.parts[: since.part]) + since.row, 0
    _, rows = generation.counts()
    changed = generation.stored_rows - stored + (generation.stored_rows - rows) - deleted
    return rows > 1 and changed >= LEAST_SHARE * rows


def _check_parts(generation: Generation) -> None:
    """Hash the files of published parts that are about to be read. Raises CorruptIndexError."""
    published = generation.previous.manifest.files
    for part in generation.parts:
        names = [f"{part.name}/{layout.EMBEDDINGS}"]
        names += [f"{part.name}/{layout.WINDOWS}"] * (part.rows != part.documents)
        for name in published.keys() & set(names):
            check_file(generation.index / name, published[name])


def _queries(generation: Generation, view: RowView, encode: Encode | None) -> tuple[RecallQueries, str]:
    """Return the queries and why moved documents replace index.queries, "" if they do not. Moved documents are those
    with the largest id hashes, because an index is trained on those with the smallest."""
    settings, order, why = generation.config.index, view.sampling_order, ""
    if settings.queries and not Path(settings.queries).exists():
        settings, why = replace(settings, queries=""), "; index.queries is missing"
    elif settings.queries and encode is None and not is_npy(settings.queries):
        settings, why = replace(settings, queries=""), "; index.queries was not encoded"
    held_out = min(QUERIES, max(len(order) // 4, 1))
    others = order[: 0 if settings.queries else min(len(order) - held_out, NEIGHBOUR_ROWS)]
    encoded, sampled = encode or _no_encoder, view.vectors(generation.transform, others)
    return recall_queries(view, generation.transform, settings, order[-held_out:], sampled, encoded), why


def _no_encoder(texts: list[str]) -> Any:
    raise RuntimeError("queries of texts need an encoder")


class WholeIndex:
    """The segments of a draft, and the queries and right rows that measure them together."""

    def __init__(self, generation: Generation, truth: ann.GroundTruth, live: Mask | None) -> None:
        """`live` (stored rows,) marks the live rows, None for all."""
        self._truth, self._found = truth, np.zeros(len(truth), np.int64)  # found by exact segments
        self._opened: dict[str, tuple[Any, ann.GroundTruth, Mask | None]] = {}
        self._checks: list[BackgroundCheck] = []
        for entry in generation.segments:
            inside = truth.within(entry.first_row, entry.rows)
            if ann.is_exact(entry.factory):
                self._found += np.array([len(rows) for rows in inside.right], np.int64)
                continue
            path, digest = generation.index / entry.file, generation.files[entry.file]
            index, check = open_segment_file(path, entry, digest, generation.transform.dim, at_once=False)
            mask = None if live is None else live[entry.first_row : entry.first_row + entry.rows]
            self._opened[entry.file] = index, inside, None if mask is None or mask.all() else mask
            self._checks += [check] if check is not None else []

    def recall(self, settings: Mapping[str, Mapping[str, int]]) -> float:
        """Return the recall@10 of the whole index with some search parameters of its approximate segments, by file."""
        hits: Int64Array = self._found.copy()
        for file, (index, inside, live) in self._opened.items():
            if live is None or live.any():
                hits += ann.hits_at(index, inside, settings[file], live)
        return self._truth.share(hits)

    def wider(self, settings: Settings) -> Settings:
        """Return the settings with all parameters doubled, up to the largest."""
        return {file: ann.wider_parameters(self._opened[file][0], setting) for file, setting in settings.items()}

    def require_sound(self) -> None:
        """Raise CorruptIndexError if a large file has been found to differ meanwhile."""
        for check in self._checks:
            check.require_sound()


Curves = Mapping[str, Sequence[MeasuredPoint]]
"""The measured points of the approximate segments, in ascending work, or else the parameters they have; by file."""


def _curves(generation: Generation, quality: Quality | None) -> Curves:
    """Return the curves of the approximate segments. Without `quality`, because other queries measure the index than
    the recipe's, no parameters are less than the stored ones."""
    curves, first = dict[str, Sequence[MeasuredPoint]](), generation.segments[0].file
    for entry in _approximate(generation):
        points = quality.of_segment(entry.file, entry.file == first).recall_curve if quality else ()
        curves[entry.file] = points or (MeasuredPoint(entry.search_parameters, 0.0),)
    return curves


def choose(whole: WholeIndex, curves: Curves, promised: float, stored: ReachedRecall) -> ReachedRecall:
    """Return the first settings that reach `promised`, else those of the highest recall. `stored` are measured."""
    tried = list[ReachedRecall]()
    for settings in _ever_wider(whole, curves, promised):
        recall = stored.recall if settings == stored.settings else whole.recall(settings)
        tried.append(ReachedRecall(recall, settings))
        if recall >= promised:
            break
    return max(tried, key=lambda reached: reached.recall)


def _ever_wider(whole: WholeIndex, curves: Curves, promised: float) -> Iterator[Settings]:
    """Yield the settings of the build, then those of higher recall on the curves, then doubled ones."""
    settings: Settings = {}
    known = sorted({point.recall for points in curves.values() for point in points if point.recall > promised})
    for level in [promised, *_spread(known, _LEVELS)]:
        wider = {file: dict(ann.cheapest_point(points, level).search_parameters) for file, points in curves.items()}
        if wider != settings:
            yield (settings := wider)
    for _ in range(_DOUBLINGS):
        wider = whole.wider(settings)
        if wider == settings:
            return
        yield (settings := wider)


def _spread(values: Sequence[float], most: int) -> list[float]:
    """Return at most `most` values, evenly spread, with the first and the last."""
    if len(values) <= most:
        return list(values)
    return [values[place] for place in np.linspace(0, len(values) - 1, most).round().astype(int).tolist()]


def _note(before: float, after: float, promised: float, config: IndexConfig) -> str:
    if after < promised:
        refit = refit_command("index.type=auto" if config.type != "auto" else "")
        return (
            f"recall@10 of the whole index is {after:.4f}, below index.recall {promised:g}, and no search parameters "
            f"reach it. Build its segments again with: {refit}"
        )
    if before < promised:
        return (
            f"recall@10 of the whole index was {before:.4f} after this change, below index.recall {promised:g}; wider "
            f"search parameters raise it to {after:.4f}"
        )
    return ""
