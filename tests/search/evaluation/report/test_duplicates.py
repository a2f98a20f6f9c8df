"""The report's section on duplicates: figures of the file, texts of the index, everything escaped."""

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from indexer import BuildConfig, Document, build_index
from indexer.errors import EvaluationError
from indexer.recipe.config import EncoderConfig
from indexer.recipe.index_config import StoreConfig
from search import SearchEngine
from search.dedup.deduplication import deduplicate_index
from search.dedup.duplicates_file import SCHEMA, Duplicates, read_duplicates, write_duplicates
from search.dedup.provenance import origin_of
from search.evaluation.report import svg
from search.evaluation.report.duplicates import (
    LARGEST,
    MEMBERS,
    SPREAD,
    DuplicateClusters,
    read_listing,
    sample_clusters,
)
from search.evaluation.report.page import ReportOptions, render, write_report
from search.evaluation.report.statistics import IndexStatistics, measure_statistics
from search.index import Index
from tests.search.cli.test_cli import isotrope
from tests.search.evaluation.report.pages import HOSTILE, PROVENANCE, Page, undrawn

LONG = "word " * 30 + "longer than what is shown " + "word " * 30
DOCUMENTS = [
    *[Document(f"d{number}", f"text number {number}", title=f"Title {number}") for number in range(40)],
    Document("long", LONG),
    Document("unbroken", "x" * 400),
    Document("<b>bold</b>", "<script>alert(1)</script>", title="<i>"),
]
Row = tuple[str, str, float, str, int]


@pytest.fixture(scope="module")
def index(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Index:
    folder = tmp_path_factory.mktemp("report") / "index"
    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=32)
    build_index(DOCUMENTS, folder, BuildConfig(encoder=encoder, store=StoreConfig(part_documents=16)))
    return Index.open(folder)


def listing(opened: Index, folder: Path, rows: Sequence[Row], **changed: Any) -> DuplicateClusters:
    """The clusters of a file with these rows; `changed` are facts that differ from the default."""
    facts = {
        "format": 1, "threshold": 0.9, "lowest": 0.9, "prefer": "first", "method": {"name": "exact"},
        "text_duplicates": "keep", "only_against": False, **origin_of(opened), "against": None,
        "documents": len(DOCUMENTS), "kept": len(DOCUMENTS) - len(rows), "dropped": len(rows), "reasons": {},
        "clusters": len({row[-1] for row in rows}), "cluster_sizes": {},
    }  # fmt: skip
    columns = list(zip(*rows, strict=True)) or [()] * len(SCHEMA)
    table = pa.table([pa.array(column, field.type) for column, field in zip(columns, SCHEMA, strict=True)], SCHEMA)
    write_duplicates(folder / "duplicates.parquet", Duplicates(facts | changed, table), force=True)
    return read_listing(folder / "duplicates.parquet")


@functools.cache
def figures_at(path: Path) -> IndexStatistics:
    return measure_statistics(Index.open(path))


def page_of(index: Index, found: DuplicateClusters) -> Page:
    return Page(render(index, figures_at(index.path), [], PROVENANCE, listing=found))


def section_of(index: Index, found: DuplicateClusters) -> str:
    """The text of the section on duplicates without its plots."""
    with undrawn():
        return page_of(index, found).text.partition(" Duplicates ")[2].partition(" Provenance ")[0]


def cluster(number: int, kept: str, *dropped: str, score: float = 0.95, reason: str = "similar") -> list[Row]:
    return [(name, kept, score, reason, number) for name in dropped]


ROWS = [
    *cluster(0, "d0", "d1", "d2", "d3", score=0.925),
    *cluster(1, "d4", "d5", reason="text", score=1.0),
    *cluster(2, "d6", "d7"),
]


def test_figures_are_those_of_the_file(index: Index, tmp_path: Path) -> None:
    text = section_of(index, listing(index, tmp_path, ROWS))
    for shown in (
        "43 documents 38 kept, 88.4 % 5 dropped, 11.6 % 3 clusters 4 largest cluster 0.9 threshold",
        "Every dropped document scores at least 0.9 with a kept document. Its kept",
        "file duplicates.parquet",
        "pairs all found, exactly",
        "kept document the first in the corpus",
        "equal texts dropped at the threshold or above",
        "compared with each other",
        "reason dropped share similar 4 80.0 % equal text 1 20.0 %",
        "documents clusters dropped 2 2 2 4 1 3",
        "All clusters, the largest first.",
    ):
        assert shown in text
    assert "remark" not in text


def test_clusters_are_shown_with_their_texts_the_kept_document_first(index: Index, tmp_path: Path) -> None:
    text = section_of(index, listing(index, tmp_path, ROWS))
    assert "4 documents kept d0 Title 0 text number 0 0.9250 similar d1 Title 1 text number 1 0.9250 similar d2" in text
    assert "2 documents kept d4 Title 4 text number 4 1.0000 equal text d5 Title 5 text number 5 2 documents" in text


