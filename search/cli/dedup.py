"""`isotrope dedup`."""

import os
import signal
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from search.cli.options import (
    CORPUS_NAMES,
    check_written,
    corpus_of,
    corpus_options,
    force_option,
    hardware_options,
    recipe_of,
    recipe_reads,
    run_options,
)

if TYPE_CHECKING:
    from indexer.corpus import Corpus
    from indexer.progress import Progress
    from search.dedup.settings import DedupSettings, JoinOptions, PairFiles

_DECIDING = ("prefer", "text_duplicates", "method", "only_against")
_WRITING = ("output", "kept", "save_pairs", "from_pairs", "force")
_WRITTEN = {"output": "-o", "kept": "--kept", "save_pairs": "--save-pairs"}
_FOREIGN = {  # mode -> options that have no meaning with it
    "threshold": ("labelled",),
    "suggest": (*_DECIDING, *_WRITING, "against"),
    "verify": (*_DECIDING, *_WRITING, "floor", "labelled", "index"),
}
_PATH = click.Path(path_type=Path)


@click.command("dedup")
@click.argument("sources", nargs=-1, required=True, metavar="INDEX|CORPUS...")
@click.option("--threshold", type=float, help="Documents that score at least this are duplicates; above -1, up to 1.")
@click.option("--suggest", is_flag=True, help="Show what each threshold would mean here, with examples to read.")
@click.option("--verify", type=_PATH, metavar="FILE", help="Prove a file of duplicates, by a way of its own.")
@click.option("-o", "--output", type=_PATH, metavar="FILE", help="Write one row a dropped document (Parquet).")
@click.option("--kept", type=_PATH, metavar="FILE", help="Write the surviving corpus, with all its columns.")
@click.option("--prefer", default="first", show_default=True, metavar="WAY", help="Which of two duplicates stays: "
              "first, last, longest, or column:NAME (the smallest; column:NAME:desc the largest).")  # fmt: skip
@click.option(
    "--text-duplicates",
    type=click.Choice(["keep", "drop"]),
    default="keep",
    show_default=True,
    help="What becomes of documents of equal text (Unicode and white space normalised) that score below the threshold.",
)
@click.option("--method", type=click.Choice(["exact", "ann"]), default="exact", show_default=True, help="ann compares "
              "neighbouring cells only, for tens of millions; the share of pairs it finds is measured.")  # fmt: skip
@click.option("--against", type=_PATH, metavar="INDEX", help="Drop what is in this other index of the same encoder "
              "too.")  # fmt: skip
@click.option("--only-against", is_flag=True, help="Compare with --against alone, not with each other.")
@click.option("--save-pairs", type=_PATH, metavar="FILE", help="Keep all pairs, to try other thresholds at once.")
@click.option("--floor", type=float, help="Lowest score of the pairs that --save-pairs keeps (default: the "
              "threshold) or --suggest looks at (default: where pairs begin to be of interest).")  # fmt: skip
@click.option("--from-pairs", type=_PATH, metavar="FILE", help="Take the pairs of --save-pairs instead of joining.")
@click.option("--pairs", "labelled", type=_PATH, metavar="FILE", help="With --suggest: pairs of ids labelled 1 or 0 "
              "(TSV), for precision and recall.")  # fmt: skip
@corpus_options
@click.option("--index", "index", type=_PATH, metavar="DIR", help="Keep the index of a CORPUS here. Default: a "
              "temporary folder.")  # fmt: skip
