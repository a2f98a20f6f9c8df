"""Documents that crash the encoder: found, named, and quarantined on request."""

import os
import signal
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from indexer import BuildConfig, Document, RunOptions, add_documents, build_index, compact_index
from indexer.encoders.protocol import Encoder
from indexer.errors import CorpusError, MachineError
from indexer.executors import WorkerPool
from indexer.executors.scheduler import Scheduler
from indexer.pipeline.steps import encode
from indexer.pipeline.steps.build_encoder import LazyEncoder
from indexer.pipeline.steps.part_encoder import EncodedPart, EncodeTask, PartEncoder
from indexer.recipe.corpus_config import ChunkConfig
from indexer.store.documents import read_encoded
from indexer.store.manifest import load_manifest
from indexer.transforms import Whitening
from search import SearchEngine
from search.verify import verify_index
from tests.directories import snapshot
from tests.documents import DOCUMENTS
from tests.fleets import Death, LocalFleet

POISON = "xyzzy"
SKIP = RunOptions(device="cpu", workers=2, quarantine=True)


class DeadlySetup(PartEncoder):
    """Workers that a word crashes."""

    def __call__(self, worker: int) -> Callable[[Iterator[EncodeTask]], Iterator[EncodedPart | None]]:
        encode = super().__call__(worker)

        def work(tasks: Iterator[EncodeTask]) -> Iterator[EncodedPart | None]:
            for task in tasks:
                documents = enumerate(read_encoded(task.folder, ("title", "text")))
                if any(POISON in f"{each.title} {each.text}" for at, each in documents if at not in task.quarantined):
                    self.die()
                yield from encode(iter([task]))

        return work

    def die(self) -> None:
        """Simulates a crash."""
        raise Death


