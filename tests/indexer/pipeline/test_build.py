"""Builds: equal bytes for every way to run them, reuse, rejected recipes, and edge cases of the corpus."""

import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer import BuildConfig, Document, RunOptions, build_index, read_corpus
from indexer.corpus.document import pseudo_query
from indexer.encoders.load import load_encoder
from indexer.errors import (
    ConfigError,
    CorpusError,
    CorruptIndexError,
    ExistsError,
    MismatchError,
    ModelError,
    QualityError,
    StoreError,
)
from indexer.store.manifest import load_manifest
from search import SearchEngine
from tests.directories import snapshot
from tests.documents import DOCUMENTS


def embeddings(index: Path) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    parts = [np.load(index / part.name / "embeddings.npy") for part in load_manifest(index).parts]
    return np.concatenate(parts)


@pytest.mark.parametrize(
    ("workers", "threads"),
    [(1, 3), pytest.param(2, 1, marks=pytest.mark.check)],  # a worker imports torch: seconds
)
def test_bytes_do_not_depend_on_workers_or_threads(
    workers: int, threads: int, tiny_config: BuildConfig, tmp_path: Path
) -> None:
    build_index(DOCUMENTS, tmp_path / "alone", tiny_config, RunOptions(device="cpu", workers=1, threads=1))
    several = RunOptions(device="cpu", workers=workers, threads=threads)
    build_index(DOCUMENTS, tmp_path / "several", tiny_config, several)
    assert snapshot(tmp_path / "several") == snapshot(tmp_path / "alone")


def test_created_and_checksum_are_all_that_two_equal_builds_differ_in(tiny_config: BuildConfig, tmp_path: Path) -> None:
    for name in ("a", "b"):
        build_index(DOCUMENTS, tmp_path / name, tiny_config)
    first, second = (json.loads((tmp_path / n / "manifests/00000001.json").read_text()) for n in ("a", "b"))
    differing = {key for key in first if first[key] != second[key]}
    assert differing <= {"created", "checksum"}


def test_a_finished_build_is_up_to_date_and_changes_no_byte(tiny_config: BuildConfig, tmp_path: Path) -> None:
    build_index(DOCUMENTS, tmp_path / "index", tiny_config)
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files_of(tmp_path)}
    for overwrite in (False, True):
        report = build_index(DOCUMENTS, tmp_path / "index", tiny_config, RunOptions(overwrite=overwrite))
        assert report.up_to_date
    assert {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files_of(tmp_path)} == before


def test_the_folder_may_be_moved(tiny_config: BuildConfig, tmp_path: Path) -> None:
    build_index(DOCUMENTS, tmp_path / "here", tiny_config)
    (tmp_path / "here").rename(tmp_path / "there")
    assert build_index(DOCUMENTS, tmp_path / "there", tiny_config).up_to_date
    assert SearchEngine(tmp_path / "there").search("whales", k=1)


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("whitening.strength=1", "whitening.strength is 0.25 there and 1.0 here"),
        ("encoder.layers=[1, -1]", "encoder.layers is [1, 2], expected [2]"),
        ("encoder.query_prefix=query: ", "encoder.query_prompt"),
        ("store.part_documents=5", "store.part_documents is 4 there and 5 here"),
        ('corpus.text=["text"]', "corpus.text"),
    ],
)
def test_another_recipe_is_refused_naming_the_difference_and_the_ways_out(
    setting: str, named: str, tiny_config: BuildConfig, tmp_path: Path
) -> None:
    build_index(DOCUMENTS, tmp_path / "index", tiny_config)
    before = snapshot(tmp_path / "index")
    with pytest.raises(ExistsError, match="overwrite=True") as error:
        build_index(DOCUMENTS, tmp_path / "index", tiny_config.with_overrides([setting]))
    assert named in str(error.value)
    assert snapshot(tmp_path / "index") == before


