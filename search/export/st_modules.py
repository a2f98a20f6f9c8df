"""The files of a sentence-transformers folder: a transformer, pooling and an affine map.

    modules.json                            the modules in order
    config_sentence_transformers.json       the prompts of both roles
    config.json, model.safetensors, ...     Transformer: the model's files, in the root of the folder; for a static
                                            table StaticEmbedding: model.safetensors and tokenizer.json
    sentence_bert_config.json               maximum length, lower-casing and number type of the Transformer
    1_WeightedLayerPooling/                 the average of layers, unless the last layer is the embedding
    2_Pooling/  3_Dense/  4_Normalize/

If documents and queries have different means, the Dense module differs by role. The first module is then a Router with
a route for `encode_query` and one for `encode_document`, which share all other modules.

    router_config.json                      the routes
    0_Transformer/  1_WeightedLayerPooling/  2_Pooling/  document_Dense/  query_Dense/
    1_Normalize/                            after the Router

Names of types and settings are those of sentence-transformers up to version 5, which version 6 also reads.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save as save_tensors

from indexer.models.sentence_transformers_folder import LEGACY_MODES
from indexer.recipe.config import PoolingMode
from search.result_files import Content

Array = npt.NDArray[np.float64]
_VERSION = "6.0.0"  # of sentence-transformers; older versions warn that they may not read the folder
_WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Module:
    """One module: its class in `sentence_transformers.models` and the files in its folder."""

    kind: str
    files: Mapping[str, Content]


@dataclass(frozen=True)
class ModuleChain:
    """The modules of a model, and the prompts put before a "query" and before a "document".

    `query` maps positions in `modules` to the modules that replace them for queries.
    """

    modules: Sequence[Module]
    query: Mapping[int, Module]
    prompts: Mapping[str, str]

    @property
    def kinds(self) -> list[str]:
        """The class of each module in order, including those within a Router."""
        return (["Router"] if self.query else []) + [module.kind for module in self.modules]


def transformer(files: Mapping[str, Content], max_length: int, lowercase: bool, all_layers: bool) -> Module:
    """Return a Transformer module that computes in float32 and with `all_layers` passes on every layer's states."""
    settings: dict[str, Any] = {"max_seq_length": max_length, "do_lower_case": lowercase}
    settings["model_args"] = {"dtype": "float32"}
    if all_layers:
        settings["config_args"] = {"output_hidden_states": True}
    return Module("Transformer", {**files, "sentence_bert_config.json": _json(settings)})


def static_embedding(tokenizer: str, vectors: npt.NDArray[np.float32]) -> Module:
    """Return a module that averages vectors of a table (vocabulary, d); `tokenizer` is the JSON of `tokenizers`."""
    weights = save_tensors({"embedding.weight": np.ascontiguousarray(vectors)}, metadata={"format": "pt"})
    return Module("StaticEmbedding", {"tokenizer.json": tokenizer.encode(), _WEIGHTS: weights})


def layer_average(layers: Sequence[int], blocks: int, size: int) -> Module:
    """Return the module of the unweighted mean of `layers`: ascending, 0 the embedding output, of `blocks` blocks."""
    first = layers[0]
    weights = np.zeros(blocks + 1 - first, np.float32)
    weights[np.array(layers) - first] = 1
    config = {"word_embedding_dimension": size, "layer_start": first, "num_hidden_layers": blocks}
    return Module("WeightedLayerPooling", _with_weights(config, {"layer_weights": weights}))


def pooling(mode: PoolingMode, size: int) -> Module:
    """Return a pooling module over all tokens, including special tokens and those of the prompt."""
    modes = {setting: name == mode for setting, name in LEGACY_MODES.items()}
    config = {"word_embedding_dimension": size, **modes, "include_prompt": True}
    return Module("Pooling", {"config.json": _json(config)})


def dense(matrix: Array, bias: Array) -> Module:
    """Return the module of x @ matrix + bias: matrix (d, k), bias (k,)."""
    config: dict[str, Any] = {"in_features": matrix.shape[0], "out_features": matrix.shape[1], "bias": True}
    config["activation_function"] = "torch.nn.modules.linear.Identity"
    return Module("Dense", _with_weights(config, {"linear.weight": matrix.T, "linear.bias": bias}))


def normalize() -> Module:
    """Return the module that scales vectors to unit length."""
    return Module("Normalize", {"config.json": _json({"module_input_name": "sentence_embedding"})})


def folder_files(chain: ModuleChain) -> dict[str, Content]:
    """Return every file of the folder by its name in the folder."""
    settings = {
        "__version__": {"sentence_transformers": _VERSION},
        "model_type": "SentenceTransformer",
        "prompts": dict(chain.prompts),
        "default_prompt_name": "document" if chain.prompts["document"] else None,
        "similarity_fn_name": "dot",
    }
    files = _routed(chain) if chain.query else _plain(chain)
    return files | {"config_sentence_transformers.json": _json(settings)}


def _plain(chain: ModuleChain) -> dict[str, Content]:
    places = ["", *(f"{number}_{module.kind}" for number, module in enumerate(chain.modules) if number)]
    files = _placed(dict(zip(places, chain.modules, strict=True)))
    return files | {"modules.json": _modules_json(places, [module.kind for module in chain.modules])}


def _routed(chain: ModuleChain) -> dict[str, Content]:
    """Return the files of a chain whose modules, except the last, are within a Router."""
    *routed, last = chain.modules
    places: dict[str, Module] = {}
    routes: dict[str, list[str]] = {"query": [], "document": []}
    for number, module in enumerate(routed):
        if number not in chain.query:
            places[f"{number}_{module.kind}"] = module
            for route in routes.values():
                route.append(f"{number}_{module.kind}")
            continue
        for role, by_role in (("query", chain.query[number]), ("document", module)):
            places[f"{role}_{by_role.kind}"] = by_role
            routes[role].append(f"{role}_{by_role.kind}")
    router = {
        "types": {place: _type(module.kind) for place, module in places.items()},
        "structure": routes,
        "parameters": {"default_route": "document", "allow_empty_key": True},
    }
    after = f"1_{last.kind}"
    return _placed({**places, after: last}) | {
        "router_config.json": _json(router),
        "modules.json": _modules_json(["", after], ["Router", last.kind]),
    }


def _placed(modules: Mapping[str, Module]) -> dict[str, Content]:
    return {
        str(PurePosixPath(place, name)): content
        for place, module in modules.items()
        for name, content in module.files.items()
    }


def _modules_json(places: Sequence[str], kinds: Sequence[str]) -> bytes:
    numbered = enumerate(zip(places, kinds, strict=True))
    return _json([{"idx": n, "name": str(n), "path": place, "type": _type(kind)} for n, (place, kind) in numbered])


def _type(kind: str) -> str:
    return f"sentence_transformers.models.{kind}"


def _with_weights(config: Mapping[str, Any], weights: Mapping[str, npt.NDArray[Any]]) -> dict[str, Content]:
    arrays = {name: np.ascontiguousarray(array, np.float32) for name, array in weights.items()}
    return {"config.json": _json(config), _WEIGHTS: save_tensors(arrays, metadata={"format": "pt"})}


def _json(value: Any) -> bytes:
    return json.dumps(value, indent=2, ensure_ascii=False).encode() + b"\n"
