"""Deduplication of a corpus: build an index, find duplicates, and write the kept rows unchanged.

`deduplicate` takes an index or a corpus, and is all that most programs need.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypedDict, Unpack

from indexer.corpus.corpus import Corpus, read_corpus
from indexer.corpus.records import Records
from indexer.corpus.sources import paths_of
from indexer.errors import ConfigError, as_argument, spelled
from indexer.pipeline.build import build_index
from indexer.pipeline.build_inputs import Recipe, build_inputs, recipe_of
from indexer.pipeline.train import train_for_index
from indexer.progress import NoProgress, Progress
from indexer.recipe.config import BuildConfig
from indexer.recipe.corpus_config import DocumentSource
from indexer.recipe.loading import did_you_mean
from indexer.recipe.run_options import RunOptions
from indexer.store.manifest import published_at
from indexer.typed_arguments import checked
from search.dedup.deduplication import Deduplication, check_settings, deduplicate_index
from search.dedup.inputs import require_another
from search.dedup.kept_documents import check_kept
from search.dedup.settings import (
    DedupFiles,
    DedupSettings,
    JoinOptions,
    Method,
    PairFiles,
    TextDuplicates,
)
from search.index import Index
from search.result_files import check_outputs, read_by


@checked
@dataclass(frozen=True)
class CorpusBuild:
    """Options of the build of the index and of the join."""

    config: BuildConfig = field(default_factory=BuildConfig)
    run: RunOptions = field(default_factory=RunOptions)
    keep_index: Path | None = None  # folder of the index; None: temporary
    memory: int = JoinOptions.memory  # bytes for finding pairs, about

    @property
    def join(self) -> JoinOptions:
        """Options of the join, on the CPU if the encoder runs on mps, which the join does not support."""
        device = "cpu" if self.run.device == "mps" else self.run.device
        return JoinOptions(device, self.run.threads, self.memory, self.run.pool)


@checked
def deduplicate_corpus(
    corpus: Records,
    settings: DedupSettings | float,
    build: CorpusBuild = CorpusBuild(),
    files: DedupFiles = DedupFiles(),  # noqa: B008 - frozen
    against: str | Path | Index | None = None,
    progress: Progress | None = None,
) -> Deduplication:
    """Build an index of a corpus, decide which documents to keep as `deduplicate_index` does, and write `files`.

    Output files are checked before the first text is encoded. The index of the result is deleted on return, unless
    `build.keep_index` names a folder; the result has the written files and the notes of the build.

    Raises what `deduplicate_index`, `indexer.build_index` and `check_kept` raise.
    """
    settings = settings if isinstance(settings, DedupSettings) else DedupSettings(settings)
    other = _check(corpus, settings, build, files, against)
    progress = progress or NoProgress()
    with built_index(corpus, build, progress) as (index, notes):
        if files.kept:
            check_kept(files.kept, index, _files_of(corpus), files.force)
        result = deduplicate_index(index, settings, other, files.pairs, build.join, progress)
        written = result.write_files(files, _files_of(corpus), progress)
    return replace(result, written=written, notes=notes)


class DedupFields(TypedDict, total=False):
    """Keyword arguments of `deduplicate`: settings, output files, and how a corpus is read and encoded.

    `dropped` lists the dropped documents with the documents kept in their place (.csv, .jsonl, .parquet), and `kept`
    has the kept documents, as rows of the corpus. `force` overwrites these files. `against` is another index: its
    duplicates are dropped as well. `memory` is in bytes. The others are fields of `DedupSettings`, and arguments of
    `build_index`.
    """

    threshold: float
    prefer: str
    method: Method
    text_duplicates: TextDuplicates
    only_against: bool
    against: str | Path | Index | None
    dropped: str | Path | None
    kept: str | Path | None
    pairs: PairFiles
    force: bool
    memory: int
    config: Recipe | None
    options: RunOptions | None
    progress: Progress | None
    keep_index: str | Path | None
    model: str | Path
    id_column: str
    title_column: str
    text_column: str
    documents: DocumentSource


_INPUTS = ("model", "id_column", "title_column", "text_column", "documents")
_OF_CORPORA = ("config", "keep_index", *_INPUTS)
_SETTINGS = ("threshold", "prefer", "method", "text_duplicates", "only_against")


@checked
def deduplicate(
    source: Records | Index, settings: DedupSettings | float | None = None, **fields: Unpack[DedupFields]
) -> Deduplication:
    """Decide which documents of an index or of a corpus to keep, and write the kept and the dropped documents to files.

        deduplicate("reviews.csv", text_column="review", threshold=0.9, kept="clean.csv", dropped="dropped.csv")

    `source` is an index or its path, or a corpus as in `build_index`, which is encoded into a temporary index.
    `settings` are `DedupSettings` or just the threshold. Raises what `deduplicate_index` and `build_index` raise.
    """
    if unknown := [name for name in fields if name not in DedupFields.__annotations__]:
        raise ConfigError(did_you_mean("argument of deduplicate", unknown[0], DedupFields.__annotations__))
    given: dict[str, Any] = dict(fields)
    chosen = _settings(settings, {name: given[name] for name in _SETTINGS if name in given})
    dropped, kept, keep_index = (_path(given.get(name)) for name in ("dropped", "kept", "keep_index"))
    files = DedupFiles(dropped, kept, fields.get("pairs", PairFiles()), fields.get("force", False))
    config = recipe_of(fields.get("config"), build_inputs({name: given[name] for name in _INPUTS if name in given}))
    run = fields.get("options") or RunOptions()
    build = CorpusBuild(config, run, keep_index, fields.get("memory", JoinOptions.memory))
    against, progress = fields.get("against"), fields.get("progress")
    if isinstance(source, Index):
        index = source
    elif isinstance(source, str | Path) and (place := published_at(source)):
        index = Index.open(place)
    else:
        corpus = read_corpus(source, config=config.corpus) if isinstance(source, str | Path) else source
        return deduplicate_corpus(corpus, chosen, build, files, against, progress)
    if odd := [name for name in _OF_CORPORA if given.get(name)]:
        raise ConfigError(f"{odd[0]} is for a corpus, but the source is an index. Fix: leave it out.")
    other = Index.open(against) if isinstance(against, str | Path) else against
    return deduplicate_opened(index, chosen, files, other, build.join, progress)


def deduplicate_opened(
    index: Index,
    settings: DedupSettings,
    files: DedupFiles,
    other: Index | None,
    options: JoinOptions,
    progress: Progress | None = None,
) -> Deduplication:
    """Deduplicate an open index as `deduplicate_index` does, and write `files`, which are checked first."""
    if files.kept:
        check_kept(files.kept, index, force=files.force)
    result = deduplicate_index(index, settings, other, files.pairs, options, progress)
    return replace(result, written=result.write_files(files, progress=progress))


def _settings(settings: DedupSettings | float | None, fields: dict[str, Any]) -> DedupSettings:
    """Return settings with the fields replaced. Raises ConfigError for two thresholds, or none."""
    if isinstance(settings, DedupSettings):
        return replace(settings, **fields)
    if (settings is None) == ("threshold" not in fields):
        how = "is missing" if settings is None else "is given twice"
        raise ConfigError(f"the threshold {how}; expected one, such as threshold=0.9.")
    return DedupSettings(**fields) if settings is None else DedupSettings(settings, **fields)


def _path(path: Any) -> Path | None:
    return None if path is None else Path(path)


def _files_of(corpus: object) -> Corpus | None:
    """Return a corpus that is read from files, whose rows can be copied."""
    return corpus if isinstance(corpus, Corpus) else None


@contextmanager
def built_index(
    corpus: Records, build: CorpusBuild, progress: Progress | None = None
) -> Iterator[tuple[Index, tuple[str, ...]]]:
    """Build and open an index of a corpus; yield it with the notes of the build. Delete it unless it is kept."""
    with TemporaryDirectory(prefix="isotrope-dedup-") as folder:
        place = build.keep_index or Path(folder) / "index"
        trained = train_for_index(corpus, place, build.config, build.run, progress)
        report = build_index(corpus, place, build.config, build.run, progress)
        yield Index.open(place), tuple(note for note in (trained, *report.notes) if note)


def _check(
    corpus: Records,
    settings: DedupSettings,
    build: CorpusBuild,
    files: DedupFiles,
    against: str | Path | Index | None,
) -> Index | None:
    """Open the other index. Raises ConfigError, ExistsError for errors that would otherwise occur after encoding."""
    _ = build.join  # checks its limits
    check_settings(settings, files.pairs, against)
    if (folder := os.environ.get("TMPDIR")) and not os.access(folder, os.W_OK):
        raise ConfigError(f"TMPDIR is {folder}, which is not writable; temporary vectors are written there.")
    require_another(build.keep_index, against)
    other = against if isinstance(against, Index) or against is None else Index.open(against)
    saved = spelled("pairs.write", "--save-pairs")
    options = {spelled("dropped", "-o"): files.dropped, as_argument("kept"): files.kept, saved: files.pairs.write}
    named = {option: path for option, path in options.items() if path}
    read_from = _files_of(corpus)
    sources = read_from.files if read_from else ()
    read = [path for file in sources for path in (paths_of(file) if file.path else ())]
    made = {as_argument("keep_index"): build.keep_index} if build.keep_index else {}
    check_outputs(named, [*read, *read_by(other.path if other else None, files.pairs.read)], files.force, made, [saved])
    if files.kept:
        check_kept(files.kept, other, read_from, files.force)
    return other
