"""`isotrope evaluate retrieval`: a recipe has the figures of its index; notes, files and errors."""

import hashlib
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer import BuildConfig
from indexer.encoders.transformer import TransformerEncoder
from indexer.errors import ConfigError, CorruptIndexError, EvaluationError, ExistsError, MachineError
from search import SearchEngine
from search.evaluation.retrieval.retrieval import RetrievalOptions, evaluate_retrieval
from search.evaluation.sweep import Sweep
from search.evaluation.target import Target
from tests.directories import snapshot
from tests.oracles import percentile_interval, resamples
from tests.search.evaluation.retrieval.tiny_collection import OWN, Cli, built, evaluated, ranking, row_of, values_of


@pytest.mark.parametrize(
    "overrides",
    [
        [],
        ["whitening.strength=none"],
        ["whitening.strength=1", "whitening.centre=common", "whitening.dim=8", "whitening.shrinkage=0.2"],
        ["whitening.strength=0.5", "whitening.centre=none"],
        ["whitening.sample=20", "encoder.layers=[1, -1]", "encoder.pooling=max"],
        ["store.embeddings=float16", "encoder.query_prompt=query: "],
        ['corpus.text=["text"]', "whitening.query_sample=QUERIES"],
    ],
    ids=lambda overrides: " ".join(overrides) or "default",
)
def test_a_recipe_gives_the_figures_of_the_index_it_builds(
    overrides: list[str], folder: Path, config: BuildConfig, tmp_path: Path
) -> None:
    (tmp_path / "queries.txt").write_text("deep sea\nstar light\nsteel\n")
    config = config.with_overrides([text.replace("QUERIES", str(tmp_path / "queries.txt")) for text in overrides])
    index = built(folder, config, tmp_path / "index")
    from_recipe = evaluated(folder, config, run=tmp_path / "recipe.run", bm25=False)
    from_index = evaluated(folder, index, run=tmp_path / "index.run", bm25=False)
    (first,), (second,) = from_recipe["results"], from_index["results"]
    assert first["measure"] == second["measure"]
    assert first["encoder"] == second["encoder"] == SearchEngine(index).index.manifest.fingerprint
    assert [ranking(tmp_path / f"{name}.run") for name in ("recipe", "index")].count(
        ranking(tmp_path / "index.run")
    ) == 2


def test_a_sweep_over_an_index_refits_what_it_stores(folder: Path, index: Path, config: BuildConfig) -> None:
    sweep = Sweep(strengths=("none", 0.25, 1.0), centres=("role", "common", "none"), dims=(0, 6), shrinkages=(0.0, 0.5))
    from_index, from_recipe = evaluated(folder, index, sweep), evaluated(folder, config, sweep)
    assert [row["setting"] for row in from_index["results"]] == [row["setting"] for row in from_recipe["results"]]
    for first, second in zip(from_index["results"], from_recipe["results"], strict=True):
        assert values_of(first) == values_of(second), first["setting"]
    asked = row_of(evaluated(folder, index), OWN)
    assert row_of(from_index, OWN)["measure"] == asked["measure"]
    assert row_of(from_index, OWN)["transform"] == asked["transform"]


def test_an_index_without_a_mean_of_queries_gets_one_for_centre_role(
    folder: Path, config: BuildConfig, tmp_path: Path
) -> None:
    common = config.with_overrides(["whitening.centre=common"])
    sweep = Sweep(centres=("role",))
    from_index = evaluated(folder, built(folder, common, tmp_path / "index"), sweep)
    assert values_of(row_of(from_index, OWN)) == values_of(row_of(evaluated(folder, config), OWN))


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """Role, texts and distinct texts of every call of the encoder."""
    calls: list[tuple[str, int, int]] = []
    states = TransformerEncoder.states

    def counting(self: Any, texts: Sequence[str], keys: Any, role: Any, log: Any = None) -> Any:
        calls.append((role, len(texts), len(set(texts))))
        return states(self, texts, keys, role, log)

    monkeypatch.setattr(TransformerEncoder, "states", counting)
    return calls


def test_every_text_is_encoded_once_whatever_is_swept(
    folder: Path, config: BuildConfig, encoded: list[tuple[str, int, int]]
) -> None:
    sweep = Sweep(layers=((1,), (1, -1)), poolings=("mean", "cls"), strengths=("none", 0.0, 1.0))
    assert len(evaluated(folder, config, sweep)["results"]) == 2 * 2 * 3 + 1
    titles = len({json.loads(line)["title"] for line in (folder / "corpus.jsonl").read_text().splitlines()})
    assert encoded == [("query", 11, 11), ("document", 50, 50), ("query", titles, titles)]


