"""`isotrope evaluate rte`."""

from pathlib import Path
from typing import Any

import click

from search.cli.options import check_output_options, result_options, sweep_of, sweep_options, target_of, target_options


@click.command("rte")
@click.argument("file", type=click.Path(path_type=Path))
@click.option(
    "--train",
    type=click.Path(path_type=Path),
    help="Choose the threshold on this file, of the same form: the honest figure.",
)
@click.option(
    "--threshold",
    "thresholds",
    multiple=True,
    type=float,
    metavar="T",
    help="Show the accuracy at this cosine; repeatable. Default: 0, 0.1 to 0.9.",
)
@click.option(
    "--fit",
    default="",
    metavar="task|corpus:PATH|index",
    help="What the whitening is fitted on: the sentences of FILE and --train, another corpus, or the embeddings of "
    "--index. Default: index with --index, else task.",
)
@target_options
@sweep_options
@result_options
def command(file: Path, train: Path | None, thresholds: tuple[float, ...], fit: str, **options: Any) -> None:
    """Entailment by a threshold on the cosine (RTE).

    FILE is GLUE's RTE as .tsv (index, sentence1, sentence2, label) or SuperGLUE's as .jsonl (premise, hypothesis,
    label); its development set, since the test set has no labels. A pair is called entailment where the cosine of
    its two sentences is at least the threshold. Accuracies are per cent, with 95 % bootstrap intervals. Without
    settings to try: no transform and full whitening, at the recipe's own pooling and layers.

    \b
    Examples:
      isotrope evaluate rte RTE/dev.tsv --train RTE/train.tsv
      isotrope evaluate rte val.jsonl --pooling mean --pooling cls --strength none --strength 1
    """
    from search.cli.output import print_note, write_and_print
    from search.cli.progress import ProgressBar
    from search.evaluation.papers.rte import THRESHOLDS, RteOptions, evaluate_rte, read_rte, rte_sweep

    check_output_options(options, file, train, fit.partition("corpus:")[2])
    subject = target_of(options)
    plan = RteOptions(subject.settings(rte_sweep(sweep_of(options))), thresholds or THRESHOLDS, fit)
    data = read_rte(file), read_rte(train) if train else None
    with ProgressBar(options["quiet"]) as progress:
        result = evaluate_rte(subject, data, plan, options["cache"], progress)
    for note in result["notes"]:
        print_note(note)
    write_and_print(result, options, _show)


def _show(result: dict[str, Any]) -> None:
    """Two tables, a row a setting: the accuracy at thresholds that were chosen, and at those that were given."""
    from search.cli.output import print_table
    from search.evaluation.settings import shortest
    from search.text import counted

    results, fit = result["results"], result["provenance"]["fit"]["name"]
    chosen = [*(["train"] if results[0]["train"] else []), "best"]
    rows = [[row["setting"], *(cell for name in chosen for cell in _cells(row[name]))] for row in results]
    where = "other pairs (train) and on these (best)" if len(chosen) > 1 else "these very pairs"
    title = f"RTE accuracy, {counted(results[0]['pairs'], 'pair', 'pairs')}, fit {fit}, threshold chosen on {where}"
    print_table(["setting", *(cell for name in chosen for cell in (name, "at", "95 %"))], rows, title)
    click.echo(f"always the commoner label: {results[0]['majority']:.1f}\n")
    columns = ["setting", *(shortest(entry["threshold"]) for entry in results[0]["thresholds"])]
    grid = [[row["setting"], *(f"{entry['accuracy']:.1f}" for entry in row["thresholds"])] for row in results]
    print_table(columns, grid, "at a threshold of")
    click.echo()
    for row in result["comparisons"]:
        decided = "decided" if row["decided"] else "not decided"
        click.echo(f"{row['setting']} less {row['against']}: {row['difference']:+.1f} ({_ends(row)}), {decided}")


def _cells(found: dict[str, Any]) -> tuple[str, str, str]:
    return f"{found['accuracy']:.1f}", f"{found['threshold']:.3f}", _ends(found)


def _ends(found: dict[str, Any]) -> str:
    return f"{found['low']:.1f} to {found['high']:.1f}"
