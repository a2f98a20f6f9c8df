"""Encoding of texts: order, prefixes, statistics, batches, out-of-memory errors, equal bits."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from indexer.encoders.batching import Batch, BatchPlan, PooledBatch
from indexer.encoders.load import load_encoder
from indexer.encoders.protocol import EncodeStats
from indexer.encoders.transformer import TransformerEncoder
from indexer.errors import ConfigError, CorpusError, MachineError, ModelError
from indexer.models.tokenizer import FastTokenizer
from indexer.recipe.config import EncoderConfig
from indexer.recipe.run_options import RunOptions

WORDS = ("whale", "song", "of", "the", "deep", "sea", "library", "data")
TEXTS = [" ".join(WORDS[(i * j) % 8] for j in range(1 + i % 11)) for i in range(60)]


def load(folder: Path, **settings: Any) -> TransformerEncoder:
    encoder = load_encoder(
        EncoderConfig(model=str(folder), **{"max_length": 64, "precision": "float32", **settings}),
        RunOptions(threads=1),
    )
    assert isinstance(encoder, TransformerEncoder)
    return encoder


@pytest.fixture
def bert(tiny_model: Callable[[str], Path]) -> Path:
    return tiny_model("bert")


@settings(deadline=None)
@given(st.lists(st.integers(0, 300), max_size=60), st.integers(1, 500), st.booleans(), st.sampled_from([1, 8]))
def test_a_plan_holds_every_text_once_within_the_budget(
    lengths: list[int], budget: int, exact: bool, multiple: int
) -> None:
    plan = BatchPlan(budget, exact, multiple)
    batches = [batch.tolist() for batch in plan(lengths)]
    assert sorted(i for batch in batches for i in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * plan.padded(max(lengths[i] for i in batch)) <= budget
    firsts = [lengths[batch[0]] for batch in batches]
    assert firsts == sorted(firsts, reverse=True)


@given(st.lists(st.integers(1, 12), max_size=200), st.integers(1, 60))
def test_an_exact_plan_pads_only_what_does_not_fill_a_batch(lengths: list[int], budget: int) -> None:
    """Of n texts of one length, at most n modulo the batch size share a batch with other lengths."""
    batches = [[lengths[i] for i in batch] for batch in BatchPlan(budget, exact=True)(lengths)]
    for length in set(lengths):
        rows = max(1, budget // length)
        alone = sum(len(batch) for batch in batches if set(batch) == {length})
        assert lengths.count(length) - alone <= lengths.count(length) % rows


def test_texts_of_equal_length_keep_their_order() -> None:
    for exact in (False, True):
        assert [batch.tolist() for batch in BatchPlan(10, exact)([2, 5, 2, 5, 2])] == [[1, 3], [0, 2, 4]]


def test_rows_come_back_in_the_order_of_the_texts(bert: Path) -> None:
    encoder = load(bert)
    alone = np.concatenate([encoder.encode([text], "document") for text in TEXTS])
    np.testing.assert_allclose(encoder.encode(TEXTS, "document"), alone, atol=1e-5)
    np.testing.assert_allclose(encoder.encode(TEXTS[::-1], "document"), alone[::-1], atol=1e-5)


def test_no_texts_give_no_rows(bert: Path) -> None:
    encoder = load(bert)
    assert encoder.encode([], "document").shape == (0, encoder.dim) == (0, 32)


def test_groups_change_rounding_only(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, log = load(bert), EncodeStats()
    whole = encoder.encode(TEXTS, "document", log)
    grouped_log = EncodeStats()
    monkeypatch.setattr(encoder, "_group", 7)
    np.testing.assert_allclose(encoder.encode(TEXTS, "document", grouped_log), whole, atol=1e-5)
    assert grouped_log.lengths == log.lengths


def test_the_role_selects_the_prefix(bert: Path) -> None:
    plain = load(bert)
    prefixed = load(bert, query_prompt="find: ", document_prompt="the ")
    for role, prefix in (("query", "find: "), ("document", "the ")):
        want = plain.encode([prefix + text for text in TEXTS], role)  # type: ignore[arg-type]
        assert np.array_equal(prefixed.encode(TEXTS, role), want)  # type: ignore[arg-type]


@pytest.mark.parametrize("role", ["query", "document"])
def test_texts_of_every_group_take_the_prefix_of_their_role(
    role: Any, bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = load(bert, query_prompt="find: ", document_prompt="the ")
    whole = encoder.encode(TEXTS, role)
    monkeypatch.setattr(encoder, "_group", 7)
    np.testing.assert_allclose(encoder.encode(TEXTS, role), whole, atol=1e-5)


def test_batches_are_padded_to_the_multiple_of_their_plan(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder, widths = load(bert), list[int]()
    expected = encoder.encode(TEXTS, "document")
    given = encoder.runner.run

    def watched(batches: Iterable[Batch], keys: Any) -> Iterator[PooledBatch]:
        batches = list(batches)
        widths.extend(batch.ids.shape[1] for batch in batches)
        return given(batches, keys)

    monkeypatch.setattr(encoder, "plan", BatchPlan(256, exact=False, multiple=8))
    monkeypatch.setattr(encoder.runner, "run", watched)
    np.testing.assert_allclose(encoder.encode(TEXTS, "document"), expected, atol=1e-5)
    assert set(widths) == {8, 16}


def test_lengths_are_those_before_truncation_and_cut_texts_are_counted(bert: Path) -> None:
    encoder, log = load(bert, max_length=5), EncodeStats()
    encoder.encode(["of the", "of the deep sea", "of the deep sea song"], "document", log)
    encoder.encode(["whale"], "query", log)
    assert log.lengths == [4, 6, 7, 3]
    assert log.truncated == 2


def test_each_batch_is_reported_with_its_texts_and_tokens(bert: Path) -> None:
    seen: list[tuple[int, int]] = []
    log = EncodeStats(on_batch=lambda texts, tokens: seen.append((texts, tokens)))
    load(bert, batch_tokens=32).encode(TEXTS, "document", log)
    assert len(seen) > 2
    assert sum(texts for texts, _ in seen) == len(TEXTS)
    assert sum(tokens for _, tokens in seen) == sum(log.lengths)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("model", ["", pytest.param(EncoderConfig.model, marks=pytest.mark.check)])
def test_the_same_texts_give_the_same_bits_for_any_number_of_threads(model: str, precision: str, bert: Path) -> None:
    """Bits are equal even with matrices so small that a product split over threads would sum in another order."""
    config = EncoderConfig(model=model or str(bert), max_length=64, precision=precision, batch_tokens=32)  # type: ignore[arg-type]
    encoders = [load_encoder(config, RunOptions(device="cpu", threads=threads)) for threads in (1, 2, 3)]
    rows = [encoder.encode(TEXTS, "document").tobytes() for encoder in encoders]
    assert [encoder.runner.lanes for encoder in encoders if isinstance(encoder, TransformerEncoder)] == [1, 2, 3]
    assert rows[0] == rows[1] == rows[2]


def test_encoding_leaves_the_threads_of_torch_as_they_were(bert: Path) -> None:
    before = torch.get_num_threads()
    load_encoder(EncoderConfig(model=str(bert), max_length=64), RunOptions(threads=2)).encode(TEXTS, "document")
    assert torch.get_num_threads() == before
    load_encoder(EncoderConfig(model=str(bert), max_length=64), RunOptions(threads=1))
    assert torch.get_num_threads() == 1


MESSAGES = [
    "[enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to ...",
    "[enforce fail at alloc_cpu.cpp:127] data. DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes.",
]
ERRORS = [torch.OutOfMemoryError("CUDA out of memory."), *(RuntimeError(message) for message in MESSAGES)]


def fail_above(encoder: TransformerEncoder, rows: int, error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    model = encoder.runner.model.model
    forward = model.forward

    def limited(input_ids: torch.Tensor, **inputs: Any) -> Any:
        if len(input_ids) > rows:
            raise error
        return forward(input_ids=input_ids, **inputs)

    monkeypatch.setattr(model, "forward", limited)


@pytest.mark.parametrize("error", ERRORS)
def test_a_batch_that_does_not_fit_is_halved_and_counted(
    bert: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    encoder, log = load(bert, batch_tokens=10_000), EncodeStats()
    want = encoder.encode(TEXTS, "document")
    fail_above(encoder, 15, error, monkeypatch)
    np.testing.assert_allclose(encoder.encode(TEXTS, "document", log), want, atol=1e-5)
    assert log.retries == 3  # 60 texts; 30 and 30; four times 15
    assert len(log.lengths) == len(TEXTS)


def test_a_single_text_that_does_not_fit_is_an_error_with_its_length(
    bert: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder = load(bert)
    fail_above(encoder, 0, ERRORS[0], monkeypatch)
    with pytest.raises(MachineError, match=r"a text of 7 tokens does not fit .* encoder\.max_length"):
        encoder.encode(["of the deep sea song"], "document")


def test_other_errors_of_torch_are_not_retried(bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = load(bert)
    fail_above(encoder, 0, RuntimeError("shapes do not match"), monkeypatch)
    with pytest.raises(ModelError, match="cannot run on cpu: RuntimeError: shapes do not match"):
        encoder.encode(["whale"], "document")


def test_bfloat16_is_close_to_float32_on_the_real_model() -> None:
    full = load_encoder(EncoderConfig(precision="float32"), RunOptions(threads=1)).encode(SENTENCES, "document")
    half = load_encoder(EncoderConfig(precision="bfloat16"), RunOptions(threads=1)).encode(SENTENCES, "document")
    assert half.dtype == np.float32
    cosines = (unit(full) * unit(half)).sum(axis=1)
    assert cosines.min() > 0.999


SENTENCES = ["how do whales sing", "Whale song is a pattern of sounds.", "A library of data structures in C."]


def unit(rows: Any) -> Any:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def test_the_precision_class_decides_the_numbers_whatever_the_weights_were_stored_in(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("indexer.encoders.device.bfloat16_is_faster", lambda: True)  # else the class runs in float32
    stored = Path(shutil.copytree(bert, tmp_path / "half"))
    tensors = {name: tensor.half() for name, tensor in load_file(bert / "model.safetensors").items()}
    save_file(tensors, stored / "model.safetensors", metadata={"format": "pt"})
    settings = json.loads((stored / "config.json").read_text(encoding="utf-8"))
    (stored / "config.json").write_text(json.dumps({**settings, "dtype": "float16"}), encoding="utf-8")
    for precision, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        encoder = load(stored, precision=precision)
        assert {parameter.dtype for parameter in encoder.runner.model.parameters()} == {encoder.runner.dtype} == {dtype}
        assert encoder.encode(TEXTS, "document").dtype == np.float32


def test_a_text_that_is_not_unicode_is_named(bert: Path) -> None:
    with pytest.raises(CorpusError, match=r"'b \\ud800' is not valid Unicode"):
        load(bert).encode(["a", "b \ud800"], "query")


def test_non_finite_results_are_returned_as_they_are(bert: Path) -> None:
    encoder = load(bert)
    with torch.no_grad():
        encoder.runner.model.model.get_parameter("embeddings.LayerNorm.bias")[0] = float("nan")
    assert np.isnan(encoder.encode(["whale"], "document")).any()


def test_a_tokenizer_larger_than_the_model_is_refused(bert: Path) -> None:
    encoder = load(bert)
    run = encoder.tokenizer.run
    assert isinstance(run, FastTokenizer)
    run.tokenizer.add_tokens(["zebra"])
    with pytest.raises(ModelError, match=r"returns token 207, but the model has embeddings for 207"):
        encoder.encode(["zebra"], "document")


def test_a_length_that_leaves_no_room_between_special_tokens_is_refused(bert: Path) -> None:
    with pytest.raises(ConfigError, match="2 tokens are special tokens; expected at least 3"):
        load(bert, max_length=2)


def test_loads_at_the_same_time_leave_torchs_default_type_as_it_was(bert: Path) -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda precision: load(bert, precision=precision), ["bfloat16", "float32"] * 6))
    assert torch.get_default_dtype() == torch.float32


def test_loading_prints_nothing_and_leaves_logging_as_it_was(bert: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from transformers.utils import logging as transformers_logging

    before = transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()
    load(bert, layers=(1,))
    assert capfd.readouterr() == ("", "")
    assert (transformers_logging.is_progress_bar_enabled(), transformers_logging.get_verbosity()) == before


def test_the_package_and_resolving_a_model_load_no_numerical_library() -> None:
    code = (
        "import sys, indexer.encoders.protocol\n"
        "from indexer.models.resolution import resolve_spec\n"
        "from indexer.recipe.config import EncoderConfig\n"
        "resolve_spec(EncoderConfig())\n"
        "print([m for m in ('numpy', 'torch', 'transformers', 'tokenizers') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("changes", [{"attention_dropout": -1}, {"dropout": 7}])
def test_a_setting_that_only_shows_when_a_model_runs_is_an_error_of_the_model(
    tiny_model: Callable[[str], Path], tmp_path: Path, changes: dict[str, Any]
) -> None:
    folder = Path(shutil.copytree(tiny_model("xlm"), tmp_path / "xlm"))
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    (folder / "config.json").write_text(json.dumps(config | changes), encoding="utf-8")
    with pytest.raises(ModelError, match="cannot run on cpu: ValueError: dropout probability"):
        load(folder).encode(["whale"], "document")
