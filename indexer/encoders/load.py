"""The choice of an encoder's backend. Backends of one precision class agree within the bounds of the class."""

import importlib.util
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from indexer.encoders.fitted_state import load_fitted_state
from indexer.encoders.precomputed import PrecomputedEncoder
from indexer.encoders.protocol import Encoder
from indexer.errors import ConfigError, ModelError
from indexer.lazy_imports import install_line
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.model_files import is_onnx
from indexer.models.resolution import resolve_spec
from indexer.recipe.config import BuildConfig, EncoderConfig
from indexer.recipe.paper_methods import POOLINGS
from indexer.recipe.run_options import Backend, RunOptions
from indexer.system.processor import bfloat16_is_faster

if TYPE_CHECKING:
    from indexer.encoders.batching import BatchedEncoder
    from indexer.encoders.server.words import WordTokenizer
    from indexer.models.tokenizer import TextTokenizer


_DEFAULTS = RunOptions()
_VARIABLE = "ISOTROPE_BACKEND"  # replaces "auto" if set


def load_encoder(
    recipe: BuildConfig | EncoderConfig, options: RunOptions = _DEFAULTS, folder: str | Path | None = None
) -> Encoder:
    """Load the encoder of a recipe onto the requested device; for `folder` and the settings see `resolve_spec`.

    A fitted state is loaded from the folder `encoder.fitted`. Raises ModelError, ConfigError, and MachineError if the
    device is missing or too small.
    """
    return open_encoder(load_fitted_state(resolve_spec(recipe, folder)), options)


def open_encoder(spec: EncoderSpec, options: RunOptions = _DEFAULTS) -> Encoder:
    """Load a resolved encoder. Raises as `load_encoder`."""
    if not spec.traits.encodes_texts:
        return PrecomputedEncoder(spec)
    if spec.traits.has_table:
        from indexer.encoders.static.encoder import StaticEncoder

        return StaticEncoder(spec, options)
    if spec.traits.is_remote:
        from indexer.encoders.server.encoder import ServerEncoder

        return ServerEncoder(spec, options)
    chosen = named_backend(options)
    if is_onnx(spec.identity.weights):
        _require_onnx_options(spec, chosen, options)
        return _open_model("openvino", spec, options)
    if spec.identity.pooling in POOLINGS:  # needs the token states, which only torch returns
        if options.backend not in ("auto", "torch"):
            raise ConfigError(
                f'the backend {chosen} does not compute encoder.pooling = "{spec.identity.pooling}". '
                "Fix: choose the backend torch."
            )
        return _open_model("torch", spec, options)
    if chosen != "auto":
        return _open_model(chosen, spec, options)
    if spec.identity.precision == "int8":
        return _open_model("openvino", spec, options)
    if options.texts == "few" and _suits_numpy(spec, options):
        return _open_model("numpy", spec, options)
    if suits_openvino(options, spec):
        with suppress(ModelError):  # OpenVINO cannot run every model; torch runs it, or reports its fault
            return _open_model("openvino", spec, options)
    return _open_model("torch", spec, options)


def open_tokenizer(spec: EncoderSpec) -> "TextTokenizer | WordTokenizer":
    """Load the tokenizer of an encoder of texts, without its model. Raises ModelError and ConfigError."""
    if spec.traits.is_remote:
        from indexer.encoders.server.words import WordTokenizer

        return WordTokenizer()
    if spec.traits.has_table:
        from indexer.encoders.static.tables import load_table, table_tokenizer

        return table_tokenizer(load_table(Path(spec.folder)), spec.folder)
    from indexer.models.tokenizer import open_model_tokenizer

    return open_model_tokenizer(spec)


def warm_backend(spec: EncoderSpec, options: RunOptions = _DEFAULTS) -> None:
    """Fill the cache shared by processes, before several of them would fill it at the same time."""
    if not spec.traits.has_layers or spec.identity.pooling in POOLINGS or is_onnx(spec.identity.weights):
        return
    if named_backend(options) in ("auto", "openvino") and suits_openvino(options, spec) and not spec.state:
        from indexer.encoders.openvino.backend import open_graph

        with suppress(ModelError):
            open_graph(spec, [spec.identity.key])


