"""`isotrope add`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from search.cli.options import (
    PATH,
    WORKER_NAMES,
    change_options,
    check_rejects,
    corpus_of,
    force_option,
    format_option,
    on_error_option,
    recipe_reads,
    rejects_file,
    run_options,
    worker_options,
)
from search.describe import drift_in_words

if TYPE_CHECKING:
    from indexer.corpus.corpus import CorpusReport
    from indexer.pipeline.add import AddReport


@click.command("add")
@click.argument("index", type=PATH)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@format_option
@on_error_option
@click.option("--rejects", type=PATH, help="File for rejected rows. Default: INDEX.add.rejects.jsonl.")
@force_option
@worker_options
@change_options
def command(index: Path, sources: tuple[str, ...], rejects: Path | None, as_json: bool, **options: Any) -> None:
    """Add documents to an index, or replace them by id.

    INDEX and SOURCE are paths or URLs in object storage (s3://, gs:// or az://).
    Documents are read with the column rules of the index and encoded with its encoder and transform. Unchanged
    documents are skipped; a document with a known id replaces the stored one. The command advises a refit if the new
    documents differ too much from those the whitening was fitted on.

    \b
    Examples, on the index of `make demo`:
      isotrope add demo/index demo/stdlib.jsonl
      isotrope add demo/index new.jsonl --on-error skip --json
    """
    from indexer import add_documents
    from indexer.recipe.config import BuildConfig
    from indexer.store.manifest import load_manifest
    from search.cli.output import stdout_free_for
    from search.cli.progress import ProgressBar

    config = BuildConfig.from_dict(load_manifest(index).config)
    fields = (*WORKER_NAMES, "allow_low_recall")
    run = run_options(options, quarantine=options["on_error"] == "skip", **{name: options[name] for name in fields})
    rejects = rejects_file(rejects, index, ".add.rejects.jsonl", options["on_error"])
    corpus = corpus_of(sources, config, options, rejects)
    check_rejects(rejects, [options["model"], *recipe_reads(config)], options)
    with ProgressBar(options["quiet"]) as progress:
        report = add_documents(corpus, index, run, progress, options["model"])
    with stdout_free_for(rejects):
        _print(report, corpus.report, as_json)


def _print(report: "AddReport", read: "CorpusReport", as_json: bool) -> None:
    from search.cli.output import print_facts, print_report

    drift = report.drift.to_dict() if report.drift else None
    if print_report(report, as_json, read, _remarks(report), drift=drift):
        return
    texts = ("texts", f"{report.rows_encoded:,} encoded, {report.rows_reused:,} reused")
    print_facts(
        [
            ("index", f"{report.index}, generation {report.generation}"),
            ("documents", f"{report.documents:,} now"),
            ("added", f"{report.added:,} new, {report.replaced:,} replaced, {report.unchanged:,} unchanged"),
            ("embeddings", f"{report.rows_given:,} from the corpus") if report.rows_given else texts,
            ("encoder", report.backend),
            ("drift", drift_in_words(report.drift, report.index) if report.drift else ""),
        ]
    )


def _remarks(report: "AddReport") -> list[str]:
    remarks = []
    if report.truncated:
        remarks.append(f"{report.truncated:,} texts were longer than encoder.max_length and cut there")
    if report.retries:
        remarks.append(f"{report.retries:,} batches ran out of memory and were halved; scores may differ by rounding")
    return remarks
