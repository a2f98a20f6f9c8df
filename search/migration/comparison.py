"""`compare_encoders`: what another encoder gains on an index, measured on a sample before anything is changed.

Every way to use the new encoder ranks the answers of the same questions. The score of a question is the reciprocal
rank of its document among the answers of the sample; nDCG@10 is shown as well.
"""

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from indexer.arrays import Float64Array
from indexer.errors import ConfigError, as_argument, as_shown, spelled
from indexer.models import query_encoder_spec
from indexer.models.resolution import resolve_spec
from indexer.progress import NoProgress, Progress
from indexer.recipe.config import BuildConfig
from indexer.recipe.loading import require_at_least
from indexer.recipe.run_options import RunOptions
from indexer.typed_arguments import checked
from search.evaluation.bootstrap import draw_counts, mean_difference, mean_interval
from search.evaluation.result import Clock, Result, how_built
from search.evaluation.target import Target
from search.evaluation.tune.unlabelled import LEAST_PAIRS
from search.formatting import counted
from search.index import Index
from search.migration.maps import MAP_KINDS, MapKind
from search.migration.price import migration_price
from search.migration.recipe import migrated_recipe
from search.migration.sample import TwiceEncoded, drawn_pairs, encode_twice

DEPTHS = (20, 50, 100, 200)
CUT = 10  # of nDCG
Mode = Literal["full", "rescore", "map"]
_OLD = "the index as it is"
_NEW = "the new encoder alone"


@checked
@dataclass(frozen=True)
class MigrationOptions:
    """The new encoder: `model`, or settings ("encoder.layers=[1,-1]") that change the recipe; and the sample.

    `here` is the folder of the index's own model if it has moved.
    """

    model: str = ""
    assignments: tuple[str, ...] = ()
    sample: int = 1500  # documents, each with a question
    here: Path | None = None
    cache: Path | None = None  # folder that keeps embeddings between runs


@dataclass(frozen=True)
class MeasuredWay:
    """A way to use the new encoder, with the rank of each question's first relevant document."""

    setting: str
    ranks: Float64Array  # from 1; inf: not found; ties count half
    ndcg: Float64Array | None = None  # of judged queries; None: of the one document of each question
    mode: Mode = "full"
    depth: int | None = None  # of rescored candidates

    @property
    def measures(self) -> dict[str, Float64Array]:
        """The score of each question by name of the measure."""
        gains = np.where(self.ranks <= CUT, 1 / np.log2(1 + self.ranks), 0.0) if self.ndcg is None else self.ndcg
        return {"MRR": 1 / self.ranks, f"nDCG@{CUT}": gains}


class Rankings(Protocol):
    """Rankings of the same documents by two encoders. Each method returns `ranks` and `ndcg` of a `MeasuredWay`."""

    @property
    def documents(self) -> int:
        """The number of ranked documents."""

    def of_old(self) -> "Ranks":
        """Rank by the old vectors."""

    def of_new(self) -> "Ranks":
        """Rank by the new vectors."""

    def rescored(self, depth: int) -> "Ranks":
        """Rank the first `depth` documents of the old vectors by the new ones."""

    def mapped(self, kind: MapKind) -> "Ranks":
        """Rank by the old vectors, with new questions that are mapped into their space."""


Ranks = tuple[Float64Array, Float64Array | None]


@checked
def compare_encoders(
    index: str | Path, task: MigrationOptions, options: RunOptions | None = None, progress: Progress | None = None
) -> Result:
    """Compare the index's encoder with another on drawn questions; nothing is changed.

    The key "price" of the result is the cost of encoding all documents, and "choice" the best way. Raises ConfigError
    for the same encoder, EvaluationError for an index with too few documents, and ModelError as `build_index`.
    """
    return measure_encoders(index, task, options or RunOptions(), progress or NoProgress()).result


@dataclass(frozen=True)
class Comparison:
    """A measured comparison, with the sample that both encoders have encoded."""

    result: Result
    index: Index
    new: Target
    encoded: TwiceEncoded


