"""Families of models: a random model of each, saved by sentence-transformers in its own layout."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from indexer.models.hub import quiet_transformers
from indexer.recipe.config import BasicPooling

SEARCH = "Represent this sentence for searching relevant passages: "


@dataclass(frozen=True)
class Family:
    """A model's pooling, the modules after it (sizes of Dense, and "norm"), and its prompts."""

    architecture: str
    pooling: BasicPooling
    modules: tuple[int | str, ...] = ()
    query: str = ""
    document: str = ""
    unit: bool = True


FAMILIES = {
    "bge": Family("bert", "cls", query=SEARCH),
    "e5": Family("bert", "mean", query="query: ", document="passage: "),
    "multilingual-e5": Family("xlm-roberta", "mean", query="query: ", document="passage: "),
    "mpnet": Family("mpnet", "mean"),
    "nomic": Family("nomic", "mean", query="search_query: ", document="search_document: "),
    "gte": Family("gte", "cls"),
    "gte-modernbert": Family("modernbert", "cls"),
    "sentence-t5": Family("t5", "mean", (24,)),
    "gte-qwen2": Family("qwen2", "lasttoken", query="Instruct: find the passage\nQuery: "),
    "qwen3-embedding": Family("qwen3", "lasttoken", query="Instruct: find the passage\nQuery:"),
    "e5-mistral": Family("mistral", "lasttoken", query="Instruct: find the passage\nQuery: "),
    "embeddinggemma": Family(
        "embeddinggemma", "mean", (48, 32), "task: search result | query: ", "title: none | text: "
    ),
    "gemma3": Family("gemma3", "lasttoken"),
    "sgpt": Family("gpt2", "weightedmean", unit=False),
    "square-root": Family("bert", "mean_sqrt_len_tokens", ("norm",), unit=False),
    "maximum": Family("bert", "max", unit=False),
}


def save_family(family: Family, source: Path, folder: Path, size: int = 32, max_length: int = 64) -> None:
    """Write the model in `source`, of `size` dimensions, as the family's model with its modules and prompts."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, LayerNorm, Normalize, Pooling, Transformer

    torch.manual_seed(3)
    with quiet_transformers():
        transformer: Any = Transformer(str(source))
        modules = [transformer, Pooling(size, pooling_mode=family.pooling)]
        for module in family.modules:
            if isinstance(module, int):
                modules.append(Dense(size, module, bias=False, activation_function=torch.nn.Identity()))
                size = module
            else:
                modules.append(LayerNorm(size))
        prompts = {"query": family.query, "document": family.document}
        model = SentenceTransformer(modules=modules + [Normalize()] * family.unit, prompts=prompts, device="cpu")
        model.max_seq_length = max_length
        if model.tokenizer.pad_token is None:  # sentence-transformers pads even a single text
            model.tokenizer.pad_token = model.tokenizer.eos_token
        model.save_pretrained(str(folder), create_model_card=False)


def scaled(family: Family, rows: Any) -> Any:
    """Return rows of unit length where the family's last module normalises them."""
    return rows / np.linalg.norm(rows, axis=1, keepdims=True) if family.unit else rows
