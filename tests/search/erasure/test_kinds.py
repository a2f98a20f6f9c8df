"""Erasure of every kind of index: windows, quantised segments, transforms, no documents; and wrong input."""

import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from indexer import Document, add_documents, ann, build_index, compact_index, delete_documents
from indexer.errors import (
    ConfigError,
    CorruptIndexError,
    ExistsError,
    MismatchError,
    ModelError,
    NotAnIndexError,
    StoreError,
)
from indexer.pipeline.erase import erase_from_index, read_erasure
from indexer.recipe.config import BuildConfig
from indexer.recipe.corpus_config import ChunkConfig
from indexer.store import layout
from indexer.store.manifest import list_generations, load_manifest
from indexer.store.parts import load_moments
from search import verify_index
from search.cli import cli
from search.erasure.proof import erase_documents, read_proof, verify_erased
from search.index import Index
from tests.documents import DOCUMENTS

LONG = Document("long", " ".join(f"Sentence number {number} is about wells." for number in range(40)), "Wells")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ISOTROPE_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def index(tiny_config: BuildConfig, tmp_path: Path) -> Path:
    build_index(DOCUMENTS, tmp_path / "index", tiny_config)
    return tmp_path / "index"


def test_all_windows_of_a_document_are_erased(tiny_config: BuildConfig, tmp_path: Path) -> None:
    config, index = replace(tiny_config, chunk=ChunkConfig(tokens=16, overlap=4)), tmp_path / "index"
    build_index([*DOCUMENTS, LONG], index, config)
    opened = Index.open(index)
    vectors = opened.vectors(opened.numbering.rows_of(np.array([len(DOCUMENTS)])))
    rows = load_manifest(index).rows
    assert erase_documents(index, ["long"], tmp_path / "erased.json").passed
    proof = read_proof(tmp_path / "erased.json")
    assert len(vectors) > 5
    assert proof.before.rows - proof.after.rows == len(vectors) == rows - load_manifest(index).rows
    for vector in vectors[[0, -1]]:
        (index / "leak").write_bytes(vector.tobytes())
        assert verify_erased(tmp_path / "erased.json").problems == ["leak: contains an erased document (vector)"]


@pytest.mark.parametrize("kind", ["SQ8", "IVF2,SQ8", "Pad32,PQ8x4,Refine(SQfp16)"])
def test_codes_of_a_quantised_segment_are_searched_for(kind: str, tiny_config: BuildConfig, tmp_path: Path) -> None:
    index = tmp_path / "index"
    more = [Document(f"m{number}", f"Number {number * 7919} of a list.") for number in range(20)]
    build_index([*DOCUMENTS, *more], index, tiny_config.with_overrides([f"index.type={kind}"]))
    segment = (index / load_manifest(index).segments[0].file).read_bytes()
    codes = [code[1].tobytes() for code in ann.stored_codes(Index.open(index).segments[0].index, np.arange(3))]
    assert all(code in segment for code in codes)
    assert erase_documents(index, ["d1"], tmp_path / "erased.json").passed
    assert verify_index(index).passed
    for code in codes if "IVF" not in kind else []:  # lists have another order
        (index / "leak").write_bytes(b"x" + code)
        found = verify_erased(tmp_path / "erased.json").problems == ["leak: contains an erased document (code)"]
        assert found or len(code) < 8
    (index / "leak").write_bytes(b"x" + segment)
    assert "code" in verify_erased(tmp_path / "erased.json").problems[0] or "PQ" in kind


def test_moments_and_transform_are_those_of_the_remaining_documents(
    index: Path, tiny_config: BuildConfig, tmp_path: Path
) -> None:
    erase_documents(index, ["d1"], tmp_path / "erased.json")
    left = [one for one in DOCUMENTS if one.id != "d1"]
    build_index(left, tmp_path / "fresh", tiny_config)
    moments = [
        sum(load_moments(path / part.name).count for part in load_manifest(path).parts)
        for path in (index, tmp_path / "fresh")
    ]
    assert moments == [len(left), len(left)]
    transforms = [(path / load_manifest(path).transform["file"]).read_bytes() for path in (index, tmp_path / "fresh")]
    assert transforms[0] == transforms[1]