def measure_encoders(index: str | Path, task: MigrationOptions, options: RunOptions, progress: Progress) -> Comparison:
    """Return the comparison of `compare_encoders`."""
    clock = Clock()
    old, new = _subjects(index, task, options)
    opened = Index.open(index) if old.index is None else old.index
    progress.phase("reading", None)
    pairs = drawn_pairs(opened, task.sample)
    encoded = encode_twice(old, new, pairs, task.cache, progress)
    progress.phase("comparing", None)
    ways = list(measured_ways(DrawnRankings(encoded)))
    rows, compared, choice = compared_ways(ways, lambda way: migration_command(opened, task, way))
    protocol = {"measure": "MRR", "kind": "questions drawn from the documents", "questions": len(pairs)}
    provenance = clock.provenance(
        new.spec, {}, protocol=protocol, **how_built(old.config, opened), replaced=old.spec.identity.to_dict()
    )
    added = {"price": migration_price(opened, new.config).to_dict(), "choice": choice}
    notes = list(_notes(encoded, opened, task))
    return Comparison(Result("migrate", provenance, rows, compared, notes, added), opened, new, encoded)


def _subjects(index: str | Path, task: MigrationOptions, options: RunOptions) -> tuple[Target, Target]:
    """Return the index and the recipe with the new encoder. Raises ConfigError if they cannot be compared."""
    require_at_least("sample", task.sample, LEAST_PAIRS)
    opened = Index.open(index)
    _require_plain(opened, task.model)
    config = migrated_recipe(opened, task.model, task.assignments)
    if not opened.config.encoder.traits.encodes_texts or not config.encoder.traits.encodes_texts:
        raise ConfigError(
            f"{opened.path}: embeddings that come with the corpus cannot be compared by questions, because no model "
            f"encodes the questions. Fix: {spelled('call migrate_index', 'add --mode full')} to encode the documents "
            "without a comparison."
        )
    old, new = Target.of_index(index, task.here, options), Target.of_recipe(config, options)
    require_another_encoder(opened, config)
    return old, new


def _require_plain(index: Index, model: str) -> None:
    """Raise ConfigError if a query encoder would spoil the comparison."""
    if model and (Path(model).expanduser() / query_encoder_spec.FILE).is_file():
        raise ConfigError(
            f"{model}: is a query encoder, fitted to the documents of an index, so questions drawn from them cannot "
            "judge it. Fix: name the model itself."
        )
    if recorded := index.config.queries.encoder:
        raise ConfigError(
            f"{index.path}: its questions are encoded by {recorded}, not by its own encoder, which the comparison is "
            f"with. Fix: {query_encoder_spec.forget_query_encoder(str(index.path))} first."
        )


def require_another_encoder(index: Index, config: BuildConfig) -> None:
    """Raise ConfigError if the recipe's encoder is that of the index."""
    if resolve_spec(config).fingerprint == index.manifest.fingerprint:
        raise ConfigError(
            f"{index.path}: already has this encoder ({index.manifest.encoder['model']}). Fix: name another model, or "
            f"other settings of the encoder with {as_argument('set', 'encoder.layers=[1,-1]')}."
        )


def measured_ways(rankings: Rankings) -> Iterator[MeasuredWay]:
    """Yield the ranks of every way: the old vectors, rescored candidates, mapped questions, the new vectors."""
    yield MeasuredWay(_OLD, *rankings.of_old())
    for depth in DEPTHS:
        if depth < rankings.documents:
            yield MeasuredWay(f"{depth} candidates rescored", *rankings.rescored(depth), "rescore", depth)
    for kind in MAP_KINDS:
        yield MeasuredWay(f"questions mapped, {kind}", *rankings.mapped(kind), "map")
    yield MeasuredWay(_NEW, *rankings.of_new())


class DrawnRankings:
    """Rankings of the answers of drawn questions."""

    def __init__(self, encoded: TwiceEncoded) -> None:
        self._encoded, self._old, self._new = encoded, encoded.old.scores, encoded.new.scores
        self.documents = len(encoded.pairs)

    def of_old(self) -> Ranks:
        return answer_ranks(self._old), None

    def of_new(self) -> Ranks:
        return answer_ranks(self._new), None

    def rescored(self, depth: int) -> Ranks:
        return rescored_ranks(self._old, self._new, depth), None

    def mapped(self, kind: MapKind) -> Ranks:
        return answer_ranks(self._encoded.mapped_scores(kind)), None


def answer_ranks(scores: Float64Array, allowed: Any = True) -> Float64Array:
    """Return the rank of document i for question i, among the `allowed` (n, n) documents; ties count half."""
    answer = np.diagonal(scores)[:, None]
    better, equal = ((scores > answer) & allowed).sum(axis=1), ((scores == answer) & allowed).sum(axis=1)
    ranks: Float64Array = better + (equal + 1) / 2
    return ranks


