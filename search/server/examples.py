"""Example questions from an index's own documents, for people who do not know the corpus yet."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from search.index import Index

EXAMPLES = 4
_LOOKED_AT = 24  # documents
_SHORTEST, _LONGEST = 3, 60  # characters of an example


def example_questions(index: "Index") -> list[dict[str, str]]:
    """Return at most four documents from all over the index, as `id` and `text`: the title, or the first words.

    A generation always gives the same examples. Long and very short titles are left out.
    """
    documents, count = index.documents, len(index.documents)
    places = sorted({count * (2 * number + 1) // (2 * _LOOKED_AT) for number in range(_LOOKED_AT)} if count else [])
    named = [(identity, _line(title or "")) for identity, title in documents.names(places)]
    if not any(title for _, title in named):
        middle = places[len(places) // 2 : len(places) // 2 + 1]
        beside = range(middle[0], min(middle[0] + EXAMPLES, count)) if middle else ()  # close together: read at once
        named = [(one.id, _beginning(one.text)) for one in documents.fetch(beside)]
    texts = {text: identity for identity, text in reversed(named) if _SHORTEST <= len(text) <= _LONGEST}
    found = list(texts.items())[::-1]
    return [{"id": identity, "text": text} for text, identity in found[:: max(1, len(found) // EXAMPLES)][:EXAMPLES]]


def _line(text: str) -> str:
    return " ".join(text.split())


def _beginning(text: str) -> str:
    """The first words of a text, up to the length of an example."""
    start = _line(text[: 4 * _LONGEST])
    return start if len(start) <= _LONGEST else start[: _LONGEST + 1].rpartition(" ")[0]
