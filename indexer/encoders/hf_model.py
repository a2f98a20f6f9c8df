"""A transformer, loaded from its folder and pooled: the right class, no random weights, no unused blocks.

A model of an architecture in `_CUT` is built only up to the highest requested layer, without the final norm that the
full model applies after its last block, so that its last output is `hidden_states[k]` of the full model. Models of
other architectures run in full and the layers are picked from `hidden_states`: slower, with equal results.
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

from indexer.encoders.memory import parameter_count, require_memory, stored_tensors
from indexer.encoders.output_layers import torch_layers
from indexer.encoders.pooling import BasicPooler, Pooler, average_layers
from indexer.errors import ModelError, as_argument
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.hub import as_model_errors, quiet_transformers
from indexer.models.identity import PoolingKey
from indexer.models.model_files import ModelFiles
from indexer.models.output_modules import output_width
from indexer.recipe.config import PoolingMode
from indexer.recipe.paper_methods import POOLINGS, load_method

# Architectures whose cut is tested, and the final norm after the last block ("" for none).
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

# Encoder-decoder models whose encoder alone is loaded.
_ENCODER_CLASSES = {"t5": "T5EncoderModel", "mt5": "MT5EncoderModel", "umt5": "UMT5EncoderModel"}
_SLACK = 2  # model parameters per stored number: tied weights count twice, and a pooler may be missing
_MOST_TABLES = 1 << 28  # numbers that a model computes itself, such as a mask of all positions
_STORED = {torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16"}  # names in safetensors
_LOADING = threading.Lock()
_CPU = torch.device("cpu")


@dataclass(frozen=True)
class LoadedModel:
    """A model ready to run, and where its forward pass returns the requested layers."""

    model: Any  # a transformers PreTrainedModel
    dim: int
    picked: tuple[int, ...]  # positions of the layers in `hidden_states`; empty: the layer is `last_hidden_state`
    states: int  # expected number of `hidden_states` if some are picked
    vocabulary: int  # rows of the embedding table
    takes_types: bool  # whether forward takes token_type_ids


def load_model(
    files: ModelFiles, layers: Sequence[int], dtype: torch.dtype, device: torch.device = _CPU
) -> LoadedModel:
    """Load an encoder, ready to return `layers` (sorted, non-negative) on `device`, its weights cast to `dtype`.

    The model is on the CPU. Weights that are stored in `dtype` are mapped from their files, not copied. Raises
    ModelError if the architecture is not built into transformers, if the files do not fit it, or if a weight is missing
    (transformers would fill it with random numbers); MachineError, before anything is allocated, if the memory does not
    suffice.
    """
    folder = files.root
    with _loading(folder) as config:
        total, top = config.num_hidden_layers, layers[-1]
        cut = top < total and config.model_type in _CUT
        if cut and config.model_type != "albert":
            config.num_hidden_layers = top
        model, report = _from_pretrained(files, config, _model_class(folder, config), dtype, device)
    _refuse_missing(folder, [key for key in report["missing_keys"] if "pooler" not in key])
    if cut:
        _cut_model(model, config.model_type, top, total)
    picked = () if tuple(layers) == (top,) and (cut or top == total) else tuple(layers)
    return _loaded(model, int(config.hidden_size), picked, (top if cut else total) + 1)


def load_classifier(files: ModelFiles, dtype: torch.dtype, device: torch.device = _CPU) -> LoadedModel:
    """Load a text classifier of one label, with all its blocks, as `load_model`.

    Raises ModelError and MachineError.
    """
    from transformers import MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING

    folder = files.root
    with _loading(folder) as config:
        model_class = MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING.get(type(config), None)
        if model_class is None:
            raise ModelError(f'{folder}: transformers has no classifier of the architecture "{config.model_type}".')
        model, report = _from_pretrained(files, config, model_class, dtype, device)
    _refuse_missing(folder, list(report["missing_keys"]))
    return _loaded(model, dim=1, picked=(), states=0)


@contextmanager
def _loading(folder: Path) -> Iterator[Any]:
    """Yield the config of a model; within the block transformers is quiet and its errors are ModelErrors.

    transformers changes the default type of torch for the whole process during a load. Without the lock, two
    concurrent loads would each restore the type that the other had set.
    """
    from transformers import AutoConfig

    with as_model_errors(folder, "the model"), quiet_transformers():
        config = AutoConfig.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
        config.use_cache = False
        with _LOADING:
            before = torch.get_default_dtype()
            try:
                yield config
            finally:
                torch.set_default_dtype(before)


def _loaded(model: Any, dim: int, picked: tuple[int, ...], states: int) -> LoadedModel:
    vocabulary = int(model.get_input_embeddings().weight.shape[0])
    takes_types = "token_type_ids" in inspect.signature(model.forward).parameters
    return LoadedModel(model.eval(), dim, picked, states, vocabulary, takes_types)


def _cut_model(model: Any, kind: str, top: int, total: int) -> None:
    if kind == "albert":  # runs block i with group i * groups // total: a smaller total alone would pick other groups
        encoder, config = model.encoder, model.config
        groups = [encoder.albert_layer_groups[i * config.num_hidden_groups // total] for i in range(top)]
        encoder.albert_layer_groups = torch.nn.ModuleList(groups)
        config.num_hidden_layers = config.num_hidden_groups = top
    if kind == "deberta-v2" and top == 0:
        model.encoder = _NoBlocks()
    if _CUT[kind]:
        parent, _, name = _CUT[kind].rpartition(".")
        setattr(model.get_submodule(parent), name, torch.nn.Identity())


class _NoBlocks(torch.nn.Module):
    """A replacement for the encoder of DeBERTa-v2, which cannot run without a block."""

    def forward(self, states: torch.Tensor, *_: Any, **__: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutput

        return BaseModelOutput(last_hidden_state=states, hidden_states=(states,))


def _from_pretrained(
    files: ModelFiles, config: Any, chosen: Any, dtype: torch.dtype, device: torch.device
) -> tuple[Any, dict[str, Any]]:
    arguments = inspect.signature(chosen.__init__).parameters
    extra: dict[str, Any] = {"add_pooling_layer": False} if "add_pooling_layer" in arguments else {}
    _require_memory(files, _counted(files, lambda: chosen(config, **extra)), dtype, device)
    extra |= {"attn_implementation": "flash_attention_2"} if _suits_flash(chosen, dtype, device) else {}
    local = {"use_safetensors": True, "local_files_only": True, "output_loading_info": True}
    model, report = chosen.from_pretrained(str(files.root), config=config, dtype=dtype, **local, **extra)
    return model, report


def _suits_flash(chosen: Any, dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether FlashAttention runs the model. Unlike torch's own attention it is as fast with padding."""
    from transformers.utils.import_utils import is_flash_attn_2_available

    if device.type != "cuda" or dtype == torch.float32 or not chosen._supports_flash_attn:
        return False
    return bool(is_flash_attn_2_available())


