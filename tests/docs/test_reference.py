"""The reference: every command, option, setting, route and public name is on its page, and the pages tell the truth."""

import json
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import faiss
import httpx2
import numpy as np
import pytest

from indexer import BuildConfig, Document, EncoderConfig, build_index, delete_documents
from indexer.ann.parameters import search_parameters, set_search_parameters
from indexer.recipe.corpus_config import ChunkConfig
from indexer.recipe.index_config import IndexConfig, StoreConfig
from indexer.store import layout
from indexer.store.files import FileDigest
from indexer.store.manifest import KNOWN_FEATURES, Manifest, PartEntry, SegmentEntry
from indexer.store.parts import PartRecord
from search import SearchEngine
from tests.docs.generate import MINILM, PAGES, RECIPE_PAGE, description, meanings, regenerated, section_class, sections
from tests.docs.pages import COMMANDS, DOCS, ROOT, SERVED_AT, block, blocks, page
from tests.playground import documents
from tests.search.cli.test_cli import isotrope
from tests.servers import server_process
from tests.test_format1 import DATA
from tests.test_public_names import PACKAGES, exports

FORMAT = page("reference/format")
INTEGRATIONS = ROOT / "search/integrations"


def section(text: str, heading: str) -> str:
    """Return the text below a heading, up to the next heading; there must be one."""
    found = re.search(rf"^#+ {re.escape(heading)}\n(.*?)(?=^#|\Z)", text, re.DOTALL | re.MULTILINE)
    assert found, heading
    return found[1]


@pytest.mark.parametrize("path", [*PAGES, MINILM], ids=lambda path: path.name)
def test_the_generated_parts_are_current(path: Path) -> None:
    assert regenerated(path) == path.read_text(encoding="utf-8"), "run: make docs"


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_and_option_is_documented(name: str) -> None:
    pages = [path.read_text(encoding="utf-8") for path in sorted((DOCS / "reference").glob("commands-*.md"))]
    (home,) = [text for text in pages if f"\n## isotrope {name}\n" in text]
    documented = re.findall(r"^\| (`-[^|]*?) \|", section(home, f"isotrope {name}"), re.MULTILINE)
    for parameter in COMMANDS[name][0].params:
        if isinstance(parameter, click.Option):
            assert any(f"`{parameter.opts[-1]}`" in line for line in documented), parameter.opts


@pytest.mark.parametrize("name", sections())
def test_every_setting_is_documented(name: str) -> None:
    rows = re.findall(
        r"^\| `(\w+)` \| (.+?) \| (.+?) \| (.+) \|$", section(page("reference/recipe"), name), re.MULTILINE
    )
    fields = section_class(name).__dataclass_fields__
    assert [setting for setting, *_ in rows] == list(fields) == list(meanings(section_class(name)))
    assert all(meaning.endswith(".") for *_, meaning in rows)
    if not name.startswith("papers."):
        written = MINILM.read_text(encoding="utf-8").partition(f"\n[{name}]\n")[2].partition("\n[")[0]
        assert re.findall(r"^(\w+) =", written, re.MULTILINE) == list(fields)


def test_every_recipe_loads_by_its_name_and_is_documented() -> None:
    for path in sorted((ROOT / "configs").glob("*.toml")):
        assert BuildConfig.load(path.stem) == BuildConfig.load(path)
        assert f"| `{path.stem}` |" in page("reference/recipe")
    assert RECIPE_PAGE in MINILM.read_text(encoding="utf-8")


def test_every_route_is_documented_with_the_meaning_of_every_field(tmp_path: Path) -> None:
    from search.server.app import serve_engine
    from search.server.http.routes import ERRORS
    from search.server.settings import ServerSettings

    text = page("reference/http")
    served = description()["paths"]
    for path, methods in served.items():
        for method in methods:
            rows = re.findall(r"^\| .* \|$", section(text, f"{method.upper()} {path}"), re.MULTILINE)
            assert not [row for row in rows if row.endswith("|  |")]
    for status in ERRORS:
        assert f"\n| {status} | " in text
    documents = [Document(str(number), "text", vector=np.array([number, 1], np.float32)) for number in range(8)]
    build_index(documents, tmp_path / "index", BuildConfig(encoder=EncoderConfig(kind="vectors")))
    with SearchEngine(tmp_path / "index") as engine:
        assert serve_engine(engine, ServerSettings("index")).api.openapi()["paths"] == served


