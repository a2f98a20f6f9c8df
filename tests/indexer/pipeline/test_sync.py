"""`sync_index`: an index becomes equal to its source in one generation, and nothing is lost by mistake."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from indexer import BuildConfig, Document, SyncReport, plan_sync, read_corpus, sync_index
from indexer.errors import ConfigError, CorpusError, ExistsError
from indexer.pipeline.published_index import PublishedIndex
from indexer.store.files import writer_lock
from indexer.store.manifest import list_generations, load_manifest
from search import verify_index
from tests.directories import snapshot
from tests.documents import DOCUMENTS
from tests.indexer.pipeline.test_life import Counting
from tests.indexer.pipeline.test_life import counting as counting  # a fixture
from tests.indexer.pipeline.test_life import index as index  # a fixture
from tests.life import NEW, assert_equals_fresh_build, expected_after_add


def counts(report: SyncReport) -> tuple[int, int, int, int]:
    return report.added, report.replaced, report.deleted, report.unchanged


def documents_in(index: Path) -> dict[str, Document]:
    published = PublishedIndex(index, load_manifest(index))
    try:
        return {document.id: document for document in published.all_documents()}
    finally:
        published.close()


def test_an_index_becomes_its_source_in_one_generation(
    index: Path, tiny_config: BuildConfig, counting: Counting, tmp_path: Path
) -> None:
    before, encoded = snapshot(index), counting.texts
    moved = Document("moved", DOCUMENTS[0].text, DOCUMENTS[0].title)  # encoded before, under another id
    expected = expected_after_add(DOCUMENTS[2:], [*NEW[:3], moved])
    report = sync_index(expected, index)
    assert counts(report) == (3, 1, 2, 6)
    assert (report.generation, list_generations(index), report.documents) == (2, [1, 2], 10)
    assert counting.texts - encoded == report.rows_encoded == 3
    assert report.rows_reused == 1
    assert before.items() <= snapshot(index).items()
    assert verify_index(index).passed
    assert_equals_fresh_build(index, expected, tmp_path / "fresh", tiny_config)


def test_an_index_in_step_is_left_as_it_is(index: Path) -> None:
    before = snapshot(index)
    report = sync_index(DOCUMENTS, index)
    assert (counts(report), report.generation, snapshot(index)) == ((0, 0, 0, 9), 1, before)


def test_vanished_documents_alone_need_no_model_and_no_part(
    index: Path, counting: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PublishedIndex, "spec", None)
    encoded, before = counting.texts, snapshot(index)
    assert counts(sync_index(DOCUMENTS[3:], index)) == (0, 0, 3, 6)
    assert counting.texts == encoded
    assert {name.partition("/")[0] for name in snapshot(index).keys() - before.keys()} == {"deleted", "manifests"}
    assert list(documents_in(index).values()) == DOCUMENTS[3:]


def test_a_source_without_most_documents_is_refused(index: Path) -> None:
    before = snapshot(index)
    assert plan_sync(DOCUMENTS[5:], index).needs_force
    with pytest.raises(ConfigError, match=r"more than half of its documents \(5 of 9\) are not in the source"):
        sync_index(DOCUMENTS[5:], index)
    with pytest.raises(ConfigError, match=r"\(5 of 9\)"):  # larger than a part
        sync_index([*DOCUMENTS[5:], *(Document(f"x{number}", f"text {number}") for number in range(20))], index)
    assert load_manifest(index).generation == 1
    assert before.items() <= snapshot(index).items()
    assert counts(sync_index(DOCUMENTS[5:], index, force=True)) == (0, 0, 5, 4)
    assert not plan_sync(DOCUMENTS[7:], index).needs_force  # exactly half


def test_an_empty_source_empties_an_index_only_by_force(index: Path, tiny_config: BuildConfig, tmp_path: Path) -> None:
    (tmp_path / "empty.jsonl").touch()
    empty = read_corpus(tmp_path / "empty.jsonl")
    with pytest.raises(ConfigError, match=r"\(9 of 9\)"):
        sync_index(empty, index)
    assert counts(sync_index(empty, index, force=True)) == (0, 0, 9, 0)
    with pytest.raises(CorpusError, match="contains no documents"):
        sync_index(empty, index)
    report = sync_index(DOCUMENTS[:4], index)  # builds it by its recipe
    assert (counts(report), report.generation) == ((4, 0, 0, 0), 3)
    assert_equals_fresh_build(index, DOCUMENTS[:4], tmp_path / "fresh", tiny_config)


def test_the_first_run_builds_the_index_and_later_ones_take_its_recipe(
    tiny_config: BuildConfig, counting: Counting, tmp_path: Path
) -> None:
    index = tmp_path / "index"
    assert plan_sync(DOCUMENTS, index, tiny_config).added == tuple(document.id for document in DOCUMENTS)
    assert not index.exists()
    assert counts(sync_index(DOCUMENTS, index, tiny_config)) == (9, 0, 0, 0)
    assert counts(sync_index(DOCUMENTS[1:], index)) == (0, 0, 1, 8)
    assert counts(sync_index(DOCUMENTS, index, tiny_config)) == (1, 0, 0, 8)
    other = tiny_config.with_overrides(["whitening.strength=0.75"])
    with pytest.raises(ExistsError, match=r"has another recipe: whitening.strength is 0.25 there and 0.75 here"):
        sync_index(DOCUMENTS, index, other)
    with pytest.raises(ConfigError, match="its model cannot have moved"):
        sync_index(DOCUMENTS, tmp_path / "new", tiny_config, model=tmp_path)


def test_rows_without_ids_are_known_by_their_content(
    tiny_config: BuildConfig, counting: Counting, tmp_path: Path
) -> None:
    index, file = tmp_path / "index", tmp_path / "lines.txt"
    file.write_text("whales sing\nbread rises\nbread rises\nstars shine\n")
    sync_index(read_corpus(file), index, tiny_config)
    file.write_text("bread rises\nstars shine\nbees dance\n")
    assert counts(sync_index(read_corpus(file), index)) == (1, 0, 2, 2)
    assert {each.text for each in documents_in(index).values()} == {"bread rises", "stars shine", "bees dance"}
    fresh = {document.id for document in read_corpus(file)}
    assert documents_in(index).keys() == fresh


def test_a_bad_row_stops_it_before_anything_is_published(index: Path, tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"id": "a", "text": "whale"}\n{"id": "b", "text": 5}\n')
    with pytest.raises(CorpusError, match=r"rows.jsonl:2"):
        sync_index(str(tmp_path / "rows.jsonl"), index, force=True)
    assert list_generations(index) == [1]


def test_a_plan_names_the_ids_and_changes_nothing_while_another_process_writes(index: Path) -> None:
    before = snapshot(index)
    with writer_lock(index):
        plan = plan_sync(expected_after_add(DOCUMENTS[2:], NEW), index)
    assert (plan.added, plan.replaced, plan.deleted) == (("n0", "n1"), ("d3",), ("d0", "d1"))
    assert (plan.documents, plan.unchanged, plan.needs_force, snapshot(index)) == (9, 6, False, before)


TEXTS = st.dictionaries(st.sampled_from("abcdefgh"), st.sampled_from(["whale", "sea", "bread", "star"]), max_size=8)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sources=st.lists(TEXTS, min_size=2, max_size=4))
def test_any_sources_in_turn_leave_the_documents_of_the_last(
    sources: list[dict[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("turns")
    (folder / "words.txt").write_text("whale 1 0 2\nsea 2 1 0\nbread 0 1 1\nstar 1 1 0\n")
    config = BuildConfig().with_overrides(["encoder.kind=static", f"encoder.model={folder / 'words.txt'}"])
    for source in sources:
        documents = [Document(name, text) for name, text in source.items()]
        plan = plan_sync(documents, folder / "index", config)
        report = sync_index(documents, folder / "index", config, force=True)
        assert counts(report) == (len(plan.added), len(plan.replaced), len(plan.deleted), plan.unchanged)
        assert documents_in(folder / "index") == {document.id: document for document in documents}
        assert sync_index(documents, folder / "index").generation == report.generation
