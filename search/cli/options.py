"""Options that commands share, each declared once, and the objects built from them."""

from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, get_args

import click
from click.core import ParameterSource

from indexer.executors import Executor
from indexer.recipe.loading import with_line_breaks
from indexer.recipe.ranking import MOST_DEPTH
from indexer.recipe.run_options import Backend, RunOptions
from indexer.system.urls import mirrored
from search.ranking.options import SEARCH_OPTIONS, Option

if TYPE_CHECKING:
    from indexer.corpus.corpus import Corpus
    from indexer.recipe.config import BuildConfig
    from search.evaluation.retrieval.reranked import RerankTask
    from search.evaluation.sweep import Sweep
    from search.evaluation.target import Target

F = TypeVar("F", bound=Callable[..., Any])
Decorator = Callable[[F], F]
PATH = click.Path(path_type=Path)
RECIPE = click.Path(path_type=str)  # a Path forgets the folder of ./minilm, which tells a file from a recipe's name


def all_of(*options: Decorator[F]) -> Decorator[F]:
    """Return one decorator of several options, in the order in which --help lists them."""

    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def output_option(text: str, metavar: str = "FILE", required: bool = False) -> Callable[[F], F]:
    """Return -o/--output, passed as `output`."""
    return click.option("-o", "--output", type=PATH, metavar=metavar, required=required, help=text)


def given_flags(names: Iterable[str]) -> list[str]:
    """Return the flags of the named options that are on the command line."""
    context = click.get_current_context()
    flags = {parameter.name: parameter.opts[0] for parameter in context.command.params}
    return [flags[name] for name in names if context.get_parameter_source(name) is ParameterSource.COMMANDLINE]


force_option = click.option("--force", is_flag=True, help="Overwrite existing files.")
json_option = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
quiet_option = click.option("--quiet", is_flag=True, help="No progress bars.")
result_options = all_of(
    output_option("Write the result to this file as JSON."), force_option, json_option, quiet_option
)
"""-o, --force, --json, --quiet, of commands that measure"""


def k_option(text: str, default: int = 10) -> Callable[[F], F]:
    """Return -k, passed as `k`."""
    return click.option("-k", type=int, default=default, show_default=True, help=text)


draw_options = all_of(
    click.option("--queries", type=PATH, metavar="FILE", help="File of queries: UTF-8 text with one per line, a BEIR "
                 "queries.jsonl, or a .npy file of embeddings; all are used."),
    click.option("--draw", type=click.Choice(["titles", "sentences", "halves"]), help="Draw queries from the "
                 "documents: titles, first sentences, or first halves. Default: titles if at least half of the "
                 "documents have one, otherwise sentences."),
    click.option("--sample", type=int, help="Queries to draw from the documents.  [default: 1000]"),
)  # fmt: skip
"""--queries, --draw, --sample"""


def query_source(options: Mapping[str, Any], size: int) -> tuple[Path | None, Any, int]:
    """Return the file of queries, the origin of drawn ones, and their number. Raises ConfigError for both."""
    from indexer.errors import ConfigError

    queries, draw, sample = (options[name] for name in ("queries", "draw", "sample"))
    if queries and (draw or sample is not None):
        raise ConfigError("--queries uses all queries of its file. Fix: leave out --draw and --sample.")
    return queries, draw, size if sample is None else sample


def search_options(command: F) -> F:
    """Add the options of a search, as `SearchOptions` declares them."""
    return all_of(*map(_search_option, SEARCH_OPTIONS))(command)


def _search_option(option: Option) -> Callable[[F], F]:
    if option.kind is bool:
        return click.option(option.flag, is_flag=True, help=option.help)
    kind = click.Choice(option.choices) if option.choices else option.kind
    if kind is int and option.most is not None:
        kind = click.IntRange(int(option.least or 0), option.most)
    elif option.is_prompt:
        kind = with_line_breaks
    return click.option(
        option.flag,
        type=kind,
        default=option.default,
        show_default=option.default is not None,
        metavar=option.metavar,
        help=option.help,
    )


