"""The benchmarks measure what they say: their arithmetic, their processes, and that each runs, at toy sizes."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from benchmarks import gpu
from benchmarks.children import Child, ChildFailed
from benchmarks.encode import Fidelity
from benchmarks.encode_ways import BASE, WAYS
from benchmarks.flops import model_flops
from benchmarks.gpu import LONGEST, SHORTEST, normal_lengths, texts_of
from benchmarks.kept_recall import measure
from indexer import BuildConfig, Document, build_index
from indexer.models.hub import locate_model
from search import Index
from search.evaluation.sts.data import Task
from search.evaluation.sts.readers import Subset

pytestmark = pytest.mark.check
ROOT = Path(__file__).resolve().parents[2]


class Counter:
    """The object that a child process opens in these tests."""

    def __init__(self, start: int) -> None:
        print("a library that prints")
        if start < 0:
            raise ValueError("below zero\nand more")
        self._count = start

    def add(self, number: int) -> int:
        """The sum so far."""
        self._count += number
        return self._count

    def end(self) -> None:
        """Exit as a crash does."""
        os._exit(3)


def test_a_child_keeps_what_it_opened_and_answers_in_turn() -> None:
    opener = "tests.benchmarks.test_benchmarks:Counter"
    with Child(opener, 1, threads=1) as one, Child(opener, 10, threads=1) as ten:
        assert [one.call("add", 1), ten.call("add", 1), one.call("add", 1)] == [2, 11, 3]
        with pytest.raises(ChildFailed, match="AttributeError"):
            one.call("subtract", 1)
        assert one.call("add", 1) == 4
        with pytest.raises(ChildFailed, match="exit code 3"):
            ten.call("end")


def test_a_child_that_cannot_open_says_why_in_one_line() -> None:
    with pytest.raises(ChildFailed, match=r"^ValueError: below zero$"):
        Child("tests.benchmarks.test_benchmarks:Counter", -1, threads=1)


def test_the_arithmetic_of_a_model_is_that_of_its_products() -> None:
    """Counted by hand, product by product, for a BERT of two blocks."""
    hidden, inner, blocks, length = 6, 10, 2, 5
    config = {"hidden_size": hidden, "intermediate_size": inner, "num_hidden_layers": blocks}
    linear = 4 * length * hidden * hidden + length * hidden * inner + length * inner * hidden
    attention = length * length * hidden + length * length * hidden
    assert model_flops(config, [length]) == 2 * blocks * (linear + attention)
    assert model_flops(config, [length, 3]) == model_flops(config, [length]) + model_flops(config, [3])


def test_every_way_stands_for_a_float32_way_of_the_table() -> None:
    for way in WAYS.values():
        assert WAYS[way.reference].numbers == "float32"
    assert next(iter(WAYS)) == BASE


def test_random_texts_have_the_tokens_asked_for() -> None:
    from tokenizers import Tokenizer

    folder = locate_model("sentence-transformers/all-MiniLM-L6-v2").folder
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    lengths = normal_lengths(50)
    assert SHORTEST <= min(lengths) < max(lengths) <= LONGEST
    assert [len(tokenizer.encode(text).ids) for text in texts_of(lengths, folder)] == lengths


def test_the_recall_of_an_index_is_that_of_its_parameters(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(600, 8)).astype(np.float32)
    config = BuildConfig().with_overrides(["encoder.kind=vectors", "index.type=IVF16,Flat", "index.recall=0.5"])
    build_index([Document(f"d{number}", "", vector=row) for number, row in enumerate(rows[:500])], tmp_path, config)
    index = Index.open(tmp_path)
    (entry,) = index.manifest.segments
    questions = rows[500:] / np.linalg.norm(rows[500:], axis=1, keepdims=True)
    all_lists, few = measure(index, [questions], [{entry.file: {"nprobe": lists}} for lists in (16, 1)])
    assert all_lists == [1.0]
    assert 0.1 < few[0] < 0.9


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_exact_search_in_chunks_is_exact_search(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, queries = (np.random.default_rng(seed).standard_normal((n, 8)) for seed, n in ((0, 30), (1, 4)))
    monkeypatch.setattr(gpu, "_CHUNK", chunk)
    scores, found = gpu.exact_search(torch.from_numpy(rows), torch.from_numpy(queries), 5)
    expected = np.argsort(-(queries @ rows.T), axis=1)[:, :5]
    np.testing.assert_array_equal(found.numpy(), expected)
    np.testing.assert_allclose(scores.numpy(), np.take_along_axis(queries @ rows.T, expected, 1))


def rows_by_text(noise: float) -> Callable[[Sequence[str]], Any]:
    """An encoder that draws each text's row by chance, the same each time, and adds some noise."""

    def encode(texts: Sequence[str]) -> Any:
        rows = np.stack([np.random.default_rng(len(text) * 1000 + ord(text[0])).standard_normal(6) for text in texts])
        return (rows + noise * np.random.default_rng(1).standard_normal(rows.shape)).astype(np.float32)

    return encode


