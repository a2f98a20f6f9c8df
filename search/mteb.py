"""Isotrope as a model of MTEB, version 2: `mteb.evaluate(IsotropeModel("minilm"), task)`.

`IsotropeModel` implements two protocols of mteb:

    SearchProtocol     Retrieval and reranking. An index of the task's corpus is built as by `isotrope build` and
                       searched as by `isotrope query`. Both means are fitted to that corpus.
    EncoderProtocol    All other tasks, which have no corpus to fit on. Vectors are those of an existing index,
                       `IsotropeModel.of_index`. Texts that mteb marks as queries use the query mean, all others the
                       document mean.

mteb evaluates with trec_eval's code, which breaks ties by descending id; Isotrope breaks them by ascending id. Scores
are therefore passed without ties, in Isotrope's order, so that mteb evaluates the ranking that users see. mteb's
prompts, batch sizes and processes are ignored: the recipe and `RunOptions` define them.
"""

import dataclasses
import shutil
import tempfile
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

import numpy as np

from indexer.arrays import Float32Array
from indexer.corpus.document import Document, is_blank
from indexer.corpus.query_file import query_file_sha256
from indexer.encoders.precomputed import cannot_encode
from indexer.errors import ConfigError
from indexer.hashing import canonical_sha256
from indexer.lazy_imports import require_extra
from indexer.models.cross_encoder_spec import with_recorded_hash
from indexer.models.resolution import resolve_spec
from indexer.pipeline.build import build_index
from indexer.recipe.config import BuildConfig
from indexer.recipe.run_options import RunOptions
from search.engine import SearchEngine
from search.export.trec import strictly_falling
from search.formatting import counted
from search.hits import Answer
from search.index import Index
from search.ranking.documents import RankedDocument
from search.ranking.options import SearchOptions

if TYPE_CHECKING:
    import torch
    from datasets import Dataset
    from mteb.models import ModelMeta
    from mteb.types import BatchedInput, PromptType
    from torch.utils.data import DataLoader

_REVISION = 40  # hexadecimal digits, the length of a commit hash, which mteb shows for other models


