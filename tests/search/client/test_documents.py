"""Both clients return the stored documents and the vectors of the engine."""

import json
import subprocess
import sys
from base64 import b64encode
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer import BuildConfig, Document, build_index
from indexer.errors import ConfigError, MachineError, UnknownDocumentError
from indexer.recipe.config import EncoderConfig, Role
from search import SearchEngine
from tests.search.client.conftest import Reply
from tests.servers import live_server

ODD = ["..", "a/b?c=d#e%2F", "ä b+c", "line\nbreak", '"&optional=false']
TEXTS = [f"thing {number} of {number % 3}" for number in range(150)]


@pytest.fixture(scope="module")
def odd(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of documents whose ids have a meaning in URLs."""
    index = tmp_path_factory.mktemp("odd") / "index"
    documents = [Document(name, f"Text {place}", metadata={"n": place}) for place, name in enumerate([*ODD, "x", "y"])]
    build_index(documents, index, BuildConfig(encoder=EncoderConfig(model=str(tiny_model("bert")), max_length=16)))
    return index


def test_a_document_is_the_stored_one_whatever_its_id(connect: Any, odd: Path) -> None:
    with live_server(odd) as server, SearchEngine(odd) as engine, connect(server.url) as client:
        assert [client.document(name) for name in ODD] == [engine.document(name) for name in ODD]
        assert client.documents(reversed(ODD)) == [engine.document(name) for name in reversed(ODD)]


def test_documents_come_in_order_without_missing_ones(connect: Any, url: str) -> None:
    ids = ["d9", "none", "d3", "d9", *(f"d{number}" for number in range(30))]
    with connect(url) as client:
        assert [document.id for document in client.documents(ids)] == [name for name in ids if name != "none"]
        assert client.documents([]) == client.documents(["none"]) == []
        assert client.document("d3").metadata["day"] == "2003-01-02"  # JSON has no dates
        with pytest.raises(UnknownDocumentError, match=r'no document with id "d99" \(did you mean "d9"'):
            client.document("d99")
        with pytest.raises(ConfigError, match="ids is one string; expected a list of "):
            client.documents("d3")
        with pytest.raises(ConfigError, match="the id 2 is not valid text"):
            client.documents(["d3", "\udc80"])


@pytest.mark.parametrize("role", ["query", "document"])
def test_vectors_are_those_of_the_engine(connect: Any, url: str, engine: SearchEngine, role: Role) -> None:
    with connect(url) as client:
        vectors, expected = client.embed(TEXTS, role), np.asarray(engine.embed(TEXTS, role))
        assert (vectors.dtype, vectors.shape) == (np.float32, expected.shape)
        assert np.abs(vectors - expected).max() < 1e-5
        assert client.embed([], role).shape == (0, expected.shape[1])
        assert np.array_equal(client.embed(iter(TEXTS[:2]), role), client.embed(TEXTS[:2], role))


def test_texts_without_a_vector_are_refused(connect: Any, url: str) -> None:
    with connect(url) as client:
        for texts, role, said in (
            ("one text", "query", "texts is one string"),
            (["x", " "], "query", "text 2 is blank"),
            (["x", "\udc80"], "query", "text 2 is not valid text"),
            (["x"], "passage", 'role is \'passage\'; expected "query" or "document"'),
            (["x" * 200_000], "query", r"200,000 characters; expected at most 100,000"),
        ):
            with pytest.raises(ConfigError, match=said):
                client.embed(texts, role)


def models(*names: str) -> Reply:
    rows = [{"id": name, "role": "query", "dimensions": 2} for name in names]
    return 200, {}, json.dumps({"data": rows}).encode()


def vectors(*rows: Any, generation: int = 1) -> Reply:
    data = [{"index": place, "embedding": row} for place, row in enumerate(rows)]
    return 200, {}, json.dumps({"data": data, "index": {"generation": generation}}).encode()


ROW = b64encode(np.array([0.6, 0.8], "<f4").tobytes()).decode()


def test_vectors_are_checked(connect: Any, stranger: Callable[..., str]) -> None:
    for replies, error, said in (
        ([models()], ConfigError, "the index has no encoder"),
        ([models("i/query"), vectors()], ConfigError, "0 vectors for 1 texts"),
        ([models("i/query"), vectors("?")], ConfigError, "not float32 in base64"),
        ([models("i/query"), vectors(ROW[:4])], ConfigError, "not float32 in base64"),
        ([models("i/query"), vectors([0.6, 0.8])], ConfigError, "not an Isotrope server"),
    ):
        with connect(stranger(*replies)) as client, pytest.raises(error, match=said):
            client.embed(["x"])
    unequal = [models("i/query"), vectors(ROW, ROW[:-4]), vectors(ROW, ROW)]
    with connect(stranger(*unequal)) as client, pytest.raises(ConfigError, match="of one length"):
        client.embed(["x", "y"])


def test_vectors_of_two_generations_are_refused(connect: Any, stranger: Callable[..., str]) -> None:
    first, second = (vectors(*[ROW] * count, generation=number) for number, count in ((1, 64), (2, 64)))
    with (
        connect(stranger(models("i/query"), first, second)) as client,
        pytest.raises(MachineError, match="from generation 1 to 2 during the requests"),
    ):
        client.embed(["x"] * 128)


def test_another_name_of_the_server_is_found_out_after_one_error(connect: Any, stranger: Callable[..., str]) -> None:
    body = {"error": {"message": 'unknown model "a/query"; expected one of "b".', "param": "model"}}
    unknown: Reply = (404, {}, json.dumps(body).encode())
    replies = [models("a/query"), vectors(ROW), unknown, models("b/query"), vectors(ROW)]
    with connect(stranger(*replies)) as client:
        assert client.embed(["x"]).tolist() == [[np.float32(0.6), np.float32(0.8)]]
        with pytest.raises(ConfigError, match="unknown model"):
            client.embed(["x"])
        assert len(client.embed(["x"])) == 1


@pytest.mark.parametrize("name", ["SearchClient", "AsyncSearchClient"])
def test_a_search_by_a_client_loads_no_numerical_library(url: str, name: str) -> None:
    call = "client.search_many(['thing 3', 'thing 4']), client.documents(['d1', 'd2'])"
    code = f"with {name}({url!r}) as client: hits, stored = {call}"
    if name.startswith("Async"):
        call = call.replace("client.", "await client.")
        code = f"async def ask():\n    async with {name}({url!r}) as client: return {call}\nhits, stored = run(ask())"
    script = f"import sys\nfrom asyncio import run\nfrom search import {name}\n{code}\nassert hits[0] and stored[1]"
    command = [sys.executable, "-c", f"{script}\nprint(*sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not {"numpy", "torch", "transformers", "faiss", "pyarrow", "duckdb", "pandas"} & set(done.stdout.split())
