"""Commands on an index whose model is behind an embedding server."""

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from indexer.encoders.server.probes import PROBE_TOKENS
from tests.embedding_servers import StubServer, status, stub_server
from tests.search.cli.test_cli import isotrope
from tests.servers import live_server

SERVER = ("encoder.kind=server", "encoder.model=m")


def settings(stub: StubServer) -> list[str]:
    return [part for setting in (*SERVER, f"encoder.url={stub.url}") for part in ("--set", setting)]


@pytest.fixture(scope="module")
def stub() -> Iterator[StubServer]:
    with stub_server() as running:
        yield running


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("corpus") / "docs.jsonl"
    rows = [
        {"_id": f"d{n}", "title": f"Whale {n}", "text": f"It sings {n % 5} songs in sea {n % 3}"} for n in range(60)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture(scope="module")
def index(stub: StubServer, corpus: Path) -> Path:
    done = isotrope("build", corpus, corpus.with_name("index"), *settings(stub), "--requests", "2", "--quiet")
    assert done.returncode == 0, done.stderr
    assert f"server {stub.url.split('/')[2]}" in done.stdout
    assert "token counts are estimates" in done.stderr
    return corpus.with_name("index")


def test_inspect_names_the_server(index: Path, stub: StubServer) -> None:
    shown = " ".join(isotrope("inspect", index).stdout.split())
    assert f"encoder kind server, at {stub.url}" in shown
    assert "truncated" not in shown


@pytest.mark.parametrize(
    "call",
    [
        ["verify", "INDEX"],
        ["query", "INDEX", "whale 3", "--json"],
        ["query", "INDEX", "--like", "d3"],
        ["query", "INDEX", "whale 3", "--hybrid", "--prompt", "ask: "],
        ["dedup", "INDEX", "--threshold", "0.99"],
        ["evaluate", "recall", "INDEX"],
        ["report", "INDEX", "-o", "report.html"],
        ["tune", "INDEX"],
        ["tune", "CORPUS", "SERVER"],
        ["export", "INDEX", "--to", "parquet", "-o", "vectors"],
        ["refit", "INDEX", "--set", "whitening.strength=0.5"],
    ],
)
def test_commands_that_read_or_encode_work(
    call: list[str], index: Path, corpus: Path, stub: StubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"INDEX": [str(index)], "CORPUS": [str(corpus)], "SERVER": settings(stub)}
    done = isotrope(*(word for part in call for word in names.get(part, [part])))
    assert done.returncode == 0, done.stderr
    assert done.stdout


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (["export", "INDEX", "--to", "sentence-transformers", "-o", "out"], "the model is behind a server, so there"),
        (["build", "CORPUS", "new", "SERVER", "--set", "encoder.pooling=cls"], 'pooling is "cls", but encoder.kind is'),
        (["build", "CORPUS", "new", "SERVER", "--backend", "torch"], "leave out --backend"),
        (["build", "CORPUS", "new", "SERVER", "--requests", "0"], "requests is 0"),
        (["query", "INDEX", "whale", "--model", "folder"], "--model: .* is not the URL of a server"),
        (["train", "int8", "CORPUS", "-o", "out", "SERVER"], "int8"),
    ],
)
def test_what_a_server_cannot_do_is_refused(
    call: list[str], said: str, index: Path, corpus: Path, stub: StubServer, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    names = {"INDEX": [str(index)], "CORPUS": [str(corpus)], "SERVER": settings(stub)}
    done = isotrope(*(word for part in call for word in names.get(part, [part])))
    assert done.returncode == 1
    assert done.stderr.startswith("error: ")
    assert re.search(said, done.stderr), done.stderr
    assert not (tmp_path / "out").exists()


def test_an_index_behind_a_server_is_served(index: Path, stub: StubServer) -> None:
    with live_server(index) as server:
        assert server.search(query="whale 4", k=1)["results"][0]["hits"]
        answer = server.client.post("/v1/embeddings", json={"model": "tests", "input": ["whale"]}).json()
        assert len(answer["data"][0]["embedding"]) == server.client.get("/v1/models").json()["data"][0]["dimensions"]
        stub.faults = [status(401, "no key")]
        refused = server.client.post("/v1/search", json={"query": "another whale"})
        assert refused.status_code in (400, 422, 500, 503)
        assert "sk-" not in refused.text


# --- plans

PLAN = ["plan", "--documents", "1M", "--tokens", "400", "--set", "encoder.kind=server", "--model", "m", "--set",
        "encoder.url=https://embeddings.example", "--set", "encoder.truncate_dim=256"]  # fmt: skip


def test_a_plan_counts_the_tokens_and_their_price() -> None:
    done = isotrope(*PLAN, "--price-per-million-tokens", "0.13", "--json")
    figures, requests = json.loads(done.stdout)["figures"], -(-1_000_000 // 31)
    assert figures["encode.requests"] == requests
    assert figures["encode.tokens"] == 1_000_000 * 400 + requests * PROBE_TOKENS
    assert figures["money.build"] == figures["money.tokens"] == figures["encode.tokens"] / 1e6 * 0.13
    assert "encode.flops_a_row" not in figures
    assert figures["storage.embeddings"] > 4 * 256 * 1_000_000
    assert "the time of the server's answers is not covered" in json.loads(done.stdout)["notes"][0]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        ([*PLAN, "--set", "encoder.truncate_dim=0"], "does not ask the server for the dimensions of m"),
        ([*PLAN, "--gpus", "2"], "--gpus is 2, but m runs on a server"),
        (
            [*PLAN, "--price-per-million-tokens", "-1"],
            "--price-per-million-tokens is -1.0; expected an amount of money",
        ),
        (["plan", "--documents", "1M", "--price-per-million-tokens", "1"], 'expected encoder.kind = "server"'),
    ],
)
def test_a_plan_that_does_not_suit_a_server_is_refused(call: list[str], said: str) -> None:
    done = isotrope(*call)
    assert (done.returncode, said in done.stderr) == (1, True), done.stderr