def test_documents_of_an_index_are_never_encoded_again(
    folder: Path, index: Path, encoded: list[tuple[str, int, int]]
) -> None:
    evaluated(folder, index, Sweep(strengths=(0.0, 0.5, 1.0)))
    assert encoded == [("query", 11, 11)]


def test_a_cache_changes_nothing_but_the_work(
    folder: Path, config: BuildConfig, tmp_path: Path, encoded: list[tuple[str, int, int]]
) -> None:
    subject, short = Target.of_recipe(replace(config, encoder=replace(config.encoder, max_length=12))), []
    for _ in range(2):
        short.append(evaluate_retrieval(subject, RetrievalOptions(folder), Sweep(strengths=(0.5,)), tmp_path / "cache"))
        assert len(encoded) == 3
    for result in short:
        assert result["provenance"].pop("created")
        assert result["provenance"].pop("seconds") >= 0
    assert short[0] == short[1]
    assert any(note.startswith("truncated at 12 tokens:") and note.endswith("documents") for note in short[1]["notes"])


def test_the_result_says_what_was_measured(folder: Path, config: BuildConfig) -> None:
    result = evaluated(folder, config, Sweep(strengths=("none", 0.25), centres=("role",)))
    assert [row["setting"] for row in result["results"]] == ["mean -1 raw", OWN, "BM25"]
    raw, own, bm25 = result["results"]
    assert {name: own[name] for name in ("pooling", "layers", "strength", "dim", "shrinkage", "centre")} == {
        "pooling": "mean", "layers": [-1], "strength": 0.25, "dim": None, "shrinkage": 0.0, "centre": "role",
    }  # fmt: skip
    assert (raw["strength"], raw["centre"], bm25["pooling"]) == ("none", None, None)
    assert list(own["measure"]) == ["nDCG@3", "nDCG@10", "MAP", "R@3", "R@10", "MRR"]
    assert all(found["low"] <= found["value"] <= found["high"] for found in own["measure"].values())
    assert (own["queries"], own["depth"], len(own["transform"])) == (11, 60, 64)
    assert own["transform"] != raw["transform"]
    provenance = result["provenance"]
    assert set(provenance["data"]) == {"corpus.jsonl", "queries.jsonl", "qrels/test.tsv"}
    assert (provenance["protocol"]["searched"], provenance["protocol"]["depth"]) == ("exact", 60)
    assert provenance["bm25"]["k1"] == 1.5
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_intervals_and_differences_are_those_of_the_runs_resampled_query_by_query(
    folder: Path, index: Path, tmp_path: Path
) -> None:
    """Recompute the MRR of each query and 1000 resamples from the run files and the judgements."""
    relevant = dict[str, set[str]]()
    for line in (folder / "qrels/test.tsv").read_text().splitlines()[1:]:
        query, document, _ = line.split("\t")
        relevant.setdefault(query, set()).add(document)

    def reciprocal_ranks(sweep: Sweep, name: str) -> list[float]:
        evaluated(folder, index, sweep, bm25=False, run=tmp_path / name)
        firsts = dict.fromkeys(relevant, 0.0)
        for query, document, rank in ranking(tmp_path / name):
            if document in relevant.get(query, ()):
                firsts[query] = max(firsts[query], 1 / int(rank))
        return list(firsts.values())

    raw = reciprocal_ranks(Sweep(strengths=("none",)), "raw.run")
    own = reciprocal_ranks(Sweep(strengths=(1.0,), centres=("common",)), "own.run")
    drawn = resamples(len(relevant), "retrieval")
    means = [np.mean([own[query] for query in row]) for row in drawn]
    differences = [np.mean([own[query] - raw[query] for query in row]) for row in drawn]

    result = evaluated(folder, index, Sweep(strengths=("none", 1.0), centres=("common",)), bm25=False)
    (pair,) = result["comparisons"]
    of_own, of_pair = row_of(result, pair["setting"])["measure"]["MRR"], pair["measure"]["MRR"]
    assert of_pair["value"] == pytest.approx(np.mean(own) - np.mean(raw))
    assert of_pair["value"] != 0
    assert (of_own["low"], of_own["high"]) == pytest.approx(percentile_interval(means))
    assert (of_pair["low"], of_pair["high"]) == pytest.approx(percentile_interval(differences))
    assert of_pair["better"] == pytest.approx(np.mean([difference > 1e-12 for difference in differences]))


