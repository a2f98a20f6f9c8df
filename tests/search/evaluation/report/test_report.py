"""`isotrope report`: the page is valid, escaped and self-contained, and shows the results."""

import json
import re
import sys
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from indexer import BuildConfig, Document, build_index, read_corpus
from indexer.errors import ConfigError, MachineError
from indexer.recipe.config import EncoderConfig
from indexer.recipe.index_config import StoreConfig
from indexer.store.quality import Quality
from search import SearchEngine
from search.evaluation.report.page import render, write_report
from search.evaluation.report.statistics import measure_statistics
from search.evaluation.result import Result, how_built, read_result
from search.index import Index
from tests.directories import snapshot
from tests.search.cli.test_cli import isotrope
from tests.search.evaluation.report.pages import HOSTILE, PROVENANCE, Built, Page, figures_of, page_of, undrawn


@pytest.fixture(scope="module")
def html(built: Built) -> str:
    """The page of the nine documents with its plots."""
    index = Index.open(built())
    return render(index, measure_statistics(index), [], PROVENANCE)


def test_a_page_stands_alone_and_is_well_formed(html: str) -> None:
    page = Page(html)
    assert not {tag for tag, _ in page.tags} & {"script", "link", "img", "iframe", "object", "image", "base"}
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in page.tags:
        for name, value in attributes.items():
            assert not name.startswith("on")
            if name in ("href", "xlink:href", "src"):
                assert value is not None
                assert value.startswith("#")
                assert value[1:] in ids
            elif not name.startswith("xmlns"):
                assert "://" not in (value or "")
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in page.tags
    assert sum(tag == "svg" for tag, _ in page.tags) == 4
    assert sum(tag == "h1" for tag, _ in page.tags) == 1


def test_the_style_asks_for_nothing_from_outside(html: str) -> None:
    assert "@import" not in html
    assert html.count("url(") == html.count("url(#")
    assert "#010203" not in html  # plots have the page's text colour, for dark mode
    assert "currentColor" in html


def test_the_page_shows_the_index_its_gates_and_its_origin(built: Built) -> None:
    index = built()
    text, manifest = page_of(index).text, json.loads((index / "manifests/00000001.json").read_text())
    for shown in (
        manifest["fingerprint"],
        f"manifest {manifest['checksum']}",
        f"encoder fingerprint {manifest['fingerprint']}",
        f"transform sha256 {manifest['files'][manifest['transform']['file']]['sha256']}",
        manifest["created"],
        "9 in 3 parts; 9 vectors",
        "year int64",
        "whitening, 32 → 8 dimensions, strength 0.25, centre role",
        "of 9 texts (corpus)",
        "Flat, 9 rows",
        "fitted on 9 texts for 32 dimensions",
        "self_hit passed 1 at least 1",
        "not_finite passed 0 at most 0",
        "its recall is 1 by construction",
        f"numpy {manifest['versions']['numpy']}",
        "Measured on all 9 rows.",
        "Cosines of 36 pairs among 9 documents",
    ):
        assert shown in text


def test_recall_at_build_is_shown_for_an_approximate_index(built: Built) -> None:
    index = built("index.type=HNSW4")
    text, (segment,) = page_of(index).text, Index.open(index).segments
    assert "recall_at_10 passed 1 at least 0.95" in text
    tuned = Quality.of(Index.open(index).manifest.quality).index
    assert tuned is not None
    assert tuned.query_origin.startswith("documents of the corpus, moved to a score of")
    assert f"At build, recall@10 against exact search was 1, with 2 queries ({tuned.query_origin})." in text
    assert f"HNSW4 efSearch {segment.entry.search_parameters['efSearch']}" in text


def test_recall_at_build_by_queries_of_a_file_is_not_said_to_be_by_documents(built: Built, tmp_path: Path) -> None:
    queries = tmp_path / "queries.txt"
    queries.write_text("the whale\nwhere is the sea\n")
    text = page_of(built("index.type=HNSW4", f"index.queries={queries}")).text
    assert "with 2 queries (index.queries)." in text
    assert "documents as queries" not in text


def test_no_transform_is_said_and_shown_once(built: Built) -> None:
    index = built("whitening.strength=none")
    figures, text = figures_of(index), page_of(index).text
    assert figures.unchanged
    assert "before and after are the same" in text
    assert "before = after mean cosine" in text
    assert "undefined" not in text


