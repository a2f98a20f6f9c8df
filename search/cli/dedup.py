"""`isotrope dedup`."""

import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from search.cli.options import (
    CORPUS_NAMES,
    PATH,
    beside,
    check_written,
    corpus_of,
    corpus_options,
    documents_option,
    force_option,
    given_flags,
    hardware_options,
    quiet_option,
    recipe_of,
    recipe_reads,
    run_options,
    skips_bad_rows,
    worker_options,
)

if TYPE_CHECKING:
    from indexer.progress import Progress
    from search.dedup.corpus import CorpusBuild
    from search.dedup.settings import DedupFiles, DedupSettings, JoinOptions

_DECIDING = ("prefer", "text_duplicates", "method", "only_against")
_WRITING = ("output", "kept", "save_pairs", "from_pairs")
_WRITTEN = {"output": "-o", "kept": "--kept", "save_pairs": "--save-pairs"}
_FOREIGN = {  # mode -> options that have no meaning with it
    "threshold": (),
    "suggest": (*_DECIDING, *_WRITING, "against"),
    "verify": (*_DECIDING, *_WRITING, "force", "floor", "keep_index"),
}


@click.command("dedup")
@click.argument("sources", nargs=-1, required=True, metavar="INDEX|CORPUS...")
@click.option("--threshold", type=float, help="Documents that score at least this are duplicates; above -1, up to 1.")
@click.option("--suggest", is_flag=True, help="Show the pairs and dropped documents of each threshold, with examples.")
@click.option("--verify", type=PATH, metavar="FILE", help="Prove a file of duplicates with an independent method.")
@click.option("-o", "--output", type=PATH, metavar="FILE", help="Write one row per dropped document: .parquet "
              "(which --verify reads), or .csv or .jsonl with the texts of both documents.")  # fmt: skip
@click.option("--kept", type=PATH, metavar="FILE", help="Write the surviving corpus, with all its columns.")
@click.option("--prefer", default="first", show_default=True, metavar="WAY", help="Which of two duplicates to keep: "
              "first, last, longest, or column:NAME (the smallest; column:NAME:desc the largest).")  # fmt: skip
@click.option("--text-duplicates", type=click.Choice(["keep", "drop"]), default="keep", show_default=True, help="Keep "
              "or drop documents of equal text (Unicode and white space normalised) below the threshold.")  # fmt: skip
@click.option("--method", type=click.Choice(["exact", "ann"]), default="exact", show_default=True, help="ann compares "
              "only neighbouring cells, for tens of millions of documents; it measures its recall.")  # fmt: skip
@click.option("--against", type=PATH, metavar="INDEX", help="Also drop duplicates of this other index of the same "
              "encoder.")  # fmt: skip
@click.option("--only-against", is_flag=True, help="Compare only with --against, not with each other.")
@click.option("--save-pairs", type=PATH, metavar="FILE", help="Save all pairs, to try other thresholds quickly.")
@click.option("--floor", type=float, help="Lowest score of the pairs that --save-pairs saves (default: the threshold) "
              "or --suggest counts (default: chosen from the scores).")  # fmt: skip
@click.option("--from-pairs", type=PATH, metavar="FILE", help="Read the pairs of --save-pairs instead of joining.")
@documents_option
@corpus_options
@click.option("--keep-index", type=PATH, metavar="DIR", help="Keep the index of a CORPUS here; --force "
              "replaces an index of another recipe or corpus. Default: a temporary folder.")  # fmt: skip