def test_two_runs_give_the_same_figures(folder: Path, index: Path) -> None:
    first, second = evaluated(folder, index), evaluated(folder, index)
    for result in (first, second):
        result["provenance"] = {
            key: of for key, of in result["provenance"].items() if key not in ("created", "seconds")
        }
    assert first == second


def test_settings_are_compared_with_raw_with_other_centres_and_with_bm25(folder: Path, config: BuildConfig) -> None:
    result = evaluated(folder, config, Sweep(strengths=("none", 0.5), centres=("role", "common", "none")))
    pairs = [(pair["setting"].removeprefix("mean -1 "), pair["against"]) for pair in result["comparisons"]]
    raw, half = "mean -1 raw", "mean -1 strength 0.5"
    assert pairs == [
        ("raw", "BM25"),
        ("strength 0.5 role", raw),
        ("strength 0.5 role", f"{half} common"),
        ("strength 0.5 role", f"{half} none"),
        ("strength 0.5 role", "BM25"),
        ("strength 0.5 common", raw),
        ("strength 0.5 common", "BM25"),
        ("strength 0.5 none", raw),
        ("strength 0.5 none", "BM25"),
    ]
    found = result["comparisons"][1]["measure"]["nDCG@3"]
    values = [values_of(row_of(result, label))["nDCG@3"] for label in (raw, f"{half} role")]
    assert found["value"] == pytest.approx(values[1] - values[0])
    assert found["won"] + found["tied"] + found["lost"] == 11