@hardware_options
@force_option
@click.option("--memory", default="1G", show_default=True, help="Working memory, such as 512M or 8G.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@click.option("--quiet", is_flag=True, help="No progress bars.")
@click.pass_context
def command(ctx: click.Context, /, sources: tuple[str, ...], quiet: bool, **options: Any) -> None:
    """Find near-duplicates, and prove it.

    In corpus order (or that of --prefer) a document is kept unless a kept one scores at least the threshold against
    it. So every dropped document has a kept representative that scores as much, the highest-scoring of all that are
    kept; and no two kept documents score as much. A CORPUS is encoded first; an INDEX is there already.

    \b
    Examples:
      isotrope dedup my-index --suggest
      isotrope dedup my-index --threshold 0.95 -o duplicates.parquet --kept kept.jsonl
      isotrope dedup my-index --verify duplicates.parquet
      isotrope dedup docs.jsonl --threshold 0.95 --kept unique.jsonl
    """
    from search.cli.progress import ProgressBar

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that temporary folders go also when it is stopped
    mode = _mode(ctx, options)
    run = _run_options(options)
    if mode == "threshold":
        _check_before(ctx, sources, options)
    with ProgressBar(quiet) as progress, _index_of(ctx, sources, options, progress) as (place, corpus):
        if mode == "verify":
            passed = _verify(place, options, run, progress)
        elif mode == "suggest":
            passed = _suggest(place, options, run, progress)
        else:
            passed = _deduplicate(place, corpus, options, run, progress)
    if not passed:
        sys.exit(1)


def _mode(ctx: click.Context, options: dict[str, Any]) -> str:
    """What was asked for; options that have no meaning with it are refused."""
    asked = [name for name in _FOREIGN if options[name] is not None and options[name] is not False]
    if len(asked) != 1:
        found = "none was given" if not asked else f"{' and '.join(f'--{name}' for name in asked)} were given"
        raise click.UsageError(f"one of --threshold T, --suggest and --verify FILE is needed; {found}.", ctx)
    if given := _given(ctx, _FOREIGN[asked[0]]):
        raise click.UsageError(f"{given[0]} has no meaning with --{asked[0]}.", ctx)
    return asked[0]


def _given(ctx: click.Context, names: Iterable[str]) -> list[str]:
    """Those of some options that stand on the command line, as they are written there."""
    flags = {parameter.name: parameter.opts[0] for parameter in ctx.command.params}
    return [flags[name] for name in names if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE]


def _run_options(options: dict[str, Any]) -> "JoinOptions":
    from search.dedup.settings import JoinOptions, parse_memory

    return JoinOptions(options["device"], options["threads"], parse_memory(options["memory"]))


def _check_before(ctx: click.Context, sources: tuple[str, ...], options: dict[str, Any]) -> None:
    """Mistakes are said now, not after minutes of encoding."""
    from indexer.errors import ConfigError
    from search.dedup.inputs import require_another
    from search.dedup.kept import check_kept
    from search.index import Index

    settings = _settings(options)
    for other_option, name in (("from_pairs", "method"), ("only_against", "prefer")):
        if options[other_option] and (given := _given(ctx, [name])):
            raise ConfigError(f"{given[0]} has no effect with --{other_option.replace('_', '-')}. Leave it out.")
    _pair_files(options).check(settings)
    if (folder := os.environ.get("TMPDIR")) and not os.access(folder, os.W_OK):
        raise ConfigError(f"TMPDIR is {folder}, which cannot be written; vectors lie there while this runs.")
    if settings.only_against and not options["against"]:
        raise ConfigError("--only-against compares with another index alone; name it with --against INDEX.")
    for index in (*sources, options["index"]):
        require_another(index, options["against"])
    other = Index.open(options["against"]) if options["against"] else None
    reads = [
        *sources,
        *(options[name] for name in ("against", "from_pairs", "recipe")),
        *recipe_reads(recipe_of(options)),
    ]
    made = {"--index": options["index"]} if options["index"] else {}
    check_written(_written(options), reads, options["force"], made, whole=["--save-pairs"])
    if options["kept"]:
        check_kept(options["kept"], other, force=options["force"])


@contextmanager
def _index_of(
    ctx: click.Context, sources: tuple[str, ...], options: dict[str, Any], progress: "Progress"
) -> Iterator[tuple[Path, "Corpus | None"]]:
    """The index to work on; a corpus is built first, into --index or a folder that goes afterwards."""
    from indexer import build_index
    from indexer.errors import ConfigError
    from indexer.store.layout import is_index
    from search.cli.output import print_note, remarks_on
    from search.dedup.kept import check_kept

    indexes = [source for source in sources if is_index(source)]
    if indexes or options["verify"]:
        if len(sources) > 1:
            raise ConfigError(
                f"{(indexes or sources)[0]}: an index is deduplicated alone. Leave out the other sources."
            )
        if given := _given(ctx, (*CORPUS_NAMES, "index")):
            raise ConfigError(f"{given[0]} is for a corpus, but {sources[0]} is an index. Leave it out.")
        yield Path(sources[0]), None
        return
    config = recipe_of(options)
    corpus = corpus_of(sources, config, options, None)
    if options["kept"]:
        check_kept(options["kept"], corpus=corpus, force=options["force"])
    with TemporaryDirectory(prefix="isotrope-dedup-") as folder:
        place = options["index"] or Path(folder) / "index"
        report = build_index(corpus, place, config, run_options(options), progress)
        for line in [*report.notes, *remarks_on(corpus.report)]:
            print_note(line)
        yield place, corpus
    if options["output"] and not options["index"]:
        print_note("the index of this corpus is gone, and only it can prove what was written; keep it with --index DIR")


def _deduplicate(
    place: Path, corpus: "Corpus | None", options: dict[str, Any], run: "JoinOptions", progress: "Progress"
) -> bool:
    from search.cli.dedup_output import show_summary
    from search.cli.output import stdout_free_for
    from search.dedup.deduplicate import deduplicate
    from search.dedup.kept import check_kept, write_kept
    from search.index import Index

    force = options["force"]
    if options["kept"]:
        check_kept(options["kept"], Index.open(place), corpus, force)
    result = deduplicate(place, _settings(options), options["against"], _pair_files(options), run, progress)
    written = {}
    if options["output"]:
        written[str(options["output"])] = result.write(options["output"], force).bytes
    if options["kept"]:
        progress.phase("writing what is kept", None)
        written[str(options["kept"])] = write_kept(options["kept"], result.index, result.kept, corpus, force).bytes
    if options["save_pairs"]:
        written[str(options["save_pairs"])] = options["save_pairs"].stat().st_size
    with stdout_free_for(*_written(options).values()):
        show_summary(result.facts, written, options["as_json"])
    return True


def _written(options: dict[str, Any]) -> dict[str, Path]:
    return {option: options[name] for name, option in _WRITTEN.items() if options[name]}


def _settings(options: dict[str, Any]) -> "DedupSettings":
    from search.dedup.settings import DedupSettings

    names = ("threshold", "prefer", "method", "text_duplicates", "only_against")
    return DedupSettings(**{name: options[name] for name in names})


def _pair_files(options: dict[str, Any]) -> "PairFiles":
    from search.dedup.settings import PairFiles

    return PairFiles(options["from_pairs"], options["save_pairs"], options["floor"], options["force"])


def _verify(place: Path, options: dict[str, Any], run: "JoinOptions", progress: "Progress") -> bool:
    from search.cli.dedup_output import show_proof
    from search.dedup.verify import verify_duplicates

    proof = verify_duplicates(options["verify"], place, progress, options["against"], run)
    show_proof(proof, options["verify"], options["as_json"])
    return proof.passed


def _suggest(place: Path, options: dict[str, Any], run: "JoinOptions", progress: "Progress") -> bool:
    from search.cli.dedup_output import show_suggestion
    from search.dedup.suggest import suggest_thresholds

    show_suggestion(suggest_thresholds(place, options["labelled"], run, progress, options["floor"]), options["as_json"])
    return True
