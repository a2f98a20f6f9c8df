"""`isotrope export`: one call of the library, its facts as a table or JSON."""

import json
from dataclasses import replace
from pathlib import Path

import faiss
import pytest
from click.testing import CliRunner

from indexer import BuildConfig, build_index
from indexer.ann.parameters import search_parameters
from indexer.errors import ExistsError
from indexer.models.hub import quiet_transformers
from indexer.recipe.config import EncoderConfig, WhiteningConfig
from indexer.recipe.index_config import IndexConfig
from indexer.recipe.run_options import RunOptions
from search.cli import cli
from tests.docs.pages import block, examples, page
from tests.documents import DOCUMENTS


@pytest.fixture
def index(tiny_config: BuildConfig, tmp_path: Path) -> Path:
    build_index(DOCUMENTS, tmp_path / "index", tiny_config, RunOptions(backend="torch", device="cpu", threads=1))
    (tmp_path / "queries.txt").write_text("whales\nbread\n")
    return tmp_path / "index"


@pytest.mark.parametrize(
    ("kind", "files"),
    [
        ("faiss", ["out", "out.ids.parquet"]),
        ("sentence-transformers", None),
        ("parquet", ["out"]),
        ("trec-run", ["out"]),
    ],
)
def test_every_kind_says_what_it_wrote(kind: str, files: list[str] | None, index: Path, tmp_path: Path) -> None:
    queries = ["--queries", str(tmp_path / "queries.txt")] if kind == "trec-run" else []
    call = ["export", str(index), "--to", kind, "-o", str(tmp_path / "out"), *queries]
    done = CliRunner().invoke(cli, [*call, "--json"], catch_exceptions=False)
    said = json.loads(done.stdout)
    assert (said["to"], said["path"]) == (kind, str(tmp_path / "out"))
    root = tmp_path / "out" if kind == "sentence-transformers" else tmp_path
    assert said["files"] == {name: (root / name).stat().st_size for name in said["files"]}
    assert files is None or sorted(said["files"]) == files
    with pytest.raises(ExistsError, match="already exists"):
        CliRunner().invoke(cli, call, catch_exceptions=False)
    if kind != "sentence-transformers":  # files are replaced where that is asked for, folders never
        done = CliRunner().invoke(cli, [*call, "--force"], catch_exceptions=False)
        assert done.stdout.startswith("written ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--to", "faiss", "--queries", "x"], "--queries applies to --to trec-run"),
        (["--to", "parquet", "-k", "3"], "-k applies to --to trec-run"),
        (["--to", "parquet", "--model", "m"], "--model applies to --to sentence-transformers and trec-run"),
        (["--to", "sentence-transformers", "--backend", "torch"], "--backend applies to --to trec-run"),
        (["--to", "sentence-transformers", "--force"], "--force applies to --to faiss and parquet and trec-run"),
        (["--to", "trec-run"], "needs --queries"),
        (["--to", "onnx"], "'onnx' is not one of"),
        ([], "Missing option '--to'"),
    ],
)
def test_an_option_that_does_nothing_is_wrong_usage(arguments: list[str], message: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(cli, ["export", "index", "-o", str(tmp_path / "out"), *arguments])
    assert done.exit_code == 2
    assert message in done.stderr


def test_a_folder_that_is_there_is_an_error(index: Path, tmp_path: Path) -> None:
    call = ["export", str(index), "--to", "sentence-transformers", "-o", str(tmp_path)]
    with pytest.raises(ExistsError):
        CliRunner().invoke(cli, call, catch_exceptions=False)


@pytest.mark.check
def test_the_example_of_the_page_runs(
    tiny_config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = page("how-to/export")
    code, calls = block(text, "python"), examples(block(text, "sh"))
    assert [call[-1] for call in calls] == ["my-index.faiss", "my-encoder"]
    assert EncoderConfig.model in code
    monkeypatch.chdir(tmp_path)
    config = replace(tiny_config, whitening=WhiteningConfig(shrinkage=0.5))
    build_index(DOCUMENTS, "my-index", config, RunOptions(backend="torch", device="cpu", threads=1))
    for call in calls:
        assert CliRunner().invoke(cli, call, catch_exceptions=False).exit_code == 0
    capsys.readouterr()
    with quiet_transformers():
        exec(code.replace(EncoderConfig.model, tiny_config.encoder.model), {})  # noqa: S102
    by_layers, by_folder = capsys.readouterr().out.splitlines()
    assert by_layers == by_folder
    assert len(json.loads(by_layers.replace("'", '"'))) == 3


@pytest.mark.parametrize("kind", ["HNSW4", "IVF2,Flat"])
def test_the_page_names_the_layer_with_the_parameters(kind: str, tiny_config: BuildConfig, tmp_path: Path) -> None:
    config = replace(tiny_config, index=IndexConfig(type=kind, recall=0.1))
    build_index(DOCUMENTS, tmp_path / "index", config, RunOptions(backend="torch", device="cpu", threads=1))
    call = ["export", str(tmp_path / "index"), "--to", "faiss", "-o", str(tmp_path / "exported")]
    assert CliRunner().invoke(cli, call, catch_exceptions=False).exit_code == 0
    index = faiss.read_index(str(tmp_path / "exported"))
    exec(block(page("how-to/export"), "python", "efSearch"), {"index": index})  # noqa: S102
    assert search_parameters(index) == ({"efSearch": 64} if kind == "HNSW4" else {"nprobe": 16})
