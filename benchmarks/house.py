"""Figures of the source tree: its size, and how much of it a build and a question load.

    python -m benchmarks.house [-o FILE]

A build of 50 JSONL documents with a small table of word vectors, and one question to that index, each run in a process
of its own. "Modules loaded" counts files of `indexer` and `search` that such a process imports.
"""

import ast
import json
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles
from tempfile import TemporaryDirectory
from typing import Any

import click
import numpy as np

from benchmarks.interleaved import machine, save
from search.cli.output import print_table

_ROOT = Path(__file__).resolve().parents[1]
_PRODUCT = ("indexer", "search")
_PAPERS = ("indexer/papers/", "search/papers/")
_LONG = 400  # lines of a file
_DOCUMENTS = 50
_ROUNDS = 5
_WORDS = ["cat", "dog", "sleeps", "barks", "night", "garden", "moon", "river", "stone", "bird"]
_LOADED = (
    "import sys; from search.cli import main\n"
    "try: main()\n"
    "except SystemExit as end: assert not end.code, end.code\n"
    "print(sum(name.split('.')[0] in ('indexer', 'search') for name in sys.modules), file=sys.stderr)"
)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@click.command()
@click.option("-o", "--output", type=click.Path(path_type=Path))
def main(output: Path | None) -> None:
    """Print the figures of the source tree."""
    figures = {**source_figures(), **name_figures(), **loaded_figures()}
    print_table(["figure", "value"], [[name, f"{value:,}"] for name, value in figures.items()], "The source tree")
    if output:
        save(output, {**machine(1), "figures": figures})


def source_figures() -> dict[str, int | float]:
    """Return counts of files and lines, and the sizes of functions."""
    texts = {path: path.read_text(encoding="utf-8") for path in _files(*_PRODUCT)}
    lines = {path: text.count("\n") for path, text in texts.items()}
    functions = [node for text in texts.values() for node in _functions(ast.parse(text))]
    lengths = [(node.end_lineno or node.lineno) - node.lineno + 1 for node in functions]
    folders = Counter(path.parent for path in texts if path.parent.name != "cli")
    core = sum(count for path, count in lines.items() if not str(path).startswith(_PAPERS))
    return {
        "files": len(texts),
        "lines": sum(lines.values()),
        "lines without papers": core,
        "lines of tests": sum(path.read_text(encoding="utf-8").count("\n") for path in _files("tests")),
        f"files over {_LONG} lines": sum(count > _LONG for count in lines.values()),
        "most files in a folder": max(folders.values()),
        "functions": len(functions),
        "lines of a function, median": median(lengths),
        "lines of a function, 95th percentile": quantiles(lengths, n=20)[-1],
        "arguments, most": max(_arguments(node) for node in functions),
    }


def name_figures() -> dict[str, int]:
    """Return how many public names of classes and functions several files define."""
    homes: dict[str, set[Path]] = defaultdict(set)
    for path in _files(*_PRODUCT):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].add(path)
    return {"names that several files define": sum(len(paths) > 1 for paths in homes.values())}


def loaded_figures() -> dict[str, int | float]:
    """Return the modules that a build and a question load, and the seconds of `import search` and of a question."""
    with TemporaryDirectory() as folder:
        corpus, index, table = (Path(folder) / name for name in ("c.jsonl", "index", "words.txt"))
        rows = ({"id": str(n), "text": f"{_WORDS[n % 10]} {_WORDS[n * 7 // 10 % 10]}"} for n in range(_DOCUMENTS))
        corpus.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        vectors = np.random.default_rng(0).standard_normal((len(_WORDS), 4)).round(3)
        table.write_text(
            "".join(f"{word} {' '.join(map(str, row))}\n" for word, row in zip(_WORDS, vectors, strict=True))
        )
        recipe = ["--config", "static", "--set", f"encoder.model={table}"]
        built = _loaded("build", str(corpus), str(index), *recipe)
        question = ["query", str(index), "a cat sleeps", "--backend", "auto"]
        asked = _loaded(*question)
        cold = [_seconds("-c", _LOADED, *question) for _ in range(_ROUNDS)]
    imported = [_seconds("-c", "import search") for _ in range(_ROUNDS)]
    return {
        "modules loaded by a build": built,
        "modules loaded by a question": asked,
        "seconds of `import search`": round(median(imported), 3),
        "seconds of a question in a new process": round(median(cold), 2),
    }


def _files(*packages: str) -> list[Path]:
    found = (path for package in packages for path in (_ROOT / package).rglob("*.py"))
    return sorted(path.relative_to(_ROOT) for path in found)


def _functions(tree: ast.Module) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, Function))


def _arguments(node: Function) -> int:
    names = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len([name for name in names if name not in ("self", "cls")])


def _loaded(*arguments: str) -> int:
    """Return the number of our modules in a process that ran a command."""
    ran = _run("-c", _LOADED, *arguments)
    return int(ran.stderr.split()[-1])


def _seconds(*arguments: str) -> float:
    start = time.perf_counter()
    _run(*arguments)
    return time.perf_counter() - start


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    ran: Any = subprocess.run([sys.executable, *arguments], cwd=_ROOT, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise click.ClickException(f"{' '.join(arguments)}: {ran.stderr}")
    return ran  # type: ignore[no-any-return]


if __name__ == "__main__":
    main()