hardware_options = all_of(
    click.option("--device", default="auto", show_default=True, help="auto, cpu, cuda, cuda:N or mps."),
    click.option("--backend", type=click.Choice(get_args(Backend)), default="auto", show_default=True, help="Library "
                 "that runs the encoder; auto: the fastest installed. Results agree within the precision."),
    click.option("--threads", type=int, default=0, show_default=True, help="CPU threads; 0 uses every core."),
)  # fmt: skip
"""--device, --backend, --threads"""
encoder_options = all_of(
    click.option("--model", type=PATH, help="Folder of the index's model, or URL of its server, if it has moved."),
    hardware_options,
)
"""--model and `hardware_options`, of commands that encode with the model of an index"""
query_encoder_option = click.option("--encoder", "query_encoder", metavar="FOLDER", help="Encode queries by this "
                                    "folder from isotrope distill, instead of the recipe's query encoder; an empty "
                                    "name: the index's own encoder.")  # fmt: skip
"""--encoder, of commands that answer queries"""
change_options = all_of(
    encoder_options,
    click.option("--allow-low-recall", is_flag=True, help="Publish although the index misses index.recall."),
    json_option,
    quiet_option,
)
"""`encoder_options`, --allow-low-recall, --json and --quiet, of commands that publish a new generation of an index"""


worker_options = all_of(
    click.option("--workers", type=int, default=1, show_default=True, help="Worker processes; one per GPU."),
    click.option("--executor", type=click.Choice(get_args(Executor)), default="auto", show_default=True, help="Where "
                 "workers run: processes of this machine (auto: none if one worker is enough), or Ray."),
    click.option("--ray-address", default="", metavar="ADDRESS", help="Ray cluster; auto finds it. Default: only this "
                 "machine."),
    click.option("--gpus-per-worker", type=float, default=0.0, metavar="N", help="GPUs that Ray reserves for each "
                 "worker."),
    click.option("--requests", type=int, default=8, show_default=True, help="Concurrent requests to an embedding "
                 "server, per worker."),
)  # fmt: skip
"""--workers, --executor, --ray-address, --gpus-per-worker, --requests"""
_WORKERS = ("workers", "executor", "ray_address", "gpus_per_worker", "requests")
_RUN = ("device", "backend", "threads", "half", "compile", "overwrite", "allow_low_recall")


def run_options(options: Mapping[str, Any], **more: Any) -> RunOptions:
    """Return the run options among a command's options, with `more`. Raises UsageError for options that need Ray."""
    workers = _WORKERS if "executor" in options else ()  # `query` has --ray-address for its shards only
    for name in ("ray_address", "gpus_per_worker"):
        if workers and options[name] and options["executor"] != "ray":
            raise click.UsageError(f"--{name.replace('_', '-')} is for workers of Ray. Fix: add --executor ray.")
    return RunOptions(**{name: options[name] for name in (*_RUN, *workers) if name in options}, **more)


recipe_options = all_of(
    click.option("--config", "recipe", type=RECIPE, metavar="NAME|FILE", help="Recipe: a name that isotrope recipe "
                 "lists (default: minilm), or a TOML file."),
    click.option("--set", "assignments", multiple=True, metavar="SECTION.KEY=VALUE", help="Override one setting of the "
                 "recipe; repeatable."),
)  # fmt: skip
"""--config, --set"""
format_option = click.option("--format", "format_", default="", metavar="NAME", help="Format of the corpus: jsonl, "
                             "csv, tsv, parquet, arrow or text. Default: by file name.")  # fmt: skip
on_error_option = click.option("--on-error", type=click.Choice(["fail", "skip"]), help="Fail at a bad row of the "
                               "corpus, or skip it. Default: fail; for files that are documents, skip.")  # fmt: skip
documents_option = click.option("--documents", "document_source", type=click.Choice(["rows", "files"]), help="Make "
                                "a document of each row of a table or line of a text, or of each whole file of a "
                                "folder (Markdown, PDF, code, ...). Default: the recipe's, rows.")  # fmt: skip
corpus_options = all_of(
    recipe_options,
    format_option,
    click.option("--id-column", default="", metavar="NAME", help="Column with ids. Default: _id, id or docid."),
    click.option("--title-column", default="", metavar="NAME", help="Column with titles. Default: title."),
    click.option("--text-column", default="", metavar="NAME", help="Column with texts. Default: text, contents or "
                 "document_text."),
    click.option("--vector-column", default="", metavar="NAME", help="Column with embeddings made elsewhere: no model "
                 "runs. The same as encoder.kind=vectors."),
    click.option("--column", "columns", multiple=True, metavar="NAME:TYPE", help="Read a metadata column as this type, "
                 "such as year:int."),
    click.option("--drop-column", "drop", multiple=True, metavar="NAME", help="Leave a metadata column out."),
    on_error_option,
)  # fmt: skip
"""Options for reading and building a corpus"""
CORPUS_NAMES = (
    "recipe", "assignments", "document_source", "format_", "id_column", "title_column", "text_column", "vector_column",
    "columns", "drop", "on_error",
)  # fmt: skip
"""The names of `documents_option` and `corpus_options` in a command's arguments."""


