"""Embeddings in OpenAI's API: the engine's vectors, or an error with a fix."""

import asyncio
import base64
import contextlib
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import openai
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI, OpenAI

from indexer import BuildConfig, Document, build_index
from indexer.encoders.protocol import EncodeStats
from indexer.recipe.config import EncoderConfig, Role, WhiteningConfig
from search import SearchEngine
from search.server.app import ServedIndex, serve_engine
from search.server.openai import embeddings
from search.server.openai.embeddings import EmbeddingRequest, rows_as_json
from search.server.settings import ServerLimits, ServerSettings
from tests.documents import DOCUMENTS
from tests.search.server.conftest import Serve
from tests.search.server.test_service import Slow
from tests.waiting import PATIENCE

TEXTS = ["how do whales sing", "bread", "naïve “glass” 玻璃", "Whales sing in the deep sea for hours."]
LONG = " ".join(["whales"] * 100)


@pytest.fixture(scope="module")
def folder(served_folder: Path) -> Path:
    return served_folder


@pytest.fixture(scope="module")
def engine(folder: Path) -> SearchEngine:
    return SearchEngine(folder)


@pytest.fixture(scope="module")
def url(folder: Path, serve: Serve) -> str:
    return serve(folder, "docs", limits=ServerLimits(characters=2000)) + "/v1"


@pytest.fixture(scope="module")
def client(url: str) -> Iterator[OpenAI]:
    with OpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


def post(url: str, **fields: Any) -> httpx2.Response:
    """Return the answer to any body, including those that the real client would not send."""
    return httpx2.post(f"{url}/embeddings", json={"model": "docs", "input": "bread"} | fields, timeout=PATIENCE)


def fault(answer: httpx2.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["message"]


# --- vectors


@pytest.mark.parametrize(
    ("model", "role"), [("docs", "document"), ("docs/document", "document"), ("docs/query", "query")]
)
def test_vectors_are_those_of_the_engine_bit_for_bit(
    client: OpenAI, engine: SearchEngine, model: str, role: Role
) -> None:
    expected = np.asarray(engine.embed(TEXTS, role))
    plain = client.embeddings.create(model=model, input=TEXTS, encoding_format="float")
    packed = client.embeddings.create(model=model, input=TEXTS, encoding_format="base64")
    usual = client.embeddings.create(model=model, input=TEXTS)  # the client requests and decodes base64
    assert [row.index for row in plain.data] == [0, 1, 2, 3]
    for answer in (plain, usual):
        assert np.array_equal(np.array([row.embedding for row in answer.data]), expected)  # as float64
    texts = [str(row.embedding) for row in packed.data]
    assert b"".join(map(base64.b64decode, texts)) == expected.astype("<f4").tobytes()
    assert (plain.model, plain.object, plain.data[0].object) == (model, "list", "embedding")


def test_one_text_is_a_list_of_one(client: OpenAI, engine: SearchEngine) -> None:
    (row,) = client.embeddings.create(model="docs", input="bread").data
    assert np.array_equal(np.array([row.embedding]), np.asarray(engine.embed(["bread"], "document")))


def test_the_async_client_gets_the_same(url: str, engine: SearchEngine) -> None:
    async def ask() -> list[list[float]]:
        async with AsyncOpenAI(base_url=url, api_key="none") as client:
            answer = await client.embeddings.create(model="docs/query", input=TEXTS)
            return [row.embedding for row in answer.data]

    assert np.array_equal(np.array(asyncio.run(ask())), np.asarray(engine.embed(TEXTS, "query")))


def test_query_vectors_score_documents_as_the_search_does(client: OpenAI, url: str) -> None:
    texts = [f"{document.title} {document.text}" for document in DOCUMENTS]
    stored = np.array([row.embedding for row in client.embeddings.create(model="docs/document", input=texts).data])
    (query,) = client.embeddings.create(model="docs/query", input="how do whales sing").data
    (other,) = client.embeddings.create(model="docs/document", input="how do whales sing").data
    assert np.abs(np.array(query.embedding) - np.array(other.embedding)).max() > 1e-3
    scores = dict(zip([document.id for document in DOCUMENTS], stored @ np.array(query.embedding), strict=True))
    asked = {"query": "how do whales sing", "k": 9}
    (found,) = httpx2.post(f"{url}/search", json=asked, timeout=PATIENCE).json()["results"]
    for hit in found["hits"]:
        assert hit["score"] == pytest.approx(scores[hit["id"]], abs=1e-5)


def test_thousands_of_texts_come_in_order(client: OpenAI, engine: SearchEngine) -> None:
    texts = [f"{TEXTS[number % 4]} {number}" for number in range(3000)]
    answer = client.embeddings.create(model="docs", input=texts)
    assert [row.index for row in answer.data] == list(range(3000))
    some = list(range(0, 3000, 71))
    expected = engine.embed([texts[number] for number in some], "document")
    np.testing.assert_allclose(
        np.array([answer.data[number].embedding for number in some]), np.asarray(expected), atol=1e-5
    )


@pytest.mark.parametrize("form", ["float", "base64"])
def test_an_answer_in_pieces_is_the_answer_at_once(url: str, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"bread {number}" for number in range(16)]  # one batch, so the encoder rounds the same
    whole = post(url, input=texts, encoding_format=form)
    assert "content-length" in whole.headers
    monkeypatch.setattr(embeddings, "_PIECE_BYTES", 100)
    pieces = post(url, input=texts, encoding_format=form)
    assert pieces.headers["transfer-encoding"] == "chunked"
    assert pieces.json() == whole.json()


@settings(max_examples=30)
@given(
    st.lists(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=3, max_size=3), max_size=9)
)
def test_numbers_are_read_as_the_float32_that_they_were(rows: list[list[float]]) -> None:
    vectors = np.array(rows, np.float32).reshape(len(rows), 3)
    plain = json.loads(b"[" + rows_as_json(vectors, 5, "float") + b"]")
    packed = json.loads(b"[" + rows_as_json(vectors, 5, "base64") + b"]")
    assert [row["index"] for row in plain] == [row["index"] for row in packed] == list(range(5, 5 + len(rows)))
    assert [row["embedding"] for row in plain] == vectors.tolist()
    assert b"".join(base64.b64decode(row["embedding"]) for row in packed) == vectors.tobytes()


