"""The examples of questions, applications, frameworks, servers, agents and Python run and print what the pages show."""

import asyncio
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from mcp import Client, StdioServerParameters

from indexer.recipe.config import BuildConfig
from indexer.transforms import whitening
from tests.docs.pages import ROOT, SERVED_AT, block, blocks, examples, page
from tests.docs.walk import agrees
from tests.embedding_servers import stub_server
from tests.search.cli.test_cli import ISOTROPE, isotrope
from tests.servers import server_process

_NAME = re.compile(r"[a-zA-Z][\w.]+")


def programs(name: str) -> list[tuple[str, str]]:
    """Return each Python program of a page with the output that the page shows for it, or none."""
    found = re.findall(r"```python\n(.*?)```\n(?:\n```\n(.*?)```\n)?", page(name), re.DOTALL)
    assert found
    return [(code, shown) for code, shown in found]


def run(code: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a program as a script and return what it prints."""
    capsys.readouterr()
    exec(code, {"__name__": "__main__"})  # noqa: S102
    return capsys.readouterr().out


def assert_shown(shown: str, code: str, printed: str) -> None:
    """Compare an output with the page's: only its names, in any order, if the index of the demo is another one here."""
    if "demo/index" in code or SERVED_AT in code:
        assert sorted(_NAME.findall(printed)) == sorted(_NAME.findall(shown)), code
    else:
        assert agrees(shown, printed), (code, printed)


@pytest.mark.check
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # in PyTerrier's own code
@pytest.mark.parametrize(
    ("name", "module"),
    [("langchain", "langchain_core"), ("haystack", "haystack"), ("llamaindex", "llama_index.core"),
     ("pyterrier", "pyterrier")],
)  # fmt: skip
def test_the_examples_of_the_integrations_print_what_the_page_shows(
    name: str, module: str, playground: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whitening, "ROWS_PER_DIRECTION", 2)  # which `conftest` lowers
    pytest.importorskip(module, reason=f"needs the extra isotrope[{name}]")
    assert isotrope("build", "demo/stdlib.jsonl", "demo/index").returncode == 0
    for code, shown in programs(f"how-to/{name}"):
        assert shown
        assert_shown(shown, code, run(code, capsys))


@pytest.mark.parametrize("part", ["texts and frames", pytest.param("all", marks=pytest.mark.check)])
def test_the_examples_of_the_python_page_print_what_it_shows(
    part: str, playground: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whitening, "ROWS_PER_DIRECTION", 2)  # which `conftest` lowers
    found = programs("how-to/python")
    if part == "all":
        assert isotrope("build", "demo/stdlib.jsonl", "demo/index").returncode == 0
    for code, shown in found[: None if part == "all" else 2]:
        printed = run(code, capsys)
        if not shown:
            assert "run_tune" in code
            assert float(printed.split()[0]) == 1
        elif "suggest_thresholds" in code:  # other pairs, of another corpus
            line = re.compile(r"^[\d.]+: [\d,]+ pairs, [\d,]+ documents to drop$", re.MULTILINE)
            assert len(line.findall(printed)) == len(line.findall(shown)) == 6
        else:
            assert_shown(shown, code, printed)


@pytest.mark.check
def test_what_the_page_sends_to_a_server_is_answered(playground: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert isotrope("build", "demo/stdlib.jsonl", "demo/index").returncode == 0
    text = page("how-to/applications")
    lines = [line for code in blocks(text, "sh", "curl ") for line in code.splitlines()]
    assert len(lines) == 7
    clients = [(code, shown) for code, shown in programs("how-to/applications") if shown]
    assert ["openai" in code for code, _ in clients] == [False, True]
    with server_process("demo/index", cwd=playground) as server:
        for line in lines:
            program, url, *options = shlex.split(line)
            assert (program, options[:1] in ([], ["--json"])) == ("curl", True)
            body = json.loads(options[1]) if options else None
            answer = server.ask(url.removeprefix(SERVED_AT), body)
            if "/v1/search" in url:
                assert all(result["hits"] for result in answer["results"]), line
            elif "/v1/facets" in url:
                assert all(column["documents"] for column in answer["columns"]), line
            if line == lines[0]:
                (shown,) = json.loads(block(text, "json", '"results"'))["results"]
                (hit,), (wanted,) = answer["results"][0]["hits"], shown["hits"]
                assert (hit["id"], hit["text"], set(hit)) == (wanted["id"], wanted["text"], set(wanted))
        for code, shown in clients:
            assert_shown(shown, code, run(code.replace(SERVED_AT, server.url), capsys))


@pytest.mark.check
def test_the_web_applications_of_the_page_answer(playground: Path) -> None:
    assert isotrope("build", "demo/stdlib.jsonl", "demo/index").returncode == 0
    text = page("how-to/applications")
    wanted = json.loads(block(text, "json", '[{"id"'))
    with server_process("demo/index", cwd=playground) as server:
        asking = block(text, "python", "lifespan").replace(SERVED_AT, server.url)
        answers = [answers_of(code) for code in (asking, block(text, "python", "run_in_threadpool"))]
    for found, blank, similar in answers:
        assert [(hit["id"], set(hit)) for hit in found.json()] == [(hit["id"], set(hit)) for hit in wanted]
        assert (blank.status_code, blank.json()["detail"]) == (422, "query 1 is blank; expected some text.")
        assert similar.status_code == 404 or similar.json()[0] == "os.fwalk"
    assert answers_of(asking)[0].status_code == 503  # the server has stopped


def answers_of(code: str) -> list[Any]:
    """Return the answers of a web application to a query, a blank query, and a document."""
    names: dict[str, Any] = {"__name__": "app"}
    exec(code, names)  # noqa: S102
    with TestClient(names["app"]) as client:
        paths = ("/search?q=shuffle+a+list&k=2", "/search?q= ", "/similar/os.walk")
        return [client.get(path) for path in paths]


@pytest.mark.check
def test_the_configuration_of_an_agent_starts_the_server(playground: Path) -> None:
    assert isotrope("build", "demo/stdlib.jsonl", "demo/index").returncode == 0
    (server,) = json.loads(block(page("how-to/applications"), "json", "mcpServers"))["mcpServers"].values()
    assert server == {"command": "isotrope", "args": ["mcp", "/path/to/index"]}
    arguments = [*ISOTROPE[1:], server["args"][0], str(playground / "demo/index")]

    async def ask() -> None:
        started = StdioServerParameters(command=ISOTROPE[0], args=arguments, env={"PYTHONPATH": str(ROOT)})
        async with Client(started) as client:
            found = await client.call_tool("search", {"query": "shuffle a list"})
            assert "random.Random.shuffle" in [hit["id"] for hit in found.structured_content["results"]]

    asyncio.run(ask())


def test_the_commands_of_the_page_about_embedding_servers_run(playground: Path) -> None:
    with stub_server() as stub:
        for console in blocks(page("how-to/embedding-servers"), "sh", "isotrope "):
            for call in examples(console):
                done = isotrope(*(word.replace("http://127.0.0.1:8000/v1", stub.url) for word in call))
                assert (done.returncode, bool(done.stdout)) == (0, True), (call, done.stderr)


def test_the_recipe_on_the_page_about_embedding_servers_is_the_shipped_one(tmp_path: Path) -> None:
    path = tmp_path / "server.toml"
    path.write_text(block(page("how-to/embedding-servers"), "toml"))
    assert BuildConfig.load(path) == BuildConfig.load("server")


@pytest.mark.check
def test_the_first_commands_of_the_page_about_a_site_build_an_index_that_answers(playground: Path) -> None:
    console = blocks(page("how-to/search-site"), "sh")
    assert [call[0] for call in examples(console[0])] == ["demo-corpus", "build", "serve"]
    (playground / "keys.txt").write_text("a-key-of-sixteen-characters\n")
    (playground / "keys.txt").chmod(0o600)
    assert isotrope(*examples(console[0])[1]).returncode == 0
    with server_process("demo/index", "--api-key-file", "keys.txt", cwd=playground) as server:
        (call,) = examples("\n".join(code for code in console if "--url" in code))
        done = isotrope(*(server.url if word == SERVED_AT else word for word in call))
        assert (done.returncode, "os.walk" in done.stdout) == (0, True), done.stderr


@pytest.mark.check
def test_a_local_task_of_mteb_scores_as_the_page_says(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = run(block(page("benchmarks"), "python", "AbsTaskRetrieval").replace("../shared", str(shared)), capsys)
    assert f"prints {printed.split()[-1]};" in page("benchmarks")
