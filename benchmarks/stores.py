"""Comparison of vector stores that run in a process: CPU time of a build and of queries, bytes on disk, recall.

    python -m benchmarks.stores INDEX [--rows 20000] [--queries 500] [--peer-python PYTHON] [-o FILE]

All get the same documents of INDEX, each with an id, a text, a number and its vector, and their default settings (see
`benchmarks.store_peers`). They answer one query at a time: the ten nearest documents with their texts, and the ten
nearest of a tenth of all documents, by a filter on the number. Each runs in a process, the peers' by a Python with
chromadb, lancedb, txtai and faiss-cpu. CPU seconds of all threads are compared, because they depend little on other
programs.
"""

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
import numpy as np

from benchmarks.ann_peers import recall
from benchmarks.children import Child, ChildFailed
from benchmarks.interleaved import machine, save
from benchmarks.store_peers import DEPTH, STORES
from indexer.arrays import RowIds, Vectors
from search.cli.output import print_table
from search.index import Index

_COLUMNS = ["store", "build CPU s", "MB", "query CPU ms", "recall@10", "filtered CPU ms", "filtered recall@10"]


@click.command()
@click.argument("index", type=click.Path(path_type=Path))
@click.option("--rows", type=int, default=20_000, show_default=True, help="Documents.")
@click.option("--queries", type=int, default=500, show_default=True, help="Held-out vectors as queries.")
@click.option("--peer-python", default=sys.executable, help="Interpreter with the peers.")
@click.option("--only", multiple=True, help="Stores to run, by name; repeatable.")
@click.option("-o", "--output", type=click.Path(path_type=Path))
def main(index: Path, rows: int, queries: int, peer_python: str, only: tuple[str, ...], output: Path | None) -> None:
    """Compare stores on the documents of an index."""
    results = list[dict[str, Any]]()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data.npz"
        write_data(index, data, rows, queries)
        for name in only or STORES:
            python = sys.executable if name == "Isotrope" else peer_python
            results.append(measure(name, python, data, Path(folder) / name))
    print_table(_COLUMNS, [_row(result) for result in results], f"{rows:,} documents, {queries} queries")
    about = machine(1)
    click.echo(f"{about['processor']}, {about['date']}")
    if output:
        save(output, {"machine": about, "command": sys.argv[1:], "results": results})


def write_data(index: Path, data: Path, rows: int, queries: int) -> None:
    """Write vectors (`rows`, k), queries (`queries`, k), parts 0 to 9, and texts, in a fixed random order."""
    opened = Index.open(index)
    distinct = np.unique(opened.vectors(np.arange(opened.manifest.rows)), axis=0, return_index=True)[1]
    chosen = np.random.default_rng(0).permutation(distinct)[: rows + queries]
    vectors = opened.vectors(chosen)
    texts = [document.text for document in opened.documents.all_documents()]
    parts = np.arange(len(vectors) - queries) // 7 % DEPTH
    np.savez(data, queries=vectors[:queries], vectors=vectors[queries:], parts=parts)
    data.with_suffix(".json").write_text(json.dumps([texts[row] for row in chosen[queries:]]), encoding="utf-8")


def measure(name: str, python: str, data: Path, folder: Path) -> dict[str, Any]:
    """Run a store in a process; a store that fails has only its error."""
    (folder / "warm-up").mkdir(parents=True)
    (folder / "whole").mkdir()
    try:
        with Child("benchmarks.store_peers:Run", name, str(folder), str(data), threads=1, python=python) as child:
            result: dict[str, Any] = {"store": name, "build": child.call("built")}
            arrays = np.load(data)
            for is_filtered in (False, True):
                found, seconds = child.call("answered", is_filtered)
                best = nearest(arrays["vectors"], arrays["queries"], arrays["parts"] if is_filtered else None)
                kind = "filtered" if is_filtered else "plain"
                result[kind] = {"ms": 1000 * seconds / len(found), "recall": recall(np.array(padded(found)), best)}
    except ChildFailed as error:
        return {"store": name, "error": str(error)}
    files = [path for path in (folder / "whole").rglob("*") if path.is_file()]
    return result | {"bytes": sum(path.stat().st_size for path in files)}


def nearest(vectors: Vectors, queries: Vectors, parts: RowIds | None) -> RowIds:
    """Return the ten best rows of each query, for query n of the part n % 10 only."""
    scores = queries @ vectors.T
    if parts is not None:
        scores[np.arange(len(queries))[:, None] % DEPTH != parts[None]] = -np.inf
    best: RowIds = np.argsort(-scores, axis=1, kind="stable")[:, :DEPTH]
    return best


def padded(found: list[list[int]]) -> list[list[int]]:
    """Return ten numbers for each query; -1 stands for a document that was not found."""
    return [(row + [-1] * DEPTH)[:DEPTH] for row in found]


def _row(result: dict[str, Any]) -> list[str]:
    if "error" in result:
        return [result["store"], result["error"], "", "", "", "", ""]
    shown = [cell for kind in ("plain", "filtered") for cell in _pair(result[kind])]
    return [result["store"], f"{result['build']:.1f}", f"{result['bytes'] / 1e6:.1f}", *shown]


def _pair(measured: dict[str, float]) -> list[str]:
    return [f"{measured['ms']:.2f}", f"{measured['recall']:.4f}"]


if __name__ == "__main__":
    main()
