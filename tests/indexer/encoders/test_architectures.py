"""Every architecture of the paper's Table 2: any layer and pooling equals a plain run of the full model."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch

from indexer.encoders.load import load_encoder
from indexer.encoders.protocol import EncodeStats
from indexer.encoders.transformer import TransformerEncoder
from indexer.models.hub import quiet_transformers
from indexer.recipe.config import EncoderConfig
from indexer.recipe.run_options import RunOptions
from tests.tiny_models import architecture_cases

TEXTS = [
    "whale",
    "The whales sing in the deep sea.",
    "a",
    "Data for the library; a song of the sea, and of the deep, and of nothing else at all.",
    "of the of the of the",
    "X1 y2 Z3!",
]
MODES = ("cls", "mean", "max")
IN_FULL = (
    "modernbert",
    "nomic",
    "gte",
    "qwen2",
    "qwen3",
    "mistral",
    "gemma3",
    "embeddinggemma",
)  # `hf_model` cuts none
BUDGETS = (1, 4096)  # each text in a separate batch; all texts in one padded batch


Models = Callable[[str], Path]


def load(folder: Path, **settings: Any) -> TransformerEncoder:
    encoder = load_encoder(
        EncoderConfig(model=str(folder), **{"max_length": 0, "precision": "float32", **settings}),
        RunOptions(device="cpu", threads=1),
    )
    assert isinstance(encoder, TransformerEncoder)
    return encoder


def full_hidden_states(folder: Path, texts: Sequence[str]) -> list[list[torch.Tensor]]:
    """Encode with the full model in float32, one text at a time, without padding or cuts."""
    import transformers

    torch.set_num_threads(1)  # tiny matrices: on a busy machine a second thread slows the model down
    with quiet_transformers():
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(folder)
        kind = transformers.AutoConfig.from_pretrained(folder).model_type
        chosen: Any = transformers.T5EncoderModel if kind == "t5" else transformers.AutoModel
        model = chosen.from_pretrained(folder, dtype=torch.float32)
    states = []
    with torch.no_grad():
        for text in texts:
            output = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True)
            states.append([layer[0] for layer in output.hidden_states])
    return states


def pooled(states: torch.Tensor, mode: str) -> torch.Tensor:
    return {"cls": states[0], "mean": states.mean(dim=0), "max": states.max(dim=0).values}[mode]


def expected(states: list[list[torch.Tensor]], layers: Sequence[int], mode: str) -> npt.NDArray[np.float32]:
    rows = [pooled(torch.stack([text[k] for k in layers]).mean(dim=0), mode) for text in states]
    result: npt.NDArray[np.float32] = torch.stack(rows).numpy()
    return result


@contextmanager
def counted_calls(modules: Sequence[torch.nn.Module]) -> Iterator[list[str]]:
    calls: list[str] = []
    hooks = [module.register_forward_pre_hook(lambda m, _: calls.append(type(m).__name__)) for module in modules]
    yield calls
    for hook in hooks:
        hook.remove()


@pytest.mark.parametrize("architecture", architecture_cases("bert", "gpt2", "t5"))
def test_every_layer_and_pooling_equals_the_full_model_one_text_at_a_time(
    tiny_model: Models, architecture: str
) -> None:
    states = full_hidden_states(tiny_model(architecture), TEXTS)
    count = len(states[0]) - 1
    for layer in range(count + 1):
        for mode in MODES:
            want = expected(states, [layer], mode)
            for budget in BUDGETS if mode == "mean" else BUDGETS[1:]:
                encoder = load(tiny_model(architecture), layers=(layer,), pooling=mode, batch_tokens=budget)
                np.testing.assert_allclose(encoder.encode(TEXTS, "document"), want, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("architecture", architecture_cases("bert", "nomic"))
def test_layers_are_averaged(tiny_model: Models, architecture: str) -> None:
    states = full_hidden_states(tiny_model(architecture), TEXTS)
    count = len(states[0]) - 1
    for layers in ((1, -1), (0, 1), (0, 1, count)):
        resolved = sorted({layer if layer >= 0 else count for layer in layers})
        encoder = load(tiny_model(architecture), layers=layers, pooling="max")
        want = expected(states, resolved, "max")
        np.testing.assert_allclose(encoder.encode(TEXTS, "document"), want, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(
    "architecture", architecture_cases("bert", "albert", "gpt2", without=("xlm", "squeezebert", *IN_FULL))
)
def test_no_more_blocks_run_than_the_highest_layer_asked_for(tiny_model: Models, architecture: str) -> None:
    for layers, want in (((0,), 0), ((1,), 1), ((0, 2), 2)):
        encoder = load(tiny_model(architecture), layers=layers)
        with counted_calls(blocks_of(encoder.runner._loaded.model)) as calls:
            encoder.encode(["whale"], "document")
        assert len(calls) == want


def blocks_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    endings = ("Layer", "Block", "SqueezeBertModule")
    stacks = [m for m in model.modules() if isinstance(m, torch.nn.ModuleList)]
    found = [child for stack in stacks for child in stack if type(child).__name__.endswith(endings)]
    outer = [block for block in found if not any(block in list(o.modules())[1:] for o in found)]
    return list({id(block): block for block in outer}.values())


@pytest.mark.parametrize(("architecture", "stack"), [("xlm", "attentions"), ("squeezebert", "encoder.layers")])
def test_no_more_blocks_are_built_where_their_calls_cannot_be_counted(
    tiny_model: Models, architecture: str, stack: str
) -> None:
    for layer in range(3):
        built = load(tiny_model(architecture), layers=(layer,)).runner._loaded.model.get_submodule(stack)
        assert len(built) == layer


@pytest.mark.parametrize("architecture", IN_FULL)
def test_an_architecture_not_known_to_cut_runs_in_full_and_picks_the_layer(
    tiny_model: Models, architecture: str
) -> None:
    loaded = load(tiny_model(architecture), layers=(1,)).runner._loaded
    assert loaded.picked == (1,)
    assert loaded.model.config.num_hidden_layers == loaded.states - 1 > 1


@pytest.mark.parametrize("architecture", architecture_cases("bert", "gpt2", "t5", "xlm"))
def test_tokens_equal_the_tokenizers_own_truncation(tiny_model: Models, architecture: str) -> None:
    from transformers import AutoTokenizer

    own: Any = AutoTokenizer.from_pretrained(tiny_model(architecture))
    texts = [*TEXTS, "", "  ", "the [MASK] <mask> </s> of", "deep " * 60]
    for length in (3, 8, 17, 64):
        log = EncodeStats()
        encoder = load(tiny_model(architecture), max_length=length)
        tokens = encoder.tokenizer(texts)
        want = own(texts, truncation=True, max_length=length)["input_ids"]
        found = [ids.tolist() for ids in np.split(tokens.ids, tokens.starts[1:-1])]
        assert [ids for ids, row in zip(found, want, strict=True) if row] == [row for row in want if row]
        assert tokens.lengths.tolist() == [len(row) for row in own(texts)["input_ids"]]
        encoder.encode(texts, "query", log)
        assert log.truncated == sum(n > length for n in log.lengths)


@pytest.mark.parametrize("architecture", architecture_cases("bert", "t5"))
def test_texts_as_long_as_the_models_own_limit_run(tiny_model: Models, architecture: str) -> None:
    encoder, log = load(tiny_model(architecture)), EncodeStats()
    limit = encoder.spec.identity.max_length
    rows = encoder.encode(["deep " * 700, "whale"], "document", log)
    assert limit == (128 if architecture not in ("t5", "deberta-v2") else 512)
    assert log.truncated == 1
    assert np.isfinite(rows).all()


@pytest.mark.parametrize("architecture", architecture_cases("bert", "deberta"))
def test_every_architecture_runs_in_the_class_bfloat16(
    tiny_model: Models, architecture: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DeBERTa runs in float32, because its code mixes types. Random weights cannot test the bound on cosines."""
    monkeypatch.setattr("indexer.encoders.device.bfloat16_is_faster", lambda: True)  # torch emulates it elsewhere
    encoder = load(tiny_model(architecture), precision="bfloat16")
    assert (encoder.runner.dtype == torch.float32) == (architecture == "deberta")
    rows, full = encoder.encode(TEXTS, "document"), load(tiny_model(architecture)).encode(TEXTS, "document")
    cosines = (rows * full).sum(axis=1) / np.linalg.norm(rows, axis=1) / np.linalg.norm(full, axis=1)
    assert cosines.min() > 0.99


def test_a_text_without_tokens_has_a_finite_embedding(tiny_model: Models) -> None:
    encoder = load(tiny_model("gpt2"))
    log = EncodeStats()
    rows = encoder.encode(["", "whale"], "query", log)
    assert log.lengths[0] == 0
    assert np.isfinite(rows).all()
    np.testing.assert_allclose(rows[0], encoder.encode(["<|endoftext|>"], "query")[0], atol=1e-5)
