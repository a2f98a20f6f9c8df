"""Our figures in the layout of WhiteningBERT's Table 1, beside the published ones.

Protocol mean, whitening fitted on each task's own sentences, float32. A published model whose weights are not found
keeps its published rows and says so. The figures and their source are in whiteningbert.json.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from indexer.errors import ConfigError, EvaluationError, ModelError
from indexer.progress import Progress
from indexer.recipe.config import BuildConfig, EncoderConfig, WhiteningConfig
from indexer.recipe.run_options import RunOptions
from search.evaluation.result import Clock, Result
from search.evaluation.settings import Setting
from search.evaluation.sts.data import TASKS, Task, files_of
from search.evaluation.sts.sts import AVERAGE, BOOTSTRAP, StsMeasurement, StsOptions, measure_sts
from search.evaluation.target import Target
from search.papers.method_settings import RAW

Figures = dict[str, float | None]
NOT_FOUND = "not run: weights not found"
_WHITENED = WhiteningConfig(strength=1.0, centre="common", sample="all")
SETTINGS = (
    Setting("cls", (-1,), RAW),
    Setting("mean", (-1,), RAW),
    Setting("mean", (1,), RAW),
    Setting("mean", (1, -1), RAW),
    Setting("mean", (1, -1), _WHITENED),
)
"""The five rows of each encoder, in the table's order."""


@dataclass(frozen=True)
class _Block:
    """One encoder of the table: its published rows, and the subject with what it measured; each where there is one."""

    model: str
    published: tuple[dict[str, Any], ...] = ()
    subject: Target | None = None
    measured: StsMeasurement | None = None
    reason: str = ""  # why it was not run
    remark: str = ""  # what is said of it

    @property
    def depth(self) -> int:
        """Blocks of the published model, as its row of the last layer names it: L12."""
        return int(self.published[0]["layers"].removeprefix("L"))


@cache
def published_tables() -> dict[str, Any]:
    """The published figures as they stand in the data file, with their source."""
    text = files("search.papers").joinpath("whiteningbert.json").read_text(encoding="utf-8")
    tables: dict[str, Any] = json.loads(text)
    return tables


def whiteningbert_table(
    subject: Target, tasks: Sequence[Task], cache: Path | None = None, progress: Progress | None = None
) -> Result:
    """The result of `isotrope evaluate whiteningbert`.

    "results" are rows as `evaluate_sts` gives them, with "model"; "table", which is added, holds "source", "columns",
    "baselines" and "rows", each with its "published" figures, "ours" and the "difference" (ours less published), null
    where there is none. A recipe is measured in float32, whatever precision it names. Raises ConfigError for an index
    of another precision, and what measuring raises.
    """
    clock = Clock()
    subject = _in_float32(subject)
    known = [task for task in tasks if task.name in TASKS]
    if not known:
        raise EvaluationError(f"the paper's table has none of these tasks; expected some of {', '.join(TASKS)}.")
    blocks = [_run(block, known, cache, progress) for block in _blocks(subject)]
    ran = {block.model: block.measured for block in blocks if block.measured}
    provenance = clock.provenance(
        None,
        files_of(known),
        protocol=["mean"],
        fit={"name": "task"},
        encoders={block.model: block.subject.spec.identity.to_dict() for block in blocks if block.subject},
        texts={model: measured.texts for model, measured in ran.items()},
        truncated={model: measured.truncated for model, measured in ran.items()},
        bootstrap=BOOTSTRAP,
        recipes={block.model: block.subject.config.to_dict() for block in blocks if block.subject},
    )
    return Result(
        "whiteningbert",
        provenance,
        [{"model": model, **row} for model, measured in ran.items() for row in measured.results],
        [{"model": model, **row} for model, measured in ran.items() for row in measured.comparisons],
        _notes(blocks, known, tasks),
        {"table": _table(blocks)},
    )


def _in_float32(subject: Target) -> Target:
    precision = subject.config.encoder.precision
    if precision == "float32":
        return subject
    if subject.index:
        raise ConfigError(f"whiteningbert is measured with encoder.precision float32; the index has {precision}.")
    encoder = replace(subject.config.encoder, precision="float32")
    return Target.of_recipe(replace(subject.config, encoder=encoder), subject.options)


def _blocks(subject: Target) -> list[_Block]:
    """The published encoders, found where they can be, and the subject: in its own place if it is one of them.

    A model that only goes by a published name, but has another number of blocks, is none of them.
    """
    blocks, placed, remark = [], False, ""
    for entry in published_tables()["encoders"]:
        block = _Block(entry["model"], tuple(entry["rows"]))
        named = _goes_by(subject, {entry["model"], *entry["also"]})
        own = named and _depth(subject) == block.depth
        if named and not own:
            remark = f"{subject.spec.folder} {_another(subject, block)}"
        placed = placed or own
        blocks.append(replace(block, subject=subject) if own else _found(block, subject.options))
    return blocks if placed else [*blocks, _Block(subject.spec.model, subject=subject, remark=remark)]


