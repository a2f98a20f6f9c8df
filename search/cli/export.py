"""`isotrope export`."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from search.cli.options import (
    PATH,
    encoder_options,
    force_option,
    given_flags,
    json_option,
    k_option,
    output_option,
    run_options,
)

if TYPE_CHECKING:
    from search.export.report import ExportReport

_FAISS, _FOLDER, _PARQUET, _RUN = _KINDS = ("faiss", "sentence-transformers", "parquet", "trec-run")
_APPLIES_TO = {  # options that apply only to some kinds
    "queries": (_RUN,),
    "k": (_RUN,),
    "model": (_FOLDER, _RUN),
    "device": (_RUN,),
    "backend": (_RUN,),
    "threads": (_RUN,),
    "force": (_FAISS, _PARQUET, _RUN),
}


@click.command("export")
@click.argument("index", type=PATH)
@click.option("--to", "kind", type=click.Choice(_KINDS), required=True, help="Format; see above.")
@output_option("File or folder to write.", metavar="PATH", required=True)
@click.option("--queries", type=PATH, metavar="FILE|BEIR_FOLDER", help="Queries of trec-run: one per line, "
              "queries.jsonl, a .npy of embeddings, or a folder with queries.jsonl.")  # fmt: skip
@k_option("Hits per query in trec-run.", default=100)
@encoder_options
@force_option
@json_option
def command(index: Path, kind: str, output: Path, as_json: bool, **options: Any) -> None:
    """Export an index to the format of another program.

    INDEX is a path or a URL in object storage (s3://, gs:// or az://).

    \b
    faiss                  PATH is a FAISS file that accepts raw query embeddings: the transform is its first layer.
                           PATH.ids.parquet contains the document id of each row.
    sentence-transformers  PATH is a folder for SentenceTransformer(PATH), which returns the vectors of the index.
    parquet                PATH contains id and vector of every document.
    trec-run               PATH is a TREC run: the best documents of every query in --queries.

    Deleted documents are left out.

    \b
    Examples, on the index of `make demo`:
      isotrope export demo/index --to faiss -o demo.faiss
      isotrope export demo/index --to sentence-transformers -o demo-encoder
      isotrope export demo/index --to parquet -o vectors.parquet
      isotrope export demo/index --to trec-run --queries questions.txt -k 100 -o run.trec
    """
    from search.cli.output import stdout_free_for

    _check_options(kind, options)
    with stdout_free_for(output):
        _show(_write(index, kind, output, options), as_json)


def _check_options(kind: str, options: dict[str, Any]) -> None:
    """Raise UsageError if the kind rejects a given option or lacks a required one."""
    for name, kinds in _APPLIES_TO.items():
        if kind not in kinds and (given := given_flags([name])):
            raise click.UsageError(f"{given[0]} applies to --to {' and '.join(kinds)}, not to --to {kind}.")
    if kind == _RUN and options["queries"] is None:
        raise click.UsageError("--to trec-run needs --queries FILE|BEIR_FOLDER.")


def _write(index: Path, kind: str, output: Path, options: dict[str, Any]) -> "ExportReport":
    """Import only the requested export, because each needs another library, and run it."""
    if kind == _FAISS:
        from search.export.faiss import export_faiss

        return export_faiss(index, output, options["force"])
    if kind == _FOLDER:
        from search.export.sentence_transformers import export_sentence_transformers

        return export_sentence_transformers(index, output, options["model"])
    if kind == _PARQUET:
        from search.export.parquet import export_parquet

        return export_parquet(index, output, options["force"])
    from search.engine import SearchEngine
    from search.export.trec import export_trec_run

    engine = SearchEngine(index, options["model"], run_options(options))
    return export_trec_run(engine, output, options["queries"], options["k"], force=options["force"])


def _show(exported: "ExportReport", as_json: bool) -> None:
    from search.cli.output import print_facts, print_json, print_note
    from search.formatting import size

    for note in exported.notes:
        print_note(note)
    if as_json:
        print_json(exported.to_dict())
        return
    facts = [(name.replace("_", " "), _in_words(value)) for name, value in exported.facts.items()]
    files = [("file", f"{name}, {size(count)}") for name, count in exported.files.items()]
    print_facts([("written", str(exported.path)), *facts, *files])


def _in_words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {json.dumps(item, ensure_ascii=False)}" for name, item in value.items()) or "none"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else str(value)