@pytest.mark.parametrize("recipe", [(), ("whitening.strength=none",)])
@pytest.mark.parametrize(
    "documents",
    [
        [Document("a", "One text."), Document("b", "Another text.")],
        [Document("a", "One text.")],
        [Document(name, "The same.") for name in "abc"],
    ],
    ids=["two", "one", "alike"],
)
def test_the_smallest_indexes_have_a_page(built: Built, documents: list[Document], recipe: tuple[str, ...]) -> None:
    text = page_of(built(*recipe, documents=documents), pictures=True).text
    assert not re.search(r"\bnan\b", text.replace("NaN or infinity", ""), re.IGNORECASE)
    assert f"{len(documents)} document" in text


def test_what_was_cut_is_counted_in_documents_and_tokens(built: Built) -> None:
    documents = [Document(f"d{n}", f"text {n}") for n in range(9)]
    long = [Document("long", "whale bridge bread star river " * 20), Document("longer", "clock bee glass map " * 50)]
    index = built(documents=[*documents, *long])
    figures = figures_of(index)
    lengths = figures.lengths.tolist()
    lost = sum(length - 32 for length in lengths if length > 32)
    assert figures.truncated == 2 == json.loads((index / "manifests/00000001.json").read_text())["quality"]["truncated"]
    text = page_of(index, pictures=True).text
    assert (
        f"2 of 11 documents (18.2 %) are longer than 32 tokens and were truncated: {lost:,} of {sum(lengths):,}" in text
    )
    assert "cut at 32" in text
    assert "nothing was truncated" in page_of(built(documents=documents)).text