def test_fidelity_is_the_cosine_after_the_transform_that_float32_fits() -> None:
    texts = ["abcdefgh"[n % 8] * (n + 1) for n in range(40)]
    sts_b = Task("STSB", (Subset("all", np.arange(10.0), tuple(texts[:10]), tuple(texts[10:20])),))
    fidelity = Fidelity({"one": texts, "two": texts[:20]}, [sts_b])
    same = fidelity.of("exact", "exact", rows_by_text(0.0))
    assert same["default"]["minimum"] == pytest.approx(1) == same["strength 1"]["mean"]
    assert same["default"]["texts"] == 60
    assert same["sts_b"] == 0
    near, far = (fidelity.of("noisy", "exact", rows_by_text(noise)) for noise in (0.01, 0.5))
    assert 1 > near["strength 1"]["minimum"] > far["strength 1"]["minimum"]
    assert far["default"]["minimum"] < far["default"]["mean"] < near["default"]["mean"] < 1


def run(module: str, *arguments: str | Path) -> str:
    """A benchmark, in a process of its own."""
    command = [sys.executable, "-m", module, *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_gpu_benchmark_runs_on_a_cpu_at_toy_sizes(tmp_path: Path) -> None:
    assert "queries/s" in run("benchmarks.gpu", "--device", "cpu", "--tiny", "-o", tmp_path / "gpu.json")
    result = json.loads((tmp_path / "gpu.json").read_text())
    assert result["vectors"][0]["join_exact"]["pairs"] == result["vectors"][0]["join_ann"]["pairs"] == 200
    assert {row["model"] for row in result["encoding"]} == {"tiny, normal", "tiny, 128 tokens"}


def test_the_encode_benchmark_runs_and_says_what_it_could_not_measure(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    corpus, sts = tmp_path / "docs.jsonl", tmp_path / "stsb.tsv"
    corpus.write_text("".join(json.dumps({"_id": str(n), "text": "a whale " * (n + 1)}) + "\n" for n in range(20)))
    lines = [f"{n % 5}\ta song of {n}\tthe deep sea {n * n}\n" for n in range(12)]
    sts.write_text("score\tsentence1\tsentence2\n" + "".join(lines))
    out = run(
        "benchmarks.encode", corpus, "--sts", sts, "--model", tiny_model("bert"), "--texts", "8", "--fidelity-texts",
        "16", "--rounds", "1", "--threads", "1", "--only", "bfloat16, torch", "--only", "ONNX", "--max-length",
        "64", "-o", tmp_path / "x.json",
    )  # fmt: skip
    assert "GEMM peaks" in out
    results = {row["name"]: row for row in json.loads((tmp_path / "x.json").read_text())["results"]}
    half = results["isotrope bfloat16, torch"]
    assert set(half["mixes"]) == {"documents", "STS sentences"}
    assert half["fidelity"]["default"]["minimum"] > 0.9
    assert results[BASE]["fidelity"]["strength 1"]["mean"] == pytest.approx(1)
    peer = results["sentence-transformers ONNX float32"]
    assert bool(peer["missing"]) != bool(peer["mixes"])


def test_the_query_benchmark_runs(tiny_model: Callable[[str], Path], tmp_path: Path) -> None:
    from indexer import BuildConfig, RunOptions, build_index, read_corpus
    from indexer.recipe.config import EncoderConfig

    corpus = tmp_path / "docs.jsonl"
    corpus.write_text("".join(json.dumps({"_id": str(n), "text": f"A whale of {n}."}) + "\n" for n in range(20)))
    config = BuildConfig(encoder=EncoderConfig(model=str(tiny_model("bert")), max_length=32))
    build_index(read_corpus(corpus), tmp_path / "index", config, RunOptions(threads=1))
    arguments = ["--rounds", "1", "-k", "3", "--threads", "1", "--backend", "numpy", "--no-script"]
    out = run("benchmarks.query", tmp_path / "index", *arguments, "-o", tmp_path / "x.json")
    assert "queries/s" in out
    result = json.loads((tmp_path / "x.json").read_text())
    assert [row["name"] for row in result["cold"]] == ["isotrope", "isotrope --help"]
    assert result["warm"][0]["queries"] == 20


def test_the_serve_benchmark_runs_and_says_what_it_could_not_start(
    tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    from indexer import BuildConfig, RunOptions, build_index, read_corpus
    from indexer.recipe.config import EncoderConfig

    pytest.importorskip("uvicorn")
    corpus = tmp_path / "docs.jsonl"
    corpus.write_text("".join(json.dumps({"_id": str(n), "text": f"A whale of {n}."}) + "\n" for n in range(20)))
    config = BuildConfig(encoder=EncoderConfig(model=str(tiny_model("bert")), max_length=32))
    build_index(read_corpus(corpus), tmp_path / "index", config, RunOptions(threads=1))
    arguments = ["--rounds", "2", "-k", "3", "--clients", "4", "--requests", "12", "--infinity", str(tmp_path / "none")]
    out = run("benchmarks.serve", tmp_path / "index", *arguments, "--weights", tmp_path, "-o", tmp_path / "x.json")
    assert "not measured: infinity-emb" in out
    result = json.loads((tmp_path / "x.json").read_text())
    assert len(result["servers"]) == 2
    for server in result["servers"]:
        assert {many: len(found["rounds"]) for many, found in server["clients"].items()} == {"1": 2, "4": 2}
        assert all(found["ms"]["p50"] <= found["ms"]["p99"] for found in server["clients"].values())
    assert result["index"]["documents"] == 20
    assert str(tmp_path) not in json.dumps(result["command"])
