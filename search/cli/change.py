"""Commands that change an index: `isotrope add`, `isotrope delete`, `isotrope refit` and `isotrope compact`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from search.cli.options import (
    PATH,
    RECIPE,
    change_options,
    check_rejects,
    corpus_of,
    force_option,
    format_option,
    json_option,
    on_error_option,
    recipe_reads,
    rejects_file,
    run_options,
    skips_bad_rows,
    worker_options,
)
from search.cli.review import review_options, reviewed

if TYPE_CHECKING:
    from indexer.corpus.corpus import CorpusReport
    from indexer.pipeline.add import AddReport


@click.command("add")
@click.argument("index", type=PATH)
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@format_option
@on_error_option
@click.option("--rejects", type=PATH, help="File for skipped rows. Default: INDEX.add.rejects.jsonl.")
@force_option
@worker_options
@change_options
@review_options
def add(index: Path, sources: tuple[str, ...], rejects: Path | None, as_json: bool, **options: Any) -> None:
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
    skip = skips_bad_rows(config, options)
    run = run_options(options, quarantine=skip)
    rejects = rejects_file(rejects, index, ".add.rejects.jsonl", skip)
    corpus = corpus_of(sources, config, options, rejects)
    check_rejects(rejects if skip else None, [options["model"], *recipe_reads(config)])
    with ProgressBar(options["quiet"]) as progress, reviewed(options, progress.pause):
        report = add_documents(corpus, index, run, progress, model=options["model"])
    with stdout_free_for(rejects):
        _print_added(report, corpus.report, as_json)


def _print_added(report: "AddReport", read: "CorpusReport", as_json: bool) -> None:
    from search.cli.output import print_facts, print_report
    from search.describe import drift_in_words

    cut = [f"{report.truncated:,} texts were longer than encoder.max_length and cut there"] if report.truncated else []
    drift = report.drift.to_dict() if report.drift else None
    if print_report(report, as_json, read, cut, drift=drift):
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


@click.command("delete")
@click.argument("index", type=PATH)
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--ids-file", type=PATH, help="File with one id per line; - is standard input.")
@click.option("--where", metavar="SQL", help="Delete the documents whose metadata match this condition.")
@click.option("--ignore-missing", is_flag=True, help="Ignore ids that the index does not contain.")
@json_option
def delete(
    index: Path, ids: tuple[str, ...], ids_file: Path | None, where: str | None, ignore_missing: bool, as_json: bool
) -> None:
    """Delete documents from an index.

    INDEX is a path or a URL in object storage (s3://, gs:// or az://).
    The documents disappear from search immediately; `isotrope compact` removes them from the disk. Put -- before an
    id that starts with a dash.

    \b
    Examples, on the index of `make demo`:
      isotrope delete demo/index shutil.copyfile shutil.move
      isotrope delete demo/index --ids-file old.txt
      isotrope delete demo/index --where "kind = 'method' AND line > 900"
    """
    from indexer import delete_documents
    from indexer.corpus.query_file import read_id_file
    from search.cli.output import print_line, print_report
    from search.filters.filters import delete_where
    from search.formatting import counted

    if (where is not None) == bool(ids or ids_file):
        raise click.UsageError("Expected either ids (or --ids-file) or --where.")
    if where is not None:
        report = delete_where(index, where)
    else:
        report = delete_documents(index, [*ids, *(read_id_file(ids_file) if ids_file else [])], ignore_missing)
    if print_report(report, as_json):
        return
    missing = f" {len(report.missing):,} ids were not in the index." if report.missing else ""
    if not report.deleted:
        print_line(f"{report.index}: nothing to delete; {report.documents:,} documents.{missing}")
        return
    print_line(
        f"{report.index}: {report.deleted:,} deleted, {counted(report.documents, 'document')} left, "
        f"generation {report.generation}.{missing}"
    )


@click.command("refit")
@click.argument("index", type=PATH)
@click.option("--config", "recipe", type=RECIPE, metavar="NAME|FILE", help="Use whitening, index, queries, "
              "hybrid and rerank of this recipe, such as one from tune -o; its other settings must equal the "
              "index's.")  # fmt: skip
@click.option("--set", "assignments", multiple=True, metavar="SECTION.KEY=VALUE", help="Change a setting of whitening, "
              "index, queries, hybrid or rerank; the others stay.")  # fmt: skip
@click.option("--queries-by", metavar="FOLDER", help="Answer questions by this folder from isotrope distill from now "
              "on; an empty name: by the index's own encoder.")  # fmt: skip
@change_options
@review_options
def refit(index: Path, assignments: tuple[str, ...], queries_by: str | None, as_json: bool, **options: Any) -> None:
    """Refit the whitening, or choose the index type again.

    INDEX is a path or a URL in object storage (s3://, gs:// or az://).
    Uses the stored embeddings of the documents that are in the index now: no document is encoded again. Without
    --config and --set, the recipe stays and the whitening is fitted to the current documents.

    \b
    Examples, on the index of `make demo`:
      isotrope refit demo/index
      isotrope refit demo/index --set whitening.strength=0.5
      isotrope refit demo/index --set index.type=HNSW32 --set index.recall=0.99
      isotrope refit demo/index --set hybrid.weight=0.4
      isotrope refit demo/index --set rerank.model=./cross-encoder --set rerank.depth=20
    """
    from indexer import BuildConfig, refit_index
    from search.cli.output import print_facts, print_report
    from search.cli.progress import ProgressBar
    from search.describe import index_type_in_words

    if queries_by is not None:
        assignments += (f"queries.encoder={json.dumps(queries_by)}",)
    recipe = BuildConfig.load(options["recipe"]) if options["recipe"] else None
    run = run_options(options)
    with ProgressBar(options["quiet"]) as progress, reviewed(options, progress.pause):
        report = refit_index(index, assignments, run, progress, options["model"], recipe)
    if print_report(report, as_json):
        return
    print_facts(
        [
            ("index", f"{report.index}, generation {report.generation}"),
            ("documents", f"{report.documents:,}, none encoded again"),
            ("changed", ", ".join(report.changed)),
            ("dimensions", f"{report.dim:,}"),
            ("search", index_type_in_words(report.quality)),
        ]
    )


@click.command("compact")
@click.argument("index", type=PATH)
@click.option("--keep", type=click.IntRange(min=1), default=2, show_default=True, help="Generations to keep.")
@click.option("--grace", type=click.FloatRange(min=0), default=3600.0, show_default=True, help="Seconds to keep a "
              "replaced generation, for readers that have it open.")  # fmt: skip
@change_options
def compact(index: Path, keep: int, grace: float, as_json: bool, **options: Any) -> None:
    """Merge segments, remove deleted documents from the disk, remove old generations.

    INDEX is a path or a URL in object storage (s3://, gs:// or az://).
    The result equals a fresh build of its documents with its transform. Nothing is encoded.

    \b
    Examples, on the index of `make demo`:
      isotrope compact demo/index
      isotrope compact demo/index --keep 1 --grace 0
    """
    from indexer import compact_index
    from search.cli.output import print_facts, print_note, print_report
    from search.cli.progress import ProgressBar
    from search.formatting import counted, size

    run = run_options(options)
    with ProgressBar(options["quiet"]) as progress:
        report = compact_index(index, run, progress, options["model"], keep, grace)
    if print_report(report, as_json):
        return
    before = report.segments_before
    segments = "1 segment, rewritten" if before == 1 else f"{before:,} segments into one"
    merged = f"{segments}, {counted(report.dropped, 'deleted document')} removed"
    freed = f"{size(report.bytes_freed)} freed" if report.bytes_freed >= 0 else f"{size(-report.bytes_freed)} more now"
    print_facts(
        [
            ("index", f"{report.index}, generation {report.generation}"),
            ("documents", f"{report.documents:,}"),
            ("merged", merged if report.folded else "nothing to merge"),
            ("disk", f"{report.generations_removed:,} old generations removed, {freed}"),
        ]
    )
    if report.generations_kept > 1:
        print_note(
            f"{report.generations_kept - 1:,} older generations are kept for readers, with their deleted documents; "
            "--keep 1 --grace 0 removes them now"
        )