# --- notes on texts


def test_usage_counts_what_was_read_and_truncation_is_reported(client: OpenAI, engine: SearchEngine, url: str) -> None:
    log = EncodeStats()
    engine.embed([*TEXTS, LONG], "document", log)
    answer = client.embeddings.create(model="docs", input=[*TEXTS, LONG])
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(log.lengths[:4]) + 32
    body = post(url, input=[*TEXTS, LONG]).json()
    assert body["truncated"] == [{"index": 4, "tokens": log.lengths[4], "limit": 32}]
    assert body["index"] == {"generation": 1, "fingerprint": engine.index.manifest.fingerprint}
    assert body["role"] == "document"
    assert "truncated" not in post(url).json()


def test_models_say_their_role(client: OpenAI, engine: SearchEngine) -> None:
    models = {model.id: model.to_dict() for model in client.models.list()}
    assert {name: model["role"] for name, model in models.items()} == {
        "docs": "document",
        "docs/query": "query",
        "docs/document": "document",
    }
    for name, model in models.items():
        assert (model["dimensions"], model["max_length"]) == (engine.index.transform.dim, 32)
        assert client.models.retrieve(name).to_dict() == model
    with pytest.raises(openai.NotFoundError, match='unknown model "other"'):
        client.models.retrieve("other")


@pytest.mark.parametrize(
    ("kind", "role"),
    [
        ("query", "query"),
        ("search_query", "query"),
        ("document", "document"),
        ("search_document", "document"),
        ("passage", "document"),
    ],
)
def test_the_role_can_be_said_in_the_words_of_other_apis(
    client: OpenAI, engine: SearchEngine, kind: str, role: Role
) -> None:
    for model in ("docs", f"docs/{role}"):
        (row,) = client.embeddings.create(model=model, input="bread", extra_body={"input_type": kind}).data
        assert np.array_equal(np.array([row.embedding]), np.asarray(engine.embed(["bread"], role)))


# --- refused requests


def test_a_role_that_contradicts_the_model_is_refused(url: str) -> None:
    status, message = fault(post(url, model="docs/query", input_type="passage"))
    assert status == 400
    assert message.startswith('input_type is "passage", but the model "docs/query" is for the other role')
    assert fault(post(url, model="docs/document", input_type="query"))[0] == 400
    assert fault(post(url, input_type="clustering"))[0] == 422


