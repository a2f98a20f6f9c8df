"""Documentation that cannot rot: the README's commands and library example run, every command is documented."""

import asyncio
import json
import re
import shlex
import shutil
import subprocess
import sys
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
from search.cli import LazyGroup, cli
from tests.hubs import FakeHub
from tests.playground import lay_out
from tests.search.cli.test_cli import ISOTROPE, Done, isotrope
from tests.servers import server_process
from tests.tiny_models import make_tiny_cross_encoder

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PYTHON = (ROOT / "docs" / "python.md").read_text(encoding="utf-8")
SERVING = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
SERVED_AT = "http://127.0.0.1:8080"  # in examples


def overview(group: LazyGroup, prefix: str = "") -> dict[str, tuple[click.Command, str]]:
    """Return every command by its full name, commands of groups after the group, with its line in the overview."""
    found: dict[str, tuple[click.Command, str]] = {}
    for name, (_, line) in group.commands_at.items():
        command = group.get_command(click.Context(group), name)
        assert command is not None
        found[prefix + name] = (command, line)
        if isinstance(command, LazyGroup):
            found |= overview(command, f"{prefix}{name} ")
    return found


assert isinstance(cli, LazyGroup)
COMMANDS = overview(cli)


def examples(text: str) -> list[list[str]]:
    """Return every line that calls isotrope as words, without pipes and redirections."""
    lines = [line.strip().removeprefix("$ ") for line in text.splitlines()]
    calls = [line.split(" | ")[-1].split(" < ")[0] for line in lines if re.match(r"(\w+ .*\| )?isotrope ", line)]
    return [shlex.split(call)[1:] for call in calls]


def block(language: str, holds: str = "", page: str = README) -> str:
    """Return the first fenced block of a page, by default the README, in this language that contains a text."""
    found = [code for code in re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL) if holds in code]
    assert found, language
    return str(found[0])


