"""The explanation pages: their commands run, and their figures are those of the results."""

import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from benchmarks import whitening_picture
from indexer import BuildConfig, build_index
from indexer.ann.choosing.selection import stored_bytes
from indexer.ann.factory import add_vectors
from indexer.ann.index_training import IndexTrainer
from tests.docs.pages import DOCS, ROOT, page
from tests.documents import DOCUMENTS
from tests.search.cli.test_cli import isotrope

LAYERS = {"last layer": "-1", "layers 1,-1": "1,-1", "layer 1": "1"}
CENTRES, STRENGTHS = ("role", "common", "none"), ("0", "0.25", "0.5", "1")


def tables(text: str) -> list[list[list[str]]]:
    """Return the rows of each table of a page, without its heading. An empty first cell repeats the one above."""
    found = []
    for rows in re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE):
        cells = [[cell.strip() for cell in row.strip("|\n").split("|")] for row in rows.splitlines()[2:]]
        for above, row in pairwise(cells):
            row[0] = row[0] or above[0]
        found.append(cells)
    return found


def comparisons(name: str) -> dict[tuple[str, str], str]:
    """Return the differences in nDCG@10 of a result, as the pages write them, bold if significant."""
    found = json.loads((DOCS / f"results/{name}.json").read_text(encoding="utf-8"))["comparisons"]
    return {(row["setting"], row["against"]): written(row["measure"]["nDCG@10"]) for row in found}


def written(difference: dict[str, Any]) -> str:
    value, low, high = (
        f"{100 * difference[key]:+.1f}".replace("-", "\N{MINUS SIGN}") for key in ("value", "low", "high")
    )
    return f"**{value} [{low}, {high}]**" if difference["decided"] else f"{value} [{low}, {high}]"


def scores(name: str) -> dict[str, str]:
    """Return nDCG@10 x 100 of every setting of a result."""
    rows = json.loads((DOCS / f"results/{name}.json").read_text(encoding="utf-8"))["results"]
    return {row["setting"]: f"{100 * row['measure']['nDCG@10']['value']:.1f}" for row in rows}


def test_the_architecture_page_names_only_files_that_exist() -> None:
    tops = [ROOT / name for name in ("benchmarks", "indexer", "search", "tests")]
    paths = [*tops, *(path for top in tops for path in top.rglob("*"))]
    names_there = [f"{path}/" if path.is_dir() else str(path) for path in paths]
    names = re.findall(r"`([\w/]+\.py|[\w/]+/)`", page("explanation/architecture"))
    assert len(names) > 100
    assert [name for name in names if not any(path.endswith(f"/{name}") for path in names_there)] == []


def test_the_page_on_builds_names_only_tests_that_exist() -> None:
    names = re.findall(r"`(tests/[\w/.]+)`", page("explanation/builds"))
    assert len(names) > 5
    assert [name for name in names if not (ROOT / name).exists()] == []


def test_the_figures_of_two_means_are_those_of_the_results() -> None:
    chosen, _, _, scifact, cacm, paired = tables(page("explanation/two-means"))
    rows = [row for row in chosen if row[0].startswith("MiniLM")]
    assert len(rows) == 6
    for encoder, collection, *cells in rows:
        name, layers = (
            f"retrieval-{collection.lower()}",
            LAYERS[encoder.split(", ", 1)[1].removesuffix(" (the default)")],
        )
        role, common, none = (f"mean {layers} strength 0.25 {centre}" for centre in CENTRES)
        expected = [scores(name)[setting] for setting in (role, common, none)]
        assert cells == [*expected, comparisons(name)[role, common], comparisons(name)[role, none]]
    for name, table in (("retrieval-scifact", scifact), ("retrieval-cacm", cacm)):
        measured = scores(name)
        for label, raw, *cells in table[:3]:
            own = f"mean {LAYERS[label]}"
            settings = [[f"{own} strength {strength} {centre}" for centre in CENTRES] for strength in STRENGTHS]
            assert raw == measured[f"{own} raw"]
            assert cells == [" / ".join(measured[setting] for setting in of_strength) for of_strength in settings]
    for label, strength, *cells in paired[:12]:
        role, *others = (f"mean {LAYERS[label]} strength {strength} {centre}" for centre in CENTRES)
        expected = [comparisons(f"retrieval-{of}")[role, other] for of in ("scifact", "cacm") for other in others]
        assert cells == expected, (label, strength)


