"""A wrong argument of a public function, method or settings class is an error of this project."""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

import indexer
import search
from indexer import BuildConfig, Document, IsotropeError, RunOptions, build_index, read_corpus
from indexer.errors import ConfigError
from indexer.typed_arguments import checked
from search import Index, SearchClient, SearchEngine, dedup, erasure, evaluation, export, migration
from search.dedup import CorpusBuild, DedupFiles, DedupSettings, PairFiles, deduplicate_index
from search.evaluation import LayersOptions, RetrievalOptions, StsOptions, Sweep, Target, read_tasks
from search.migration import GivenQueries, MigrationOptions

PACKAGES = (indexer, search, dedup, erasure, evaluation, export, migration)

WRONG: tuple[Any, ...] = (None, 3, 3.5, "x", [], object(), b"x", {}, ["x"], True)
VALUES = {name for module in PACKAGES for name in module.__all__
          if name.endswith(("Error", "Report", "Fields", "Inputs"))}  # fmt: skip
VALUES |= {"Answer", "ColumnFacet", "Corpus", "Deduplication", "Document", "Drift", "EmbeddingSource", "EncodeStats",
           "EncodedPending", "Encoder", "EncoderSpec", "FoldedHit", "Hit", "HybridScores", "Index", "JudgedQueries",
           "PreparedParts", "Progress", "RankedDocument", "Records", "Reranker", "Result", "ServedResult", "Subject",
           "Suggestion", "SyncPlan", "Target", "Task", "UnitVectors", "Window", "WorkerPool"}  # fmt: skip
"""Errors, classes of results, and values that are checked where they are used."""
TWINS = {"AsyncSearchClient"}  # `SearchClient` runs the same calls
WITHOUT_ARGUMENTS = {"stdlib_documents"}


Call = tuple[Callable[..., Any], dict[str, Any]]