def recipe_of(options: Mapping[str, Any]) -> "BuildConfig":
    """Return the recipe of --config, --set and, if the command has them, --documents and the column options."""
    from indexer.recipe.config import BuildConfig

    config = BuildConfig.load(options["recipe"]) if options["recipe"] else BuildConfig()
    roles = ("id_column", "title_column", "text_column", "vector_column")
    names = {name: options[name] for name in roles if options.get(name)}
    if source := options.get("document_source"):
        names["documents"] = source
    config = config.with_columns(names, options.get("columns", ()), options.get("drop", ()))
    return config.with_overrides(options["assignments"])


def corpus_of(
    sources: tuple[str, ...], config: "BuildConfig", options: Mapping[str, Any], rejects: Path | None
) -> "Corpus":
    """Return the corpus that the sources name; `rejects` lists skipped rows."""
    from indexer import read_corpus

    skip = skips_bad_rows(config, options)
    return read_corpus(
        *sources,
        config=config.corpus,
        format=options["format_"],
        on_error="skip" if skip else "fail",
        rejects=rejects if skip else None,
        force=options.get("force", False),
    )


def skips_bad_rows(config: "BuildConfig", options: Mapping[str, Any]) -> bool:
    """Return whether bad rows are skipped, by --on-error or by the usual choice for these documents."""
    return (options["on_error"] or config.corpus.usual_on_error) == "skip"


def beside(index: Path, suffix: str) -> Path:
    """Return the path of an index with a suffix; for an index in object storage, in the current folder."""
    if mirrored(index) is not None:
        return Path(f"{index.name}{suffix}")
    whole = index.resolve() if index.name in ("", "..") else index  # "." has no name
    return whole.with_name(f"{whole.name}{suffix}")


def rejects_file(given: Path | None, index: Path, suffix: str, skip: bool) -> Path:
    """Return the file that lists skipped rows: that of --rejects, else a file next to the index."""
    if given and not skip:
        raise click.UsageError("--rejects lists the rows that --on-error skip skips; pass both, or neither.")
    return given or beside(index, suffix)


def rerank_options(text: str) -> Callable[[F], F]:
    """Return --rerank, passed as `rerank`, and --rerank-depth."""
    return all_of(
        click.option("--rerank", metavar="MODEL", help=text),
        click.option(
            "--rerank-depth", type=click.IntRange(1, MOST_DEPTH), metavar="N", help="Hits that it reranks. Default: 50."
        ),
    )


def rerank_task(options: Mapping[str, Any]) -> "RerankTask | None":
    """Return the reranking of `rerank_options`. Raises UsageError for a depth without a model."""
    if options["rerank"] is None:
        if options["rerank_depth"] is not None:
            raise click.UsageError("--rerank-depth needs a cross-encoder. Fix: add --rerank MODEL.")
        return None
    from indexer.recipe.ranking import RerankConfig
    from search.evaluation.retrieval.reranked import RerankTask

    return RerankTask(options["rerank"], options["rerank_depth"] or RerankConfig.depth)


target_options = all_of(
    recipe_options,
    click.option("--index", type=PATH, metavar="DIR", help="Measure this index and its recipe."),
    encoder_options,
    click.option("--cache", type=PATH, metavar="DIR", help="Folder that keeps embeddings between runs."),
)
"""`recipe_options`, --index, `encoder_options`, --cache"""
sweep_options = all_of(
    click.option("--pooling", "poolings", multiple=True,
                 type=click.Choice(["mean", "cls", "max", "sif", "sbert-wk", "latte-mix"]), help="Pooling to try. "
                 "Repeatable, like the next options: every combination is measured. Default: the recipe's."),
    click.option("--layers", "layers", multiple=True, metavar="L[,L...]", help="Layers to average, such as 1,-1."),
    click.option("--strength", "strengths", multiple=True, metavar="S", help='Whitening strength, 0 to 1, or "none" '
                 "for no transform at all."),
    click.option("--dim", "dims", multiple=True, type=int, help="Leading directions kept; 0 keeps all."),
    click.option("--transform", "kinds", multiple=True, type=click.Choice(["whitening", "flow", "hellinger"]),
                 help="Kind of transform: whitening, BERT-flow, or square roots of probabilities."),
    click.option("--shrinkage", "shrinkages", multiple=True, type=float, help="Shrinkage of the covariance, 0 to 1."),
)  # fmt: skip
"""--pooling, --layers, --strength, --dim, --transform, --shrinkage"""
centre_option = click.option("--centre", "centres", multiple=True, type=click.Choice(["role", "common", "none"]),
                             help="Mean to subtract: role (a separate mean for queries), common (one for all), "
                             "none.")  # fmt: skip
