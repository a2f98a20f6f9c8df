"""The commands `isotrope evaluate layers`, `whiteningbert`, `methods`, `rte` and `words`."""

from pathlib import Path
from typing import Any

import click

from search.cli.evaluate import protocols_option
from search.cli.options import (
    PATH,
    all_of,
    check_output_options,
    hardware_options,
    recipe_of,
    recipe_options,
    result_options,
    run_options,
    sweep_of,
    sweep_options,
    target_of,
    target_options,
)

_METHODS = (
    "all", "cls", "mean", "max", "layers", "whitening", "sif", "sbert-wk", "flow", "latte-mix", "auto-encoder",
    "normal-vae",
)  # fmt: skip
_recipe_target_options = all_of(
    recipe_options,
    hardware_options,
    click.option("--cache", type=PATH, metavar="DIR", help="Folder that keeps embeddings between runs."),
)


@click.command("whiteningbert")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@_recipe_target_options
@result_options
def whiteningbert(sources: tuple[str, ...], **options: Any) -> None:
    """Table 1 of WhiteningBERT next to our own figures.

    SOURCE is as in `isotrope evaluate sts`. Measures the paper's five settings under its protocol (mean, whitening
    fitted on each task's own sentences), in float32. Missing models are downloaded if the hub can be reached. The
    recipe's own model is listed below the paper's.

    \b
    Examples:
      isotrope evaluate whiteningbert sts-folder
      isotrope evaluate whiteningbert sts-folder -o table.json
    """
    from search.cli.output import print_measured
    from search.evaluation.sts.data import read_tasks
    from search.evaluation.target import Target
    from search.papers.whiteningbert import whiteningbert_table

    check_output_options(options, *sources)
    target = Target.of_recipe(recipe_of(options), run_options(options))
    tasks = read_tasks(*sources)
    print_measured(options, lambda progress: whiteningbert_table(target, tasks, options["cache"], progress), False)


@click.command("methods")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--method", "methods", multiple=True, required=True, type=click.Choice(_METHODS), help="Method to "
              "compare with mean pooling; repeatable. all: every method of the encoder.")  # fmt: skip
@click.option("--corpus", type=PATH, help="Corpus to train Latte-Mix and its controls on, and to count SIF's words in.")
@click.option("--documents", type=int, default=0, metavar="N", help="Documents of --corpus used, by hash of id. "
              "Default: all.")  # fmt: skip
@click.option("--seeds", type=int, help="Seeds of each random method.  [default: 3]")
@protocols_option
@click.option("--fit", default="", metavar="task|corpus:PATH", help="Data that whitening and flows are fitted on: the "
              "task's own sentences (the default), or another corpus.")  # fmt: skip
@_recipe_target_options
@result_options
def methods(sources: tuple[str, ...], methods: tuple[str, ...], **options: Any) -> None:
    """Every method compared with mean pooling, on STS.

    SOURCE is as in `isotrope evaluate sts`. One table compares pooling, layers, whitening, SIF, SBERT-WK, BERT-flow,
    Latte-Mix and its controls, with the published figures. Figures of random methods are means over seeds.

    \b
    Examples:
      isotrope evaluate methods sts-folder --method whitening --method flow
      isotrope evaluate methods sts-folder --method sif --method latte-mix --corpus sentences.txt -o methods.json
    """
    from indexer.errors import ConfigError
    from search.cli.output import print_measured
    from search.evaluation.sts.data import read_tasks
    from search.evaluation.target import Target
    from search.papers.method_settings import DRAWN, SEEDS, MethodsOptions, methods_of
    from search.papers.methods import evaluate_methods

    fit, seeds = options["fit"], options["seeds"]
    check_output_options(options, *sources, fit.partition("corpus:")[2])
    target = Target.of_recipe(recipe_of(options), run_options(options))
    chosen = methods_of(methods, target.spec.traits.has_layers)
    if seeds is not None and not set(chosen) & set(DRAWN):
        raise ConfigError(f"--seeds: none of {', '.join(chosen)} is random. Fix: leave it out.")
    protocols: Any = options["protocols"] or ("mean",)
    seeds = SEEDS if seeds is None else seeds
    plan = MethodsOptions(chosen, protocols, fit, options["corpus"], options["documents"], seeds)
    tasks = read_tasks(*sources)
    print_measured(options, lambda progress: evaluate_methods(target, tasks, plan, options["cache"], progress))


@click.command("rte")
@click.argument("file", type=PATH)
@click.option("--threshold-from", type=PATH, metavar="FILE", help="Choose the threshold on this file, of the same "
              "format, for an unbiased figure.")  # fmt: skip
@click.option("--threshold", "thresholds", multiple=True, type=float, metavar="T", help="Show the accuracy at this "
              "cosine; repeatable. Default: 0, 0.1 to 0.9.")  # fmt: skip
@click.option("--fit", default="", metavar="task|corpus:PATH|index", help="Data that the whitening is fitted on: the "
              "sentences of FILE and --threshold-from, another corpus, or the embeddings of --index. Default: index "
              "with --index, otherwise task.")  # fmt: skip