def size_in_memory(spec: EncoderSpec, options: RunOptions = _DEFAULTS) -> str:
    """Return what loading a model puts into memory, such as "7,567 million parameters, 15.1 GB"; empty for a table."""
    if not spec.traits.has_layers:
        return ""
    from indexer.encoders.memory import FLOAT32, HALF, only_half_fits, parameter_count

    count = parameter_count(spec.files)
    on_gpu = _has_gpu() if options.device == "auto" else options.device != "cpu"
    is_half = on_gpu or options.half != "auto" or bfloat16_is_faster() or only_half_fits(count)
    width = HALF if is_half and spec.identity.precision != "float32" else FLOAT32
    return f"{count / 1e6:,.0f} million parameters, {width * count / 1e9:.1f} GB"


def named_backend(options: RunOptions) -> Backend:
    """Return the backend of the options or the environment, or "auto". Raises ConfigError for an unknown name."""
    if options.backend != "auto":
        return options.backend
    named = os.environ.get(_VARIABLE, "auto")
    for backend in get_args(Backend):
        if named == backend:
            return backend  # type: ignore[no-any-return]
    raise ConfigError(
        f'the environment variable {_VARIABLE} is "{named}"; expected one of {", ".join(get_args(Backend))}.'
    )


def suits_openvino(options: RunOptions, spec: EncoderSpec | None = None) -> bool:
    """Return whether OpenVINO is installed, the encoder will run on the CPU, and memory suffices to convert `spec`."""
    if options.half != "auto" or options.compile or importlib.util.find_spec("openvino") is None:
        return False
    if options.device != "cpu" and (options.device != "auto" or _has_gpu()):
        return False
    from indexer.encoders.memory import conversion_fits

    return spec is None or conversion_fits(spec.files)


def _require_onnx_options(spec: EncoderSpec, chosen: Backend, options: RunOptions) -> None:
    """Raise ConfigError for options of the other backends, which cannot run an ONNX file."""
    only = f"but {spec.folder} has only {spec.files.weights[0]}"
    if chosen not in ("auto", "openvino"):
        raise ConfigError(f"the backend {chosen} reads safetensors, {only}. Fix: choose the backend openvino.")
    if options.half != "auto":
        raise ConfigError(
            f'half is "{options.half}", which only the backend torch supports, {only}. Fix: leave out half.'
        )
    if options.compile:
        raise ConfigError(f"compile is set, which only the backend torch supports, {only}. Fix: leave out compile.")


def _suits_numpy(spec: EncoderSpec, options: RunOptions) -> bool:
    from indexer.encoders.numpy_bert import unsuited

    return options.device in ("auto", "cpu") and options.half == "auto" and not unsuited(spec.files)


def _has_gpu() -> bool:
    """Return whether torch finds a GPU. torch, whose import takes seconds, is asked only if there is a driver."""
    if not any(Path(place).exists() for place in ("/dev/nvidiactl", "/dev/kfd", "/dev/dxg", "/System/Library")):
        return False
    from indexer.encoders.device import choose_device

    return choose_device("auto").type != "cpu"


def _open_model(backend: str, spec: EncoderSpec, options: RunOptions) -> "BatchedEncoder":
    if backend == "numpy":
        from indexer.encoders.numpy_bert import NumpyEncoder

        return NumpyEncoder(spec, options)
    if backend == "openvino":
        if importlib.util.find_spec("openvino") is None:
            reason = f"{spec.folder} has only {spec.files.weights[0]}, but " if is_onnx(spec.identity.weights) else ""
            raise ConfigError(f"{reason}the backend openvino is not installed. Install it: {install_line('fast')}")
        from indexer.encoders.openvino.backend import OpenVinoEncoder

        return OpenVinoEncoder(spec, options)
    from indexer.encoders.transformer import TransformerEncoder

    return TransformerEncoder(spec, options)