"""--centre, where queries and documents differ"""


def target_of(options: Mapping[str, Any]) -> "Target":
    """Return the index or recipe that `target_options` name."""
    from indexer.errors import ConfigError
    from search.evaluation.target import Target

    run = run_options(options)
    if options["index"]:
        if options["recipe"] or options["assignments"] or options.get("document_source"):
            raise ConfigError(
                "--index uses the recipe of the index. Fix: leave out --config, --set and --documents, and pass the "
                "settings of the recipe as options, such as --strength 0.5 --shrinkage 0.5, or refit the index with "
                "isotrope refit INDEX --config FILE first."
            )
        return Target.of_index(options["index"], options["model"], run)
    if options["model"]:
        raise ConfigError("--model needs --index. Fix: use --set encoder.model=FOLDER.")
    return Target.of_recipe(recipe_of(options), run)


def sweep_of(options: Mapping[str, Any]) -> "Sweep":
    """Return the settings to try, from `sweep_options` and `centre_option`."""
    from search.evaluation.sweep import Sweep, parse_layers, parse_strength

    return Sweep(
        poolings=options["poolings"],
        layers=tuple(parse_layers(text) for text in options["layers"]),
        strengths=tuple(parse_strength(text) for text in options["strengths"]),
        dims=options["dims"],
        shrinkages=options["shrinkages"],
        kinds=options["kinds"],
        centres=options.get("centres", ()),
    )


_WRITTEN = {"output": "-o", "plot": "--plot", "run": "--run", "per_query": "--per-query"}
_READ = ("recipe", "index", "model", "corpus", "threshold_from", "query_vectors")


def check_written(
    written: Mapping[str, Path],
    reads: Iterable[str | Path | None],
    force: bool,
    made: Mapping[str, Path] | None = None,
    whole: Collection[str] = (),
) -> None:
    """Call `check_outputs` with the inputs as written on the command line: names, globs, - and hub ids."""
    from search.result_files import check_outputs, read_by

    check_outputs(written, read_by(*reads), force, made, whole)


def check_rejects(
    rejects: Path | None, reads: Iterable[str | Path | None], made: Mapping[str, Path] | None = None
) -> None:
    """Check the list of skipped rows likewise. `read_corpus` checks what it replaces, and that it is no source."""
    check_written({"--rejects": rejects} if rejects else {}, reads, force=True, made=made)


def check_output_options(options: Mapping[str, Any], *reads: str | Path | None) -> None:
    """Check -o, --plot, --run, --per-query and --cache before measuring: writable, and not an input.

    `reads` are further inputs of the command. Raises ConfigError, ExistsError.
    """
    from search.result_files import check_cache

    config = recipe_of(options) if "recipe" in options and not options.get("index") else None
    named = (options.get(name) for name in _READ)
    check_written(written_by(options), [*reads, *named, *recipe_reads(config, options.get("index"))], options["force"])
    if options.get("cache"):
        check_cache(options["cache"])


def written_by(options: Mapping[str, Any]) -> dict[str, Path]:
    """Return option -> file. A folder of runs is left out: its files are checked when they are named."""
    paths = {flag: options[name] for name, flag in _WRITTEN.items() if options.get(name)}
    return {flag: path for flag, path in paths.items() if flag != "--run" or not path.is_dir()}


def recipe_reads(config: "BuildConfig | None", index: str | Path | None = None) -> list[str]:
    """Return the files and folders that a recipe, or an index's recipe, names; none for a damaged index."""
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
    names = (config.encoder.model, config.encoder.fitted, config.whitening.query_sample, config.index.queries)
    return [name for name in names if name]
