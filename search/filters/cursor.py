"""A place among the words and signs of a filter, which moves on as they are read."""

from typing import Never

from search.filters.source import RESERVED, Source, Token

_OTHER_SQL = RESERVED - frozenset(
    ["AND", "OR", "NOT", "IN", "IS", "NULL", "LIKE", "ILIKE", "ESCAPE", "BETWEEN", "TRUE", "FALSE", "AS", "DISTINCT"]
)


class Cursor:
    """The token to be read next, and those after it. A mistake is told at that place."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self._tokens, self._next = source.tokens(), 0

    @property
    def token(self) -> Token:
        """The next token."""
        return self._tokens[self._next]

    @property
    def following(self) -> Token:
        """The one after it; the last, which stands for the end, follows itself."""
        return self._tokens[min(self._next + 1, len(self._tokens) - 1)]

    def read(self) -> Token:
        """The next token; the cursor moves on."""
        token = self.token
        self._next += 1
        return token

    def shown(self, start: int) -> str:
        """The filter from `start` to what was read last."""
        return self.source.shown(start, self._tokens[self._next - 1].end)

    def sees(self, *words: str) -> bool:
        """Whether the next word or sign is one of these."""
        return _is_one(self.token, words)

    def sees_after(self, *words: str) -> bool:
        """Whether the one after it is."""
        return _is_one(self.following, words)

    def takes(self, *words: str) -> bool:
        """Whether the next word or sign is one of these; if so it is read."""
        found = self.sees(*words)
        self._next += found
        return found

    def take(self, *words: str) -> Token:
        """The next word or sign, which must be one of these. Raises ConfigError."""
        if not self.sees(*words):
            self.expected(" or ".join(words))
        return self.read()

    def name(self) -> str:
        """The next token as the name of a column. Raises ConfigError."""
        token = self.token
        if token.kind != "name" and (token.kind != "word" or token.value in RESERVED):
            self.expected("a column or a value")
        self._next += 1
        return token.value if token.kind == "name" else self.source.where[token.start : token.end]

    def text(self, expected: str) -> Token:
        """The next token as text between quotes. Raises ConfigError."""
        if self.token.kind != "text":
            self.expected(expected)
        return self.read()

    def expected(self, what: str) -> Never:
        """Raise ConfigError: something else was expected here."""
        token = self.token
        if token.kind == "word" and token.value in _OTHER_SQL:
            self.source.refuse(
                f"{token.value} has no place here: a filter is one condition, without subqueries, CASE and the like (a "
                f"column of that name goes in double quotes)",
                token.start,
            )
        found = "the filter ends" if token.kind == "end" else f"found {self.source.shown(token.start, token.end)}"
        self.source.refuse(f"{found}; expected {what}", token.start)


def _is_one(token: Token, words: tuple[str, ...]) -> bool:
    return token.kind in ("word", "sign") and token.value in words
