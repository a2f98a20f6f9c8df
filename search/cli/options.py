"""Options that commands share, each spelled once, and what is made of them."""

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click

from indexer.executors.pool import Executor, WorkerPool
from indexer.recipe.ranking import MOST_DEPTH
from indexer.recipe.run_options import Backend, RunOptions
from indexer.system.urls import mirrored
from search.ranking.options import SEARCH_OPTIONS, Option

if TYPE_CHECKING:
    from indexer.corpus.corpus import Corpus
    from indexer.recipe.config import BuildConfig
    from search.evaluation.retrieval.reranked import RerankTask
    from search.evaluation.settings import Sweep
    from search.evaluation.target import Target

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]
PATH = click.Path(path_type=Path)


def all_of(*options: Decorator[F]) -> Decorator[F]:
    """Several options as one, in the order that --help lists them."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


# What is printed and written.


def output_option(text: str, metavar: str = "FILE", required: bool = False) -> Callable[[F], F]:
    """-o/--output, as `output`."""
    return click.option("-o", "--output", type=PATH, metavar=metavar, required=required, help=text)


force_option = click.option("--force", is_flag=True, help="Overwrite files that are there already.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
quiet_option = click.option("--quiet", is_flag=True, help="No progress bars.")
result_options = all_of(
    output_option("Write the result to this file as JSON."), force_option, json_option, quiet_option
)
"""-o, --force, --json, --quiet, of commands that measure"""


def k_option(text: str, default: int = 10) -> Callable[[F], F]:
    """-k, as `k`."""
    return click.option("-k", type=int, default=default, show_default=True, help=text)


def search_options(command: F) -> F:
    """The options of a search, as `SearchOptions` declares them."""
    return all_of(*map(_search_option, SEARCH_OPTIONS))(command)


def _search_option(option: Option) -> Callable[[F], F]:
    if option.kind is bool:
        return click.option(option.flag, is_flag=True, help=option.help)
    least, kind = option.flag_least, click.Choice(option.choices) if option.choices else option.kind
    return click.option(
        option.flag,
        type=kind if least is None else click.IntRange(least, option.most),
        default=option.default,
        show_default=option.default is not None,
        metavar=option.metavar,
        help=option.help,
    )


# Where and by what an encoder runs.

hardware_options = all_of(
    click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:N or mps."),
    click.option(
        "--backend",
        type=click.Choice(get_args(Backend)),
        default="auto",
        show_default=True,
        help="What runs the encoder; auto takes the fastest that is installed. Results agree within the precision.",
    ),
    click.option("--threads", type=int, default=0, show_default=True, help="CPU threads; 0 takes every core."),
)
"""--device, --backend, --threads"""
encoder_options = all_of(
    click.option("--model", type=PATH, help="Folder of the index's model, if it has moved."), hardware_options
)
"""--model and `hardware_options`, of commands that encode with the model of an index"""
change_options = all_of(
    encoder_options,
    click.option("--allow-low-recall", is_flag=True, help="Publish although the index misses index.recall."),
    json_option,
    quiet_option,
)
"""`encoder_options`, --allow-low-recall, --json and --quiet, of commands that make a new generation of an index"""


worker_options = all_of(
    click.option("--workers", type=int, default=1, show_default=True, help="Worker processes; one a GPU."),
    click.option(
        "--executor",
        type=click.Choice(get_args(Executor)),
        default="auto",
        show_default=True,
        help="Where workers run: processes of this machine (auto: none where one worker is enough), or Ray.",
    ),
    click.option(
        "--ray-address", default="", metavar="ADDRESS", help="Ray cluster; auto finds it. Default: this machine alone."
    ),
    click.option(
        "--gpus-per-worker", type=float, default=0.0, metavar="N", help="GPUs that Ray reserves for each worker."
    ),
)
"""--workers, --executor, --ray-address, --gpus-per-worker"""
WORKER_NAMES = ("workers", "executor", "ray_address", "gpus_per_worker")
"""The names of `worker_options` in a command's arguments."""


def run_options(options: Mapping[str, Any], **more: Any) -> RunOptions:
    """How to run, from `hardware_options`; `more` are further fields.

    Raises UsageError for what is of no use without Ray.
    """
    for name in ("ray_address", "gpus_per_worker"):
        if more.get(name) and more["executor"] != "ray":
            raise click.UsageError(f"--{name.replace('_', '-')} is for workers of Ray's: pass --executor ray as well.")
    return RunOptions(**{name: options[name] for name in ("device", "backend", "threads")}, **more)


def worker_pool(options: Mapping[str, Any]) -> WorkerPool:
    """The workers of `worker_options`, with the threads of `hardware_options`."""
    return run_options(options, **{name: options[name] for name in WORKER_NAMES}).pool


# What is read, and by which recipe.

