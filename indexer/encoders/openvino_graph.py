"""A model as an OpenVINO graph on disk, and OpenVINO itself, imported quietly."""

import json
import sys
import threading
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from indexer.cache import read_cached
from indexer.encoders.protocol import EncoderSpec
from indexer.errors import ModelError

GRAPH = "graph.xml"
_FACTS = "facts.json"
_CONVERTER = "openvino.tools.ovc"
_REPORTING = "openvino_telemetry"
_IMPORTING = threading.Lock()


@cache
def openvino() -> Any:
    """OpenVINO, imported so that it reports to nobody and brings no converter of other frameworks' models.

    `import openvino` sends "imported" to its makers through openvino_telemetry, where that is installed, from a process
    of its own; and it imports the converter that does so, which is two thirds of the time. Neither is wanted:
    `openvino_conversion` converts graphs. NNCF asks openvino_telemetry too, so that stays out for the life of the
    process.
    """
    modules: dict[str, Any] = sys.modules
    with _IMPORTING:
        modules.setdefault(_REPORTING, None)  # an import of it now fails; what asks for it has a way out
        if "openvino" in modules:
            return modules["openvino"]
        modules.setdefault(_CONVERTER, None)
        try:
            return import_module("openvino")
        finally:
            if modules.get(_CONVERTER) is None:
                del modules[_CONVERTER]


@dataclass(frozen=True)
class OpenVinoGraph:
    """A graph on disk and what is known of its model."""

    folder: Path
    dim: int
    vocabulary: int
    takes_types: bool

    @property
    def path(self) -> Path:
        """The graph's file; its weights lie beside it."""
        return self.folder / GRAPH


@dataclass(frozen=True)
class _Facts:
    """What is kept of a graph beside itself; only why, where there is none."""

    dim: int = 0
    vocabulary: int = 0
    takes_types: bool = False
    refused: str | None = None


def open_stored_graph(folder: Path, spec: EncoderSpec) -> OpenVinoGraph:
    """The graph in a folder. Raises ModelError, saying what to do, where there is only why the model has none."""
    facts = read_cached(folder / _FACTS, _Facts)
    if facts.refused is not None:
        raise ModelError(f"{spec.folder}: OpenVINO cannot run this model ({facts.refused}). Take --backend torch.")
    return OpenVinoGraph(folder, facts.dim, facts.vocabulary, facts.takes_types)


def write_graph_info(graph: OpenVinoGraph, folder: Path) -> None:
    """Write into `folder` what `open_stored_graph` needs to know beside the graph itself."""
    facts = {name: value for name, value in asdict(graph).items() if name != "folder"}
    (folder / _FACTS).write_text(json.dumps(facts), encoding="utf-8")


def write_refusal(folder: Path, reason: str) -> None:
    """Write into `folder` why there is no graph, in its place."""
    (folder / _FACTS).write_text(json.dumps({"refused": reason}), encoding="utf-8")
    for left in folder.glob("graph.*"):
        left.unlink()
