"""Damage to files by an attacker, a bad disk or an incomplete copy, before a command reads them.

Every `Damage` consists of plain values, so that a failing example can be read and repeated. "Sealed" damage to a file
of an index is followed by new digests and checksums: the published content is wrong, but its bytes match.
"""

import copy
import hashlib
import io
import json
import os
import re
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from indexer.system.regular_files import read_regular
from tests.fuzz.world import INDEXES, make_device, make_socket, remove

# Errors if an earlier damage changed the file.
_CANNOT = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, zipfile.BadZipFile)
_OF_BYTES = ("flip", "patch", "cut", "grow", "copy", "json", "table", "array")
DEEP = "\ue000deep"  # placeholder for deeply nested lists, which Python cannot serialise
LONG = "\ue000long"  # placeholder for a long text
_MANY = 100_000
CONTENTS = {
    "nothing": b"", "zero": b"\0", "object": b"{}", "list": b"[]", "null": b"null", "mark": b"\xef\xbb\xbf",
    "Parquet": b"PAR1", "deep": b"[" * _MANY, "pickle": b"\x80\x04.", "lines": b"\n" * 9, "latin": b"caf\xe9\n",
}  # fmt: skip


@dataclass(frozen=True)
class Damage:
    """A damage of kind `what` (a key of KINDS) to `path` (relative to desk/) with parameters `number` and `value`."""

    what: str
    path: str
    number: int = 0
    value: Any = None
    sealed: bool = False

    def apply(self, work: Path) -> None:
        """Apply the damage, unless an earlier damage makes it impossible."""
        if self.what in _OF_BYTES and not (work / self.path).is_file():
            return
        try:
            KINDS[self.what](work / self.path, self.number, _placed(self.value, work))
            if self.sealed and (index := self.index):
                reseal(work / index, self.path.removeprefix(f"{index}/"))
        except _CANNOT:
            return

    @property
    def index(self) -> str | None:
        """The index that contains the file."""
        first = self.path.split("/")[0]
        return first if first in INDEXES else None


def _placed(value: Any, work: Path) -> Any:
    """Return the value with `@` at the start of a text replaced by the root of the world."""
    if isinstance(value, str) and value.startswith("@"):
        return f"{work.parent}{value[1:]}"
    return value


def _flip(path: Path, number: int, value: Any) -> None:
    data = bytearray(read_regular(path))
    if data:  # an earlier damage may have cut it
        data[number % len(data)] ^= value
    path.write_bytes(data)


def _patch(path: Path, number: int, value: Any) -> None:
    """Overwrite bytes at a multiple of four, where lengths and counts are."""
    data = bytearray(read_regular(path))
    at = number * 4 % max(1, len(data))
    data[at : at + len(value)] = value
    path.write_bytes(data)


def _cut(path: Path, number: int, value: Any) -> None:
    data = read_regular(path)
    path.write_bytes(data[: number % (len(data) + 1)])


def _grow(path: Path, number: int, value: Any) -> None:
    path.write_bytes(read_regular(path) + value)


def _replace(path: Path, number: int, value: Any) -> None:
    _clear(path)
    path.write_bytes(CONTENTS[value])


def _copy(path: Path, number: int, value: Any) -> None:
    """Replace the bytes by those of another file."""
    path.write_bytes(read_regular(path.parent / value))


def _link(path: Path, number: int, value: Any) -> None:
    _clear(path)
    path.symlink_to(value)


def _hard_link(path: Path, number: int, value: Any) -> None:
    _clear(path)
    path.hardlink_to(value)


def _moved(path: Path, number: int, value: Any) -> None:
    """Move the file or folder, and leave a link to it."""
    target = Path(value)
    path.rename(target)
    path.symlink_to(target)


def _special(path: Path, number: int, value: Any) -> None:
    _clear(path)
    if value == "pipe":
        os.mkfifo(path)
    elif value == "socket":
        make_socket(path)
    else:
        make_device(path, {"null": 3, "zero": 5}[value])