@dataclass(frozen=True)
class Place:
    """A folder with an index, its recipe and corpus, judgements and sentence pairs."""

    folder: Path
    config: BuildConfig

    @property
    def index(self) -> Path:
        return self.folder / "index"

    @property
    def docs(self) -> Path:
        return self.folder / "beir" / "corpus.jsonl"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("arguments")
    (folder / "words.txt").write_text("whale 1 0 2\nbridge 0 1 1\nsteel 1 1 0\nsea 2 1 0\n")
    config = BuildConfig().with_overrides(["encoder.kind=static", f"encoder.model={folder / 'words.txt'}"])
    (folder / "beir" / "qrels").mkdir(parents=True)
    texts = ["whale sea", "steel bridge", "sea bridge", "whale steel"]
    write_lines(folder / "beir" / "corpus.jsonl", [{"_id": f"d{n}", "text": text} for n, text in enumerate(texts)])
    write_lines(folder / "beir" / "queries.jsonl", [{"_id": f"q{n}", "text": text} for n, text in enumerate(texts[:2])])
    (folder / "beir" / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq0\td0\t1\nq1\td1\t1\n")
    (folder / "pairs.tsv").write_text("5\twhale sea\twhale\n1\tsteel\tsea\n3\tbridge\tsteel sea\n")
    (folder / "result.json").write_text("{}")
    build_index(read_corpus(folder / "beir" / "corpus.jsonl"), folder / "index", config)
    return Place(folder, config)


def write_lines(path: Path, rows: list[dict[str, str]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def calls(place: Place, engine: SearchEngine) -> dict[str, Call]:
    """Return every public function, method and settings class with arguments that are right, and cheap."""
    tasks, index = read_tasks(place.folder / "pairs.tsv"), engine.index
    found = deduplicate_index(place.index, DedupSettings(0.9))
    rows, vectors = np.arange(2), np.eye(3, dtype=np.float32)
    at = {"index": place.index}
    subject, new = {"subject": place.index}, {"path": place.folder / "new" / "file.parquet"}
    functions: dict[str, dict[str, Any]] = {
        "read_corpus": {"config": place.config.corpus},
        "joined_text": {"document": Document("a", "whale"), "columns": ["text"]},
        "add_documents": {"corpus": [], **at},
        "build_index": {"corpus": [], **at, "config": place.config},
        "compact_index": at,
        "delete_documents": {**at, "ids": ["d9"], "ignore_missing": True},
        "erase_documents": {**at, "ids": ["d9"], "proof": place.folder / "erased.json"},
        "verify_erased": {"proof": place.folder / "erased.json"},
        "plan_sync": {"corpus": [], **at},
        "sync_index": {"corpus": [], **at, "config": place.config, "force": True},
        "cancel_pending": at,
        "encode_pending": at,
        "prepare_parts": {"corpus": [], **at},
        "refit_index": at,
        "reviewed_by": {"review": lambda *_: True},
        "diff_indexes": {"before": place.index, "after": place.index},
        "compare_encoders": {**at, "task": MigrationOptions("x")},
        "compare_vectors": {**at, "to_index": place.index, "task": GivenQueries(place.folder / "beir")},
        "migrate_index": {**at, "model": "x"},
        "map_index": {**at, "output": place.folder / "map", "task": MigrationOptions("x")},
        "rescore_index": {**at, "output": place.folder / "rescorer", "task": MigrationOptions("x")},
        "distill_index": {**at, "output": place.folder / "table"},
        "train_encoder": {"corpus": [], "folder": place.folder / "trained", "config": place.config},
        "deduplicate_corpus": {"corpus": read_corpus(place.docs), "settings": 0.9, "build": CorpusBuild(place.config)},
        "deduplicate": {"source": place.index, "settings": 0.9},
        "deduplicate_index": {**at, "settings": 0.9},
        "push_index": {**at, "url": "hf://"},
        "pull_index": {"url": "hf://", **at},
        "read_judged": {"folder": place.folder / "beir"},
        "write_kept": {"path": place.folder / "kept.jsonl", "index": index, "kept": rows, "force": True},
        "suggest_thresholds": at,
        "verify_duplicates": {"path": place.folder / "none.parquet", **at},
        "evaluate_recall": {"engine": engine, "sample": 2},
        "write_report": {"engine": engine, "path": place.folder / "report.html", "force": True},
        "read_result": {"path": place.folder / "result.json"},
        "write_result": {"path": place.folder / "written.json", "result": {}, "force": True},
        "evaluate_retrieval": {**subject, "task": RetrievalOptions(place.folder / "beir", bm25=False)},
        "read_tasks": {},
        "evaluate_sts": {**subject, "tasks": tasks, "plan": StsOptions(Target.of(place.index).settings(Sweep()))},
        "evaluate_layers": {**subject, "tasks": tasks, "plan": LayersOptions()},
        "plot_retrieval": {"result": {}, "path": place.folder / "plot.svg"},
        "run_tune": subject,
        "write_recipe": {"path": place.folder / "tuned.toml", "result": {}},
        "export_faiss": {**at, **new},
        "export_parquet": {**at, **new},
        "export_sentence_transformers": {**at, "path": place.folder / "exported"},
        "export_trec_run": {**at, **new, "queries": place.folder / "beir" / "queries.jsonl"},
        "verify_index": at,
    }
    classes: dict[str, dict[str, Any]] = {
        "BuildConfig": {}, "RunOptions": {}, "SearchEngine": at, "SearchClient": {"url": "http://127.0.0.1:9"},
        "CorpusBuild": {}, "DedupFiles": {}, "DedupSettings": {"threshold": 0.9}, "JoinOptions": {}, "PairFiles": {},
        "PushOptions": {},
        "ReportOptions": {}, "RerankTask": {"by": "x"}, "RetrievalOptions": {"folder": place.folder}, "StsOptions":
        {"settings": []}, "Setting": {"pooling": "mean", "layers": (-1,), "whitening": place.config.whitening},
        "Sweep": {}, "DiffOptions": {}, "MigrationOptions": {},
        "GivenQueries": {"folder": place.folder},
        "TuneOptions": {}, "LayersOptions": {}, "SearchOptions": {}, "ShardOptions": {},
    }  # fmt: skip
    named = functions | classes
    public = {name: (getattr(module, name), named[name]) for module in PACKAGES for name in module.__all__
              if name not in VALUES and name not in WITHOUT_ARGUMENTS and name in named}  # fmt: skip
    kinds = [type(section) for section in vars(place.config).values() if not isinstance(section, dict)]
    sections: dict[str, Call] = {kind.__name__: (kind, {}) for kind in kinds}
    query = {"query": "whale"}
    queries = {"queries": ["whale"]}
    client = SearchClient("http://127.0.0.1:9")
    methods: list[tuple[Any, dict[str, dict[str, Any]]]] = [
        (engine, {"check": {}, "facets": {}, "rerank_by": {"reranker": "x"},
                  "encode_queries_by": {"folder": "x"}, "encode": {"texts": ["whale"]},
                  "prepare_hybrid": {}, "search": query,
                  "search_many": queries, "search_vectors": {"embeddings": vectors}, "hits": {"ranked": []},
                  "rank": queries, "rank_among": {**queries, "candidates": [["d0"]]}, "neighbours": {"identity": "d0"},
                  "rank_neighbours": {"identity": "d0"}, "document": {"identity": "d0"}, "embed": {"texts": ["a"]},
                  "documents": {"ids": ["d0"]}, "find": {}, "count": {},
                  "add": {"documents": []}, "update": {"changes": []},
                  "delete": {"ids": []}, "sync": {"documents": [], "force": True},
                  "from_texts": {"texts": [], "config": place.config}}),
        (client, {"search": query, "search_many": queries, "results": queries, "neighbours": {"identity": "d0"},
                  "document": {"identity": "d0"}, "documents": {"ids": ["d0"]}, "embed": {"texts": ["whale"]}}),
        (index, {"open": {"path": place.index}, "unchecked": {"path": place.index}, "encoder_spec": {},
                 "embeddings": {"rows": rows}, "vectors": {"rows": rows}, "open_segment": {"number": 0},
                 "search": {"vectors": vectors, "k": 1}, "accelerate": {"device": "cpu"},
                 "reach_recall": {"recall": 0.9}}),
        (place.config, {"load": {"path": "static"}, "from_dict": {"data": {}}, "to_toml": {}, "paper":
                        {"section": "flow"}, "with_overrides": {"assignments": []}, "with_columns": {"names": {}}}),
        (found, {"write": new, "write_kept": {"path": place.folder / "kept.jsonl"}, "write_files":
                 {"files": DedupFiles()}}),
        (Target.of(place.index), {"of": subject, "of_recipe": {"config": place.config}, "of_index": at,
                                  "settings": {"sweep": Sweep()}, "states": {"settings": []}}),
        (PairFiles(), {"check": {"settings": DedupSettings(0.9)}}),
    ]  # fmt: skip
    bound = {f"{type(owner).__name__}.{name}": (getattr(owner, name), given)
             for owner, names in methods for name, given in names.items()}  # fmt: skip
    return public | sections | bound


def test_every_public_name_is_tried(place: Place) -> None:
    with SearchEngine(place.index) as engine:
        tried = calls(place, engine)
    public = {name for module in PACKAGES for name in module.__all__}
    assert public - set(tried) - VALUES - TWINS == WITHOUT_ARGUMENTS
    for owner in (SearchEngine, SearchClient, Index, BuildConfig, Target):
        methods = {f"{owner.__name__}.{name}" for name, value in inspect.getmembers(owner, callable)
                   if not name.startswith("_") and takes_arguments(value)}  # fmt: skip
        assert methods - set(tried) == set()


def takes_arguments(call: Callable[..., Any]) -> bool:
    return set(inspect.signature(call).parameters) - {"self"} != set()


def parameters(call: Callable[..., Any]) -> Iterator[str]:
    """Yield the parameters, except further fields, which the options check."""
    for name, each in inspect.signature(call).parameters.items():
        if each.kind != each.VAR_KEYWORD:
            yield name


def called(call: Callable[..., Any], given: Mapping[str, Any], name: str, value: Any) -> None:
    """Call with one wrong value. Raises what is no error of this project."""
    several = [each for each in inspect.signature(call).parameters.values() if each.kind == each.VAR_POSITIONAL]
    try:
        if several and several[0].name == name:
            call(value, **given)
        else:
            call(**{**given, name: value})
    except IsotropeError:
        pass


def test_a_wrong_argument_is_an_error_of_this_project(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    faults = []
    with SearchEngine(place.index) as engine:
        for label, (call, given) in calls(place, engine).items():
            for name in parameters(call):
                for value in WRONG:
                    try:
                        called(call, given, name, value)
                    except Exception as error:  # noqa: BLE001 - collected
                        faults.append(f"{label}({name}={value!r}): {type(error).__name__}: {error}")
    assert faults == [], "\n".join(faults)


def _measured(path: Path, names: tuple[str, ...] = (), weight: float | Literal["none"] = 1.0, **more: int) -> object:
    return path, names, weight, more


measured: Any = checked(_measured)
options: Any = RetrievalOptions


def test_values_that_mean_the_same_are_converted() -> None:
    assert measured("a", ["b", "c"], 2, further=3) == (Path("a"), ("b", "c"), 2, {"further": 3})
    assert measured(path=Path("a"), names=(name for name in "bc"), weight="none") == (Path("a"), ("b", "c"), "none", {})
    assert options("beir", cutoffs=[5], run="runs").cutoffs == (5,)


@pytest.mark.parametrize(("given", "message"), [
    ({"path": 3}, "path is 3; expected a path."),
    ({"path": ""}, 'path is ""; expected a path.'),
    ({"names": "b"}, "names is one string; expected a list of text. Fix: pass it in a list."),
    ({"names": ["b", 3]}, "names: number 2 is 3; expected text."),
    ({"weight": "some"}, 'weight is "some"; expected a number or "none".'),
    ({"weight": True}, 'weight is True; expected a number or "none".'),
    ({"weight": object()}, 'weight is of type object; expected a number or "none".'),
])  # fmt: skip
def test_an_error_states_the_argument_and_the_expected_type(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        measured(**{"path": Path("a"), **given})
    assert str(caught.value) == message


def test_a_wrong_number_or_name_of_arguments_stays_a_type_error() -> None:
    with pytest.raises(TypeError, match="positional arguments"):
        measured("a", (), 1.0, 2)
    with pytest.raises(TypeError, match="unexpected keyword"):
        RunOptions(thread=2)  # type: ignore[call-arg]
    assert list(inspect.signature(measured).parameters) == ["path", "names", "weight", "more"]
