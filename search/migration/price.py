"""The price of encoding all documents of an index by another encoder, from the constants of `isotrope plan`."""

from dataclasses import dataclass
from typing import Any

from indexer.errors import IsotropeError
from indexer.recipe.config import BuildConfig
from indexer.system.threads import available_cores
from search.index import Index, LiveRows
from search.plan.plan import make_plan
from search.plan.request import Hardware, PlanSettings


@dataclass(frozen=True)
class MigrationPrice:
    """Documents and tokens to encode; seconds on this machine's cores and bytes of the new parts, None if unknown.

    The tokens are those that the present encoder counted; another tokenizer counts others. `unknown` is the reason.
    """

    documents: int
    tokens: int
    seconds: float | None = None
    bytes: int | None = None
    cores: int = 1
    unknown: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return JSON types."""
        return vars(self)


def migration_price(index: Index, config: BuildConfig) -> MigrationPrice:
    """Return the price of encoding the live documents of an index by the encoder of `config`. Encodes nothing."""
    documents, cores = index.manifest.documents, available_cores()
    tokens = sum(int(lengths.sum()) for lengths in LiveRows(index).length_blocks())
    if not documents:
        return MigrationPrice(0, 0, 0.0, 0, cores)
    mean = tokens / documents or PlanSettings.tokens
    try:
        plan = make_plan(PlanSettings(documents, mean, config=config, hardware=Hardware(cores=cores)))
    except IsotropeError as error:
        return MigrationPrice(documents, tokens, cores=cores, unknown=str(error))
    figures = {line.key: line.value for line in plan.ledger.lines}
    seconds = figures.get("encode.cpu_seconds")
    size = sum(value for key, value in figures.items() if key.startswith("storage.") and key != "storage.documents")
    return MigrationPrice(documents, tokens, None if seconds is None else seconds / cores, round(size), cores)
