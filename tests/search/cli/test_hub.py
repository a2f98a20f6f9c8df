"""`isotrope push` and `isotrope pull`: one call of the library each, and their output."""

import json
from pathlib import Path

import pytest

from indexer import BuildConfig, build_index, delete_documents
from tests.documents import DOCUMENTS
from tests.hubs import FakeHub
from tests.search.cli.test_cli import isotrope


@pytest.fixture
def index(tiny_config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    build_index(DOCUMENTS, "index", tiny_config)
    return Path("index")


def test_an_index_goes_to_the_hub_and_back(index: Path, hub: FakeHub) -> None:
    pushed = isotrope("push", index, "hf://user/name", "--private")
    assert pushed.returncode == 0
    assert pushed.stdout.startswith("hf://user/name has generation 1, 9 documents: ")
    assert " files sent, " in pushed.stdout
    assert "note: the encoder is a folder on this machine" in pushed.stderr
    assert hub.repositories["user/name"].private
    again = isotrope("push", index, "hf://user/name")
    assert again.stdout == "hf://user/name has generation 1, 9 documents: up to date.\n"
    pulled = isotrope("pull", "hf://user/name", "copy")
    assert pulled.stdout.startswith("copy has generation 1, 9 documents: ")
    assert " files downloaded, " in pulled.stdout
    again = isotrope("pull", "hf://user/name", "copy")
    assert again.stdout == "copy has generation 1, 9 documents: up to date.\n"
    assert isotrope("verify", "copy").returncode == 0


def test_json_has_every_field_of_the_reports(index: Path, hub: FakeHub) -> None:
    isotrope("push", index, "hf://user/name")
    delete_documents(index, ["d1"])
    pushed = json.loads(isotrope("push", index, "hf://user/name", "--json").stdout)
    assert (pushed["index"], pushed["generation"], pushed["documents"], pushed["removed"]) == ("index", 2, 8, 1)
    assert pushed["notes"][0].startswith("the files still contain 1 deleted document;")
    pulled = json.loads(isotrope("pull", "hf://user/name", "copy", "--json").stdout)
    assert (pulled["index"], pulled["generation"], pulled["published"]) == ("copy", 2, True)
    assert pulled["fetched"] == pulled["files"] == pushed["files"] - 1  # without the manifest


def test_mistakes_are_one_line_with_a_fix(index: Path, hub: FakeHub) -> None:
    for call in (("push", index, "user/name"), ("push", "nowhere", "hf://user/name"), ("pull", "hf://user/typo", "x")):
        done = isotrope(*call)
        assert (done.returncode, done.stdout) == (1, ""), call
        assert len(done.stderr.splitlines()) == 1
    done = isotrope("query", "hf://user/name", "whales")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Fix: isotrope pull hf://user/name FOLDER, and use the folder." in done.stderr
