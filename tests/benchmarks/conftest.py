"""A small judged collection with an index of it."""

import json
from pathlib import Path

import numpy as np
import pytest

from indexer import build_index, read_corpus
from indexer.recipe.config import BuildConfig

QUESTIONS, DOCUMENTS = 6, 120


@pytest.fixture
def toy(tmp_path: Path, tiny_config: BuildConfig) -> tuple[Path, Path]:
    """The index, and the folder in BEIR's layout: 120 documents of made-up words, of which 6 are asked for."""
    chance = np.random.default_rng(0)
    words = [f"{first}{second}" for first in ("bar", "fen", "mol", "tas") for second in ("in", "or", "us", "ak")]
    folder = tmp_path / "judged" / "toy"
    (folder / "qrels").mkdir(parents=True)
    documents = [
        {"_id": f"d{number}", "title": " ".join(chance.choice(words, 3)), "text": " ".join(chance.choice(words, 30))}
        for number in range(DOCUMENTS)
    ]
    questions = [{"_id": f"q{number}", "text": " ".join(chance.choice(words, 4))} for number in range(QUESTIONS)]
    for name, rows in (("corpus", documents), ("queries", questions)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    judged = "".join(f"q{number}\td{number}\t1\n" for number in range(QUESTIONS))
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged, encoding="utf-8")
    build_index(read_corpus(str(folder)), folder.parent / "index", tiny_config)
    return folder.parent / "index", folder
