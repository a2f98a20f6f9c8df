"""Deduplication of a corpus: build an index, find duplicates, and write the kept rows unchanged."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory

from indexer.corpus.corpus import Corpus
from indexer.corpus.sources import paths_of
from indexer.errors import ConfigError, as_argument, spelled
from indexer.pipeline.build import build_index
from indexer.pipeline.train import train_for_index
from indexer.progress import NoProgress, Progress
from indexer.recipe.config import BuildConfig
from indexer.recipe.run_options import RunOptions
from indexer.typed_arguments import checked
from search.dedup.deduplicate import Deduplication, check_settings, deduplicate
from search.dedup.inputs import require_another
from search.dedup.kept_documents import check_kept
from search.dedup.settings import DedupFiles, DedupSettings, JoinOptions, duplicates_format
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
    corpus: Corpus,
    settings: DedupSettings | float,
    build: CorpusBuild = CorpusBuild(),
    files: DedupFiles = DedupFiles(),  # noqa: B008 - frozen
    against: str | Path | Index | None = None,
    progress: Progress | None = None,
) -> Deduplication:
    """Build an index of a corpus, decide which documents to keep as `deduplicate` does, and write `files`.

    Output files are checked before the first text is encoded. The index of the result is deleted on return, unless
    `build.keep_index` names a folder; the result has the written files and the notes of the build.

    Raises what `deduplicate`, `indexer.build_index` and `check_kept` raise.
    """
    settings = settings if isinstance(settings, DedupSettings) else DedupSettings(settings)
    other = _check(corpus, settings, build, files, against)
    progress = progress or NoProgress()
    with built_index(corpus, build, progress) as (index, notes):
        if files.kept:
            check_kept(files.kept, index, corpus, files.force)
        result = deduplicate(index, settings, other, files.pairs, build.join, progress)
        written = result.write_files(files, corpus, progress)
    return replace(result, written=written, notes=notes)


@contextmanager
def built_index(
    corpus: Corpus, build: CorpusBuild, progress: Progress | None = None
) -> Iterator[tuple[Index, tuple[str, ...]]]:
    """Build and open an index of a corpus; yield it with the notes of the build. Delete it unless it is kept."""
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
    """Open the other index. Raises ConfigError, ExistsError for errors that would otherwise occur after encoding."""
    _ = build.join  # checks its limits
    check_settings(settings, files.pairs, against)
    if (folder := os.environ.get("TMPDIR")) and not os.access(folder, os.W_OK):
        raise ConfigError(f"TMPDIR is {folder}, which is not writable; temporary vectors are written there.")
    require_another(build.keep_index, against)
    other = against if isinstance(against, Index) or against is None else Index.open(against)
    saved = spelled("pairs.write", "--save-pairs")
    options = {spelled("duplicates", "-o"): files.duplicates, as_argument("kept"): files.kept, saved: files.pairs.write}
    named = {option: path for option, path in options.items() if path}
    read = [path for file in corpus.files for path in (paths_of(file) if file.path else ())]
    made = {as_argument("keep_index"): build.keep_index} if build.keep_index else {}
    check_outputs(named, [*read, *read_by(other.path if other else None, files.pairs.read)], files.force, made, [saved])
    if files.duplicates:
        duplicates_format(files.duplicates)
    if files.kept:
        check_kept(files.kept, other, corpus, files.force)
    return other
