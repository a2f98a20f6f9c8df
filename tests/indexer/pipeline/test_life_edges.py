"""Edge cases in the life of an index: damage, missing files, many small additions, several kinds of index."""

import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer import Document, RunOptions, add_documents, build_index, compact_index, delete_documents, refit_index
from indexer.corpus.corpus import read_corpus
from indexer.errors import ConfigError, CorpusError, CorruptIndexError, ExistsError, MismatchError, ModelError
from indexer.models.encoder_spec import EncoderSpec
from indexer.pipeline import compact
from indexer.pipeline.steps import build_encoder, encode, index_segment, ingest
from indexer.recipe.config import BuildConfig
from indexer.recipe.index_config import IndexConfig
from indexer.store import documents, embeddings, local_store
from indexer.store.manifest import list_generations, load_manifest
from search import SearchEngine, verify_index
from search import index as index_module
from tests.documents import DOCUMENTS
from tests.indexer.pipeline.test_life import Counting
from tests.indexer.pipeline.test_life import counting as counting  # a fixture
from tests.indexer.pipeline.test_life import index as index  # a fixture
from tests.life import assert_equals_fresh_build, grown

LOW = RunOptions(allow_low_recall=True)


def numbered(start: int, count: int) -> list[Document]:
    return [
        Document(f"x{number}", f"{number} {number % 7} {number * 31 % 17}") for number in range(start, start + count)
    ]


@pytest.mark.parametrize("name", ["embeddings.npy", "windows.parquet"])
def test_damage_is_not_published_anew(index: Path, name: str) -> None:
    delete_documents(index, ["d1"])
    path = index / "parts/00001" / name
    data = path.read_bytes()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    for change in (compact_index, refit_index):
        with pytest.raises(CorruptIndexError, match=f"00001/{name}"):
            change(index)
    assert load_manifest(index).generation == 2


@pytest.mark.parametrize(("keep", "left"), [(1, 1), (2, 2), (3, 3), (4, 4), (5, 4), (6, 4), (9, 4)])
def test_as_many_generations_stay_as_are_asked_for(index: Path, keep: int, left: int) -> None:
    for name in ("d1", "d2"):
        delete_documents(index, [name])
    compact_index(index)  # the fourth
    compact_index(index, keep=keep, grace=0)
    assert list_generations(index) == [1, 2, 3, 4][-left:]


