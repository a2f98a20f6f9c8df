"""The client returns what the engine returns, and reports faults of the server, the connection and the request."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from indexer.errors import ConfigError, MachineError, UnknownDocumentError
from indexer.system import http
from search import SearchClient, SearchEngine, SearchOptions
from search.client.requests import pieces_of
from search.server.links import LinkTemplate
from search.server.settings import Keys, ServerSettings
from tests.search.cli.test_cli import isotrope
from tests.search.client.conftest import Reply
from tests.servers import live_server

KEY = "a-key-that-is-long-enough"
TEXTS = [f"thing {n} of {n % 3}" for n in range(150)]


def plain(answers: Any) -> Any:
    """Return answers as JSON types, with dates as text."""
    return json.loads(json.dumps([[hit.to_dict() for hit in answer] for answer in answers], default=str))


@pytest.mark.parametrize(
    "options",
    [
        SearchOptions(3),
        SearchOptions(where="year > 2004 AND day < DATE '2020-01-01'"),
        SearchOptions(group_by="set"),
        SearchOptions(exact=True, min_score=0.2),
        SearchOptions(4, fold=0.5),
    ],
)
def test_answers_are_those_of_the_engine(connect: Any, url: str, engine: SearchEngine, options: SearchOptions) -> None:
    with connect(url) as client:
        assert plain(client.search_many(TEXTS[:5], options)) == plain(engine.search_many(TEXTS[:5], options))
        assert plain([client.neighbours("d4", options)]) == plain([engine.neighbours("d4", options)])
        assert client.search("thing 4", k=1)[0].window is not None


def test_many_queries_go_in_requests_the_server_takes_and_keep_their_order(
    connect: Any, url: str, engine: SearchEngine
) -> None:
    with connect(url) as client:
        found, alone = client.search_many(TEXTS, k=2), engine.search_many(TEXTS, k=2)
        assert [[hit.id for hit in answer] for answer in found] == [[hit.id for hit in answer] for answer in alone]
        assert client.search_many([]) == []
        assert len(client.search_many(TEXTS, k=1000)) == len(TEXTS)  # 64 queries of them would be too many hits


@pytest.mark.parametrize(
    ("queries", "k", "sizes"),
    [
        (["a"] * 130, 10, [64, 64, 2]),
        (["a"] * 5, 4000, [2, 2, 1]),
        (["a"] * 2, 20_000, [1, 1]),
        (["\x01" * 500_000] * 3, 1, [1, 1, 1]),
        ([], 1, []),
    ],
)
def test_a_request_holds_as_much_as_a_server_takes(queries: list[str], k: int, sizes: list[int]) -> None:
    assert [len(piece) for piece in pieces_of(queries, k)] == sizes


def test_a_hit_has_the_link_of_the_server(connect: Any, engine: SearchEngine) -> None:
    settings = ServerSettings("index", port=0, link=LinkTemplate("https://host/{id}"))
    with live_server(engine, settings) as server, connect(server.url) as client:
        (hit,) = client.neighbours("d4", k=1)
    assert hit.link == f"https://host/{hit.id}"
    assert hit.to_dict()["link"] == hit.link


def test_info_describes_the_served_index(connect: Any, url: str) -> None:
    with connect(url + "/") as client:
        facts = client.info()
    assert (facts["documents"], facts["generation"], facts["name"]) == (30, 1, "index")


@pytest.mark.parametrize(
    ("asked", "error", "said"),
    [
        ({"queries": [" "]}, ConfigError, "query 1 is blank"),
        ({"queries": ["x", "\udc80"]}, ConfigError, "query 2 is not valid text"),
        ({"queries": ["x"], "k": 0}, ConfigError, "k is 0"),
        ({"queries": ["x"], "k": 5000}, ConfigError, "expected at most 1,000"),
        ({"queries": ["x"], "where": "yaer = 1"}, ConfigError, "did you mean"),
        ({"queries": ["x"], "partial": True}, ConfigError, "partial is for segments"),
        ({"queries": ["x" * 200_000]}, ConfigError, "200,000 characters"),
    ],
)
def test_invalid_requests_are_refused_with_a_message(
    connect: Any, url: str, asked: Any, error: type[Exception], said: str
) -> None:
    with connect(url) as client, pytest.raises(error, match=said):
        client.search_many(**asked)


def test_an_unknown_document_raises_an_error(connect: Any, url: str) -> None:
    with connect(url) as client, pytest.raises(UnknownDocumentError, match='no document with id "d88"'):
        client.neighbours("d88")


@pytest.mark.parametrize(
    "arguments",
    [
        ["thing 3", "thing 5", "-k", "2"],
        ["thing 3", "--json", "--where", "year > 2003", "--group-by", "set"],
        ["--like", "d3", "--json"],
        ["thing 3", "--fold", "0.5"],
        ["  ", "a//b", "--json"],
        ["word " * 500, "--json"],
    ],
)
def test_the_command_prints_the_same_by_url_as_by_index(index: Path, url: str, arguments: list[str]) -> None:
    here, there = isotrope("query", index, *arguments), isotrope("query", "--url", url, *arguments)
    assert (there.stdout, there.stderr, there.returncode) == (here.stdout, here.stderr, 0)
    assert there.stdout


def test_files_and_standard_input_are_asked_of_a_server_too(index: Path, url: str, tmp_path: Path) -> None:
    (tmp_path / "q.txt").write_text("thing 3\n\nthing 5\n")
    here = isotrope("query", index, "--queries", tmp_path / "q.txt", "--json")
    there = isotrope("query", "--url", url, "--queries", tmp_path / "q.txt", "--json")
    assert there == here
    piped = [isotrope("query", *of, "-", "--json", stdin="thing 3\n\nthing 5\n") for of in ([index], ["--url", url])]
    assert piped[0] == piped[1]
    out = tmp_path / "answers.jsonl"
    assert isotrope("query", "--url", url, "thing 3", "-o", out).stdout == f"{out}: 1 answer.\n"
    assert json.loads(out.read_text())["hits"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--url", "{url}", "x", "--device", "auto"], "--device is for an INDEX"),
        (["--url", "{url}", "x", "--model", "m"], "--model is for an INDEX"),
        (["--url", "{url}", "x", "--backend", "torch"], "--backend is for an INDEX"),
        (["--url", "{url}", "x", "--threads", "2"], "--threads is for an INDEX"),
        (["--url", "{url}", "x", "--recall", "0.9"], "--recall is for an INDEX"),
        (["--url", "{url}", "x", "--shards", "ray"], "--shards is for an INDEX"),
        (["--url", "{url}", "x", "--partial"], "--partial is for an INDEX"),
        (["--url", "{url}", "--queries", "v.npy"], "accepts texts, not embeddings"),
        (["--url", "{url}"], "Expected exactly one of TEXT, --like and --queries"),
        (["--url", "{url}", "--like", "d1", "--hybrid"], "--hybrid needs TEXT"),
        (["{url}", "x"], "is the address of a server. Fix: pass --url"),
        (["index", "x", "--api-key-file", "k"], "--api-key-file is for a server"),
        ([], "Missing argument 'INDEX'"),
        ([""], "Invalid value for 'INDEX': the path is empty"),
    ],
)
def test_what_makes_no_sense_together_is_refused(url: str, arguments: list[str], said: str) -> None:
    done = isotrope("query", *(word.format(url=url) for word in arguments))
    assert done.returncode == 2
    assert said in " ".join(done.stderr.split())


def test_a_key_is_sent_from_its_file_and_never_shown(index: Path, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "keys").write_text(f"# of the reader\n{KEY}\nanother-key-of-the-server\n")
    (tmp_path / "keys").chmod(0o600)
    (tmp_path / "wrong").write_text("some-other-key-of-nobody\n")
    settings = ServerSettings("tests", port=0, read_keys=Keys.read(tmp_path / "keys"))
    with live_server(index, settings) as server:
        url = server.url
        refused = isotrope("query", "--url", url, "thing 3")
        assert (refused.returncode, refused.stdout) == (1, "")
        assert "the server needs a key. Fix: give --api-key-file FILE." in refused.stderr
        wrong = isotrope("query", "--url", url, "x", "--api-key-file", tmp_path / "wrong")
        assert (wrong.returncode, wrong.stdout) == (1, "")
        assert "the server rejects the key. Fix: give --api-key-file FILE with a key of the server." in wrong.stderr
        done = isotrope("query", "--url", url, "thing 3", "--api-key-file", tmp_path / "keys")
        assert (done.returncode, done.stderr) == (0, "")
        monkeypatch.setenv("ISOTROPE_API_KEY_FILE", str(tmp_path / "keys"))
        assert isotrope("query", "--url", url, "thing 3").stdout == done.stdout
        assert isotrope("query", index, "thing 3").returncode == 0  # where the variable means nothing
        assert KEY not in done.stdout + done.stderr + refused.stderr


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("", "is not the URL of a server"),
        ("127.0.0.1:8080", "is not the URL of a server"),
        ("ftp://127.0.0.1", "is not the URL of a server"),
        ("http://", "is not the URL of a server"),
        ("http://[::1", "is not a URL"),
        ("http://127.0.0.1:99999", "is not a URL"),
        ("http://127.0.0.1/a b", "is not the URL of a server"),
        ("http://127.0.0.1/\x1b", "is not the URL of a server"),
        ("http://user:secret@127.0.0.1", "contains a user or a password"),
        ("http://127.0.0.1/?key=secret", "contains \\? or #"),
    ],
)
def test_invalid_urls_are_refused(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        SearchClient(url)
    assert isotrope("query", "--url", url, "x").returncode == 1


@pytest.mark.parametrize("key", ["", "two words", "tab\t", "schl\u00fcssel"])
def test_invalid_keys_are_refused(key: str) -> None:
    with pytest.raises(ConfigError, match="the key is invalid"):
        SearchClient("http://127.0.0.1:8080", key)


@pytest.mark.parametrize(
    ("url", "is_private"),
    [
        ("https://a.example", True),
        ("https://127.0.0.1.evil.example", True),
        ("http://127.0.0.1:1", True),
        ("http://127.9.9.9", True),
        ("http://localhost", True),
        ("http://LOCALHOST", True),
        ("http://[::1]:8", True),
        ("http://a.example", False),
        ("http://127.0.0.1.evil.example", False),
        ("http://127.evil.example:8080", False),
        ("http://localhost.evil.example", False),
        ("http://127.0.0.1%2eevil.example", False),
        ("http://10.0.0.1", False),
    ],
)
def test_a_url_is_private_where_nobody_reads_along(url: str, is_private: bool) -> None:
    assert SearchClient(url).is_private is is_private


def test_a_proxy_is_not_asked_about_this_machine(connect: Any, url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with connect(url) as client:
        assert client.search("thing 3", 1)
    for other in ("http://a.invalid", "http://127.0.0.1.a.invalid"):
        with connect(other) as client, pytest.raises(MachineError, match=r"the server cannot be reached.*refused"):
            client.search("thing 3", 1)


def error_body(message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "x", "param": None, "code": None}}).encode()


GOOD = json.dumps({"results": [{"query": "x", "hits": []}], "index": {"generation": 1, "fingerprint": "f"}}).encode()


@pytest.mark.parametrize(
    ("reply", "error", "said"),
    [
        ((200, {}, b"<html>"), ConfigError, "not an Isotrope server"),
        ((200, {}, b'{"results": 3}'), ConfigError, r"not an Isotrope server.*\$\.results"),
        ((200, {}, b'{"results": []}'), ConfigError, "0 answers to 1 queries"),
        ((200, {}, b"[" * 100_000), ConfigError, "nested"),
        ((200, {}, b"\xff"), ConfigError, "not an Isotrope server"),
        ((404, {}, b"not here"), ConfigError, "it answers 404"),
        ((404, {}, error_body("Not Found")), ConfigError, "it has no /v1/search"),
        ((404, {}, error_body("There is no such route; see /openapi.json.")), ConfigError, "it has no /v1/search"),
        ((301, {"Location": "https://b.example/"}, b""), ConfigError, "redirects to https://b.example/"),
        ((502, {}, b"<html>"), MachineError, "answers 502, but not as Isotrope does"),
        ((503, {}, error_body("The index cannot be read.")), MachineError, "The index cannot be read"),
        ((504, {}, error_body("not answered in 30 s")), MachineError, "not answered in 30 s"),
        ((403, {}, error_body("The Host is \x1b[31m none")), ConfigError, r"The Host is \\x1b\[31m none"),
        ((422, {}, error_body("y" * 10_000)), ConfigError, r"y{500}\.\.\."),
        ((200, {"Content-Length": "9"}, b"{}"), MachineError, "the connection broke"),
    ],
)
def test_foreign_answers_and_failures_raise_errors_with_a_message(
    connect: Any, stranger: Callable[..., str], reply: Reply, error: type[Exception], said: str
) -> None:
    with connect(stranger(reply), seconds=5) as client, pytest.raises(error, match=said):
        client.search("x")


def test_a_busy_server_is_asked_again_after_what_it_says(
    connect: Any, stranger: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    slept = list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    monkeypatch.setattr("search.client.blocking.time.sleep", slept.append)
    monkeypatch.setattr("search.client.asynchronous.sleep", sleep)
    busy: Reply = (429, {"Retry-After": "7"}, error_body("256 requests are under way."))
    never: Reply = (429, {"Retry-After": "86400"}, error_body("256 requests are under way."))
    waits = list[float]()
    with connect(stranger(busy, busy, (200, {}, GOOD)), on_wait=waits.append) as client:
        assert client.search("x") == []
    assert slept == waits == [7, 7]
    with (
        connect(stranger(never)) as client,
        pytest.raises(MachineError, match=r"still busy after 5 .*256 requests"),
    ):
        client.search("x")
    assert slept[2:] == [60] * 4


def test_requests_that_are_too_large_are_split_into_halves(connect: Any, index: Path) -> None:
    with live_server(index, queries=3, hits=12, characters=1000) as server, connect(server.url) as client:
        together = client.search_many(TEXTS[:10], 5)
        assert plain(together) == plain(client.search(text, 5) for text in TEXTS[:10])
        with pytest.raises(ConfigError, match=r"k: 13 hits for 1 queries; expected at most 12"):
            client.search_many(TEXTS[:2], 13)
        with pytest.raises(ConfigError, match=r"query: 1,001 characters; expected at most 1,000"):
            client.search_many(["x" * 1001, "y"], 1)


def test_limits_of_the_server_are_reported(url: str, index: Path) -> None:
    refused = isotrope("query", "--url", url, "thing", "--fold", "0.3")
    assert (refused.returncode, refused.stdout) == (1, "")
    assert "fold: is 0.3; expected at least 0.5; an index that is opened locally" in (" ".join(refused.stderr.split()))
    assert isotrope("query", index, "thing", "--fold", "0.3").returncode == 0
    assert "k: is 1,001; expected at most 1,000." in isotrope("query", "--url", url, "thing", "-k", "1001").stderr


def test_an_answer_without_end_is_cut(
    connect: Any, stranger: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http, "LARGEST_ANSWER", 1000)
    with (
        connect(stranger((200, {}, b" " * 5000))) as client,
        pytest.raises(MachineError, match="exceeds 1,000 bytes"),
    ):
        client.search("x")


def test_a_missing_or_silent_server_raises_an_error(connect: Any, stranger: Callable[..., str]) -> None:
    with (
        connect("http://127.0.0.1:1") as client,
        pytest.raises(MachineError, match="cannot be reached"),
    ):
        client.search("x")
    silent = stranger((200, {"Content-Length": "9"}, b""))
    with (
        connect(silent, seconds=0.2) as client,
        pytest.raises(MachineError, match=r"did not answer in time|broke"),
    ):
        client.search("x")
    https = silent.replace("http:", "https:")
    with connect(https) as client, pytest.raises(MachineError, match="the server does not use TLS"):
        client.search("x")
