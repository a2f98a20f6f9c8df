"""Strategies of command lines: common ones, and hostile values for every option of a command.

Options are read from the commands, so new options need no entry here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache

import click
from hypothesis import strategies as st

from tests.fuzz.world import INDEXES

_OUTPUTS = {"output", "folder", "kept", "save_pairs", "rejects", "per_query", "run", "plot", "cache", "target"}
_MEASURES_THE_MACHINE = {"measure", "compile", "device", "workers", "backend"}  # slow options that read no files


@dataclass(frozen=True)
class Command:
    """A command line in desk/. `writes` is the index it may change; `outputs` are other paths it may write."""

    argv: tuple[str, ...]
    writes: str | None = None
    outputs: tuple[str, ...] = ()
    stdin: bytes | None = field(default=b"")

    @property
    def forced(self) -> bool:
        """Whether existing files may be overwritten."""
        return "--force" in self.argv


INPUTS = (
    "docs.jsonl", "new.jsonl", "nameless.jsonl", "docs.csv", "docs.tsv", "docs.parquet", "docs.arrow", "docs.txt",
    "vectors.parquet", "queries.npy", "queries.txt", "queries.jsonl", "ids.txt", "pairs.tsv", "words.sim", "sts.tsv",
    "recipe.toml", "beir", "result.json", "duplicates.parquet", "pairs.parquet", "models/bert", "models/words.txt",
    *INDEXES,
)  # fmt: skip
_PLACES = (
    "pipe", "zero", "null", "socket", "folder", "to-file", "to-folder", "to-index", "to-corpus", "to-nothing",
    "to-itself", "../home/secrets.txt", "../home/photos", "../home/index", "", ".", "..", "nowhere/x", "a\nb", "-",
    "\udcff", "~", "x" * 300, "docs.jsonl/x", "models/old", "grown/parts/00000/embeddings.npy", "grown/manifests",
    "grown/../docs.jsonl", "../desk/docs.jsonl", "folder/../grown", "*.jsonl", "[", "**", "grown/parts", "library",
)  # fmt: skip
_NEW = ("new.out", "new.json", "new.parquet", "new.csv", "new.tsv", "new.svg", "new.toml", "new.html", "folder/new")
_TAKEN = (
    *_PLACES, *INPUTS, "grown/segments/0001-00.faiss", "grown/segments/0009-00.faiss", "grown/parts/00007",
    "grown/manifests/00000001.json", "../home/index/manifests/00000001.json", "../home/photos/new", "to-folder/new",
    "to-index/new", "grown/lock", "../home/index/parts/00000/part.json", "models/bert/config.json", "to-stdout",
)  # fmt: skip
_NUMBERS = (
    "0", "1", "3", "50", "-1", "2147483648", "9223372036854775808", "1e400", "nan", "inf", "-inf", "", "abc", "0.5",
    "0.9", "1e-300", "-0.0", "1_0", "\uff11",
)  # fmt: skip
_TEXTS = (
    "", " ", "whales", "d3", "year", "lang", "title", "text", "NULL", "x" * 5000, "a\nb", "\udc80", "'; DROP TABLE d",
    "\U0001f40b", "\x1b[31m", "a\u202eb", "--", "*", "test", "../../home", "role",
)  # fmt: skip
_CONDITIONS = (
    "year > 1991", "lang = 'la'", "title IS NULL", "", " ", "1", "year", "x.y = 1", "f('a')", "year > 'a'",
    "(" * 3000, "1=1 OR " * 2000 + "1=1", "NOT " * 900 + "year = 1", "year IN (SELECT 1)", "lang LIKE '%a%'",
    "read_text('../home/secrets.txt') = ''", "regexp_matches(lang, '(a+)+$')", "year = 1e400", "year / 0 = 1",
    "lang = 'a", "repeat(lang, 2000000000) = 'y'", "year IN (" + "1," * 9000 + "2)", "\udc80", "lang = '\0'"[:8],
)  # fmt: skip
_SETTINGS = (
    "whitening.strength=0.5", "whitening.strength=nan", "whitening.dim=4", "whitening.dim=-1", "index.type=HNSW8",
    "index.type=IVF999999,Flat", "index.type=PQ8", "index.type=SQ4", "index.type=" + "PCA2," * 500, "index.recall=2",
    "chunk.tokens=-1", "chunk.tokens=8", "encoder.layers=[999]", "encoder.layers=[]", "encoder.max_length=10000000000",
    "encoder.pooling=cls", "store.part_documents=0", "store.part_documents=99999999999999999999", "x", "=", "a.b.c=1",
    "encoder.model=../home/photos", "encoder.model=pipe", "encoder.model=zero", "encoder.model=", "index.memory=-1",
    "encoder.batch_tokens=-5", "encoder.kind=static", "index.memory=1e99G", "index.queries=pipe",
    "whitening.query_sample=zero", "encoder.query_prompt=" + "x" * 9000, "whitening.sample=1", "index.queries=",
    "whitening.kind=hellinger", "whitening.centre=common", "encoder.fitted=../home", "store.embeddings=float16",
)  # fmt: skip
_TYPES = ("year:int", "year:text", "year:nope", ":", "year", "year:int:int", "lang:date", "id:int", "x" * 300 + ":int")
_BY_NAME = {
    "where": _CONDITIONS, "assignments": _SETTINGS, "columns": _TYPES, "memory": ("1G", "1", "-1G", "9e99T", "", "x"),
    "prefer": ("first", "last", "longest", "column:year", "column:year:desc", "column:", "column:nope", ""),
    "layers": ("-1", "1,2", "0", "99", "", ",", "nan"), "strengths": ("none", "0", "0.5", "nan", "2", ""),
    "cutoffs": ("10", "1,10", "0", "", ",", "-1", "99999999999"), "like": ("d3", "d1", "", "nope", "\udc80"),
    "format_": ("jsonl", "csv", "tsv", "parquet", "arrow", "text", "nope", ""),
}  # fmt: skip

_OF_VECTORS = ("given", "hnsw", "ivf")  # indexes without an encoder for texts
_QUESTIONS = ("how do whales sing", "whales", "bread", "-", "--hybrid")

READING: tuple[tuple[str, ...], ...] = (
    ("query", "{index}", "--json", "how do whales sing", "bread"),
    ("query", "{index}", "--json", "whales"),
    ("query", "{index}", "--exact", "whales"),
    ("query", "{index}", "--json", "--where", "year > 1991", "--group-by", "year", "whales"),
    ("query", "{index}", "--json", "--hybrid", "whales"),
    ("query", "{index}", "--json", "--hybrid", "--hybrid-weight", "0.7", "whales"),
    ("query", "{index}", "--json", "--like", "d3"),
    ("query", "{index}", "--json", "--recall", "0.9", "bread"),
    ("query", "{index}", "--json", "-"),
    ("verify", "{index}"),
    ("inspect", "{index}"),
    ("inspect", "{index}", "--json"),
)
_KEPT = "kept.jsonl.gz"
_SMALL = ("--set", "papers.latte_mix.classes=4", "--set", "papers.latte_mix.dims=2")
_MAKING: tuple[tuple[str, ...], ...] = (
    ("query", "{index}", "whales", "-o", "{out}"),
    ("query", "{index}", "--queries", "queries.jsonl", "-o", "{out}"),
    ("inspect", "{index}", "-o", "{out}"),
    ("evaluate", "recall", "{index}", "--sample", "10"),
    ("evaluate", "recall", "{index}", "--queries", "queries.txt", "-o", "{out}"),
    ("evaluate", "retrieval", "beir", "--index", "{index}", "--no-bm25"),
    ("evaluate", "retrieval", "beir", "--config", "recipe.toml", "--no-bm25", "-o", "{out}"),
    ("evaluate", "words", "words.sim", "--set", "encoder.kind=static", "--set", "encoder.model=models/words.txt"),
    ("evaluate", "sts", "sts.tsv", "--config", "recipe.toml", "-o", "{out}"),
    ("evaluate", "layers", "sts.tsv", "--config", "recipe.toml", "-o", "{out}"),
    ("evaluate", "rte", "rte.jsonl", "--config", "recipe.toml", "-o", "{out}"),
    ("train", "latte-mix", "docs.jsonl", "--config", "recipe.toml", *_SMALL, "-o", "{out}"),
    ("report", "{index}", "-o", "{out}"),
    ("report", "{index}", "--results", "result.json", "--duplicates", "duplicates.parquet", "-o", "{out}"),
    ("export", "{index}", "--to", "faiss", "-o", "{out}"),
    ("export", "{index}", "--to", "parquet", "-o", "{out}"),
    ("export", "{index}", "--to", "sentence-transformers", "-o", "{out}"),
    ("export", "{index}", "--to", "trec-run", "--queries", "queries.jsonl", "-o", "{out}"),
    ("dedup", "{index}", "--threshold", "0.9", "-o", "{out}"),
    ("dedup", "{index}", "--threshold", "0.9", "--kept", _KEPT, "-o", "{out}"),
    ("dedup", "{index}", "--threshold", "0.9", "--save-pairs", "{out}"),
    ("dedup", "grown", "--threshold", "0.95", "--from-pairs", "pairs.parquet"),
    ("dedup", "{index}", "--verify", "duplicates.parquet"),
    ("dedup", "{index}", "--suggest"),
    ("dedup", "docs.csv", "--config", "recipe.toml", "--threshold", "0.9", "--kept", "{out}"),
    ("tune", "docs.jsonl", "--config", "recipe.toml", "--sample", "50", "-o", "{out}"),
    ("convert", "models/old", "-o", "{out}"),
    ("demo-corpus", "-o", "{out}"),
)
_WRITING: tuple[tuple[str, ...], ...] = (
    ("add", "{index}", "new.jsonl"),
    ("add", "{index}", "nameless.jsonl", "--on-error", "skip"),
    ("add", "{index}", "vectors.parquet"),
    ("add", "{index}", "docs.csv", "--on-error", "skip"),
    ("add", "{index}", "docs.txt"),
    ("build", "docs.jsonl", "{index}", "--config", "recipe.toml"),
    ("delete", "{index}", "d2", "d5"),
    ("delete", "{index}", "--ids-file", "ids.txt"),
    ("delete", "{index}", "--where", "year = 1991"),
    ("erase", "{index}", "d2", "--proof", "{out}"),
    ("refit", "{index}"),
    ("refit", "{index}", "--set", "whitening.strength=0.5"),
    ("refit", "{index}", "--config", "recipe.toml"),
    ("compact", "{index}", "--keep", "1", "--grace", "0"),
    ("compact", "{index}"),
)
_BUILDS: tuple[tuple[str, ...], ...] = (
    ("build", "docs.jsonl", "{new}", "--config", "recipe.toml"),
    ("build", "docs.jsonl", "{new}", "--config", "recipe.toml", "--on-error", "skip", "--rejects", "{out}"),
    ("build", "docs.jsonl", "grown", "--config", "recipe.toml", "--overwrite"),
    ("build", "docs.csv", "{new}", "--config", "recipe.toml", "--column", "year:int"),
    ("build", "docs.parquet", "{new}", "--config", "recipe.toml", "--transform-from", "grown"),
    ("build", "docs.arrow", "{new}", "--config", "recipe.toml", "--queries", "queries.txt"),
    ("build", "docs.txt", "{new}", "--config", "recipe.toml"),
    ("build", "-", "{new}", "--config", "recipe.toml", "--format", "jsonl"),
    ("build", "vectors.parquet", "{new}", "--vector-column", "vector"),
    ("build", "docs.jsonl", "{new}", "--set", "encoder.kind=static", "--set", "encoder.model=models/words.txt"),
)
_STDIN = (
    b"", b"whales\nbread\n", b"\xef\xbb\xbfwhales\r\n", b"\xff\xfe\x00\n", b"\n\n", b"a\0b\n", b'{"id": "a"}\n',
    b'{"id": "a", "text": "b"}\n', b'{"_id": "a", "_id": "b", "text": "c"}\n', b"x" * 9000, None,
)  # fmt: skip


def reading(indexes: Sequence[str] = INDEXES) -> st.SearchStrategy[Command]:
    """Commands that people use to read an index, as they should be typed."""
    return _filled(READING, indexes)


def ordinary(indexes: Sequence[str] = INDEXES) -> st.SearchStrategy[Command]:
    """Any command on an index, as it should be typed."""
    of_an_index = tuple(each for each in _MAKING if "{index}" in each)
    return st.one_of(_filled(READING, indexes), _filled(of_an_index, indexes), _filled(_WRITING, indexes))


def writing(indexes: Sequence[str] = INDEXES) -> st.SearchStrategy[Command]:
    """Commands that change an index."""
    return _filled(_WRITING, indexes)


def taking_files() -> st.SearchStrategy[Command]:
    """Commands that read corpora, models, queries and results."""
    return st.one_of(_filled(_BUILDS), _filled(_BUILDS), _filled(_MAKING), _filled(_WRITING))


def with_hostile_outputs() -> st.SearchStrategy[Command]:
    """Commands that write files to existing paths."""
    writing = tuple(each for each in (*_MAKING, *_BUILDS) if "{out}" in each)
    return _filled(writing, out=_TAKEN, forced=True)


def with_hostile_options() -> st.SearchStrategy[Command]:
    """Any command with any options and hostile values."""
    return _filled((*READING, *_MAKING, *_WRITING, *_BUILDS), INDEXES, (*_NEW, *_TAKEN), forced=True, extra=3)


@st.composite
def _filled(
    draw: st.DrawFn,
    templates: Sequence[tuple[str, ...]],
    indexes: Sequence[str] = INDEXES,
    out: Sequence[str] = _NEW,
    forced: bool = False,
    extra: int = 0,
) -> Command:
    """A template with its placeholders filled, and up to `extra` more options, some with hostile values."""
    template = draw(st.sampled_from(templates))
    output, new = draw(st.sampled_from(out)), draw(st.sampled_from(("fresh", "folder", "grown")))
    index = draw(st.sampled_from(indexes))
    argv = [word.format(index=index, out=output, new=new) for word in template]
    if argv[0] == "query" and index in _OF_VECTORS:
        argv = [word for word in argv if word not in _QUESTIONS] + ["--queries", "queries.npy"]
    outputs = [output] * ("{out}" in template) + [_KEPT] * (_KEPT in template)
    writes = _written(argv)
    depth = 2 if argv[0] == "evaluate" else 1
    options = _options(tuple(argv[:depth]))
    for option in draw(_some(options, extra)):
        argv += _given(draw, option, outputs)
    if extra and draw(st.integers(0, 3)) == 0:  # another positional argument, or a hostile one in its place
        at = draw(st.integers(depth, max(depth, len(template) - 1)))
        if not argv[at].startswith("-") and not argv[at - 1].startswith("-"):
            outputs += [argv[at]] if argv[at] in outputs else []
            argv[at] = draw(st.sampled_from(_PLACES))
            writes = _written(argv)
            outputs = [argv[at] if each == output else each for each in outputs]
    if any("--force" in option.opts for option in options) and forced and draw(st.booleans()):
        argv.append("--force")
    if argv[0] in ("add", "build") and writes:
        outputs += [f"{writes}.rejects.jsonl", f"{writes}.add.rejects.jsonl"]
    stdin = draw(st.sampled_from(_STDIN)) if "-" in argv or extra else b""
    return Command(tuple(argv), writes, tuple(outputs), stdin)


def _some(options: Sequence[click.Option], most: int) -> st.SearchStrategy[list[click.Option]]:
    if not options:
        return st.just([])
    return st.lists(st.sampled_from(options), max_size=most, unique_by=lambda option: option.name)


def _written(argv: Sequence[str]) -> str | None:
    """Return the index that a command creates or changes."""
    if argv[0] in ("add", "delete", "erase", "refit", "compact"):
        return argv[1]
    return argv[2] if argv[0] == "build" else None


@cache
def _options(verb: tuple[str, ...]) -> tuple[click.Option, ...]:
    """Return the options of a command."""
    from search.cli import cli

    command: click.Command | None = cli
    for name in verb:
        assert isinstance(command, click.Group)
        command = command.get_command(click.Context(command), name)
    assert command is not None
    return tuple(
        parameter
        for parameter in command.params
        if isinstance(parameter, click.Option) and parameter.name not in _MEASURES_THE_MACHINE
    )


def _given(draw: st.DrawFn, option: click.Option, outputs: list[str]) -> list[str]:
    """Return an option with a value; output paths are added to `outputs`."""
    name = str(option.name)
    if option.is_flag:
        return [option.opts[0]]
    if isinstance(option.type, click.Choice):
        value = str(draw(st.sampled_from((*option.type.choices, "nope"))))
    elif name in _BY_NAME:
        value = draw(st.sampled_from(_BY_NAME[name]))
    elif name in _OUTPUTS:
        value = draw(st.sampled_from((*_NEW, *_TAKEN)))
        outputs.append(value)
    elif isinstance(option.type, click.Path):
        value = draw(st.sampled_from((*INPUTS, *_PLACES)))
    elif option.type.name in ("integer", "float", "integer range", "float range"):
        value = draw(st.sampled_from(_NUMBERS))
    else:
        value = draw(st.sampled_from(_TEXTS))
    return [option.opts[0], value]
