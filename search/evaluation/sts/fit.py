"""The sentences that a transform is fitted on for an STS task. Results always name them.

task         all sentences of the task, every subset and both sides, with repetitions: the paper's protocol, which is
             transductive because the fit uses the test sentences
corpus:PATH  another corpus: inductive
index        the rows of the fit of an index's transform; for the index's own setting, that transform

A setting of strength "none" is never fitted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from indexer.arrays import Float32Array
from indexer.corpus.corpus import read_corpus
from indexer.corpus.sources import find_sources
from indexer.errors import ConfigError, as_argument, as_shown, spelled
from indexer.models.identity import PoolingKey
from indexer.moments import Moments, tree_sum
from indexer.pipeline.train import sampled_texts
from indexer.store.manifest import published_at
from indexer.transforms import FitData, Transform
from search.evaluation.embeddings import EmbeddingSource, TextEmbeddings
from search.evaluation.sts.data import Task
from search.evaluation.sweep import Setting, fit_setting
from search.evaluation.target import Target
from search.formatting import counted
from search.result_files import source_hashes

_CORPUS = "corpus:"
_CHUNK = 16_384  # texts encoded at once to compute moments; a multiple of the encoder's groups
Fitted = Callable[[Setting], Transform]


@dataclass(frozen=True)
class Fit:
    """A fit protocol: `of(task, states)` returns a function from settings to transforms.

    `about` is for provenance (JSON types), `files` are the hashes of the corpus's files.
    """

    name: str
    of: Callable[[Task, TextEmbeddings], Fitted]
    about: dict[str, Any] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def choose_fit(name: str, subject: Target, source: EmbeddingSource) -> Fit:
    """Return the fit of this name for the settings of `source`; "" is "index", or without an index "task".

    A corpus is read and encoded. Raises ConfigError for an unknown name, a missing index, and an index with another
    pooling or other layers; CorpusError and EvaluationError for a corpus that cannot be used.
    """
    name = name or ("index" if subject.index else "task")
    if name == "task":
        return Fit(name, _fitted_on_task)
    fitted_settings = [setting for setting in source.settings if not setting.raw]
    if name == "index":
        return _index_fit(subject, source, fitted_settings)
    if name.startswith(_CORPUS) and name != _CORPUS:
        return _corpus_fit(name, subject, source, fitted_settings)
    raise ConfigError(f'{as_argument("fit")} "{name}" is unknown; expected task, index or corpus:PATH.')


def task_texts(task: Task) -> list[str]:
    """Return all sentences of a task with repetitions."""
    return [text for subset in task.subsets for side in (subset.first, subset.second) for text in side]


def _fitted_on_task(task: Task, states: TextEmbeddings) -> Fitted:
    texts = task_texts(task)

    @cache
    def material(key: PoolingKey) -> FitData:
        return FitData(cache(lambda: Moments.of(states.of(texts, key))), lambda: iter([states.of(texts, key)]))

    return lambda setting: fit_setting(setting, material(setting.key))


def _index_fit(subject: Target, source: EmbeddingSource, settings: Sequence[Setting]) -> Fit:
    index = subject.index
    if index is None:
        fix = spelled("measure an index", "pass --index INDEX")
        raise ConfigError(f"{as_argument('fit', 'index')} needs an index. Fix: {fix}.")
    for setting in settings:
        if source.fingerprint(setting.key) != subject.spec.fingerprint:
            own = subject.own
            raise ConfigError(
                f'{as_argument("fit", "index")}: "{setting.label}" has another pooling or other layers than '
                f"{index.path}, which contains only embeddings of {own.pooling} {','.join(map(str, own.layers))}. "
                "Fix: leave out "
                f"{spelled('poolings and layers', '--pooling and --layers')}, or pass {as_argument('fit', 'task')}."
            )
    own_whitening = subject.config.whitening
    fitted = {
        setting: index.transform if setting.whitening == own_whitening else fit_setting(setting, subject.material)
        for setting in settings
    }
    return Fit("index", lambda _, __: fitted.__getitem__, {"index": as_shown(str(index.path))})


def _corpus_fit(name: str, subject: Target, source: EmbeddingSource, settings: Sequence[Setting]) -> Fit:
    path = name.removeprefix(_CORPUS)
    if path == "-":
        raise ConfigError(
            f"{as_argument('fit', name)} : standard input cannot be hashed. Fix: write it to a file and name that."
        )
    if published_at(path):
        fix = spelled('measure this index with fit="index"', f"pass --index {path} --fit index")
        raise ConfigError(f"{as_argument('fit', name)}: {path} is an index. Fix: {fix}.")
    files, ignored = find_sources([path])
    hashes = source_hashes(files)
    config, texts = subject.config, list[str]()
    if settings:  # the texts of a build's fit
        size = 0 if config.whitening.sample == "all" else int(config.whitening.sample)
        texts = sampled_texts(read_corpus(path, config=config.corpus), config, size)
    material = _corpus_material(texts, source, settings)
    fitted = {setting: fit_setting(setting, material[setting.key]) for setting in settings}
    others = counted(len(ignored), "file or folder", "files or folders")
    notes = [f"{path}: {others} left out, not of a corpus"] * bool(ignored)
    return Fit(name, lambda _, __: fitted.__getitem__, {"documents": len(texts)}, hashes, tuple(notes))


def _corpus_material(
    texts: Sequence[str], source: EmbeddingSource, settings: Sequence[Setting]
) -> dict[PoolingKey, FitData]:
    """Return the data of the fits by pooling and layers; rows stay in memory only for flows."""
    moments: dict[PoolingKey, list[Moments]] = {setting.key: [] for setting in settings}
    rows: dict[PoolingKey, list[Float32Array]] = {
        setting.key: [] for setting in settings if setting.whitening.kind == "flow"
    }
    for start in range(0, len(texts), _CHUNK):
        chunk = texts[start : start + _CHUNK]
        states = source.encode(chunk)
        for key, parts in moments.items():
            parts.append(Moments.of(states.of(chunk, key)))
        for key, blocks in rows.items():
            blocks.append(states.of(chunk, key))
    return {key: _material(tree_sum(parts), rows.get(key)) for key, parts in moments.items()}


def _material(moments: Moments, rows: Sequence[Float32Array] | None) -> FitData:
    return FitData.of_moments(moments) if rows is None else FitData(lambda: moments, lambda: iter(rows))
