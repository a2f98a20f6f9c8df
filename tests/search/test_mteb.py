"""mteb's evaluation of an `IsotropeModel` equals `isotrope evaluate retrieval`, offline."""

import dataclasses
import json
import re
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import mteb
import numpy as np
import pytest
import torch
from datasets import Dataset
from mteb._create_dataloaders import _retrieval_texts
from mteb.abstasks.retrieval import AbsTaskRetrieval
from mteb.abstasks.task_metadata import TaskMetadata
from mteb.mocks.mock_tasks import reranking, retrieval, sts
from mteb.models import EncoderProtocol, SearchProtocol
from mteb.types import PromptType

from indexer import BuildConfig, Document, build_index
from indexer.errors import ConfigError, CorpusError, ExistsError, MachineError
from indexer.models.cross_encoder_spec import with_recorded_hash
from indexer.recipe.run_options import RunOptions
from search import SearchEngine, SearchOptions
from search.evaluation import RetrievalOptions, evaluate_retrieval
from search.mteb import IsotropeModel, _query_text
from tests.documents import DOCUMENTS
from tests.tiny_models import make_tiny_cross_encoder

TORCH = RunOptions(backend="torch", device="cpu", threads=1)
QUERIES = {"q1": "whales that sing", "q2": "what makes dough rise", "q3": "sand and glass"}
QRELS = {"q1": {"d0": 2, "d4": 1}, "q2": {"d2": 1, "d7": 0}, "q3": {"d7": 1, "d4": 1, "d8": 2}}
WHERE: dict[str, Any] = {
    "hf_split": "test",
    "hf_subset": "default",
    "encode_kwargs": {"batch_size": 32},
    "num_proc": None,
}


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*address: object) -> None:
        raise AssertionError(f"something asked the network: {address}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


class LocalTask(AbsTaskRetrieval):
    """A retrieval task of mteb with local data."""

    metadata = TaskMetadata(
        name="LocalTask",
        description="Made for a test.",
        dataset={"path": "none", "revision": "none"},
        type="Retrieval",
        eval_langs=["eng-Latn"],
        main_score="ndcg_at_10",
    )

    def __init__(self, corpus: list[dict[str, Any]], queries: Mapping[str, str], qrels: Mapping[str, Any]) -> None:
        super().__init__()
        asked = Dataset.from_list([{"id": name, "text": text} for name, text in queries.items()])
        data: Any = {"corpus": Dataset.from_list(corpus), "queries": asked, "relevant_docs": qrels, "top_ranked": None}
        self.dataset, self.data_loaded = {"default": {"test": data}}, True


def rows(documents: list[Document]) -> list[dict[str, Any]]:
    return [{"id": one.id, "title": one.title or "", "text": one.text} for one in documents]


def scores(model: IsotropeModel, task: Any, cache: Any = None) -> dict[str, Any]:
    """Return mteb's scores of the first subset."""
    (result,) = mteb.evaluate(model, task, cache=cache, show_progress_bar=False).task_results
    return dict(next(iter(result.scores.values()))[0])


def indexed(model: IsotropeModel, corpus: list[dict[str, Any]], **changed: Any) -> None:
    model.index(Dataset.from_list(corpus), task_metadata=LocalTask.metadata, **{**WHERE, **changed})


def found(
    model: IsotropeModel, queries: Mapping[str, str], top_k: int = 10, **task: Any
) -> dict[str, dict[str, float]]:
    asked = Dataset.from_list([{"id": name, "text": text} for name, text in queries.items()])
    return model.search(asked, top_k=top_k, task_metadata=LocalTask.metadata, **WHERE, **task)


def beir_folder(folder: Path, corpus: list[dict[str, Any]]) -> Path:
    (folder / "qrels").mkdir(parents=True)
    lines = {
        "corpus.jsonl": [{"_id": row["id"], "title": row["title"], "text": row["text"]} for row in corpus],
        "queries.jsonl": [{"_id": name, "text": text} for name, text in QUERIES.items()],
    }
    for name, entries in lines.items():
        (folder / name).write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    judged = [f"{query}\t{name}\t{score}\n" for query, of in QRELS.items() for name, score in of.items()]
    (folder / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(judged))
    return folder


@pytest.fixture
def config(tiny_config: BuildConfig) -> BuildConfig:
    """A recipe that centres by role, so query and document vectors differ."""
    assert tiny_config.whitening.centre == "role"
    return tiny_config


@pytest.fixture
def model(config: BuildConfig) -> Iterator[IsotropeModel]:
    with IsotropeModel(config, run_options=TORCH) as model:
        yield model


def of_measures(measured: Mapping[str, Any]) -> dict[str, float]:
    """Map mteb's names of metrics to those of `evaluate retrieval`, at the same depth."""
    names = {"nDCG@10": "ndcg_at_10", "nDCG@100": "ndcg_at_100", "MAP": "map_at_1000", "R@10": "recall_at_10",
             "R@100": "recall_at_100", "MRR": "mrr_at_1000"}  # fmt: skip
    return {ours: measured[theirs] for ours, theirs in names.items()}


def our_measures(config: BuildConfig, folder: Path) -> dict[str, float]:
    result = evaluate_retrieval(config, RetrievalOptions(folder, bm25=False))
    (row,) = result.results
    return {name: row["measure"][name]["value"] for name in row["measure"]}


def test_mteb_accepts_the_model_as_search_and_as_encoder(model: IsotropeModel) -> None:
    as_search: SearchProtocol = model
    assert isinstance(as_search, SearchProtocol)
    assert isinstance(model, EncoderProtocol)


def test_mteb_measures_what_evaluate_retrieval_measures(
    model: IsotropeModel, config: BuildConfig, tmp_path: Path
) -> None:
    corpus = rows(DOCUMENTS)
    theirs = of_measures(scores(model, LocalTask(corpus, QUERIES, QRELS)))
    assert theirs == pytest.approx(our_measures(config, beir_folder(tmp_path / "beir", corpus)), abs=1e-4)
    assert 0 < theirs["nDCG@10"] < 1


def test_on_cacm_too(shared: Path, tmp_path: Path) -> None:
    model_folder = shared / "models/potion-base-4m-int8"
    config = BuildConfig.load("static").with_overrides([f"encoder.model={model_folder}", "whitening.centre=role"])
    folder = shared / "data/cacm"
    corpus, asked = (
        [json.loads(line) for line in (folder / name).read_text().splitlines()]
        for name in ("corpus.jsonl", "queries.jsonl")
    )
    queries = {row["_id"]: row["text"] for row in asked}
    qrels: dict[str, dict[str, int]] = {}
    for line in (folder / "qrels/test.tsv").read_text().splitlines()[1:]:
        query, name, score = line.split("\t")
        qrels.setdefault(query, {})[name] = int(score)
    documents = [{"id": row["_id"], "title": row["title"], "text": row["text"]} for row in corpus]
    with IsotropeModel(config) as model:
        theirs = of_measures(scores(model, LocalTask(documents, queries, qrels)))
    assert theirs == pytest.approx(our_measures(config, folder), abs=1e-4)
    assert theirs["nDCG@10"] > 0.2


def test_the_ranking_judged_is_the_engines_ties_included(
    model: IsotropeModel, config: BuildConfig, tmp_path: Path
) -> None:
    documents = [dataclasses.replace(one, id=f"{one.id}-{copy}") for copy in "ab" for one in DOCUMENTS]
    indexed(model, rows(documents))
    build_index([Document(one.id, one.text, one.title) for one in documents], tmp_path / "index", config, TORCH)
    answers = SearchEngine(tmp_path / "index", options=TORCH).search_many(list(QUERIES.values()), k=7)
    assert any(first.score == second.score for hits in answers for first, second in pairwise(hits))
    for ranked, hits in zip(found(model, QUERIES, top_k=7).values(), answers, strict=True):
        judged = sorted(ranked, key=lambda name: (ranked[name], name), reverse=True)  # as trec_eval sorts
        assert judged == list(ranked) == [hit.id for hit in hits]
        np.testing.assert_allclose(list(ranked.values()), [hit.score for hit in hits], atol=1e-5)


def test_search_options_are_the_engines(config: BuildConfig, tmp_path: Path) -> None:
    build_index([Document(one.id, one.text, one.title) for one in DOCUMENTS], tmp_path / "index", config, TORCH)
    hits = SearchEngine(tmp_path / "index", options=TORCH).search_many(list(QUERIES.values()), k=5, hybrid=True)
    with IsotropeModel(config, SearchOptions(hybrid=True), TORCH) as model:
        indexed(model, rows(DOCUMENTS))
        ranked = found(model, QUERIES, top_k=5)
    assert [list(of) for of in ranked.values()] == [[hit.id for hit in answer] for answer in hits]


@pytest.mark.parametrize("hybrid", [False, True])
def test_among_candidates_the_order_is_that_of_the_whole(config: BuildConfig, hybrid: bool) -> None:
    documents = [dataclasses.replace(one, id=f"o'{one.id}") for one in DOCUMENTS]
    candidates = {"q1": ["o'd8", "o'd0", "not here"], "q2": ["o'd1", "o'd2", "o'd3"], "q3": []}
    with IsotropeModel(config, SearchOptions(hybrid=hybrid), TORCH) as model:
        indexed(model, rows(documents))
        whole = found(model, QUERIES)
        among = found(model, QUERIES, top_ranked=candidates)
    assert [set(of) for of in among.values()] == [{"o'd8", "o'd0"}, {"o'd1", "o'd2", "o'd3"}, set()]
    if not hybrid:  # ranks are those among the candidates
        assert among == {
            query: {name: pytest.approx(score) for name, score in of.items() if name in candidates[query]}
            for query, of in whole.items()
        }


def test_among_candidates_words_alone_answer_what_the_encoder_knows_nothing_of(tmp_path: Path) -> None:
    (tmp_path / "table.txt").write_text("whale 0 0 1\nsea 1 1 1\nsand 2 2 1\nbread 3 0 1\n")
    config = BuildConfig.from_dict({"encoder": {"kind": "static", "model": str(tmp_path / "table.txt")}})
    corpus = [
        {"id": "a", "text": "whale whale sand"},
        {"id": "b", "text": "whale sea zyzzyva"},
        {"id": "c", "text": "sand bread"},
    ]
    with IsotropeModel(config, SearchOptions(hybrid=True, hybrid_weight=0.9)) as model:
        indexed(model, corpus)
        for candidates in (None, {"q": ["a", "b", "c"], "r": ["a", "b", "c"]}):
            among = found(model, {"r": "bread", "q": "zyzzyva"}, top_ranked=candidates)
            assert list(among["q"]) == ["b"]
            assert len(among["r"]) == 3


@pytest.mark.parametrize("asked", [SearchOptions(), SearchOptions(hybrid=True), SearchOptions(where="id <> 'd0'")])
def test_candidates_may_be_more_than_a_filter_can_name(model: IsotropeModel, asked: SearchOptions) -> None:
    """Ids of 300,000 characters; ties are by id."""
    named = [name * 100 for name in ("a", "b", "c")]
    corpus = [*rows(DOCUMENTS), *({"id": name, "text": DOCUMENTS[0].text} for name in named)]
    model._search_options = asked
    indexed(model, corpus)
    some = ["d0", "d3", "d7", *named]
    few = found(model, QUERIES, top_ranked=dict.fromkeys(QUERIES, some))
    many = [*some, *(f"{number:06}" * 10 for number in range(5000))]
    assert found(model, QUERIES, top_ranked=dict.fromkeys(QUERIES, many)) == few
    for ranked in few.values():
        assert set(ranked) == set(some) - ({"d0"} if asked.where else set())
        assert [name for name in ranked if name in named] == named


TASKS = [
    retrieval.MockRetrievalTask,
    retrieval.MockMultilingualRetrievalTask,
    retrieval.MockRetrievalDialogTask,
    retrieval.MockInstructionRetrieval,
    reranking.MockRerankingTask,
    reranking.MockInstructionReranking,
]


@pytest.mark.filterwarnings("ignore:Conversations are a list of strings:UserWarning")
@pytest.mark.parametrize("task", TASKS)
def test_mtebs_own_examples_of_tasks_run(task: Callable[[], Any], model: IsotropeModel) -> None:
    assert 0 < scores(model, task())["ndcg_at_10"] <= 1


@pytest.mark.filterwarnings("ignore:Conversations are a list of strings:UserWarning")
@pytest.mark.parametrize(
    "row",
    [
        {"text": "a query"},
        {"text": "a query", "instruction": "find it"},
        {"text": ["one turn", "another"]},
        {"text": [{"role": "user", "content": "hello"}, {"role": "system", "content": "yes?"}]},
        {"text": [{"role": "user", "content": "hello"}], "instruction": "answer"},
    ],
)
def test_a_query_reads_as_mteb_reads_it(row: dict[str, Any]) -> None:
    assert [_query_text(row)] == list(_retrieval_texts(Dataset.from_list([{"id": "q", **row}]), PromptType.query))


def test_title_and_text_are_joined_as_the_recipe_says(config: BuildConfig, tmp_path: Path) -> None:
    of_text = dataclasses.replace(config, corpus=dataclasses.replace(config.corpus, text=("text",)))
    kept = {}
    for name, recipe in {"both": config, "text": of_text}.items():
        with IsotropeModel(recipe, run_options=TORCH, folder=tmp_path / name) as model:
            indexed(model, rows(DOCUMENTS))
            kept[name] = found(model, {"q": "Whales. Whales sing in the deep sea for hours."}, top_k=1)["q"]["d0"]
    assert kept["both"] != pytest.approx(kept["text"], abs=1e-3)
    with (
        IsotropeModel(
            dataclasses.replace(config, corpus=dataclasses.replace(config.corpus, text=("summary",))), run_options=TORCH
        ) as model,
        pytest.raises(ConfigError, match='"summary", which the corpus of the task does not have; expected one of id'),
    ):
        indexed(model, rows(DOCUMENTS))


def test_blank_documents_and_queries_are_counted_and_find_nothing(model: IsotropeModel) -> None:
    corpus = [*rows(DOCUMENTS), {"id": "blank", "title": "", "text": " \n"}]
    with pytest.warns(UserWarning, match="^1 blank document left out of the index and never found$"):
        indexed(model, corpus)
    with pytest.warns(UserWarning, match="^2 queries without a text or without candidates: no hits$"):
        answers = found(model, {**QUERIES, "blank": " ", "empty": ""}, top_k=20)
    assert answers["blank"] == answers["empty"] == {}
    assert set(answers["q1"]) == {one.id for one in DOCUMENTS}


def test_faults_of_a_corpus_are_reported(model: IsotropeModel) -> None:
    with pytest.raises(CorpusError, match=r'document 2 \(id "a"\): the id was already used at document 1'):
        indexed(model, [{"id": "a", "text": "one"}, {"id": "a", "text": "another"}])


def test_texts_are_encoded_by_their_role(config: BuildConfig, tmp_path: Path) -> None:
    build_index(DOCUMENTS, tmp_path / "index", config, TORCH)
    model, engine = IsotropeModel.of_index(tmp_path / "index", run_options=TORCH), SearchEngine(tmp_path / "index")
    batches: Any = [{"text": ["whales that sing", "bread"]}, {"text": ["glass"]}]
    texts = ["whales that sing", "bread", "glass"]
    vectors = {role: model.encode(batches, prompt_type=role) for role in (PromptType.query, PromptType.document, None)}
    np.testing.assert_allclose(vectors[PromptType.query], engine.embed(texts, "query"), atol=1e-6)
    np.testing.assert_allclose(vectors[PromptType.document], engine.embed(texts, "document"), atol=1e-6)
    np.testing.assert_array_equal(vectors[None], vectors[PromptType.document])
    assert np.abs(vectors[PromptType.query] - vectors[None]).max() > 0.01
    cosines = model.similarity(vectors[PromptType.query], torch.from_numpy(vectors[None]))
    np.testing.assert_allclose(cosines, vectors[PromptType.query] @ vectors[None].T, atol=1e-6)
    np.testing.assert_allclose(
        model.similarity_pairwise(vectors[PromptType.query], vectors[None]), np.diagonal(cosines), atol=1e-6
    )
    assert model.similarity(vectors[None][0], vectors[None]).shape == (1, 3)


def test_tasks_without_a_corpus_take_the_vectors_of_an_index(config: BuildConfig, tmp_path: Path) -> None:
    build_index(DOCUMENTS, tmp_path / "index", config, TORCH)
    measured = scores(IsotropeModel.of_index(tmp_path / "index", run_options=TORCH), sts.MockSTSTask())
    assert measured["spearman"] == pytest.approx(measured["cosine_spearman"])
    with pytest.raises(ConfigError, match=r"no corpus to fit a transform to.*IsotropeModel.of_index"):
        scores(IsotropeModel(config, run_options=TORCH), sts.MockSTSTask())


def test_the_transform_of_an_index_is_taken_over(config: BuildConfig, tmp_path: Path) -> None:
    build_index(DOCUMENTS[:6], tmp_path / "index", config, TORCH)
    corpus = rows(DOCUMENTS)
    with IsotropeModel.of_index(tmp_path / "index", run_options=TORCH) as model:
        indexed(model, corpus)
        ranked = found(model, QUERIES)
        queries = model.encode([{"text": list(QUERIES.values())}], prompt_type=PromptType.query)  # type: ignore[arg-type]
        documents = model.encode([{"text": [f"{row['title']} {row['text']}" for row in corpus]}])  # type: ignore[arg-type]
    for of, cosines in zip(ranked.values(), queries @ documents.T, strict=True):
        assert of == {row["id"]: pytest.approx(score, abs=1e-5) for row, score in zip(corpus, cosines, strict=True)}


def test_indexes_are_kept_in_a_folder_or_removed(config: BuildConfig, tmp_path: Path) -> None:
    for _ in range(2):
        with IsotropeModel(config, run_options=TORCH, folder=tmp_path / "kept") as model:
            scores(model, LocalTask(rows(DOCUMENTS), QUERIES, QRELS))
    assert len(SearchEngine(tmp_path / "kept/LocalTask/default-test")) == len(DOCUMENTS)
    assert [path.name for path in (tmp_path / "kept/LocalTask/default-test/manifests").iterdir()] == ["00000001.json"]
    other = dataclasses.replace(config, whitening=dataclasses.replace(config.whitening, strength=0.9))
    with pytest.raises(ExistsError, match=r"another recipe: whitening\.strength"):
        indexed(IsotropeModel(other, run_options=TORCH, folder=tmp_path / "kept"), rows(DOCUMENTS))


def test_a_temporary_index_goes_with_the_next_and_at_the_end(
    model: IsotropeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for _ in range(2):
        indexed(model, rows(DOCUMENTS))
        assert len(list(tmp_path.glob("isotrope-*"))) == 1
    model.close()
    assert list(tmp_path.glob("isotrope-*")) == []


def test_results_of_different_routes_are_filed_apart(config: BuildConfig, tmp_path: Path) -> None:
    strong = dataclasses.replace(config, whitening=dataclasses.replace(config.whitening, strength=0.9))
    build_index(DOCUMENTS, tmp_path / "index", config, TORCH)
    models = [
        IsotropeModel(config, run_options=TORCH),
        IsotropeModel(strong, run_options=TORCH),
        IsotropeModel(config, SearchOptions(hybrid=True), TORCH),
        IsotropeModel(config, run_options=TORCH, transform_from=tmp_path / "index"),
    ]
    assert len({one.mteb_model_meta.revision for one in models}) == len(models)
    same = IsotropeModel(config, SearchOptions(k=3), RunOptions(workers=2), tmp_path / "elsewhere")
    assert same.mteb_model_meta == models[0].mteb_model_meta
    cache = mteb.ResultCache(tmp_path / "cache")
    measured = [scores(one, LocalTask(rows(DOCUMENTS), QUERIES, QRELS), cache)["ndcg_at_10"] for one in models[:3]]
    assert len(list(tmp_path.glob("cache/results/isotrope__bert/*/LocalTask.json"))) == 3
    again = [scores(one, LocalTask(rows(DOCUMENTS), QUERIES, QRELS), cache)["ndcg_at_10"] for one in models[:3]]
    assert again == measured


def test_the_queries_that_a_recipe_names_count_by_their_content(config: BuildConfig, tmp_path: Path) -> None:
    (tmp_path / "questions.txt").write_text("who sings\nwhat rises\n")
    sample = dataclasses.replace(config.whitening, query_sample=str(tmp_path / "questions.txt"))
    before = IsotropeModel(dataclasses.replace(config, whitening=sample)).mteb_model_meta.revision
    (tmp_path / "questions.txt").write_text("who sings\nwhat falls\n")
    assert IsotropeModel(dataclasses.replace(config, whitening=sample)).mteb_model_meta.revision != before


def test_a_cross_encoder_counts_by_its_content_and_not_by_its_folder(config: BuildConfig, tmp_path: Path) -> None:
    def revision(model: str, asked: SearchOptions | None = None) -> str:
        return str(IsotropeModel(config.with_overrides([f"rerank.model={model}"]), asked).mteb_model_meta.revision)

    one = make_tiny_cross_encoder(tmp_path / "one")
    moved = shutil.copytree(one, tmp_path / "moved")
    kept = revision(str(one))
    assert kept == revision(str(moved))
    recipe = with_recorded_hash(config.with_overrides([f"rerank.model={moved}"]))  # as in an index
    assert IsotropeModel(recipe).mteb_model_meta.revision == kept
    settings = moved / "tokenizer_config.json"
    settings.write_text(settings.read_text().replace("128", "64"))
    assert len({kept, revision(str(moved)), revision("")}) == 3
    off = SearchOptions(rerank_depth=0)  # without a model
    assert revision("./nowhere", off) == revision(str(one), off) != kept


def test_the_metadata_for_mteb_are_complete(config: BuildConfig, tmp_path: Path) -> None:
    build_index(DOCUMENTS, tmp_path / "index", config, TORCH)
    meta = IsotropeModel.of_index(tmp_path / "index").mteb_model_meta
    assert (meta.name, meta.max_tokens, meta.model_type) == ("isotrope/index", 32, ["dense"])
    assert meta.embed_dim == SearchEngine(tmp_path / "index").index.transform.dim
    assert IsotropeModel(config, name="mine").mteb_model_meta.name == "isotrope/mine"
    assert IsotropeModel(config, SearchOptions(hybrid=True)).mteb_model_meta.model_type == ["hybrid"]


def test_unsupported_requests_are_refused(model: IsotropeModel, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match="search was called before index"):
        found(model, QUERIES)
    with pytest.raises(ConfigError, match='precision "int8"; expected none'):
        indexed(model, rows(DOCUMENTS), encode_kwargs={"precision": "int8"})
    with pytest.raises(ConfigError, match="no text can be encoded here"):
        IsotropeModel(BuildConfig.from_dict({"encoder": {"kind": "vectors"}}))
    for wrong, name in (
        ({"search_options": RunOptions()}, "search_options"),
        ({"run_options": SearchOptions()}, "run_options"),
        ({"recipe": SearchOptions(hybrid=True)}, "recipe"),
    ):
        with pytest.raises(ConfigError, match=f"^{name} is of type .*; expected .*Fix: name the arguments, {name}="):
            IsotropeModel(**wrong)
    with pytest.raises(TypeError, match="positional"):  # where the model's folder would be
        IsotropeModel.of_index("index", SearchOptions(hybrid=True))  # type: ignore[call-arg, arg-type]
    monkeypatch.setitem(__import__("sys").modules, "mteb", None)
    with pytest.raises(MachineError, match=r"pip install '.*isotrope\[mteb\]"):
        IsotropeModel("minilm")


def test_the_examples_of_the_page_on_two_means_run(
    config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (Path(__file__).parents[2] / "docs/explanation/two-means.md").read_text(encoding="utf-8")
    of_index, through_mteb = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    build_index(DOCUMENTS, tmp_path / "my-index", config, TORCH)
    evaluate = partial(mteb.evaluate, cache=None, show_progress_bar=False)
    monkeypatch.setattr(mteb, "get_tasks", lambda tasks: [LocalTask(rows(DOCUMENTS), QUERIES, QRELS)])
    monkeypatch.setattr(mteb, "evaluate", evaluate)
    monkeypatch.setattr(BuildConfig, "load", lambda name: config)
    monkeypatch.chdir(tmp_path)
    for code in (of_index, through_mteb):
        exec(code, {"__name__": "__main__"})  # noqa: S102
    distance, spread, *by_centre = capsys.readouterr().out.splitlines()
    assert all(float(line.split()[1]) > 0 for line in (distance, spread))
    assert [line.split(" {'LocalTask': ")[0] for line in by_centre] == ["role", "common", "none"]
