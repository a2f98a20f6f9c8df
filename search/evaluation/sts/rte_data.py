"""Pairs for recognising textual entailment: does the second sentence follow from the first?"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from indexer.corpus.text_formats import parse_json
from indexer.errors import EvaluationError
from search.evaluation.sts.pair_files import count_columns, read_lines

_LABELS = {"entailment": True, "not_entailment": False}
_FIRST, _SECOND = ("sentence1", "premise"), ("sentence2", "hypothesis")
_FORMS = "a .tsv of GLUE (index, sentence1, sentence2, label) or a .jsonl of SuperGLUE (premise, hypothesis, label)"
_Pair = tuple[str, object, object, object]  # where it stands, first, second, label


@dataclass(frozen=True)
class EntailmentPairs:
    """Labelled pairs; `entailed` (n,) is true where the second sentence follows from the first."""

    path: Path
    sha256: str
    first: tuple[str, ...]
    second: tuple[str, ...]
    entailed: npt.NDArray[np.bool_]

    @property
    def majority(self) -> float:
        """Accuracy, in per cent, of always answering with the commoner label."""
        share = float(self.entailed.mean())
        return 100 * max(share, 1 - share)


def read_rte(path: str | Path) -> EntailmentPairs:
    """GLUE's RTE as .tsv with its header, or SuperGLUE's as .jsonl, also with .gz. Quotes in a .tsv are literal.

    Raises EvaluationError with file and line for what cannot be read, a file without labels (as GLUE's test set
    is), a label that is neither entailment nor not_entailment, and a file with only one of the two.
    """
    path = Path(path)
    name = path.name.lower().removesuffix(".gz")
    if not name.endswith((".tsv", ".jsonl", ".ndjson")):
        raise EvaluationError(f"{path}: unknown type of file; expected {_FORMS}.")
    lines, sha256 = read_lines(path)
    while lines and not lines[-1].strip():
        lines.pop()
    rows = _tsv(path, lines) if name.endswith(".tsv") else _jsonl(path, lines)
    first, second, entailed = [], [], []
    for where, a, b, label in rows:
        first.append(_sentence(where, a, "first"))
        second.append(_sentence(where, b, "second"))
        entailed.append(_label(where, label))
    if not entailed:
        raise EvaluationError(f"{path}: no pair in this file; expected {_FORMS}.")
    if len(set(entailed)) == 1:
        label = next(label for label, value in _LABELS.items() if value == entailed[0])
        count = "its one pair is" if len(entailed) == 1 else f"all {len(entailed):,} pairs are"
        raise EvaluationError(f'{path}: {count} labelled "{label}"; accuracy needs pairs with either label.')
    return EntailmentPairs(path, sha256, tuple(first), tuple(second), np.array(entailed))


def _tsv(path: Path, lines: Sequence[str]) -> Iterator[_Pair]:
    names = [cell.strip().lower() for cell in lines[0].split("\t")] if lines else []
    columns = [_column(path, names, wanted) for wanted in (_FIRST, _SECOND, ("label",))] if lines else []
    for number, line in enumerate(lines[1:], 2):
        cells = line.split("\t")
        if len(cells) != len(names):
            raise EvaluationError(f"{path}:{number}: {count_columns(len(cells))}; expected {len(names)}, as the header "
                                  "has, parted by tabs.")  # fmt: skip
        first, second, label = (cells[column] for column in columns)
        yield f"{path}:{number}", first, second, label


def _column(path: Path, names: Sequence[str], wanted: Sequence[str]) -> int:
    found = [number for number, name in enumerate(names) if name in wanted]
    if not found and wanted == ("label",):
        raise _unlabelled(f"{path}:1")
    if len(found) != 1:
        what = "no column" if not found else "more than one column"
        raise EvaluationError(f"{path}:1: the header has {what} {' or '.join(wanted)}; expected {_FORMS}.")
    return found[0]


def _jsonl(path: Path, lines: Sequence[str]) -> Iterator[_Pair]:
    for number, line in enumerate(lines, 1):
        where = f"{path}:{number}"
        try:
            row = parse_json(line)
        except (ValueError, RecursionError) as error:
            raise EvaluationError(f"{where}: not a JSON object on one line: {error}.") from error
        if not isinstance(row, dict):
            raise EvaluationError(f"{where}: not a JSON object; expected one a line, with premise, hypothesis, label.")
        if "label" not in row:
            raise _unlabelled(where)
        yield where, _value(where, row, _FIRST), _value(where, row, _SECOND), row["label"]


def _value(where: str, row: dict[str, Any], wanted: Sequence[str]) -> object:
    for name in wanted:
        if name in row:
            return row[name]
    raise EvaluationError(f"{where}: no {' or '.join(wanted)}; expected premise, hypothesis and label.")


def _unlabelled(where: str) -> EvaluationError:
    return EvaluationError(
        f"{where}: no label; accuracy needs labelled pairs. The published test sets have none: take the development "
        "set (GLUE's dev.tsv, SuperGLUE's val.jsonl)."
    )


def _sentence(where: str, value: object, which: str) -> str:
    if not isinstance(value, str) or not value.strip():
        found = "blank" if isinstance(value, str) else "not a text"
        raise EvaluationError(f"{where}: the {which} sentence is {found}; expected a sentence.")
    return value


def _label(where: str, value: object) -> bool:
    label = value.strip().lower() if isinstance(value, str) else ""
    if label not in _LABELS:
        raise EvaluationError(f'{where}: the label is {value!r}; expected "entailment" or "not_entailment".')
    return _LABELS[label]
