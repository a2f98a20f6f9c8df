"""Writing a recipe file: what `BuildConfig.load` reads."""

from collections.abc import Sequence

import tomli_w

from indexer.config import BuildConfig


def recipe_toml(config: BuildConfig, remarks: Sequence[str] = ()) -> str:
    """A recipe as TOML, every setting written out; `remarks` stand above it as comments."""
    comments = [f"# {line}".rstrip() for remark in remarks for line in remark.splitlines()]
    return "\n".join([*comments, ""] if comments else []) + "\n" * bool(comments) + tomli_w.dumps(config.to_dict())
