"""The life of an index: add, delete, refit and compact give the same index as a fresh build of the documents."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from indexer import Document, RunOptions, add_documents, build_index, compact_index, delete_documents, refit_index
from indexer.encoders.load import load_encoder
from indexer.errors import ConfigError, CorpusError, ExistsError, MismatchError
from indexer.models.encoder_spec import EncoderSpec
from indexer.pipeline.published_index import PublishedIndex
from indexer.pipeline.steps import build_encoder
from indexer.recipe.config import BuildConfig, without_auto
from indexer.store import files
from indexer.store.documents import DocumentReader
from indexer.store.manifest import DELETED, list_generations, load_manifest
from search import SearchEngine, verify_index
from tests.directories import snapshot
from tests.documents import DOCUMENTS
from tests.faults import FaultyOs
from tests.life import NEW, QUERIES, assert_equals_fresh_build, expected_after_add, grown


class Counting:
    """An encoder that counts the encoded document texts."""

    def __init__(self, config: BuildConfig) -> None:
        self._encoder, self.texts, self.calls = load_encoder(config.encoder), 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._encoder, name)

    def embed(self, tokens: Any, log: Any = None) -> Any:
        self.texts += len(tokens)
        return self._encoder.embed(tokens, log)

    def encode(self, texts: Any, *arguments: Any) -> Any:
        self.calls += 1
        return self._encoder.encode(texts, *arguments)


@pytest.fixture
def counting(tiny_config: BuildConfig, monkeypatch: pytest.MonkeyPatch) -> Counting:
    """The tiny encoder, loaded once for all changes of a test; files are not synced."""
    encoder = Counting(tiny_config)
    monkeypatch.setattr(build_encoder, "open_encoder", lambda *_, **__: encoder)
    monkeypatch.setattr("indexer.pipeline.steps.build_encoder.open_encoder", lambda *_, **__: encoder)
    monkeypatch.setattr("search.open_index.open_encoder", lambda *_, **__: encoder)
    monkeypatch.setattr(files, "os", FaultyOs())
    return encoder


@pytest.fixture
def index(tiny_config: BuildConfig, counting: Counting, tmp_path: Path) -> Path:
    build_index(DOCUMENTS, tmp_path / "index", tiny_config)
    return tmp_path / "index"


def test_added_documents_are_found_as_in_a_fresh_build(index: Path, tiny_config: BuildConfig, tmp_path: Path) -> None:
    report = add_documents(NEW, index)
    assert (report.added, report.replaced, report.unchanged) == (2, 1, 1)
    assert report.documents == len(DOCUMENTS) + 2
    assert_equals_fresh_build(index, expected_after_add(DOCUMENTS, NEW), tmp_path / "fresh", tiny_config)
    assert verify_index(index).passed


def test_an_addition_of_many_parts_does_not_read_the_published_ids_for_each(
    index: Path, tiny_config: BuildConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def count(name: str) -> None:
        once = getattr(DocumentReader, name)

        def counted(self: DocumentReader, *ids: Any) -> Any:
            read.append(name)
            return once(self, *ids)

        monkeypatch.setattr(DocumentReader, name, counted)

    count("all_ids")
    count("find_ids")
    many = [*NEW, *(Document(f"more-{number}", f"text {number}") for number in range(20))]
    assert len(many) > 3 * tiny_config.store.part_documents
    report = add_documents(many, index)
    assert (report.added, report.replaced, report.unchanged, len(read)) == (
        22,
        1,
        1,
        2,
    )  # the first lookup scans, the second reads the column


def test_an_addition_writes_only_what_is_new_and_encodes_only_new_texts(index: Path, counting: Counting) -> None:
    before, encoded = snapshot(index), counting.texts
    report = add_documents([*NEW, Document("again", NEW[3].text, NEW[3].title)], index)
    after = snapshot(index)
    assert all(after[name] == digest for name, digest in before.items())
    assert sorted({name.partition("/")[0] for name in set(after) - set(before)}) == [
        "deleted",
        "manifests",
        "parts",
        "segments",
    ]
    assert len([name for name in set(after) - set(before) if name.startswith("segments/")]) == 1
    assert counting.texts - encoded == 3
    assert (report.rows_encoded, report.rows_reused) == (3, 1)


def test_an_addition_uses_a_loaded_encoder_of_the_index_and_no_other(
    index: Path, tiny_config: BuildConfig, counting: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, opened = load_encoder(tiny_config.encoder), list[EncoderSpec]()

    def opening(spec: EncoderSpec, _: RunOptions) -> Counting:
        opened.append(spec)
        return counting

    monkeypatch.setattr(build_encoder, "open_encoder", opening)
    with monkeypatch.context() as patched:
        patched.setattr(PublishedIndex, "spec", lambda *_: pytest.fail("the files of the model are resolved again"))
        assert add_documents(NEW[:2], index, encoder=encoder).rows_encoded == 2
    assert opened == []
    other = load_encoder(tiny_config.with_overrides(["encoder.max_length=8"]).encoder)
    assert add_documents(NEW[2:], index, encoder=other).rows_encoded == 1
    assert [spec.identity for spec in opened] == [encoder.spec.identity]
    assert_equals_fresh_build(index, expected_after_add(DOCUMENTS, NEW), tmp_path / "fresh", tiny_config)


def test_the_same_addition_again_changes_nothing(index: Path) -> None:
    add_documents(NEW, index)
    before = snapshot(index)
    report = add_documents(NEW, index)
    assert (report.added, report.replaced, report.unchanged) == (0, 0, len(NEW))
    assert snapshot(index) == before


def test_an_id_may_come_back_after_its_document_was_deleted(
    index: Path, tiny_config: BuildConfig, tmp_path: Path
) -> None:
    delete_documents(index, ["d0", "d1", "d2", "d3"])
    add_documents(DOCUMENTS[:4], index)
    assert_equals_fresh_build(index, [*DOCUMENTS[4:], *DOCUMENTS[:4]], tmp_path / "fresh", tiny_config)


def test_deleted_documents_are_not_found_and_need_no_encoder(
    index: Path, counting: Counting, tiny_config: BuildConfig, tmp_path: Path
) -> None:
    before = counting.texts
    report = delete_documents(index, ["d2", "d5"])
    assert (report.deleted, report.documents, counting.texts) == (2, len(DOCUMENTS) - 2, before)
    assert DELETED in load_manifest(index).features
    left = [document for document in DOCUMENTS if document.id not in ("d2", "d5")]
    assert_equals_fresh_build(index, left, tmp_path / "fresh", tiny_config)
    with pytest.raises(ConfigError, match='no document with id "d2"'):
        delete_documents(index, ["d2"])
    assert delete_documents(index, ["d2"], ignore_missing=True).missing == ("d2",)


def test_a_deletion_of_unknown_ids_is_refused(index: Path) -> None:
    before = snapshot(index)
    with pytest.raises(ConfigError, match=r'"d33" .did you mean "d3".*nothing was deleted'):
        delete_documents(index, ["d1", "d33"])
    assert snapshot(index) == before


def test_readers_of_an_older_generation_are_undisturbed(index: Path) -> None:
    reader = SearchEngine(index)
    before = reader.search_many(QUERIES, 20)
    add_documents(NEW, index)
    delete_documents(index, ["d1"])
    refit_index(index, ["whitening.strength=1"])
    compact_index(index)
    reader.close()
    assert reader.search_many(QUERIES, 20) == before


def test_a_refit_equals_a_build_with_those_settings_and_encodes_no_document(
    index: Path, counting: Counting, tiny_config: BuildConfig, tmp_path: Path
) -> None:
    texts, calls = counting.texts, counting.calls
    report = refit_index(index, ["whitening.strength=1", "whitening.dim=8"])
    assert (report.dim, counting.texts, counting.calls) == (
        8,
        texts,
        calls,
    )  # query-like texts are unchanged and not encoded either
    fresh = tiny_config.with_overrides(["whitening.strength=1", "whitening.dim=8"])
    build_index(DOCUMENTS, tmp_path / "fresh", fresh)
    for ours, theirs in zip(
        SearchEngine(index).search_many(QUERIES), SearchEngine(tmp_path / "fresh").search_many(QUERIES), strict=True
    ):
        assert ours == theirs
    assert load_manifest(index).config == without_auto(fresh).to_dict()


def test_a_refit_fits_to_the_documents_that_are_there_now(
    index: Path, tiny_config: BuildConfig, tmp_path: Path
) -> None:
    add_documents(NEW, index)
    delete_documents(index, ["d1"])
    refit_index(index)
    documents = [document for document in expected_after_add(DOCUMENTS, NEW) if document.id != "d1"]
    build_index(documents, tmp_path / "fresh", tiny_config)
    fitted, fresh = SearchEngine(index).index.transform, SearchEngine(tmp_path / "fresh").index.transform
    for name, array in fresh.arrays().items():
        np.testing.assert_allclose(fitted.arrays()[name], array, atol=1e-9)


def test_held_out_figures_of_a_refit_are_of_live_documents_outside_the_sample(
    tiny_config: BuildConfig, counting: Counting, tmp_path: Path
) -> None:
    config = tiny_config.with_overrides(["store.part_documents=64", "whitening.sample=4"])
    build_index(DOCUMENTS, tmp_path / "index", config)
    delete_documents(tmp_path / "index", ["d1", "d6"])
    refit_index(tmp_path / "index")
    left = [document for document in DOCUMENTS if document.id not in ("d1", "d6")]
    build_index(left, tmp_path / "fresh", config)
    refitted, fresh = (load_manifest(tmp_path / name).quality["held_out"] for name in ("index", "fresh"))
    assert (fresh["fitted"], fresh["held_out"]) == (4, 3)
    assert refitted == pytest.approx(fresh)
    compact_index(tmp_path / "index")
    assert load_manifest(tmp_path / "index").quality["held_out"] == refitted  # the transform is unchanged


def test_a_refit_changes_no_setting_that_needs_encoding(index: Path) -> None:
    with pytest.raises(ConfigError, match=r"refit changes whitening, index, queries, hybrid and rerank only"):
        refit_index(index, ["encoder.max_length=16"])


def test_a_refit_takes_what_it_may_change_from_a_recipe(
    index: Path, counting: Counting, tiny_config: BuildConfig, tmp_path: Path
) -> None:
    recipe = tiny_config.with_overrides(["whitening.strength=1", "whitening.dim=8", "hybrid.weight=0.7"])
    moved = shutil.copytree(recipe.encoder.model, tmp_path / "moved")
    texts = counting.texts
    report = refit_index(index, ["hybrid.weight=0.6"], recipe=recipe.with_overrides([f"encoder.model={moved}"]))
    assert (report.dim, counting.texts) == (8, texts)
    assert load_manifest(index).config == without_auto(recipe.with_overrides(["hybrid.weight=0.6"])).to_dict()
    segments = load_manifest(index).segments
    refit_index(index, recipe=recipe)
    assert load_manifest(index).config == without_auto(recipe).to_dict()
    assert load_manifest(index).segments == segments  # only the answering of queries has changed


def test_a_refit_refuses_a_recipe_that_would_need_encoding(
    index: Path, tiny_config: BuildConfig, tiny_model: Any
) -> None:
    before = snapshot(index)
    with pytest.raises(ConfigError, match=r"encoder\.max_length is 16 in the recipe and .* refit changes whitening"):
        refit_index(index, recipe=tiny_config.with_overrides(["encoder.max_length=16"]))
    with pytest.raises(MismatchError):
        refit_index(index, recipe=tiny_config.with_overrides([f"encoder.model={tiny_model('roberta')}"]))
    assert snapshot(index) == before


def test_a_refit_of_how_questions_are_answered_writes_a_manifest_and_nothing_else(
    index: Path, counting: Counting
) -> None:
    add_documents(NEW, index)
    delete_documents(index, ["d1"])
    before, calls, old = snapshot(index), (counting.texts, counting.calls), load_manifest(index)
    report = refit_index(index, ["hybrid.weight=0.7", "hybrid.language=none"])
    new = load_manifest(index)
    assert (report.generation, report.documents, report.quality) == (old.generation + 1, old.documents, old.quality)
    assert (counting.texts, counting.calls) == calls
    assert new.config["hybrid"] == old.config["hybrid"] | {"weight": 0.7, "language": "none"}
    assert new.transform == old.transform
    assert new.segments == old.segments
    assert {name: found for name, found in snapshot(index).items() if name in before} == before


def test_compaction_leaves_one_segment_and_no_deleted_document(
    index: Path, tiny_config: BuildConfig, counting: Counting, tmp_path: Path
) -> None:
    add_documents(NEW, index)
    delete_documents(index, ["d1", "n0"])
    encoded = counting.texts
    report = compact_index(index, keep=1, grace=0)
    assert (report.dropped, report.segments_before, counting.texts) == (3, 2, encoded)
    manifest = load_manifest(index)
    assert (len(manifest.segments), manifest.deleted, list_generations(index)) == (1, None, [manifest.generation])
    assert manifest.stored_documents == manifest.documents
    documents = [document for document in expected_after_add(DOCUMENTS, NEW) if document.id not in ("d1", "n0")]
    assert_equals_fresh_build(index, documents, tmp_path / "fresh", tiny_config, tolerance=0)
    named = {*manifest.files, f"manifests/{manifest.generation:08d}.json"}
    assert set(snapshot(index)) == named
    assert not compact_index(index).folded


def test_compaction_keeps_generations_that_readers_may_have_open(index: Path) -> None:
    delete_documents(index, ["d1"])
    delete_documents(index, ["d2"])
    assert compact_index(index).generations_removed == 0  # within the grace period
    assert list_generations(index) == [1, 2, 3, 4]
    assert compact_index(index, keep=2, grace=0).generations_removed == 2
    assert list_generations(index) == [3, 4]


def test_a_generation_stays_for_the_time_of_grace_after_it_was_followed_however_old_it_is(index: Path) -> None:
    """Readers may have opened the generation just before the next one was published."""

    def age(generation: int) -> None:
        path = index / f"manifests/{generation:08d}.json"
        os.utime(path, (path.stat().st_mtime - 7200,) * 2)

    age(1)
    delete_documents(index, ["d1"])
    assert compact_index(index, keep=1).generations_removed == 0  # this compacts, and publishes the third generation
    assert list_generations(index) == [1, 2, 3]
    age(2)
    assert compact_index(index, keep=1).generations_removed == 1
    assert list_generations(index) == [2, 3]
    assert compact_index(index, keep=1, grace=0).generations_removed == 1


def test_compaction_evens_out_the_parts_that_a_refit_left_in_one_segment(
    index: Path, tiny_config: BuildConfig, tmp_path: Path
) -> None:
    add_documents(NEW[:2], index)
    refit_index(index)
    uneven = load_manifest(index)
    assert ([part.documents for part in uneven.parts], len(uneven.segments)) == ([4, 4, 1, 2], 1)
    assert compact_index(index).folded
    assert [part.documents for part in load_manifest(index).parts] == [4, 4, 3]
    assert_equals_fresh_build(index, [*DOCUMENTS, *NEW[:2]], tmp_path / "fresh", tiny_config, tolerance=0)


def test_a_build_on_an_index_that_has_changed_says_how(index: Path, tiny_config: BuildConfig) -> None:
    delete_documents(index, ["d1"])
    with pytest.raises(ExistsError, match="1 of its documents were deleted"):
        build_index(DOCUMENTS, index, tiny_config)
    assert build_index(DOCUMENTS, index, tiny_config, RunOptions(overwrite=True)).documents == len(DOCUMENTS)


def test_documents_whose_columns_do_not_fit_are_refused(index: Path) -> None:
    before = snapshot(index)
    with pytest.raises(CorpusError, match="year"):
        add_documents([Document("x", "text", metadata={"year": ["a", "list"]})], index)
    assert {name: digest for name, digest in snapshot(index).items() if name in before} == before
    assert load_manifest(index).generation == 1


def test_a_transform_is_taken_only_from_an_index_of_the_same_encoder(
    index: Path, tiny_config: BuildConfig, tmp_path: Path
) -> None:
    other = tiny_config.with_overrides(["encoder.max_length=16"])
    with pytest.raises(MismatchError, match=r"max_length is 16, expected 32"):
        build_index(DOCUMENTS, tmp_path / "other", other, transform_from=index)
    first = build_index(DOCUMENTS[:5], tmp_path / "taken", tiny_config, transform_from=index)
    assert not first.up_to_date
    assert build_index(DOCUMENTS[:5], tmp_path / "taken", tiny_config, transform_from=index).up_to_date
    with pytest.raises(ExistsError, match="its transform was fitted there and is reused from another index here"):
        build_index(DOCUMENTS[:5], tmp_path / "taken", tiny_config)


def test_documents_unlike_those_of_the_fit_advise_a_refit(
    tiny_config: BuildConfig, counting: Counting, tmp_path: Path
) -> None:
    def corpus(word: str, name: str, count: int) -> list[Document]:
        return [Document(f"{name}{number}", f"{word} {number} {word[::-1]} {number * 7}") for number in range(count)]

    index = tmp_path / "index"
    build_index(corpus("whales sing", "a", 60), index, tiny_config)
    alike = add_documents(corpus("whales sing", "b", 60), index).drift
    assert alike is not None
    unlike = add_documents(corpus("!!! ??? --- ... ((( ", "c", 120), index).drift
    assert unlike is not None
    assert unlike.rows == 180
    assert unlike.mean_shift > 2 * alike.mean_shift
    assert unlike.refit_advised
    assert load_manifest(index).quality["drift"]["refit_advised"]
    refit_index(index)
    assert "drift" not in load_manifest(index).quality


IDS = [f"d{number}" for number in range(9)] + [f"n{number}" for number in range(4)]
CHANGES = st.one_of(
    st.tuples(st.just("add"), st.lists(st.tuples(st.sampled_from(IDS), st.integers(0, 5)), min_size=1, max_size=6)),
    st.tuples(st.just("delete"), st.lists(st.sampled_from(IDS), min_size=1, max_size=4)),
    st.tuples(st.just("refit"), st.sampled_from(["0", "0.25", "1"])),
    st.tuples(st.just("compact"), st.booleans()),
)


@pytest.fixture
def model(
    tiny_config: BuildConfig, counting: Counting, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[list[tuple[str, Any]]], None]:
    def check(changes: list[tuple[str, Any]]) -> None:
        folder = tmp_path_factory.mktemp("life")
        index, held = folder / "index", {document.id: document for document in DOCUMENTS}
        build_index(DOCUMENTS, index, tiny_config)
        for verb, value in changes:
            if verb == "add":
                new = {name: Document(name, f"text {number} of whales and bread", metadata={"year": number})
                       for name, number in value}  # fmt: skip
                add_documents(list(new.values()), index)
                for name, document in new.items():
                    if held.get(name) != document:
                        held.pop(name, None)  # a replaced document moves to the end
                        held[name] = document
            elif verb == "delete" and set(held) - set(value):
                delete_documents(index, value, ignore_missing=True)
                held = {name: document for name, document in held.items() if name not in value}
            elif verb == "refit":
                refit_index(index, [f"whitening.strength={value}"])
            elif verb == "compact":
                compact_index(index, keep=1 + value, grace=0)
        assert_equals_fresh_build(index, list(held.values()), folder / "fresh", tiny_config)
        assert verify_index(index).passed
        shutil.rmtree(folder)

    return check


@settings(max_examples=8, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(changes=st.lists(CHANGES, min_size=1, max_size=6))
def test_any_sequence_of_changes_equals_a_fresh_build(
    model: Callable[[list[tuple[str, Any]]], None], changes: list[tuple[str, Any]]
) -> None:
    model(changes)


def test_an_index_with_a_history_is_in_order(tiny_config: BuildConfig, counting: Counting, tmp_path: Path) -> None:
    documents = grown(tmp_path / "index", tiny_config)
    assert verify_index(tmp_path / "index").passed
    assert_equals_fresh_build(tmp_path / "index", documents, tmp_path / "fresh", tiny_config)