@pytest.mark.check
def test_the_examples_of_http_and_python_answer_as_the_pages_say(
    playground: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert isotrope("build", "demo/stdlib.jsonl", "demo/index").returncode == 0
    exec(block(page("reference/python"), "python"), {"__name__": "__main__"})  # noqa: S102
    assert capsys.readouterr().out.splitlines()[0].split()[1] == "os.walk"
    text = page("reference/http")
    program, url, option, body = shlex.split(block(text, "sh"))
    assert (program, option) == ("curl", "--json")
    shown, error = (json.loads(each) for each in blocks(text, "json"))
    with server_process("demo/index", cwd=playground) as server:
        answer = server.ask(url.removeprefix(SERVED_AT), json.loads(body))
        refused = httpx2.post(f"{server.url}/v1/search", json={"query": "a", "k": 2000})
    assert refused.json() == error
    assert [each.keys() for each in (answer, answer["index"])] == [each.keys() for each in (shown, shown["index"])]
    for hit, expected in zip(answer["results"][0]["hits"], shown["results"][0]["hits"], strict=True):
        assert (hit["id"], hit.keys()) == (expected["id"], expected.keys())


def test_every_public_name_is_documented_once() -> None:
    documented = re.findall(r"^::: ([\w.]+)$", page("reference/python"), re.MULTILINE)
    names = [f"{package}.{name}" for package in PACKAGES for _, name in exports(package)]
    names += [
        f"search.integrations.{module}.{name}"
        for module in ("haystack", "langchain", "llamaindex", "pyterrier")
        for name in re.findall(r"^class ([A-Z]\w+)", (INTEGRATIONS / f"{module}.py").read_text("utf-8"), re.MULTILINE)
    ]
    assert sorted(documented) == sorted({*names, "search.mteb.IsotropeModel"})


def test_the_format_page_names_every_file_key_and_feature() -> None:
    files = (layout.DOCUMENTS, layout.WINDOWS, layout.EMBEDDINGS, layout.MOMENTS, layout.PART, layout.LOCK)
    made = (layout.manifest_name(1), layout.part_name(0), layout.transform_name(1), layout.segment_name(1, 0))
    for name in (*files, *made, layout.PENDING, layout.PULLED, layout.TEMPORARY):
        assert name in FORMAT
    keys = {key for record in (Manifest, PartEntry, SegmentEntry, PartRecord, FileDigest) for key in fields_of(record)}
    for key in keys | KNOWN_FEATURES:
        assert f"`{key}`" in FORMAT, key


def fields_of(record: Any) -> tuple[str, ...]:
    encoded: tuple[str, ...] = record.__struct_encode_fields__
    return encoded


def test_the_program_of_the_format_page_reads_the_first_index(capsys: pytest.CaptureFixture[str]) -> None:
    with SearchEngine(DATA / "index", model=DATA / "model") as engine:
        assert printed_by_the_program(DATA / "index", capsys) == nearest(engine)


def test_the_program_reads_windows_and_leaves_out_deleted_documents(
    tiny_model: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    encoder = EncoderConfig(model=str(tiny_model("bert")), precision="float32")
    config = BuildConfig(encoder=encoder, chunk=ChunkConfig(tokens=8, overlap=2), store=StoreConfig(part_documents=4))
    texts = [str(row["text"]) for row in documents(10)]
    build_index([Document(f"d{number}", text) for number, text in enumerate(texts)], tmp_path / "index", config)
    delete_documents(tmp_path / "index", ["d0", "d4"])
    with SearchEngine(tmp_path / "index") as engine:
        printed = printed_by_the_program(tmp_path / "index", capsys)
        index, best = engine.index, dict[str, float]()
        vectors, names = index.vectors(np.arange(index.numbering.rows)), list(index.documents.all_ids())
        for document, score in zip(
            index.numbering.documents_of(np.arange(len(vectors))), vectors @ vectors[0], strict=True
        ):
            best[names[document]] = max(float(score), best.get(names[document], -1.0))
    assert printed == sorted(best.items(), key=lambda item: -item[1])[:5]
    assert printed[0] == ("d1", 1.0)


@pytest.mark.parametrize(
    "kind", ["HNSW32", "IVF8,Flat", "IVF1,PQ16x4fs,Refine(SQ8)", "Pad80,IVF4,PQ16x4fs,Refine(SQfp16)", "IVF4,RaBitQ"]
)
def test_the_program_sets_the_parameters_of_every_kind_of_index(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    vectors = np.repeat(np.random.default_rng(0).normal(size=(100, 64)), 5, axis=0).astype(np.float32)
    vectors += np.float32(0.1) * np.random.default_rng(1).normal(size=vectors.shape).astype(np.float32)
    rows = [Document(str(number), "text", vector=vector) for number, vector in enumerate(vectors)]
    config = BuildConfig(encoder=EncoderConfig(kind="vectors"), index=IndexConfig(type=kind, recall=0.1))
    build_index(rows, tmp_path / "index", config)
    read: list[Any] = []

    def read_with_other_parameters(path: str) -> Any:
        read.append(whole(path))
        set_search_parameters(read[0], {name: value + 1 for name, value in search_parameters(read[0]).items()})
        return read[0]

    whole = faiss.read_index
    monkeypatch.setattr(faiss, "read_index", read_with_other_parameters)
    printed = printed_by_the_program(tmp_path / "index", capsys)
    assert {name for name, _ in printed} == {"0", "1", "2", "3", "4"}  # which are close, others are far
    assert min(float(score.expected) for _, score in printed) > 0.9
    with SearchEngine(tmp_path / "index") as engine:
        wanted = engine.index.manifest.segments[0].search_parameters
    assert search_parameters(read[0]) == wanted


def printed_by_the_program(index: Path, capsys: pytest.CaptureFixture[str]) -> list[tuple[str, Any]]:
    exec(block(FORMAT, "python").replace('"demo/index"', repr(str(index))), {"__name__": "__main__"})  # noqa: S102
    lines = [line.split(" ", 1) for line in capsys.readouterr().out.splitlines()]
    return [(name, pytest.approx(float(score), abs=2e-3)) for score, name in lines]


def nearest(engine: SearchEngine) -> list[tuple[str, float]]:
    first = next(engine.index.documents.all_ids())
    return [(first, 1.0), *((hit.id, hit.score) for hit in engine.neighbours(first, k=4))]
