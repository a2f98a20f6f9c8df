"""--review and --fail-over: a generation is published only if the user accepts the change of the answers."""

import json
from pathlib import Path

import pytest

from indexer import BuildConfig, add_documents, build_index, delete_documents, refit_index, reviewed_by
from indexer.errors import NotPublishedError
from indexer.store.manifest import load_manifest
from search import Index, SearchEngine
from tests.directories import snapshot
from tests.documents import DOCUMENTS
from tests.search.cli.test_cli import isotrope

CHANGE = ("--set", "whitening.strength=0")


@pytest.fixture
def index(tmp_path: Path, tiny_config: BuildConfig) -> Path:
    build_index(DOCUMENTS, tmp_path / "index", tiny_config.with_overrides(["whitening.strength=1.0"]))
    return tmp_path / "index"


def generation(index: Path) -> int:
    return load_manifest(index).generation


def test_the_answer_decides(index: Path) -> None:
    refused = isotrope("refit", index, *CHANGE, "--review", stdin="n\n")
    assert (refused.returncode, generation(index)) == (1, 1)
    assert "setting: whitening.strength 1.0 -> 0" in refused.stderr
    assert "the review rejected generation 2, so the index is unchanged" in refused.stderr
    accepted = isotrope("refit", index, *CHANGE, "--review", "--json", stdin="y\n")
    assert (accepted.returncode, generation(index)) == (0, 2)
    assert accepted.stdout.startswith("{"), "the review is on standard error"


def test_the_end_of_standard_input_is_no_consent(index: Path) -> None:
    assert isotrope("refit", index, *CHANGE, "--review").returncode != 0
    assert generation(index) == 1


@pytest.mark.parametrize(("limit", "published"), [("1", True), ("0", False)])
def test_fail_over_decides_without_a_question(index: Path, tmp_path: Path, limit: str, published: bool) -> None:
    copies = [{"id": f"copy {document.id}", "text": document.text} for document in DOCUMENTS]
    (tmp_path / "copies.jsonl").write_text("".join(f"{json.dumps(copy)}\n" for copy in copies))
    done = isotrope("add", index, tmp_path / "copies.jsonl", "--fail-over", limit)
    assert (done.returncode == 0, generation(index)) == (published, 2 if published else 1)
    assert ("--fail-over allows 0.0 %" in done.stderr) != published


def test_a_rejected_addition_is_not_encoded_twice(index: Path, tmp_path: Path) -> None:
    more = tmp_path / "more.jsonl"
    more.write_text('{"id": "new", "text": "A whale that sings at night."}\n')
    before = snapshot(index)
    assert isotrope("add", index, more, "--review", stdin="n\n").returncode == 1
    assert before.items() <= snapshot(index).items()
    with SearchEngine(index) as engine:
        assert len(engine) == len(DOCUMENTS)
    added = isotrope("add", index, more, "--fail-over", "1", "--json")
    assert added.returncode == 0
    assert json.loads(added.stdout)["rows_encoded"] == 0


def test_an_empty_index_has_no_answers_to_compare(index: Path, tmp_path: Path) -> None:
    delete_documents(index, [document.id for document in DOCUMENTS])
    more = tmp_path / "more.jsonl"
    more.write_text('{"id": "new", "text": "A whale that sings at night."}\n')
    done = isotrope("add", index, more, "--review", stdin="y\n")
    assert done.returncode == 0
    assert "contains no documents, so there are no answers to compare" in done.stderr


def test_a_first_sync_has_no_answers_to_compare(tmp_path: Path, index: Path) -> None:
    more = tmp_path / "more.jsonl"
    more.write_text('{"id": "new", "text": "A whale that sings at night."}\n')
    model = Index.open(index).config.encoder.model
    done = isotrope("sync", more, tmp_path / "first", "--set", f"encoder.model={model}", "--fail-over", "0")
    assert (done.returncode, generation(tmp_path / "first")) == (0, 1)
    assert "contains no documents, so there are no answers to compare" in done.stderr


def test_without_common_documents_every_answer_changes(index: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text('{"id": "new", "text": "A whale that sings at night."}\n')
    done = isotrope("sync", other, index, "--force", "--fail-over", "0.99")
    assert (done.returncode, generation(index)) == (1, 1)
    assert "every answer changes" in done.stderr


def test_a_review_sees_the_complete_generation_and_a_kill_in_it_publishes_nothing(index: Path) -> None:
    seen: list[int] = []

    def killed(folder: Path, manifest: object) -> bool:
        seen.append(len(SearchEngine(Index(folder, manifest))))  # type: ignore[arg-type]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), reviewed_by(killed):
        add_documents([{"id": "new", "text": "Whales sing."}], index)
    assert (seen, generation(index)) == ([len(DOCUMENTS) + 1], 1)
    with pytest.raises(NotPublishedError), reviewed_by(lambda *_: False):
        refit_index(index, ["hybrid.weight=0.1"])
    refit_index(index, ["hybrid.weight=0.1"])  # outside of the block
    assert (generation(index), len(SearchEngine(index))) == (2, len(DOCUMENTS))
