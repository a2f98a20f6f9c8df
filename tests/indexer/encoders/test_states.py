"""`states` returns many layers and poolings from one forward pass per text, equal to the rows of `encode`."""

import contextlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer.encoders.batching import Batch, PooledBatch
from indexer.encoders.load import load_encoder
from indexer.encoders.protocol import EncodeStats
from indexer.encoders.transformer import TransformerEncoder
from indexer.errors import ConfigError
from indexer.recipe.config import EncoderConfig, PoolingMode
from indexer.recipe.run_options import Backend, RunOptions
from tests.tiny_models import architecture_cases

TEXTS = ["a whale sings in the deep sea", "a library", "of the data of the library", "deep", "the song of the whale"]
AVERAGES = [(1,), (-1,), (1, -1), (0, 1, -1)]
POOLINGS: list[PoolingMode] = ["mean", "cls", "max"]
KEYS = list(product(AVERAGES, POOLINGS))


def load(folder: Path, **settings: Any) -> TransformerEncoder:
    encoder = load_encoder(
        EncoderConfig(model=str(folder), **{"max_length": 64, "precision": "float32", **settings}),
        RunOptions(threads=1),
    )
    assert isinstance(encoder, TransformerEncoder)
    return encoder


@pytest.mark.parametrize("architecture", architecture_cases("bert", "gpt2"))
def test_each_state_is_what_encode_gives_for_its_setting(architecture: str, tiny_model: Callable[[str], Path]) -> None:
    folder = tiny_model(architecture)
    states = load(folder, layers=(0, 1, -1)).states(TEXTS, KEYS)
    assert list(states) == KEYS
    for (average, pooling), rows in states.items():
        expected = load(folder, layers=average, pooling=pooling).encode(TEXTS, "document")
        np.testing.assert_allclose(rows, expected, atol=1e-5)


def test_all_states_cost_one_forward_pass_a_text(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, passed = load(tiny_model("bert"), layers=(0, 1, -1), batch_tokens=24), []
    model = encoder.runner.model.model
    forward = model.forward

    def counting(*args: Any, **kwargs: Any) -> Any:
        passed.append(len(kwargs["input_ids"]))
        return forward(*args, **kwargs)

    monkeypatch.setattr(model, "forward", counting)
    log = EncodeStats()
    encoder.states(TEXTS, KEYS, "document", log)
    assert sum(passed) == len(TEXTS) == len(log.lengths)


def test_texts_are_counted_once_however_many_widths_are_asked_for(tiny_model: Callable[[str], Path]) -> None:
    """Each width of embeddings takes a separate forward pass."""
    encoder = load(tiny_model("bert"))

    class TwoWidths:
        """A runner whose rows contain the number of the pass."""

        turn = contextlib.nullcontext()
        vocabulary = 10**6

        def width(self, pooling: str) -> int:
            return {"mean": 2, "max": 2, "cls": 3}[pooling]

        def run(self, batches: Iterable[Batch], keys: Sequence[Any]) -> Iterator[PooledBatch]:
            for batch in batches:
                yield PooledBatch(np.ones((len(keys), len(batch), self.width(keys[0][1])), np.float32), retries=1)

    encoder.runner = TwoWidths()  # type: ignore[assignment]
    log = EncodeStats()
    found = encoder.states(TEXTS, [((-1,), "mean"), ((-1,), "cls"), ((-1,), "max")], "document", log)
    assert [rows.shape for rows in found.values()] == [(len(TEXTS), 2), (len(TEXTS), 2), (len(TEXTS), 3)]
    assert len(log.lengths) == len(TEXTS)
    assert log.retries <= len(TEXTS)


def test_a_batch_halved_for_memory_keeps_the_order_of_states_and_texts(
    tiny_model: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, log = load(tiny_model("bert"), layers=(1, -1)), EncodeStats()
    expected = encoder.states(TEXTS, [((1,), "mean"), ((-1,), "mean")])
    whole = encoder.runner._computed

    def small(forward: Any, transfers: Any, batch: Any) -> Any:
        if len(batch) > 2:
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes.")
        return whole(forward, transfers, batch)

    monkeypatch.setattr(encoder.runner, "_computed", small)
    found = encoder.states(TEXTS, [((1,), "mean"), ((-1,), "mean")], "document", log)
    assert log.retries > 0
    for key, rows in expected.items():
        np.testing.assert_allclose(found[key], rows, atol=1e-5)


@pytest.mark.parametrize("backend", ["torch", "numpy", pytest.param("openvino", marks=pytest.mark.check)])
def test_callers_at_the_same_time_get_what_each_gets_alone(backend: Backend, tiny_model: Callable[[str], Path]) -> None:
    config = EncoderConfig(model=str(tiny_model("bert")), max_length=64, precision="float32", layers=(0, 1, -1))
    encoder = load_encoder(config, RunOptions(threads=1, backend=backend))
    tokens = encoder.tokenize(TEXTS, "document")
    calls: list[Callable[[], Any]] = [
        lambda: encoder.encode(TEXTS, "document"),
        lambda: encoder.states(TEXTS, [((1,), "max"), ((0,), "cls")])[(1,), "max"],
        lambda: encoder.states(TEXTS, [((0, 1), "mean")])[(0, 1), "mean"],
    ]
    if isinstance(encoder, TransformerEncoder):
        calls.append(lambda: encoder.token_vectors(tokens, (1,)))
    alone = [call() for call in calls]
    with ThreadPoolExecutor(8) as pool:
        together = list(pool.map(lambda call: call(), calls * 8))
    for number, rows in enumerate(together):
        assert np.array_equal(rows, alone[number % len(calls)])


def test_the_role_selects_the_prefix(tiny_model: Callable[[str], Path]) -> None:
    plain = load(tiny_model("bert"))
    prefixed = load(tiny_model("bert"), query_prompt="song ")
    found = prefixed.states(TEXTS, [((-1,), "mean")], "query")[(-1,), "mean"]
    assert np.array_equal(found, plain.encode([f"song {text}" for text in TEXTS], "document"))


@pytest.mark.parametrize("average", [(0,), (1, 0), ()])
def test_layers_that_were_not_loaded_are_refused(average: tuple[int, ...], tiny_model: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match=r"loaded for \[1\]\. Fix: name every layer in encoder\.layers"):
        load(tiny_model("bert"), layers=(1,)).states(TEXTS, [(average, "mean")])


def test_a_layer_the_model_does_not_have_is_refused(tiny_model: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match=r"encoder\.layers has 99"):
        load(tiny_model("bert")).states(TEXTS, [((99,), "mean")])


def test_no_texts_give_no_rows(tiny_model: Callable[[str], Path]) -> None:
    assert load(tiny_model("bert")).states([], [((-1,), "mean")])[(-1,), "mean"].shape == (0, 32)