def changed_corpora() -> Iterator[tuple[str, list[Document]]]:
    yield "one more", [*DOCUMENTS, Document("new", "One more line.")]
    yield "one less", DOCUMENTS[:-1]
    yield "one part less", DOCUMENTS[:8]
    yield "another text", [dataclasses.replace(DOCUMENTS[0], text="Other."), *DOCUMENTS[1:]]
    yield "another id", [dataclasses.replace(DOCUMENTS[0], id="x"), *DOCUMENTS[1:]]
    yield "another metadata", [dataclasses.replace(DOCUMENTS[0], metadata={"year": 1}), *DOCUMENTS[1:]]
    yield "parts in another order", [*DOCUMENTS[4:8], *DOCUMENTS[:4], *DOCUMENTS[8:]]


@pytest.mark.parametrize(("change", "corpus"), list(changed_corpora()), ids=[name for name, _ in changed_corpora()])
def test_another_corpus_is_refused_and_with_overwrite_becomes_the_next_generation(
    change: str, corpus: list[Document], tiny_config: BuildConfig, tmp_path: Path
) -> None:
    index = tmp_path / "index"
    build_index(DOCUMENTS, index, tiny_config)
    before = snapshot(index)
    with pytest.raises(ExistsError, match=r"other documents.*overwrite=True"):
        build_index(corpus, index, tiny_config)
    assert snapshot(index) == before
    report = build_index(corpus, index, tiny_config, RunOptions(overwrite=True))
    assert (report.generation, report.documents) == (2, len(corpus))
    assert {name: digest for name, digest in snapshot(index).items() if name in before} == before
    build_index(corpus, tmp_path / "fresh", tiny_config)
    np.testing.assert_allclose(embeddings(index), embeddings(tmp_path / "fresh"), atol=1e-5)


def test_a_line_inserted_at_the_top_encodes_one_text(tiny_config: BuildConfig, tmp_path: Path) -> None:
    build_index(DOCUMENTS, tmp_path / "index", tiny_config)
    report = build_index(
        [Document("new", "Inserted."), *DOCUMENTS], tmp_path / "index", tiny_config, RunOptions(overwrite=True)
    )
    assert (report.rows_encoded, report.rows_reused) == (1, len(DOCUMENTS))


def test_a_metadata_edit_encodes_nothing(tiny_config: BuildConfig, tmp_path: Path) -> None:
    build_index(DOCUMENTS, tmp_path / "index", tiny_config)
    edited = [dataclasses.replace(DOCUMENTS[0], metadata={"year": 3}), *DOCUMENTS[1:]]
    report = build_index(edited, tmp_path / "index", tiny_config, RunOptions(overwrite=True))
    assert (report.rows_encoded, report.rows_reused, report.parts_kept) == (0, 4, 2)
    assert SearchEngine(tmp_path / "index").search(DOCUMENTS[0].text, k=1)[0].metadata == {"year": 3}


def test_another_transform_encodes_no_document(tiny_config: BuildConfig, tmp_path: Path) -> None:
    build_index(DOCUMENTS, tmp_path / "index", tiny_config)
    stronger = tiny_config.with_overrides(["whitening.strength=1"])
    report = build_index(DOCUMENTS, tmp_path / "index", stronger, RunOptions(overwrite=True))
    assert (report.parts_encoded, report.parts_kept) == (0, 3)


def test_overwrite_mends_a_damaged_index(tiny_config: BuildConfig, tmp_path: Path) -> None:
    build_index(DOCUMENTS, tmp_path / "index", tiny_config)
    path = tmp_path / "index/parts/00001/embeddings.npy"
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    report = build_index(DOCUMENTS, tmp_path / "index", tiny_config, RunOptions(overwrite=True))
    assert (report.generation, report.parts_encoded) == (2, 1)
    assert SearchEngine(tmp_path / "index").search("whales", k=1)


def test_the_sample_does_not_depend_on_the_order_of_the_corpus(tiny_config: BuildConfig, tmp_path: Path) -> None:
    config = tiny_config.with_overrides(["whitening.sample=5"])
    build_index(DOCUMENTS, tmp_path / "a", config)
    build_index(DOCUMENTS[::-1], tmp_path / "b", config)
    one, other = SearchEngine(tmp_path / "a"), SearchEngine(tmp_path / "b")
    vectors = [engine.embed(["whales"], "query") for engine in (one, other)]
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-5)
    assert load_manifest(tmp_path / "a").quality["sample"] == 5


