"""Tables for people: every figure is whole, however narrow the terminal."""

import pytest

from search.cli.output import print_table


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
