"""`isotrope evaluate rte`."""

from pathlib import Path
from typing import Any

import click

from search.cli.evaluate.options import (
    check_places,
    deliver,
    output_options,
    subject_of,
    subject_options,
    sweep_of,
    sweep_options,
)


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
@subject_options
@sweep_options
@output_options
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
    from search.cli.progress import BuildProgress
    from search.evaluation.papers.rte import THRESHOLDS, RteOptions, evaluate_rte, read_rte, rte_sweep

    check_places(options, file, train, fit.partition("corpus:")[2])
    subject = subject_of(options)
    plan = RteOptions(subject.settings(rte_sweep(sweep_of(options))), thresholds or THRESHOLDS, fit)
    data = read_rte(file), read_rte(train) if train else None
    with BuildProgress(options["quiet"]) as progress:
        result = evaluate_rte(subject, data, plan, options["cache"], progress)
    deliver(result, options)