def _depth(subject: Target) -> int:
    """Blocks of the model, from its config.json."""
    return subject.states(list(SETTINGS)).blocks


def _another(subject: Target, block: _Block) -> str:
    return f"has {_depth(subject)} blocks; the published {block.model} has {block.depth}, so it is another model"


def _goes_by(subject: Target, names: set[str]) -> bool:
    """Whether a hub id, or the name of the folder the model lies in, is one of these."""
    model = subject.spec.model
    folder = Path(model).name if subject.spec.local else ""
    return model in names or folder in {name.rpartition("/")[2] for name in names}


def _found(block: _Block, options: RunOptions) -> _Block:
    try:
        config = BuildConfig(encoder=EncoderConfig(model=block.model, max_length=0, precision="float32"))
        found = Target.of_recipe(config, options)
        if _depth(found) != block.depth:
            return replace(block, reason=f"{found.spec.folder} {_another(found, block)}")
        return replace(block, subject=found)
    except ModelError as error:
        return replace(block, reason=str(error))


def _run(block: _Block, tasks: Sequence[Task], cache: Path | None, progress: Progress | None) -> _Block:
    if block.subject is None:
        return block
    plan = StsOptions(SETTINGS, fit="task")
    return replace(block, measured=measure_sts(block.subject, tasks, plan, cache, progress))


def _table(blocks: Sequence[_Block]) -> dict[str, Any]:
    tables = published_tables()
    baselines = [
        {"method": row["method"], "published": published_figures(row["figures"])} for row in tables["baselines"]
    ]
    rows = [_row(block, number, setting) for block in blocks for number, setting in enumerate(SETTINGS)]
    return {"source": tables["source"], "columns": tables["columns"], "baselines": baselines, "rows": rows}


def _row(block: _Block, number: int, setting: Setting) -> dict[str, Any]:
    stated = block.published[number] if block.published else None
    published = published_figures(stated["figures"]) if stated else None
    ours = _ours(block.measured, setting) if block.measured else None
    return {
        "model": block.model,
        "pooling": "CLS" if setting.pooling == "cls" else "AVG",
        "layers": stated["layers"] if stated else _layers(block, setting),
        "whitening": not setting.raw,
        "published": published,
        "ours": ours,
        "difference": _difference(ours, published) if ours and published else None,
        "status": "measured" if ours else NOT_FOUND,
        "reason": block.reason,
    }


def _layers(block: _Block, setting: Setting) -> str:
    """As the paper writes them: L1+L12."""
    blocks = block.measured.blocks if block.measured else 0
    return "+".join(f"L{layer % (blocks + 1)}" for layer in setting.layers)


def published_figures(figures: Sequence[float | None]) -> Figures:
    """Figures of the paper, which stand times 100 there, by column."""
    fractions = [None if figure is None else figure / 100 for figure in figures]
    return dict(zip(published_tables()["columns"], fractions, strict=True))


def _ours(measured: StsMeasurement, setting: Setting) -> Figures:
    """Figures by column; the average only where it is over all seven tasks, as the published one."""
    found = {row["task"]: row["spearman"] for row in measured.results if row["setting"] == setting.label}
    average = found.pop(AVERAGE) if set(TASKS) <= set(found) else None
    return {task: found.get(task) for task in TASKS} | {"Avg": average}


def _difference(ours: Figures, published: Figures) -> Figures:
    pairs = {column: (ours[column], figure) for column, figure in published.items()}
    return {column: None if own is None or figure is None else own - figure for column, (own, figure) in pairs.items()}


def _notes(blocks: Sequence[_Block], known: Sequence[Task], tasks: Sequence[Task]) -> list[str]:
    missing = [block.model for block in blocks if block.reason]
    notes = []
    if missing:
        notes.append(
            f"{NOT_FOUND}: {', '.join(missing)}. Way out: run once with a network, or name a folder that holds the "
            "weights and is called as the model: --set encoder.model=FOLDER/bert-base-uncased"
        )
    left_out = [task.name for task in tasks if task.name not in TASKS]
    if left_out:
        notes.append(f"not in the paper's table and left out: {', '.join(left_out)}")
    if len(known) < len(TASKS):
        notes.append(f"no average of ours: the published ones are over {len(TASKS)} tasks, {len(known)} were given")
    notes += [block.remark for block in blocks if block.remark]
    said = [f"{b.model}, {note}" for b in blocks if b.measured for note in b.measured.notes]
    return notes + list(dict.fromkeys(said))
