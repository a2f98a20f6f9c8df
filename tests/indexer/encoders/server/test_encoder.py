"""The encoder of a server: batches, probes, prompts, sizes; and texts counted in words."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.encoders.load import load_encoder
from indexer.encoders.protocol import EncodeStats, with_query_prompt
from indexer.encoders.server import client
from indexer.encoders.server.client import EmbeddingClient
from indexer.encoders.server.encoder import BATCH_TEXTS, BATCH_TOKENS
from indexer.encoders.server.probes import BOUND, FILE, PROBE_TOKENS, PROBES, probe_bytes, read_probes
from indexer.encoders.server.words import WordTokenizer, count_pieces, texts_of
from indexer.encoders.windows import Chunker
from indexer.errors import ConfigError, CorpusError, MachineError, MismatchError, ModelError
from indexer.recipe.config import EncoderConfig
from indexer.recipe.run_options import RunOptions
from tests.embedding_servers import Model, StubServer, data, status, stub_server, words_model

TEXTS = [f"whale number {number} sings" for number in range(100)]


@pytest.fixture
def stub() -> Iterator[StubServer]:
    with stub_server() as running:
        yield running


def encoder_of(stub: StubServer, options: RunOptions = RunOptions(), **settings: Any) -> Any:  # noqa: B008 - frozen
    return load_encoder(EncoderConfig(kind="server", model="m", url=stub.url, **settings), options)


def expected(texts: list[str], model: Model | None = None) -> npt.NDArray[np.float32]:
    return (model or words_model())(texts).astype(np.float32)


@pytest.mark.parametrize("parallel", [1, 8])
def test_rows_are_the_servers_in_order(stub: StubServer, parallel: int) -> None:
    log, seen = EncodeStats(), list[tuple[int, int]]()
    log.on_batch = lambda texts, tokens: seen.append((texts, tokens))
    rows = encoder_of(stub, RunOptions(requests=parallel)).encode(TEXTS, "document", log)
    assert rows.tobytes() == expected(TEXTS).tobytes()
    assert log.lengths == [count_pieces(text) for text in TEXTS]
    assert (sum(texts for texts, _ in seen), sum(tokens for _, tokens in seen)) == (100, sum(log.lengths))
    assert sorted(stub.documents) == sorted(TEXTS)


def test_each_request_has_a_bounded_size_and_a_probe(stub: StubServer) -> None:
    long = "word " * (BATCH_TOKENS // 2)
    encoder_of(stub).encode([*TEXTS, long, long, long, "short"], "document")
    probes, *batches = stub.requests
    assert probes == list(PROBES)
    assert all(batch[0] in PROBES and not {*batch[1:]} & {*PROBES} for batch in batches)
    assert sorted(len(batch) - 1 for batch in batches) == sorted([BATCH_TEXTS] * 3 + [8, 2, 1])
    assert all(sum(map(count_pieces, batch[1:])) <= BATCH_TOKENS for batch in batches)


def test_each_half_of_a_batch_that_is_too_large_has_a_probe(stub: StubServer) -> None:
    """A model that answers requests without a probe, as one of several servers behind a load balancer might."""
    stub.model = lambda texts: words_model(seed=int(not {*texts} & {*PROBES}))(texts)
    stub.most_texts = len(PROBES)
    assert encoder_of(stub).encode(TEXTS, "document").tobytes() == expected(TEXTS).tobytes()


def test_blank_texts_are_sent_as_a_full_stop(stub: StubServer) -> None:
    assert (
        encoder_of(stub).encode(["", " ", "a word"], "document").tobytes() == expected([".", ".", "a word"]).tobytes()
    )


def test_the_same_texts_are_sent_with_the_same_probes(stub: StubServer) -> None:
    encoder = encoder_of(stub)
    encoder.encode(TEXTS, "document")
    before = stub.requests[1:]
    encoder.encode(TEXTS, "document")
    assert sorted(stub.requests[1 + len(before) :]) == sorted(before)


def test_a_question_is_one_request_and_brings_the_probes_once(stub: StubServer) -> None:
    encoder = encoder_of(stub)
    for number in range(3):
        assert encoder.encode([TEXTS[number]], "query").tobytes() == expected([TEXTS[number]]).tobytes()
    assert stub.requests == [[*PROBES, TEXTS[0]], [TEXTS[1]], [TEXTS[2]]]


def test_embed_returns_what_encode_returns_and_watches_single_requests_too(stub: StubServer) -> None:
    encoder = encoder_of(stub, document_prompt="passage: ")
    tokens = encoder.tokenize(TEXTS[:20], "document")
    assert encoder.embed(tokens).tobytes() == encoder.encode(TEXTS[:20], "document").tobytes()
    assert [text for text in stub.requests[1] if text in PROBES] == stub.requests[1][:1]
    assert encoder.embed(tokens.part(3, 3)).shape == (0, 16)


def test_each_role_has_its_prompt(stub: StubServer) -> None:
    encoder = encoder_of(stub, query_prompt="query: ", document_prompt="passage: ")
    encoder.encode(["whale"], "query")
    encoder.encode(["whale"], "document")
    with_query_prompt(encoder, "ask: ").encode(["whale"], "query")
    assert stub.documents == ["query: whale", "passage: whale", "ask: whale"]


def test_rows_are_cut_before_anything_else(stub: StubServer) -> None:
    encoder = encoder_of(stub, truncate_dim=5)
    assert encoder.dim == 5
    assert encoder.encode(TEXTS, "document").tobytes() == np.ascontiguousarray(expected(TEXTS)[:, :5]).tobytes()
    with pytest.raises(ConfigError, match="truncate_dim is 17, but embeddings of m have 16 dimensions"):
        _ = encoder_of(stub, truncate_dim=17).dim


@pytest.mark.parametrize("model", [words_model(seed=1), lambda texts: 1.1 * words_model()(texts)])
def test_another_model_from_the_middle_on_is_refused_with_the_numbers(stub: StubServer, model: Model) -> None:
    encoder = encoder_of(stub)
    encoder.encode(TEXTS, "document")
    stub.model = model
    message = r"m is no longer the model of the first use: .* \"(.+)\" has cosine .* relative difference of .*at most"
    with pytest.raises(MismatchError, match=message):
        encoder.encode(TEXTS, "document")
    with pytest.raises(MismatchError, match=message):
        encoder.embed(encoder.tokenize(TEXTS[:1], "document"))


def test_another_size_from_the_middle_on_is_refused_with_the_numbers(stub: StubServer) -> None:
    encoder = encoder_of(stub)
    encoder.encode(TEXTS[:1], "document")
    stub.faults = [data(lambda rows: [{**row, "embedding": row["embedding"][:7]} for row in rows])]
    with pytest.raises(MismatchError, match="have 7 numbers; expected 16"):
        encoder.encode(TEXTS[:1], "document")


def test_rounding_is_accepted(stub: StubServer) -> None:
    encoder, model = encoder_of(stub), words_model()
    encoder.encode(TEXTS, "document")
    noise = np.random.default_rng(0)
    stub.model = lambda texts: model(texts) * (1 + 0.4 * BOUND * noise.standard_normal((len(texts), 16)))
    encoder.encode(TEXTS, "document")


def test_one_failing_request_ends_the_call(stub: StubServer) -> None:
    encoder = encoder_of(stub)
    encoder.encode(TEXTS[:1], "document")
    stub.faults = [data(lambda rows: rows[1:])]
    with pytest.raises(ModelError, match=r"31 rows for 32 texts|7 rows for 8 texts"):
        encoder.encode(TEXTS, "document")


def test_a_question_waits_less_long_for_a_failing_server_than_a_build(
    stub: StubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = list[float]()
    monkeypatch.setattr(client, "wait", lambda seconds, _: waited.append(seconds))
    encoder = encoder_of(stub)
    encoder.encode(TEXTS[:1], "query")
    stub.faults = [status(500)] * 100
    with pytest.raises(MachineError, match="status 500"):
        encoder.encode(TEXTS[:1], "query")
    assert 0 < sum(waited) <= 10
    waited.clear()
    with pytest.raises(MachineError, match="Gave up after 8 attempts"):
        encoder.embed(encoder.tokenize(TEXTS[:1], "document"))
    assert sum(waited) > 60


def test_layers_and_poolings_cannot_be_chosen(stub: StubServer) -> None:
    encoder = encoder_of(stub)
    own = encoder.spec.identity.key
    assert encoder.states(TEXTS, [own])[own].tobytes() == expected(TEXTS).tobytes()
    with pytest.raises(ConfigError, match="its layers and poolings cannot be chosen"):
        encoder.states(TEXTS, [((), "mean")])


def test_a_backend_is_refused(stub: StubServer) -> None:
    with pytest.raises(ConfigError, match="leave out backend"):
        encoder_of(stub, RunOptions(backend="torch"))


# --- probes


def test_stored_probes_are_read_as_written(tmp_path: Path) -> None:
    rows = expected(list(PROBES))
    (tmp_path / FILE).write_bytes(probe_bytes(rows))
    assert read_probes(tmp_path).tobytes() == rows.tobytes()
    for damaged in (b"", probe_bytes(rows[1:]), probe_bytes(rows * np.float32(np.nan))):
        (tmp_path / FILE).write_bytes(damaged)
        with pytest.raises(ModelError, match=r"probes\.npy"):
            read_probes(tmp_path)


def test_the_probes_are_fixed() -> None:
    """Other texts would make every stored probe another model."""
    assert len(PROBES) == 16
    assert hashlib.sha256("\0".join(PROBES).encode()).hexdigest()[:16] == "36c41aea8cf99c92"
    assert abs(np.mean([count_pieces(probe) for probe in PROBES]) - PROBE_TOKENS) < 1


# --- words


@given(st.lists(st.text(max_size=40), max_size=5))
def test_ids_are_the_texts(texts: list[str]) -> None:
    valid = [text.encode("utf-8", "replace").decode() for text in texts]
    tokens = WordTokenizer()(valid)
    assert texts_of(tokens) == valid
    for number, text in enumerate(valid):
        assert texts_of(tokens.part(number, number + 1)) == [text]
        assert tokens.lengths[number] == max(1, len(WordTokenizer().offsets([text])[0].starts))


def test_half_a_surrogate_is_refused() -> None:
    with pytest.raises(CorpusError, match="lone surrogate"):
        WordTokenizer()(["good", "\ud800"])


@pytest.mark.parametrize(
    ("text", "pieces"),
    [
        ("The whale sings.", ["The", "whale", "sings", "."]),
        ("internationalisation", ["intern", "ationa", "lisati", "on"]),
        ("今日は good", ["今", "日", "は", "good"]),
        ("a-b_c 3.14", ["a", "-", "b_c", "3", ".", "14"]),
        ("", []),
    ],
)
def test_pieces_are_words_marks_and_ideographs(text: str, pieces: list[str]) -> None:
    (offsets,) = WordTokenizer().offsets([text])
    assert [text[start:].startswith(piece) for start, piece in zip(offsets.starts, pieces, strict=True)] == [
        True
    ] * len(pieces)
    assert count_pieces(text) == max(1, len(pieces))


def test_windows_have_at_most_the_pieces_of_the_recipe() -> None:
    text = " ".join(f"word{number}." for number in range(300))
    windows = Chunker(WordTokenizer().offsets, tokens=50, overlap=10)([text])
    pieces = windows.texts([text])
    assert max(map(count_pieces, pieces)) <= 50
    assert {word for piece in pieces for word in piece.split()} == set(text.split())


def test_a_client_needs_no_model_to_be_opened() -> None:
    assert EmbeddingClient("http://127.0.0.1:9/v1", "m").host == "127.0.0.1:9"
