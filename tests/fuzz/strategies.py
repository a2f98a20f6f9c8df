"""Strategies of damage, and the families of examples of the fuzzer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from tests.fuzz import commands
from tests.fuzz.commands import Command
from tests.fuzz.damage import ARRAY_CHANGES, CONTENTS, DEEP, LONG, TABLE_CHANGES, Damage
from tests.fuzz.world import INDEXES, Snapshot

_OF_BYTES = ("flip", "patch", "cut", "json")


@dataclass(frozen=True)
class Example:
    """Damage in order, and a command to run after it. Its `repr` contains everything needed to repeat it."""

    damage: tuple[Damage, ...]
    command: Command

    @property
    def answers_must_hold(self) -> bool:
        """Whether the index must answer as before or raise an error.

        That holds if no damage was sealed, the newest generation is the same, and only the index, its model and its
        cache were damaged.
        """
        return self.command.argv[0] == "query" and all(
            not damage.sealed
            and (damage.index or damage.path.startswith(("models/", "../cache")))
            and not ("/manifests" in damage.path and damage.what not in _OF_BYTES)
            for damage in self.damage
        )


_FAULTS: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(
        (
            None, True, 0, -1, 1, 2, 2**31, 2**53, 2**63, 10**40, 1.5, float("nan"), float("inf"), "", "0", "text",
            "a\0b", "a\nb", "\ud800", LONG, [], {}, [[]], [None], {"a": 1}, {"": {}}, DEEP, "__import__('os')",
        )
    ),
    st.sampled_from(
        (
            "..", "../../home/secrets.txt", "@/home/secrets.txt", "@/home/photos", "@/desk/pipe", "@/desk/zero",
            "../pipe", "../zero", "parts/../../../home/secrets.txt", "parts/00000", ".", "/", "parts/00000/part.json",
            "segments/0001-00.faiss", "deleted/../../../home/index/deleted/0003.npy", "-o", "~", "lock", "parts/99999",
            "manifests/00000001.json", "http://localhost:1/", "HNSW8", "Flat", "IVF9999999,Flat", "int64", "nope",
        )
    ),
    st.integers(-(2**64), 2**64),
    st.floats(),
)  # fmt: skip
_EDITS = st.tuples(st.sampled_from(("set", "set", "set", "set", "drop", "key")), _FAULTS)
_PATCHES = st.sampled_from(
    (b"\xff" * 4, b"\xff" * 8, b"\x7f" + b"\xff" * 7, b"\0" * 4, b"\0" * 8, b"\0\0\0\0\x01\0\0\0", b"\x80\0\0\0",
     b"\xff\xff\xff\x7f", b"\xff" * 7 + b"\x7f", b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\x01\0\0\0", b"\0\0\x10\0")
)  # fmt: skip
_TARGETS = (
    "@/home/secrets.txt", "@/home/photos", "@/home/index", "@/home/letters", "@/desk/pipe", "@/desk/zero",
    "@/desk/docs.jsonl", "@/desk/grown", "@/home/index/parts/00000", "@/home/index/deleted", "@/home/index/segments",
    "@/home/index/deleted/0003.npy", "@/home/index/manifests/00000003.json", "@/desk/null", "@/home/index/manifests",
    "nowhere", ".", "..", "../..", "../../home/photos", "../../../home/photos", "to-itself", "00000", "@/desk/models",
    "../parts", "lock", "@/desk/to-itself", "@/desk/static/segments/0001-00.faiss", "@/home/photos/documents.parquet",
)  # fmt: skip
_FILES = tuple(
    f"@/{name}"
    for name in (
        "home/secrets.txt", "home/index/deleted/0003.npy", "home/index/manifests/00000003.json", "home/keys/id_rsa",
        "desk/docs.jsonl", "desk/static/segments/0001-00.faiss", "home/photos/documents.parquet", "desk/queries.npy",
        "home/index/parts/00000/part.json", "desk/pairs.parquet", "desk/models/bert/model.safetensors",
    )
)  # fmt: skip
_SPECIALS = ("pipe", "socket", "null", "zero")
_EXTRA = (
    "parts/00099", "parts/00099", "encoder/0123456789abcdef", "parts/00003", "encoder/0123456789abcdef",
    "transforms/0099.safetensors", "deleted/0099.npy",
    "segments/0099-00.faiss", "manifests/00000099.json", "manifests/x.tmp", "parts/00000/x.tmp", "segments/x.tmp",
    "deleted", "encoder", "parts/00001/x", "parts/00099/part.json", "parts/00099/documents.parquet", "lock",
    "manifests/99999999.json", "manifests/00000000.json", "parts/9999999999999", "transforms/x.tmp",
)  # fmt: skip
_FILE_COMMANDS = ("docs.", "new.jsonl", "nameless.jsonl", "vectors.parquet", "queries", "ids.txt", "pairs.", "words.",
                  "recipe.toml", "beir/", "result.json", "sts.tsv", "rte.jsonl", "duplicates.parquet",
                  "models/")  # fmt: skip
_FORMATS: tuple[tuple[tuple[str, ...], str, st.SearchStrategy[Any]], ...] = (
    ((".json", ".jsonl", ".safetensors"), "json", _EDITS),
    ((".parquet",), "table", st.sampled_from(TABLE_CHANGES)),
    ((".npy", ".npz"), "array", st.sampled_from(ARRAY_CHANGES)),
)
_NONE, _ZERO, _UNSEALED = st.none(), st.just(0), st.just(False)


def _damage(
    kind: str,
    path: str,
    value: st.SearchStrategy[Any] = _NONE,
    number: st.SearchStrategy[int] = _ZERO,
    sealed: st.SearchStrategy[bool] = _UNSEALED,
) -> st.SearchStrategy[Damage]:
    return st.builds(Damage, st.just(kind), st.just(path), number, value, sealed)


def _bytes_of(path: str, sealed: st.SearchStrategy[bool]) -> st.SearchStrategy[Damage]:
    """Damage to the bytes of a file, most often to values of its format."""
    number = st.integers(0, 5000)
    kinds = [
        _damage("flip", path, st.integers(1, 255), number, sealed),
        _damage("patch", path, _PATCHES, number, sealed),
        _damage("cut", path, _NONE, number, sealed),
        _damage("replace", path, st.sampled_from(sorted(CONTENTS)), _ZERO, sealed),
    ]
    for endings, kind, changes in _FORMATS:
        if path.endswith(endings):
            kinds += 3 * [_damage(kind, path, changes, number, sealed)]
    return st.one_of(*kinds)


def _names(path: str, exists: bool = True) -> st.SearchStrategy[Damage]:
    """Another kind of entry at the path of a file or folder, or at a new path."""
    links, files = _damage("link", path, st.sampled_from(_TARGETS)), st.sampled_from(_FILES)
    kinds = [
        links,
        links,
        _damage("hard link", path, files),
        _damage("special", path, st.sampled_from(_SPECIALS)),
        _damage("folder", path),
    ]
    if exists:
        kinds += [
            _damage("moved", path, st.just("@/tmp/moved")),
            _damage("copy", path, files),
            _damage("remove", path),
        ]
    return st.one_of(*kinds)


class Families:
    """Strategies over the files of the world."""

    def __init__(self, world: Snapshot) -> None:
        inside = sorted(name.removeprefix("desk/") for name in world if name.startswith("desk/"))
        kinds = {name: world[f"desk/{name}"].kind for name in inside}
        self._of = {
            index: [name for name in inside if name.startswith(f"{index}/") and kinds[name] == "file"
                    and not name.endswith("/lock")] for index in INDEXES
        }  # fmt: skip
        self._names_of = {index: [name for name in inside if name.startswith(f"{index}/")] for index in INDEXES}
        self._inputs = [name for name in inside if name.startswith(_FILE_COMMANDS) and kinds[name] == "file"]
        self._caches = [f"../{name}" for name in sorted(world) if name.startswith("cache/") and
                        world[name].kind == "file"]  # fmt: skip

    def all(self) -> dict[str, st.SearchStrategy[Example]]:
        """Return the families by name."""
        return {
            "unsealed": self._on_an_index(lambda index: self._bytes(index, _UNSEALED), commands.reading),
            "sealed": self._on_an_index(lambda index: self._bytes(index, st.just(True)), commands.ordinary),
            "manifest": self._on_an_index(self._manifest, commands.ordinary),
            "links": self._on_an_index(self._links, commands.ordinary),
            "links while writing": self._on_an_index(self._links, commands.writing),
            "inputs": self._on_files(),
            "caches": self._on_caches(),
            "outputs": st.builds(Example, st.just(()), commands.with_hostile_outputs()),
            "options": st.builds(Example, st.just(()), commands.with_hostile_options()),
        }

    def _on_an_index(
        self,
        damage: Callable[[str], st.SearchStrategy[Damage]],
        command: Callable[[Sequence[str]], st.SearchStrategy[Command]],
    ) -> st.SearchStrategy[Example]:
        def of(index: str) -> st.SearchStrategy[Example]:
            return _examples(damage(index), command([index]))

        return st.sampled_from(("grown", *INDEXES)).flatmap(of)

    def _bytes(self, index: str, sealed: st.SearchStrategy[bool]) -> st.SearchStrategy[Damage]:
        return st.sampled_from(self._of[index]).flatmap(lambda path: _bytes_of(path, sealed))

    def _manifest(self, index: str) -> st.SearchStrategy[Damage]:
        """Sealed damage to values of the newest manifest."""
        newest = max(name for name in self._of[index] if "/manifests/" in name)
        return _damage("json", newest, _EDITS, st.integers(0, 400), st.just(True))

    def _links(self, index: str) -> st.SearchStrategy[Damage]:
        extra = [f"{index}/{name}" for name in _EXTRA if f"{index}/{name}" not in self._names_of[index]]
        return st.one_of(
            st.sampled_from(self._names_of[index]).flatmap(_names),
            st.sampled_from(extra).flatmap(lambda path: _names(path, exists=False)),
        )

    def _on_files(self) -> st.SearchStrategy[Example]:
        damage = st.sampled_from(self._inputs).flatmap(
            lambda path: st.one_of(_bytes_of(path, _UNSEALED), _bytes_of(path, _UNSEALED), _names(path))
        )
        return _examples(damage, commands.taking_files())

    def _on_caches(self) -> st.SearchStrategy[Example]:
        damage = st.sampled_from(self._caches).flatmap(lambda path: st.one_of(_bytes_of(path, _UNSEALED), _names(path)))
        return _examples(damage, st.just(Command(("query", "grown", "--json", "--hybrid", "whales"))))


def _examples(damage: st.SearchStrategy[Damage], command: st.SearchStrategy[Command]) -> st.SearchStrategy[Example]:
    return st.builds(Example, st.lists(damage, min_size=1, max_size=2).map(tuple), command)
