"""`isotrope evaluate retrieval --hybrid`: each setting fused with BM25, compared with its parts."""

import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer import BuildConfig, build_index, delete_documents, read_corpus, refit_index
from indexer.errors import ConfigError, MachineError
from indexer.recipe.config import EncoderConfig, WhiteningConfig
from indexer.recipe.index_config import StoreConfig
from indexer.recipe.ranking import HybridConfig
from search import SearchEngine
from search.evaluation.plots.retrieval import panels_of
from search.evaluation.retrieval.beir import read_judged
from search.evaluation.retrieval.metrics import MeasuredRun, compare
from search.evaluation.retrieval.retrieval import RetrievalOptions, evaluate_retrieval
from search.evaluation.retrieval.runs import hybrid_label
from search.evaluation.sweep import Setting, Sweep
from search.evaluation.target import Target
from search.ranking.bm25 import bm25_parameters
from tests.playground import lay_out
from tests.search.cli.test_cli import isotrope
from tests.search.evaluation.plots.test_retrieval import bm25, drawn, result_of, row

OWN = "mean -1 strength 0.25 role"
HYBRID, RANKS = f"hybrid 0.3 {OWN}", f"hybrid rrf {OWN}"
Result = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """120 documents and 12 queries, each with one relevant document."""
    root = tmp_path_factory.mktemp("beir")
    lay_out(root)
    return root / "scifact"


@pytest.fixture(scope="module")
def config(tiny_model: Callable[[str], Path]) -> BuildConfig:
    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=40, precision="float32")
    return BuildConfig(encoder=encoder, store=StoreConfig(part_documents=50))


