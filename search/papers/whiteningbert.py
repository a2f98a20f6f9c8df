"""Our figures in the layout of WhiteningBERT's Table 1, next to the published figures.

Protocol mean, whitening fitted on each task's own sentences, float32. A published model without weights here keeps its
published rows with a status. The figures and their source are in whiteningbert.json.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from indexer.errors import EvaluationError, ModelError
from indexer.progress import Progress
from indexer.recipe.config import BuildConfig, EncoderConfig, WhiteningConfig
from indexer.recipe.run_options import RunOptions
from search.evaluation.result import Clock, Result
from search.evaluation.sts.data import TASKS, Task, files_of
from search.evaluation.sts.sts import AVERAGE, BOOTSTRAP, StsMeasurement, StsOptions, measure_sts
from search.evaluation.sweep import Setting
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
    """One encoder of the table: its published rows, the subject and its measurement, each if it exists."""

    model: str
    published: tuple[dict[str, Any], ...] = ()
    subject: Target | None = None
    measured: StsMeasurement | None = None
    reason: str = ""  # for not running it
    remark: str = ""  # a note

    @property
    def depth(self) -> int:
        """Blocks of the published model, from its row of the last layer: L12."""
        return int(self.published[0]["layers"].removeprefix("L"))


@cache
def published_tables() -> dict[str, Any]:
    """Return the published figures of the data file, with their source."""
    text = files("search.papers").joinpath("whiteningbert.json").read_text(encoding="utf-8")
    tables: dict[str, Any] = json.loads(text)
    return tables


def whiteningbert_table(
    subject: Target, tasks: Sequence[Task], cache: Path | None = None, progress: Progress | None = None
) -> Result:
    """Return the result of `isotrope evaluate whiteningbert`.

    "results" are rows of `evaluate_sts` with "model". "table" has "source", "columns", "baselines" and "rows", each row
    with its "published" figures, "ours" and the "difference" (ours minus published), null if missing. A recipe is
    measured in float32, regardless of its precision. Raises the errors of measuring.
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
        texts={model: measured.facts["texts"] for model, measured in ran.items()},
        truncated={model: measured.facts["truncated"] for model, measured in ran.items()},
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
    if subject.config.encoder.precision == "float32":
        return subject
    encoder = replace(subject.config.encoder, precision="float32")
    return Target.of_recipe(replace(subject.config, encoder=encoder), subject.options)


def _blocks(subject: Target) -> list[_Block]:
    """Return the published encoders, loaded if possible, and the subject: in its place if it is one of them.

    A model with a published name but another number of blocks is none of them.
    """
    blocks, placed, remark = [], False, ""
    for entry in published_tables()["encoders"]:
        block = _Block(entry["model"], tuple(entry["rows"]))
        named = _goes_by(subject, {entry["model"], *entry["also"]})
        is_subject = named and _depth(subject) == block.depth
        if named and not is_subject:
            remark = f"{subject.spec.folder} {_another(subject, block)}"
        placed = placed or is_subject
        blocks.append(replace(block, subject=subject) if is_subject else _loaded(block, subject.options))
    return blocks if placed else [*blocks, _Block(subject.spec.model, subject=subject, remark=remark)]


def _depth(subject: Target) -> int:
    return subject.states(list(SETTINGS)).blocks


def _another(subject: Target, block: _Block) -> str:
    return f"has {_depth(subject)} blocks; the published {block.model} has {block.depth}, so it is another model"


def _goes_by(subject: Target, names: set[str]) -> bool:
    """Return whether the model's hub id, or the name of its folder, is one of these."""
    model = subject.spec.model
    folder = Path(model).name if subject.spec.local else ""
    return model in names or folder in {name.rpartition("/")[2] for name in names}


def _loaded(block: _Block, options: RunOptions) -> _Block:
    try:
        config = BuildConfig(encoder=EncoderConfig(model=block.model, max_length=0, precision="float32"))
        target = Target.of_recipe(config, options)
        if _depth(target) != block.depth:
            return replace(block, reason=f"{target.spec.folder} {_another(target, block)}")
        return replace(block, subject=target)
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
    """Return the layers in the paper's notation: L1+L12."""
    blocks = block.measured.blocks if block.measured else 0
    return "+".join(f"L{layer % (blocks + 1)}" for layer in setting.layers)


def published_figures(figures: Sequence[float | None]) -> Figures:
    """Return figures by column from the paper's figures times 100."""
    fractions = [None if figure is None else figure / 100 for figure in figures]
    return dict(zip(published_tables()["columns"], fractions, strict=True))


def _ours(measured: StsMeasurement, setting: Setting) -> Figures:
    """Return figures by column, with the average only if it is over all seven tasks, like the published average."""
    figures = {row["task"]: row["spearman"] for row in measured.results if row["setting"] == setting.label}
    average = figures.pop(AVERAGE) if set(TASKS) <= set(figures) else None
    return {task: figures.get(task) for task in TASKS} | {"Avg": average}


def _difference(ours: Figures, published: Figures) -> Figures:
    return {
        column: None if figure is None or (our := ours[column]) is None else our - figure
        for column, figure in published.items()
    }


def _notes(blocks: Sequence[_Block], known: Sequence[Task], tasks: Sequence[Task]) -> list[str]:
    missing = [block.model for block in blocks if block.reason]
    notes = []
    if missing:
        notes.append(
            f"{NOT_FOUND}: {', '.join(missing)}. Fix: run once with a network, or name a folder with the weights and "
            "the name of the model: --set encoder.model=FOLDER/bert-base-uncased"
        )
    left_out = [task.name for task in tasks if task.name not in TASKS]
    if left_out:
        notes.append(f"not in the paper's table and left out: {', '.join(left_out)}")
    if len(known) < len(TASKS):
        notes.append(
            f"our average is left out: published averages are over {len(TASKS)} tasks, but {len(known)} were given"
        )
    notes += [block.remark for block in blocks if block.remark]
    notes_of_runs = [f"{block.model}, {note}" for block in blocks if block.measured for note in block.measured.notes]
    return notes + list(dict.fromkeys(notes_of_runs))