def test_a_transform_of_another_index_is_kept_and_named(tiny_config: BuildConfig, index: Path, tmp_path: Path) -> None:
    build_index(DOCUMENTS, tmp_path / "other", tiny_config, transform_from=index)
    report = erase_documents(tmp_path / "other", ["d1"], tmp_path / "erased.json")
    assert report.passed
    assert any("transform is that of another index" in note for note in report.notes)
    assert verify_erased(tmp_path / "erased.json").notes == report.notes


def test_the_only_copy_of_a_document_may_be_in_an_older_generation(index: Path, tmp_path: Path) -> None:
    delete_documents(index, [document.id for document in DOCUMENTS])
    report = erase_documents(index, ["d1"], tmp_path / "erased.json")
    assert report.documents == 0
    assert len(list_generations(index)) == 1
    assert not [path for path in index.rglob("*") if path.is_file() and b"suspension" in path.read_bytes()]
    with pytest.raises(ConfigError, match='id "d2"; nothing was erased'):  # it is gone as well
        erase_documents(index, ["d2"], tmp_path / "second.json")


def test_an_index_without_documents_has_none_to_erase(tiny_config: BuildConfig, tmp_path: Path) -> None:
    build_index([], tmp_path / "index", tiny_config)
    with pytest.raises(ConfigError, match='id "d1"; nothing was erased'):
        erase_documents(tmp_path / "index", ["d1"], tmp_path / "erased.json")
    compact_index(tmp_path / "index")


def test_without_the_encoder_that_a_fit_needs_nothing_is_changed(
    tiny_model: Callable[[str], Path], index: Path, tmp_path: Path
) -> None:
    for model, error in ((tmp_path / "missing", ModelError), (tiny_model("roberta"), MismatchError)):
        with pytest.raises(error):
            erase_documents(index, ["d1"], tmp_path / "erased.json", model=model)
    assert read_erasure(index) is None
    assert list_generations(index) == [1]


def test_without_the_questions_of_the_recipe_nothing_is_changed(tiny_config: BuildConfig, tmp_path: Path) -> None:
    """The file of the query mean is needed; that of index.queries only if it is there, and then the encoder too."""
    questions, index, proof = tmp_path / "questions.txt", tmp_path / "index", tmp_path / "erased.json"
    questions.write_text("whales\nbridges\n")
    settings = [f"whitening.query_sample={questions}", f"index.queries={questions}", "whitening.centre=common"]
    build_index(DOCUMENTS, index, tiny_config.with_overrides(settings))
    with pytest.raises(ModelError):
        erase_documents(index, ["d1"], proof, model=tmp_path / "missing")
    content = questions.read_bytes()
    questions.unlink()
    with pytest.raises(ConfigError, match=r"whitening\.query_sample: .* cannot be read"):
        erase_documents(index, ["d1"], proof)
    assert read_erasure(index) is None
    assert list_generations(index) == [1]
    questions.write_bytes(content)
    assert erase_documents(index, ["d1"], proof).passed


def test_text_across_two_documents_is_no_trace(index: Path, tmp_path: Path) -> None:
    """Values of a column follow each other in memory: "... also discussed" and "the logic ..."."""
    add_documents([Document("e", "Programs are also discussed. The end."), Document("f", "It is also discussed."),
                   Document("g", "The logic of tables.")], index)  # fmt: skip
    assert erase_documents(index, ["e"], tmp_path / "erased.json").passed


def test_words_that_the_files_of_every_index_contain_are_no_traces(index: Path, tmp_path: Path) -> None:
    words = ["Fortran order", "Whitening", "fingerprint", "Parquet CPP arrow version", "without_tokens", "metadata"]
    add_documents([Document(word, word, word) for word in words], index)
    report = erase_documents(index, words, tmp_path / "erased.json")
    assert report.passed
    assert not report.notes


def test_reports_beside_the_index_are_searched_and_other_files_are_not(index: Path, tmp_path: Path) -> None:
    text = "A suspension bridge hangs from steel cables."
    (tmp_path / "report.html").write_text(f"<title>Isotrope report</title><td>{text}</td>")
    (tmp_path / "result.json").write_text(json.dumps({"provenance": {}, "results": [{"example": text}]}))
    (tmp_path / "corpus.json").write_text(json.dumps([text]))
    with pytest.raises(Exception, match="traces are left") as error:
        erase_documents(index, ["d1"], tmp_path / "erased.json")
    assert "report.html" in str(error.value)
    assert "result.json" in str(error.value)
    assert "corpus.json" not in str(error.value)


