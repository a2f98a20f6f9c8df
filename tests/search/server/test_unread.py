"""BM25 alone answers a hybrid query without tokens that the encoder knows, on every interface."""

import asyncio
import shutil
from pathlib import Path

import pytest

from indexer import BuildConfig, Document, build_index, refit_index
from indexer.recipe.config import EncoderConfig
from search import SearchEngine, SearchOptions
from search.server.service import SearchService
from search.server.settings import ServerSettings
from tests.search.cli.test_cli import isotrope
from tests.servers import live_server

WORDS = ["whale", "sea", "sand", "bread", "bees", "glass"]
HEAVY = SearchOptions(3, hybrid=True, hybrid_weight=0.9)  # a vector that counted would decide the order


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table without one word, which a single document contains."""
    root = tmp_path_factory.mktemp("unread")
    table = root / "table.txt"
    table.write_text("".join(f"{word} {number} {number % 3} 1\n" for number, word in enumerate(WORDS)))
    documents = [Document(f"d{n}", f"{word} {WORDS[n - 1]}") for n, word in enumerate(WORDS)]
    documents += [Document("odd", "whale sea zyzzyva"), Document("none", "xylyl")]
    build_index(documents, root / "index", BuildConfig(encoder=EncoderConfig(kind="static", model=str(table))))
    return root / "index"


def test_a_service_answers_as_the_engine_does(index: Path) -> None:
    """With any other queries in the same batch."""
    queries = ["whale", "zyzzyva", "sea zyzzyva"]
    expected = SearchEngine(index).search_many(queries, HEAVY)
    assert [hit.id for hit in expected[1]] == ["odd"]

    async def ask() -> None:
        service = SearchService(SearchEngine(index), ServerSettings("tests"), lambda *_: None)
        try:
            alone = await asyncio.gather(*(service.search([query], HEAVY) for query in queries))
            assert [reply.answers[0] for reply in alone] == expected
            assert (await service.search(queries, HEAVY)).answers == expected
        finally:
            await service.stop()

    asyncio.run(ask())


def test_reciprocal_ranks_are_of_words_alone_too(index: Path, tmp_path: Path) -> None:
    ranks = shutil.copytree(index, tmp_path / "index")
    refit_index(ranks, ["hybrid.fusion=rrf"])
    assert [hit.id for hit in SearchEngine(ranks).search("zyzzyva", 3, hybrid=True)] == ["odd"]
    assert len(SearchEngine(ranks).search("whale zyzzyva", 3, hybrid=True)) == 3


def test_the_command_says_what_decided(index: Path) -> None:
    unread = 'the query "zyzzyva" contains no token that the encoder knows; its hits'
    with live_server(index) as server:
        for asked in ((index,), ("--url", server.url)):
            hybrid = isotrope("query", *asked, "--json", "--hybrid", "--hybrid-weight", "0.9", "zyzzyva")
            assert hybrid.stderr == f"note: {unread} come from BM25 alone\n"
            assert '"id": "odd"' in hybrid.stdout
            assert '"rank": 2' not in hybrid.stdout
            assert f"{unread} are meaningless" in isotrope("query", *asked, "--json", "zyzzyva").stderr