class KilledSetup(DeadlySetup):
    """The same in a separate process."""

    def die(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


def run_deadly(
    setup: PartEncoder, tasks: Sequence[EncodeTask], pool: WorkerPool, lost: list[EncodeTask] | None = None
) -> Iterator[EncodedPart]:
    deadly = DeadlySetup(setup.encoder, None, setup.on_batch, setup.discards, setup.url)
    return Scheduler[EncodeTask, EncodedPart](LocalFleet(deadly), tasks, pool, lost).results()


@pytest.fixture
def deadly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Encode in this process, on workers that a word crashes."""
    monkeypatch.setattr(encode, "run_tasks", run_deadly)


def poisoned(*places: int) -> list[Document]:
    return [
        replace(document, text=f"{document.text} {POISON}") if place in places else document
        for place, document in enumerate(DOCUMENTS)
    ]


@pytest.mark.usefixtures("deadly")
@pytest.mark.parametrize("places", [(2,), (0, 1, 5), (4, 5, 6, 7), (len(DOCUMENTS) - 1,)])
def test_documents_that_kill_the_encoder_are_quarantined(
    places: tuple[int, ...], tiny_config: BuildConfig, tmp_path: Path
) -> None:
    corpus, ids = poisoned(*places), {DOCUMENTS[place].id for place in places}
    report = build_index(corpus, tmp_path / "index", tiny_config, SKIP)
    assert report.documents == len(DOCUMENTS) - len(places)
    assert all(any(f'"{one}"' in note for note in report.notes) for one in ids)
    assert not verify_index(tmp_path / "index").problems
    engine = SearchEngine(tmp_path / "index")
    found = {hit.id for hit in engine.search("whales", k=len(DOCUMENTS))}
    assert found == {document.id for document in DOCUMENTS} - ids
    assert build_index(corpus, tmp_path / "index", tiny_config, SKIP).up_to_date


@pytest.mark.usefixtures("deadly")
def test_without_leave_they_are_an_error_that_names_them_and_all_else_is_kept(
    tiny_config: BuildConfig, tmp_path: Path
) -> None:
    with pytest.raises(
        CorpusError, match=rf'"{DOCUMENTS[5].id}" crashed the encoder.*Everything else is encoded.*quarantine=True'
    ):
        build_index(poisoned(5), tmp_path / "index", tiny_config, replace(SKIP, quarantine=False))
    report = build_index(poisoned(5), tmp_path / "index", tiny_config, SKIP)
    assert (report.parts_encoded, report.documents) == (0, len(DOCUMENTS) - 1)


@pytest.mark.usefixtures("deadly")
def test_the_transform_is_fitted_on_the_others_alone(tiny_config: BuildConfig, tmp_path: Path) -> None:
    """As if they had been deleted before the fit: their rows are unused."""
    everything = replace(tiny_config, whitening=replace(tiny_config.whitening, sample="all"))
    build_index(poisoned(5), tmp_path / "index", everything, SKIP)
    parts = load_manifest(tmp_path / "index").parts
    rows = [np.load(tmp_path / "index" / part.name / "embeddings.npy") for part in parts]
    mean = np.delete(np.concatenate(rows), 5, axis=0).mean(axis=0)
    fitted = SearchEngine(tmp_path / "index").index.transform
    assert isinstance(fitted, Whitening)
    np.testing.assert_allclose(fitted.mean, mean, atol=1e-6)


@pytest.mark.usefixtures("deadly")
def test_with_windows_all_rows_of_the_document_go(tiny_config: BuildConfig, tmp_path: Path) -> None:
    chunked = replace(tiny_config, chunk=ChunkConfig(tokens=8, overlap=2))
    report = build_index(poisoned(1, 6), tmp_path / "index", chunked, SKIP)
    assert report.documents == len(DOCUMENTS) - 2
    assert not verify_index(tmp_path / "index").problems


@pytest.mark.usefixtures("deadly")
def test_they_may_be_added_and_quarantined_and_compacted_away(tiny_config: BuildConfig, tmp_path: Path) -> None:
    index = tmp_path / "index"
    build_index(DOCUMENTS[:6], index, tiny_config)
    report = add_documents(poisoned(8)[6:], index, SKIP)
    assert report.documents == len(DOCUMENTS) - 1
    assert any(f'"{DOCUMENTS[8].id}"' in note for note in report.notes)
    compact_index(index, SKIP)
    manifest = load_manifest(index)
    assert (manifest.documents, manifest.stored_documents) == (len(DOCUMENTS) - 1, len(DOCUMENTS) - 1)
    assert not verify_index(index).problems


@pytest.mark.usefixtures("deadly")
def test_nothing_changes_where_no_document_kills(tiny_config: BuildConfig, tmp_path: Path) -> None:
    build_index(DOCUMENTS, tmp_path / "one", tiny_config, SKIP)
    build_index(DOCUMENTS, tmp_path / "other", tiny_config)
    assert snapshot(tmp_path / "one") == snapshot(tmp_path / "other")


@pytest.mark.usefixtures("deadly")
def test_what_stands_for_them_is_never_taken_for_their_embedding(tiny_config: BuildConfig, tmp_path: Path) -> None:
    """A text that is given again is encoded again, and crashes again."""
    index = tmp_path / "index"
    build_index(poisoned(5), index, tiny_config, SKIP)
    again = [replace(poisoned(5)[5], id="again")]
    with pytest.raises(CorpusError, match='"again" crashed the encoder'):
        add_documents(again, index, replace(SKIP, quarantine=False))
    inserted = [Document("first", "A line at the top."), *poisoned(5)]
    report = build_index(inserted, index, tiny_config, replace(SKIP, overwrite=True))
    assert report.documents == len(DOCUMENTS)
    assert any(f'"{DOCUMENTS[5].id}"' in note for note in report.notes)


@pytest.mark.usefixtures("deadly")
def test_a_verdict_that_was_not_published_is_tried_again(
    tiny_config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After adding memory, or fixing a library."""
    with pytest.raises(CorpusError):
        build_index(poisoned(5), tmp_path / "index", tiny_config, replace(SKIP, quarantine=False))
    monkeypatch.undo()
    report = build_index(poisoned(5), tmp_path / "index", tiny_config)
    assert report.documents == len(DOCUMENTS)
    build_index(poisoned(5), tmp_path / "alone", tiny_config)
    assert snapshot(tmp_path / "index") == snapshot(tmp_path / "alone")


@pytest.mark.usefixtures("deadly")
def test_an_encoder_that_kills_whoever_loads_it_is_not_laid_at_documents_doors(
    tiny_config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(self: LazyEncoder) -> Encoder:
        raise Death

    monkeypatch.setattr(LazyEncoder, "get", die)
    with pytest.raises(MachineError, match="crash while they load the encoder"):
        build_index(DOCUMENTS[:4], tmp_path / "index", tiny_config, replace(SKIP, executor="processes"))


@pytest.mark.check  # each crash costs the start of a process
def test_real_processes_die_of_it(tiny_config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "PartEncoder", KilledSetup)
    report = build_index(poisoned(5), tmp_path / "index", tiny_config, SKIP)
    assert report.documents == len(DOCUMENTS) - 1
