"""BM25 from postings is bm25s's, to the bit, whatever documents are cut into and whichever of them are gone."""

import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.corpus import read_corpus
from indexer.corpus.document import joined_text
from search.evaluation.retrieval.beir import read_judged
from search.evaluation.retrieval.bm25 import rank_bm25
from search.evaluation.retrieval.ranking import places_of
from search.hybrid.bm25 import Bm25, Mask, Ranking
from search.hybrid.postings import Postings
from search.hybrid.postings_file import map_postings, write_postings
from search.hybrid.terms import terms_of

WORDS = ["whale", "whales", "song", "sea", "the", "of", "straße", "日本語", "naïve", "x86", "internationalisation",
         "internationalising"]  # fmt: skip
texts = st.lists(st.lists(st.sampled_from(WORDS), max_size=8).map(" ".join), min_size=1, max_size=12)
queries = st.lists(st.sampled_from([*WORDS, "zebra"]), max_size=5).map(" ".join)


def postings(documents: list[tuple[str, str]]) -> Postings:
    return Postings.of(documents, "hybrid")


def hits(ranking: Ranking) -> list[tuple[float, int]]:
    scores, numbers = ranking
    return list(zip(scores.tolist(), numbers.tolist(), strict=True))


def by_bm25s(documents: list[tuple[str, str]], query: str, k: int) -> list[tuple[float, int]]:
    """What bm25s gives for an index made of just these documents, ties by id."""
    ids, bodies = [identity for identity, _ in documents], [text for _, text in documents]
    return hits(rank_bm25(bodies, [query], places_of(ids), k)[0])


@settings(max_examples=60)
@given(texts, queries, st.data())
def test_scores_are_those_of_bm25s_over_the_live_documents(bodies: list[str], query: str, data: st.DataObject) -> None:
    """Exactly: any cut into parts, any deletions, any ids, any depth."""
    count = len(bodies)
    ids = data.draw(st.permutations([f"d{number}" for number in range(count)]))
    live = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    cuts = sorted(data.draw(st.sets(st.integers(1, count), max_size=3)) | {0, count})
    k = data.draw(st.integers(1, count))
    documents = list(zip(ids, bodies, strict=True))
    parts = [postings(documents[start:end]) for start, end in pairwise(cuts)]
    (terms,) = terms_of([query], "hybrid")
    left = [document for document, alive in zip(documents, live, strict=True) if alive]
    assert hits(Bm25(parts).search(terms, k)) == by_bm25s(documents, query, k)
    assert hits(Bm25(parts, live).search(terms, k)) == (by_bm25s(left, query, k) if left else [])
    assert Bm25(parts, live).ids(range(len(left))) == [identity for identity, _ in left]


@settings(max_examples=40)
@given(texts, queries, st.data())
def test_a_filter_leaves_out_hits_and_changes_no_score(bodies: list[str], query: str, data: st.DataObject) -> None:
    count = len(bodies)
    live: Mask = np.array(data.draw(st.lists(st.booleans(), min_size=count, max_size=count)))
    documents = [(f"d{number:02}", body) for number, body in enumerate(bodies)]
    bm25, (terms,) = Bm25([postings(documents)], live), terms_of([query], "hybrid")
    left = int(live.sum())
    allowed = np.array(data.draw(st.lists(st.booleans(), min_size=left, max_size=left)), bool)
    whole = hits(bm25.search(terms, count))
    for k in (1, 3, count):
        expected = [(score, number) for score, number in whole if allowed[number]][:k]
        assert hits(bm25.search(terms, k, allowed)) == expected


def test_on_scifact_all_scores_and_ranks_are_those_of_bm25s(shared: Path) -> None:
    folder = shared / "data/scifact"
    read = list(read_corpus(folder))[:1500]
    documents = [(document.id, joined_text(document, ("title", "text"))) for document in read]
    bm25 = Bm25([postings(documents[start : start + 700]) for start in range(0, len(documents), 700)])
    asked = list(read_judged(folder).queries.values())[:60]
    ids, bodies = zip(*documents, strict=True)
    expected = rank_bm25(bodies, asked, places_of(ids), 100)
    found = [bm25.search(terms, 100) for terms in terms_of(asked, "hybrid")]
    assert list(map(hits, found)) == list(map(hits, expected))
    assert sum(map(len, map(hits, found))) > 5000