def test_of_a_long_cluster_those_with_the_lowest_scores_are_shown(index: Index, tmp_path: Path) -> None:
    rows = [(f"d{number}", "d0", 1 - number / 1000, "similar", 0) for number in range(1, 40)]
    text = section_of(index, listing(index, tmp_path, rows))
    shown = [f"{1 - number / 1000:.4f} similar d{number} " for number in range(39, 39 - MEMBERS, -1)]
    assert [text.index(words) for words in shown] == sorted(text.index(words) for words in shown)
    assert text.count(" similar d") == MEMBERS
    assert f"and {39 - MEMBERS} more" in text


def test_long_texts_are_cut_between_words_where_there_are_any(index: Index, tmp_path: Path) -> None:
    text = section_of(index, listing(index, tmp_path, cluster(0, "long", "unbroken")))
    assert f"long {LONG[:160].rpartition(' ')[0]} … " in text
    assert "x" * 160 + " …" in text
    assert "x" * 161 not in text


@given(st.lists(st.integers(2, 50), min_size=1, max_size=60))
def test_samples_are_the_largest_clusters_and_some_of_every_size(sizes: list[int]) -> None:
    shown = sample_clusters(np.array(sizes)).tolist()
    assert len(set(shown)) == len(shown) == min(len(sizes), LARGEST + SPREAD)
    by_size = [sizes[cluster] for cluster in shown]
    assert by_size == sorted(by_size, reverse=True)
    assert by_size[:LARGEST] == sorted(sizes, reverse=True)[:LARGEST]
    assert by_size[-1] == min(sizes) or len(sizes) <= LARGEST


def test_many_clusters_are_sampled_and_the_page_says_how(index: Index, tmp_path: Path) -> None:
    rows = [row for number in range(12) for row in cluster(number, f"d{3 * number}", f"d{3 * number + 1}")]
    found = listing(index, tmp_path, [*rows, *cluster(12, "d36", "d37", "d38")])
    text = section_of(index, found)
    assert "The 5 largest clusters, then 5 evenly spaced among the others by size." in text
    assert text.count(" documents kept ") == 10
    assert text.index("kept d36") < text.index("kept d0")
    assert "1 cluster" not in text


def test_kept_documents_of_another_index_are_named_but_not_looked_up(index: Index, tmp_path: Path) -> None:
    """Ids from the other index can also occur in this index."""
    rows = [*cluster(0, "d0", "d1", reason="against"), *cluster(1, "d0", "d2", reason="against-text", score=0.99)]
    other = {"index": "/data/<test set>", "generation": 1, "manifest": "0", "documents": 1234}
    text = section_of(index, listing(index, tmp_path, rows, against=other))
    assert "kept, in the other index d0 0.9500 similar d1 Title 1 text number 1" in text
    assert "kept, in the other index d0 0.9900 equal text d2 Title 2" in text
    assert "similar, in the other index 1 50.0 % equal text, in the other index 1 50.0 %" in text
    assert "compared with each other and 1,234 documents of another index (/data/<test set>)" in text
    only = section_of(index, listing(index, tmp_path, rows, against=other, only_against=True))
    assert "compared with 1,234 documents of another index" in only


def test_a_file_of_another_index_or_encoder_is_marked(index: Index, tmp_path: Path) -> None:
    own = section_of(index, listing(index, tmp_path, ROWS))
    rows = [*ROWS, *cluster(3, "gone", "d8")]
    other = section_of(index, listing(index, tmp_path, rows, index={"generation": 2, "manifest": "0"}))
    encoder = section_of(index, listing(index, tmp_path, ROWS, fingerprint="f" * 64))
    assert "another" not in own
    assert "was made from another index, or from another generation of this index" in other
    assert "kept gone 0.9500 similar d8 Title 8" in other
    assert "was made with another encoder than the index's: ffffffffffff… instead of" in encoder


@pytest.mark.parametrize(
    ("changed", "shown"),
    [
        ({"threshold": 1.0}, "threshold identical up to rounding"),
        ({"prefer": "column:year:desc"}, "kept document column:year:desc"),
        ({"text_duplicates": "drop"}, "with a kept document, or has the same text."),
        ({"text_duplicates": "drop"}, "equal texts dropped at any score"),
        ({"method": {"name": "ann", "cells": 8, "sampled_pairs": 1000, "found_pairs": 999}},
         "approximate search, cells 8"),
        ({"method": {"name": "ann", "sampled_pairs": 1000, "found_pairs": 999}},
         "the search found 999 of 1,000 sampled pairs (99.9 %)."),
        ({"method": {"name": "ann", "sampled_pairs": 0, "found_pairs": 0}},
         "some duplicates may be among the kept documents."),
    ],
)  # fmt: skip
def test_settings_that_change_the_meaning_are_said(
    index: Index, tmp_path: Path, changed: dict[str, Any], shown: str
) -> None:
    assert shown in section_of(index, listing(index, tmp_path, ROWS, **changed))


