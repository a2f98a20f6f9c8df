"""`train_pooling`: Latte-Mix trained on a corpus beforehand, as a folder that any number of indexes are built with."""

import heapq
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tomli_w

from indexer.config import BuildConfig
from indexer.corpus import joined_text
from indexer.corpus.document import Document
from indexer.encoders import resolve_spec
from indexer.encoders.chunker import DocumentChunker
from indexer.encoders.fitted_state import RECIPE, fit_latte_mix
from indexer.errors import ConfigError, CorpusError
from indexer.hashing import hash_id
from indexer.output_files import check_output_folder
from indexer.progress import NoProgress, Progress, step_callback
from indexer.run_options import RunOptions
from indexer.settings import require_text
from indexer.store.files import atomic_write_bytes, make_folder

_BLOCK = 1024  # texts handed on together


@dataclass(frozen=True)
class TrainReport:
    """What a training did. `losses` are rows [step, reconstruction, KL], the means since the row before."""

    folder: Path
    documents: int
    texts: int
    tokens: int
    steps: int
    losses: Sequence[Sequence[float]]


def train_pooling(
    corpus: Iterable[Document],
    folder: str | Path,
    config: BuildConfig,
    options: RunOptions | None = None,
    progress: Progress | None = None,
    documents: int = 0,
) -> TrainReport:
    """Train Latte-Mix on the token vectors of the recipe's encoder and write it, with a recipe, into a new folder.

    `documents` are those with the smallest hash of id, 0 for all; with chunking their windows are the texts. Raises
    ConfigError (also for a folder inside an index), ExistsError where the folder holds anything, CorpusError,
    and what loading and training raise.
    """
    options, progress, folder = options or RunOptions(), progress or NoProgress(), Path(folder)
    if documents < 0:
        raise ConfigError(f"the number of documents is {documents}; expected 0 (all) or more.")
    check_output_folder(folder, or_empty=True)
    require_text(str(folder.resolve()), "the folder")  # the recipe names it
    config = _for_latte_mix(config)
    spec = resolve_spec(config.encoder)
    progress.phase("reading", None)
    chosen = sampled_texts(corpus, config, documents)
    texts = DocumentChunker(spec, config.chunk)(chosen).texts

    def blocks() -> Iterator[list[str]]:
        return (texts[start : start + _BLOCK] for start in range(0, len(texts), _BLOCK))

    with tempfile.TemporaryDirectory(prefix="isotrope-") as beside:
        about = fit_latte_mix(spec, blocks, Path(beside), options, step_callback(progress, "training"))
        make_folder(folder)
        for path in sorted(Path(beside).iterdir()):
            atomic_write_bytes(folder / path.name, path.read_bytes())
        atomic_write_bytes(folder / RECIPE, _recipe(config, folder))
    return TrainReport(folder, len(chosen), len(texts), about["tokens"], about["steps"], about["losses"])


def _for_latte_mix(config: BuildConfig) -> BuildConfig:
    """The recipe with pooling "latte-mix", trained anew."""
    if not config.encoder.traits.encodes_texts:
        raise ConfigError('encoder.kind is "vectors": there is no model, and no token vectors to train on.')
    return replace(config, encoder=replace(config.encoder, pooling="latte-mix", fitted=""))


def sampled_texts(corpus: Iterable[Document], config: BuildConfig, size: int) -> list[str]:
    """Joined texts of the `size` documents with the smallest hash of id, 0 for all, in their order.

    Raises CorpusError where there are none.
    """
    rows = (
        (hash_id(document.id), number, joined_text(document, config.corpus.text))
        for number, document in enumerate(corpus)
    )
    chosen = heapq.nsmallest(size, rows) if size else list(rows)
    if not chosen:
        raise CorpusError("the corpus holds no documents to train on; expected at least one.")
    return [text for _, _, text in sorted(chosen, key=lambda row: row[1])]


def _recipe(config: BuildConfig, folder: Path) -> bytes:
    """A recipe with every setting that differs from the defaults, and the folder as `encoder.fitted`."""
    config = replace(config, encoder=replace(config.encoder, fitted=str(folder.resolve())))
    plain, usual = config.to_dict(), BuildConfig().to_dict()
    differing: dict[str, Any] = {
        section: {key: value for key, value in settings.items() if value != usual[section][key]}
        for section, settings in plain.items()
    }
    differing["encoder"] |= {"latte_mix": plain["encoder"]["latte_mix"]}
    return tomli_w.dumps({section: settings for section, settings in differing.items() if settings}).encode()
