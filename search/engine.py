"""The query side: the same route from text to vector as the index was built by, then FAISS, then the documents."""

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer import ann
from indexer.config import RunOptions
from indexer.corpus.document import Document
from indexer.encoders import EncodeLog, Encoder, EncoderSpec, Role, resolve_spec
from indexer.encoders.backends import open_encoder
from indexer.encoders.identity import mismatch, with_state
from indexer.encoders.model_files import file_sha256
from indexer.encoders.model_folder import cached_snapshot
from indexer.errors import ConfigError, IsotropeError, MismatchError, ModelError
from indexer.store import layout
from search.opened import OpenIndex

Vectors = npt.NDArray[np.float32]
_FAISS_THREADS = 1  # one query on a flat index is faster with one than with many


@dataclass(frozen=True, slots=True)
class Hit:
    """One answer. `score` is the inner product of two unit vectors: higher is closer, 1 is the same direction."""

    id: str
    score: float
    title: str | None
    text: str
    metadata: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class SearchEngine:
    """An open index that answers questions. Opens the newest generation; later ones are not seen.

    `model` points to the model's folder when it has moved; it is used only if its hashes are those of the
    index. Nothing else about the encoder or the transform can be chosen here: both come from the index.
    Raises NotAnIndexError, CorruptIndexError, StoreError, and on first use of the encoder ModelError or
    MismatchError. With `ahead` the index is loaded now and the encoder meanwhile, in a thread of its own: the first
    answer comes sooner. Not thread-safe.
    """

    def __init__(
        self,
        index: str | Path,
        model: str | Path | None = None,
        options: RunOptions | None = None,
        ahead: bool = False,
    ) -> None:
        self._model, self._options = model, options or RunOptions()
        self._loading: Future[Encoder] | None = None
        if not ahead:
            self._opened = OpenIndex.open(index)
            return
        self._opened = OpenIndex.unchecked(index)
        loader = ThreadPoolExecutor(1, thread_name_prefix="load-encoder")
        self._loading = loader.submit(self._load_encoder)  # half of it is hashing, which needs no GIL
        loader.shutdown(wait=False)
        self._opened.load()

    def __len__(self) -> int:
        """Number of documents."""
        return self._opened.manifest.documents

    def __enter__(self) -> "SearchEngine":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the index's files; a later search opens them again."""
        self._opened.documents.close()

    @property
    def opened(self) -> OpenIndex:
        """The index files behind this engine."""
        return self._opened

    def search(self, query: str, k: int = 10) -> list[Hit]:
        """The k documents closest to the query, best first, ties by id; all of them if there are fewer than k.

        A query longer than the encoder's max_length is cut there, as documents are. Raises ConfigError for a
        blank query or k below 1.
        """
        return self.search_many([query], k)[0]

    def search_many(self, queries: Sequence[str], k: int = 10, log: EncodeLog | None = None) -> list[list[Hit]]:
        """`search` for several queries in one batch; scores equal those of one by one up to the encoder's rounding."""
        if k < 1:
            raise ConfigError(f"k is {k}; expected at least 1.")
        for number, query in enumerate(queries, start=1):
            if not query.strip():
                raise ConfigError(f"query {number} is blank; expected some text.")
        found = self._opened.search(self.embed(queries, "query", log), k)
        ranked = [self._ranked(scores, rows, k) for scores, rows in found]
        rows = sorted({row for answer in ranked for row, _ in answer})
        documents = dict(zip(rows, self._opened.documents.fetch(rows), strict=True))
        return [[_hit(documents[row], score) for row, score in answer] for answer in ranked]

    def embed(self, texts: Sequence[str], role: Role = "query", log: EncodeLog | None = None) -> Vectors:
        """Texts to unit vectors (n, k) by the index's own encoder and transform."""
        if not len(texts):
            return np.zeros((0, self._opened.transform.dim), np.float32)
        return self._opened.transform.transform(self.encoder.encode(list(texts), role, log), role)

    @cached_property
    def encoder(self) -> Encoder:
        """The encoder, loaded on first use and only if it is the one the index was built with."""
        ann.set_threads(_FAISS_THREADS)  # FAISS keeps the number for the thread that sets it
        return self._loading.result() if self._loading else self._load_encoder()

    def _load_encoder(self) -> Encoder:
        return open_encoder(index_spec(self._opened, self._model), self._options)

    def _ranked(self, scores: npt.NDArray[np.float32], rows: npt.NDArray[np.int64], k: int) -> list[tuple[int, float]]:
        """(row, score) of the best k, ties by id. `rows` come best first, with all that tie with the k-th."""
        pairs = list(zip(rows.tolist(), scores.tolist(), strict=True))
        if len({score for _, score in pairs}) < len(pairs):  # ids are only looked up where they decide
            names = dict(zip(rows.tolist(), self._opened.documents.ids(rows.tolist()), strict=True))
            pairs.sort(key=lambda pair: (-pair[1], names[pair[0]]))
        return pairs[:k]


def index_spec(opened: OpenIndex, model: str | Path | None = None) -> EncoderSpec:
    """The encoder of an index, found and hashed. Raises ModelError, and MismatchError if it is another one now."""
    folder = model or _known_folder(opened.path, opened.manifest.encoder["folder"])
    if not folder and (spec := _spec_at_hand(opened)) is not None:
        return spec
    spec = _resolved(opened, folder)
    _require_same(opened, spec)
    return spec


def _hit(document: Document, score: float) -> Hit:
    return Hit(document.id, score, document.title, document.text, document.metadata)


def _known_folder(index: Path, folder: str) -> str | None:
    """Where the model lay when the index was built; None for a model that is looked up by its hub id."""
    if folder and not Path(folder).is_dir():
        raise ModelError(f"{index}: its model lay at {folder}, which is gone. Point --model to where it is now.")
    return folder or None


def _spec_at_hand(opened: OpenIndex) -> EncoderSpec | None:
    """The encoder in the Hugging Face cache, if its hashes say that it is the index's; without the hub's library."""
    snapshot = cached_snapshot(opened.config.encoder.model)
    if snapshot is None:
        return None
    try:
        spec = _resolved(opened, snapshot)
    except IsotropeError:  # not whole: the ordinary way says what is wrong
        return None
    return replace(spec, local=False) if spec.fingerprint == opened.manifest.fingerprint else None


def _resolved(opened: OpenIndex, folder: str | Path | None) -> EncoderSpec:
    """The encoder in `folder` by the rules of the index, with the fitted state that lies in the index, hashed anew."""
    identity = opened.manifest.encoder["identity"]
    spec = resolve_spec(opened.config.encoder, folder, identity["rules"])
    if "state" not in identity:
        return spec
    state = opened.path / layout.state_folder(spec.fingerprint)
    return with_state(spec, state, {name: file_sha256(state / name) for name in identity["state"]})


def _require_same(opened: OpenIndex, spec: EncoderSpec) -> None:
    if spec.fingerprint != opened.manifest.fingerprint:
        raise MismatchError(
            f"{opened.path}: the encoder at hand is not the one this index was built with: "
            f"{mismatch(opened.manifest.encoder['identity'], spec)}. "
            "Point --model to the original model folder, or build the index again with this one."
        )
