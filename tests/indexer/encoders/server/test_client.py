"""One request to an embedding server: what is tried again, what is refused, and that the key stays secret."""

import re
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from indexer.encoders.server import client as client_module
from indexer.encoders.server.client import KEY, EmbeddingClient, Patience
from indexer.errors import ConfigError, IsotropeError, MachineError, ModelError
from tests.embedding_servers import Fault, Reply, StubServer, data, status, stub_server, words_model

TEXTS = ["whale song", "deep sea", "", "a data library"]
SECRET = "sk-a-secret-of-the-tests"


@pytest.fixture
def stub() -> Iterator[StubServer]:
    with stub_server() as running:
        yield running


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses of all requests, none of which is waited for."""
    waited = list[float]()
    monkeypatch.setattr(client_module, "wait", lambda seconds, _: waited.append(seconds))
    return waited


def ask(stub: StubServer, **settings: Any) -> Any:
    return EmbeddingClient(stub.url, "m", **settings).embed(TEXTS, Patience())


def cut(at: int) -> Fault:
    def change(_: StubServer, reply: Reply) -> None:
        reply.cut = at

    return change


def hold(_: StubServer, reply: Reply) -> None:
    reply.held = True


def test_rows_are_those_of_the_model_in_the_order_of_the_texts(stub: StubServer) -> None:
    stub.faults = [data(lambda rows: rows[::-1])]
    expected = words_model()(TEXTS).astype(np.float32)
    assert ask(stub).tobytes() == expected.tobytes()
    assert stub.requests == [TEXTS]


@pytest.mark.parametrize("path", ["", "/", "/v1", "/v1/", "/v1/embeddings"])
def test_the_address_may_leave_out_the_path_of_the_api(stub: StubServer, path: str) -> None:
    url = stub.url.removesuffix("/v1") + path
    assert EmbeddingClient(url, "m").embed(["a"], Patience()).shape == (1, 16)


@pytest.mark.parametrize(
    ("faults", "waits"),
    [
        ([status(429, Retry_After="7"), status(429, Retry_After="0")], [7.0, 0.0]),
        ([status(500), status(503), status(502)], [1, 2, 4]),
        ([status(408)], [1]),
        ([cut(40), cut(0)], [1, 2]),
        ([status(429, Retry_After="Wed, 21 Oct 2015 07:28:00 GMT")], [0.0]),
    ],
)
def test_a_failing_server_is_asked_again(
    stub: StubServer, pauses: list[float], faults: list[Fault], waits: list[float]
) -> None:
    stub.faults = list(faults)
    assert ask(stub).shape == (4, 16)
    assert stub.requests == [TEXTS]
    for pause, most in zip(pauses, waits, strict=True):  # without Retry-After, half of it up to all
        assert most / 2 <= pause <= most


def test_a_slow_server_is_asked_again(stub: StubServer, pauses: list[float]) -> None:
    stub.faults = [hold]
    assert ask(stub, seconds=0.3).shape == (4, 16)
    assert len(pauses) == 1


def test_attempts_are_bounded_and_the_error_names_them(stub: StubServer, pauses: list[float]) -> None:
    stub.faults = [status(500, "out of memory\x1b[31m " + "x" * 1000)] * 20
    with pytest.raises(MachineError) as failed:
        ask(stub)
    message = str(failed.value)
    assert re.search(r'status 500: "out of memory\\x1b\[31m x+\.\.\."\. Gave up after 8 attempts and \d+ s', message)
    assert message.startswith(stub.url)
    assert "complete parts are kept" in message
    assert len(message) < 600
    assert len(pauses) == 7
    assert sum(pauses) <= 1 + 2 + 4 + 8 + 16 + 32 + 60


def test_a_pause_of_hours_is_not_waited_for(stub: StubServer, pauses: list[float]) -> None:
    stub.faults = [status(429, "daily limit", Retry_After="3600")]
    with pytest.raises(MachineError, match=r"the server asks for a pause of 3,600 s.*\(requests\)"):
        ask(stub)
    assert pauses == []


def test_an_account_without_money_is_an_error_at_once(stub: StubServer, pauses: list[float]) -> None:
    def no_money(_: StubServer, reply: Reply) -> None:
        reply.status, reply.body = 429, {"error": {"message": "You exceeded it", "code": "insufficient_quota"}}

    stub.faults = [no_money]
    with pytest.raises(ConfigError, match="raise the quota"):
        ask(stub)
    assert pauses == []


@pytest.mark.parametrize(
    ("code", "body", "said"),
    [
        (401, {"error": {"message": "no key"}}, f'status 401: "no key". Fix: set the environment variable {KEY}'),
        (404, {"detail": "model unknown"}, 'status 404: "model unknown". Fix: check encoder.url and encoder.model'),
        (404, "not here", 'status 404: "not here"'),
        (403, {"object": "error", "message": "not you"}, '"not you"'),
        (418, {"error": "teapot", "error_type": "Pot"}, '"teapot". Fix: look at the log'),
    ],
)
def test_a_refusal_is_an_error_at_once(stub: StubServer, pauses: list[float], code: int, body: Any, said: str) -> None:
    def refuse(_: StubServer, reply: Reply) -> None:
        reply.status, reply.body = code, body

    stub.faults = [refuse]
    with pytest.raises(ConfigError) as refused:
        ask(stub)
    assert said in str(refused.value)
    assert pauses == []


def test_a_redirect_is_not_followed(stub: StubServer) -> None:
    stub.faults = [status(302, Location="http://elsewhere.example/v1")]
    with pytest.raises(ConfigError, match=r"redirects to http://elsewhere\.example/v1\. Redirects are not followed"):
        ask(stub)


def test_a_batch_that_is_too_large_is_halved(stub: StubServer) -> None:
    stub.most_texts = 1
    assert ask(stub).tobytes() == words_model()(TEXTS).astype(np.float32).tobytes()
    assert stub.requests == [[text] for text in TEXTS]


def test_a_text_that_is_too_long_is_named(stub: StubServer) -> None:
    stub.most_texts = 0
    with pytest.raises(ModelError, match=r"status 413.*shorten the text \(chunk\.tokens\).*begins \"whale song\""):
        ask(stub)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: rows[:3], "3 rows for 4 texts"),
        (lambda rows: [*rows, rows[0]], "5 rows for 4 texts"),
        (lambda rows: [{**row, "index": 1} for row in rows], r"with the indexes \[1, 1, 1, 1\]"),
        (lambda rows: [*rows[:3], {**rows[3], "embedding": [1.0, 2.0]}], "rows of 2 to 16 numbers"),
        (lambda rows: [{**row, "embedding": []} for row in rows], "rows of 0 to 0 numbers"),
        (lambda rows: [{**rows[0], "embedding": [1.0, float("nan")] * 8}, *rows[1:]], "number 2 of .* is nan.*whale"),
        (lambda rows: [*rows[:3], {**rows[3], "embedding": [float("inf")] * 16}], "number 1 of .* is inf.*a data lib"),
        (lambda rows: [{**row, "embedding": [1e300] * 16} for row in rows], r"is 1e\+300; expected finite"),
        (lambda rows: [{**row, "embedding": ["1"] * 16} for row in rows], "contains no embeddings"),
        (lambda rows: [{**row, "embedding": [None] * 16} for row in rows], "contains no embeddings"),
        (lambda rows: [{"embedding": row["embedding"]} for row in rows], "contains no embeddings"),
        (lambda rows: "rows", "contains no embeddings"),
    ],
)
def test_what_is_no_embedding_is_refused_with_the_numbers(
    stub: StubServer, pauses: list[float], change: Any, said: str
) -> None:
    stub.faults = [data(change)]
    with pytest.raises(ModelError, match=said):
        ask(stub)
    assert pauses == []


def test_a_wrong_address_is_an_error_at_once(pauses: list[float]) -> None:
    with pytest.raises(MachineError, match="cannot be reached"):
        EmbeddingClient("http://127.0.0.1:9", "m").embed(["a"], Patience())
    assert pauses == []


def test_a_server_that_restarts_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with stub_server() as stub:
        client = EmbeddingClient(stub.url, "m")
        client.embed(["a"], Patience())
    waited = list[float]()
    monkeypatch.setattr(client_module, "wait", lambda seconds, _: waited.append(seconds))
    with pytest.raises(MachineError, match="Gave up after 8 attempts"):
        client.embed(["a"], Patience())
    assert len(waited) == 7


def test_no_attempt_follows_once_another_request_has_failed(stub: StubServer) -> None:
    stub.faults = [status(500)] * 9
    patience = Patience()
    patience.stop.set()
    with pytest.raises(MachineError, match="after 1 attempts"):
        EmbeddingClient(stub.url, "m").embed(TEXTS, patience)


# --- the key


def test_the_key_is_sent_and_shown_nowhere(stub: StubServer, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setenv(KEY, SECRET)
    caplog.set_level("DEBUG")
    client = EmbeddingClient(stub.url, "m")
    client.embed(TEXTS, Patience())
    stub.faults = [status(401, f"Incorrect API key provided: {SECRET}")]
    with pytest.raises(ConfigError) as refused:
        client.embed(TEXTS, Patience())
    assert stub.keys == [f"Bearer {SECRET}"] * 2
    assert "Incorrect API key provided: [key]" in str(refused.value)
    assert SECRET not in caplog.text + repr(client) + str(refused.value)


@pytest.mark.parametrize("name", [KEY, "OPENAI_API_KEY"])
def test_the_key_of_openai_is_for_openai_alone(stub: StubServer, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, SECRET)
    ask(stub)
    assert stub.keys == ([f"Bearer {SECRET}"] if name == KEY else [None])
    assert client_module._key_for("https://api.openai.com/v1") == SECRET
    assert client_module._key_for("https://api.openai.com.example/v1") == (SECRET if name == KEY else None)


def test_no_key_is_sent_unencrypted_to_another_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    EmbeddingClient("http://embeddings.example", "m")
    monkeypatch.setenv(KEY, SECRET)
    EmbeddingClient("https://embeddings.example", "m")
    with pytest.raises(ConfigError, match=f"others on the network could read the key in {KEY}") as refused:
        EmbeddingClient("http://embeddings.example", "m")
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize("key", ["two words", "b\u00e4d", "a\nb"])
def test_an_invalid_key_is_refused_unseen(stub: StubServer, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setenv(KEY, key)
    with pytest.raises(IsotropeError, match="the key is invalid") as refused:
        EmbeddingClient(stub.url, "m")
    assert key not in str(refused.value)
