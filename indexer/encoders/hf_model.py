"""A transformer, loaded from its folder and pooled: the right class, no random weights, no more blocks than asked for.

A model of an architecture in `_CUT` is built with only the blocks up to the highest layer asked for, and what
the full model applies after its last block (a final norm) is taken out, so that its last output is
`hidden_states[k]` of the full model. Models of other architectures run in full and the layers are picked from
`hidden_states`: slower, as right.
"""

import inspect
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch

from indexer.encoders.pooling import BasicPooler, Pooler, average_layers
from indexer.errors import ModelError
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.hub import as_model_errors, quiet_transformers
from indexer.models.identity import PoolingKey
from indexer.models.model_files import ModelFiles
from indexer.recipe.config import BasicPooling
from indexer.recipe.paper_methods import POOLINGS, load_method
from indexer.system.safetensors_file import read_header

# Architectures whose cut is tested, with the final norm each applies after its last block ("" for none).
_CUT = {
    "albert": "",
    "bert": "",
    "camembert": "",
    "deberta": "",
    "deberta-v2": "",
    "distilbert": "",
    "electra": "",
    "gpt2": "ln_f",
    "layoutlm": "",
    "mpnet": "",
    "roberta": "",
    "squeezebert": "",
    "t5": "encoder.final_layer_norm",
    "xlm": "",
    "xlm-roberta": "",
}

