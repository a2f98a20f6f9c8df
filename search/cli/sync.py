"""`isotrope sync`."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from search.cli.options import (
    CORPUS_NAMES,
    PATH,
    beside,
    change_options,
    check_rejects,
    corpus_of,
    corpus_options,
    documents_option,
    given_flags,
    recipe_of,
    recipe_reads,
    rejects_file,
    run_options,
    skips_bad_rows,
    worker_options,
)
from search.cli.review import review_options, reviewed

if TYPE_CHECKING:
    from indexer.corpus.corpus import CorpusReport
    from indexer.pipeline.sync import SyncPlan, SyncReport
    from indexer.recipe.config import BuildConfig

_SHOWN = 5  # ids of each kind
_PAUSE = 1.0  # seconds between attempts to lock the index


@click.command("sync")
@click.argument("sources", nargs=-1, metavar="SOURCE...")
@click.argument("index", type=PATH)
@documents_option
@corpus_options
@click.option("--rejects", type=PATH, help="File for skipped rows or files. Default: INDEX.sync.rejects.jsonl.")
@click.option("--force", is_flag=True, help="Delete more than half of the documents; overwrite --rejects.")
@click.option("--dry-run", is_flag=True, help="Print the changes, and write nothing.")
@click.option("--watch", is_flag=True, help="Keep running, and sync after each change of the sources, until Ctrl-C.")
@worker_options
@change_options
@review_options
def sync(sources: tuple[str, ...], index: Path, as_json: bool, **options: Any) -> None:
    """Make an index equal to its sources: add, replace and delete documents.

    SOURCE is as in isotrope build, and INDEX the folder of the index; both may be URLs in object storage (s3://, gs://
    or az://). The first run builds the index with the recipe of the options; later runs use the recipe of the index.
    Unchanged documents stay, and texts that the index knows are not encoded again. With --documents files only new and
    changed files are read, and a file that cannot be read keeps its document.

    The run stops and changes nothing if it would delete more than half of the documents: a disk may not be mounted.
    The same command again continues an interrupted run. A running isotrope serve loads each new generation.

    \b
    Examples:
      isotrope sync demo/stdlib.jsonl sync-index
      isotrope sync demo/stdlib.jsonl sync-index --dry-run
      isotrope sync ~/notes notes-index --documents files --watch
    """
    if not sources:
        raise click.UsageError("Missing argument SOURCE. Usage: isotrope sync SOURCE... INDEX")
    if options["dry_run"] and options["watch"]:
        raise click.UsageError("--dry-run and --watch cannot be combined. Fix: leave one out.")
    if options["dry_run"]:
        _dry_run(sources, index, as_json, options)
    elif options["watch"]:
        printed = list[str]()  # notes of the last run, which the next one does not repeat
        _watch(sources, index, options, lambda: _run(sources, index, as_json, options, printed))
    else:
        _run(sources, index, as_json, options, [])


def _config(index: Path, options: dict[str, Any]) -> "tuple[BuildConfig, BuildConfig | None]":
    """Return the recipe that the corpus is read by, and the one that the options name, None for that of the index."""
    from indexer.recipe.config import BuildConfig
    from indexer.store.manifest import list_generations, load_manifest

    named = [name for name in CORPUS_NAMES if name not in ("format_", "on_error")]
    if given_flags(named) or not list_generations(index):
        config = recipe_of(options)
        return config, config
    return BuildConfig.from_dict(load_manifest(index).config), None


def _dry_run(sources: tuple[str, ...], index: Path, as_json: bool, options: dict[str, Any]) -> None:
    from indexer import plan_sync
    from search.cli.output import print_report

    config, named = _config(index, options)
    corpus = corpus_of(sources, config, options, None)
    plan = plan_sync(corpus, index, named)
    refused = ["isotrope sync refuses to delete more than half of the documents without --force"]
    remarks = refused if plan.needs_force and not options["force"] else []
    if not print_report(plan, as_json, corpus.report, remarks):
        _print_plan(plan)


def _print_plan(plan: "SyncPlan") -> None:
    from search.cli.output import print_facts

    place = f"{plan.index}, generation {plan.generation}" if plan.generation else f"{plan.index}, not built yet"
    print_facts(
        [
            ("index", place),
            ("documents", f"{plan.documents:,} now, {plan.unchanged:,} unchanged"),
            ("to add", _ids(plan.added)),
            ("to replace", _ids(plan.replaced)),
            ("to delete", _ids(plan.deleted)),
        ]
    )


def _ids(ids: tuple[str, ...]) -> str:
    """Return the number of ids and the first ones."""
    return f"{len(ids):,}" + (f": {', '.join(ids[:_SHOWN])}" if ids else "") + (", ..." if len(ids) > _SHOWN else "")


def _run(sources: tuple[str, ...], index: Path, as_json: bool, options: dict[str, Any], printed: list[str]) -> None:
    from indexer import sync_index
    from indexer.pipeline.train import train_for_index
    from search.cli.output import print_note, stdout_free_for
    from search.cli.progress import ProgressBar

    config, named = _config(index, options)
    skip = skips_bad_rows(config, options)
    run = run_options(options, quarantine=skip)
    rejects = rejects_file(options["rejects"], index, ".sync.rejects.jsonl", skip)
    corpus = corpus_of(sources, config, options, rejects)
    reads = [options["model"], options["recipe"], *recipe_reads(config)]
    check_rejects(rejects if skip else None, reads, {"INDEX": index})
    with ProgressBar(options["quiet"]) as progress, reviewed(options, progress.pause):
        note = train_for_index(corpus, index, config, run, progress) if named else ""
        report = sync_index(corpus, index, named, run, progress, force=options["force"], model=options["model"])
    if note:
        print_note(note)
    with stdout_free_for(rejects):
        _print(report, corpus.report, as_json, printed)


def _watch(sources: tuple[str, ...], index: Path, options: dict[str, Any], run: Callable[[], None]) -> None:
    """Run now and after each change. An error of a run is printed; the next change runs again."""
    from indexer.errors import IsotropeError
    from search.cli import print_error
    from search.cli.watching import watch_sources

    rejects = options["rejects"] or beside(index, ".sync.rejects.jsonl")
    for _ in watch_sources(sources, [index, rejects]):
        try:
            _unlocked(run)
        except (IsotropeError, OSError) as error:
            print_error(str(error))


def _unlocked(run: Callable[[], None]) -> None:
    """Run once no other process writes to the index."""
    from indexer.errors import LockedError
    from search.cli.output import print_note

    waiting = False
    while True:
        try:
            return run()
        except LockedError:
            if not waiting:
                print_note("another process is writing to the index; waiting for it to end")
            waiting = True
            time.sleep(_PAUSE)


def _print(report: "SyncReport", read: "CorpusReport", as_json: bool, printed: list[str]) -> None:
    from search.cli.output import print_facts, print_line, print_report
    from search.describe import drift_in_words
    from search.formatting import counted

    named = f"{', '.join(report.kept[:_SHOWN])}{', ...' if len(report.kept) > _SHOWN else ''}"
    kept = [f"the index keeps the documents of {counted(len(report.kept), 'file')} that could not be read: {named}"]
    cut = [f"{report.truncated:,} texts were longer than encoder.max_length and cut there"]
    remarks = [*(kept if report.kept else ()), *(cut if report.truncated else ())]
    drift = report.drift.to_dict() if report.drift else None
    if print_report(report, as_json, read, remarks, printed, drift=drift):
        return
    changes = f"{report.added:,} added, {report.replaced:,} replaced, {report.deleted:,} deleted"
    if not (report.added or report.replaced or report.deleted):
        print_line(f"{report.index} is up to date: {report.documents:,} documents, generation {report.generation}.")
        return
    texts = ("texts", f"{report.rows_encoded:,} encoded, {report.rows_reused:,} reused")
    print_facts(
        [
            ("index", f"{report.index}, generation {report.generation}"),
            ("documents", f"{report.documents:,} now"),
            ("changes", f"{changes}, {report.unchanged:,} unchanged"),
            ("embeddings", f"{report.rows_given:,} from the corpus") if report.rows_given else texts,
            ("encoder", report.backend),
            ("drift", drift_in_words(report.drift, report.index) if report.drift else ""),
        ]
    )
