"""`isotrope evaluate sts --methods`: every method beside mean pooling."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from search.cli.evaluate.options import subject_of, sweep_of

if TYPE_CHECKING:
    from search.evaluation.result import Result


def measure_methods(
    sources: Sequence[str], protocols: Sequence[Any], fit: str, options: dict[str, Any], progress: Any
) -> "Result":
    """The result of a comparison. Raises ConfigError for options of a sweep."""
    from indexer.errors import ConfigError
    from search.evaluation.papers.method_settings import DRAWN, SEEDS, MethodsOptions, methods_of
    from search.evaluation.papers.methods import evaluate_methods
    from search.evaluation.sts.data import read_tasks

    if not sweep_of(options).is_empty:
        raise ConfigError("--methods chooses settings itself; leave out options such as --layers and --strength.")
    subject = subject_of(options)
    methods = methods_of(options["methods"], subject.spec.traits.has_layers)
    if options["seeds"] is not None and not set(methods) & set(DRAWN):
        raise ConfigError(f"--seeds: none of {', '.join(methods)} draws numbers. Leave it out.")
    plan = MethodsOptions(
        methods,
        protocols or ("mean",),
        fit,
        options["train"],
        options["train_documents"],
        SEEDS if options["seeds"] is None else options["seeds"],
    )
    return evaluate_methods(subject, read_tasks(*sources), plan, options["cache"], progress)