def test_judged_documents_that_are_missing_stay_in_the_denominator(folder: Path, index: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    with (copy / "qrels/test.tsv").open("a") as file:
        file.writelines(f"q{n}\tabsent{n}\t1\n" for n in range(11))
    whole, part = evaluated(folder, index)["results"][0], evaluated(copy, index)
    found = values_of(part["results"][0])
    assert found["R@10"] == pytest.approx(values_of(whole)["R@10"] * 3 / 4, rel=0.05)
    assert found["MRR"] == values_of(whole)["MRR"]
    assert any(note.startswith("11 of 44 judged documents are not among") for note in part["notes"])


def test_the_judgements_of_another_collection_are_refused(folder: Path, index: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "qrels/test.tsv").write_text("q1\tCACM-1\t1\n")
    with pytest.raises(EvaluationError, match=r"none of the 1 judged document \(CACM-1\) .* ids do not match"):
        evaluated(copy, index)


@pytest.mark.parametrize("sweep", [Sweep(layers=((1,),)), Sweep(poolings=("cls",)), Sweep(layers=((-1,), (1, -1)))])
def test_other_layers_than_an_index_holds_are_refused(sweep: Sweep, folder: Path, index: Path) -> None:
    with pytest.raises(ConfigError, match="contains only embeddings of layers -1 with mean pooling"):
        evaluated(folder, index, sweep)


def test_files_of_an_evaluation_are_overwritten_only_by_force(folder: Path, index: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    tasks: list[dict[str, Any]] = [{"run": tmp_path / "runs"}, {"per_query": tmp_path / "table.tsv"}]
    for task in tasks:
        evaluated(folder, index, **task)
        before = snapshot(tmp_path)
        with pytest.raises(ExistsError, match="already exists"):
            evaluated(folder, index, **task)
        evaluated(folder, index, **task, force=True)
        assert snapshot(tmp_path) == before
    with pytest.raises(ConfigError, match="is inside the index"):
        evaluated(folder, index, run=index / "segments", force=True)
    with pytest.raises(ConfigError, match=r"is part of .*, which is read"):
        evaluated(folder, index, per_query=folder / "qrels/test.tsv", force=True)


def test_damaged_embeddings_of_an_index_are_noticed(folder: Path, index: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(index, tmp_path / "copy")
    path = copy / "parts/00001/embeddings.npy"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptIndexError, match=r"embeddings\.npy"):
        evaluated(folder, copy, Sweep(strengths=(1.0,)))


def test_a_model_that_overflows_is_refused(folder: Path, config: BuildConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    states = TransformerEncoder.states

    def overflowing(*args: Any, **named: Any) -> Any:
        found = states(*args, **named)
        for rows in found.values():
            rows[0, 0] = np.nan
        return found

    monkeypatch.setattr(TransformerEncoder, "states", overflowing)
    with pytest.raises(EvaluationError, match="1 embeddings contain NaN"):
        evaluated(folder, config)


@pytest.mark.parametrize("module", ["ir_measures", "pytrec_eval", "bm25s", "Stemmer"])
def test_a_missing_package_is_named_before_anything_is_read(
    module: str, config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(MachineError, match=r"pip install '.*isotrope\[eval\]"):
        evaluated(tmp_path / "absent", config)


def test_the_table_has_a_row_a_setting_and_one_for_bm25(cli: Cli) -> None:
    done = cli("-k", "3", "-k", "10", "--strength", "none", "--strength", "0.5", "--compare")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "tiny, test: x 100, means over 11 queries; 60 documents, 60 hits per query"
    assert lines[1].split() == ["setting", "nDCG@3", "[95", "%]", "nDCG@10", "MAP", "R@3", "R@10", "MRR"]
    assert [line.split("  ")[0] for line in lines[2:5]] == ["mean -1 raw", "mean -1 strength 0.5 role", "BM25"]
    assert "Paired differences x 100, over the same resamples" in lines
    assert lines[5] == "BM25: bm25s, lucene, k1 1.5, b 0.75, stop words english, stemmer english (Snowball)."
    assert "note: 1 of 12 queries left out, without a judgement" in done.stderr


def test_json_and_file_hold_the_same_result(cli: Cli, index: Path, tmp_path: Path) -> None:
    done = cli("--index", index, "--json", "--no-bm25", "-o", tmp_path / "r.json")
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result == json.loads((tmp_path / "r.json").read_text())
    assert [row["setting"] for row in result["results"]] == [OWN]
    assert "bm25" not in result["provenance"]
    assert result["provenance"]["index"]["generation"] == 1
    assert result["provenance"]["command"].startswith("isotrope evaluate retrieval ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-k", "0"], "expected whole numbers above 0"),
        (["--split", "dev"], "the folder has test. Fix: pass --split test"),
        (["--layers", "one"], "is not a list of layers"),
        (["--layers", "99"], "99"),
        (["--strength", "2"], "expected 0 to 1"),
        (["--set", "encoder.model=nowhere/at-all"], "nowhere/at-all"),
        (["--dim", "33"], "whitening.dim is 33, but embeddings have 32 dimensions"),
    ],
)
def test_a_mistake_is_one_clear_line(arguments: list[str], message: str, cli: Cli) -> None:
    done = cli(*arguments)
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


def test_blank_documents_are_refused_or_left_out_and_counted(cli: Cli, folder: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(folder, tmp_path / "copy")
    with (copy / "corpus.jsonl").open("a") as file:
        file.write('{"_id": "blank", "title": "", "text": " "}\n')
    refused, measured = replace(cli, folder=copy)(), replace(cli, folder=copy)("--on-error", "skip")
    assert (refused.returncode, measured.returncode) == (1, 0)
    assert "corpus.jsonl:61:" in refused.stderr
    assert "note: 1 row of corpus.jsonl left out: blank" in measured.stderr
    assert "; 60 documents, " in measured.stdout


def test_rows_of_an_index_cannot_be_skipped(folder: Path, index: Path) -> None:
    with pytest.raises(ConfigError, match=r"on_error=.skip. applies to a corpus"):
        evaluated(folder, index, on_error="skip")


def test_the_users_queries_are_named_where_they_are_read(folder: Path, config: BuildConfig, tmp_path: Path) -> None:
    file = tmp_path / "queries.txt"
    file.write_text("deep sea\nstar light\n")
    recipe = config.with_overrides([f"whitening.query_sample={file}"])
    found = evaluated(folder, recipe, bm25=False)["provenance"]
    assert found["data"]["whitening.query_sample"] == hashlib.sha256(file.read_bytes()).hexdigest()
    assert found["recipe"] == recipe.to_dict()
    unused = evaluated(folder, recipe, Sweep(strengths=("none",)), bm25=False)["provenance"]
    assert "whitening.query_sample" not in unused["data"]


@pytest.mark.parametrize("option", ["--run", "--per-query"])
def test_a_place_that_cannot_be_written_shows_before_encoding(
    option: str, cli: Cli, tmp_path: Path, encoded: list[tuple[str, int, int]]
) -> None:
    (tmp_path / "file").touch()
    done = cli(option, tmp_path / "file" / "below")
    assert (done.returncode, encoded) == (1, [])
    assert str(tmp_path / "file") in done.stderr


def test_the_table_of_queries_is_a_file(cli: Cli, tmp_path: Path) -> None:
    assert "is a folder; expected a file" in cli("--per-query", tmp_path).stderr


def test_a_folder_that_is_not_there_is_refused(cli: Cli) -> None:
    done = replace(cli, folder=Path("nowhere"))()
    assert (done.returncode, "nowhere: expected a BEIR folder" in done.stderr) == (1, True)