def _require_memory(files: ModelFiles, parameters: int, dtype: torch.dtype, device: torch.device) -> None:
    """Raise MachineError if the memory does not suffice for the model, where it runs or where it is loaded first."""
    task = f"{files.root}: the model of {parameters:,} parameters in {str(dtype).removeprefix('torch.')}"
    fix = f"free some, or choose a smaller model or another {as_argument('device', of='RunOptions')}"
    if dtype == torch.float32:
        half = as_argument("half", "bfloat16", "RunOptions")
        fix += f'; encoder.precision = "bfloat16" with {half} needs half of it'
    needed, copied = dtype.itemsize * parameters, {entry.dtype for entry in stored_tensors(files)} != {_STORED[dtype]}
    if device.type == "cuda":
        require_memory(task, needed, fix, torch.cuda.mem_get_info(device)[0], str(device))
    if device.type != "cuda" or copied:
        require_memory(task, needed, fix)


def _counted(files: ModelFiles, build: Callable[[], Any]) -> int:
    """Return the number of a model's parameters; raise ModelError if they are far more than the weights contain.

    transformers would allocate and fill them before it compares. Here the model is built without memory.
    """
    with torch.device("meta"):
        model = build()
    held = parameter_count(files)
    wanted: int = sum(parameter.numel() for parameter in model.parameters())
    tables = sum(buffer.numel() for buffer in model.buffers())
    if wanted > _SLACK * held or tables > _MOST_TABLES:
        raise ModelError(
            f"{files.root}: config.json describes a model of {wanted + tables:,} numbers, but the weights contain "
            f"{held:,}. Fix: check that they belong together."
        )
    return wanted


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
            f"{folder}: the weights lack {len(missing)} tensors of the model in config.json, such as {min(missing)}, "
            "which would be random. Fix: check that the weights and config.json belong together."
        )