class IsotropeModel:
    """A recipe as a model of mteb.

    `recipe` is a `BuildConfig`, a file, or the name of a shipped recipe. With `transform_from` the transform of that
    index is used, and nothing is fitted to a task's corpus. `search_options` (such as `SearchOptions(hybrid=True)`)
    apply to every search, with mteb's k; an approximate index may miss documents unless `exact`. `run_options` choose
    device and threads. Indexes are built in `folder`/TASK/SUBSET-SPLIT, where later runs reuse them, or by default in a
    temporary folder, which the next task or `close` removes.

    `name` is the model's name in tables: "isotrope/NAME". mteb also caches results by `mteb_model_meta.revision`, a
    hash of the weights of encoder and cross-encoder, the recipe and the search options.

    Raises ConfigError for a recipe that encodes no texts and for arguments of wrong types, ModelError, and MachineError
    if mteb is not installed.
    """

    def __init__(
        self,
        recipe: BuildConfig | str | Path = "minilm",
        search_options: SearchOptions | None = None,
        run_options: RunOptions | None = None,
        folder: str | Path | None = None,
        name: str = "",
        transform_from: str | Path | None = None,
    ) -> None:
        require_extra("mteb", "mteb")
        _require_type("recipe", recipe, (BuildConfig, str, Path), "a BuildConfig, a file, or a shipped recipe's name")
        _require_type("search_options", search_options, (SearchOptions, NoneType), "SearchOptions or None")
        _require_type("run_options", run_options, (RunOptions, NoneType), "RunOptions or None")
        self._config = recipe if isinstance(recipe, BuildConfig) else BuildConfig.load(recipe)
        self._search_options, self._run_options = search_options or SearchOptions(), run_options or RunOptions()
        self._spec = resolve_spec(self._config)
        if not self._spec.traits.encodes_texts:
            raise ConfigError(f"{cannot_encode(self._spec)} mteb's tasks are texts; expected another encoder.kind.")
        self._source = None if transform_from is None else Index.open(transform_from)
        default = Path(self._spec.model) if isinstance(recipe, BuildConfig) else Path(recipe).with_suffix("")
        self._name = f"isotrope/{name or default.name}"
        self._folder = None if folder is None else Path(folder)
        self._engine: SearchEngine | None = None  # of the task's corpus
        self._temporary: weakref.finalize[..., IsotropeModel] | None = None

    @classmethod
    def of_index(
        cls,
        index: str | Path,
        *,
        model: str | Path | None = None,
        search_options: SearchOptions | None = None,
        run_options: RunOptions | None = None,
        folder: str | Path | None = None,
        name: str = "",
    ) -> "IsotropeModel":
        """Return a model with the recipe and the transform of an index; `model` is the folder of its model if it moved.

        It runs tasks of every kind. Raises the errors of `Index.open` and of the class.
        """
        config = Index.open(index).config
        if model is not None:
            config = dataclasses.replace(config, encoder=dataclasses.replace(config.encoder, model=str(model)))
        return cls(config, search_options, run_options, folder, name or Path(index).resolve().name, index)

    def __enter__(self) -> "IsotropeModel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close open indexes, and remove the last task's index if it is temporary."""
        for engine in (self._engine, self.__dict__.get("_source_engine")):
            if engine is not None:
                engine.close()
        self._engine = None
        if self._temporary is not None:
            self._temporary()
            self._temporary = None

    # --- search

    def index(self, corpus: "Dataset", **task: Any) -> None:
        """Build the index of a task's corpus: rows of `id`, `text` and optionally `title`, joined by `corpus.text`.

        `task` contains mteb's description of the task. Blank documents are left out with a warning and never found.
        Raises the errors of `build_index`: ExistsError if `folder` contains the index of another recipe or corpus.
        """
        _require_float32(task.get("encode_kwargs", {}))
        self.close()
        folder, source = self._index_folder(task), self._source.path if self._source else None
        documents = _Documents(corpus, self._config.corpus.text)
        build_index(documents.not_blank(), folder, self._config, self._run_options, transform_from=source)
        _warn_of(documents.blank, "blank document", "left out of the index and never found")
        self._engine = SearchEngine(folder, options=self._run_options)

    def search(
        self,
        queries: "Dataset",
        *,
        top_k: int,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        **task: Any,
    ) -> dict[str, dict[str, float]]:
        """Return query id -> document id -> score: the best `top_k` documents of the index or of `top_ranked[query]`.

        Query texts are those of mteb's encoders: the instruction follows the query, the turns of a conversation are
        joined. Blank queries, and with `top_ranked` queries without candidates, have no hits and cause a warning.
        Raises ConfigError if no corpus was indexed and for invalid search options.
        """
        _require_float32(task.get("encode_kwargs", {}))
        if self._engine is None:
            raise ConfigError("search was called before index; expected the corpus first. mteb.evaluate calls both.")
        texts = {str(row["id"]): _query_text(row) for row in queries}
        candidates = texts if top_ranked is None else top_ranked
        requests = {name: text for name, text in texts.items() if text.strip() and name in candidates}
        _warn_of(len(texts) - len(requests), "query", "without a text or without candidates: no hits", "queries")
        options = dataclasses.replace(self._search_options, k=top_k)
        ranked: Sequence[Answer[RankedDocument]] = []
        if top_ranked is None:
            ranked = self._engine.rank(list(requests.values()), options)
        elif requests:
            among = [top_ranked[name] for name in requests]
            ranked = self._engine.rank_among(list(requests.values()), among, options)
        numbers = sorted({hit.document for answer in ranked for hit in answer})
        ids = dict(zip(numbers, self._engine.index.documents.ids(numbers), strict=True))
        answers = dict(zip(requests, ranked, strict=True))
        return {name: _scores_by_id(answers.get(name, ()), ids) for name in texts}

    def _index_folder(self, task: Mapping[str, Any]) -> Path:
        if self._folder is None:
            temporary = tempfile.mkdtemp(prefix="isotrope-")
            self._temporary = weakref.finalize(self, shutil.rmtree, temporary, ignore_errors=True)
            return Path(temporary, "index")
        parts = (task["task_metadata"].name, f"{task['hf_subset']}-{task['hf_split']}")
        folder = self._folder.joinpath(*(part.replace("/", "_") for part in parts))
        folder.parent.mkdir(parents=True, exist_ok=True)
        return folder

    # --- encoder

    def encode(
        self, inputs: "DataLoader[BatchedInput]", *, prompt_type: "PromptType | None" = None, **task: Any
    ) -> Float32Array:
        """Return unit vectors (n, k) of the texts of all batches, as queries if `prompt_type` is, else as documents.

        Raises ConfigError if the model has no index to take the transform from, as these tasks have no corpus.
        """
        _require_float32(task)
        texts = [text for batch in inputs for text in batch["text"]]
        return np.asarray(self._source_engine.embed(texts, "query" if prompt_type == "query" else "document"))

    def similarity(self, embeddings1: Any, embeddings2: Any) -> "torch.Tensor":
        """Return inner products (n, m) of vectors (n, k) and (m, k), or of one vector (k,): cosines of unit vectors."""
        first, second = _rows(embeddings1), _rows(embeddings2)
        return first @ second.T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> "torch.Tensor":
        """Return inner products (n,) of vectors (n, k) with the vectors in the same row."""
        return (_rows(embeddings1) * _rows(embeddings2)).sum(dim=1)

    @cached_property
    def _source_engine(self) -> SearchEngine:
        if self._source is None:
            raise ConfigError(
                "this task has no corpus to fit a transform to. Fix: build an index of texts like the task's, and use "
                "IsotropeModel.of_index(PATH)."
            )
        return SearchEngine(self._source.path, self._spec.folder, self._run_options)

    # --- metadata

    @cached_property
    def mteb_model_meta(self) -> "ModelMeta":
        """The metadata that mteb stores with results. Fields unknown for a recipe are None."""
        from mteb.models import ModelMeta
        from mteb.models.model_meta import ScoringFunction

        identity = self._spec.identity
        facts = {
            "name": self._name,
            "revision": canonical_sha256(self._route())[:_REVISION],
            "max_tokens": identity.max_length,
            "embed_dim": self._source.transform.dim if self._source else self._config.whitening.dim or None,
            "similarity_fn_name": ScoringFunction.COSINE,
            "use_instructions": bool(identity.query_prefix or identity.document_prefix),
            "model_type": ["hybrid" if self._search_options.hybrid else "dense"],
        }
        return ModelMeta.create_empty(overwrites=facts)

    def _route(self) -> dict[str, Any]:
        """Return everything that results depend on, as JSON types: files by their hashes, without names of folders."""
        reranks = self._search_options.rerank_depth != 0
        recipe = (with_recorded_hash(self._config) if reranks else self._config).to_dict()
        recipe["rerank"] |= {"model": ""} if reranks else {"model": "", "sha256": ""}
        search = dataclasses.asdict(self._search_options)
        del recipe["encoder"]["model"], search["k"]
        recipe["index"]["queries"] = query_file_sha256(self._config.index.queries, "index.queries")
        if self._source:
            manifest = self._source.manifest
            recipe["whitening"] = manifest.files[manifest.transform["file"]].sha256
        else:
            sample = query_file_sha256(self._config.whitening.query_sample, "whitening.query_sample")
            recipe["whitening"]["query_sample"] = sample
        return {"encoder": self._spec.fingerprint, "recipe": recipe, "search": search}