def test_an_unknown_model_raises_an_error_with_the_known_models(client: OpenAI) -> None:
    for model in ("text-embedding-3-small", "docs/", "docs/query/x", "/etc/passwd"):
        with pytest.raises(openai.NotFoundError) as caught:
            client.embeddings.create(model=model, input="bread")
        assert f'unknown model "{model}"; expected one of "docs", "docs/query", "docs/document".' in str(caught.value)


@pytest.mark.parametrize(
    ("given", "place", "message"),
    [
        ([], "input", "is an empty list; expected a text"),
        ("", "input", "is blank"),
        (" \n", "input", "is blank"),
        (["bread", "\t"], "input.1", "is blank"),
        (["bread", None], "input.1", "is of type NoneType; expected text"),
        ({"text": "bread"}, "input", "is of type dict"),
        (None, "input", "is of type NoneType"),
        (True, "input", "is of type bool"),
        ([True], "input.0", "is of type bool"),
        (["x" * 2000, "x" * 2001], "input.1", "2,001 characters; expected at most 2,000"),
        ([1, 2, 3], "input.0", "check_embedding_ctx_length=False"),
        ([[1, 2, 3], [4]], "input.0", "check_embedding_ctx_length=False"),
        (["bread", [4]], "input.1", "check_embedding_ctx_length=False"),
    ],
)
def test_other_values_than_text_are_refused_with_their_place(url: str, given: Any, place: str, message: str) -> None:
    answer = post(url, input=given)
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["message"].startswith(f"{place}: ")
    assert message in error["message"]
    assert (error["param"], error["type"]) == (place, "invalid_request_error")


def test_half_a_surrogate_pair_is_refused(url: str) -> None:
    body = rb'{"model": "docs", "input": ["bread", "\ud83d"]}'
    answer = httpx2.post(
        f"{url}/embeddings", content=body, headers={"Content-Type": "application/json"}, timeout=PATIENCE
    )
    assert fault(answer) == (400, "input.1: contains half a surrogate pair, which is not valid text.")


def test_tokens_are_refused_as_the_client_sends_them(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="check_embedding_ctx_length=False"):
        client.embeddings.create(model="docs", input=[[101, 7592, 102]])


def test_only_the_dimensions_that_there_are(client: OpenAI, engine: SearchEngine) -> None:
    dim = engine.index.transform.dim
    assert len(client.embeddings.create(model="docs", input="bread", dimensions=dim).data[0].embedding) == dim
    with pytest.raises(openai.BadRequestError, match=f"dimensions: is {dim - 1}; the index has {dim}"):
        client.embeddings.create(model="docs", input="bread", dimensions=dim - 1)


def test_fields_that_change_nothing_are_taken_and_others_are_refused(url: str) -> None:
    assert post(url, user="me", safety_identifier="x", dimensions=None, encoding_format=None).status_code == 200
    for name in ("truncate", "prompt", "normalize"):
        status, message = fault(post(url, **{name: "x"}))
        assert (status, message.partition(":")[0]) == (422, name)
    assert fault(post(url, encoding_format="int8"))[0] == 422


def test_more_vectors_than_one_answer_holds_are_refused(folder: Path, serve: Serve) -> None:
    url = serve(folder, "docs", limits=ServerLimits(answer_bytes=10_000))
    status, message = fault(post(f"{url}/v1", input=["a"] * 1000))
    assert status == 400
    assert message.startswith("input: 1,000 texts; an answer has at most")


@pytest.mark.parametrize(
    ("one", "place", "message"),
    [(None, "input.1", "is of type NoneType"), (True, "input.1", "is of type bool"), (7, "input.1", "tokens"),
     (" ", "input.1", "is blank"), ("bread", "input", "300,001 texts; an answer has at most")],
)  # fmt: skip
def test_many_that_are_no_texts_are_one_error(
    folder: Path, url: str, serve: Serve, one: Any, place: str, message: str
) -> None:
    if one == "bread":
        url = serve(folder, "docs", limits=ServerLimits(answer_bytes=1 << 20)) + "/v1"
    given = ["bread"] + [one] * 300_000
    assert EmbeddingRequest.model_validate({"model": "docs", "input": given}).input is given  # pydantic checks none
    error = post(url, input=given).json()["error"]
    assert (error["param"], error["message"].startswith(f"{place}: ")) == (place, True)
    assert message in error["message"]


# --- memory limits


class LeftError(Exception):
    """The client has left."""