@pytest.fixture(scope="module")
def index(folder: Path, config: BuildConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("index") / "index"
    build_index(read_corpus(folder, config=config.corpus), path, config)
    return path


def evaluated(folder: Path, subject: BuildConfig | Path, sweep: Sweep | None = None, **task: Any) -> Result:
    of = Target.of_recipe(subject) if isinstance(subject, BuildConfig) else Target.of_index(subject)
    settings: dict[str, Any] = {"cutoffs": (3, 10), "hybrid": True} | task
    return evaluate_retrieval(of, RetrievalOptions(folder, **settings), sweep or Sweep()).to_dict()


def ranking(path: Path) -> list[tuple[str, str, str]]:
    """Query, document and rank of each line of a run."""
    return [(query, document, rank) for query, _, document, rank, *_ in map(str.split, path.read_text().splitlines())]


def test_a_hybrid_stands_behind_its_setting_and_says_how_it_was_fused(folder: Path, index: Path) -> None:
    result = evaluated(folder, index)
    assert [row["setting"] for row in result["results"]] == [OWN, HYBRID, RANKS, "BM25"]
    vectors, hybrid, ranks, lexical = result["results"]
    assert hybrid["hybrid"] == {"method": "convex combination", "weight": 0.3, "scaling": "minmax", "depth": 1000}
    assert ranks["hybrid"] == {"method": "reciprocal rank", "constant": 60, "depth": 1000}
    assert result["provenance"]["hybrid"] == [hybrid["hybrid"], ranks["hybrid"]]
    assert (hybrid["strength"], hybrid["transform"]) == (vectors["strength"], vectors["transform"])
    assert "hybrid" not in vectors
    assert "hybrid" not in lexical
    assert list(hybrid["measure"]) == list(vectors["measure"])
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_without_the_baseline_the_hybrid_still_has_its_parameters(folder: Path, index: Path) -> None:
    result = evaluated(folder, index, bm25=False)
    assert [row["setting"] for row in result["results"]] == [OWN, HYBRID, RANKS]
    assert result["provenance"]["bm25"] == bm25_parameters(HybridConfig())
    assert "hybrid" not in evaluated(folder, index, hybrid=False)["provenance"]


@pytest.mark.parametrize(
    ("chunked", "settings"),
    [
        (False, ()),
        (True, ()),
        pytest.param(False, ("scaling=zscore", "weight=0.6", "language=none"), marks=pytest.mark.check),
    ],
)
def test_a_recipe_an_index_and_search_itself_give_the_same_hybrid(
    folder: Path, config: BuildConfig, chunked: bool, settings: tuple[str, ...], tmp_path: Path
) -> None:
    """The recipe's hybrid uses bm25s and exact search, the index's its stored BM25 and its segments."""
    if chunked:
        # One part and one batch, so windows of the same text tie exactly on every processor.
        one_batch = ["store.part_documents=200", "encoder.batch_tokens=100000"]
        config = config.with_overrides(["chunk.tokens=12", "chunk.overlap=3", "hybrid.unit=window", *one_batch])
    config, index = config.with_overrides([f"hybrid.{setting}" for setting in settings]), tmp_path / "built"
    build_index(read_corpus(folder, config=config.corpus), index, config)
    results, fusions = [], (config.hybrid, replace(config.hybrid, fusion="rrf"))
    for name, subject in (("recipe", config), ("index", index)):
        (tmp_path / name).mkdir()
        results.append(evaluated(folder, subject, run=tmp_path / name)["results"])
    assert [row["measure"] for row in results[0]] == [row["measure"] for row in results[1]]
    queries = read_judged(folder).queries
    for fusion in fusions:
        run = f"{hybrid_label(OWN, fusion).replace(' ', '_')}.run"
        refit_index(index, [f"hybrid.fusion={fusion.fusion}"])
        answers = SearchEngine(index).search_many(list(queries.values()), k=120, hybrid=True)
        expected = [(query, hit.id, str(rank)) for query, hits in zip(queries, answers, strict=True)
                    for rank, hit in enumerate(hits, start=1)]  # fmt: skip
        assert ranking(tmp_path / "recipe" / run) == ranking(tmp_path / "index" / run) == expected


def test_queries_of_which_the_encoder_knows_nothing_are_measured_as_they_are_answered(tmp_path: Path) -> None:
    """BM25 alone answers, for the index, a sweep and the recipe."""
    folder, table, known = tmp_path / "beir", tmp_path / "table.txt", ["whale", "sea", "sand", "bread"]
    table.write_text("".join(f"{word} {number} {number % 3} 1\n" for number, word in enumerate(known)))
    texts = [f"{one} {other}" for one in known for other in known] + ["whale sea zyzzyva"]
    (folder / "qrels").mkdir(parents=True)
    for name, rows in (("corpus", texts), ("queries", ["sea", "zyzzyva", "bread"])):
        lines = [json.dumps({"_id": f"{name[0]}{number:02}", "text": text}) for number, text in enumerate(rows)]
        (folder / f"{name}.jsonl").write_text("\n".join(lines))
    (folder / "qrels/test.tsv").write_text("q00\tc01\t1\nq01\tc16\t1\nq02\tc02\t1\n")
    config = BuildConfig(encoder=EncoderConfig(kind="static", model=str(table))).with_overrides(["hybrid.weight=0.9"])
    build_index(read_corpus(folder), tmp_path / "index", config)
    answers = SearchEngine(tmp_path / "index").search_many(["sea", "zyzzyva", "bread"], k=20, hybrid=True)
    assert [hit.id for hit in answers[1]] == ["c16"]
    expected = [(f"q{number:02}", hit.id) for number, hits in enumerate(answers) for hit in hits]
    sweep, index = Sweep(strengths=(config.whitening.strength,)), tmp_path / "index"
    measured: list[tuple[BuildConfig | Path, Sweep | None]] = [(index, None), (index, sweep), (config, None)]
    for number, (subject, tried) in enumerate(measured):
        (run := tmp_path / f"{number}").mkdir()
        evaluated(folder, subject, tried, run=run)
        (file,) = run.glob("hybrid_0.9_*.run")
        assert [(query, document) for query, document, _ in ranking(file)] == expected


def test_weights_are_measured_side_by_side(folder: Path, index: Path, config: BuildConfig, tmp_path: Path) -> None:
    result = evaluated(folder, index, hybrid_weights=(0.0, 0.5, 1.0))
    labels = [f"hybrid {name} {OWN}" for name in ("0", "0.5", "1", "rrf")]
    assert [row["setting"] for row in result["results"]] == [OWN, *labels, "BM25"]
    assert [row["hybrid"].get("weight") for row in result["results"][1:-1]] == [0.0, 0.5, 1.0, None]
    measured = {row["setting"]: row["measure"]["nDCG@10"]["value"] for row in result["results"]}
    assert measured[labels[2]] == measured[OWN]
    assert measured[labels[0]] == measured["BM25"]
    with pytest.raises(ConfigError, match=r"hybrid\.weight is 1\.5; expected 0 \(BM25 alone\) to 1"):
        evaluated(folder, index, hybrid_weights=(1.5,))
    with pytest.raises(ConfigError, match=r"Fix: pass hybrid=True as well"):
        evaluated(folder, index, hybrid=False, hybrid_weights=(0.5,))


def test_deleted_documents_are_in_neither_ranking(
    folder: Path, index: Path, config: BuildConfig, tmp_path: Path
) -> None:
    shrunk = tmp_path / "shrunk"
    build_index(read_corpus(folder, config=config.corpus), shrunk, config)
    gone = [document.id for document in read_corpus(folder)][1:80:3]
    delete_documents(shrunk, gone)
    (tmp_path / "runs").mkdir()
    evaluated(folder, shrunk, run=tmp_path / "runs")
    for path in (tmp_path / "runs").iterdir():
        assert not {document for _, document, _ in ranking(path)} & set(gone), path.name


def test_a_hybrid_is_compared_with_its_vectors_raw_embeddings_and_bm25(folder: Path, index: Path) -> None:
    result = evaluated(folder, index, Sweep(strengths=("none", 0.5), centres=("role", "common")))
    pairs = [(pair["setting"], pair["against"]) for pair in result["comparisons"]]
    raw, role, common = "mean -1 raw", "mean -1 strength 0.5 role", "mean -1 strength 0.5 common"
    assert pairs == [
        (raw, "BM25"),
        *against(raw),
        (role, raw),
        (role, common),
        (role, "BM25"),
        *against(role),
        (common, raw),
        (common, "BM25"),
        *against(common),
    ]


def against(setting: str) -> list[tuple[str, str]]:
    """Hybrids of a setting are compared with its vectors, reciprocal ranks, raw embeddings and BM25."""
    convex, ranks = f"hybrid 0.3 {setting}", f"hybrid rrf {setting}"
    return [
        *((convex, other) for other in dict.fromkeys([setting, ranks, "mean -1 raw", "BM25"])),
        *((ranks, other) for other in dict.fromkeys([setting, "mean -1 raw", "BM25"])),
    ]


def test_hybrids_are_nobodys_reference() -> None:
    setting = Setting("mean", (1,), WhiteningConfig(strength="none", centre="none"))
    fused = MeasuredRun("hybrid", setting, {"MRR": np.array([1.0])}, {}, hybrid="0.3")
    own = MeasuredRun("vectors", setting, {"MRR": np.array([0.5])}, {})
    assert [(pair["setting"], pair["against"]) for pair in compare([fused, own])[1]] == [("hybrid", "vectors")]


def test_the_table_and_the_runs_have_the_hybrid(folder: Path, index: Path, tmp_path: Path) -> None:
    command = ("evaluate", "retrieval", folder, "--index", index, "--hybrid")
    (tmp_path / "runs").mkdir()
    done = isotrope(*command, "--run", tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [line.split("  ")[0] for line in lines[2:6]] == [OWN, HYBRID, RANKS, "BM25"]
    assert lines[-3].startswith("BM25: bm25s, lucene")
    assert "convex combination (minmax, weight of the vectors 0.3; Bruch et al., 2023)." in lines[-2]
    assert lines[-1] == (
        "hybrid: the first 1,000 of the vectors and of BM25, fused by reciprocal rank with constant 60 "
        "(Cormack et al., 2009)."
    )
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {
        f"{label.replace(' ', '_')}.run" for label in (OWN, HYBRID, RANKS, "BM25")
    }
    done = isotrope(*command, "--run", tmp_path / "one.run")
    assert f"only the run of the setting; name a folder to also write {HYBRID} and {RANKS} and BM25" in done.stderr


@pytest.mark.parametrize("module", ["bm25s", "Stemmer"])
def test_missing_packages_are_named_before_anything_is_encoded(
    folder: Path, config: BuildConfig, module: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MachineError, match=r"pip install '.*isotrope\[eval\]"):
        evaluated(folder, config, bm25=False)


def hybrid_row(strength: float | str, value: float, centre: str = "role") -> Result:
    return row(strength, value, centre) | {
        "setting": f"hybrid 0.3 {strength} {centre}",
        "hybrid": {"weight": 0.3},
    }


def test_the_picture_has_hybrids_as_lines_of_their_own() -> None:
    result = result_of(
        row("none", 0.4), hybrid_row("none", 0.55), row(0.25, 0.45), hybrid_row(0.25, 0.6), row(1.0, 0.42),
        hybrid_row(1.0, 0.58), bm25(0.5),
    )  # fmt: skip
    (panel,) = panels_of(result)
    assert {line.label: [round(point.value, 6) for point in line.points.values()] for line in panel.lines} == {
        "two means (role)": [45, 42],
        "hybrid 0.3, two means (role)": [60, 58],
    }
    assert panel.raw is not None
    assert (panel.raw.value, panel.baselines) == (40, {"hybrid 0.3, raw": pytest.approx(55), "BM25": 50})
    assert len({line.look for line in panel.lines}) == 2
    (axes,) = drawn(result).axes
    dashes = {line.get_label(): line._unscaled_dash_pattern for line in axes.lines}
    assert dashes["hybrid 0.3, raw"] != dashes["BM25"]