def test_a_result_with_the_name_of_a_proof_in_another_folder_is_searched(index: Path, tmp_path: Path) -> None:
    (tmp_path / "proofs").mkdir()
    (tmp_path / "d1.json").write_text('{"provenance": {}, "results": ["A suspension bridge hangs"]}')
    with pytest.raises(StoreError, match=r"traces are left: .*d1\.json"):
        erase_documents(index, ["d1"], tmp_path / "proofs" / "d1.json")


def test_a_line_that_is_no_json_does_not_hide_the_ids_of_others(index: Path, tmp_path: Path) -> None:
    (tmp_path / "index.rejects.jsonl").write_text('{"id": "d1", "text": 3}\n\n{"id": "d')
    with pytest.raises(StoreError, match=r"rejects\.jsonl: contains an erased document \(id\)"):
        erase_documents(index, ["d1"], tmp_path / "erased.json")


def with_byte(data: bytes, local: int, central: int, value: int) -> bytes:
    """Set a byte in the two headers of the only member of a ZIP archive."""
    changed = bytearray(data)
    changed[local] = changed[data.index(b"PK\1\2") + central] = value
    return bytes(changed)


def test_a_file_that_cannot_be_decoded_is_named(index: Path, tmp_path: Path) -> None:
    erase_documents(index, ["d1"], tmp_path / "erased.json")
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("member", "text " * 99)
    data, parquet = archive.getvalue(), next(index.rglob("documents.parquet")).read_bytes()
    contents = {
        "deep.json": b"[" * 100_000,
        "encrypted": with_byte(data, 6, 8, 1),
        "unknown": with_byte(data, 8, 10, 99),
        "torn": data[:50] + data[51:],
        "parquet": parquet[:-28] + bytes([255]) * 8 + parquet[-20:],
    }
    for name, content in contents.items():
        (index / name).write_bytes(content)
        with pytest.raises(StoreError, match=rf"index/{name}: cannot be searched: .*\. Fix: repair or remove"):
            verify_erased(tmp_path / "erased.json")
        (index / name).unlink()


def test_a_document_with_a_long_id_is_erased(index: Path, tmp_path: Path) -> None:
    add_documents([Document("x" * 70_000, "Lamps burn oil.")], index)
    assert erase_documents(index, ["x" * 70_000], tmp_path / "erased.json").passed
    (index / "leak").write_text("x" * 70_000)
    assert len(verify_erased(tmp_path / "erased.json").notes) == 1


def test_an_id_between_other_words_is_a_note(index: Path, tmp_path: Path) -> None:
    erase_documents(index, ["d1"], tmp_path / "erased.json")
    (index / "notes.txt").write_text("The duplicates of (d1): none.")
    (index / "other.txt").write_text("The files d10 and xd1 are other words.")
    report = verify_erased(tmp_path / "erased.json")
    assert report.passed
    assert [note for note in report.notes if "equals an erased id" in note] == [
        "notes.txt: contains a word that equals an erased id. Fix: check whether it is the id"
    ]


def test_verification_names_the_files_that_changed_since(index: Path, tmp_path: Path) -> None:
    erase_documents(index, ["d1"], tmp_path / "erased.json")
    before = set(load_manifest(index).files)
    assert verify_erased(tmp_path / "erased.json").changed == []
    add_documents([Document("new", "Lamps burn oil.")], index)
    report = verify_erased(tmp_path / "erased.json")
    assert report.passed
    assert set(report.changed) == {*set(load_manifest(index).files) - before, layout.manifest_name(4)}
    assert report.documents == len(DOCUMENTS)


