"""Tables for people: every figure is complete, however narrow the terminal."""

import re
from types import SimpleNamespace

import pytest
from rich.cells import cell_len

from search.cli.hits import print_hits
from search.cli.output import print_report, print_table
from search.hits import FoldedHit, Hit, Place, Window

LATIN = "archive/2024/" + "long-folder/" * 15 + "notes.txt:1834"
WIDE = "鯨の歌" * 66 + "終わり"
MARKED = "e\u0301" * 199 + "u\u0308"  # letters with combining marks
ENDS = {
    LATIN: ("archiv", ":1834"),
    WIDE: ("鯨の歌", "わり"),
    MARKED: ("e\u0301e\u0301", "e\u0301u\u0308"),
    "d1": ("d1", "d1"),
}
TEXT = "Whales sing in the deep sea, and nobody knows to whom; their songs change from year to year. " * 3


@pytest.mark.parametrize("terminal", [True, False])
def test_no_figure_is_cut_on_a_narrow_terminal(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    if terminal:
        monkeypatch.setenv("TTY_COMPATIBLE", "1")
        monkeypatch.setenv("FORCE_COLOR", "1")
    figures = [f"{number}.25 [1.5, 99.5]" for number in range(60)]
    title = "A title [95 %] that is longer than the terminal is wide: " + "word " * 20 + "end"
    print_table(["setting", *map(str, range(60))], [["mean -1 strength 0.25 role", *figures]], title)
    shown = capsys.readouterr().out
    assert "\N{HORIZONTAL ELLIPSIS}" not in shown
    assert title in shown
    assert [figure for figure in figures if figure not in shown] == []
    assert len(shown.rstrip("\n").split("\n")) == 3


def shown_hits(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], columns: int | None) -> list[str]:
    """Return the lines of four hits on a terminal with this many columns; None: in a pipe."""
    monkeypatch.setenv("COLUMNS", str(columns or 80))
    monkeypatch.setenv("NO_COLOR", "1")
    if columns:
        monkeypatch.setenv("TTY_COMPATIBLE", "1")
        monkeypatch.setenv("FORCE_COLOR", "1")
    hits = [Hit(name, 0.98765 - place / 10, "A title", TEXT, {}) for place, name in enumerate(ENDS)]
    print_hits("how do whales sing", hits)
    shown = re.sub(r"\x1b\[\d*m", "", capsys.readouterr().out)
    return [line.rstrip() for line in shown.split("\n")]


@pytest.mark.parametrize("columns", [40, 60, 80, 200])
def test_beside_long_ids_there_is_room_for_scores_and_text(
    columns: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = shown_hits(monkeypatch, capsys, columns)
    assert max(map(cell_len, lines)) <= columns
    firsts = [line for line in lines if re.match(r"0\.\d{3}  ", line)]
    assert [line[:5] for line in firsts] == ["0.988", "0.888", "0.788", "0.688"]
    for line, (name, (start, end)) in zip(firsts, ENDS.items(), strict=True):
        shown = line[7:].split("  ")[0]
        assert (shown.startswith(start), shown.endswith(end)) == (True, True)
        assert ("\N{HORIZONTAL ELLIPSIS}" in shown) == (cell_len(name) > columns // 3)
        assert "A title: Whales" in line.replace(shown, "")
    # The text has more than a third of the columns: it takes no more lines than that.
    assert len(lines) <= 3 + 4 * (-(-cell_len(TEXT[:160]) // (columns // 3)))


def test_ids_in_a_pipe_are_whole(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = shown_hits(monkeypatch, capsys, None)
    for line, name in zip([line for line in lines if line.startswith("0.")], ENDS, strict=True):
        assert line[7:].startswith(f"{name} ")
        assert "A title: Whales sing in the deep sea," in line
    assert "\N{HORIZONTAL ELLIPSIS}" not in "".join(lines)


def test_what_is_folded_is_counted_and_the_first_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    folded = tuple(FoldedHit(name, 0.4, 0.99, None) for name in ("a\tb", "c", "d", "e"))
    hits = [Hit(f"d{count}", 0.5, None, "text", {}, folded=folded[:count], folded_count=count) for count in (0, 2, 3)]
    print_hits("q", [*hits, Hit("many", 0.5, None, "text", {}, folded=folded, folded_count=1234)])
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if "folded" in line] == [
        "+ 2 folded: a\\tb, c",
        "+ 3 folded: a\\tb, c, d",
        "+ 1,234 folded: a\\tb, c, d and 1,231 more",
    ]


def test_the_value_that_hits_are_grouped_by_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    hits = [Hit("a", 0.5, "Title", "text", {"section": "net\nwork"}), Hit("b", 0.4, None, "text", {})]
    print_hits("q", hits, "section")
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:3] == ["0.500  a  section: net\\nwork  Title: text", "0.400  b  section: none  text"]


def test_an_id_has_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    print_hits("q", [Hit("one\ntwo\x1b[2J", 0.5, None, "text", {})])
    assert capsys.readouterr().out.splitlines()[1].rstrip() == "0.500  one\\ntwo\\x1b[2J  text"


@pytest.mark.parametrize(
    ("place", "line"),
    [
        (Place((12, 20), None, ("Guide", "Install")), "0.500  notes/a.md:12  Guide > Install: text"),
        (Place(None, 3, ("Method",)), "0.500  notes/a.md#page=3  Guide > Method: text"),
        (Place((7, 7), 2), "0.500  notes/a.md:7  Guide: text"),
        (Place(None, None, ("a\nb\x1b[2J",)), "0.500  notes/a.md  Guide > a b\\x1b[2J: text"),
        (None, "0.500  notes/a.md  Guide: text"),
    ],
)
def test_a_hit_with_a_place_names_its_line_or_page_and_its_headings(
    place: Place | None, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    print_hits("q", [Hit("notes/a.md", 0.5, "Guide", "text", {"path": "notes/a.md"}, place=place)])
    assert capsys.readouterr().out.splitlines()[1].rstrip() == line


def test_headings_without_a_title_stand_before_the_matching_window(capsys: pytest.CaptureFixture[str]) -> None:
    window, place = Window(6, 11, "inner", {"text": (6, 11)}), Place((2, 2), None, ("A", "B"))
    print_hits("q", [Hit("a.md", 0.5, None, "outer inner", {}, window, place=place)])
    assert capsys.readouterr().out.splitlines()[1].rstrip() == "0.500  a.md:2  A > B: inner"


def test_a_note_is_not_repeated_by_the_next_run(capsys: pytest.CaptureFixture[str]) -> None:
    printed = list[str]()
    for notes in (["one", "two"], ["two"], ["one", "two"]):
        print_report(SimpleNamespace(notes=notes), as_json=False, printed=printed)
    assert capsys.readouterr().err.splitlines() == ["note: one", "note: two", "note: one"]
