"""`map_index` and `rescore_index`: another encoder for questions or for the first hits; no document is encoded ahead.

    map       questions are encoded by the new encoder and mapped into the stored vectors; documents stay as they are
    rescore   the stored vectors find the candidates, and vectors of the new encoder order them. They are made as
              documents are met, and kept

Both compare the encoders first, write a folder, and publish a generation whose recipe names it.
"""

import json
import shlex
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from indexer import refit_index
from indexer.errors import ConfigError, IsotropeError, spelled
from indexer.models import query_encoder_spec, rescorer_spec
from indexer.models.rescorer_spec import is_rescorer
from indexer.progress import NoProgress, Progress
from indexer.recipe.loading import named_path
from indexer.recipe.ranking import MOST_DEPTH
from indexer.recipe.run_options import RunOptions
from indexer.system.output_files import check_output_folder, refuse_inside_index
from indexer.transforms import transform_to_bytes
from indexer.typed_arguments import checked
from search.evaluation.result import Result
from search.evaluation.tables import interval_text
from search.index import Index
from search.migration.comparison import Comparison, MigrationOptions, measure_encoders
from search.migration.maps import MAP_KINDS, MapKind, fit_map
from search.result_files import open_output_folder

DEPTH = 100


@checked
def map_index(
    index: str | Path,
    output: str | Path,
    task: MigrationOptions,
    options: RunOptions | None = None,
    progress: Progress | None = None,
) -> Result:
    """Answer the questions of an index by another encoder, through the best of three maps, from the next generation on.

    The folder `output` gets the map, fitted to the whole sample; the model stays where it is. Returns the comparison
    that it was chosen by. Raises as `compare_encoders`, and ExistsError if `output` is not empty.
    """

    def write(compared: Comparison, folder: Path) -> list[str]:
        kind = best_map(compared.result)
        _note_loss(compared.result, f"questions mapped, {kind}")
        fitted = fit_map(kind, compared.encoded.sides)
        fitted.write(folder / query_encoder_spec.MAP)
        manifest = compared.index.manifest
        described = query_encoder_spec.QueryEncoderFile(
            format=query_encoder_spec.FORMAT,
            space=manifest.space,
            dim=fitted.matrix.shape[1],
            encoder=_settings(compared),
        )
        (folder / query_encoder_spec.FILE).write_bytes(msgspec.json.format(msgspec.json.encode(described)))
        return ["queries.encoder={folder}"]

    return _apply(index, output, task, options, progress, write)


@checked
def rescore_index(
    index: str | Path,
    output: str | Path,
    task: MigrationOptions,
    depth: int = DEPTH,
    options: RunOptions | None = None,
    progress: Progress | None = None,
) -> Result:
    """Order the first `depth` hits of an index by another encoder from the next generation on.

    The folder `output` gets the new encoder's transform, fitted to the sample, and keeps the vectors of documents as
    queries meet them. Returns the comparison. Raises as `compare_encoders`, and ExistsError if `output` is not empty.
    """
    if not 1 <= depth <= MOST_DEPTH:
        raise ConfigError(f"depth is {depth}; expected 1 to {MOST_DEPTH:,}.")
    if (present := Index.open(index).config.rerank.model) and not is_rescorer(present):
        raise ConfigError(
            f"{index}: its hits are reranked by {present}, and a recipe has one reranker. Fix: "
            + spelled("refit_index(INDEX, ['rerank.model=\"\"'])", "isotrope refit INDEX --set rerank.model=")
            + " removes it."
        )

    def write(compared: Comparison, folder: Path) -> list[str]:
        _note_loss(compared.result, f"{depth} candidates rescored")
        (folder / rescorer_spec.TRANSFORM).write_bytes(transform_to_bytes(compared.encoded.new.transform))
        described = rescorer_spec.RescorerFile(format=rescorer_spec.FORMAT, encoder=_settings(compared))
        (folder / rescorer_spec.FILE).write_bytes(msgspec.json.format(msgspec.json.encode(described)))
        return ["rerank.model={folder}", f"rerank.depth={depth}"]

    return _apply(index, output, task, options, progress, write)


def _apply(
    index: str | Path,
    output: str | Path,
    task: MigrationOptions,
    options: RunOptions | None,
    progress: Progress | None,
    write: Callable[[Comparison, Path], list[str]],
) -> Result:
    """Compare, write the folder, and record it in the recipe."""
    options, progress, folder = options or RunOptions(), progress or NoProgress(), named_path(output, "the folder")
    check_output_folder(folder)
    refuse_inside_index(folder, spelled("output", "-o"))
    compared = measure_encoders(index, task, options, progress)
    with open_output_folder(folder) as written:
        assignments = write(compared, written)
    named = json.dumps(str(folder.resolve()))
    assignments = [each.replace("{folder}", named) for each in assignments]
    try:
        refit_index(compared.index.path, assignments, options, progress)
    except IsotropeError as error:  # for example, another process has begun to write to the index
        record = spelled(
            f"refit_index({str(index)!r}, {assignments!r})",
            shlex.join(["isotrope", "refit", str(index), *(part for each in assignments for part in ("--set", each))]),
        )
        raise type(error)(f"{error} {folder} is complete, but the index does not use it yet: {record}") from error
    return compared.result


def best_map(result: Result) -> MapKind:
    """Return the kind of map with the highest mean reciprocal rank."""
    measured = {row["setting"]: row["measure"]["MRR"]["value"] for row in result.results}
    return max(MAP_KINDS, key=lambda kind: float(measured[f"questions mapped, {kind}"]))


def _note_loss(result: Result, setting: str) -> None:
    """Warn if the measured way is decidedly worse than the index as it is."""
    gains = [pair["measure"]["MRR"] for pair in result.comparisons or () if pair["setting"] == setting]
    if gains and gains[0]["decided"] and gains[0]["value"] < 0:
        warnings.warn(
            f"{setting}: worse than the index as it is, {interval_text(gains[0], form='+.2f')} MRR x 100", stacklevel=3
        )


def _settings(compared: Comparison) -> dict[str, Any]:
    """Return the settings of the new encoder, with the full path of a local model."""
    spec, config = compared.new.spec, compared.new.config
    settings: dict[str, Any] = config.to_dict()["encoder"]
    return settings | ({"model": spec.folder} if spec.local else {})
