"""Isotrope's API over a real connection returns the answers of the command line."""

import asyncio
import errno
import json
import logging
import re
import shutil
import socket
from collections.abc import Sequence
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from indexer import BuildConfig, Document, build_index
from indexer.recipe.config import EncoderConfig
from indexer.store import layout
from indexer.store.documents import DocumentReader
from search import SearchEngine
from search.result_files import to_json
from search.server.http import answers
from search.server.http.messages import SearchRequest
from search.server.settings import ServerSettings
from tests.documents import DOCUMENTS
from tests.search.cli.test_cli import isotrope
from tests.servers import ADMIN_KEY, LiveServer, keys, live_server
from tests.waiting import PATIENCE, wait_until

ODD_IDS = ["a/b", "a%2Fb", "..", "../x", "a b", "ä\u0301", "#?&", "%", "\\", "'\"", "v1/search", "x\ny"]
NOT_IN_A_PATH = ("..", "x\ny")  # clients resolve .. as the parent folder


@pytest.fixture(scope="module")
def server(served_folder: Path) -> Any:
    with live_server(served_folder, queries=8, k=20, hits=60, characters=200) as live:
        yield live


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        ({}, []),
        ({"k": 3}, ["-k", "3"]),
        ({"where": "year > 1992"}, ["--where", "year > 1992"]),
        ({"group_by": "year", "exact": True}, ["--group-by", "year", "--exact"]),
        ({"hybrid": True}, ["--hybrid"]),
        ({"hybrid": True, "hybrid_weight": 0.8}, ["--hybrid", "--hybrid-weight", "0.8"]),
        ({"min_score": 0.1}, ["--min-score", "0.1"]),
        ({"fold": 0.5, "k": 3}, ["--fold", "0.5", "-k", "3"]),
    ],
)
def test_hits_are_those_of_the_command_line(
    asked: dict[str, Any], options: list[str], server: LiveServer, served_folder: Path
) -> None:
    body = server.search(query=["whales sing", "bread"], **asked)
    done = isotrope("query", str(served_folder), "--json", *options, "whales sing", "bread")
    for result, line in zip(body["results"], done.stdout.splitlines(), strict=True):
        expected = json.loads(line)
        assert result["query"] == expected["query"]
        assert [hit | {"score": 0} for hit in result["hits"]] == [hit | {"score": 0} for hit in expected["hits"]]
        scores = [hit["score"] for hit in expected["hits"]]
        assert [hit["score"] for hit in result["hits"]] == pytest.approx(scores, abs=1e-5)
    manifest = SearchEngine(served_folder).index.manifest
    assert body["index"] == {"generation": 1, "fingerprint": manifest.fingerprint}


def test_a_query_is_text_or_a_list_or_a_document(server: LiveServer, served_folder: Path) -> None:
    one, listed = server.search(query="whales", k=4), server.search(query=["whales"], k=4)
    assert one == listed
    (like,) = server.search(like="d3", k=4)["results"]
    assert like["query"] == "like d3"
    expected = SearchEngine(served_folder).neighbours("d3", 4)
    assert [hit["id"] for hit in like["hits"]] == [hit.id for hit in expected]