async def ask(
    served: ServedIndex, texts: list[str], after: int | None = None, stuck: asyncio.Event | None = None
) -> tuple[int, dict[str, str]]:
    """Return status and headers. The client leaves at the message `after`; with `stuck` it reads no vectors."""
    body = json.dumps({"model": "docs", "input": texts}).encode()
    bodies = iter([{"type": "http.request", "body": body, "more_body": False}])
    sent: list[Any] = []

    async def receive() -> Any:
        for message in bodies:
            return message
        return await asyncio.get_running_loop().create_future()

    async def send(message: Any) -> None:
        if len(sent) == after:
            raise LeftError
        sent.append(message)
        if stuck and message["type"] == "http.response.body":
            stuck.set()
            await asyncio.get_running_loop().create_future()

    await served.api(
        {"type": "http", "asgi": {"version": "3.0", "spec_version": "2.3"}, "http_version": "1.1", "method": "POST",
         "scheme": "http", "path": "/v1/embeddings", "raw_path": b"/v1/embeddings", "query_string": b"",
         "root_path": "", "headers": [(b"content-type", b"application/json")], "server": ("127.0.0.1", 80)},
        receive, send,
    )  # fmt: skip
    return sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}


@contextlib.asynccontextmanager
async def with_room_for_one(folder: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ServedIndex]:
    """A server with memory for the vectors of one request of 16 texts, sent in pieces."""
    engine = SearchEngine(folder)
    monkeypatch.setattr(embeddings, "_PIECE_BYTES", 100)
    limits = ServerLimits(answering_bytes=16 * 4 * engine.index.transform.dim)
    served = serve_engine(engine, ServerSettings("docs", limits=limits))
    try:
        yield served
        assert (await ask(served, SIXTEEN))[0] == 200
    finally:
        await served.service.stop()


SIXTEEN = [f"bread {number}" for number in range(16)]


def test_vectors_of_all_answers_under_way_have_so_much_room(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def run() -> None:
        async with with_room_for_one(folder, monkeypatch) as served:
            for _ in range(3):
                assert (await ask(served, SIXTEEN))[0] == 200
            slow = Slow(served.service)
            held = await slow.held(ask(served, SIXTEEN))
            status, headers = await ask(served, ["bread"])
            assert (status, headers["retry-after"]) == (429, "1")
            slow.go.set()
            assert (await held)[0] == 200
            assert (await ask(served, [*SIXTEEN, "one more"]))[0] == 429
            assert (await ask(served, [*SIXTEEN[:-1], " "]))[0] == 400

    asyncio.run(run())


@pytest.mark.parametrize("after", [0, 1, 3])
def test_a_client_that_leaves_gives_the_room_back(folder: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """At 0, neither sending nor writing of the answer has begun."""

    async def run() -> None:
        async with with_room_for_one(folder, monkeypatch) as served:
            with pytest.raises((LeftError, ExceptionGroup)):
                await ask(served, SIXTEEN, after)

    asyncio.run(run())


@pytest.mark.parametrize("encoding", [True, False])
def test_a_cancelled_request_gives_the_room_back(folder: Path, monkeypatch: pytest.MonkeyPatch, encoding: bool) -> None:
    async def run() -> None:
        async with with_room_for_one(folder, monkeypatch) as served:
            slow, stuck = Slow(served.service), asyncio.Event()
            held = await slow.held(ask(served, SIXTEEN, stuck=stuck))
            if not encoding:
                slow.go.set()
                await stuck.wait()
                assert (await ask(served, SIXTEEN))[0] == 429
            held.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await held
            slow.go.set()

    asyncio.run(run())


def test_vectors_that_came_with_the_corpus_have_no_models(serve: Serve, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(9, 6)).astype(np.float32)
    documents = [Document(f"d{number}", "", vector=row) for number, row in enumerate(rows)]
    config = BuildConfig(encoder=EncoderConfig(kind="vectors"), whitening=WhiteningConfig(centre="common"))
    build_index(documents, tmp_path / "index", config)
    url = serve(tmp_path / "index", "docs") + "/v1"
    assert httpx2.get(f"{url}/models", timeout=PATIENCE).json() == {"object": "list", "data": []}
    search = httpx2.post(f"{url}/vector_stores/docs/search", json={"query": "bread"}, timeout=PATIENCE)
    for answer in (post(url), httpx2.get(f"{url}/models/docs", timeout=PATIENCE), search):
        status, message = fault(answer)
        assert status == 400
        assert message.startswith('The vectors of "docs" came with its corpus, so there is no model')