@pytest.fixture
def playground(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with the names in the examples, some of which start Ray."""
    lay_out(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    if (ray := sys.modules.get("ray")) is not None:
        ray.shutdown()


@pytest.mark.parametrize("part", ["an index's life", pytest.param("all", marks=pytest.mark.check)])
def test_the_commands_of_the_readme_run(part: str, playground: Path) -> None:
    calls = examples(block("console"))
    changing = {"add", "delete", "sync", "refit", "compact"}
    reading = {"query", "inspect", "verify", "dedup", "evaluate", "tune", "report", "doctor"}
    assert {call[0] for call in calls} == {"build", "encode-parts"} | reading | changing
    for call in calls:
        if part != "all" and call[0] in ("evaluate", "tune", "report"):
            continue
        if call[0] in changing and not Path("my-index").exists():
            assert "\n$ cp -r demo/index my-index\n" in block("console")
            shutil.copytree("demo/index", "my-index")
        piped = (playground / ("demo/stdlib.jsonl" if call[0] == "build" else "questions.txt")).read_text()
        done = isotrope(*call, stdin=piped)
        assert done.returncode == 0, (call, done.stderr)
        assert done.stdout


def test_the_five_lines_of_the_readme_print_what_it_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whitening, "ROWS_PER_DIRECTION", 2)  # which `conftest` lowers
    (code, printed), *_ = re.findall(r"```python\n(.*?)```\n\n```\n(.*?)```", README, re.DOTALL)
    exec(code, {"__name__": "__main__"})  # noqa: S102 - in this process, which has loaded the libraries
    score, text = capsys.readouterr().out.split(maxsplit=1)
    assert text == printed.split(maxsplit=1)[1]
    assert abs(float(score) - float(printed.split()[0])) < 0.01  # bfloat16 and float32 differ


@pytest.mark.parametrize("part", ["texts and frames", pytest.param("all", marks=pytest.mark.check)])
def test_the_examples_of_the_python_page_run(part: str, playground: Path, capsys: pytest.CaptureFixture[str]) -> None:
    blocks = [code for code in re.findall(r"```(?:python)?\n(.*?)```", PYTHON, re.DOTALL) if "import" in code]
    assert len(blocks) > 8
    if part == "all":
        assert isotrope("build", "demo/stdlib.jsonl", "demo/index").returncode == 0
    for code in blocks[: None if part == "all" else 2]:
        exec(code, {"__name__": "__main__"})  # noqa: S102
        assert capsys.readouterr().out


@pytest.mark.check
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")  # in PyTerrier's own code
@pytest.mark.parametrize(
    ("page", "module", "printed"),
    [("langchain", "langchain_core", ""), ("haystack", "haystack", "0.965 Bees dance"),
     ("llamaindex", "llama_index.core", "Bees dance"), ("pyterrier", "pyterrier", "whitened")],
)  # fmt: skip
def test_the_examples_of_the_integrations_run(
    page: str, module: str, printed: str, playground: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip(module, reason=f"needs the extra isotrope[{page}]")
    assert isotrope("build", "demo/stdlib.jsonl", "demo/index").returncode == 0
    text = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
    for code in re.findall(r"```python\n(.*?)```", text, re.DOTALL):
        exec(code, {"__name__": "__main__"})  # noqa: S102
        shown = capsys.readouterr().out
        assert shown
        assert printed in shown


@pytest.mark.check
def test_what_the_readme_sends_to_a_server_is_answered(playground: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert isotrope("build", "demo/stdlib.jsonl", "demo/index").returncode == 0
    with server_process("demo/index", cwd=playground) as server:
        for line in block("sh", "/v1/search").splitlines():
            program, url, *options = shlex.split(line)
            assert (program, options[:1] in ([], ["--json"])) == ("curl", True)
            body = json.loads(options[1]) if options else None
            answer = server.ask(url.removeprefix(SERVED_AT), body)
            if "/v1/search" in url:
                assert all(result["hits"] for result in answer["results"]), line
            elif "/v1/facets" in url:
                assert all(column["documents"] for column in answer["columns"]), line
        exec(block("python", "from openai").replace(SERVED_AT, server.url), {"__name__": "__main__"})  # noqa: S102
        printed = capsys.readouterr().out.splitlines()
        assert [line.split()[1] for line in printed[1:]] == ["os.walk", "os.fwalk"]
        exec(block("python", "SearchClient").replace(SERVED_AT, server.url), {"__name__": "__main__"})  # noqa: S102
    printed = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r'Answer\(2 hits: 0\.\d+ os\.walk ".+", 0\.\d+ os\.fwalk ".+"\)', printed[0])
    assert printed[1] == "['os.walk', 'os.fwalk']"
    assert re.fullmatch(r"\(1, \d+\)", printed[2])
    assert (printed[3].startswith("Answer(3 hits: "), printed[4]) == (True, "Directory tree generator.")


@pytest.mark.check
def test_the_web_applications_of_the_serving_page_answer(playground: Path) -> None:
    assert isotrope("build", "demo/stdlib.jsonl", "demo/index").returncode == 0
    with server_process("demo/index", cwd=playground) as server:
        asking = block("python", "AsyncSearchClient", SERVING).replace(SERVED_AT, server.url)
        answers = [answers_of(code) for code in (asking, block("python", "SearchEngine", SERVING))]
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
def test_the_configuration_of_an_agent_in_the_readme_starts_the_server(playground: Path) -> None:
    assert isotrope("build", "demo/stdlib.jsonl", "demo/index").returncode == 0
    (server,) = json.loads(block("json"))["mcpServers"].values()
    assert server == {"command": "isotrope", "args": ["mcp", "/path/to/index"]}
    arguments = [*ISOTROPE[1:], server["args"][0], str(playground / "demo/index")]

    async def ask() -> None:
        started = StdioServerParameters(command=ISOTROPE[0], args=arguments, env={"PYTHONPATH": str(ROOT)})
        async with Client(started) as client:
            found = await client.call_tool("search", {"query": "shuffle a list"})
            assert "random.Random.shuffle" in [hit["id"] for hit in found.structured_content["results"]]

    asyncio.run(ask())


@pytest.mark.check
def test_the_examples_of_the_hub_page_run(playground: Path, hub: FakeHub, capsys: pytest.CaptureFixture[str]) -> None:
    page = (ROOT / "docs/hub.md").read_text(encoding="utf-8")
    assert isotrope("build", "demo/stdlib.jsonl", "demo/index").returncode == 0
    for call in examples(re.sub(r" +#.*", "", block("console", page=page))):
        done = isotrope(*call)
        assert (done.returncode, bool(done.stdout)) == (0, True), (call, done.stderr)
    exec(block("python", page=page), {"__name__": "__main__"})  # noqa: S102
    assert capsys.readouterr().out.splitlines()[1].split()[1] == "os.walk"
    assert [repository.private for repository in hub.repositories.values()] == [False, True]


@pytest.mark.parametrize("part", ["the first commands", pytest.param("all", marks=pytest.mark.check)])
def test_the_examples_of_the_page_about_files_run(
    part: str, playground: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs/files.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```console\n(.*?)```", page, re.DOTALL)
    for text in blocks[: None if part == "all" else 1]:
        for call in examples(text):
            done = isotrope(*call)
            assert (done.returncode, bool(done.stdout)) == (0, True), (call, done.stderr)
    (answer,) = re.findall(r"\n```\n(when does .*?)\n```", page, re.DOTALL)
    printed = isotrope(*examples(blocks[0])[1]).stdout
    ids = re.compile(r"^ *-?\d\.\d{3}  (\S+?)(?:[:#]\S+)?  ", re.MULTILINE)
    assert ids.findall(printed) == ids.findall(answer) == ["home/ferry.md"]
    if part == "all":
        exec(block("python", page=page), {"__name__": "__main__"})  # noqa: S102
        assert "home/ferry.md" in capsys.readouterr().out


@pytest.mark.check
def test_a_local_task_of_mteb_scores_as_the_readme_says(shared: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(block("python", "AbsTaskRetrieval").replace("../shared", str(shared)), {"__name__": "__main__"})  # noqa: S102
    printed = capsys.readouterr().out.split()[-1]
    assert f"prints {printed};" in README


@pytest.mark.parametrize("name", [name for name in COMMANDS if not isinstance(COMMANDS[name][0], LazyGroup)])
def test_every_command_is_in_the_readme(name: str) -> None:
    assert f"| `isotrope {name} " in README


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_help_says_the_same_as_the_overview_and_has_an_example(name: str) -> None:
    command, line = COMMANDS[name]
    assert (command.help or "").splitlines()[0] == line
    assert examples(command.help or "")
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            assert parameter.help, parameter.name


@pytest.mark.check
@pytest.mark.parametrize("part", ["first", "measuring"])
def test_the_examples_of_the_helps_run(
    part: str, playground: Path, tiny_model: Callable[[str], Path], hub: FakeHub
) -> None:
    """Run them unchanged, in order, on the files they name."""
    (playground / "dumps").mkdir()
    prepare_parquet(playground / "dumps/a.parquet")
    prepare_bin_model(tiny_model("bert"), playground / "old-model")
    make_tiny_cross_encoder(playground / "cross-encoder")
    if part == "measuring":
        assert isotrope("build", "demo/stdlib.jsonl", "demo/index").returncode == 0
    assert isotrope("build", "docs.jsonl", "my-index").returncode == 0
    for name, (command, _) in COMMANDS.items():
        if name.startswith(("evaluate", "tune", "report", "train")) != (part == "measuring"):
            continue
        for call in examples(command.help or ""):
            if call[0] == "serve" or "--http" in call or "--watch" in call:
                continue  # it answers until it is stopped: tests/search/server
            with answering(call) as arguments:
                done: Done = isotrope(*arguments, stdin="one line\nand another\n")
            assert done.returncode == 0, (call, done.stderr)


@contextmanager
def answering(call: list[str]) -> Iterator[list[str]]:
    """Run a call unchanged, except that --url names a server of the demo's index."""
    if "--url" not in call:
        yield call
        return
    with server_process(Path("demo/index").resolve()) as server:
        place = call.index("--url") + 1
        yield [*call[:place], server.url, *call[place + 1 :]]


def prepare_parquet(path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"id": ["a", "b"], "body": ["Some text.", "Other text."]}), path)


