"""Tables of a tokenizer's tokens: folders of model2vec and of sentence-transformers' StaticEmbedding.

    row of token t = embeddings[mapping[t]] * weights[t]

`mapping` and `weights` are there where a newer model2vec wrote them. Both libraries average the rows of a text's
tokens without the special ones ([CLS], [SEP]). model2vec leaves its unknown token out of that mean;
sentence-transformers has a row for it like any other, so there it counts.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from indexer.encoders.model_json import TokenizerModel, read_json, read_tokenizer
from indexer.encoders.tables.files import TableFiles
from indexer.encoders.tables.table import Table, Vectors
from indexer.encoders.tokens import is_failure
from indexer.errors import ModelError
from indexer.safetensors_file import SafetensorsFile

_EMBEDDINGS = ("embeddings", "embedding.weight")  # of model2vec, of sentence-transformers
_BLOCK_ROWS = 1 << 16


def load_token_table(files: TableFiles) -> Table:
    """The table of a folder. Raises ModelError for files that are damaged or do not belong together."""
    weights, tokenizer = files.root / files.weights[0], files.root / files.tokenizer[0]
    vectors, stated, settings = _rows(weights), read_tokenizer(tokenizer), _plain(tokenizer)
    tokens = _parsed(tokenizer, settings).get_vocab()
    most = max(tokens.values(), default=-1)
    if most >= len(vectors):
        raise ModelError(
            f"{weights}: holds rows for {len(vectors):,} tokens, but {tokenizer.name} has ids up to {most:,}; the "
            "tokenizer does not belong to the table."
        )
    _require_finite(weights, vectors)
    unknown = _unknown(tokenizer, stated.model, tokens) if files.kind == "model2vec" else -1
    return Table(vectors, json.dumps(settings), unknown, words=False)


def _plain(path: Path) -> dict[str, Any]:
    """A tokenizer.json without truncation, padding and what adds special tokens, whose ids need not have rows."""
    return read_json(path, dict[str, Any]) | {"truncation": None, "padding": None, "post_processor": None}


def _parsed(path: Path, settings: dict[str, Any]) -> Tokenizer:
    try:
        return Tokenizer.from_str(json.dumps(settings))
    except BaseException as error:
        if not is_failure(error):
            raise
        raise ModelError(f"{path}: cannot be read as a tokenizer: {error}.") from error


def _unknown(path: Path, named: TokenizerModel, tokens: dict[str, int]) -> int:
    """The id of the unknown token; -1 for none."""
    number = named.unk_id if named.unk_token is None else tokens.get(named.unk_token)
    if number is None:
        return -1
    if not 0 <= number <= max(tokens.values(), default=-1):
        raise ModelError(f"{path}: unk_id is {number:,}; expected the id of a token.")
    return number


def _rows(path: Path) -> Vectors:
    """A row for each token, float32 (tokens, d)."""
    tensors = SafetensorsFile(path)
    name = next((name for name in _EMBEDDINGS if name in tensors), "")
    if not name:
        found = ", ".join(tensors.names) or "nothing"
        raise ModelError(f"{path}: holds {found}; expected a tensor called {' or '.join(_EMBEDDINGS)}.")
    rows = tensors.floats(name)
    if rows.ndim != 2 or not rows.size:
        raise ModelError(f'{path}: the tensor "{name}" has the shape {rows.shape}; expected (tokens, dimensions).')
    if "mapping" in tensors:
        rows = rows[_mapping(tensors, len(rows))]
    if "weights" in tensors:
        rows = rows * _weights(tensors, len(rows))[:, None]
    return rows


def _mapping(tensors: SafetensorsFile, rows: int) -> npt.NDArray[np.int64]:
    mapping = tensors.integers("mapping")
    if mapping.ndim != 1 or not mapping.size:
        raise ModelError(f'{tensors.path}: "mapping" has the shape {mapping.shape}; expected (tokens,).')
    if mapping.min() < 0 or mapping.max() >= rows:
        raise ModelError(
            f'{tensors.path}: "mapping" has rows from {mapping.min()} to {mapping.max()}, but there are {rows:,}.'
        )
    return mapping


def _weights(tensors: SafetensorsFile, rows: int) -> Vectors:
    weights = tensors.floats("weights")
    if weights.shape != (rows,):
        raise ModelError(f'{tensors.path}: "weights" has the shape {weights.shape}; expected one for each of {rows:,}.')
    return weights


def _require_finite(path: Path, vectors: Vectors) -> None:
    for start in range(0, len(vectors), _BLOCK_ROWS):
        finite = np.isfinite(vectors[start : start + _BLOCK_ROWS]).all(axis=1)
        if not finite.all():
            raise ModelError(f"{path}: the row of token {start + int(finite.argmin()):,} is not finite.")