def test_a_query_that_was_cut_says_so(server: LiveServer) -> None:
    (result,) = server.search(query="whales sing")["results"]
    assert "truncated" not in result
    (result,) = server.search(query="ab " * 60)["results"]
    assert result["truncated"]["limit"] == 32
    assert result["truncated"]["tokens"] > 32


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({}, 422, 'expected either "query" or "like"'),
        ({"query": "a", "like": "d1"}, 422, "either"),
        ({"query": ""}, 422, "query"),
        ({"query": " \n"}, 422, "is blank; expected text"),
        ({"query": []}, 422, "query"),
        ({"query": ["a", " "]}, 422, "is blank"),
        ({"query": 3}, 422, "query"),
        ({"query": [[1, 2]]}, 422, "query"),
        ({"query": "a", "k": 0}, 422, "k: is 0; expected at least 1."),
        ({"query": "a", "k": 21}, 422, "k: is 21; expected at most 20."),
        ({"query": "a", "k": "3"}, 422, 'k: is "3"; expected a whole number.'),
        ({"query": "a", "k": 2.5}, 422, "k: is 2.5; expected a whole number."),
        ({"query": "a", "k": True}, 422, "k: is true; expected a whole number."),
        ({"query": "a", "k": 10**30}, 422, "k: "),
        ({"query": ["a"] * 9}, 422, "query: 9 texts; expected at most 8."),
        ({"query": ["a"] * 4, "k": 20}, 422, "expected at most 60 hits in all"),
        ({"query": "a" * 201}, 422, "query: 201 characters; expected at most 200."),
        ({"query": "a", "where": "yaer > 3"}, 422, "did you mean year?"),
        ({"query": "a", "where": "year >"}, 422, "year >"),
        ({"query": "a", "where": " "}, 422, "where: is blank"),
        ({"query": "a", "where": "1=1; drop table x"}, 422, ""),
        ({"query": "a", "where": "read_text('/etc/passwd') = ''"}, 422, ""),
        ({"query": "a", "group_by": "yaer"}, 422, 'did you mean "year"?'),
        ({"query": "a", "hybrid": True, "min_score": 0.5}, 422, "min_score cannot be combined with hybrid"),
        ({"like": "d1", "hybrid": True}, 422, "needs the words"),
        ({"like": "d11"}, 404, 'tests: contains no document with id "d11" (did you mean "d1"?)'),
        ({"query": "a", "fold": 0.4}, 422, "fold: is 0.4; expected at least 0.5."),
        ({"query": "a", "similarity": "js"}, 422, "js"),
        ({"query": "a", "similarity": "dot"}, 422, "similarity: is \"dot\"; expected 'cosine' or 'js'."),
        ({"query": "a", "where": ["x"]}, 422, "where: is a list; expected text."),
        ({"query": "a", "group_by": "a" * 1001}, 422, "has 1,001 characters; expected at most 1,000."),
        ({"query": "a", "model": "/etc"}, 422, "model: "),
        ({"query": "a", "index": "../other"}, 422, "index: "),
        ({"query": "a", "partial": True}, 422, "partial: "),
        ({"query": "a", "hybird": True}, 422, 'hybird: unknown field; did you mean "hybrid"?'),
        ({"q": "a"}, 422, "q: unknown field; expected query, like, k,"),
        ({"query": ["a", 3]}, 422, "query: element 2 is not text"),
        ({"query": [1] * 300_000}, 422, "query: element 1 is not text"),
        ({f"a{n}": n for n in range(100_000)}, 422, "a0: unknown field"),
        ("text", 422, 'The body is "text"; expected a JSON object.'),
        ([], 422, "The body is a list; expected a JSON object."),
        (None, 422, "Content-Type is missing"),
    ],
)
def test_invalid_requests_are_refused_with_a_message(body: Any, status: int, message: str, server: LiveServer) -> None:
    response = server.client.post("/v1/search", json=body)
    assert response.status_code == status, response.text
    fault = response.json()["error"]
    assert message in fault["message"]
    assert fault["type"] == ("not_found_error" if status == 404 else "invalid_request_error")
    assert "Traceback" not in response.text
    assert str(Path(__file__).parent) not in response.text


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"", 422),
        (b"{", 422),
        (b'{"query": "a", "min_score": NaN}', 422),
        (b'{"query": "a", "min_score": Infinity}', 422),
        (b'{"query": "a", "min_score": 1e999}', 422),
        (b'{"query": "a", "k": 1e400}', 422),
        (b'{"query": "a", "k": ' + b"9" * 5000 + b"}", 422),
        (b'{"query": "\\ud800"}', 422),
        (b'{"query": "a", "where": "x = \'\\udfff\'"}', 422),
        (b'{"query": "\xff"}', 422),
        (b"[" * 100_000, 422),
        (b'{"query": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 422),
        (b'{"query": "a", "query": "whales"}', 200),
        (b'{"query": "\\u0000"}', 200),
    ],
)
def test_bodies_that_are_no_plain_json(content: bytes, status: int, server: LiveServer) -> None:
    response = server.client.post("/v1/search", content=content, headers={"content-type": "application/json"})
    assert response.status_code in (status, 400 if status == 422 else status), response.text
    assert response.json()