def test_no_duplicates_are_a_page_too(index: Index, tmp_path: Path) -> None:
    page = page_of(index, listing(index, tmp_path, []))
    assert "0 clusters none largest cluster" in page.text
    assert "No document was dropped." in page.text
    assert sum(tag == "svg" for tag, _ in page.tags) == 4


def test_the_section_stands_alone_and_is_well_formed(index: Index, tmp_path: Path) -> None:
    page = page_of(index, listing(index, tmp_path, ROWS))
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe"}
    pictures = [attributes for tag, attributes in page.tags if tag == "svg"]
    assert len(pictures) == 6
    assert all(attributes["role"] == "img" and attributes["aria-label"] for attributes in pictures)


@pytest.mark.check
def test_the_same_file_gives_the_same_bytes_and_takes_the_colour_of_the_page(index: Index, tmp_path: Path) -> None:
    figures = figures_at(index.path)
    found = [listing(index, tmp_path, rows) for rows in (ROWS, ROWS[::-1])]
    pages = [render(index, figures, [], PROVENANCE, listing=each) for each in [found[0], *found]]
    assert pages[0] == pages[1]
    assert pages[0].count("<svg") == pages[2].count("<svg"), "rows in another order are sorted"
    assert "#010203" not in pages[0]


def test_nothing_in_a_file_becomes_markup(index: Index, tmp_path: Path) -> None:
    hostile = HOSTILE.replace("\ud800", "")  # Parquet cannot store surrogates
    rows = [*cluster(0, "<b>bold</b>", hostile, reason=hostile), *cluster(1, hostile, "<b>bold</b>")]
    found = listing(
        index, tmp_path, rows,
        prefer=hostile, method={"name": "ann", hostile: hostile}, fingerprint=hostile,
        against={"index": hostile, "documents": hostile}, index={"manifest": hostile},
    )  # fmt: skip
    with undrawn():
        page = page_of(index, replace(found, name=hostile))
    assert not {tag for tag, _ in page.tags} & {"script", "img"}
    assert "<script>alert(1)</script>" in page.text
    assert "kept <b>bold</b> <i> <script>alert(1)</script>" in page.text
    assert r"\u202e\x00" in page.text


@pytest.mark.parametrize(
    "sizes", [[2], [2] * 30, [2, 3, 3], [2] * 10_000 + [1_000_000], list(range(2, 3000)), [60], [61], [10**9, 2]]
)
def test_any_sizes_have_a_picture(sizes: list[int]) -> None:
    picture = svg.cluster_sizes(np.array(sizes))
    labels = re.findall(r"<text[^>]*>([^<]*)</text>", picture)
    assert "documents in a cluster" in labels
    numbers = [label for label in labels if any(map(str.isdigit, label))]
    assert all(label.replace(",", "").rstrip("kM").isdigit() for label in numbers), (
        "whole numbers of documents and clusters"
    )
    assert len(numbers) > 4


@pytest.mark.parametrize("scores", [[1.0], [0.9] * 3, [0.9, np.nan], [-0.5, 1.0], [1.0] * 1000 + [0.9]])
@pytest.mark.parametrize("by_text", [True, False])
def test_any_scores_have_a_picture(scores: list[float], by_text: bool) -> None:
    picture = svg.scores(np.array(scores, np.float32), np.full(len(scores), by_text), 0.9)
    assert picture is not None
    assert ("equal text" in picture) is by_text
    assert svg.scores(np.array([np.nan], np.float32), np.array([by_text]), 0.9) is None


def test_a_file_that_is_none_shows_before_anything_is_measured(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("search.evaluation.report.page.measure_statistics")
    (tmp_path / "x.parquet").write_bytes(b"no Parquet")
    with pytest.raises(EvaluationError, match="not a Parquet file"):
        write_report(SearchEngine(index.path), tmp_path / "r.html", ReportOptions(duplicates=tmp_path / "x.parquet"))


def test_the_command_shows_what_a_deduplication_found(index: Index, tmp_path: Path) -> None:
    file, target = tmp_path / "duplicates.parquet", tmp_path / "report.html"
    result = deduplicate_index(index.path, 0.6)
    result.write(file)
    done = isotrope("report", index.path, "-o", target, "--duplicates", file)
    assert done.returncode == 0, done.stderr
    text = Page(target.read_text(encoding="utf-8")).text
    dropped = len(read_duplicates(file).table)
    assert dropped > 0
    assert f"{len(DOCUMENTS)} documents {len(DOCUMENTS) - dropped} kept" in text
    assert f"{result.facts['clusters']} clusters" in text
    assert "another index" not in text
    missing = isotrope("report", index.path, "-o", target, "--duplicates", tmp_path / "none")
    assert (missing.returncode, missing.stderr.startswith("error: ")) == (1, True), missing.stderr
