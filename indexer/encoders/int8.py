"""int8: a graph with weights and activations rounded to 8 bits, by ranges measured on the user's texts.

NNCF observes the float32 graph on a sample, smooths outliers from activations into weights, and corrects the bias of
the rounding. The result is an ordinary graph (see `openvino`), which runs without NNCF. It is fitted to the texts, so
it is stored in the index and is part of the encoder's identity.
"""

import importlib.util
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from indexer.encoders.batching import Batch
from indexer.encoders.openvino.backend import open_graph
from indexer.encoders.openvino.graph import GRAPH, openvino, without_reports, write_graph_info
from indexer.errors import ConfigError
from indexer.lazy_imports import install_line
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.tokenizer import open_model_tokenizer

CALIBRATION_TEXTS = 300  # NNCF's default; more texts made no measurable difference


def require_calibration(spec: EncoderSpec) -> None:
    """Raise ConfigError for an int8 encoder unless OpenVINO and NNCF are installed."""
    for module in ("openvino", "nncf"):
        if spec.identity.precision == "int8" and importlib.util.find_spec(module) is None:
            raise ConfigError(f'encoder.precision "int8" needs {module} for its calibration: {install_line("int8")}.')


def quantise(spec: EncoderSpec, texts: Sequence[str], folder: Path) -> None:
    """Write the int8 graph of an encoder, calibrated on `texts`, into `folder`.

    `with_fitted_state(spec, folder, ...)` then returns the encoder. Raises ConfigError if NNCF is not installed or
    there is no text, ModelError if OpenVINO cannot run the model.
    """
    require_calibration(spec)
    if not texts:
        raise ConfigError('encoder.precision is "int8", but there is no text to calibrate it on.')
    graph = open_graph(spec, [spec.identity.key])
    inputs = list(_inputs(spec, texts, graph.takes_types))
    runtime = openvino()  # before NNCF, which would import its converter too
    with without_reports(), _silent():
        import nncf

        quantised = nncf.quantize(
            runtime.Core().read_model(str(graph.path)),
            nncf.Dataset(inputs),
            model_type=nncf.ModelType.TRANSFORMER,
            subset_size=len(inputs),
        )
        for number, operation in enumerate(quantised.get_ordered_ops()):
            operation.set_friendly_name(f"{operation.get_type_name()}-{number}")  # OpenVINO counts across models
        runtime.save_model(quantised, folder / GRAPH, compress_to_fp16=False)
    write_graph_info(graph, folder)


def _inputs(spec: EncoderSpec, texts: Sequence[str], takes_types: bool) -> Iterator[dict[str, Any]]:
    tokenizer, prefix = open_model_tokenizer(spec), spec.identity.document_prefix
    tokens = tokenizer([prefix + text for text in texts])
    for position in range(len(tokens)):
        yield Batch.of(tokens, np.array([position]), tokenizer.facts.padding).graph_inputs(takes_types)


@contextmanager
def _silent() -> Iterator[None]:
    """Suppress NNCF's progress bars and logs, and its usage reports over the network (off while it is tested)."""
    preset = "NNCF_CI" in os.environ
    os.environ.setdefault("NNCF_CI", "1")
    logger = logging.getLogger("nncf")
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()):
            import nncf  # noqa: F401  # the import sets up the logger

            level = logger.level
            logger.setLevel(logging.ERROR)
            try:
                yield
            finally:
                logger.setLevel(level)
    finally:
        if not preset:
            del os.environ["NNCF_CI"]