def test_large_indexes_are_sampled_and_the_page_says_so(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("search.evaluation.report.statistics.SAMPLE", 5)
    monkeypatch.setattr("search.evaluation.report.statistics._PAIRED_ROWS", 4)
    monkeypatch.setattr("search.evaluation.report.statistics.PAIRS", 3)
    figures = figures_of(built())
    assert (figures.sampled, len(figures.norms), len(figures.before.cosines), len(figures.lengths)) == (5, 5, 3, 9)
    text = page_of(built()).text
    assert "Measured on the 5 of 9 rows with the smallest hashes of their ids." in text
    assert "Cosines of 3 pairs among 4 documents" in text


def test_nothing_from_an_index_or_a_file_becomes_markup(built: Built, tmp_path: Path) -> None:
    documents = [Document(f"d{n}", f"text {n}", metadata={"<script>x": n}) for n in range(3)]
    index = built(documents=documents)
    folder = tmp_path / "<img src=x onerror=alert(3)>"
    index.rename(folder)
    row = {"setting": HOSTILE, "measure": {HOSTILE: {"value": 0.5, "low": 0.4, "high": 0.6}}, "encoder": HOSTILE}
    made = {"command": HOSTILE, "created": HOSTILE}
    file = Result("retrieval", made, [row], [row | {"against": HOSTILE}], [HOSTILE], source=HOSTILE)
    plain = Result("other", {}, [{HOSTILE: HOSTILE}], source=HOSTILE)
    page = page_of(folder, file, plain)
    folder.rename(index)
    assert not {tag for tag, _ in page.tags} & {"script", "img"}
    assert "<script>alert(1)</script>" in page.text
    assert r"\u202e\x00\ud800" in page.text
    assert page.text.encode()


INTERVAL = {"value": 0.6543, "low": 0.61, "high": 0.7}
STS = [
    {
        "setting": "mean -1 raw",
        "protocol": "mean",
        "fit": "task",
        "task": task,
        "spearman": value,
        "low": 0.01,
        "high": 0.095,
    }
    for task, value in [("STSB", 0.8203), ("average", 0.77756)]
]


@pytest.mark.parametrize(
    ("kind", "results", "comparisons", "shown"),
    [
        (
            "sts",
            STS,
            [{"setting": "b", "against": "a", "protocol": "mean", "difference": -0.00191, "low": -0.004,
              "high": -0.0003, "decided": True}],
            ["Similarity (STS)", "protocol mean, fit task", "STSB average [95 %] mean -1 raw 82.03 77.76 [1.00, 9.50]",
             "b a -0.19 [-0.40, -0.03] yes"],
        ),
        (
            "retrieval",
            [{"setting": "raw", "measure": {"nDCG@10": INTERVAL}},
             {"setting": "BM25", "measure": {"MAP": {"value": 0.5}}}],
            [{"setting": "b", "against": "a", "measure": {"nDCG@10": INTERVAL | {"decided": False}}}],
            ["Retrieval", "nDCG@10 [95 %] MAP raw 65.43 [61.00, 70.00] BM25 50.00",
             "b a +65.43 [+61.00, +70.00] no"],
        ),
        (
            "recall",
            [{"k": 10, "recall": 0.875, "low": 0.85, "high": 0.9, "queries": 1000, "origin": "titles",
              "index_type": "IVF64,Flat", "search_parameters": [{"nprobe": 8}], "bytes_per_vector": 1562.5,
              "latency_ms": {"search": {"p50": 0.25, "p90": 0.5, "p99": 8.0}}}],
            [],
            ["Recall against exact search", "recall [95 %] 0.8750 [0.8500, 0.9000]",
             "1,000 from documents: titles", "IVF64,Flat, nprobe 8", "size 1,562.5 bytes per vector", "0.25 / 0.5 / 8"],
        ),
        (
            "rte",
            [{"setting": "mean -1 raw", "fit": "task", "majority": 0.527, "pairs": 277,
              "best": {"accuracy": 0.60289, "low": 0.545, "high": 0.66, "threshold": 0.8235},
              "train": {"accuracy": 0.5704, "low": 0.516, "high": 0.628, "threshold": 0.75}}],
            [{"setting": "b", "against": "a", "difference": 0.015, "low": -0.005, "high": 0.03, "decided": False}],
            ["Entailment (RTE)",
             "277 pairs, fit task", "mean -1 raw 57.04 [51.60, 62.80] at 0.750 60.29 [54.50, 66.00] at 0.824",
             "always the more common label: 52.70", "b a +1.50 [-0.50, +3.00] no"],
        ),
        (
            "sts",
            [row | {"model": model, "spearman": value} for model, value in [("one", 0.11), ("two", 0.22)]
             for row in STS],
            [{"model": "two", "setting": "b", "against": "a", "protocol": "mean", "difference": 0.01}],
            ["one: mean -1 raw 11.00 11.00 [1.00, 9.50]", "two: mean -1 raw 22.00 22.00 [1.00, 9.50]",
             "two: b a +1.00"],
        ),
        (
            "sts",
            [STS[0] | {"encoder": encoder * 64, "spearman": value} for encoder, value in [("a", 0.11), ("b", 0.22)]],
            [],
            [f"mean -1 raw, encoder {'a' * 12}… 11.00", f"mean -1 raw, encoder {'b' * 12}… 22.00"],
        ),
        ("sts", [STS[0], STS[0] | {"spearman": 0.33}], [], ["mean -1 raw 82.03", "mean -1 raw (2) 33.00"]),
        ("other", [{"accuracy": 0.5412, "task": "other", "nested": {}}], [], ["Results", "accuracy task 0.5412 other"]),
    ],
    ids=["sts", "retrieval", "recall", "rte", "models", "encoders", "twice", "other"],
)  # fmt: skip
def test_results_are_tables_with_intervals(
    built: Built, tmp_path: Path, kind: str, results: Any, comparisons: Any, shown: list[str]
) -> None:
    path = tmp_path / "r.json"
    made = {"command": "isotrope evaluate it", "created": "today"}
    stored = {"kind": kind, "provenance": made, "results": results, "comparisons": comparisons, "notes": ["Mind."]}
    path.write_text(json.dumps(stored))
    text = page_of(built(), read_result(path)).text
    for words in [*shown, "r.json; command: isotrope evaluate it; made: today", "Mind."]:
        assert words in text


def test_results_about_another_encoder_or_index_are_marked(built: Built) -> None:
    index = built()
    opened = Index.open(index)
    own, identity = opened.manifest.fingerprint, opened.manifest.encoder["identity"]

    cases: list[tuple[dict[str, Any], list[str | None]]] = [
        ({}, [own, None]),
        ({"encoder": {"identity": identity}}, [None]),
        ({}, ["f" * 64]),
        ({}, [own, "f" * 64]),
        ({"encoder": {"identity": identity | {"pooling": "cls"}}}, [None]),
        ({"index": {"manifest": "0"}}, [own]),
        (how_built(opened.config, opened), [own]),
    ]
    files = [
        Result("other", provenance, [{"accuracy": 1, "encoder": encoder} for encoder in encoders], source="r.json")
        for provenance, encoders in cases
    ]
    _, *said = page_of(index, *files).text.split("r.json")
    other = f"another encoder than the index's: {'f' * 12}… instead of {own[:12]}…"
    assert "another" not in said[0] + said[1]
    assert f"This result was measured with {other}" in said[2]
    assert f"Part of this result was measured with {other}" in said[3]
    assert "This result was measured with another encoder" in said[4]
    assert "another generation of this index" in said[5]
    assert "another generation" not in said[6]


def test_a_missing_plotting_package_is_named_before_anything_is_measured(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MachineError, match=r"pip install '.*isotrope\[plots\]"):
        write_report(SearchEngine(built()), tmp_path / "report.html")


def test_the_same_index_gives_the_same_bytes_whatever_the_users_style(built: Built, html: str) -> None:
    import matplotlib

    index = Index.open(built())
    with matplotlib.rc_context({"axes.linewidth": 5, "font.size": 30, "svg.fonttype": "path"}):
        assert render(index, measure_statistics(index), [], PROVENANCE) == html
        assert matplotlib.rcParams["font.size"] == 30


def test_the_command_writes_the_page_and_leaves_the_index_alone(built: Built, tmp_path: Path) -> None:
    index, target = built("index.type=HNSW4"), tmp_path / "new" / "report.html"
    before = snapshot(index)
    result = tmp_path / "recall.json"
    assert isotrope("evaluate", "recall", index, "-k", "3", "-o", result).returncode == 0
    done = isotrope("report", index, "-o", target, "--results", result)
    assert (done.returncode, done.stdout) == (0, f"{target}: {target.stat().st_size / 1000:.1f} kB\n"), done.stderr
    assert snapshot(index) == before
    page = Page(target.read_text(encoding="utf-8"))
    assert "recall@3" in page.text
    assert "another" not in page.text
    assert f"isotrope report {index} -o {target}" in page.text


def test_similarity_measured_on_another_index_is_marked(built: Built, tmp_path: Path) -> None:
    index, other = built(), built("whitening.strength=1")
    (tmp_path / "stsb.tsv").write_text("".join(f"{n}\tthe whale {n}\ta song of {n * n}\n" for n in range(12)))
    out = tmp_path / "sts.json"
    done = isotrope("evaluate", "sts", tmp_path / "stsb.tsv", "--index", other, "-o", out)
    assert done.returncode == 0, done.stderr
    assert "Measured on another index" in page_of(index, read_result(out)).text
    assert "Measured on another index" not in page_of(other, read_result(out)).text


def test_a_page_that_cannot_be_written_shows_before_measuring(
    built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr("search.evaluation.report.page.measure_statistics")
    with pytest.raises(ConfigError, match="is a folder; expected a file"):
        write_report(SearchEngine(built()), tmp_path)


def test_recall_is_measured_when_asked_for(built: Built, tmp_path: Path) -> None:
    many = [Document(f"d{n}", f"text {n} of many", title=f"title {n}") for n in range(20)]
    with undrawn():
        done = isotrope("report", built(documents=many), "-o", tmp_path / "r.html", "--recall")
    assert done.returncode == 0, done.stderr
    text = Page((tmp_path / "r.html").read_text(encoding="utf-8")).text
    assert "measured for this report" in text
    assert "1 by construction: the index is exact" in text
    with undrawn():
        done = isotrope("report", built(), "-o", tmp_path / "small.html", "--recall")
    assert done.returncode == 0, done.stderr
    text = Page((tmp_path / "small.html").read_text(encoding="utf-8")).text
    assert "Recall was not measured: recall@10 compares 10 answers" in text


def test_mistakes_on_the_command_line_are_one_clear_line(built: Built, tmp_path: Path) -> None:
    assert isotrope("report", built()).returncode == 2
    mistakes: list[list[str | Path]] = [
        [tmp_path / "none", "-o", tmp_path / "r.html"],
        [built(), "-o", tmp_path],
        [built(), "-o", tmp_path / "r.html", "--results", tmp_path / "none.json"],
    ]
    for arguments in mistakes:
        done = isotrope("report", *arguments)
        assert (done.returncode, done.stderr.startswith("error: ")) == (1, True), done.stderr


def test_a_real_index_from_shared_data_has_a_page(
    shared: Path, tiny_model: Callable[[str], Path], tmp_path: Path
) -> None:
    encoder = EncoderConfig(model=str(tiny_model("bert")), max_length=32)
    documents = list(islice(read_corpus(str(shared / "data/cacm/corpus.jsonl")), 300))
    build_index(documents, tmp_path / "index", BuildConfig(encoder=encoder, store=StoreConfig(part_documents=128)))
    page = page_of(tmp_path / "index")
    assert "300 in 3 parts" in page.text
    assert "Cosines of 20,000 pairs among 300 documents" in page.text