def test_a_restored_copy_of_the_old_index_is_found(index: Path, tmp_path: Path) -> None:
    (tmp_path / "old").mkdir()
    copy = {path.relative_to(index): path.read_bytes() for path in index.rglob("*") if path.is_file()}
    erase_documents(index, ["d1"], tmp_path / "erased.json")
    for name, data in copy.items():
        (tmp_path / "old" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "old" / name).write_bytes(data)
    problems = verify_erased(tmp_path / "erased.json", tmp_path / "old").problems
    kinds = dict(problem.split(": contains an erased document ") for problem in problems)
    assert kinds["parts/00000/documents.parquet"] == "(id, text, file)"
    assert kinds["parts/00000/embeddings.npy"] == "(vector, file)"
    assert kinds["parts/00000/moments.npz"] == "(file)"
    assert kinds[load_manifest(tmp_path / "old").transform["file"]] == "(file)"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"format": 1}', '{"format": 2}', "no JSON"])
def test_a_file_that_is_no_proof_is_refused(content: str, index: Path, tmp_path: Path) -> None:
    (tmp_path / "wrong.json").write_text(content)
    with pytest.raises(ConfigError, match="is no proof of"):
        verify_erased(tmp_path / "wrong.json")
    with pytest.raises(ConfigError, match="is no proof of"):
        erase_documents(index, ["d1"], tmp_path / "wrong.json")
    assert list_generations(index) == [1]


@pytest.mark.parametrize("content", ["{", '{"format": 1}', "marks"])
def test_a_damaged_record_of_an_erasure_is_refused(content: str, index: Path, tmp_path: Path) -> None:
    if content == "marks":  # typed by another package than the rest of the file
        erase_from_index(index, ["d1"], lambda *_: {"patterns": {"text": [{"length": 0}]}})
    else:
        (index / "erase.json").write_text(content)
    with pytest.raises(CorruptIndexError, match=r"erase\.json: damaged .* Fix: remove it"):
        erase_documents(index, ["d1"], tmp_path / "erased.json")
    with pytest.raises(ExistsError, match="an erasure of documents is unfinished"):
        compact_index(index)


def test_a_proof_of_another_erasure_is_not_overwritten(index: Path, tmp_path: Path) -> None:
    erase_documents(index, ["d1"], tmp_path / "erased.json")
    with pytest.raises(ExistsError, match="is the proof of another or an earlier erasure"):
        erase_documents(index, ["d2"], tmp_path / "erased.json")
    assert erase_documents(index, ["d1"], tmp_path / "erased.json").passed  # nothing to do
    add_documents([DOCUMENTS[1]], index)
    with pytest.raises(ExistsError, match="is the proof of another or an earlier erasure"):  # it is there again
        erase_documents(index, ["d1"], tmp_path / "erased.json")
    with pytest.raises(NotAnIndexError):
        verify_erased(tmp_path / "erased.json", tmp_path)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(cli, list(map(str, arguments)))


def test_the_commands(index: Path, tmp_path: Path) -> None:
    proof = tmp_path / "erased.json"
    (tmp_path / "ids.txt").write_text("d1\nd2\n")
    done = run("erase", index, "--ids-file", tmp_path / "ids.txt", "--proof", proof, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["erased"] == 2
    assert run("verify", "--erased", proof, "--quiet").exit_code == 0
    (index / "leak").write_text("a suspension bridge hangs")
    found = run("verify", "--erased", proof, "--quiet")
    assert found.exit_code == 1
    assert "leak: contains an erased document (text)" in found.stdout
    assert run("verify", "--erased", proof, "--json").exit_code == 1
    assert run("erase", index, "d3").exit_code == 2  # without --proof
    assert "Missing argument 'INDEX'" in run("verify").output
    assert "nothing was erased" in str(run("erase", index, "d33", "--proof", tmp_path / "second.json").exception)


@pytest.mark.parametrize("left", [1, 5])
def test_too_few_documents_for_the_type_of_index_are_left(left: int, tiny_config: BuildConfig, tmp_path: Path) -> None:
    index, texts = tmp_path / "index", [Document(f"m{number}", f"{number * 7919} whales") for number in range(30)]
    build_index(texts, index, tiny_config.with_overrides(["index.type=IVF8,SQ8", "index.recall=0.1"]))
    report = erase_documents(index, [document.id for document in texts[left:]], tmp_path / "erased.json")
    assert report.passed
    assert 'index.type is now "auto", because "IVF8,SQ8" does not fit' in report.notes[0]
    opened = Index.open(index)
    assert opened.config.index.type == "auto"
    assert [entry.factory for entry in opened.manifest.segments] == ["Flat"]
    assert verify_index(index).passed
    add_documents(texts, index)
