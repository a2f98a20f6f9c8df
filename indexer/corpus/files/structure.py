"""`Outline`, the structure of a text: its headings, and the places where a window may end.

The rank of a break says what begins there; 0 is the strongest. The ranks of text follow here; code has its own, in the
same order: definitions, their members, blank lines, lines.
"""

from bisect import bisect_right
from dataclasses import dataclass
from functools import cached_property

DEEPEST_HEADING = 6  # a heading of level n has rank n - 1, deeper ones the rank of this level
PAGE = 6
PARAGRAPH = 7
AFTER_HEADING = 8  # the first text below a heading
ITEM = 9  # of a list
NESTED = 3  # added to PARAGRAPH and ITEM for each level of indentation
DEEPEST_NESTED = 8  # levels of indentation
LINE = 40


@dataclass(frozen=True, slots=True)
class Heading:
    """A heading, or the definition of a function or class: its first character, its level from 1, its words."""

    start: int
    level: int
    title: str


@dataclass(frozen=True, slots=True)
class Break:
    """A place where a window may end and the next one begin. A lower rank is a better place."""

    at: int
    rank: int


@dataclass(frozen=True)
class Outline:
    """The headings and breaks of a text, both in the order of the text."""

    headings: tuple[Heading, ...]
    breaks: tuple[Break, ...]

    def above(self, at: int) -> tuple[Heading, ...]:
        """Return the headings of the sections that the character `at` belongs to, outermost first."""
        number, found = bisect_right(self._starts, at) - 1, list[Heading]()
        while number >= 0:
            found.append(self.headings[number])
            number = self._parents[number]
        return tuple(reversed(found))

    def path(self, at: int) -> tuple[str, ...]:
        """Return the titles of the headings of `above`."""
        return tuple(heading.title for heading in self.above(at))

    @cached_property
    def _starts(self) -> list[int]:
        return [heading.start for heading in self.headings]

    @cached_property
    def _parents(self) -> list[int]:
        """The number of the heading above each heading, or -1."""
        parents, stack = list[int](), list[int]()
        for number, heading in enumerate(self.headings):
            while stack and self.headings[stack[-1]].level >= heading.level:
                stack.pop()
            parents.append(stack[-1] if stack else -1)
            stack.append(number)
        return parents
