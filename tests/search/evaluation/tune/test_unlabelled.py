"""Questions drawn from documents, their answers, and their scores."""

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer.corpus.document import Document
from indexer.errors import EvaluationError
from search.evaluation.tune.unlabelled import DrawnPair, draw_pairs, reciprocal_ranks
from tests.search.evaluation.tune.tuned_corpora import COLUMNS, WORDS, corpus

# --- the questions ---------------------------------------------------------------------------------------------------


def test_a_question_and_its_document_are_all_of_the_document_and_share_no_place() -> None:
    documents = {one.id: one for one in corpus(80)}
    pairs = draw_pairs(documents.values(), COLUMNS, 80)
    assert {pair.kind for pair in pairs} == {"sentence"}
    for pair in pairs:
        assert f"{pair.query} {pair.document}" == documents[pair.id].text
        assert pair.query.count(".") == 1


def test_a_heading_or_a_very_long_sentence_asks_for_nothing() -> None:
    text = "Methods.\n" + "word " * 50 + "end. A whale sings in the deep sea. The library is shut."
    (pair,) = {pair for pair in draw_pairs([Document(f"d{n}", f"{text} {n} {n}.") for n in range(60)], COLUMNS, 60)
               if pair.id == "d7"}  # fmt: skip
    assert pair.query == "A whale sings in the deep sea."
    assert pair.document.startswith("Methods. word word")


def test_the_title_asks_for_a_text_of_one_sentence() -> None:
    documents = [
        Document(f"d{n}", f"Song {n} of the whale is in the deep sea library.", f"Song {n}") for n in range(60)
    ]
    for pair in draw_pairs(documents, COLUMNS, 60):
        assert pair.kind == "title"
        assert pair.document == f"{pair.query} of the whale is in the deep sea library."


def test_the_questions_are_the_same_in_any_order_of_the_corpus() -> None:
    documents = corpus(120)
    assert draw_pairs(documents, COLUMNS, 60) == draw_pairs(reversed(documents), COLUMNS, 60)
    assert draw_pairs(documents, COLUMNS, 60, "sts") == draw_pairs(reversed(documents), COLUMNS, 60, "sts")


def test_a_smaller_sample_is_part_of_a_larger_one() -> None:
    documents = corpus(120)
    larger = draw_pairs(documents, COLUMNS, 100)
    assert set(draw_pairs(documents, COLUMNS, 60)) <= set(larger)


def test_documents_without_titles_and_of_one_sentence_are_cut_in_a_window() -> None:
    documents = [Document(f"d{n}", f"{n} " + " ".join(random.Random(n).choices(WORDS, k=12))) for n in range(60)]
    assert {pair.kind for pair in draw_pairs(documents, COLUMNS, 60)} == {"window"}


def test_a_window_leaves_one_word_in_ten_of_itself_behind() -> None:
    documents = [Document(f"d{n}", " ".join(f"w{n}x{m}" for m in range(30))) for n in range(300)]
    shared = []
    for pair in draw_pairs(documents, COLUMNS, 300):
        words = documents[int(pair.id[1:])].text.split()
        asked, rest = pair.query.split(), pair.document.split()
        assert rest == [word for word in words if word in rest]
        assert set(asked) | set(rest) == set(words)
        shared.append(len(set(asked) & set(rest)) / len(asked))
    assert 0.08 < np.mean(shared) < 0.12


def test_only_columns_that_are_encoded_are_asked_about() -> None:
    texts = [f"song {n} of the {n} whale is {n} in the deep {n} sea" for n in range(60)]
    documents = [Document(f"d{n}", text, f"title {n}") for n, text in enumerate(texts)]
    for pair in draw_pairs(documents, ("text",), 60):
        assert pair.kind == "window"
        assert "title" not in f"{pair.query} {pair.document}"


def test_scripts_without_spaces_are_cut_by_characters() -> None:
    texts = [
        f"\u9cb8\u9c7c{n}\u5728\u6df1\u6d77\u4e2d\u5531\u6b4c\u3002\u6ca1\u6709\u4eba\u542c\u89c1\u5b83\u7684\u6b4c\u58f0{n}\u3002"
        for n in range(60)
    ]
    documents = [Document(f"d{n}", text) for n, text in enumerate(texts)]
    for pair in draw_pairs(documents, COLUMNS, 60):
        assert pair.kind == "sentence"
        assert pair.query + pair.document == texts[int(pair.id[1:])]
    for pair in draw_pairs(documents, COLUMNS, 60, "sts"):
        assert set(pair.query) - set(" 0123456789") <= set(pair.whole)
    one_sentence = [Document(f"d{n}", text.replace("\u3002", "")) for n, text in enumerate(texts)]
    windows = draw_pairs(one_sentence, COLUMNS, 60)
    assert {pair.kind for pair in windows} == {"window"}
    assert not any(" " in pair.query for pair in windows if not any(map(str.isdigit, pair.query)))


def test_equal_documents_ask_once() -> None:
    documents = [*corpus(60), *(Document(f"copy{n}", "a " * 20) for n in range(200))]
    rests = [pair.document for pair in draw_pairs(documents, COLUMNS, 260)]
    assert len(rests) == len(set(rests))


def test_copies_are_two_picks_of_one_word_in_four() -> None:
    documents = [Document(f"d{n}", " ".join(f"{n}-{word}" for word in range(200))) for n in range(60)]
    for pair in draw_pairs(documents, COLUMNS, 60, "sts"):
        for side in (pair.query.split(), pair.document.split()):
            assert 25 <= len(side) <= 80
        assert pair.query != pair.document
        assert pair.fitted_on == pair.whole == " ".join(f"{pair.id[1:]}-{word}" for word in range(200))


def test_too_few_questions_are_an_error_with_the_way_out() -> None:
    documents = [*corpus(30), *(Document(f"s{n}", "too short") for n in range(100))]
    with pytest.raises(EvaluationError, match=r"(?s)only 30 of 130 documents .* expected 50.* \(beir\)"):
        draw_pairs(documents, COLUMNS, 1500)


# --- the objective ---------------------------------------------------------------------------------------------------


@given(st.integers(1, 30), st.integers(0, 10_000))
def test_reciprocal_ranks_count_better_documents_and_half_of_the_ties(size: int, seed: int) -> None:
    chance = np.random.default_rng(seed)
    queries = chance.integers(-1, 2, (size, 3)).astype(np.float32)
    documents = chance.integers(-1, 2, (size, 3)).astype(np.float32)
    for row, value in enumerate(reciprocal_ranks(queries, documents)):
        scores = [float(queries[row] @ document) for document in documents]
        better = sum(score > scores[row] for score in scores)
        equal = sum(score == scores[row] for score in scores) - 1
        assert value == pytest.approx(1 / (1 + better + equal / 2))


def test_pairs_are_plain_values() -> None:
    assert len({DrawnPair("a", "window", "q", "d"), DrawnPair("a", "window", "q", "d")}) == 1