# Encoder-decoder models of which only the encoder is loaded.
_ENCODER_CLASSES = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}
_SLACK = 2  # numbers of the model for one in its weights: some are in two places, and a pooler may be missing
_MOST_TABLES = 1 << 28  # numbers that a model computes for itself, such as a mask of all its positions
_LOADING = threading.Lock()


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, and how the asked layers come out of it."""

    model: Any  # a transformers PreTrainedModel
    dim: int
    picked: tuple[int, ...]  # which of `hidden_states` are the layers; empty: `last_hidden_state` is the one
    states: int  # how many `hidden_states` there must be when some are picked
    vocabulary: int  # rows of the embedding table
    takes_types: bool  # whether forward takes token_type_ids


def load_model(files: ModelFiles, layers: Sequence[int], dtype: torch.dtype) -> LoadedModel:
    """Load an encoder on the CPU, its weights cast to `dtype`, ready to give these layers.

    `layers` are sorted and non-negative. Raises ModelError when the architecture is not built into
    transformers, when the files do not fit it, or when a weight is missing (which transformers would fill
    with random numbers).
    """
    from transformers import AutoConfig

    folder = files.root
    with as_model_errors(folder, "the model"), quiet_transformers():
        config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        total, top = config.num_hidden_layers, layers[-1]
        cut = top < total and config.model_type in _CUT
        if cut and config.model_type != "albert":
            config.num_hidden_layers = top
        config.use_cache = False
        with _default_type_kept():
            model, report = _from_pretrained(files, config, dtype, _model_class(folder, config))
    _refuse_missing(folder, [key for key in report["missing_keys"] if "pooler" not in key])
    if cut:
        _cut_model(model, config.model_type, top, total)
    picked = () if tuple(layers) == (top,) and (cut or top == total) else tuple(layers)
    return LoadedModel(
        model=model.eval(),
        dim=int(config.hidden_size),
        picked=picked,
        states=(top if cut else total) + 1,
        vocabulary=int(model.get_input_embeddings().weight.shape[0]),
        takes_types="token_type_ids" in inspect.signature(model.forward).parameters,
    )


def load_classifier(files: ModelFiles, dtype: torch.dtype) -> LoadedModel:
    """Load a whole model that classifies texts, with one label, on the CPU, its weights cast to `dtype`.

    Raises ModelError as `load_model` does.
    """
    from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING, AutoConfig

    folder = files.root
    with as_model_errors(folder, "the model"), quiet_transformers():
        config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        config.use_cache = False
        chosen = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING.get(type(config), None)
        if chosen is None:
            raise ModelError(f'{folder}: transformers has no classifier of the architecture "{config.model_type}".')
        with _default_type_kept():
            model, report = _from_pretrained(files, config, dtype, chosen)
    _refuse_missing(folder, list(report["missing_keys"]))
    return LoadedModel(
        model=model.eval(),
        dim=1,
        picked=(),
        states=0,
        vocabulary=int(model.get_input_embeddings().weight.shape[0]),
        takes_types="token_type_ids" in inspect.signature(model.forward).parameters,
    )


def _cut_model(model: Any, kind: str, top: int, total: int) -> None:
    if kind == "albert":
        _cut_albert(model, top, total)
    if kind == "deberta-v2" and top == 0:
        model.encoder = _NoBlocks()
    path = _CUT[kind]
    if path:
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, torch.nn.Identity())


class _NoBlocks(torch.nn.Module):
    """Stands for the encoder of DeBERTa-v2, which cannot run without a block."""

    def forward(self, states: torch.Tensor, *_: Any, **__: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutput

        return BaseModelOutput(last_hidden_state=states, hidden_states=(states,))


def _cut_albert(model: Any, top: int, total: int) -> None:
    """ALBERT runs block i with group i * groups // total: a smaller total alone would pick other groups."""
    encoder, config = model.encoder, model.config
    groups = [encoder.albert_layer_groups[i * config.num_hidden_groups // total] for i in range(top)]
    encoder.albert_layer_groups = torch.nn.ModuleList(groups)
    config.num_hidden_layers = config.num_hidden_groups = top


def _from_pretrained(files: ModelFiles, config: Any, dtype: torch.dtype, chosen: Any) -> tuple[Any, dict[str, Any]]:
    arguments = inspect.signature(chosen.__init__).parameters
    extra = {"add_pooling_layer": False} if "add_pooling_layer" in arguments else {}
    _refuse_oversized(files, lambda: chosen(config, **extra))
    model, report = chosen.from_pretrained(
        str(files.root),
        config=config,
        dtype=dtype,
        use_safetensors=True,
        local_files_only=True,
        output_loading_info=True,
        **extra,
    )
    return model, report


def _refuse_oversized(files: ModelFiles, build: Callable[[], Any]) -> None:
    """Raise ModelError if config.json calls for far more numbers than the weights hold.

    transformers would make room for them, and fill it, before it compares. Here the model is built without memory.
    """
    with torch.device("meta"):
        model = build()
    headers = (read_header(files.root / name) for name in files.weights if name.endswith(".safetensors"))
    held = sum(entry.elements for header in headers for entry in header.tensors.values())
    wanted = sum(parameter.numel() for parameter in model.parameters())
    tables = sum(buffer.numel() for buffer in model.buffers())
    if wanted > _SLACK * held or tables > _MOST_TABLES:
        raise ModelError(
            f"{files.root}: config.json calls for a model of {wanted + tables:,} numbers, and the weights hold "
            f"{held:,}. Check that they belong together."
        )


def _model_class(folder: Path, config: Any) -> Any:
    import transformers

    if config.model_type in _ENCODER_CLASSES:
        return getattr(transformers, _ENCODER_CLASSES[config.model_type])
    known = transformers.MODEL_MAPPING.get(type(config), None)
    if known is None or getattr(config, "is_encoder_decoder", False):
        raise ModelError(
            f'{folder}: the architecture "{config.model_type}" is not one of transformers\' text encoders.'
        )
    return known[0] if isinstance(known, tuple) else known


def _refuse_missing(folder: Path, missing: list[str]) -> None:
    if missing:
        raise ModelError(
            f"{folder}: the weights lack {len(missing)} tensors that its config.json calls for, such as "
            f"{min(missing)}; they would be random. Check that the weights and config.json belong together."
        )


class PooledModel(torch.nn.Module):
    """Token ids (rows, tokens) to pooled rows (states, rows, d), float32. `layers` are those it was loaded for.

    It keeps nothing between calls, so threads may share it.
    """

    def __init__(self, loaded: LoadedModel, layers: Sequence[int], spec: EncoderSpec) -> None:
        super().__init__()
        self.model = loaded.model
        self._loaded, self._layers, self._spec = loaded, layers, spec
        self._poolers: dict[str, Pooler] = {}

    def forward(
        self,
        keys: Sequence[PoolingKey],
        input_ids: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """A row of states for each of `keys`. No types: the model's default. No mask: every token counts."""
        states = self._states(input_ids, token_type_ids, attention_mask)
        return torch.stack(
            [
                self._pooler(pooling)([states[layer] for layer in layers], input_ids, attention_mask)
                for layers, pooling in keys
            ]
        )

    def tokens(
        self,
        average: Sequence[int],
        input_ids: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The average of some layers for every token, (1, rows, tokens, d) float32; padding's mean nothing."""
        states = self._states(input_ids, token_type_ids, attention_mask)
        return average_layers([states[layer] for layer in average]).unsqueeze(0)

    def width(self, pooling: str) -> int:
        """Return the size of a row pooled so."""
        return self._pooler(pooling).width(self._loaded.dim)

    def _pooler(self, pooling: str) -> Pooler:
        """Return the pooler, whose fitted state is read the first time."""
        if pooling not in self._poolers:
            paper = POOLINGS.get(pooling)
            self._poolers[pooling] = (
                load_method(paper).open_pooler(self._spec, self._loaded.vocabulary)
                if paper
                else BasicPooler(cast(BasicPooling, pooling))
            )
        return self._poolers[pooling]

    def _states(
        self, input_ids: torch.Tensor, token_type_ids: torch.Tensor | None, attention_mask: torch.Tensor | None
    ) -> dict[int, torch.Tensor]:
        """Token states (rows, tokens, d) of every layer the model was loaded for, by layer."""
        given = {"token_type_ids": token_type_ids, "attention_mask": attention_mask}
        inputs = {name: tensor for name, tensor in given.items() if tensor is not None}
        output = self.model(input_ids=input_ids, output_hidden_states=bool(self._loaded.picked), **inputs)
        if not self._loaded.picked:
            return {self._layers[0]: output.last_hidden_state}
        states = output.hidden_states
        if len(states) != self._loaded.states:
            raise ModelError(
                f"{self._spec.folder}: the model gives {len(states)} hidden states instead of "
                f"{self._loaded.states}; use encoder.layers = [-1] with it."
            )
        return {layer: states[layer] for layer in self._layers}


class KeyedModel(torch.nn.Module):
    """A `PooledModel` for some keys. Its arguments are all tensors, as what traces or compiles it wants."""

    def __init__(self, pooled: PooledModel, keys: Sequence[PoolingKey]) -> None:
        super().__init__()
        self.model = pooled.model  # under the name it has there, which a traced graph repeats
        self._forward = partial(pooled.forward, tuple(keys))

    def forward(
        self,
        input_ids: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """As `PooledModel.forward`."""
        return self._forward(input_ids, token_type_ids, attention_mask)


class Classifier(torch.nn.Module):
    """A loaded classifier of one label: token ids (rows, tokens) to logits (1, rows, 1), float32."""

    def __init__(self, loaded: LoadedModel) -> None:
        super().__init__()
        self.model = loaded.model

    def forward(
        self,
        input_ids: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """No types: the model's default. No mask: every token counts."""
        given = {"token_type_ids": token_type_ids, "attention_mask": attention_mask}
        inputs = {name: tensor for name, tensor in given.items() if tensor is not None}
        logits: torch.Tensor = self.model(input_ids=input_ids, **inputs).logits
        return logits.float().unsqueeze(0)


@contextmanager
def _default_type_kept() -> Iterator[None]:
    """transformers changes torch's default type, of the whole process, while it loads: two loads at once would each
    put back what the other had set."""
    with _LOADING:
        before = torch.get_default_dtype()
        try:
            yield
        finally:
            torch.set_default_dtype(before)
