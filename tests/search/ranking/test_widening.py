"""The widening loop: how far it searches, for which queries, and when it stops."""

import math

import numpy as np
import pytest

from indexer.errors import ConfigError
from search.ranking.documents import Groups, RankedDocument
from search.ranking.options import SearchOptions
from search.ranking.ranker import Candidates, EncodedQueries, Source, Wanted, collect


def ranked(*documents: int) -> list[RankedDocument]:
    """Return documents with falling scores: 1, 0.5, 0.25, ..."""
    return [RankedDocument(document, 0.5**place, document) for place, document in enumerate(documents)]


def prefixes(lists: list[list[int]], asked: list[tuple[list[int], int]], bound: float = -math.inf) -> Source:
    """Return the first r documents of each list at reach r; complete once the reach is as long."""

    def source(pending: list[int], reach: int) -> list[Candidates]:
        asked.append((list(pending), reach))
        return [Candidates(ranked(*lists[query][:reach]), reach >= len(lists[query]), bound) for query in pending]

    return source


def documents_of(answers: list[list[RankedDocument]]) -> list[list[int]]:
    return [[found.document for found in answer] for answer in answers]


def test_only_those_that_lack_documents_are_asked_again_four_times_as_far() -> None:
    asked: list[tuple[list[int], int]] = []
    codes = np.array([0] * 9 + [1, 2, 3, 4, 5])
    lists = [[0, *range(1, 9), 9, 10, 11], [9, 10, 0, 1], [0, 1, 2, 3, 4, 5, 6, 7, 9, 8]]
    answers = collect(3, prefixes(lists, asked), 2, Wanted(2, Groups(codes, 14)))
    assert asked == [([0, 1, 2], 2), ([0, 2], 8), ([0, 2], 32)]
    assert documents_of(answers) == [[0, 9, 10, 11], [9, 10], [0, 9]]


def test_it_stops_at_all_there_is() -> None:
    asked: list[tuple[list[int], int]] = []
    assert documents_of(collect(1, prefixes([[1, 2, 3]], asked), 2, Wanted(9, Groups(None, 50)))) == [[1, 2, 3]]
    assert [reach for _, reach in asked] == [2, 8]
    asked.clear()
    assert collect(0, prefixes([], asked), 2, Wanted(9, Groups(None, 50))) == []
    assert asked == []


def test_it_stops_when_every_group_or_every_allowed_document_is_there() -> None:
    asked: list[tuple[list[int], int]] = []
    endless = [list(range(1000))]
    two = Groups(np.arange(1000) % 2, 1000)
    assert documents_of(collect(1, prefixes(endless, asked), 4, Wanted(9, two))) == [[0, 1]]
    assert [reach for _, reach in asked] == [4]
    allowed = np.arange(1000) < 3
    collect(1, prefixes(endless, asked), 4, Wanted(9, Groups(None, 1000, allowed)))
    assert [reach for _, reach in asked] == [4, 4]


@pytest.mark.parametrize(("bound", "reaches"), [(0.25, [4]), (0.26, [4, 16])])
def test_proof_is_that_nothing_unseen_can_beat_the_last(bound: float, reaches: list[int]) -> None:
    asked: list[tuple[list[int], int]] = []
    source = prefixes([list(range(10))], asked, bound)
    collect(1, source, 4, Wanted(3, Groups(None, 10), proved=True))
    assert [reach for _, reach in asked] == reaches
    asked.clear()
    collect(1, source, 4, Wanted(3, Groups(None, 10)))
    assert [reach for _, reach in asked] == [4]  # without proof three are enough


def test_where_nothing_may_be_found_nothing_is_to_be_proved() -> None:
    asked: list[tuple[list[int], int]] = []
    nothing = Groups(None, 5, np.zeros(5, bool))
    assert collect(1, prefixes([[]], asked, math.inf), 4, Wanted(3, nothing, proved=True)) == [[]]
    assert len(asked) == 1


def test_options_are_made_of_a_number_of_options_and_of_fields() -> None:
    assert SearchOptions.of(None, {}) == SearchOptions()
    assert SearchOptions.of(3, {"exact": True}) == SearchOptions(3, exact=True)
    assert SearchOptions.of(SearchOptions(3, where="a = 1"), {"k": 4}) == SearchOptions(4, where="a = 1")
    with pytest.raises(ConfigError, match='a search has no option "wher"; did you mean "where"'):
        SearchOptions.of(3, {"wher": "a = 1"})
    with pytest.raises(ConfigError, match='no option "zzz"; it has k, where, group_by'):
        SearchOptions.of(None, {"zzz": 1})
    with pytest.raises(ConfigError, match="k is 'three'"):
        SearchOptions.of("three", {})  # type: ignore[arg-type]


def test_what_was_not_given_is_asked_for() -> None:
    vectors = np.eye(3, dtype=np.float32)
    bare, whole = EncodedQueries(vectors), EncodedQueries(vectors, 2 * vectors, ["a", "b", "c"])
    with pytest.raises(ConfigError, match='similarity "js" compares raw embeddings'):
        bare.require_for(SearchOptions(similarity="js"))
    with pytest.raises(ConfigError, match="hybrid search needs the text of a query"):
        bare.require_for(SearchOptions(hybrid=True))
    bare.require_for(SearchOptions())
    part = whole[1:]
    assert (len(part), part.words, part.raw.tolist()) == (2, ["b", "c"], (2 * vectors[1:]).tolist())
    assert len(bare[:2]) == 2
