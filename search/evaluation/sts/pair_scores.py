"""The cosines of a task's sentence pairs under some settings.

Both sentences are documents: they take the document prefix and are centred by the documents' mean.
"""

from collections.abc import Sequence

import numpy as np

from indexer.transforms import Normalisation, Transform, Whitening
from search.evaluation.settings import Setting
from search.evaluation.states import States
from search.evaluation.sts.correlation import Array, Positions, cosines
from search.evaluation.sts.data import Task
from search.evaluation.sts.fits import Fit, task_texts


def fit_transforms(task: Task, states: States, settings: Sequence[Setting], fit: Fit) -> list[Transform]:
    """The transform of each setting for this task; "none" is unit length whatever the fit."""
    fitted = fit.of(task, states)
    return [
        Normalisation(states.rows[setting.key].shape[1]) if setting.raw else fitted(setting) for setting in settings
    ]


def score_pairs(
    task: Task, states: States, settings: Sequence[Setting], transforms: Sequence[Transform]
) -> list[list[Array]]:
    """Cosines (pairs,) of every subset under every setting: `[setting][subset]`."""
    rows, pairs = _pairs(task, states)
    found = []
    for setting, transform in zip(settings, transforms, strict=True):
        # Each distinct sentence is projected once: a matrix product may round equal rows differently.
        vectors = transform.project(states.rows[setting.key][rows], "document")
        found.append([cosines(vectors, first, second) for first, second in pairs])
    return found


def noise_notes(task: Task, settings: Sequence[Setting], transforms: Sequence[Transform], fit: str) -> list[str]:
    """Settings that tell a task's sentences apart by rounding only.

    n sentences span n - 1 directions; whitened fully on these very sentences they are the corners of a regular
    simplex, and every pair has cosine -1 / (n - 1) (a sentence that occurs more often has another, whatever it says).
    """
    count = len(set(task_texts(task)))
    return [
        f'{task.name}, "{setting.label}": the figure is noise: {count:,} distinct sentences span only {count - 1:,} '
        "directions, and full whitening makes all of them equally far apart. Way out: more sentences, less strength, "
        "some shrinkage or fewer dimensions"
        for setting, transform in zip(settings, transforms, strict=True)
        if fit == "task" and isinstance(transform, Whitening) and _full(setting) and transform.dim >= count - 1
    ]


def _full(setting: Setting) -> bool:
    return setting.whitening.strength == 1 and setting.whitening.shrinkage == 0


def _pairs(task: Task, states: States) -> tuple[Positions, list[tuple[Positions, Positions]]]:
    """Rows of the task's distinct sentences, and for each subset where among them its two sides are."""
    rows = np.unique([states.positions[text] for text in task_texts(task)])

    def places(texts: Sequence[str]) -> Positions:
        return np.searchsorted(rows, [states.positions[text] for text in texts])

    return rows, [(places(subset.first), places(subset.second)) for subset in task.subsets]
