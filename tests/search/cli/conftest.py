"""A folder with all inputs of the commands, shared by tests of the command line."""

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from indexer import BuildConfig, build_index
from indexer.recipe.config import EncoderConfig
from indexer.recipe.index_config import StoreConfig
from tests.documents import DOCUMENTS

RESULT = {"provenance": {"command": "x"}, "results": [{"spearman": 1.0}]}
PAIRS = "".join(f"{number % 6}\ta small boat {number}\tsome large ship {number}\n" for number in range(12))
WORDS = "".join(f"word{number}\tother{number}\t{number % 7}\n" for number in range(12))
RTE = "index\tsentence1\tsentence2\tlabel\n" + "".join(
    f"{number}\ta boat {number}\ta ship {number}\t{'entailment' if number % 2 else 'not_entailment'}\n"
    for number in range(12)
)


@pytest.fixture
def place(laid_out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with one file or folder of each kind that commands read."""
    shutil.copytree(laid_out, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    Path("hard.tsv").hardlink_to("stsb.tsv")
    Path("link.jsonl").symlink_to("docs.jsonl")
    return tmp_path


@pytest.fixture(scope="module")
def laid_out(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the contents of that folder without the links, made once."""
    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=32, precision="float32")
    tiny_config = BuildConfig(encoder=encoder, store=StoreConfig(part_documents=4))
    root = tmp_path_factory.mktemp("place")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        _lay_out(tiny_config)
    return root


def _lay_out(tiny_config: BuildConfig) -> None:
    shutil.copytree(tiny_config.encoder.model, "model")
    recipe = '[encoder]\nmodel = "model"\nmax_length = 32\nprecision = "float32"\n[whitening]\nquery_sample = "q.txt"\n'
    lines = "".join(json.dumps({"_id": each.id, "title": each.title, "text": each.text}) + "\n" for each in DOCUMENTS)
    for name, text in {
        "recipe.toml": recipe,
        "docs.jsonl": lines,
        "q.txt": "whales\nbread\n",
        "r.json": json.dumps(RESULT),
        "pairs.tsv": "d1\td2\t1\n",
        "stsb.tsv": PAIRS,
        "men.txt": WORDS,
        "dev.tsv": RTE,
        "train.tsv": RTE,
        "beir/corpus.jsonl": lines,
        "beir/queries.jsonl": '{"_id": "q1", "text": "whales"}\n',
        "beir/qrels/test.tsv": "query-id\tcorpus-id\tscore\nq1\td1\t1\n",
        "bad.jsonl": '{"_id": "new", "text": null}\n',
        "mine.txt": "mine",
    }.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text(text)
    np.save("v.npy", np.ones((1, 32), np.float32))
    Path("v.ids.txt").write_text("q1\n")
    build_index(DOCUMENTS, "index", replace(tiny_config, encoder=replace(tiny_config.encoder, model="model")))
    shutil.copytree("index", "other")
    Path("begun/parts").mkdir(parents=True)
    Path("begun/lock").touch()