@pytest.mark.parametrize("name", [b"\\ud800", b"\xed\xa0\x80", b"a\\udfffb"])
@pytest.mark.parametrize(
    ("route", "body"),
    [
        ("search", b'{"query": "a", "%s": 1}'),
        ("embeddings", b'{"input": "a", "%s": 1}'),
        ("vector_stores/tests/search", b'{"query": "a", "%s": 1}'),
        ("vector_stores/tests/search", b'{"query": "a", "ranking_options": {"%s": 1}}'),
    ],
)
def test_the_name_of_a_field_that_is_no_text_is_refused(
    route: str, body: bytes, name: bytes, server: LiveServer
) -> None:
    response = server.client.post(f"/v1/{route}", content=body % name, headers={"content-type": "application/json"})
    assert response.status_code == 400
    assert "the name of this field contains half a surrogate pair" in response.json()["error"]["message"]


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["query", "like", "k", "where", "group_by", "min_score", "exact"]), json_values))
def test_every_body_gets_an_answer(server: LiveServer, body: dict[str, Any]) -> None:
    content = json.dumps(body).encode("utf-8", "surrogatepass")
    response = server.client.post("/v1/search", content=content, headers={"content-type": "application/json"})
    assert response.status_code in (200, 400, 404, 422), (response.text, body)
    assert response.json()


def test_a_document_is_given_as_it_was(tiny_model: Any, tmp_path: Path) -> None:
    """With any id."""
    metadata = {"day": date(2020, 2, 3), "tags": ["x", "y"], "by": {"name": "Ann"}}
    rows = [Document(name, f"text {number}", None, metadata) for number, name in enumerate(ODD_IDS)]
    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=32, precision="float32")
    build_index([*rows, *DOCUMENTS], tmp_path / "index", BuildConfig(encoder=encoder))
    with live_server(tmp_path / "index") as server:
        for row in rows:
            ways = [server.client.get("/v1/documents", params={"id": row.id})]
            if row.id not in NOT_IN_A_PATH:
                ways.append(server.client.get(f"/v1/documents/{quote(row.id, safe='')}"))
            for response in ways:
                assert response.status_code == 200, (row.id, response.text)
                body = response.json()
                assert (body["id"], body["text"]) == (row.id, row.text)
                assert body["metadata"] == json.loads(to_json(metadata))
        missing = server.client.get("/v1/documents/nothing")
        assert missing.status_code == 404
        assert 'contains no document with id "nothing"' in missing.json()["error"]["message"]
        assert server.client.get("/v1/documents/").status_code == 404
        assert server.client.get("/v1/documents/%00").status_code == 404
        assert server.client.get("/v1/documents/%ff%fe").status_code == 404


def test_a_document_that_may_be_none_is_asked_for_without_a_fault(server: LiveServer) -> None:
    """As the page does for every query, because it can be an id."""
    found = server.client.get("/v1/documents", params={"id": "d1", "optional": "true"})
    assert found.json() == server.client.get("/v1/documents/d1").json()
    absent = server.client.get("/v1/documents", params={"id": "whales", "optional": "true"})
    assert (absent.status_code, absent.json()) == (200, None)
    assert server.client.get("/v1/documents", params={"id": "whales"}).status_code == 404


