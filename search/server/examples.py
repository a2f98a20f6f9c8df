"""Example queries from an index's documents, for people who do not know the corpus."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from search.index import Index

EXAMPLES = 4
_CANDIDATES = 24  # documents
_SHORTEST, _LONGEST = 3, 60  # characters of an example


def example_questions(index: "Index") -> list[dict[str, str]]:
    """Return the `id` and `text` (title or first words) of at most four documents, spread over the index.

    A generation always has the same examples. Long and very short titles are skipped.
    """
    documents, count = index.documents, len(index.documents)
    places = sorted({count * (2 * number + 1) // (2 * _CANDIDATES) for number in range(_CANDIDATES)} if count else [])
    named = [(identity, _line(title or "")) for identity, title in documents.names(places)]
    if not any(title for _, title in named):
        middle = places[len(places) // 2 : len(places) // 2 + 1]
        adjacent = range(middle[0], min(middle[0] + EXAMPLES, count)) if middle else ()  # one read
        named = [(document.id, _beginning(document.text)) for document in documents.fetch(adjacent)]
    texts = {text: identity for identity, text in reversed(named) if _SHORTEST <= len(text) <= _LONGEST}
    chosen = list(texts.items())[::-1]
    return [{"id": identity, "text": text} for text, identity in chosen[:: max(1, len(chosen) // EXAMPLES)][:EXAMPLES]]


def _line(text: str) -> str:
    return " ".join(text.split())


def _beginning(text: str) -> str:
    """Return the first words of a text, at most the length of an example."""
    start = _line(text[: 4 * _LONGEST])
    return start if len(start) <= _LONGEST else start[: _LONGEST + 1].rpartition(" ")[0]
