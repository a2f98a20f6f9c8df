"""Tables of a comparison of encoders, for the terminal and the report."""

from collections.abc import Iterator, Mapping
from typing import Any

from search.evaluation.result import Result
from search.evaluation.tables import Table, difference_cells, is_number, mapping_of, plain_text, retrieval_tables
from search.formatting import counted, number, size
from search.migration.price import MigrationPrice


def migration_tables(result: Result) -> Iterator[Table]:
    """Yield the price, and the scores with the choice below them."""
    yield Table("Price of encoding every document", ["", ""], price_cells(mapping_of(result.added.get("price"))))
    choice = mapping_of(result.added.get("choice"))
    gain, decided = difference_cells(choice.get("gain"))
    remarks = []
    if choice.get("best") and decided:
        remarks = [f"best: {plain_text(choice['best'])}, {gain} MRR x 100; {plain_text(choice.get('reason'))}"]
    for table in retrieval_tables(result):
        caption = "x 100; each question's own document among those of the sample"
        yield Table(caption, table.columns, table.rows, (*table.remarks, *remarks))


def price_in_words(price: MigrationPrice) -> str:
    """Return a price as a line."""
    (_, documents), (_, tokens), *others = price_cells(price.to_dict())
    rest = "; ".join(f"{name}: {value}" for name, value in others)
    return f"encoding every document: {documents} documents with {tokens} tokens" + (f"; {rest}" if rest else "")


def price_cells(price: Mapping[str, Any]) -> list[list[str]]:
    """Return the lines of a price."""
    seconds, written, cores = price.get("seconds"), price.get("bytes"), price.get("cores")
    cells = [["documents", number(price.get("documents"))], ["tokens", number(price.get("tokens"))]]
    if is_number(seconds) and isinstance(cores, int):
        cells.append([f"seconds on {counted(cores, 'core')} of this machine", f"{seconds:,.0f}"])
    if isinstance(written, int):
        cells.append(["new files", size(written)])
    if price.get("unknown"):
        cells.append(["time", f"unknown: {plain_text(price['unknown'])}"])
    return cells
