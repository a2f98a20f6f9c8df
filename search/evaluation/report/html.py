"""HTML in which everything is escaped unless it was made here."""

import html

from search.text import escape

VOID = {"meta"}


class Html(str):
    """Text that is HTML already."""


def tag(name: str, /, *children: str, **attributes: str) -> Html:
    """An element. Children that are not `Html` are escaped, as are the values of attributes; `class_` is class."""
    named = "".join(f' {key.rstrip("_")}="{text(value)}"' for key, value in attributes.items())
    if name in VOID:
        return Html(f"<{name}{named}>")
    return Html(f"<{name}{named}>{join(children)}</{name}>")


def join(children: tuple[str, ...] | list[str]) -> Html:
    """Several pieces, one after another."""
    return Html("".join(child if isinstance(child, Html) else text(child) for child in children))


def text(value: str) -> Html:
    """Plain text. Control and formatting characters, and halves of surrogate pairs, are written out."""
    return Html(html.escape(escape(value)))


def table(columns: list[str], rows: list[list[str]], kind: str = "figures") -> Html:
    """A table that scrolls sideways where it is too wide; the first column names the rows. `kind` is its CSS class."""
    head = tag("thead", tag("tr", *(tag("th", column, scope="col") for column in columns)))
    body = [tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in rows]
    return tag("div", tag("table", head, tag("tbody", *body), class_=kind), class_="scroll", tabindex="0")


def section(heading: str, *body: str | None) -> Html:
    """A heading with what stands under it; what is None is left out."""
    return tag("section", tag("h2", heading), *(part for part in body if part is not None))


def figure(picture: Html | None, caption: str) -> Html | None:
    """A picture with what it shows; None without a picture."""
    return None if picture is None else tag("figure", picture, tag("figcaption", caption))


def facts(rows: list[tuple[str, str]]) -> Html:
    """Names and what they are; those without a value are left out."""
    return tag("dl", *(tag("div", tag("dt", name), tag("dd", value)) for name, value in rows if value), class_="facts")
