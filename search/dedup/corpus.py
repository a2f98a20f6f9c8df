"""Deduplicating a corpus: an index is built of it, kept or not, and the rows that survive are written as they were."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from indexer.corpus.corpus import Corpus
from indexer.corpus.sources import paths_of
from indexer.errors import ConfigError
from indexer.pipeline.build import build_index
from indexer.pipeline.train import train_for_index
from indexer.progress import NoProgress, Progress
from indexer.recipe.config import BuildConfig
from indexer.recipe.run_options import RunOptions
from search.dedup.deduplicate import Deduplication, check_settings, deduplicate
from search.dedup.inputs import require_another
from search.dedup.kept import check_kept
from search.dedup.settings import DedupFiles, DedupSettings, JoinOptions
from search.files import check_outputs, read_by
from search.index import Index


@dataclass(frozen=True)
class CorpusBuild:
    """How the index of a corpus is made, and where it stays: in `keep_index`, else nowhere.

    `memory` are the bytes that finding pairs may use, about; `run` says where and on how many threads all of it runs.
    """

    config: BuildConfig = field(default_factory=BuildConfig)
    run: RunOptions = field(default_factory=RunOptions)
    keep_index: Path | None = None
    memory: int = JoinOptions.memory

    @property
    def join(self) -> JoinOptions:
        """How pairs are found; on the CPU where the encoder runs on mps, which does not find pairs."""
        device = "cpu" if self.run.device == "mps" else self.run.device
        return JoinOptions(device, self.run.threads, self.memory, self.run.pool)


def deduplicate_corpus(
    corpus: Corpus,
    settings: DedupSettings | float,
    build: CorpusBuild = CorpusBuild(),
    files: DedupFiles = DedupFiles(),  # noqa: B008 - frozen
    against: str | Path | Index | None = None,
    progress: Progress | None = None,
) -> Deduplication:
    """Build an index of a corpus, decide which documents stay as `deduplicate` does, and write `files`.

    All that is written is checked before the first text is encoded. The index of the result is gone when this returns,
    unless `build.keep_index` names a folder for it; what was written, and what was noticed, stand in the result.

    Raises what `deduplicate`, `indexer.build_index` and `check_kept` raise.
    """
    wanted = settings if isinstance(settings, DedupSettings) else DedupSettings(settings)
    other = _check(corpus, wanted, build, files, against)
    progress = progress or NoProgress()
    with built_index(corpus, build, progress) as (index, notes):
        if files.kept:
            check_kept(files.kept, index, corpus, files.force)
        found = deduplicate(index, wanted, other, files.pairs, build.join, progress)
        written = found.write_files(files, corpus, progress)
    return replace(found, written=written, notes=notes)


@contextmanager
def built_index(
    corpus: Corpus, build: CorpusBuild, progress: Progress | None = None
) -> Iterator[tuple[Index, tuple[str, ...]]]:
    """An index of a corpus, open, and what was noticed while it was built; gone afterwards unless it is kept."""
    with TemporaryDirectory(prefix="isotrope-dedup-") as folder:
        place = build.keep_index or Path(folder) / "index"
        trained = train_for_index(corpus, place, build.config, build.run, progress)
        report = build_index(corpus, place, build.config, build.run, progress)
        yield Index.open(place), tuple(note for note in (trained, *report.notes) if note)


def _check(
    corpus: Corpus,
    settings: DedupSettings,
    build: CorpusBuild,
    files: DedupFiles,
    against: str | Path | Index | None,
) -> Index | None:
    """The other index, opened. Raises ConfigError, ExistsError for whatever would end in an error after encoding."""
    _ = build.join  # its limits
    check_settings(settings, files.pairs, against)
    if (folder := os.environ.get("TMPDIR")) and not os.access(folder, os.W_OK):
        raise ConfigError(f"TMPDIR is {folder}, which cannot be written; vectors lie there while this runs.")
    require_another(build.keep_index, against)
    other = against if isinstance(against, Index) or against is None else Index.open(against)
    options = {"-o": files.duplicates, "--kept": files.kept, "--save-pairs": files.pairs.write}
    named = {option: path for option, path in options.items() if path}
    read = [path for file in corpus.files for path in (paths_of(file) if file.path else ())]
    made = {"--keep-index": build.keep_index} if build.keep_index else {}
    check_outputs(
        named, [*read, *read_by(other.path if other else None, files.pairs.read)], files.force, made, ["--save-pairs"]
    )
    files.check()
    if files.kept:
        check_kept(files.kept, other, corpus, files.force)
    return other
