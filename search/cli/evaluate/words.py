"""`isotrope evaluate words`."""

from pathlib import Path
from typing import Any

import click

from search.cli.evaluate.options import check_places, deliver, output_options, subject_of, subject_options


@click.command("words")
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="FILE...")
@click.option("--corpus", type=click.Path(path_type=Path), help="Texts in which a transformer meets the words.")
@click.option("--layers", "layers", multiple=True, metavar="L[,L...]", help="Layers of a transformer to average, such "
              "as 1,-1; repeatable, each is measured. Default: the recipe's.")  # fmt: skip
@click.option("--occurrences", type=int, help="Places of a word in the corpus that count.  [default: 100]")
@click.option("--candidates", type=int, default=0, metavar="N", help="Answer analogies out of the first N rows of a "
              "table too, its most frequent words. Default: out of the words of all FILEs.")  # fmt: skip
@subject_options
@output_options
def command(
    files: tuple[Path, ...],
    corpus: Path | None,
    layers: tuple[str, ...],
    occurrences: int | None,
    candidates: int,
    **options: Any,
) -> None:
    """Static word vectors: similarity, analogies, categories.

    FILE is a data set as published: SimLex-999, MEN, WordSim-353, RW (similarity: Spearman's correlation), Google's or
    MSR's analogies (accuracy), BLESS, AP, ESSLLI or any list of words with their classes (purity of clusters). The
    vectors are the rows of a static table; of a transformer, each word's first principal component over the texts of
    --corpus. Items with a word that has no vector are left out and counted. Figures are times 100, with 95 % bootstrap
    intervals for correlations and accuracies.

    \b
    Examples:
      isotrope evaluate words SimLex-999.txt --set encoder.kind=static --set encoder.model=glove.6B.300d.txt
      isotrope evaluate words SimLex-999.txt --corpus docs.jsonl --layers 0 --layers 1 --layers 2
    """
    from indexer.errors import ConfigError
    from search.cli.progress import BuildProgress
    from search.evaluation.papers.word_sets import read_word_sets
    from search.evaluation.papers.words import WordsOptions, evaluate_words
    from search.evaluation.settings import parse_layers

    if options["cache"]:
        raise ConfigError("--cache keeps embeddings of texts, and none are made here; leave it out.")
    check_places(options, *files, corpus)
    plan = WordsOptions(corpus, tuple(parse_layers(text) for text in layers), occurrences, candidates)
    sets = read_word_sets(files)
    with BuildProgress(options["quiet"]) as progress:
        result = evaluate_words(subject_of(options), sets, plan, progress)
    deliver(result, options)