def test_info_describes_the_index_without_its_path(server: LiveServer, served_folder: Path) -> None:
    response = server.client.get("/v1/info")
    facts = response.json()
    assert (facts["name"], facts["documents"], facts["generation"]) == ("tests", len(DOCUMENTS), 1)
    assert facts["recall_at_10"] == 1.0
    assert facts["recipe"]["encoder"]["max_length"] == 32
    assert facts["limits"]["k"] == 20
    assert "/" not in facts["model"]
    assert str(served_folder.parent) not in response.text
    titles = {one.title: one.id for one in DOCUMENTS}
    assert facts["examples"]
    assert all(titles[one["text"]] == one["id"] for one in facts["examples"])


def test_values_are_counted_among_the_documents_that_meet_a_condition(server: LiveServer) -> None:
    every = {one["name"]: one for one in server.client.get("/v1/info").json()["columns"]}
    (year,) = server.client.post("/v1/facets", json={"columns": ["year"]}).json()["columns"]
    assert year == every["year"]
    where = f"year > {year['least']}"
    answer = server.client.post("/v1/facets", json={"where": where}).json()
    later = {one["name"]: one for one in answer["columns"]}
    assert set(later) == set(every)
    assert later["year"]["least"] > year["least"]
    assert 0 < later["year"]["documents"] < year["documents"]
    assert answer["index"]["generation"] == 1
    for wrong, said in (({"where": "yaer > 1"}, 'no column "yaer"'), ({"columns": ["yaer"]}, "not a metadata column")):
        refused = server.client.post("/v1/facets", json=wrong)
        assert (refused.status_code, said in refused.json()["error"]["message"]) == (422, True)


def test_health_metrics_and_description(server: LiveServer) -> None:
    server.search(query="whales")
    assert server.client.get("/healthz").json() == {"status": "ok"}
    assert server.client.head("/healthz").status_code == 200
    assert server.client.get("/readyz").json() == {"status": "ready"}
    text = server.client.get("/metrics").text
    for line in (
        "isotrope_documents 9.0",
        "isotrope_generation 1.0",
        "isotrope_pending 0.0",
        "isotrope_recall_at_10 1.0",
    ):
        assert line in text.splitlines()
    assert 'isotrope_requests_total{route="/v1/search",status="200"}' in text
    assert f'isotrope_info{{version="{version("isotrope")}"}} 1.0' in text
    for name in ("process_resident_memory_bytes", "process_open_fds", "process_max_fds"):
        assert float(text.partition(f"\n{name} ")[2].partition("\n")[0]) > 0
    assert 'isotrope_batch_texts_count{stage="encode"}' in text
    paths = server.client.get("/openapi.json").json()["paths"]
    assert {"/v1/search", "/v1/documents/{id}", "/v1/info", "/healthz", "/readyz", "/metrics"} <= set(paths)
    for path in ("/docs", "/redoc", "/nothing", "/v1", "/v1/search/"):
        response = server.client.get(path)
        assert (response.status_code, response.json()["error"]["type"]) == (404, "not_found_error")
    assert server.client.get("/v1/search").status_code == 405


@pytest.mark.parametrize(
    ("method", "path", "content", "kind", "status", "message"),
    [
        (
            "POST",
            "/v1/search",
            b'{"query": "a"}',
            "text/plain",
            422,
            'Content-Type is "text/plain"; expected application/json',
        ),
        ("POST", "/v1/search", b'{"query": "a"}', "", 422, "Content-Type is missing; expected application/json"),
        ("POST", "/v1/search", b"", "application/json", 422, "The body is empty; expected a JSON object."),
        (
            "POST",
            "/v1/search",
            b'{"query": }',
            "application/json",
            422,
            "is not JSON: Expecting value at line 1, column 11 (character 10).",
        ),
        (
            "POST",
            "/v1/search",
            b'{"query": "a",\n "k": }',
            "application/json",
            422,
            "at line 2, column 7 (character 21).",
        ),
        (
            "POST",
            "/v1/search",
            b'{"query": "a\xff"}',
            "application/json",
            400,
            "is not UTF-8: invalid start byte at byte 12.",
        ),
        ("POST", "/v1/search", b"[" * 100_000, "application/json", 400, "nests lists or objects too deeply"),
        ("POST", "/v1/search", b'{"k": ' + b"9" * 5000 + b"}", "application/json", 400, "number with too many digits"),
        ("GET", "/v1/search", b"", "", 405, "this route accepts POST"),
        ("GET", "/v1/search", b'{"query": "a"}', "application/json", 405, "this route accepts POST"),
        ("GET", "/v1/serach", b"", "", 404, "There is no such route; /openapi.json lists"),
    ],
)
def test_common_mistakes_get_a_fix(
    method: str, path: str, content: bytes, kind: str, status: int, message: str, server: LiveServer
) -> None:
    headers = {"content-type": kind} if kind else {}
    response = server.client.request(method, path, content=content, headers=headers)
    assert response.status_code == status
    assert message in response.json()["error"]["message"]