def prepare_bin_model(source: Path, target: Path) -> None:
    import shutil

    import torch
    from safetensors.torch import load_file

    shutil.copytree(source, target)
    torch.save(load_file(target / "model.safetensors"), target / "pytorch_model.bin")
    (target / "model.safetensors").unlink()


def test_every_recipe_loads_by_its_name_and_is_in_the_readme() -> None:
    for path in sorted((ROOT / "configs").glob("*.toml")):
        assert BuildConfig.load(path.stem) == BuildConfig.load(path)
        assert f"`configs/{path.name}`" in README


def test_every_command_has_an_example_on_the_index_or_the_corpus_of_the_demo() -> None:
    others = ("layers", "methods", "retrieval", "rte", "whiteningbert")  # they measure on data sets of their own
    none = {"convert", "demo-corpus", "doctor", "evaluate", "plan", "recipe", *(f"evaluate {name}" for name in others)}
    without = {
        name for name, (command, _) in COMMANDS.items() if not re.search(r"isotrope .* demo/", command.help or "")
    }
    assert without <= none


def test_the_format_page_names_every_file_of_an_index() -> None:
    from indexer.store import layout

    for name in (layout.DOCUMENTS, layout.WINDOWS, layout.EMBEDDINGS, layout.MOMENTS, layout.PART, layout.LOCK):
        assert name in README
    for name in (layout.manifest_name(1), layout.part_name(0), layout.transform_name(1), layout.segment_name(1, 0)):
        assert name in README


def test_the_architecture_page_names_only_files_that_exist() -> None:
    tops = [ROOT / name for name in ("benchmarks", "indexer", "search", "tests")]
    paths = [*tops, *(path for top in tops for path in top.rglob("*"))]
    names_there = [f"{path}/" if path.is_dir() else str(path) for path in paths]
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    names = re.findall(r"`([\w/]+\.py|[\w/]+/)`", page)
    assert len(names) > 100
    assert [name for name in names if not any(path.endswith(f"/{name}") for path in names_there)] == []


def test_no_machine_path_or_registry_host_is_in_the_repository() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("needs git, which lists the files of the repository")
    tracked = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT, check=True)
    files = [name for name in tracked.stdout.split("\0") if (ROOT / name).is_file()]  # and no link to a folder
    names = [name for name in files if not name.startswith("tests/data/")]
    hosts = re.compile("pypi" + r"\.org|files\.pythonhosted|download\." + r"pytorch\.org|/(work|root)/\w")
    for name in names:
        text = (ROOT / name).read_text(encoding="utf-8", errors="replace")  # a picture is no text, and is looked at too
        assert not hosts.search(text), name
