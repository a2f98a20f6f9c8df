"""Strategies of damage, and the families of examples that the fuzzer divides its time among."""

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
    """Damage, done in order, and the command that follows. Its `repr` is all that is needed to do it again."""

    damage: tuple[Damage, ...]
    command: Command

    @property
    def answers_must_hold(self) -> bool:
        """Whether the index must answer as before or refuse: nothing was sealed, nor is another generation the newest,
        nor was anything damaged that is not of the index, such as the file of queries."""
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


def _bytes_of(path: str, sealed: st.SearchStrategy[bool]) -> st.SearchStrategy[Damage]:
    """Damage to the bytes of a file, fit for its format."""
    number = st.integers(0, 5000)
    kinds: list[st.SearchStrategy[Damage]] = [
        st.builds(Damage, st.just("flip"), st.just(path), number, st.integers(1, 255), sealed),
        st.builds(Damage, st.just("patch"), st.just(path), number, _PATCHES, sealed),
        st.builds(Damage, st.just("cut"), st.just(path), number, st.none(), sealed),
        st.builds(
            Damage,
            st.just("replace"),
            st.just(path),
            st.just(0),
            st.sampled_from(sorted(CONTENTS)),
            sealed,
        ),
    ]
    fit = _shape_of(path, number, sealed)
    return st.one_of(*kinds, *fit, *fit, *fit)


def _shape_of(
    path: str, number: st.SearchStrategy[int], sealed: st.SearchStrategy[bool]
) -> list[st.SearchStrategy[Damage]]:
    """Damage that knows the format: another value, another table, another array."""
    if path.endswith((".json", ".jsonl", ".safetensors")):
        return [st.builds(Damage, st.just("json"), st.just(path), number, _EDITS, sealed)]
    if path.endswith(".parquet"):
        return [st.builds(Damage, st.just("table"), st.just(path), number, st.sampled_from(TABLE_CHANGES), sealed)]
    if path.endswith((".npy", ".npz")):
        return [st.builds(Damage, st.just("array"), st.just(path), number, st.sampled_from(ARRAY_CHANGES), sealed)]
    return []


def _names(path: str, there: bool = True) -> st.SearchStrategy[Damage]:
    """Something else under the name of a file or folder, or under a name that is not there."""
    target = st.sampled_from(_TARGETS)
    links = st.builds(Damage, st.just("link"), st.just(path), st.just(0), target)
    kinds = [
        links,
        links,
        st.builds(Damage, st.just("hard link"), st.just(path), st.just(0), st.sampled_from(_FILES)),
        st.builds(Damage, st.just("special"), st.just(path), st.just(0), st.sampled_from(_SPECIALS)),
        st.builds(Damage, st.just("folder"), st.just(path)),
    ]
    if there:
        kinds += [
            st.builds(Damage, st.just("moved"), st.just(path), st.just(0), st.just("@/tmp/moved")),
            st.builds(Damage, st.just("copy"), st.just(path), st.just(0), st.sampled_from(_FILES)),
            st.builds(Damage, st.just("remove"), st.just(path)),
        ]
    return st.one_of(*kinds)


class Families:
    """Strategies over the files that the world has."""

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
        """Families by name."""
        return {
            "unsealed": self._on_an_index(lambda index: self._bytes(index, st.just(False)), commands.reading),
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
            some = st.lists(damage(index), min_size=1, max_size=2).map(tuple)
            return st.builds(Example, some, command([index]))

        return st.sampled_from(("grown", *INDEXES)).flatmap(of)

    def _bytes(self, index: str, sealed: st.SearchStrategy[bool]) -> st.SearchStrategy[Damage]:
        return st.sampled_from(self._of[index]).flatmap(lambda path: _bytes_of(path, sealed))

    def _manifest(self, index: str) -> st.SearchStrategy[Damage]:
        """Values of the newest manifest, sealed."""
        newest = max(name for name in self._of[index] if "/manifests/" in name)
        number: st.SearchStrategy[Any] = st.integers(0, 400)
        return st.builds(Damage, st.just("json"), st.just(newest), number, _EDITS, st.just(True))

    def _links(self, index: str) -> st.SearchStrategy[Damage]:
        extra = [f"{index}/{name}" for name in _EXTRA if f"{index}/{name}" not in self._names_of[index]]
        return st.one_of(
            st.sampled_from(self._names_of[index]).flatmap(_names),
            st.sampled_from(extra).flatmap(lambda path: _names(path, there=False)),
        )

    def _on_files(self) -> st.SearchStrategy[Example]:
        damage = st.sampled_from(self._inputs).flatmap(
            lambda path: st.one_of(_bytes_of(path, st.just(False)), _bytes_of(path, st.just(False)), _names(path))
        )
        some = st.lists(damage, min_size=1, max_size=2).map(tuple)
        return st.builds(Example, some, commands.taking_files())

    def _on_caches(self) -> st.SearchStrategy[Example]:
        damage = st.sampled_from(self._caches).flatmap(
            lambda path: st.one_of(_bytes_of(path, st.just(False)), _names(path))
        )
        hybrid = Command(("query", "grown", "--json", "--hybrid", "whales"))
        return st.builds(Example, st.lists(damage, min_size=1, max_size=2).map(tuple), st.just(hybrid))