@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("strength", ["none", "0", "0.25", "1"])
def test_tiny_corpora_build_answer_and_say_so(
    count: int, strength: str, tiny_config: BuildConfig, tmp_path: Path
) -> None:
    config = tiny_config.with_overrides([f"whitening.strength={strength}"])
    report = build_index(DOCUMENTS[:count], tmp_path / "index", config)
    hits = SearchEngine(tmp_path / "index").search("whales", k=10)
    assert {hit.id for hit in hits} == {document.id for document in DOCUMENTS[:count]}
    assert all(np.isfinite(hit.score) for hit in hits)
    assert bool(report.notes) == (strength not in ("none", "0") or (strength == "0" and count == 1))


def test_equal_texts_only_build_too(tiny_config: BuildConfig, tmp_path: Path) -> None:
    report = build_index([Document(str(n), "The same.") for n in range(6)], tmp_path / "index", tiny_config)
    assert "all alike" in report.notes[0]
    hits = SearchEngine(tmp_path / "index").search("The same.", k=3)
    assert [hit.id for hit in hits] == ["0", "1", "2"]  # equal scores: by id


@pytest.mark.parametrize("factory", ["IVF2,Flat", "HNSW4", "PCA4,Flat", "SQ8"])
def test_factory_strings_build_and_answer(factory: str, tiny_config: BuildConfig, tmp_path: Path) -> None:
    config = tiny_config.with_overrides([f"index.type={factory}", "index.recall=0.5"])
    documents = [dataclasses.replace(d, id=f"{d.id}-{n}", text=f"{d.text} {n}") for d in DOCUMENTS for n in range(8)]
    report = build_index(documents, tmp_path / "index", config)
    assert report.quality["self_hit"]["value"] >= 0.5
    assert len(SearchEngine(tmp_path / "index").search("whales sing", k=3)) == 3


def test_float16_storage_halves_the_embeddings(tiny_config: BuildConfig, tmp_path: Path) -> None:
    build_index(DOCUMENTS, tmp_path / "full", tiny_config)
    build_index(DOCUMENTS, tmp_path / "half", tiny_config.with_overrides(["store.embeddings=float16"]))
    full, half = embeddings(tmp_path / "full"), embeddings(tmp_path / "half")
    assert half.dtype == np.float16
    np.testing.assert_allclose(half, full, rtol=1e-3, atol=1e-4)


def test_embeddings_that_are_to_be_stored_in_full_are_not_taken_from_halves(
    tiny_config: BuildConfig, tmp_path: Path
) -> None:
    """One new text in the first part, so that the other texts of that part are looked up."""
    changed = [dataclasses.replace(DOCUMENTS[0], text="A text that is new."), *DOCUMENTS[1:]]
    build_index(DOCUMENTS, tmp_path / "index", tiny_config.with_overrides(["store.embeddings=float16"]))
    build_index(changed, tmp_path / "index", tiny_config, RunOptions(overwrite=True))
    build_index(changed, tmp_path / "alone", tiny_config)
    assert np.array_equal(embeddings(tmp_path / "index"), embeddings(tmp_path / "alone"))


def test_every_gate_is_in_the_manifest_with_its_figure(tiny_config: BuildConfig, tmp_path: Path) -> None:
    build_index(DOCUMENTS, tmp_path / "index", tiny_config)
    quality = load_manifest(tmp_path / "index").quality
    gates = {
        name: figure["value"] for name, figure in quality.items() if isinstance(figure, dict) and "passed" in figure
    }
    assert gates.pop("covariance") < 1e-3
    assert gates.pop("self_hit") == 1
    assert gates == {"not_finite": 0, "zero_embeddings": 0, "zero_vectors": 0, "missing_rows": 0}


