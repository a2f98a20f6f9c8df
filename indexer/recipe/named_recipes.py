"""The recipes that come with Isotrope, by name: `--config static` is `configs/static.toml` beside this file.

The folder is a link to the checkout's `configs/`, where they are edited; a wheel holds the files themselves.
"""

import difflib
from pathlib import Path

from indexer.errors import ConfigError

RECIPES = Path(__file__).parent / "configs"


def recipe_names() -> list[str]:
    """What `recipe_path` takes for names, sorted."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def recipe_path(named: str | Path) -> Path:
    """The file of a recipe: a word without a folder and a suffix names one that is shipped, all else is a path.

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
