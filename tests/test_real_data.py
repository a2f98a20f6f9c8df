"""Real text through the real all-MiniLM-L6-v2: the hits must make sense to a reader."""

import math
import re
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from indexer import BuildConfig, Document, build_index, read_corpus
from search import SearchEngine, verify_index

pytestmark = pytest.mark.check
PAIRS = [
    ("How do whales communicate?", "Whales sing for hours in the deep sea."),
    ("structures that carry roads over water", "A suspension bridge hangs from steel cables."),
    ("why does dough rise", "Yeast turns sugar into gas, which makes bread light."),
    ("where does sunlight come from", "A star shines by fusing hydrogen to helium."),
    ("who watches the beehive", "Beekeepers check their colonies every week."),
]


def test_paraphrases_find_each_other(tmp_path: Path) -> None:
    build_index([Document(str(n), text) for n, (_, text) in enumerate(PAIRS)], tmp_path / "index")
    hits = SearchEngine(tmp_path / "index").search_many([question for question, _ in PAIRS], k=1)
    assert [found[0].id for found in hits] == [str(n) for n in range(len(PAIRS))]


@pytest.fixture(scope="module")
def cacm(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> SearchEngine:
    """The first 400 CACM records, most of them a title only."""
    index = tmp_path_factory.mktemp("cacm") / "index"
    build_index(islice(read_corpus(shared / "data/cacm"), 400), index, BuildConfig())
    return SearchEngine(index)


@pytest.mark.parametrize(
    ("query", "word"),
    [("sorting numbers in memory", "sort"), ("roots of polynomials", "polynomial|root"), ("invert a matrix", "inver")],
)
def test_hits_on_cacm_are_about_the_question(query: str, word: str, cacm: SearchEngine) -> None:
    titles = [(hit.title or "").lower() for hit in cacm.search(query, k=3)]
    assert all(re.search(word, title) for title in titles), titles


def test_the_real_index_verifies_and_keeps_its_metadata(cacm: SearchEngine) -> None:
    assert verify_index(cacm.index.path).passed
    assert cacm.search("Preliminary Report International Algebraic Language", k=1)[0].id == "CACM-0001"
    assert cacm.index.documents.fetch([0])[0].metadata["metadata"]["tail"].startswith("CACM December, 1958")


def test_titles_centre_queries_apart_from_documents(cacm: SearchEngine) -> None:
    """Title-only records make both means equal here; no score may be out of range anyway."""
    arrays = cacm.index.transform.arrays()
    gap = float(np.linalg.norm(arrays["mean"] - arrays["query_mean"]))
    assert 0 < gap < 1
    assert all(math.isfinite(hit.score) and hit.score <= 1.000001 for hit in cacm.search("compiler", k=400))