def test_only_the_first_of_many_faults_is_reported() -> None:
    """Errors for all would take memory and time: a body of 8 MB had millions."""
    for body in ({"query": [1] * 100_000}, {f"a{n}": n for n in range(100_000)}):
        with pytest.raises(ValidationError) as caught:
            SearchRequest.model_validate(body)
        assert caught.value.error_count() == 1


def test_answers_have_a_limit_alone_and_together(tiny_config: BuildConfig, tmp_path: Path) -> None:
    large = {"blob": "x" * 300_000}
    build_index([Document(f"d{n}", f"text {n}", None, large) for n in range(4)], tmp_path / "index", tiny_config)
    with live_server(tmp_path / "index", answer_bytes=1_000_000, answering_bytes=1_500_000) as server:
        body = server.search(query="text", k=3)
        assert len(body["results"][0]["hits"]) == 3
        response = server.client.post("/v1/search", json={"query": "text", "k": 4})
        assert response.status_code == 422
        assert "longer than 1,000,000 bytes, because its documents are long. Ask for fewer hits" in response.text
        reader = socket.create_connection(server.served_at, timeout=PATIENCE)
        question = b'{"query": "text", "k": 3}'
        head = b"POST /v1/search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        head += b"Content-Length: %d\r\n\r\n"
        with reader:
            for _ in range(40):  # unread answers stay in the server's memory
                reader.sendall(head % len(question) + question)
            wait_until(lambda: any(one.flow.write_paused for one in server.connections))
        wait_until(lambda: len(server.connections) == 1)  # the reader's connection is closed, and its answers are freed
        wait_until(lambda: server.client.post("/v1/search", json={"query": "text", "k": 3}).status_code == 200)