class _Documents:
    """The rows of a corpus of mteb as documents; `blank` counts the blank documents left out."""

    def __init__(self, corpus: "Dataset", columns: Sequence[str]) -> None:
        self._corpus, self._columns, self.blank = corpus, columns, 0
        self._metadata = [name for name in columns if name not in ("title", "text")]
        if missing := [name for name in self._metadata if name not in corpus.column_names]:
            raise ConfigError(
                f'corpus.text names column "{missing[0]}", which the corpus of the task does not have; expected one '
                f"of {', '.join(corpus.column_names)}."
            )

    def not_blank(self) -> Iterator[Document]:
        """Yield the documents with text."""
        for row in self._corpus:
            metadata = {name: row[name] for name in self._metadata}
            document = Document(str(row["id"]), row["text"] or "", row.get("title") or None, metadata)
            if is_blank(document, self._columns):
                self.blank += 1
            else:
                yield document


def _scores_by_id(hits: Sequence[RankedDocument], ids: Mapping[int, str]) -> dict[str, float]:
    """Return document id -> score without ties, best first; `ids` maps document numbers to ids."""
    scores = strictly_falling(np.array([hit.score for hit in hits], np.float32))
    return dict(zip([ids[hit.document] for hit in hits], scores.tolist(), strict=True))


def _query_text(row: Mapping[str, Any]) -> str:
    """Return the text of a query as mteb's encoders build it."""
    text, instruction = row["text"], row.get("instruction")
    if isinstance(text, str):
        return f"{text} {instruction}" if instruction else text
    turns = [turn if isinstance(turn, str) else f"{turn['role']}: {turn['content']}" for turn in text]
    return " ".join([*([instruction] if instruction else []), "; ".join(turns)])


def _require_type(name: str, value: object, kinds: tuple[type, ...], expected: str) -> None:
    """Raise ConfigError for an argument of a wrong type, such as one in the position of another."""
    if not isinstance(value, kinds):
        raise ConfigError(
            f"{name} is of type {type(value).__name__}; expected {expected}. Fix: name the arguments, {name}=..."
        )


def _require_float32(encode_kwargs: Mapping[str, Any]) -> None:
    """Raise ConfigError for another precision of vectors, under which mteb would file the results."""
    if encode_kwargs.get("precision") not in (None, "float32"):
        raise ConfigError(
            f'encode_kwargs has precision "{encode_kwargs["precision"]}"; expected none. Fix: set the precision of '
            "stored vectors in the recipe, by index.type."
        )


def _warn_of(count: int, one: str, remark: str, many: str = "") -> None:
    if count:
        warnings.warn(f"{counted(count, one, many)} {remark}", stacklevel=3)


def _rows(vectors: Any) -> "torch.Tensor":
    import torch

    rows = torch.as_tensor(vectors, dtype=torch.float32)
    return rows if rows.dim() > 1 else rows[None]
