"""Commands on indexes and corpora in object storage: messages name the URL, never a path in the cache."""

import json
import os
from pathlib import Path

import pytest

import search.cli
from indexer.recipe.loading import named_path
from indexer.store.bucket import open_bucket
from search.describe import describe_index
from search.index import Index
from tests.object_storage import Storage, use_cache


@pytest.fixture
def bucket(storage: Storage, place: Path) -> str:
    bucket = storage.bucket()
    open_bucket(bucket).put("docs.jsonl", Path("docs.jsonl").read_bytes())
    return bucket


def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str, str]:
    """Return exit code, standard output and standard error of a command."""
    monkeypatch.setattr("sys.argv", ["isotrope", *arguments])
    status = 0
    try:
        search.cli.main()
    except SystemExit as error:
        status = int(error.code or 0)
    out, err = capsys.readouterr()
    assert "cache" not in out + err
    return status, out, err


def test_build_query_and_inspect_by_url(
    bucket: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url = f"{bucket}/my-index"
    built = run(
        capsys, monkeypatch, "build", f"{bucket}/docs.jsonl", url, "--config", "recipe.toml", "--json", "--quiet"
    )
    assert built[0] == 0
    assert json.loads(built[1])["index"] == url
    use_cache(tmp_path / "reader")
    assert run(capsys, monkeypatch, "query", url, "whales", "--json")[0] == 0
    proof = "erased.json"
    for command, *more in (
        ("inspect",),
        ("verify",),
        ("delete", "d1"),
        ("erase", "d2", "--proof", proof),
        ("verify", "--erased", proof),
    ):
        status, out, err = run(capsys, monkeypatch, command, url, *more)
        assert (status, url in out) == (0, True), err
    status, out, _ = run(
        capsys, monkeypatch, "dedup", url, "--threshold", "0.99", "--json", "--quiet", "-o", "d.parquet"
    )
    assert status == 0
    again = run(capsys, monkeypatch, "build", f"{bucket}/docs.jsonl", url, "--config", "recipe.toml", "--quiet")
    assert again[0] == 1
    assert again[2].startswith(f"error: {url}: already contains a complete index of other documents")


@pytest.mark.check
def test_a_build_in_two_halves_and_what_is_measured_name_the_url(
    bucket: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"{bucket}/my-index"
    build = ("build", f"{bucket}/docs.jsonl", url, "--config", "recipe.toml", "--quiet")
    changing: list[tuple[str, ...]] = [
        (*build, "--prepare"),
        ("encode-parts", url, "--parts", "0", "--quiet"),
        (*build, "--prepare"),
        ("encode-parts", url, "--cancel", "--json"),
        (*build, "--prepare", "--json"),
        ("encode-parts", url, "--json", "--quiet"),
        build,
        ("refit", url, "--quiet", "--json"),
        ("compact", url, "--quiet"),
        ("inspect", url, "--json"),
    ]
    for command in changing:
        status, out, err = run(capsys, monkeypatch, *command)
        assert (status, url in out) == (0, True), (command, err)
    measuring: list[tuple[str, ...]] = [
        ("report", url, "-o", "report.html", "--quiet"),
        ("evaluate", "recall", url, "-k", "3", "--quiet", "-o", "recall.json"),
        ("evaluate", "sts", "stsb.tsv", "--index", url, "--fit", "index", "--quiet", "-o", "sts.json"),
    ]
    for command in measuring:
        status, _, err = run(capsys, monkeypatch, *command)
        assert status == 0, (command, err)
    for name in ("report.html", "sts.json"):
        text = Path(name).read_text(encoding="utf-8")
        assert url in text
        assert "cache/remote" not in text
    assert describe_index(Index.open(named_path(url, "the index")))["index"] == url


def test_what_cannot_be_in_object_storage_is_refused(
    bucket: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    status, _, err = run(capsys, monkeypatch, "inspect", "index", "-o", f"{bucket}/facts.json")
    assert status == 2
    assert "only for indexes and corpora" in " ".join(err.split())
    status, _, err = run(capsys, monkeypatch, "inspect", f"{bucket}/none")
    assert (status, err.split("\n")[0]) == (
        1, f"error: {bucket}/none: no such index. Build one with: isotrope build SOURCE {bucket}/none"
    )  # fmt: skip


def test_a_url_of_a_file_is_its_path(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    assert run(capsys, monkeypatch, "verify", (place / "index").as_uri())[0] == 0


def test_a_url_that_is_mistyped_is_no_path(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, place: Path
) -> None:
    for arguments in (
        ("build", "docs.jsonl", "gcs://b/i"),
        ("build", "https://host/x", "i"),
        ("inspect", "hdfs://x/y"),
    ):
        status, _, err = run(capsys, monkeypatch, *arguments)
        assert (status, err.count("\n"), "expected s3://, gs://, az:// or file:///" in err) == (1, 1, True), err
    assert not [name for name in os.listdir(place) if ":" in name]
