"""A tiny collection with judgements, its recipe and its index, for the tests of retrieval."""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from indexer import BuildConfig
from indexer.recipe.config import EncoderConfig
from indexer.recipe.index_config import StoreConfig
from tests.search.evaluation.retrieval.tiny_collection import WORDS, Cli, built, write_lines


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 documents, of which the last ten repeat others, and 12 queries with graded judgements; one has none."""
    path, draw = tmp_path_factory.mktemp("beir") / "tiny", random.Random(3)
    titles = [" ".join(draw.choices(WORDS, k=2)) for _ in range(50)]
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(4, 12))) for _ in range(50)]
    rows = [{"_id": f"d{n}", "title": titles[n % 50], "text": texts[n % 50]} for n in range(60)]
    write_lines(path / "corpus.jsonl", rows)
    write_lines(path / "queries.jsonl", [{"_id": f"q{n}", "text": f"{titles[n]} {WORDS[n]}"} for n in range(12)])
    judged = [(f"q{n}", f"d{m}", 1 + m % 2) for n in range(11) for m in {n, n + 20, n + 48}]
    lines = [f"{query}\t{document}\t{score}\n" for query, document, score in judged]
    (path / "qrels").mkdir()
    (path / "qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))
    return path


@pytest.fixture(scope="module")
def config(tiny_model: Callable[[str], Path]) -> BuildConfig:
    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=40, precision="float32")
    return BuildConfig(encoder=encoder, store=StoreConfig(part_documents=16))


@pytest.fixture(scope="module")
def index(folder: Path, config: BuildConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of the folder's corpus by the unchanged recipe."""
    return built(folder, config, tmp_path_factory.mktemp("index") / "index")


@pytest.fixture
def cli(folder: Path, config: BuildConfig) -> Cli:
    return Cli(folder, ["--set", f"encoder.model={config.encoder.model}", "--set", "encoder.max_length=40"])