def test_an_answer_that_is_too_long_is_not_read_to_its_end(
    tiny_config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On every route, outside the event loop."""
    read, wrote = list[int](), list[str]()
    fetch, encoded = DocumentReader.fetch, answers._body

    def count(documents: DocumentReader, rows: Sequence[int]) -> list[Document]:
        read.append(len(rows))
        return fetch(documents, rows)

    def note(pieces: Any, share: Any) -> bytes:
        wrote.append("loop" if asyncio._get_running_loop() else "thread")
        return encoded(pieces, share)

    monkeypatch.setattr(DocumentReader, "fetch", count)
    monkeypatch.setattr(answers, "_body", note)
    build_index([Document(f"d{n}", f"text {n} " + "x" * 60_000) for n in range(100)], tmp_path / "index", tiny_config)
    store = "/v1/vector_stores/tests/search"
    with live_server(tmp_path / "index", answer_bytes=1_000_000) as server:
        for path, body in [
            ("/v1/search", {"query": ["text", "x"], "k": 100}),
            ("/v1/search", {"like": "d1", "k": 99}),
            (store, {"query": "text", "max_num_results": 50}),
        ]:
            read.clear()
            response = server.client.post(path, json=body)
            assert response.status_code == 422
            assert "longer than 1,000,000 bytes, because its documents are long. Ask for fewer hits" in response.text
            assert sum(read) <= 32
        assert wrote == []
        assert server.search(query="text", k=3)
        assert server.client.post(store, json={"query": "text", "max_num_results": 3}).status_code == 200
        assert server.client.get("/v1/documents/d1").status_code == 200
        assert wrote == ["thread", "thread", "loop"]  # the last answer is short


def test_messages_name_the_index_and_not_its_folder(
    served_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even if the name of the folder is a single letter."""
    shutil.copytree(served_folder, tmp_path / "a")
    monkeypatch.chdir(tmp_path)
    for folder in (Path("a"), tmp_path / "a"):
        with live_server(folder) as server:
            response = server.client.post("/v1/search", json={"query": "x", "where": "yaer > 3"})
            assert 'no column "yaer" (did you mean year?)' in response.json()["error"]["message"]
            response = server.client.post("/v1/search", json={"like": "nosuch"})
            assert response.json()["error"]["message"] == 'tests: contains no document with id "nosuch".'


def test_a_fault_of_the_next_generation_is_reported_without_its_path(
    served_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("search.server.service._CHECK_SECONDS", 0.01)
    index = shutil.copytree(served_folder, tmp_path / "index")
    with live_server(index) as server:
        (index / layout.manifest_name(2)).write_text("{}")
        wait_until(lambda: server.said)
        response = server.client.get("/readyz")
        assert (response.status_code, response.json()) == (200, {"status": "ready", "reload": "failed"})
        failed = re.search(r"^isotrope_failed_reloads ([\d.]+)$", server.client.get("/metrics").text, re.MULTILINE)
        assert failed
        assert float(failed[1]) > 0
        server.served.service.generations.unreadable = True
        assert server.client.get("/readyz").status_code == 503


@pytest.mark.filterwarnings("ignore:the cache .* cannot be written")
def test_a_full_disk_fails_hybrid_questions_until_there_is_room(
    served_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setenv("ISOTROPE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("search.server.service._CHECK_SECONDS", 0.01)
    monkeypatch.setattr("search.server.generations._WORDS_AGAIN", 0.0)
    with pytest.MonkeyPatch.context() as disk:
        disk.setattr("search.ranking.bm25.BM25.save", full)
        with live_server(served_folder) as server:
            for _ in range(2):
                assert server.client.post("/v1/search", json={"query": "bread", "hybrid": True}).status_code == 503
                ready = server.client.get("/readyz")
                assert (ready.status_code, ready.json()["status"]) == (503, "hybrid search unavailable")
            assert server.search(query="bread")
            wait_until(lambda: bool(server.said))
            assert "has room for a new entry" in server.said[0]
            disk.undo()
            wait_until(lambda: server.client.get("/readyz").status_code == 200)
            assert server.search(query="bread", hybrid=True)


def test_the_administrator_reloads(served_folder: Path, tmp_path: Path) -> None:
    settings = ServerSettings("tests", port=0, admin_keys=keys(ADMIN_KEY, tmp_path))
    with live_server(served_folder, settings) as server:
        assert server.client.post("/admin/reload").status_code == 401
        allowed = {"authorization": f"Bearer {ADMIN_KEY}"}
        assert server.client.get("/admin/reload", headers=allowed).status_code == 405
        response = server.client.post("/admin/reload", headers=allowed)
        assert response.json() == {"reloaded": False, "generation": 1}


def test_a_bug_is_only_logged(
    served_folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    engine = SearchEngine(served_folder)
    with live_server(engine) as server, caplog.at_level(logging.ERROR):
        monkeypatch.setattr(engine, "document", lambda _: 1 / 0)
        response = server.client.get("/v1/documents/d1")
        assert response.status_code == 500
        assert response.json()["error"]["message"] == "The server failed at this request; see its log."
        assert "ZeroDivisionError" in caplog.text
        monkeypatch.undo()
        assert server.client.get("/v1/documents/d1").status_code == 200
