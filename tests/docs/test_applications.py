"""The examples of applications, integrations, servers and agents run."""

import asyncio
import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import pytest
from fastapi.testclient import TestClient
from mcp import Client, StdioServerParameters

from indexer.recipe.config import BuildConfig
from indexer.transforms import whitening
from search.cli import LazyGroup
from tests.docs.pages import COMMANDS, DOCS, ROOT, SERVED_AT, block, blocks, examples, page
from tests.hubs import FakeHub
from tests.search.cli.test_cli import ISOTROPE, Done, isotrope
from tests.servers import server_process
from tests.tiny_models import make_tiny_cross_encoder


@pytest.mark.check
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # in PyTerrier's own code
@pytest.mark.parametrize(
    ("name", "module", "printed"),
    [("langchain", "langchain_core", ""), ("haystack", "haystack", "0.965 Bees dance"),
     ("llamaindex", "llama_index.core", "Bees dance"), ("pyterrier", "pyterrier", "whitened")],
)  # fmt: skip
def test_the_examples_of_the_integrations_run(
    name: str, module: str, printed: str, playground: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(module, reason=f"needs the extra isotrope[{name}]")
    assert isotrope("build", "demo/stdlib.jsonl", "demo/index").returncode == 0
    text = page(f"how-to/{name}")
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(code, {"__name__": "__main__"})  # noqa: S102
        shown = capsys.readouterr().out
        assert shown
        assert printed in shown


@pytest.mark.check
def test_what_the_page_sends_to_a_server_is_answered(playground: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert isotrope("build", "demo/stdlib.jsonl", "demo/index").returncode == 0
    with server_process("demo/index", cwd=playground) as server:
        for line in block(page("how-to/applications"), "sh", "/v1/search").splitlines():
            program, url, *options = shlex.split(line)
            assert (program, options[:1] in ([], ["--json"])) == ("curl", True)
            body = json.loads(options[1]) if options else None
            answer = server.ask(url.removeprefix(SERVED_AT), body)
            if "/v1/search" in url:
                assert all(result["hits"] for result in answer["results"]), line
            elif "/v1/facets" in url:
                assert all(column["documents"] for column in answer["columns"]), line
        exec(block(page("how-to/applications"), "python", "from openai").replace(SERVED_AT, server.url), {"__name__": "__main__"})  # noqa: S102
        printed = capsys.readouterr().out.splitlines()
        assert [line.split()[1] for line in printed[1:]] == ["os.walk", "os.fwalk"]
        exec(block(page("how-to/applications"), "python", "SearchClient").replace(SERVED_AT, server.url), {"__name__": "__main__"})  # noqa: S102
    printed = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r'Answer\(2 hits: 0\.\d+ os\.walk ".+", 0\.\d+ os\.fwalk ".+"\)', printed[0])
    assert printed[1] == "['os.walk', 'os.fwalk']"
    assert re.fullmatch(r"\(1, \d+\)", printed[2])
    assert (printed[3].startswith("Answer(3 hits: "), printed[4]) == (True, "Directory tree generator.")


@pytest.mark.check
def test_the_web_applications_of_the_serving_page_answer(playground: Path) -> None:
    assert isotrope("build", "demo/stdlib.jsonl", "demo/index").returncode == 0
    with server_process("demo/index", cwd=playground) as server:
        asking = block(page("how-to/search-site"), "python", "AsyncSearchClient").replace(SERVED_AT, server.url)
        answers = [answers_of(code) for code in (asking, block(page("how-to/search-site"), "python", "SearchEngine"))]
    for found, blank, similar in answers:
        assert [hit["id"] for hit in found.json()] == ["os.walk", "os.fwalk"]
        assert (blank.status_code, blank.json()["detail"]) == (422, "query 1 is blank; expected some text.")
        assert similar.status_code == 404 or similar.json()[0] == "os.fwalk"
    assert answers_of(asking)[0].status_code == 503  # the server has stopped


def answers_of(code: str) -> list[Any]:
    """Return the answers of a web application to a query, a blank query, and a document."""
    names: dict[str, Any] = {"__name__": "app"}
    exec(code, names)  # noqa: S102
    with TestClient(names["app"]) as client:
        paths = ("/search?q=walk a directory tree&k=2", "/search?q= ", "/similar/os.walk")
        return [client.get(path) for path in paths]


@pytest.mark.check
def test_the_configuration_of_an_agent_starts_the_server(playground: Path) -> None:
    assert isotrope("build", "demo/stdlib.jsonl", "demo/index").returncode == 0
    (server,) = json.loads(block(page("how-to/applications"), "json"))["mcpServers"].values()
    assert server == {"command": "isotrope", "args": ["mcp", "/path/to/index"]}
    arguments = [*ISOTROPE[1:], server["args"][0], str(playground / "demo/index")]

    async def ask() -> None:
        started = StdioServerParameters(command=ISOTROPE[0], args=arguments, env={"PYTHONPATH": str(ROOT)})
        async with Client(started) as client:
            found = await client.call_tool("search", {"query": "shuffle a list"})
            assert "random.Random.shuffle" in [hit["id"] for hit in found.structured_content["results"]]

    asyncio.run(ask())


@pytest.mark.check
def test_a_local_task_of_mteb_scores_as_the_page_says(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(block(page("benchmarks"), "python", "AbsTaskRetrieval").replace("../shared", str(shared)), {"__name__": "__main__"})  # noqa: S102
    printed = capsys.readouterr().out.split()[-1]
    assert f"prints {printed};" in page("benchmarks")
