"""A small world for the fuzzer: a home folder that no command may touch, and a work folder with all inputs.

    home/       files of another user: secrets, photos, an index, links
    desk/       the current folder: indexes, models, corpora, queries, results, a pipe and a device
    cache/      ISOTROPE_CACHE
    tmp/        TMPDIR

Its path never changes, so that absolute paths in its files stay valid.
"""

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import NamedTuple

INDEXES = ("grown", "chunked", "given", "static", "hnsw", "ivf", "fitted")
"""Indexes in desk/: with a history, with windows, of given vectors, of a table, of other types, with fitted state."""

_WORDS = ["whales", "bridges", "bread", "stars", "rivers", "clocks", "bees", "glass", "maps", "salt", "owls", "lamps"]
_LABELS = ["entailment", "not_entailment"]
_VERBS = ["sing", "hang", "rise", "shine", "carry", "tick", "dance", "melt", "lead", "dry", "turn", "glow"]


class Entry(NamedTuple):
    """An entry of the world: its type and mode, and its content: a hash of the bytes, a link target or a device."""

    mode: int
    content: str

    @property
    def kind(self) -> str:
        kinds = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link", stat.S_IFIFO: "pipe"}
        return kinds.get(stat.S_IFMT(self.mode), "device or socket")


Snapshot = dict[str, Entry]
"""Every path below the root, relative to it, without times."""


_SETTLED = 100_000_000  # nanoseconds after which a change of a file shows in its ctime
_hashes: dict[str, tuple[tuple[int, int, int], str]] = {}  # of files unchanged for that time


def snapshot(root: Path) -> Snapshot:
    """Return every path below `root`, without following links."""
    world: Snapshot = {}
    start, folders = len(str(root)) + 1, [str(root)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                world[entry.path[start:]] = _entry(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
    return world


def _entry(path: str) -> Entry:
    about = os.lstat(path)
    if stat.S_ISREG(about.st_mode):
        return Entry(about.st_mode, _hash(path, about))
    if stat.S_ISLNK(about.st_mode):
        return Entry(stat.S_IFLNK, os.readlink(path))
    return Entry(about.st_mode, "" if stat.S_ISDIR(about.st_mode) else str(about.st_rdev))


def _hash(path: str, about: os.stat_result) -> str:
    """Return a hash of the bytes, cached by ctime, which no program can set."""
    key = (about.st_ino, about.st_ctime_ns, about.st_size)
    if path in _hashes and _hashes[path][0] == key:
        return _hashes[path][1]
    read = time.time_ns()
    with open(path, "rb") as file:
        digest = blake2b(file.read()).hexdigest()
    if read - about.st_ctime_ns > _SETTLED:
        _hashes[path] = key, digest
    return digest


class World:
    """The world at `root`, and a pristine copy to restore it from."""

    def __init__(self, root: Path, pristine: Path) -> None:
        self.root, self._pristine = root, pristine
        for name in sorted(snapshot(root)):
            _copy(root / name, pristine / name)
        self.before = snapshot(root)

    def mend(self, now: Snapshot | None = None) -> None:
        """Restore the world; `now` is its current state, if known."""
        now = snapshot(self.root) if now is None else now
        for name in sorted(now):
            path = self.root / name
            if not os.path.lexists(path):  # removed with its folder
                continue
            # Writing to a hard link changes another file too.
            linked = now[name].kind == "file" and path.lstat().st_nlink > 1
            if self.before.get(name) != now[name] or linked:
                remove(path)
        for name in sorted(self.before):
            if not os.path.lexists(self.root / name):
                _copy(self._pristine / name, self.root / name)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder with its content."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


def _copy(source: Path, target: Path) -> None:
    """Copy an entry with its type and mode; a folder without its content."""
    about = source.lstat()
    target.parent.mkdir(parents=True, exist_ok=True)
    if stat.S_ISLNK(about.st_mode):
        target.symlink_to(os.readlink(source))
        return
    if stat.S_ISDIR(about.st_mode):
        target.mkdir(exist_ok=True)
    elif stat.S_ISREG(about.st_mode):
        shutil.copyfile(source, target)
    elif stat.S_ISSOCK(about.st_mode):
        make_socket(target)
    else:
        os.mknod(target, about.st_mode, about.st_rdev)
    target.chmod(stat.S_IMODE(about.st_mode))


def make_socket(path: Path) -> None:
    """Make a socket without a listener."""
    here = os.open(".", os.O_RDONLY)
    os.chdir(path.parent)  # the name of a socket is limited to a hundred bytes
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.fchdir(here)
        os.close(here)


def make_device(path: Path, minor: int) -> None:
    """Make the device /dev/null (3) or /dev/zero (5), or a link to it without the permission to make devices."""
    try:
        os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, minor))
    except PermissionError:
        path.symlink_to({3: "/dev/null", 5: "/dev/zero"}[minor])


