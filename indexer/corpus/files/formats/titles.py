"""The title in the properties of a file, which is often left over from a program or a template."""

import re

_JUNK = re.compile(
    r"untitled.*|microsoft (?:word|powerpoint|excel)\b.*|powerpoint presentation|.*\.(?:docx?|pptx?|xlsx?|pdf|tex|dvi|"
    r"odt|rtf|indd|qxd|html?|txt|p65|fm)|document ?\d*|presentation ?\d*|title|slide 1|word document|"
    r"\(anonymous\)|[\W\d_]*",
    re.IGNORECASE,
)


def usable_title(title: str | None) -> str | None:
    """Return the title in one line; None for the name of a file or of a program, and for a placeholder."""
    line = " ".join((title or "").split())
    return None if _JUNK.fullmatch(line) else line