@hardware_options
@worker_options
@force_option
@click.option("--memory", default="1G", show_default=True, help="Working memory, such as 512M or 8G.")
@click.option("--json", "as_json", is_flag=True, help="Print the summary as JSON.")
@quiet_option
def command(sources: tuple[str, ...], quiet: bool, **options: Any) -> None:
    """Find near-duplicates, and prove the result.

    In corpus order (or that of --prefer), a document is kept unless a kept document scores at least the threshold
    against it. Every dropped document names the kept document that scores highest against it, and no two kept
    documents reach the threshold. A CORPUS is encoded first.
    INDEX and CORPUS may be URLs in object storage (s3://, gs:// or az://).

    \b
    Examples:
      isotrope dedup demo/index --suggest
      isotrope dedup demo/index --threshold 0.95 -o duplicates.parquet --kept kept.jsonl
      isotrope dedup demo/index --verify duplicates.parquet
      isotrope dedup demo/index --threshold 0.95 -o duplicates.csv
      isotrope dedup demo/stdlib.jsonl --threshold 0.95 --kept unique.jsonl
    """
    from search.cli.progress import ProgressBar

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # exit normally, to remove temporary folders
    mode = _mode(options)
    index = _index_among(sources, mode)
    if mode == "threshold":
        _check_before(sources, options)
    with ProgressBar(quiet) as progress:
        if mode == "suggest":
            passed = _suggest(index, sources, options, progress)
        elif index is None:
            passed = _deduplicate_corpus(sources, options, progress)
        elif mode == "verify":
            passed = _verify(index, options, progress)
        else:
            passed = _deduplicate_index(index, options, progress)
    if not passed:
        sys.exit(1)


def _mode(options: dict[str, Any]) -> str:
    """Return the mode. Raises UsageError for options that do not apply to it."""
    modes = [name for name in _FOREIGN if options[name] is not None and options[name] is not False]
    if len(modes) != 1:
        named = "none was given" if not modes else f"{' and '.join(f'--{name}' for name in modes)} were given"
        raise click.UsageError(f"one of --threshold T, --suggest and --verify FILE is needed; {named}.")
    if given := given_flags(_FOREIGN[modes[0]]):
        raise click.UsageError(f"{given[0]} does not apply to --{modes[0]}.")
    return modes[0]


def _join_options(options: dict[str, Any]) -> "JoinOptions":
    from search.dedup.settings import JoinOptions, parse_memory

    memory = parse_memory(options["memory"])
    return JoinOptions(options["device"], options["threads"], memory, run_options(options).pool)


def _index_among(sources: tuple[str, ...], mode: str) -> Path | None:
    """Return the index, None for a corpus. Raises ConfigError for an index with options of a corpus."""
    from indexer.errors import ConfigError
    from indexer.store.manifest import published_at

    indexes = [index for source in sources if (index := published_at(source))]
    if not indexes and mode != "verify":
        return None
    if not indexes and Path(sources[0]).is_file():
        raise ConfigError(
            f"{sources[0]}: --verify needs an index. Fix: find the duplicates with --keep-index DIR, and name DIR here."
        )
    if len(sources) > 1:
        raise ConfigError(
            f"{(indexes or sources)[0]}: an index is deduplicated alone. Fix: leave out the other sources."
        )
    if given := given_flags((*CORPUS_NAMES, "keep_index", "backend")):
        raise ConfigError(f"{given[0]} is for a corpus, but {sources[0]} is an index. Fix: leave it out.")
    return indexes[0] if indexes else Path(sources[0])


def _check_before(sources: tuple[str, ...], options: dict[str, Any]) -> None:
    """Raise ConfigError and ExistsError for mistakes before minutes of work."""
    from indexer.errors import ConfigError
    from search.dedup.inputs import require_another

    for other_option, name in (("from_pairs", "method"), ("only_against", "prefer")):
        if options[other_option] and (given := given_flags([name])):
            raise ConfigError(f"{given[0]} has no effect with --{other_option.replace('_', '-')}. Fix: leave it out.")
    for index in (*sources, options["keep_index"]):
        require_another(index, options["against"])
    named = (options[name] for name in ("against", "from_pairs", "recipe"))
    made = {"--keep-index": options["keep_index"]} if options["keep_index"] else {}
    reads = [*sources, *named, *recipe_reads(recipe_of(options))]
    check_written(_written(options), reads, options["force"], made, whole=["--save-pairs"])