@target_options
@sweep_options
@result_options
def rte(file: Path, threshold_from: Path | None, thresholds: tuple[float, ...], fit: str, **options: Any) -> None:
    """Entailment by a threshold on the cosine (RTE).

    FILE is GLUE's RTE as .tsv (index, sentence1, sentence2, label) or SuperGLUE's as .jsonl (premise, hypothesis,
    label): use the development set, because the test set has no labels. A pair counts as entailment if the cosine of
    its two sentences is at least the threshold. Tables show accuracies x 100, JSON shows them from 0 to 1, both with
    95 % bootstrap intervals. Without settings to try: no transform and full whitening, at the recipe's own pooling and
    layers.

    \b
    Examples:
      isotrope evaluate rte RTE/dev.tsv --threshold-from RTE/train.tsv
      isotrope evaluate rte val.jsonl --pooling mean --pooling cls --strength none --strength 1
    """
    from search.cli.output import print_measured
    from search.papers.rte import THRESHOLDS, RteOptions, evaluate_rte, read_rte, rte_sweep

    check_output_options(options, file, threshold_from, fit.partition("corpus:")[2])
    target = target_of(options)
    plan = RteOptions(target.settings(rte_sweep(sweep_of(options))), thresholds or THRESHOLDS, fit)
    data = read_rte(file), read_rte(threshold_from) if threshold_from else None
    print_measured(options, lambda progress: evaluate_rte(target, data, plan, options["cache"], progress))


@click.command("words")
@click.argument("files", nargs=-1, required=True, type=PATH, metavar="FILE...")
@click.option("--corpus", type=PATH, help="Texts with the words, for a transformer.")
@click.option("--layers", "layers", multiple=True, metavar="L[,L...]", help="Layers of a transformer to average, such "
              "as 1,-1; repeatable, each is measured. Default: the recipe's.")  # fmt: skip
@click.option("--occurrences", type=int, help="Most occurrences of a word that are used.  [default: 100]")
@click.option("--candidates", type=int, default=0, metavar="N", help="Add the first N rows of a table, its most "
              "frequent words, to the possible answers of analogies, which are the words of all FILEs.")  # fmt: skip
@target_options
@result_options
def words(files: tuple[Path, ...], **options: Any) -> None:
    """Static word vectors: similarity, analogies, categories.

    FILE is a data set as published: SimLex-999, MEN, WordSim-353, RW (similarity: Spearman's correlation), Google's or
    MSR's analogies (accuracy), BLESS, AP, ESSLLI or any list of words with their classes (purity of clusters). The
    vectors are the rows of a static table, or for a transformer each word's first principal component over the texts
    of --corpus. Items with a word that has no vector are left out and counted. Tables show figures x 100, JSON shows
    them from 0 to 1, both with 95 % bootstrap intervals for correlations and accuracies.

    \b
    Examples:
      isotrope evaluate words SimLex-999.txt --config static --set encoder.model=glove.6B.300d.txt
      isotrope evaluate words SimLex-999.txt --corpus demo/stdlib.jsonl --layers 0 --layers 1 --layers 2
    """
    from indexer.errors import ConfigError
    from search.cli.output import print_measured
    from search.evaluation.sweep import parse_layers
    from search.papers.word_sets import read_word_sets
    from search.papers.words import WordsOptions, evaluate_words

    if options["cache"]:
        raise ConfigError("--cache keeps embeddings of texts, which this command does not compute. Fix: leave it out.")
    check_output_options(options, *files)
    chosen = tuple(parse_layers(text) for text in options["layers"])
    plan = WordsOptions(options["corpus"], chosen, options["occurrences"], options["candidates"])
    sets = read_word_sets(files)
    target = target_of(options)
    print_measured(options, lambda progress: evaluate_words(target, sets, plan, progress))


@click.command("layers")
@click.argument("sources", nargs=-1, required=True, metavar="SOURCE...")
@click.option("--pooling", type=click.Choice(["mean", "cls"]), help="Pooling over the tokens. Default: the recipe's.")
@click.option("--strength", default="none", show_default=True, metavar="S", help="Whitening strength, 0 to 1, fitted "
              'on each task\'s own sentences; or "none" for no transform at all.')  # fmt: skip
@click.option("--protocol", type=click.Choice(["mean", "wmean", "all"]), default="mean", show_default=True,
              help="Figure for a task of several subsets, as in `isotrope evaluate sts`.")  # fmt: skip
@click.option("--up-to", type=int, default=0, metavar="N", help="Largest number of layers combined. Default: all for "
              "models of up to 6 blocks, otherwise 3.")  # fmt: skip
@click.option("--plot", type=PATH, metavar="FILE", help="Draw both figures into this file (.png, .svg, .pdf).")
@target_options
@result_options
def layers(sources: tuple[str, ...], **options: Any) -> None:
    """Every combination of layers on STS: a heat map and the best of n.

    SOURCE is as in `isotrope evaluate sts`. Layers count from 0, the embedding output; 1 is the first block. Every
    sentence is encoded once. Figures are Spearman's correlation, averaged over the tasks. Tables show them x 100, JSON
    shows them from 0 to 1.

    \b
    Examples:
      isotrope evaluate layers sts-folder --plot layers.png
      isotrope evaluate layers sts-folder --strength 1 --up-to 2 -o layers.json
    """
    from search.cli.output import print_measured, print_plot
    from search.evaluation.plots.drawing import check_plot
    from search.evaluation.sts.data import read_tasks
    from search.evaluation.sweep import parse_strength
    from search.papers.layers import LayersOptions, evaluate_layers
    from search.papers.layers_plot import plot_layers

    check_output_options(options, *sources)
    if plot := options["plot"]:
        check_plot(plot, options["force"])
    plan = LayersOptions(options["pooling"], parse_strength(options["strength"]), options["protocol"], options["up_to"])
    target, tasks = target_of(options), read_tasks(*sources)
    result = print_measured(options, lambda progress: evaluate_layers(target, tasks, plan, options["cache"], progress))
    if plot:
        plot_layers(result, plot, options["force"])
        print_plot(options)
