"""Near-duplicates of documents with several windows: two documents score as their best pair of windows."""

import itertools
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer import BuildConfig, Document, build_index
from indexer.arrays import RowIds, Vectors
from indexer.recipe.config import EncoderConfig
from indexer.recipe.corpus_config import ChunkConfig
from indexer.recipe.index_config import StoreConfig
from search.dedup.deduplication import deduplicate_index
from search.dedup.distinct import CrossDocumentPairs, VectorCopies, find_distinct
from search.dedup.greedy import DedupDocuments
from search.dedup.inputs import DedupInputs, open_inputs
from search.dedup.pairs import document_scores, pair_scores, tile_scores
from search.dedup.settings import DedupSettings, PairFiles, lowest_score
from search.dedup.suggest import PairTally, choose_floor, suggest_thresholds
from search.dedup.verify import verify_duplicates
from tests.dedup_oracles import BrutePairs, decide_slowly
from tests.search.dedup.spheres import sphere

WORDS = ("whale", "song", "of", "the", "deep", "sea", "library", "data", "for", "singing", "to", "and", "in", "a")
Built = Callable[..., Path]
# Documents as the directions of their windows; few directions, so that many vectors are equal.
DOCUMENTS = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), min_size=1, max_size=8)


def corpus(count: int = 60, seed: int = 0, prefix: str = "d") -> list[Document]:
    """Return texts of one or more windows; a third contain a passage of an earlier text."""
    draw, found = random.Random(seed), list[Document]()
    for number in range(count):
        words = draw.choices(WORDS, k=draw.randint(3, 40))
        if found and draw.random() < 0.35:
            other = draw.choice(found).text.split()
            start = draw.randrange(len(other))
            words[draw.randrange(len(words)) :] = other[start : start + draw.randint(8, 24)]
        if found and draw.random() < 0.05:
            words = draw.choice(found).text.split()
        found.append(Document(f"{prefix}{number}", " ".join(words)))
    return found


