"""Ids seen in a corpus: found like those of a dict, in about 24 bytes a document."""

import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from indexer.corpus.ids import SeenIds


@settings(deadline=None)
@given(st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=2)), st.integers(1, 7))
def test_seen_ids_answer_like_a_dict(identifiers: list[str], recent: int) -> None:
    seen, oracle = SeenIds(recent), dict[str, int]()
    for position, identifier in enumerate(identifiers):
        assert seen.find(identifier) == oracle.get(identifier)
        if identifier not in oracle:
            oracle[identifier] = position << 40
            seen.add(identifier, position << 40)
    assert len(seen) == len(oracle)
    assert all(seen.find(identifier) == position for identifier, position in oracle.items())


def test_seen_ids_take_about_24_bytes_a_document() -> None:
    tracemalloc.start()
    seen = SeenIds(recent=1 << 10)
    for number in range(1 << 15):
        seen.add(f"document-{number}", number)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 30 * (1 << 15)
    assert seen.find("document-77") == 77
