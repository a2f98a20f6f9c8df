"""Tables of a comparison of encoders, for the terminal and the report."""

from collections.abc import Iterator, Mapping
from typing import Any

from search.evaluation.result import Result
from search.evaluation.tables import Table, difference_cells, is_number, mapping_of, plain_text, retrieval_tables
from search.formatting import counted, number, size


def migration_tables(result: Result) -> Iterator[Table]:
    """Yield the scores, with the price, if something would be encoded, and the choice below them."""
    price = mapping_of(result.added.get("price"))
    choice = mapping_of(result.added.get("choice"))
    gain, decided = difference_cells(choice.get("gain"))
    remarks = [price_in_words(price)] if price.get("documents") else []
    if choice.get("best") and decided:
        remarks += [f"best: {plain_text(choice['best'])}, {gain} MRR x 100; {plain_text(choice.get('reason'))}"]
    for table in retrieval_tables(result):
        drawn = "x 100; each question's own document among those of the sample"
        caption = drawn if price.get("documents") else table.caption
        yield Table(caption, table.columns, table.rows, (*table.remarks, *remarks))


def price_in_words(price: Mapping[str, Any]) -> str:
    """Return the line of a price."""
    seconds, written, cores = price.get("seconds"), price.get("bytes"), price.get("cores")
    documents, tokens = number(price.get("documents")), number(price.get("tokens"))
    parts = [f"encoding every document: {documents} documents with {tokens} tokens"]
    if is_number(seconds) and isinstance(cores, int):
        parts.append(f"about {seconds:,.0f} s on {counted(cores, 'core')} of this machine")
    elif price.get("unknown"):
        parts.append("in an unknown time")
    if isinstance(written, int):
        parts.append(f"{size(written)} of new files")
    return ", ".join(parts)