recipe_options = all_of(
    click.option(
        "--config",
        "recipe",
        type=PATH,
        metavar="NAME|FILE",
        help="Recipe: minilm (the default), static, whiteningbert, or a TOML file.",
    ),
    click.option(
        "--set",
        "assignments",
        multiple=True,
        metavar="SECTION.KEY=VALUE",
        help="Override one setting of the recipe; repeatable.",
    ),
)
"""--config, --set"""
format_option = click.option(
    "--format",
    "format_",
    default="",
    metavar="NAME",
    help="Format of the corpus: jsonl, csv, tsv, parquet, arrow or text. Default: by file name.",
)
on_error_option = click.option(
    "--on-error",
    type=click.Choice(["fail", "skip"]),
    default="fail",
    show_default=True,
    help="What to do with a bad row of the corpus.",
)
corpus_options = all_of(
    recipe_options,
    format_option,
    click.option("--id-column", default="", metavar="NAME", help="Column with ids. Default: _id, id or docid."),
    click.option("--title-column", default="", metavar="NAME", help="Column with titles. Default: title."),
    click.option(
        "--text-column",
        default="",
        metavar="NAME",
        help="Column with texts. Default: text, contents or document_text.",
    ),
    click.option(
        "--vector-column",
        default="",
        metavar="NAME",
        help="Column with embeddings made elsewhere: no model is run. The same as encoder.kind=vectors.",
    ),
    click.option(
        "--column",
        "columns",
        multiple=True,
        metavar="NAME:TYPE",
        help="Read a metadata column as this type, such as year:int.",
    ),
    click.option("--drop-column", "drop", multiple=True, metavar="NAME", help="Leave a metadata column out."),
    on_error_option,
)
"""How a corpus is read and built"""
CORPUS_NAMES = (
    "recipe", "assignments", "format_", "id_column", "title_column", "text_column", "vector_column", "columns", "drop",
    "on_error",
)  # fmt: skip
"""The names of `corpus_options` in a command's arguments."""


def recipe_of(options: Mapping[str, Any]) -> "BuildConfig":
    """The recipe that --config, --set and, where a command has them, the options of columns make."""
    from indexer.recipe.config import BuildConfig

    config = BuildConfig.load(options["recipe"]) if options["recipe"] else BuildConfig()
    roles = ("id_column", "title_column", "text_column", "vector_column")
    names = {name: options[name] for name in roles if options.get(name)}
    if "columns" in options:
        config = config.with_columns(names, options["columns"], options["drop"])
    return config.with_overrides(options["assignments"])


def corpus_of(
    sources: tuple[str, ...], config: "BuildConfig", options: Mapping[str, Any], rejects: Path | None
) -> "Corpus":
    """The corpus they name; rows left out are listed in `rejects`."""
    from indexer import read_corpus

    skip = options["on_error"] == "skip"
    return read_corpus(
        *sources,
        config=config.corpus,
        format=options["format_"],
        on_error="skip" if skip else "fail",
        rejects=rejects if skip else None,
        force=options.get("force", False),
    )


def beside(index: Path, suffix: str) -> Path:
    """A path next to an index, called as it is and a suffix; of one in object storage, in the current folder."""
    if mirrored(index) is not None:
        return Path(f"{index.name}{suffix}")
    whole = index.resolve() if index.name in ("", "..") else index  # "." has no name
    return whole.with_name(f"{whole.name}{suffix}")


def rejects_file(given: Path | None, index: Path, suffix: str, on_error: str) -> Path:
    """Where rows left out are listed: as --rejects says, else beside the index."""
    if given and on_error != "skip":
        raise click.UsageError("--rejects is for the rows that --on-error skip leaves out; pass both, or neither.")
    return given or beside(index, suffix)


# Reranking.


def rerank_options(text: str) -> Callable[[F], F]:
    """--rerank, as `rerank`, and --rerank-depth."""
    return all_of(
        click.option("--rerank", metavar="MODEL", help=text),
        click.option("--rerank-depth", type=click.IntRange(1, MOST_DEPTH), metavar="N", help="Hits it reads: 50."),
    )


def rerank_task(options: Mapping[str, Any]) -> "RerankTask | None":
    """What is measured, from `rerank_options`. Raises UsageError for a depth of no model."""
    if options["rerank"] is None:
        if options["rerank_depth"] is not None:
            raise click.UsageError("--rerank-depth is how many hits a cross-encoder reads: name one by --rerank MODEL.")
        return None
    from indexer.recipe.ranking import RerankConfig
    from search.evaluation.retrieval.reranked import RerankTask

    return RerankTask(options["rerank"], options["rerank_depth"] or RerankConfig.depth)


# What is measured.

