"""`Outline`, the structure of a text: its headings, and the places where a window can end."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Heading:
    """A heading at a character of the text; level 1 is the highest."""

    start: int
    level: int
    title: str


@dataclass(frozen=True)
class Break:
    """A character where a window can end; rank 0 is the strongest."""

    at: int
    rank: int


@dataclass(frozen=True)
class Outline:
    """Headings and breaks in order."""

    headings: tuple[Heading, ...]
    breaks: tuple[Break, ...]

    def path(self, at: int) -> tuple[str, ...]:
        """Return the titles of the headings above a character."""
        open_headings: list[Heading] = []
        for heading in self.headings:
            if heading.start > at:
                break
            open_headings = [*(each for each in open_headings if each.level < heading.level), heading]
        return tuple(heading.title for heading in open_headings)