def test_a_document_without_direction_fails_the_build(
    tiny_config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An embedding equal to the mean has the zero vector, which no query can find."""
    from indexer.transforms import Whitening

    real = Whitening.project

    def first_at_the_mean(self: Whitening, rows: Any, role: Any) -> Any:
        projected = real(self, rows, role)
        projected[0] = 0
        return projected

    monkeypatch.setattr(Whitening, "project", first_at_the_mean)
    with pytest.raises(QualityError, match="zero_vectors is 3, expected at most 0"):
        build_index(DOCUMENTS, tmp_path / "index", tiny_config)


def test_truncated_documents_are_counted(tiny_config: BuildConfig, tmp_path: Path) -> None:
    documents = [Document("short", "Bread."), Document("long", "bread " * 100), Document("other", "Stars shine.")]
    report = build_index(documents, tmp_path / "index", tiny_config)
    assert report.truncated == 1
    assert load_manifest(tmp_path / "index").quality["truncated"] == 1


def test_queries_get_the_mean_of_query_like_texts(tiny_config: BuildConfig, tmp_path: Path) -> None:
    build_index(DOCUMENTS, tmp_path / "index", tiny_config)
    transform = SearchEngine(tmp_path / "index").index.transform.arrays()
    titles = [document.title or "" for document in DOCUMENTS]
    expected = load_encoder(tiny_config.encoder).encode(titles, "query").mean(axis=0)
    np.testing.assert_allclose(transform["query_mean"], expected, atol=1e-6)
    assert np.abs(transform["query_mean"] - transform["mean"]).max() > 1e-3


def test_queries_of_ones_own_are_used_and_a_changed_file_is_noticed(tiny_config: BuildConfig, tmp_path: Path) -> None:
    queries = tmp_path / "queries.txt"
    queries.write_bytes("\ufeffwho sings\n\nwhat is\u2028bread\n".encode())
    config = tiny_config.with_overrides([f"whitening.query_sample={queries}"])
    build_index(DOCUMENTS, tmp_path / "index", config)
    assert load_manifest(tmp_path / "index").transform["query_texts"]["texts"] == 2
    queries.write_text("another\n")
    with pytest.raises(ExistsError, match="query_sample have changed"):
        build_index(DOCUMENTS, tmp_path / "index", config)
    queries.unlink()
    with pytest.raises(ConfigError, match="query_sample"):
        build_index(DOCUMENTS, tmp_path / "elsewhere", config)
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (Document("1", "Body.", "A title"), "A title"),
        (Document("1", "First sentence. Second one.", None), "First sentence."),
        (Document("1", "First line\nsecond line", " "), "First line"),
        (Document("1", "word " * 40), "word " * 11 + "word"),
    ],
)
def test_query_like_is_the_title_else_a_sentence_else_some_words(document: Document, expected: str) -> None:
    assert pseudo_query(document) == expected


def test_a_folder_of_other_files_is_left_alone(tiny_config: BuildConfig, tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(StoreError, match="nothing was changed"):
        build_index(DOCUMENTS, tmp_path, tiny_config)
    with pytest.raises(StoreError, match="is a file"):
        build_index(DOCUMENTS, tmp_path / "thesis.tex", tiny_config)
    assert list(tmp_path.iterdir()) == [tmp_path / "thesis.tex"]


def test_a_corpus_read_by_other_column_rules_is_refused(tiny_config: BuildConfig, tmp_path: Path) -> None:
    (tmp_path / "docs.jsonl").write_text('{"id": "1", "body": "x"}\n')
    config = tiny_config.with_columns({"text_column": "body"})
    with pytest.raises(ConfigError, match="column rules"):
        build_index(read_corpus(tmp_path / "docs.jsonl"), tmp_path / "index", config)
    assert build_index(read_corpus(tmp_path / "docs.jsonl", config=config.corpus), tmp_path / "index", config).rows == 1


def test_a_bad_row_stops_the_build_before_anything_is_encoded(
    tiny_config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from indexer.pipeline.steps import build_encoder

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the encoder was loaded")

    monkeypatch.setattr(build_encoder, "open_encoder", refuse)
    lines = [json.dumps({"id": str(n), "text": "word"}) for n in range(20)]
    (tmp_path / "docs.jsonl").write_text("\n".join([*lines, "{broken"]))
    with pytest.raises(CorpusError, match=r"docs.jsonl:21"):
        build_index(read_corpus(tmp_path / "docs.jsonl"), tmp_path / "index", tiny_config)


def test_a_bad_index_type_is_refused_before_anything_is_read(tiny_config: BuildConfig, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="not a FAISS factory string"):
        build_index(DOCUMENTS, tmp_path / "index", tiny_config.with_overrides(["index.type=IVX16,Flat"]))
    assert not (tmp_path / "index").exists()


@pytest.mark.check
def test_a_worker_that_cannot_start_says_why(tiny_config: BuildConfig, tmp_path: Path) -> None:
    from indexer.errors import MachineError

    with pytest.raises(MachineError, match="cuda"):
        build_index(DOCUMENTS, tmp_path / "index", tiny_config, RunOptions(device="cuda:7", workers=2))


def test_a_model_that_changes_after_the_build_is_refused_with_both_hashes(
    tiny_model: Callable[[str], Path], tiny_config: BuildConfig, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny_model("bert"), model)
    config = tiny_config.with_overrides([f"encoder.model={model}"])
    build_index(DOCUMENTS, tmp_path / "index", config)
    for name in ("model.safetensors", "tokenizer.json", "config.json"):
        original = (model / name).read_bytes()
        (model / name).write_bytes(original.replace(b"0.1", b"0.2", 1) if name == "config.json" else original + b" ")
        with pytest.raises(MismatchError, match=f"{name} has sha256 [0-9a-f]+.*, expected [0-9a-f]+"):
            SearchEngine(tmp_path / "index").search("whales")
        (model / name).write_bytes(original)
    assert SearchEngine(tmp_path / "index").search("whales")
    model.rename(tmp_path / "moved")
    with pytest.raises(ModelError, match="no longer exists"):
        SearchEngine(tmp_path / "index").search("whales")
    hits = SearchEngine(tmp_path / "index", model=tmp_path / "moved").search("whales", k=2)
    assert len(hits) == 2


class Hook:
    """A progress object that runs an action when a phase begins with this name."""

    def __init__(self, name: str, action: Callable[[], object]) -> None:
        self._name, self._action = name, action

    def phase(self, name: str, total: int | None) -> None:
        if name.startswith(self._name):
            self._action()

    def advance(self, texts: int, tokens: int = 0) -> None:
        pass


def test_a_model_that_changes_during_the_build_stops_it(
    tiny_model: Callable[[str], Path], tiny_config: BuildConfig, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(tiny_model("bert"), tmp_path / "model"))
    weights = model / "model.safetensors"
    config = tiny_config.with_overrides([f"encoder.model={model}"])
    changing = Hook("loading", lambda: weights.write_bytes(weights.read_bytes()[:-1] + b"\x01"))
    with pytest.raises(MismatchError, match=r"changed while the build was running: model\.safetensors"):
        build_index(DOCUMENTS, tmp_path / "index", config, progress=changing)


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        ([Document("a", "x"), Document("a", "y")], r"document 2 \(id \"a\"\): the id was already used at document 1"),
        ([Document("a", "x"), Document("b", "  ")], "document 2.*nothing to encode"),
        ([Document("", "x")], "its id is empty"),
        ([Document(1, "x")], "its id is of type int"),  # type: ignore[arg-type]
        ([Document("a", None)], "its text is of type NoneType"),  # type: ignore[arg-type]
        ([Document("a", "\ud800")], "half of a character"),
        ([Document("a", "x\0y")], "NUL"),
        ([Document("a", "x", metadata={"text": "y"})], 'a column "text"'),
        ([Document("a", "x", metadata={"n": 1}), Document("b", "x", metadata={"n": "one"})], "document 2"),
    ],
)
def test_documents_of_a_program_are_held_to_the_rules_of_files(
    documents: list[Document], message: str, tiny_config: BuildConfig, tmp_path: Path
) -> None:
    with pytest.raises(CorpusError, match=message):
        build_index(documents, tmp_path / "index", tiny_config)


def test_a_missing_file_of_a_finished_index_is_said_and_mended_by_overwrite(
    tiny_config: BuildConfig, tmp_path: Path
) -> None:
    index = tmp_path / "index"
    build_index(DOCUMENTS, index, tiny_config)
    (index / "segments/0001-00.faiss").unlink()
    with pytest.raises(CorruptIndexError, match="overwrite=True"):
        build_index(DOCUMENTS, index, tiny_config)
    report = build_index(DOCUMENTS, index, tiny_config, RunOptions(overwrite=True))
    assert (report.generation, report.parts_encoded) == (2, 0)


def test_a_damaged_manifest_is_overwritten_and_no_part_is_lost(tiny_config: BuildConfig, tmp_path: Path) -> None:
    index = tmp_path / "index"
    build_index(DOCUMENTS, index, tiny_config)
    (index / "manifests/00000001.json").write_text("{")
    with pytest.raises(CorruptIndexError, match="overwrite=True"):
        build_index(DOCUMENTS, index, tiny_config)
    report = build_index(DOCUMENTS, index, tiny_config, RunOptions(overwrite=True))
    assert (report.generation, report.parts_encoded) == (2, 0)
    assert SearchEngine(index).search("whales", k=1)


def test_the_same_recipe_written_otherwise_is_the_same(tiny_config: BuildConfig, tmp_path: Path) -> None:
    queries = tmp_path / "q.txt"
    queries.write_text("who sings\n")
    other = tmp_path / "sub/../q.txt"
    (tmp_path / "sub").mkdir()
    centre = "whitening.centre=common"
    for settings in ([], ["index.type=flat"], ["index.type=Flat"]):
        config = tiny_config.with_overrides(
            [*settings, centre, f"whitening.query_sample={other if settings else queries}"]
        )
        report = build_index(DOCUMENTS, tmp_path / "index", config)
        assert report.up_to_date == bool(settings)


def test_an_approximate_index_is_tuned_to_the_recall_asked_for(tiny_config: BuildConfig, tmp_path: Path) -> None:
    words = [document.text for document in DOCUMENTS]
    documents = [Document(f"{a}-{b}", f"{words[a]} {words[b]}") for a in range(9) for b in range(9)]
    config = tiny_config.with_overrides(["index.type=IVF16,Flat", "index.recall=0.99", "store.part_documents=50"])
    report = build_index(documents, tmp_path / "index", config)
    assert report.quality["recall_at_10"]["value"] >= 0.99
    segment = load_manifest(tmp_path / "index").segments[0]
    assert 1 < segment.search_parameters["nprobe"] <= 16
    engine = SearchEngine(tmp_path / "index")
    assert len(engine.search("whales", k=81)) == 81
    build_index(documents, tmp_path / "flat", config.with_overrides(["index.type=flat"]))
    exact = SearchEngine(tmp_path / "flat")
    shares = []
    for text in words:
        found, expected = ({hit.id for hit in e.search(text, k=10)} for e in (engine, exact))
        shares.append(len(found & expected) / 10)
    assert np.mean(shares) > 0.8


def test_an_index_that_cannot_reach_its_recall_is_not_published(tiny_config: BuildConfig, tmp_path: Path) -> None:
    documents = [dataclasses.replace(d, id=f"{d.id}-{n}", text=f"{d.text} {n}") for d in DOCUMENTS for n in range(8)]
    with pytest.raises(QualityError, match="recall_at_10 is"):
        build_index(documents, tmp_path / "index", tiny_config.with_overrides(["index.type=PCA1,Flat"]))


def test_files_that_are_not_ours_are_neither_removed_nor_built_upon(tiny_config: BuildConfig, tmp_path: Path) -> None:
    index = tmp_path / "index"
    build_index(DOCUMENTS, index, tiny_config)
    (index / "transforms/notes.txt").write_text("mine")
    (index / "segments/folder").mkdir()
    report = build_index(DOCUMENTS[:5], index, tiny_config, RunOptions(overwrite=True))
    assert (report.generation, (index / "transforms/notes.txt").read_text()) == (2, "mine")
    (index / "precious.txt").write_text("mine")
    with pytest.raises(StoreError, match=r"precious\.txt"):
        build_index(DOCUMENTS, index, tiny_config, RunOptions(overwrite=True))


def test_an_index_copied_without_its_lock_is_still_one(tiny_config: BuildConfig, tmp_path: Path) -> None:
    build_index(DOCUMENTS, tmp_path / "index", tiny_config)
    (tmp_path / "index/lock").unlink()
    assert build_index(DOCUMENTS, tmp_path / "index", tiny_config).up_to_date


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())