target_options = all_of(
    recipe_options,
    click.option("--index", type=PATH, metavar="DIR", help="Measure this index and its recipe."),
    encoder_options,
    click.option("--cache", type=PATH, metavar="DIR", help="Folder to keep embeddings in from run to run."),
)
"""`recipe_options`, --index, `encoder_options`, --cache"""
sweep_options = all_of(
    click.option(
        "--pooling",
        "poolings",
        multiple=True,
        type=click.Choice(["mean", "cls", "max", "sif", "sbert-wk", "latte-mix"]),
        help="Pooling to try; repeatable, as are the next ones: every combination is measured. Default: the recipe's.",
    ),
    click.option("--layers", "layers", multiple=True, metavar="L[,L...]", help="Layers to average, such as 1,-1."),
    click.option(
        "--strength",
        "strengths",
        multiple=True,
        metavar="S",
        help='Whitening strength, 0 to 1, or "none" for no transform at all.',
    ),
    click.option("--dim", "dims", multiple=True, type=int, help="Leading directions kept; 0 keeps all."),
    click.option(
        "--transform",
        "kinds",
        multiple=True,
        type=click.Choice(["whitening", "flow", "hellinger"]),
        help="Kind of transform: whitening, BERT-flow, or square roots of probabilities.",
    ),
    click.option("--shrinkage", "shrinkages", multiple=True, type=float, help="Shrinkage of the covariance, 0 to 1."),
)
"""--pooling, --layers, --strength, --dim, --transform, --shrinkage"""
centre_option = click.option(
    "--centre",
    "centres",
    multiple=True,
    type=click.Choice(["role", "common", "none"]),
    help="Which mean is subtracted: role (queries have their own), common (one for all), none.",
)
"""--centre, where queries and documents differ"""


def target_of(options: Mapping[str, Any]) -> "Target":
    """What is measured, from `target_options`."""
    from indexer.errors import ConfigError
    from search.evaluation.target import Target

    run = run_options(options)
    if options["index"]:
        if options["recipe"] or options["assignments"]:
            raise ConfigError("--index brings its own recipe; leave out --config and --set.")
        return Target.of_index(options["index"], options["model"], run)
    if options["model"]:
        raise ConfigError("--model says where an index's model is now; without --index use --set encoder.model=FOLDER.")
    return Target.of_recipe(recipe_of(options), run)


def sweep_of(options: Mapping[str, Any]) -> "Sweep":
    """What is tried, from `sweep_options` and `centre_option`."""
    from search.evaluation.settings import Sweep, parse_layers, parse_strength

    return Sweep(
        poolings=options["poolings"],
        layers=tuple(parse_layers(text) for text in options["layers"]),
        strengths=tuple(parse_strength(text) for text in options["strengths"]),
        dims=options["dims"],
        shrinkages=options["shrinkages"],
        kinds=options["kinds"],
        centres=options.get("centres", ()),
    )


# Checks of all that will be written, before work begins.

_WRITTEN = {"output": "-o", "plot": "--plot", "run": "--run", "per_query": "--per-query"}
_READ = ("recipe", "index", "model", "corpus", "threshold_from", "query_vectors")


def check_written(
    written: Mapping[str, Path],
    reads: Iterable[str | Path | None],
    force: bool,
    made: Mapping[str, Path] | None = None,
    whole: Collection[str] = (),
) -> None:
    """`check_outputs`, with what is read as it stands on the command line: names, globs, - and hub ids."""
    from search.files import check_outputs, read_by

    check_outputs(written, read_by(*reads), force, made, whole)


def check_rejects(
    rejects: Path,
    reads: Iterable[str | Path | None],
    options: Mapping[str, Any],
    made: Mapping[str, Path] | None = None,
) -> None:
    """The same for the one file that building and adding write beside an index.

    What it may replace, and that it is no part of the corpus, `read_corpus` says.
    """
    written = {"--rejects": rejects} if options["on_error"] == "skip" else {}
    check_written(written, reads, force=True, made=made)


def check_output_options(options: Mapping[str, Any], *reads: str | Path | None) -> None:
    """Refuse what could not be written, or is read, before anything is measured: -o, --plot, --run, --per-query.

    And a --cache that could not be written. `reads` are further files and folders that the command reads. Raises
    ConfigError, ExistsError.
    """
    from search.files import check_cache

    config = recipe_of(options) if "recipe" in options and not options.get("index") else None
    named = (options.get(name) for name in _READ)
    check_written(written_by(options), [*reads, *named, *recipe_reads(config, options.get("index"))], options["force"])
    if options.get("cache"):
        check_cache(options["cache"])


def written_by(options: Mapping[str, Any]) -> dict[str, Path]:
    """Option -> file; runs in a folder are named after what is measured, and checked there."""
    found = {flag: options[name] for name, flag in _WRITTEN.items() if options.get(name)}
    return {flag: path for flag, path in found.items() if flag != "--run" or not path.is_dir()}


def recipe_reads(config: "BuildConfig | None", index: str | Path | None = None) -> list[str]:
    """Files and folders that a recipe, or that of an index, names; those of a damaged index show when it is opened."""
    from indexer.errors import IsotropeError
    from indexer.recipe.config import BuildConfig
    from indexer.store.manifest import load_manifest

    if index is not None:
        try:
            config = BuildConfig.from_dict(load_manifest(Path(index)).config)
        except IsotropeError:
            return []
    if config is None:
        return []
    encoder = config.encoder
    return [
        name for name in (encoder.model, encoder.fitted, config.whitening.query_sample, config.index.queries) if name
    ]
