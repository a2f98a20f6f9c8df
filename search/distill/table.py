"""A static table fitted to the vectors of an index: the tokens of a document's text, averaged, give its vector.

A token counts log((n + 1) / (df + 1)) + 0.1 times in a text, for `df` of `n` texts that contain it, so frequent words
count little. Ridge regression draws the vector of a token towards the vector that the index's encoder gives to the
token alone, so rare tokens stay close to it, and tokens that no document contains keep it. The penalty has the table
closest to the vectors of documents that it was not fitted to.
"""

import json
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt
from safetensors.numpy import save
from tokenizers import Tokenizer

from indexer.arrays import Float32Array, Int64Array, Vectors
from indexer.encoders.document_windows import DocumentChunker
from indexer.encoders.load import open_tokenizer
from indexer.encoders.static.tables import EmbeddingTable, table_tokenizer
from indexer.errors import ConfigError, as_argument
from indexer.models.encoder_spec import EncoderSpec
from indexer.models.hub import library_errors
from indexer.models.query_encoder_spec import FILE, FORMAT, OWN_FOLDER, QueryEncoderFile
from indexer.models.tokenizer import FastTokenizer, TextTokenizer
from indexer.progress import Progress
from search.distill.ridge import TokenShares, solve_ridge
from search.index import Index

PENALTIES = (3e-3, 1e-2, 3e-2, 1e-1)
_LEAST_IMPORTANCE = 0.1
_BLOCK = 4096  # documents read together
_TRIAL = 10_000  # texts, at most, to which a table of each penalty is fitted
_UNFITTED = ("truncation", "padding", "post_processor")  # settings of a tokenizer that a table does not use


@dataclass(frozen=True)
class TokenisedTexts:
    """Texts of an index as tokens, text i as `tokens[starts[i]:starts[i + 1]]`, with their unit vectors (n, k)."""

    starts: Int64Array
    tokens: Int64Array
    vectors: Vectors
    documents: Int64Array  # number of the document of each text

    def __len__(self) -> int:
        return len(self.vectors)

    def of(self, rows: npt.NDArray[np.bool_]) -> "TokenisedTexts":
        """Return some of the texts."""
        lengths = np.diff(self.starts)
        starts = np.concatenate([[0], np.cumsum(lengths[rows])])
        tokens = self.tokens[np.repeat(rows, lengths)]
        return TokenisedTexts(starts, tokens, self.vectors[rows], self.documents[rows])

    def importance(self, vocabulary: int) -> Float32Array:
        """Return the weight (vocabulary,) of each token."""
        texts = np.repeat(np.arange(len(self)), np.diff(self.starts))
        seen = np.unique(texts * vocabulary + self.tokens) % vocabulary
        inverse = np.log((len(self) + 1) / (np.bincount(seen, minlength=vocabulary) + 1))
        return (inverse + _LEAST_IMPORTANCE).astype(np.float32)


@dataclass(frozen=True)
class FittedTable:
    """Token vectors (vocabulary, k) times their importance, and the facts of their fit."""

    vectors: Float32Array
    penalty: float
    texts: int
    tokens: int  # that occur in the texts


def fit_table(texts: TokenisedTexts, alone: Float32Array, penalty: float) -> FittedTable:
    """Fit a table to all of the texts; `alone` (vocabulary, k) are the vectors of single tokens, or zeros."""
    seen, tokens = np.unique(texts.tokens, return_inverse=True)
    importance = texts.importance(len(alone))
    shares = TokenShares.of(texts.starts, tokens, importance[seen])
    means = shares.times(alone[seen])
    scale = np.vdot(means, texts.vectors) / max(np.vdot(means, means), np.finfo(np.float32).tiny)
    vectors = np.float32(scale) * alone
    vectors[seen] += solve_ridge(shares, texts.vectors - np.float32(scale) * means, penalty)
    return FittedTable(vectors * importance[:, None], penalty, len(texts), len(seen))