def test_the_figures_of_hybrid_search_are_those_of_the_results() -> None:
    worth, fusions = tables(page("explanation/hybrid"))[:2]
    assert len(worth) == len(fusions) == 4
    for (label, vectors, bm25, hybrid, *gains), ranks in zip(worth, fusions, strict=True):
        collection, encoder = label.lower().split(", ")
        static = encoder == "static"
        name = f"hybrid-{collection}-static" if static else f"hybrid-{collection}"
        own = "mean strength 0.5 none" if static else "mean -1 strength 0.25 role"
        fused, reciprocal = f"hybrid {0.2 if static else 0.3} {own}", f"hybrid rrf {own}"
        measured, differences = scores(name), comparisons(name)
        assert [vectors, bm25, hybrid.strip("*")] == [measured[own], measured["BM25"], measured[fused]]
        assert ranks[:5] == [label, vectors, bm25, measured[reciprocal], hybrid.strip("*")]
        for cell, against in zip([*gains, ranks[5]], (own, "BM25", reciprocal), strict=True):
            difference = differences[fused, against]
            assert cell.removesuffix(", not significant") == difference.strip("*")
            assert cell.endswith("not significant") != difference.startswith("**")


def test_the_bytes_of_every_kind_of_index_are_those_of_faiss() -> None:
    kinds = {
        "Flat": "1,536",
        "Pad384,IVF1,PQ96x4fs,Refine(SQ8)": "440",
        "Pad384,IVF1,PQ96x4fs,Refine(SQfp16)": "824",
        "Pad384,IVF1,PQ192x4fs,Refine(SQ8)": "488",
        "Pad384,IVF1,PQ192x4fs,Refine(SQfp16)": "872",
        "Pad384,IVF2,PQ96x4fsr,Refine(SQ8)": "445",
        "Pad384,IVF2,PQ192x4fsr,Refine(SQfp16)": "877",
        "IVF2,Flat": "1,544",
        "HNSW32": "1,808",
        "HNSW32_SQ8": "656",
        "IVF1,RaBitQfs,Refine(SQ8)": "448",
        "SQ8": "384",
        "SQ4": "192",
    }
    written = " ".join(cell for row in tables(page("explanation/index-kinds"))[0] for cell in row)
    vectors = np.random.default_rng(0).standard_normal((1024, 384)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    trainer = IndexTrainer(vectors)
    for kind, shown in kinds.items():
        assert re.search(rf"\b{shown}\b", written), shown
        index = trainer.trained(kind)
        empty = stored_bytes(index)
        add_vectors(index, vectors)
        assert (stored_bytes(index) - empty) / len(vectors) == pytest.approx(int(shown.replace(",", "")), rel=0.01), (
            kind
        )


def test_the_picture_of_whitening_is_drawn_from_an_index(tiny_config: BuildConfig, tmp_path: Path) -> None:
    build_index(DOCUMENTS, tmp_path / "index", tiny_config)
    picture = tmp_path / "whitening.svg"
    done = CliRunner().invoke(
        whitening_picture.main, ["--of", "tiny", str(tmp_path / "index"), "-o", str(picture)], catch_exceptions=False
    )
    rows = [row.split()[-5:] for row in done.output.splitlines()[1:]]
    mean, _, _, _, isotropy = ([float(row[column]) if row[column] != "%" else 0 for row in rows] for column in range(5))
    assert mean[0] > 0.5 > 0 > mean[1]  # raw embeddings of random models are a cone
    assert isotropy[0] < isotropy[1] < isotropy[2]
    assert "<svg" in picture.read_text(encoding="utf-8")
    assert (DOCS / "images/whitening.svg").stat().st_size < 150_000


def commands(text: str) -> Iterator[list[str]]:
    """Yield the calls of isotrope, and of cp, in the blocks of a page as words."""
    for code in re.findall(r"```(?:console)?\n(.*?)```", text, re.DOTALL):
        for line in code.replace("\\\n", " ").splitlines():
            words = line.strip().removeprefix("$ ")
            if words.startswith(("isotrope ", "cp -r ")):
                yield shlex.split(words, comments=True)


@pytest.mark.check
@pytest.mark.parametrize("name", ["whitening", "two-means", "hybrid", "index-kinds", "near-duplicates", "builds"])
def test_the_commands_of_the_page_run(name: str, playground: Path, tiny_model: Callable[[str], Path]) -> None:
    """On small files: `scifact` of the playground for every collection, and word vectors for the static table."""
    small = {
        "BEIR_FOLDER": "scifact",
        "MODEL_FOLDER": str(tiny_model("bert")),
        "../shared/data/scifact": "scifact",
        "../shared/data/cacm": "scifact",
        "../shared/models/potion-base-4m-int8": "glove.6B.300d.txt",
    }
    needed = {"hybrid": ("demo/index", "my-index"), "near-duplicates": ("debian",)}
    for index in needed.get(name, ()):
        assert isotrope("build", "docs.jsonl", index).returncode == 0
    calls = list(commands(page(f"explanation/{name}")))
    assert calls
    for program, *arguments in calls:
        for long, short in small.items():
            arguments = [argument.replace(long, short) for argument in arguments]
        if program == "cp":
            shutil.copytree(arguments[1], arguments[2])
            continue
        done = isotrope(*arguments)
        assert (done.returncode, bool(done.stdout)) == (0, True), (arguments, done.stderr)