def _deduplicate_index(index: Path, options: dict[str, Any], progress: "Progress") -> bool:
    from search.dedup.corpus import deduplicate_opened
    from search.index import Index

    files, join = _files(options), _join_options(options)
    opened, other = Index.open(index), Index.open(options["against"]) if options["against"] else None
    findings = deduplicate_opened(opened, _settings(options), files, other, join, progress)
    _show(findings.facts, findings.written, options)
    return True


def _deduplicate_corpus(sources: tuple[str, ...], options: dict[str, Any], progress: "Progress") -> bool:
    from search.cli.output import print_note, remarks_on
    from search.dedup.corpus import deduplicate_corpus

    build = _build(options)
    corpus = corpus_of(sources, build.config, options, _rejects(options))
    result = deduplicate_corpus(corpus, _settings(options), build, _files(options), options["against"], progress)
    for line in [*result.notes, *remarks_on(corpus.report)]:
        print_note(line)
    if options["output"] and not options["keep_index"]:
        print_note("--verify needs the index of this corpus, which was temporary; keep it with --keep-index DIR")
    _show(result.facts, result.written, options)
    return True


def _rejects(options: dict[str, Any]) -> Path | None:
    """Return the list of skipped rows: next to the index, as `isotrope build` writes it; None for a temporary index."""
    return beside(options["keep_index"], ".rejects.jsonl") if options["keep_index"] else None


def _build(options: dict[str, Any]) -> "CorpusBuild":
    from search.cli.output import print_note
    from search.dedup.corpus import CorpusBuild
    from search.dedup.settings import parse_memory

    if options["device"] == "mps":
        print_note("--device mps runs only the encoder; near-duplicates are found on the CPU")
    config = recipe_of(options)
    run = run_options(options, quarantine=skips_bad_rows(config, options), overwrite=options["force"])
    return CorpusBuild(config, run, options["keep_index"], parse_memory(options["memory"]))


def _show(facts: dict[str, Any], written: "Mapping[str, int]", options: dict[str, Any]) -> None:
    from search.cli.dedup_output import show_summary
    from search.cli.output import stdout_free_for

    with stdout_free_for(*_written(options).values()):
        show_summary(facts, written, options["as_json"])


def _written(options: dict[str, Any]) -> dict[str, Path]:
    return {option: options[name] for name, option in _WRITTEN.items() if options[name]}


def _settings(options: dict[str, Any]) -> "DedupSettings":
    from search.dedup.settings import DedupSettings

    names = ("threshold", "prefer", "method", "text_duplicates", "only_against")
    return DedupSettings(**{name: options[name] for name in names})


def _files(options: dict[str, Any]) -> "DedupFiles":
    from search.dedup.settings import DedupFiles, PairFiles

    pairs = PairFiles(options["from_pairs"], options["save_pairs"], options["floor"], options["force"])
    return DedupFiles(options["output"], options["kept"], pairs, options["force"])


def _verify(index: Path, options: dict[str, Any], progress: "Progress") -> bool:
    from search.cli.dedup_output import show_proof
    from search.dedup.verify import verify_duplicates

    proof = verify_duplicates(options["verify"], index, progress, options["against"], _join_options(options))
    show_proof(proof, options["verify"], options["as_json"])
    return proof.passed


def _suggest(index: Path | None, sources: tuple[str, ...], options: dict[str, Any], progress: "Progress") -> bool:
    from search.cli.dedup_output import show_suggestion
    from search.cli.output import print_note, remarks_on
    from search.dedup.corpus import built_index
    from search.dedup.suggest import suggest_thresholds

    if index:
        suggestion = suggest_thresholds(index, _join_options(options), progress, options["floor"])
    else:
        build = _build(options)
        corpus = corpus_of(sources, build.config, options, _rejects(options))
        with built_index(corpus, build, progress) as (opened, notes):
            for line in [*notes, *remarks_on(corpus.report)]:
                print_note(line)
            suggestion = suggest_thresholds(opened, build.join, progress, options["floor"])
    show_suggestion(suggestion, options["as_json"])
    return True