def _folder(path: Path, number: int, value: Any) -> None:
    _clear(path)
    path.mkdir()


def _clear(path: Path) -> None:
    """Remove what is at a path, and make its parent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if os.path.lexists(path):
        remove(path)


def _json(path: Path, number: int, value: Any) -> None:
    """Set, rename or remove the value at the place with this number."""
    data = read_regular(path)
    if path.suffix == ".safetensors":
        length = int.from_bytes(data[:8], "little")
        header = dump(_edited(json.loads(data[8 : 8 + length]), number, value))
        path.write_bytes(len(header).to_bytes(8, "little") + header + data[8 + length :])
        return
    lines = data.split(b"\n") if path.suffix == ".jsonl" else [data]
    lines[0] = dump(_edited(json.loads(lines[0]), number, value), indent=None if len(lines) > 1 else 1)
    path.write_bytes(b"\n".join(lines) + b"\n" * (len(lines) == 1))


def _edited(plain: Any, number: int, value: Any) -> Any:
    places = list(_places(plain))
    if not places:
        return value[1]
    holder, key = places[number % len(places)]
    action, new = copy.deepcopy(value)
    if action == "set":
        holder[key] = new
    elif action == "drop":
        del holder[key]
    elif isinstance(holder, dict):
        holder[str(new)] = holder.pop(key)
    else:
        holder.append(new)
    return plain


def _places(plain: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every (container, key) of a JSON value, in the order of its text."""
    if isinstance(plain, dict):
        for key in sorted(plain):
            yield plain, key
            yield from _places(plain[key])
    elif isinstance(plain, list):
        for at, item in enumerate(plain):
            yield plain, at
            yield from _places(item)


def dump(value: Any, indent: int | None = None) -> bytes:
    """Return JSON as the store writes it, with lone surrogates and deeply nested lists, which no library writes."""
    separators = (",", ":") if indent is None else None
    text = json.dumps(value, sort_keys=True, indent=indent, separators=separators, ensure_ascii=False)
    deep = "[" * _MANY + "]" * _MANY
    return text.replace(f'"{DEEP}"', deep).replace(LONG, "x" * _MANY).encode("utf-8", "surrogatepass")