def test_postings_hold_each_term_with_its_documents_and_counts() -> None:
    bodies = ["whale song whales", "", "the of", "song", "zulu internationalization international"]
    made = postings([(f"d{number}", body) for number, body in enumerate(bodies)])
    counted = [Counter(terms) for terms in terms_of(bodies, "hybrid")]
    vocabulary = sorted({term for counts in counted for term in counts})
    assert [made.terms[number].decode() for number in range(len(made.terms))] == vocabulary
    for term, (documents, counts) in zip(vocabulary, made.holders([term.encode() for term in vocabulary]), strict=True):
        expected = {number: counts[term] for number, counts in enumerate(counted) if term in counts}
        assert dict(zip(documents.tolist(), counts.tolist(), strict=True)) == expected
        assert documents.tolist() == sorted(documents.tolist())
    assert made.lengths.tolist() == [sum(counts.values()) for counts in counted]
    assert [len(found) for found, _ in made.holders([b"", b"son", b"songs", b"zzzzzzzzzz", b"\xff" * 9])] == [0] * 5


def test_terms_that_share_their_first_bytes_are_told_apart() -> None:
    bodies = ["aaaaaaaab", "aaaaaaaac", "aaaaaaaa", "aaaaaaa"]
    bm25 = Bm25([postings([(body, body) for body in bodies])])
    for number, body in enumerate(bodies):
        assert [found for _, found in hits(bm25.search([body], 9))] == [number]
    assert hits(bm25.search(["aaaaaaaad"], 9)) == []


def test_counts_above_a_byte_and_documents_above_two_are_kept() -> None:
    many = postings([("often", "whale " * 300), *((f"d{number}", "song") for number in range(300))])
    (documents, counts), (singers, _) = many.holders([b"whale", b"song"])
    assert (documents.tolist(), counts.tolist()) == ([0], [300])
    assert singers.tolist() == list(range(1, 301))
    assert {str(array.dtype) for array in (counts, singers)} == {"uint16"}


@pytest.mark.parametrize("documents", [[], [("a", "")], [("a", "the of"), ("b", "?")]])
def test_documents_without_a_term_are_never_found(documents: list[tuple[str, str]]) -> None:
    assert hits(Bm25([postings(documents)]).search(["whale"], 5)) == []
    assert hits(Bm25([]).search(["whale"], 5)) == []


def test_postings_come_back_from_their_file_as_they_were(tmp_path: Path) -> None:
    for documents in ([], [("é", "日本語 whale"), ("b", "song song")]):
        made = postings(documents)
        write_postings(tmp_path / "p", made)
        back = map_postings(tmp_path / "p")
        for name in ("prefixes", "starts", "documents", "counts", "lengths"):
            assert np.array_equal(getattr(back, name), getattr(made, name))
        for strings, others in ((back.terms, made.terms), (back.ids, made.ids)):
            assert [strings[n] for n in range(len(strings))] == [others[n] for n in range(len(others))]


def test_the_same_documents_give_the_same_bytes_in_every_process(tmp_path: Path) -> None:
    """bm25s numbers terms in the order of a set of strings, which is another in each process."""
    code = (
        "import sys; from pathlib import Path; from search.hybrid.postings import Postings; "
        "from search.hybrid.postings_file import write_postings; "
        "words = [f'word{n % 97}x{n % 13}' for n in range(400)]; "
        "texts = [(f'd{n}', ' '.join(words[n : n + 9])) for n in range(0, 400, 7)]; "
        "write_postings(Path(sys.argv[1]), Postings.of(texts, 'hybrid'))"
    )
    for seed in ("1", "2"):
        run = [sys.executable, "-c", code, str(tmp_path / seed)]
        subprocess.run(run, check=True, env={"PYTHONHASHSEED": seed}, cwd=Path(__file__).parents[1])
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()
