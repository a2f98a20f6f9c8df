"""Any retrieval task of MTEB, version 2, through Isotrope: `mteb.evaluate(IsotropeModel("minilm"), task)`.

`IsotropeModel` is two things to mteb:

    search     (SearchProtocol) retrieval and reranking: an index of the task's corpus is built as `isotrope build`
               builds one, and asked as `isotrope query` asks it. Both means are fitted to that corpus.
    encoder    (EncoderProtocol) all other tasks, which have no corpus to fit on: the vectors of an index that is there
               already, `IsotropeModel.of_index`. Texts that mteb calls queries are centred as such, all others as
               documents.

mteb judges by trec_eval's code, which puts ties in descending order of id and Isotrope in ascending: scores are handed
over without ties, in our order, so that the ranking judged is the one that users see. mteb's prompts, batch sizes and
processes are not taken: the recipe and `RunOptions` have their own.
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
from indexer.config import BuildConfig
from indexer.corpus.document import Document, is_blank
from indexer.corpus.query_file import query_file_sha256
from indexer.encoders.cross_encoder_spec import with_recorded_hash
from indexer.encoders.precomputed import cannot_encode
from indexer.encoders.spec import resolve_spec
from indexer.errors import ConfigError
from indexer.hashing import canonical_sha256
from indexer.lazy import require_extra
from indexer.pipeline.build import build_index
from indexer.run_options import RunOptions
from search.engine import SearchEngine
from search.export.trec import strictly_falling
from search.hits import Answer
from search.index import Index
from search.ranking.documents import RankedDocument
from search.ranking.options import SearchOptions
from search.text import counted

if TYPE_CHECKING:
    import torch
    from datasets import Dataset
    from mteb.models import ModelMeta
    from mteb.types import BatchedInput, PromptType
    from torch.utils.data import DataLoader

_REVISION = 40  # hexadecimal digits, as those of a commit, which mteb has there for other models


class IsotropeModel:
    """A recipe as a model of mteb.

    `recipe` is one in memory, a file, or the name of a shipped one. With `transform_from` the encoder's vectors are
    transformed as those of that index, and nothing is fitted to a task's corpus. `search_options` say how indexes are
    asked (`SearchOptions(hybrid=True)`; their k gives way to mteb's): as they ship, so that an approximate one may find
    less unless `exact`. `run_options` say how things run. Indexes are built in `folder`/TASK/SUBSET-SPLIT, where later
    runs find them up to date, or else in a temporary folder that goes with the next one and with `close`.

    `name` is what tables call the model: "isotrope/NAME". Results are cached by `mteb_model_meta.revision` too, a hash
    of the weights of the encoder and of the cross-encoder, the recipe and the way of asking.

    Raises ConfigError for a recipe that encodes no texts and for arguments of other types, ModelError, and MachineError
    when mteb is not installed.
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
        _require_type("recipe", recipe, (BuildConfig, str, Path), "a recipe, a file, or the name of a shipped one")
        _require_type("search_options", search_options, (SearchOptions, NoneType), "SearchOptions or None")
        _require_type("run_options", run_options, (RunOptions, NoneType), "RunOptions or None")
        self._config = recipe if isinstance(recipe, BuildConfig) else BuildConfig.load(recipe)
        self._search_options, self._run_options = search_options or SearchOptions(), run_options or RunOptions()
        self._spec = resolve_spec(self._config)
        if not self._spec.traits.encodes_texts:
            raise ConfigError(f"{cannot_encode(self._spec)} mteb's tasks are texts; expected another encoder.kind.")
        self._donor = None if transform_from is None else Index.open(transform_from)
        named = Path(self._spec.model) if isinstance(recipe, BuildConfig) else Path(recipe).with_suffix("")
        self._name = f"isotrope/{name or named.name}"
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
        """The recipe and the transform of an index; `model` is the folder of its model, if that has moved.

        Encodes for tasks of every kind. Raises what opening an index raises, and as the class does.
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
        """Let go of the files of indexes, and remove the last task's if it is a temporary one."""
        for engine in (self._engine, self.__dict__.get("_donor_engine")):
            if engine is not None:
                engine.close()
        self._engine = None
        if self._temporary is not None:
            self._temporary()
            self._temporary = None

    # --- search

    def index(self, corpus: "Dataset", **task: Any) -> None:
        """Build the index of a task's corpus: rows of `id`, `text` and maybe `title`, joined as `corpus.text` says.

        `task` is what mteb says of it. Blank documents are left out, with a warning: they are never found. Raises what
        `build_index` raises, ExistsError too, where `folder` holds the index of another recipe or corpus.
        """
        _require_float32(task.get("encode_kwargs", {}))
        self.close()
        folder, donor = self._place(task), self._donor.path if self._donor else None
        documents = _Documents(corpus, self._config.corpus.text)
        build_index(documents.filled(), folder, self._config, self._run_options, transform_from=donor)
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
        """Query id -> document id -> score, best first: `top_k` documents of the index, or of `top_ranked[query]`.

        A query reads as mteb's encoders read it: its instruction behind it, the turns of a conversation in a row. One
        that is blank, or has no candidates where others have, finds nothing, with a warning. Raises ConfigError unless
        a corpus was indexed, and for search options that cannot be asked for.
        """
        _require_float32(task.get("encode_kwargs", {}))
        if self._engine is None:
            raise ConfigError("search was called before index; expected the corpus first. mteb.evaluate calls both.")
        texts = {str(row["id"]): _query_text(row) for row in queries}
        able = texts if top_ranked is None else top_ranked
        asked = {name: text for name, text in texts.items() if text.strip() and name in able}
        _warn_of(len(texts) - len(asked), "query", "without a text or without candidates: nothing found", "queries")
        options = dataclasses.replace(self._search_options, k=top_k)
        if top_ranked is None:
            found = _ranked(self._engine, list(asked.values()), options)
        else:
            found = _ranked_among(self._engine, list(asked.values()), [top_ranked[name] for name in asked], options)
        answers = dict(zip(asked, found, strict=True))
        return {name: _without_ties(answers.get(name, ())) for name in texts}

    def _place(self, task: Mapping[str, Any]) -> Path:
        """The folder for the index of a task's corpus."""
        if self._folder is None:
            made = tempfile.mkdtemp(prefix="isotrope-")
            self._temporary = weakref.finalize(self, shutil.rmtree, made, ignore_errors=True)
            return Path(made, "index")
        parts = (task["task_metadata"].name, f"{task['hf_subset']}-{task['hf_split']}")
        place = self._folder.joinpath(*(part.replace("/", "_") for part in parts))
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    # --- encoder

    def encode(
        self, inputs: "DataLoader[BatchedInput]", *, prompt_type: "PromptType | None" = None, **task: Any
    ) -> Float32Array:
        """Unit vectors (n, k) of the texts of all batches: as queries if mteb says so, else as documents.

        Raises ConfigError for a model without an index to take the transform from: these tasks have no corpus.
        """
        _require_float32(task)
        if self._donor is None:
            raise ConfigError(
                "this task has no corpus to fit a transform to. Way out: build an index of texts like the task's, and "
                "take IsotropeModel.of_index(PATH)."
            )
        texts = [text for batch in inputs for text in batch["text"]]
        return np.asarray(self._donor_engine.embed(texts, "query" if prompt_type == "query" else "document"))

    def similarity(self, embeddings1: Any, embeddings2: Any) -> "torch.Tensor":
        """Inner products (n, m) of vectors (n, k) and (m, k), or one of (k,); of unit vectors, cosines."""
        first, second = _rows(embeddings1), _rows(embeddings2)
        return first @ second.T

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> "torch.Tensor":
        """Inner products (n,) of vectors (n, k) with those of the same place."""
        return (_rows(embeddings1) * _rows(embeddings2)).sum(dim=1)

    @cached_property
    def _donor_engine(self) -> SearchEngine:
        if self._donor is None:
            raise ConfigError("there is no index to encode with.")
        return SearchEngine(self._donor.path, self._spec.folder, self._run_options)

    # --- metadata

    @cached_property
    def mteb_model_meta(self) -> "ModelMeta":
        """What mteb writes beside results; what it does not know of a recipe is None."""
        from mteb.models import ModelMeta
        from mteb.models.model_meta import ScoringFunction

        identity = self._spec.identity
        facts = {
            "name": self._name,
            "revision": canonical_sha256(self._route())[:_REVISION],
            "max_tokens": identity.max_length,
            "embed_dim": self._donor.transform.dim if self._donor else self._config.whitening.dim or None,
            "similarity_fn_name": ScoringFunction.COSINE,
            "use_instructions": bool(identity.query_prefix or identity.document_prefix),
            "model_type": ["hybrid" if self._search_options.hybrid else "dense"],
        }
        return ModelMeta.create_empty(overwrites=facts)

    def _route(self) -> dict[str, Any]:
        """All that results depend on, in JSON types: files by their hashes, and no names of folders."""
        reranks = self._search_options.rerank_depth != 0
        recipe = (with_recorded_hash(self._config) if reranks else self._config).to_dict()
        recipe["rerank"] |= {"model": ""} if reranks else {"model": "", "sha256": ""}
        asked = dataclasses.asdict(self._search_options)
        del recipe["encoder"]["model"], asked["k"]
        recipe["index"]["queries"] = query_file_sha256(self._config.index.queries, "index.queries")
        if self._donor:
            manifest = self._donor.manifest
            recipe["whitening"] = manifest.files[manifest.transform["file"]].sha256
        else:
            sample = query_file_sha256(self._config.whitening.query_sample, "whitening.query_sample")
            recipe["whitening"]["query_sample"] = sample
        return {"encoder": self._spec.fingerprint, "recipe": recipe, "search": asked}


class _Documents:
    """The rows of a corpus of mteb as documents; `blank` counts those left out."""

    def __init__(self, corpus: "Dataset", columns: Sequence[str]) -> None:
        self._corpus, self._columns, self.blank = corpus, columns, 0
        self._metadata = [name for name in columns if name not in ("title", "text")]
        if missing := [name for name in self._metadata if name not in corpus.column_names]:
            raise ConfigError(
                f'corpus.text names column "{missing[0]}", which the corpus of the task does not have; it has '
                f"{', '.join(corpus.column_names)}."
            )

    def filled(self) -> Iterator[Document]:
        """Those that hold some text."""
        for row in self._corpus:
            metadata = {name: row[name] for name in self._metadata}
            document = Document(str(row["id"]), row["text"] or "", row.get("title") or None, metadata)
            if is_blank(document, self._columns):
                self.blank += 1
            else:
                yield document


Found = Sequence[tuple[str, float]]
"""Ids of documents and scores, best first."""


def _ranked(engine: SearchEngine, texts: list[str], options: SearchOptions) -> list[Found]:
    """The best documents of the index for each text; no document is read."""
    return _named(engine, engine.rank(texts, options))


def _ranked_among(
    engine: SearchEngine, texts: list[str], candidates: Sequence[Sequence[str]], options: SearchOptions
) -> list[Found]:
    """The same among the candidates of each text."""
    return _named(engine, engine.rank_among(texts, candidates, options) if texts else [])


def _named(engine: SearchEngine, ranked: Sequence[Answer[RankedDocument]]) -> list[Found]:
    numbers = sorted({one.document for answer in ranked for one in answer})
    ids = dict(zip(numbers, engine.index.documents.ids(numbers), strict=True))
    return [[(ids[one.document], one.score) for one in answer] for answer in ranked]


def _without_ties(found: Found) -> dict[str, float]:
    scores = strictly_falling(np.array([score for _, score in found], np.float32))
    return dict(zip([name for name, _ in found], scores.tolist(), strict=True))


def _query_text(row: Mapping[str, Any]) -> str:
    """A query as mteb's encoders read it."""
    text, instruction = row["text"], row.get("instruction")
    if isinstance(text, str):
        return f"{text} {instruction}" if instruction else text
    turns = [turn if isinstance(turn, str) else f"{turn['role']}: {turn['content']}" for turn in text]
    return " ".join([*([instruction] if instruction else []), "; ".join(turns)])


def _require_type(name: str, value: object, kinds: tuple[type, ...], expected: str) -> None:
    """Raises ConfigError for an argument in another's place, which would be taken for what it is not."""
    if not isinstance(value, kinds):
        raise ConfigError(f"{name} is of type {type(value).__name__}; expected {expected}. Name arguments: {name}=...")


def _require_float32(asked: Mapping[str, Any]) -> None:
    """Raises ConfigError for another precision of vectors, which mteb's results would be filed under."""
    if asked.get("precision") not in (None, "float32"):
        raise ConfigError(
            f'encode_kwargs has precision "{asked["precision"]}"; expected none. How vectors are kept is for the '
            "recipe to say: index.type."
        )


def _warn_of(count: int, one: str, what: str, many: str = "") -> None:
    if count:
        warnings.warn(f"{counted(count, one, many)} {what}", stacklevel=3)


def _rows(vectors: Any) -> "torch.Tensor":
    """Vectors as float32 (n, k)."""
    import torch

    rows = torch.as_tensor(vectors, dtype=torch.float32)
    return rows if rows.dim() > 1 else rows[None]