def rescored_ranks(old: Float64Array, new: Float64Array, depth: int) -> Float64Array:
    """Return the ranks if the first `depth` documents by the old scores are ordered by the new scores."""
    least = np.partition(old, -depth, axis=1)[:, -depth][:, None]
    candidates = old >= least
    ranks: Float64Array = np.where(np.diagonal(candidates), answer_ranks(new, candidates), answer_ranks(old))
    return ranks


def compared_ways(
    ways: Sequence[MeasuredWay], command: Callable[[MeasuredWay], str]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """Return a row for each way, its paired differences from the first way, and the choice with the way's command."""
    counts = draw_counts(len(ways[0].ranks), "migrate")
    compared = [_compared(ways[0], way, counts) for way in ways[1:]]
    return [_row(way, counts) for way in ways], compared, _choice(ways, compared, command)


def _row(way: MeasuredWay, counts: Float64Array) -> dict[str, Any]:
    figures = {name: mean_interval(values, counts).to_dict() for name, values in way.measures.items()}
    return {"setting": way.setting, "measure": figures, "queries": len(way.ranks)}


def _compared(old: MeasuredWay, way: MeasuredWay, counts: Float64Array) -> dict[str, Any]:
    figures = {}
    for name, values in way.measures.items():
        before = old.measures[name]
        won, lost = int((values > before).sum()), int((values < before).sum())
        differs = mean_difference(before, values, counts).to_dict()
        figures[name] = differs | {"won": won, "tied": len(values) - won - lost, "lost": lost}
    return {"setting": way.setting, "against": old.setting, "measure": figures}


def _choice(
    ways: Sequence[MeasuredWay], compared: Sequence[Mapping[str, Any]], command: Callable[[MeasuredWay], str]
) -> dict[str, Any]:
    """Return the way with the highest score if it is better than the index as it is, with the reason and the command.

    Of ways that are better, the one with the highest score.
    """
    scores = [float(way.measures["MRR"].mean()) for way in ways[1:]]
    best = scores.index(max(scores))
    gain = compared[best]["measure"]["MRR"]
    better = gain["decided"] and gain["value"] > 0
    decided = "decided: the 95 % interval excludes 0" if gain["decided"] else "not decided: the 95 % interval has 0"
    reason = decided if better else f"the new encoder is not better here; {decided}"
    way = ways[1 + best]
    setting, named = (way.setting, command(way)) if better else (ways[0].setting, "")
    return {"setting": setting, "reason": reason, "gain": gain, "best": way.setting, "command": named}


def migration_command(index: Index, task: MigrationOptions, way: MeasuredWay) -> str:
    """Return the command line, or the call, that uses the new encoder in a way."""
    path, given = as_shown(str(index.path)), [("to", task.model), *(("set", value) for value in task.assignments)]
    call = f"migrate_index({path!r}, {task.model!r}, {list(task.assignments)!r})"
    given.append(("mode", way.mode))
    if way.mode != "full":
        place = path.rstrip("/")
        folder = f"{place.rpartition('/')[2] if '://' in place else place}-{way.mode}"  # of this machine
        depth = [str(way.depth)] * (way.depth is not None)
        options = f"MigrationOptions({task.model!r}, {task.assignments!r})"
        call = f"{way.mode}_index({', '.join([repr(path), repr(folder), options, *depth])})"
        given += [("output", folder), *(("depth", value) for value in depth)]
    words = [word for option, value in given if value for word in (f"--{option}", value)]
    return spelled(call, f"isotrope migrate {shlex.join([path, *words])}")


def _notes(encoded: TwiceEncoded, index: Index, task: MigrationOptions) -> Iterator[str]:
    found, documents = len(encoded.pairs), index.manifest.documents
    yield (
        f"measured on {found:,} of {counted(documents, 'document')}: each question ranks the answers of the sample "
        "only, so a depth of candidates covers a larger share of it than of the index"
    )
    if found < min(task.sample, documents):
        yield f"{found:,} questions: the other documents of the sample cannot be split, or repeat another"
    for name, side in (("index's", encoded.old), ("new", encoded.new)):
        if side.truncated:
            yield f"the {name} encoder truncated {counted(side.truncated, 'text')}"