def _table(path: Path, number: int, value: Any) -> None:
    """Change a Parquet file: a column is removed, renamed, of another type or null, or rows are removed or doubled."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    at = number % table.num_columns
    name, column = table.column_names[at], table.column(at)
    if value == "drop":
        table = table.remove_column(at)
    elif value == "rename":
        table = table.rename_columns([f"{each}x" if each == name else each for each in table.column_names])
    elif value == "double":
        table = table.append_column(name, column)
    elif value == "rows":
        table = table.slice(0, max(0, len(table) - 1))
    elif value == "empty":
        table = table.slice(0, 0)
    elif value == "more":
        table = pa.concat_tables([table, table])
    else:
        table = table.set_column(at, name, _column(value, len(table), column))
    pq.write_table(table, path)


def _column(value: str, rows: int, column: Any) -> Any:
    import pyarrow as pa

    made: dict[str, Callable[[], Any]] = {
        "nulls": lambda: pa.nulls(rows, column.type),
        "no type": lambda: pa.nulls(rows),
        "integers": lambda: pa.array(range(-1, rows - 1)),
        "huge": lambda: pa.array([2**62 - 1] * rows),
        "texts": lambda: pa.array(["same"] * rows),
        "large texts": lambda: pa.array(["x"] * rows, pa.large_string()),
        "bytes": lambda: pa.array([b"\xff\xfe"] * rows),
        "lists": lambda: pa.array([[1.0, float("nan")]] * rows),
        "structs": lambda: pa.array([{"a": {"b": 1}}] * rows),
        "words": lambda: pa.array(["word"] * rows).dictionary_encode(),
        "floats": lambda: pa.array([float("nan"), float("inf"), -0.0, 1e308] * rows).slice(0, rows),
        "numbers": lambda: pa.array([-(2**31)] * rows, pa.int32()),
    }
    return made[value]()


TABLE_CHANGES = (
    "drop", "rename", "double", "rows", "empty", "more", "nulls", "no type", "integers", "huge", "texts",
    "large texts", "bytes", "lists", "structs", "words", "floats", "numbers",
)  # fmt: skip


def _array(path: Path, number: int, value: Any) -> None:
    """Change an .npy file, or an array in an .npz."""
    if path.suffix != ".npz":
        path.write_bytes(_changed(read_regular(path), value))
        return
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = sorted(members)[number % len(members)]
    if value == "gone":
        del members[name]
    elif value == "renamed":
        members[f"../../{name}"] = members.pop(name)
    else:
        members[name] = _changed(members[name], value)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)


def _changed(data: bytes, value: str) -> bytes:
    import numpy as np

    if value == "claims":  # a header with a far too large shape
        return re.sub(rb"'shape': \(\d*", b"'shape': (99999999999", data, count=1)
    old = np.load(io.BytesIO(data))
    made: dict[str, Callable[[], Any]] = {
        "objects": lambda: np.array([{"code": print}] * max(1, len(np.atleast_1d(old))), dtype=object),
        "texts": lambda: np.full(old.shape, "text"),
        "nan": lambda: np.full(old.shape, np.nan),
        "huge": lambda: np.full(old.shape, 1e300),
        "negative": lambda: np.full(old.shape, -1).astype(old.dtype),
        "complex": lambda: np.full(old.shape, 1j),
        "shorter": lambda: np.atleast_1d(old)[:-1],
        "scalar": lambda: np.zeros((), old.dtype),
        "deeper": lambda: np.zeros((1, *old.shape), old.dtype),
        "fortran": lambda: np.asfortranarray(old),
        "swapped": lambda: old.astype(old.dtype.newbyteorder()),
        "zeros": lambda: np.zeros_like(old),
        "record": lambda: np.zeros(3, dtype=[("a", "i4"), ("b", "f8")]),
        "dates": lambda: np.zeros(old.shape, "datetime64[s]"),
    }
    file = io.BytesIO()
    np.save(file, made[value](), allow_pickle=True)
    return file.getvalue()


ARRAY_CHANGES = (
    "claims", "objects", "texts", "nan", "huge", "negative", "complex", "shorter", "scalar", "deeper", "fortran",
    "swapped", "zeros", "record", "dates", "gone", "renamed",
)  # fmt: skip

KINDS: dict[str, Callable[[Path, int, Any], None]] = {
    "flip": _flip,
    "patch": _patch,
    "cut": _cut,
    "grow": _grow,
    "replace": _replace,
    "copy": _copy,
    "json": _json,
    "table": _table,
    "array": _array,
    "link": _link,
    "hard link": _hard_link,
    "moved": _moved,
    "special": _special,
    "folder": _folder,
    "remove": lambda path, number, value: remove(path),
}


def reseal(index: Path, changed: str) -> None:
    """Update the digests of a changed file in its part or state and in every manifest, and their checksums."""
    folder = index / Path(changed).parent
    for record in ("part.json", "state.json"):
        if (folder / record).is_file() and Path(changed).name != record:
            _digest(folder / record, Path(changed).name, index / changed)
            reseal(index, str(Path(changed).with_name(record)))
    for manifest in sorted(index.glob("manifests/*.json")):
        if manifest.name != Path(changed).name:
            _digest(manifest, changed, index / changed)
        plain = json.loads(read_regular(manifest))
        plain.pop("checksum", None)
        plain["checksum"] = hashlib.sha256(dump(plain)).hexdigest()
        manifest.write_bytes(dump(plain, indent=1) + b"\n")


def _digest(record: Path, name: str, path: Path) -> None:
    plain, data = json.loads(read_regular(record)), read_regular(path)
    if name in plain.get("files", {}):
        plain["files"][name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
        record.write_bytes(dump(plain, indent=1) + b"\n")