def test_an_index_of_many_parts_is_read_with_few_open_files(
    index: Path, tiny_config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (documents, embeddings):
        monkeypatch.setattr(module, "OPEN_PARTS", 2)
    for number in range(5):
        add_documents(numbered(number, 1), index)
    engine = SearchEngine(index)
    hits = engine.search("whales in the sea", 14)
    assert [hit.id for hit in engine.search("whales in the sea", 14)] == [hit.id for hit in hits]
    assert len(engine.neighbours("d0", 14)) == 13
    assert len(engine.index.documents._parts) == 2
    assert len(engine.index.stored_embeddings._parts) <= 2
    assert verify_index(index).passed
    compact_index(index)
    assert_equals_fresh_build(index, [*DOCUMENTS, *numbered(0, 5)], tmp_path / "fresh", tiny_config)


# --- drift


def test_drift_counts_documents_that_came_one_at_a_time(index: Path) -> None:
    reports = [add_documents(numbered(number, 1), index) for number in range(4)]
    assert [report.drift.rows if report.drift else 1 for report in reports] == [1, 2, 3, 4]


def test_drift_is_measured_from_the_mean_of_the_fitted_documents_whether_or_not_they_are_centred(
    tiny_config: BuildConfig, counting: Counting, tmp_path: Path
) -> None:
    drifts = []
    for centre in ("none", "common"):
        build_index(DOCUMENTS, tmp_path / centre, tiny_config.with_overrides([f"whitening.centre={centre}"]))
        for number in range(2):
            drift = add_documents(numbered(3 * number, 3), tmp_path / centre).drift
        assert drift is not None
        drifts.append(drift)
    assert drifts[0].mean_shift == pytest.approx(drifts[1].mean_shift)
    assert drifts[0].rows == drifts[1].rows == 6


def test_drift_goes_on_after_a_compaction(index: Path) -> None:
    """Figures cover all documents added since the fit, wherever parts begin."""
    add_documents(numbered(0, 6), index)
    delete_documents(index, ["d0", "x0"])
    before = load_manifest(index).quality["drift"]
    assert before["rows"] == 6
    compact_index(index)
    assert load_manifest(index).quality["drift"] == before
    assert load_manifest(index).quality["added_since"] == {"part": 2, "row": 0}  # after 8 of 9 documents, 4 a part
    delete_documents(index, ["d1"])
    compact_index(index)
    assert load_manifest(index).quality["added_since"] == {"part": 1, "row": 3}
    drift = add_documents(numbered(6, 2), index).drift
    assert drift is not None
    assert drift.rows == 7  # x0 is gone
    refit_index(index)
    assert "added_since" not in load_manifest(index).quality


@pytest.mark.parametrize("centre", ["role", "none"])
def test_drift_does_not_depend_on_where_parts_begin(
    tiny_config: BuildConfig, counting: Counting, tmp_path: Path, centre: str
) -> None:
    figures = []
    for size in (3, 4, 50):
        config = tiny_config.with_overrides([f"store.part_documents={size}", f"whitening.centre={centre}"])
        place = tmp_path / str(size)
        build_index(DOCUMENTS, place, config)
        add_documents(numbered(0, 5), place)
        delete_documents(place, ["d8"])
        compact_index(place)
        drift = add_documents(numbered(5, 6), place).drift
        assert drift is not None
        figures.append(drift)
    for other in figures[1:]:
        assert other.rows == figures[0].rows == 11
        assert other.mean_shift == pytest.approx(figures[0].mean_shift, rel=1e-9)
        assert other.covariance == pytest.approx(figures[0].covariance, rel=1e-9)


# --- several kinds of index in one index


_built: dict[str, Path] = {}


@pytest.fixture
def mixed(
    tiny_config: BuildConfig,
    counting: Counting,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> Path:
    """Two graphs of different sizes; built once a session, and copied."""
    monkeypatch.setattr(index_segment, "SMALL_ROWS", 50)
    if "mixed" not in _built:
        config = tiny_config.with_overrides(["index.type=HNSW4", "index.recall=0.5"])
        built = tmp_path_factory.mktemp("mixed") / "index"
        build_index(numbered(0, 120), built, config, LOW)
        add_documents(numbered(120, 80), built, LOW)
        _built["mixed"] = built
    return Path(shutil.copytree(_built["mixed"], tmp_path / "mixed"))


def test_a_recall_is_set_segment_by_segment(mixed: Path) -> None:
    manifest = load_manifest(mixed)
    second = manifest.segments[1].file
    assert manifest.quality["recall_curve"][-1]["recall"] > 0.5
    assert manifest.quality["segments"][second]["recall_curve"][-1]["recall"] > 0.5
    engine = SearchEngine(mixed)
    quality = engine.index.manifest.quality
    quality["recall_curve"] = [{"recall": 0.9, "search_parameters": {"efSearch": 17}}]
    quality["segments"][second]["recall_curve"] = [{"recall": 0.9, "search_parameters": {"efSearch": 33}}]
    engine.index.reach_recall(0.8)
    assert [index_segment.index.hnsw.efSearch for index_segment in engine.index.segments] == [17, 33]


def test_a_recall_that_nobody_measured_is_an_error(mixed: Path) -> None:
    engine = SearchEngine(mixed)
    engine.index.manifest.quality.pop("segments")
    with pytest.raises(ConfigError, match=r"the recall of segments/0002-00\.faiss was not measured.*refit_index"):
        engine.index.reach_recall(0.5)


def test_an_added_part_that_is_deleted_leaves_an_index_in_order(mixed: Path) -> None:
    add_documents([Document("late", "one more")], mixed, LOW)
    delete_documents(mixed, ["late"])
    assert verify_index(mixed).passed


# --- missing index.queries


def test_additions_compactions_and_refits_do_without_query_files_that_went(
    tiny_config: BuildConfig, counting: Counting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_segment, "SMALL_ROWS", 50)
    (tmp_path / "queries.txt").write_text("1 2 3\n4 5 6\n")
    settings = IndexConfig(type="HNSW4", recall=0.5, queries=str(tmp_path / "queries.txt"))
    index, config = tmp_path / "index", tiny_config.with_overrides([])
    build_index(numbered(0, 120), index, BuildConfig(**{**vars(config), "index": settings}), LOW)
    assert load_manifest(index).quality["index"]["query_origin"] == "index.queries"
    (tmp_path / "queries.txt").unlink()
    report = add_documents(numbered(120, 80), index, LOW)
    assert "queries.txt is missing; documents of the corpus" in report.notes[0]
    assert "queries.txt is missing" in compact_index(index, LOW).notes[0]
    assert "documents of the corpus, moved" in load_manifest(index).quality["index"]["query_origin"]
    assert any("queries.txt is missing" in note for note in refit_index(index, options=LOW).notes)
    with pytest.raises(ConfigError, match=r"index\.queries: .*other\.txt cannot be read"):
        refit_index(index, [f"index.queries={tmp_path / 'other.txt'}"], LOW)


def test_a_compaction_that_needs_the_encoder_takes_it_from_where_it_is_now(
    tiny_config: BuildConfig, tmp_path: Path
) -> None:
    model = shutil.copytree(tiny_config.encoder.model, tmp_path / "model")
    (tmp_path / "queries.txt").write_text("1 2 3\n4 5 6\n")
    changes = [f"encoder.model={model}", "index.type=HNSW4", "index.recall=0.5"]
    config = tiny_config.with_overrides([*changes, f"index.queries={tmp_path / 'queries.txt'}"])
    index = tmp_path / "index"
    build_index(numbered(0, 80), index, config, LOW)
    delete_documents(index, ["x3"])
    model.rename(tmp_path / "moved")
    with pytest.raises(ModelError, match="set model to its new location"):
        compact_index(index, LOW)
    assert compact_index(index, LOW, model=tmp_path / "moved").dropped == 1
    assert load_manifest(index).quality["index"]["query_origin"] == "index.queries"


def test_a_compaction_by_several_workers_looks_at_no_model(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The worker does not know a hub model's folder: it would read the working directory instead."""
    prepared = list[EncoderSpec]()
    monkeypatch.setattr(build_encoder, "warm_backend", lambda spec, _: prepared.append(spec))
    monkeypatch.setattr(encode, "run_tasks", lambda setup, tasks, pool, lost: setup(0)(iter(tasks)))
    delete_documents(index, ["d1"])
    assert compact_index(index, RunOptions(workers=2)).dropped == 1
    assert prepared == []


# --- long documents


def long_documents(start: int, count: int) -> list[Document]:
    return [Document(f"l{number}", f"{number} sand and silt " * 9) for number in range(start, start + count)]


@pytest.fixture
def short_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (ingest, compact):
        monkeypatch.setattr(module, "PART_BYTES", 500)


def test_parts_of_long_documents_end_by_their_bytes_for_the_whole_life_of_an_index(
    tiny_config: BuildConfig, counting: Counting, short_parts: None, tmp_path: Path
) -> None:
    index, documents = tmp_path / "index", long_documents(0, 7)
    assert build_index(documents, index, tiny_config).documents == 7
    assert [part.documents for part in load_manifest(index).parts] == [3, 3, 1]
    assert build_index(documents, index, tiny_config).up_to_date
    with pytest.raises(ExistsError, match=r"documents 7 to 8 differ"):
        build_index(long_documents(0, 8), index, tiny_config)
    assert not compact_index(index).folded
    add_documents(long_documents(7, 5), index)
    assert [part.documents for part in load_manifest(index).parts] == [3, 3, 1, 3, 2]
    assert compact_index(index).folded
    assert [part.documents for part in load_manifest(index).parts] == [3, 3, 3, 3]
    assert not compact_index(index).folded
    assert_equals_fresh_build(index, long_documents(0, 12), tmp_path / "fresh", tiny_config)


def test_an_index_whose_parts_were_cut_by_count_alone_goes_on(
    tiny_config: BuildConfig, counting: Counting, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    index, documents = tmp_path / "index", long_documents(0, 7)
    build_index(documents, index, tiny_config)
    request.getfixturevalue("short_parts")
    assert [part.documents for part in load_manifest(index).parts] == [4, 3]
    assert build_index(documents, index, tiny_config).up_to_date
    with pytest.raises(ExistsError, match=r"continues after 8 documents, the index ends after 7"):
        build_index(long_documents(0, 9), index, tiny_config)
    add_documents(long_documents(7, 2), index)
    refit_index(index, ["whitening.strength=0"])
    delete_documents(index, ["l8"])
    assert compact_index(index).folded
    assert [part.documents for part in load_manifest(index).parts] == [3, 3, 2]
    assert_equals_fresh_build(index, long_documents(0, 8), tmp_path / "fresh", tiny_config)


@pytest.mark.check
def test_documents_of_200_mb_are_built_in_less_than_2_gb(tmp_path: Path) -> None:
    words = [f"w{number}" for number in range(1000)]
    rows = np.random.default_rng(0).standard_normal((1000, 64))
    lines = (f"{word} {' '.join(f'{number:.4f}' for number in row)}" for word, row in zip(words, rows, strict=True))
    (tmp_path / "table.txt").write_text("\n".join(lines))
    program = f"""
import random, resource
from indexer import BuildConfig, Document, build_index
words = {words}
def documents():
    draw = random.Random(0)
    for number in range(3):  # one read, one encoded, one written: more parts need no more memory
        some = " ".join(draw.choices(words, k=200_000)) + chr(10)
        yield Document(f"d{{number}}", some * (200_000_000 // len(some)), f"title {{number}}")
config = BuildConfig.load("static").with_overrides(["encoder.model={tmp_path}/table.txt"])
assert build_index(documents(), {str(tmp_path / "index")!r}, config).documents == 3
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2 * 10**9
    with SearchEngine(tmp_path / "index") as engine:
        assert len(engine.document("d2").text) > 199_000_000


# --- numbers that would be rounded

WIDE = 2**53 + 1


@pytest.mark.parametrize("value", [WIDE, {"deep": WIDE}, [1, WIDE], {"deep": [{"er": -WIDE}]}])
@pytest.mark.parametrize("wide_first", [True, False])
def test_whole_numbers_are_not_rounded_by_documents_with_fractions(
    value: object, wide_first: bool, tiny_config: BuildConfig, counting: Counting, tmp_path: Path
) -> None:
    def halved(inner: object) -> object:
        if isinstance(inner, dict):
            return {name: halved(item) for name, item in inner.items()}
        return [halved(item) for item in inner] if isinstance(inner, list) else 0.5

    whole, fraction = (
        Document("w", "whole", metadata={"n": value}),
        Document("f", "half", metadata={"n": halved(value)}),
    )
    first, second = (whole, fraction) if wide_first else (fraction, whole)
    build_index([*DOCUMENTS, first], tmp_path / "index", tiny_config)
    with pytest.raises(CorpusError, match=r'"n.*(which rounds integers|a whole number) beyond 2\*\*53'):
        add_documents([second], tmp_path / "index")
    assert load_manifest(tmp_path / "index").generation == 1


def test_small_whole_numbers_become_floats_beside_fractions(index: Path) -> None:
    add_documents([Document("half", "half", metadata={"year": 1990.5})], index)
    assert [hit.metadata["year"] for hit in SearchEngine(index).search("half", 20, where="year < 1991")] != []
    compact_index(index)
    held = {document.id: document.metadata["year"] for document in SearchEngine(index).index.documents.all_documents()}
    assert held == {**{document.id: document.metadata["year"] for document in DOCUMENTS}, "half": 1990.5}


def test_vectors_of_another_length_do_not_take_a_transform(tmp_path: Path) -> None:
    def corpus(dim: int) -> list[Document]:
        drawn = np.random.default_rng(dim).normal(size=(30, dim)).astype(np.float32)
        return [Document(f"v{number}", "", vector=vector) for number, vector in enumerate(drawn)]

    for strength in ("0.5", "none"):
        config = BuildConfig().with_overrides(["encoder.kind=vectors", f"whitening.strength={strength}"])
        donor = tmp_path / f"donor-{strength}"
        build_index(corpus(8), donor, config)
        with pytest.raises((CorpusError, MismatchError), match=r"12 numbers.*whose transform is reused have 8"):
            build_index(corpus(12), tmp_path / f"other-{strength}", config, transform_from=donor)


def test_an_addition_that_does_not_fit_names_file_and_line_and_can_be_left_out(index: Path, tmp_path: Path) -> None:
    before = load_manifest(index).generation
    path = tmp_path / "new.jsonl"
    path.write_text('{"id": "x", "text": "fits", "year": 2001}\n{"id": "y", "text": "does not", "year": "soon"}\n')
    with pytest.raises(CorpusError) as caught:
        add_documents(read_corpus(path), index)
    assert str(caught.value) == (
        f'{path}:2: metadata column "year" contains text at {path}:2, but whole numbers in the index (id "y"). Fix: '
        "give the row the columns and types of the index, or rebuild the index with other column rules, or pass "
        'on_error="skip" to skip such rows.'
    )
    assert load_manifest(index).generation == before
    assert add_documents(read_corpus(path, on_error="skip"), index).added == 1
    with pytest.raises(CorpusError, match=r"document 1 .* but whole numbers in the index\. Fix: give the row the"):
        add_documents([Document("z", "text", metadata={"year": "soon"})], index)
    (tmp_path / "columns.csv").write_text("id,body\nz,text\n")
    with pytest.raises(CorpusError, match=r"columns\.csv: no text column .* Fix: give the row the columns"):
        add_documents(read_corpus(tmp_path / "columns.csv"), index)


def test_cells_are_read_as_the_types_that_the_index_has(tiny_config: BuildConfig, tmp_path: Path) -> None:
    typed = {"n": 3, "price": 1.5, "ok": True, "tags": ["a"], "deep": {"k": 1}, "code": "007", "day": date(2020, 1, 2)}
    index, table = tmp_path / "index", tmp_path / "new.csv"
    build_index([Document("a", "whales", metadata=typed | {"price": 2.5})], index, tiny_config)
    table.write_text(
        "id,text,n,price,ok,tags,deep,code,day,fresh\n"
        'b,bees,3,1.5,true,"[""a""]","{""k"": 1}",007,2020-01-02,12\n'
        "c,bread,,,,,,,,\n"
        "d,maps,2.5,7,,,,,,\n"
    )
    assert add_documents(read_corpus(table), index).added == 3
    documents = {document.id: document for document in SearchEngine(index).index.documents.all_documents()}
    assert documents["b"].metadata == typed | {"fresh": "12"}
    assert documents["c"].metadata == {}
    assert documents["d"].metadata == {"n": 2.5, "price": 7.0}
    assert add_documents(read_corpus(table), index).unchanged == 3
    table.write_text("id,text,n\ne,stars,many\n")
    with pytest.raises(CorpusError, match=r'new\.csv:2: column "n" contains "many", which cannot be read as'):
        add_documents(read_corpus(table), index)


@pytest.mark.check
def test_a_generation_that_goes_while_it_is_opened_is_followed_by_the_newest(
    tiny_config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`compact --keep 1 --grace 0` can remove files between any two steps of a reader."""
    expected = None
    for ahead in (False, True):
        for place in ("manifest", "check_sizes", "check_files"):
            index = tmp_path / f"{ahead}-{place}"
            grown(index, tiny_config)
            module, name = (local_store, "read_regular") if place == "manifest" else (index_module, place)
            real, compacted = getattr(module, name), list[bool]()

            def compact_first(*given: Any, real: Any = real, compacted: Any = compacted, index: Path = index) -> Any:
                if not compacted:
                    compacted.append(True)
                    compact_index(index, keep=1, grace=0)
                return real(*given)

            with monkeypatch.context() as patch:
                patch.setattr(module, name, lambda *given, follow_links=True, first=compact_first: first(*given))
                hits = SearchEngine(index, ahead=ahead).search("whales in the sea", 3)
            assert compacted
            expected = expected or hits
            assert [hit.id for hit in hits] == [hit.id for hit in expected]


def test_an_engine_goes_on_with_the_newest_generation_when_its_own_is_removed(
    tiny_config: BuildConfig, tmp_path: Path
) -> None:
    index = tmp_path / "index"
    grown(index, tiny_config)
    engine = SearchEngine(index)
    generation = engine.index.manifest.generation
    delete_documents(index, ["d2"])
    refit_index(index, ["whitening.strength=0.3"])
    compact_index(index, keep=1, grace=0)
    fresh = SearchEngine(index)
    assert engine.search("whales", 5, where="year > 1990") == fresh.search("whales", 5, where="year > 1990")
    assert engine.neighbours("d5", 3) == fresh.neighbours("d5", 3)
    asked, expected = engine.embed(["whales"]), fresh.embed(["whales"])
    assert asked.mark == expected.mark
    assert np.array_equal(asked, expected)
    assert fresh.search_vectors(asked, 3) == engine.search_vectors(expected, 3)
    assert len(engine) == len(fresh)
    assert engine.index.manifest.generation > generation


def test_damage_is_no_reason_to_look_for_another_generation(tiny_config: BuildConfig, tmp_path: Path) -> None:
    index = tmp_path / "index"
    grown(index, tiny_config)
    engine = SearchEngine(index)
    for path in index.glob("parts/*/documents.parquet"):
        path.write_bytes(b"")
    with pytest.raises(CorruptIndexError):
        engine.search("whales", 5)