@pytest.fixture(scope="module")
def built(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build an index of windows with given settings, once a module."""
    made: dict[tuple[Any, ...], Path] = {}
    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=40, precision="float32")
    config = BuildConfig(encoder=encoder, store=StoreConfig(part_documents=16), chunk=ChunkConfig(12, 4))

    def build(*settings: str, seed: int = 0, count: int = 60) -> Path:
        key = (*settings, seed, count)
        if key not in made:
            made[key] = tmp_path_factory.mktemp("dedup") / "index"
            build_index(corpus(count, seed, f"s{seed}-"), made[key], config.with_overrides(settings))
        return made[key]

    return build


def by_hand(inputs: DedupInputs, threshold: float, drop_texts: bool) -> dict[str, tuple[str, np.float32]]:
    """Return id -> (kept id, score) by the literal rule over all windows."""
    vectors, document_of, text_of = np.array(inputs.vectors), inputs.document_of, inputs.text_of
    indexes = [index for index in (inputs.other, inputs.index) if index]
    ids = [name for index in indexes for name in index.documents.all_ids()]
    each = np.arange(len(vectors))
    rank = np.arange(len(ids))
    collection = DedupDocuments(document_of, each, text_of, rank, pair_scores(vectors, vectors), inputs.others)
    decision = decide_slowly(collection, vectors, lowest_score(threshold), drop_texts)
    dropped = np.flatnonzero(decision.kept_by >= 0).tolist()
    kept = decision.kept_by[dropped]
    scores = document_scores(vectors, document_of, np.array(dropped), kept)
    return {ids[one]: (ids[other], score) for one, other, score in zip(dropped, kept.tolist(), scores, strict=True)}


@pytest.mark.parametrize("threshold", [0.6, 0.9, 1.0])
@pytest.mark.parametrize("texts", ["keep", "drop"])
@pytest.mark.parametrize("against", [False, True])
def test_documents_are_dropped_by_their_best_windows(
    built: Built, threshold: float, texts: Any, against: bool, tmp_path: Path
) -> None:
    index, other = built(), built(seed=1, count=30) if against else None
    settings = DedupSettings(threshold, text_duplicates=texts)
    found = deduplicate_index(index, settings, other)
    with open_inputs(index, other) as inputs:
        expected = by_hand(inputs, threshold, texts == "drop")
    assert {row["id"]: (row["kept_id"], row["score"]) for row in found.table.to_pylist()} == expected
    assert expected
    assert found.facts["documents"] == 60
    found.write(tmp_path / "duplicates.parquet")
    proof = verify_duplicates(tmp_path / "duplicates.parquet", index, against=other)
    assert proof.problems == []
    assert proof.dropped == len(expected)


def test_an_index_of_windows_is_compared_with_one_of_whole_documents(built: Built, tmp_path: Path) -> None:
    index, other = built(), built("chunk.tokens=0", seed=1, count=30)
    found = deduplicate_index(index, 0.6, other)
    found.write(tmp_path / "duplicates.parquet")
    assert verify_duplicates(tmp_path / "duplicates.parquet", index, against=other).problems == []
    assert found.facts["dropped"] > 0


def test_the_verifier_sees_a_document_kept_beside_a_window_like_its_own(built: Built, tmp_path: Path) -> None:
    strict = deduplicate_index(built(), 0.95)
    strict.write(tmp_path / "duplicates.parquet")
    stated = pq.read_table(tmp_path / "duplicates.parquet")
    facts = stated.schema.metadata[b"isotrope"].replace(b'"threshold":0.95', b'"threshold":0.6')
    assert facts != stated.schema.metadata[b"isotrope"]
    facts = facts.replace(
        f'"lowest":{float(lowest_score(0.95))}'.encode(), f'"lowest":{float(lowest_score(0.6))}'.encode()
    )
    pq.write_table(stated.replace_schema_metadata({b"isotrope": facts}), tmp_path / "loose.parquet")
    proof = verify_duplicates(tmp_path / "loose.parquet", built())
    assert proof.violations["kept pairs"] > 0


def test_saved_pairs_answer_as_the_join_and_hold_none_of_one_document(built: Built, tmp_path: Path) -> None:
    file = tmp_path / "pairs.parquet"
    joined = deduplicate_index(built(), 0.7, pairs=PairFiles(write=file, floor=0.5))
    for threshold in (0.7, 0.55):
        read = deduplicate_index(built(), threshold, pairs=PairFiles(read=file))
        assert read.table.equals(deduplicate_index(built(), threshold).table)
    assert joined.table.num_rows > 0
    with open_inputs(built()) as inputs:
        document_of, distinct = inputs.document_of, inputs.distinct
    pairs = pq.read_table(file).to_pydict()
    copies = Counter(distinct.number_of.tolist())
    for left, right, same in zip(pairs["left"], pairs["right"], pairs["identical"], strict=True):
        alone = copies[distinct.number_of[left]] == copies[distinct.number_of[right]] == 1
        assert same or not alone or document_of[left] != document_of[right]


@given(DOCUMENTS)
def test_pairs_of_copies_are_counted_across_documents_only(documents: list[list[int]]) -> None:
    vectors, document_of = laid_out(documents)
    distinct = find_distinct(vectors)
    copies, rows = VectorCopies(distinct, document_of), range(len(vectors))
    expected: Counter[tuple[int, int]] = Counter()
    for one, other in itertools.combinations(rows, 2):
        if document_of[one] != document_of[other]:
            low, high = sorted((int(distinct.number_of[one]), int(distinct.number_of[other])))
            expected[low, high] += 1
    numbers = np.array(list(itertools.combinations(range(len(distinct.first)), 2)), np.int64).reshape(-1, 2)
    found = copies.between(numbers[:, 0], numbers[:, 1]).tolist()
    assert found == [expected[low, high] for low, high in numbers.tolist()]
    first, second, counts = copies.within()
    assert (document_of[first] < document_of[second]).all()
    assert (distinct.number_of[first] == distinct.number_of[second]).all()
    same = {int(distinct.number_of[row]): count for row, count in zip(first.tolist(), counts.tolist(), strict=True)}
    assert same == {low: count for (low, high), count in expected.items() if low == high}


@given(DOCUMENTS, st.sampled_from([0.29, 0.5, 0.8]))
def test_a_tally_is_of_windows_of_different_documents(documents: list[list[int]], floor: float) -> None:
    vectors, document_of = laid_out(documents)
    distinct = find_distinct(vectors)
    source = CrossDocumentPairs(BrutePairs(vectors[distinct.first], lowest_score(floor)), document_of, distinct)
    edges = [floor, 0.9, 1.0]
    tally = PairTally(distinct, document_of, edges)
    tally.add_copies(vectors)
    for pairs in source.within(np.arange(len(distinct.first))) if len(distinct.first) > 1 else ():
        tally.add(pairs)
    scores = tile_scores(vectors, vectors)
    apart = [
        (one, other, scores[one, other])
        for one, other in itertools.combinations(range(len(vectors)), 2)
        if document_of[one] != document_of[other]
    ]
    for edge, threshold in enumerate(edges):
        assert tally.pairs(edge) == sum(score >= lowest_score(threshold) for *_, score in apart)
    for edge in (1, 2):
        for one, other, score in [*tally.above(edge), *tally.below(edge)]:
            assert (one, other, np.float32(score)) in apart


def laid_out(documents: list[list[int]]) -> tuple[Vectors, RowIds]:
    vectors = sphere(10, 3, seed=3)[list(itertools.chain(*documents))].reshape(-1, 3)
    return vectors, np.repeat(np.arange(len(documents)), [len(windows) for windows in documents])


def test_the_floor_is_chosen_by_other_documents_only() -> None:
    """Similar windows of one document would crowd the space."""
    vectors, document_of = np.repeat(sphere(200, 24), 5, axis=0), np.repeat(np.arange(200), 5)
    near = vectors + 0.02 * sphere(1000, 24, seed=1)
    near /= np.linalg.norm(near, axis=1, keepdims=True)
    distinct = find_distinct(near.astype(np.float32))
    assert choose_floor(near.astype(np.float32), distinct, document_of) < 0.8
    assert choose_floor(near.astype(np.float32), distinct, np.arange(1000)) > 0.9


def test_suggestions_count_windows_and_show_them(built: Built) -> None:
    found = suggest_thresholds(built(), floor=0.5)
    with open_inputs(built()) as inputs:
        vectors, document_of = np.array(inputs.vectors), inputs.document_of
    scores = tile_scores(vectors, vectors)
    apart = np.triu(document_of[:, None] != document_of, 1)
    assert (found.documents, found.windows) == (60, len(vectors))
    for candidate in found.candidates:
        assert candidate.pairs == np.count_nonzero(apart & (scores >= lowest_score(candidate.threshold)))
        assert candidate.dropped == deduplicate_index(built(), candidate.threshold).facts["dropped"]
    texts = {document.id: document.text for document in corpus(60, 0, "s0-")}
    shown = [example for candidate in found.candidates for example in (*candidate.above, *candidate.below)]
    assert shown
    for example in shown:
        assert example.first.id != example.second.id
        for side in (example.first, example.second):
            assert side.text.removeprefix("…").strip() in texts[side.id]