def lay_out(root: Path, run: Callable[..., None]) -> None:
    """Create the world at `root`. `run` runs a command line in desk/, which becomes the current folder."""
    from tests.tiny_models import make_tiny_model

    work = root / "desk"
    for folder in (work, root / "cache", root / "tmp", work / "folder/inner", work / "library"):
        folder.mkdir(parents=True)
    os.chdir(work)
    make_tiny_model("bert", Path("models/bert"))
    _old_model(Path("models/bert"), Path("models/old"))
    _corpora(work)
    _indexes(run)
    _files_for_commands(work, run)
    _home(root / "home", Path("grown"))
    _specials(work)


def _documents(count: int) -> list[dict[str, object]]:
    return [
        {
            "id": f"d{number}",
            "title": f"About {_WORDS[number % 12]}",
            "text": f"The {_WORDS[number % 12]} {_VERBS[number // 5]} in the deep sea. Number {number} of a library.",
            "year": 1990 + number % 7,
            "lang": "la" if number % 9 == 0 else "en",
        }
        for number in range(count)
    ]


def _corpora(work: Path) -> None:
    """Write the same documents in every format, and some with vectors or without ids."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.csv
    import pyarrow.feather
    import pyarrow.parquet as pq

    rows = _documents(56)
    table = pa.Table.from_pylist(rows)
    _lines(work / "docs.jsonl", rows)
    _lines(work / "new.jsonl", [{"id": "n1", "text": "Owls and lamps.", "year": 2001, "lang": "la"},
                                {"id": "d3", "text": "Another text.", "year": 2002, "lang": "en"}])  # fmt: skip
    _lines(work / "nameless.jsonl", [{"text": "A text without an id."}, {"text": "And another."}])
    pa.csv.write_csv(table, work / "docs.csv")
    tsv = pa.csv.WriteOptions(delimiter="\t", quoting_style="none", include_header=False)
    with (work / "docs.tsv").open("wb") as file:
        file.write("\t".join(table.column_names).encode() + b"\n")
        pa.csv.write_csv(table, file, tsv)
    pq.write_table(table, work / "docs.parquet")
    pa.feather.write_feather(table, str(work / "docs.arrow"))
    (work / "docs.txt").write_text("".join(f"{row['text']}\n" for row in rows), encoding="utf-8")
    vectors = np.random.default_rng(1).standard_normal((56, 8)).astype(np.float32)
    column = pa.FixedSizeListArray.from_arrays(pa.array(vectors.ravel()), 8)
    pq.write_table(table.append_column("vector", column), work / "vectors.parquet")
    np.save(work / "queries.npy", vectors[:2])
    words = [" ".join([word, *(f"{value:.2f}" for value in vectors[at])]) for at, word in enumerate(_WORDS + _VERBS)]
    (work / "models/words.txt").write_text("\n".join(words) + "\n", encoding="utf-8")


def _lines(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _old_model(model: Path, target: Path) -> None:
    """Write the model in the format before safetensors."""
    import torch
    from safetensors.torch import load_file

    shutil.copytree(model, target)
    torch.save(load_file(target / "model.safetensors"), target / "pytorch_model.bin")
    (target / "model.safetensors").unlink()


def _indexes(run: Callable[..., None]) -> None:
    bert = ["--set", "encoder.model=models/bert", "--set", "encoder.max_length=32", "--set",
            "encoder.precision=float32", "--set", "store.part_documents=20"]  # fmt: skip
    given = ["--vector-column", "vector", "--set", "store.part_documents=30", "--allow-low-recall"]
    run("build", "docs.jsonl", "grown", *bert)
    run("add", "grown", "new.jsonl")
    run("delete", "grown", "d1", "d7")
    run("build", "docs.csv", "chunked", *bert, "--set", "chunk.tokens=8", "--set", "chunk.overlap=2")
    run("build", "vectors.parquet", "given", *given)
    run("build", "docs.tsv", "static", "--set", "encoder.kind=static", "--set", "encoder.model=models/words.txt")
    run("build", "vectors.parquet", "hnsw", *given, "--set", "index.type=HNSW8")
    run("build", "vectors.parquet", "ivf", *given, "--set", "index.type=IVF2,Flat")
    run("build", "docs.parquet", "fitted", *bert, "--set", "encoder.pooling=sif")


def _files_for_commands(work: Path, run: Callable[..., None]) -> None:
    """Write queries, ids, labels, a recipe, a BEIR folder, and outputs of commands."""
    (work / "queries.txt").write_text("whales sing\nbread\n", encoding="utf-8")
    _lines(work / "queries.jsonl", [{"_id": "q1", "text": "whales sing"}, {"_id": "q2", "text": "bread"}])
    (work / "ids.txt").write_text("d2\nd4\n", encoding="utf-8")
    (work / "pairs.tsv").write_text("d2\td14\t1\nd3\td4\t0\n", encoding="utf-8")
    (work / "words.sim").write_text("whales\tbread\t1.5\nbees\tdance\t8\nglass\tmaps\t3\nsalt\towls\t2\n")
    sentences = [(f"{4 - at % 5}", f"The {one} turn.", f"A {other} dance.") for at, (one, other) in
                 enumerate(zip(_WORDS, reversed(_WORDS), strict=True))]  # fmt: skip
    (work / "sts.tsv").write_text("".join("\t".join(row) + "\n" for row in sentences), encoding="utf-8")
    entailed = [
        {"premise": one, "hypothesis": other, "label": _LABELS[int(score) % 2]} for score, one, other in sentences
    ]
    _lines(work / "rte.jsonl", entailed)
    (work / "recipe.toml").write_text('[encoder]\nmodel = "models/bert"\nmax_length = 32\nprecision = "float32"\n')
    (work / "library/words.py").write_text('"""Words of the deep."""\n\ndef sing():\n    """Sing."""\n')
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/test.tsv"):
        (work / "beir" / name).parent.mkdir(parents=True, exist_ok=True)
    _lines(work / "beir/corpus.jsonl", [{"_id": row["id"], "text": row["text"]} for row in _documents(20)])
    shutil.copy(work / "queries.jsonl", work / "beir/queries.jsonl")
    (work / "beir/qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td0\t1\nq2\td2\t1\n")
    run("evaluate", "recall", "grown", "--sample", "10", "-o", "result.json")
    run("dedup", "grown", "--threshold", "0.9", "-o", "duplicates.parquet", "--save-pairs", "pairs.parquet")
    # Import and warm up libraries once here instead of in every child.
    run("query", "grown", "--hybrid", "--where", "year > 1991", "--group-by", "year", "whales")
    run("export", "grown", "--to", "sentence-transformers", "-o", str(work.parent / "tmp/export"))
    run("export", "grown", "--to", "faiss", "-o", str(work.parent / "tmp/export.faiss"))
    run("report", "grown", "-o", str(work.parent / "tmp/report.html"))
    run("evaluate", "sts", "sts.tsv", "--config", "recipe.toml")
    run("verify", "fitted")
    for entry in (work.parent / "tmp").iterdir():
        remove(entry)


def _home(home: Path, index: Path) -> None:
    """Write another user's files, some with names of files of an index."""
    for name, text in {
        "secrets.txt": "do not read",
        "keys/id_rsa": "PRIVATE",
        "photos/2019/sea.jpg": "JFIF",
        "photos/00000.txt": "1",
        "photos/part.json": "{}",
        "photos/documents.parquet": "not Parquet",
        "photos/leftover.tmp": "of another program",
        "letters/letter.txt": "Dear reader",
    }.items():
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    (home / "keys/id_rsa").chmod(0o600)
    shutil.copytree(index, home / "index")
    (home / "link").symlink_to("secrets.txt")
    (home / "letters/out").symlink_to("../photos")


def _specials(work: Path) -> None:
    """Make a pipe without a writer, devices, a socket and links of every kind."""
    os.mkfifo(work / "pipe")
    make_device(work / "null", 3)
    make_device(work / "zero", 5)
    make_socket(work / "socket")
    for name, target in {
        "to-file": "../home/secrets.txt",
        "to-folder": "../home/photos",
        "to-index": "grown",
        "to-corpus": "docs.jsonl",
        "to-nothing": "nowhere",
        "to-itself": "to-itself",
        "to-stdout": "/dev/stdout",
    }.items():
        (work / name).symlink_to(target)


class Zygote:
    """The process that creates the world and runs commands in forked children; see `tests.fuzz.zygote`."""

    def __init__(self, root: Path) -> None:
        command = [sys.executable, "-m", "tests.fuzz.zygote", str(root)]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=Path(__file__).resolve().parents[2],
        )
        assert self._receive() == "ready"

    def run(self, request: dict[str, object]) -> dict[str, object]:
        """Run a command and return its ending; `tests.fuzz.zygote` documents both."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        answer = self._receive()
        assert isinstance(answer, dict)
        return answer

    def close(self) -> None:
        self._process.communicate("")

    def _receive(self) -> object:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline() or "null")
