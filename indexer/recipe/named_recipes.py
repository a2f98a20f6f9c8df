"""The shipped recipes by name: `--config static` is `configs/static.toml` next to this file.

The folder is a link to the checkout's `configs/`; a wheel contains the files themselves.
"""

import difflib
from pathlib import Path

from indexer.errors import ConfigError

RECIPES = Path(__file__).parent / "configs"


def recipe_names() -> list[str]:
    """Return the names that `recipe_path` accepts, sorted."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def recipe_path(named: str | Path) -> Path:
    """Return the file of a recipe: a word without folder and suffix is a shipped recipe, anything else a path.

    Raises ConfigError for a name that no recipe has.
    """
    path = Path(named)
    if str(named) in ("", ".", "..") or path.suffix or path.name != str(named):
        return path
    if path.name not in (names := recipe_names()):
        close = difflib.get_close_matches(path.name, names, n=1)
        meant = f' (did you mean "{close[0]}"?)' if close else ""
        raise ConfigError(
            f'there is no recipe "{path.name}"{meant}; expected {", ".join(names)}, or a path: a file without a suffix '
            f"is named with its folder, ./{path.name}."
        )
    return RECIPES / f"{path.name}.toml"