class PooledModel(torch.nn.Module):
    """Token ids (rows, tokens) to pooled rows (states, rows, d), float32, of a model loaded for `layers`.

    It keeps no state between calls, so threads may share it.
    """

    def __init__(self, loaded: LoadedModel, layers: Sequence[int], spec: EncoderSpec) -> None:
        super().__init__()
        self.model = loaded.model
        self._loaded, self._layers, self._spec = loaded, layers, spec
        self._poolers: dict[str, Pooler] = {}
        self._output = torch_layers(spec.output_layers)

    def forward(self, keys: Sequence[PoolingKey], **inputs: torch.Tensor) -> torch.Tensor:
        """Return rows for each of `keys`; for `inputs` see `KeyedModel.forward`."""
        states, ids, mask = self._states(inputs), inputs["input_ids"], inputs.get("attention_mask")
        rows = []
        for layers, pooling in keys:
            pooled = self._pooler(pooling)([states[layer] for layer in layers], ids, mask)
            rows.append(pooled if pooling in POOLINGS else self._output(pooled))
        return torch.stack(rows)

    def tokens(self, average: Sequence[int], **inputs: torch.Tensor) -> torch.Tensor:
        """Return the average of some layers for every token, (1, rows, tokens, d) float32; padding is undefined."""
        states = self._states(inputs)
        return average_layers([states[layer] for layer in average]).unsqueeze(0)

    def width(self, pooling: str) -> int:
        """Return the size of a row of this pooling."""
        size = self._pooler(pooling).width(self._loaded.dim)
        return size if pooling in POOLINGS else output_width(self._spec.output_layers, size)

    def _pooler(self, pooling: str) -> Pooler:
        """Return the pooler; its fitted state is read at the first call."""
        if pooling not in self._poolers:
            paper = POOLINGS.get(pooling)
            self._poolers[pooling] = (
                load_method(paper).open_pooler(self._spec, self._loaded.vocabulary)
                if paper
                else BasicPooler(cast(PoolingMode, pooling))
            )
        return self._poolers[pooling]

    def _states(self, inputs: dict[str, torch.Tensor]) -> dict[int, torch.Tensor]:
        """Return token states (rows, tokens, d) of every loaded layer, by layer."""
        output = self.model(output_hidden_states=bool(self._loaded.picked), **inputs)
        if not self._loaded.picked:
            return {self._layers[0]: output.last_hidden_state}
        states = output.hidden_states
        if len(states) != self._loaded.states:
            raise ModelError(
                f"{self._spec.folder}: the model returns {len(states)} hidden states, expected {self._loaded.states}. "
                "Fix: set encoder.layers = [-1]."
            )
        return {layer: states[layer] for layer in self._layers}


class KeyedModel(torch.nn.Module):
    """A `PooledModel` for some keys. All its arguments are tensors, as tracing and compiling require."""

    def __init__(self, pooled: PooledModel, keys: Sequence[PoolingKey]) -> None:
        super().__init__()
        self.model = pooled.model  # named as in `PooledModel`, because a traced graph repeats the name
        self._run: Callable[..., torch.Tensor] = partial(pooled.forward, tuple(keys))

    def forward(
        self,
        input_ids: torch.Tensor,
        token_type_ids: torch.Tensor | None = None,
        attention_mask: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the rows. Without types the model's default applies; without a mask every token counts."""
        inputs = {"input_ids": input_ids, "token_type_ids": token_type_ids, "attention_mask": attention_mask}
        return self._run(**{name: tensor for name, tensor in inputs.items() if tensor is not None})


class Classifier(KeyedModel):
    """A loaded classifier of one label: token ids (rows, tokens) to logits (1, rows, 1), float32."""

    def __init__(self, loaded: LoadedModel) -> None:
        torch.nn.Module.__init__(self)
        self.model, self._run = loaded.model, self._logits

    def _logits(self, **inputs: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(**inputs).logits
        return logits.float().unsqueeze(0)