def choose_penalty(texts: TokenisedTexts, held_out: TokenisedTexts, alone: Float32Array, progress: Progress) -> float:
    """Return the penalty whose table, fitted to texts from all over the index, is closest to the held-out vectors."""
    trial = texts.of(np.arange(len(texts)) % -(-len(texts) // _TRIAL) == 0)
    progress.phase("choosing the penalty", len(PENALTIES))
    cosines = []
    for penalty in PENALTIES:
        table = fit_table(trial, alone, penalty)
        cosines.append(float((mean_vectors(held_out, table.vectors) * held_out.vectors).sum(axis=1).mean()))
        progress.advance(1)
    return PENALTIES[int(np.argmax(cosines))]


def single_tokens(tokenizer: Tokenizer) -> dict[int, str]:
    """Return the text of every token that has one, by its id."""
    texts = {number: tokenizer.decode([number], skip_special_tokens=False) for number in tokenizer.get_vocab().values()}
    plain = {number: text.removeprefix("##").strip() for number, text in texts.items()}
    return {number: text for number, text in plain.items() if text}


def mean_vectors(texts: TokenisedTexts, vectors: Float32Array) -> Float32Array:
    """Return the unit vectors (n, k) that a table gives to the texts."""
    shares = TokenShares.of(texts.starts, texts.tokens, np.ones(len(vectors), np.float32))
    sums: Float32Array = shares.times(vectors)
    norms = np.linalg.norm(sums, axis=1, keepdims=True)
    unit: Float32Array = np.divide(sums, norms, out=np.zeros_like(sums), where=norms > 0)
    return unit


def own_tokenizer(spec: EncoderSpec) -> str:
    """Return the tokenizer of an encoder as JSON, without special tokens.

    Raises ConfigError for an encoder without a tokenizer of the `tokenizers` library.
    """
    opened = open_tokenizer(spec)
    if not isinstance(opened, TextTokenizer) or not isinstance(opened.run, FastTokenizer):
        raise ConfigError(
            f"{spec.model}: has no tokenizer of its own. Fix: name the folder of a model whose "
            f"tokenizer suits the texts: {as_argument('tokenizer', 'FOLDER')}."
        )
    return stripped(opened.run.tokenizer)


def stripped(tokenizer: Tokenizer) -> str:
    """Return a tokenizer as JSON, without truncation, padding and special tokens."""
    return json.dumps(json.loads(tokenizer.to_str()) | dict.fromkeys(_UNFITTED))


def read_tokenizer(folder: Path) -> str:
    """Return the tokenizer of a model's folder. Raises ConfigError for a folder without a tokenizer.json with tokens,
    and ModelError for a damaged one."""
    file = folder / "tokenizer.json"
    if not file.is_file():
        raise ConfigError(f"{folder}: contains no tokenizer.json; expected the folder of a model with one.")
    with library_errors(lambda error: f"{file}: cannot be read as a tokenizer: {error}."):
        tokenizer = Tokenizer.from_file(str(file))
    if not tokenizer.get_vocab_size():
        raise ConfigError(f"{file}: has no tokens. Fix: name the folder of another model.")
    return stripped(tokenizer)


def tokenise(
    index: Index, spec: EncoderSpec, numbers: npt.NDArray[np.int64], table: EmbeddingTable, progress: Progress
) -> TokenisedTexts:
    """Return the texts of some documents, by their numbers, as far as the index's encoder reads them."""
    chunker = DocumentChunker(spec, index.config.chunk, tuple(index.config.corpus.text))
    tokenizer = table_tokenizer(table, str(index.path))
    longest = index.encoder.max_length
    ids, lengths, documents = list[npt.NDArray[np.int64]](), list[npt.NDArray[np.int64]](), np.sort(numbers)
    progress.phase("reading texts", len(documents))
    for start in range(0, len(documents), _BLOCK):
        block = documents[start : start + _BLOCK]
        tokens = tokenizer(chunker(index.documents.fetch(block.tolist())).texts)
        counts = np.diff(tokens.starts)
        place = np.arange(len(tokens.ids)) - np.repeat(tokens.starts[:-1], counts)
        kept = (tokens.ids != table.unknown) & (place < longest) & np.repeat(tokens.lengths > 0, counts)
        ids.append(tokens.ids[kept].astype(np.int64))
        lengths.append(np.add.reduceat(kept, tokens.starts[:-1], dtype=np.int64))
        progress.advance(len(block))
    rows = index.numbering.rows_of(documents)
    starts = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    every = TokenisedTexts(starts, np.concatenate(ids), index.vectors(rows), index.numbering.documents_of(rows))
    return every.of(np.diff(starts) > 0)


def write_folder(folder: Path, tokenizer: str, vectors: Float32Array, space: str) -> None:
    """Write a table as a query encoder, which is a model2vec folder too."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = np.ascontiguousarray(vectors, np.float16)  # rounding changes no cosine by more than 0.001
    (folder / "model.safetensors").write_bytes(save({"embeddings": rows}))
    (folder / "tokenizer.json").write_text(tokenizer, encoding="utf-8")
    config = {"model_type": "model2vec", "architectures": ["StaticModel"], "normalize": True}
    (folder / "config.json").write_text(json.dumps(config | {"hidden_dim": vectors.shape[1]}), encoding="utf-8")
    encoder = {"kind": "static", "model": OWN_FOLDER}
    described = QueryEncoderFile(format=FORMAT, space=space, dim=vectors.shape[1], encoder=encoder)
    (folder / FILE).write_bytes(msgspec.json.format(msgspec.json.encode(described)))
