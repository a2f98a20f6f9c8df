"""Loading of settings from nested mappings into dataclasses, with checked keys, types and ranges; paths of a user, and
the shipped recipes by name: `--config static` is `configs/static.toml`."""

import dataclasses
import difflib
import json
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_type_hints

from indexer.errors import ConfigError
from indexer.system.regular_files import read_regular
from indexer.system.urls import local_path, mirror_folder, url_of
from indexer.typed_arguments import describe_type

_SEED_BITS = 32
_RECIPE_BYTES = 1 << 20  # of a recipe file
RECIPES = Path(__file__).parent / "configs"  # a link to the checkout's `configs/`; a wheel contains the files


def from_mapping(cls: Any, data: Mapping[str, Any], where: str) -> Any:
    """Return the dataclass `cls` built from a mapping; missing keys have defaults. `where` prefixes names in errors.

    Raises ConfigError for an unknown key or a value of the wrong type.
    """
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where or 'the recipe'} is {data!r}; expected a table of settings.")
    hints = get_type_hints(cls)
    values = {}
    for key, value in data.items():
        name = f"{where}.{key}" if where else key
        if key not in hints:
            known = [f"{where}.{each}" if where else each for each in hints]
            raise ConfigError(did_you_mean("setting" if where else "section", name, known))
        hint = hints[key]
        values[key] = from_mapping(hint, value, name) if dataclasses.is_dataclass(hint) else _typed(value, hint, name)
    return cls(**values)


def parse_value(hint: Any, raw: str) -> Any:
    """Return a value from the command line: parsed as TOML, else as text; 0 for a text setting is "0"."""
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except tomllib.TOMLDecodeError:
        return with_line_breaks(raw)
    return raw if hint is str and not isinstance(value, str) else value


def with_line_breaks(raw: str) -> str:
    r"""Return a text from the command line, where the shell leaves \n as it is in "Instruct: ...\nQuery: "."""
    return raw.replace(r"\n", "\n")


def setting_type(cls: Any, path: Iterable[str]) -> Any:
    """Return the type of a setting, given its name table by table; None for an unknown one."""
    hint = cls
    for name in path:
        hint = get_type_hints(hint).get(name) if dataclasses.is_dataclass(hint) else None
    return hint


def did_you_mean(what: str, name: str, known: Iterable[str]) -> str:
    """Return a message for an unknown name, with the closest match or all known names."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f'did you mean "{close[0]}"?' if close else f"expected one of {', '.join(names)}."
    return f'unknown {what} "{name}"; {hint}'


def nearest_sibling(path: Path) -> str:
    """Return the end of a message about a missing file: the closest name in its folder, if any."""
    if not path.parent.is_dir():
        return f"; the folder {path.parent} does not exist either."
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:  # its names are no help then
        return "."
    close = difflib.get_close_matches(path.name, names, n=1)
    return f'; did you mean "{path.parent / close[0]}"?' if close else "."


def recipe_names() -> list[str]:
    """Return the names that `recipe_path` accepts, sorted."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def recipe_path(named: str | Path) -> Path:
    """Return the file of a recipe: a word without folder and suffix is a shipped recipe, anything else a path.

    Raises ConfigError for a name that no recipe has.
    """
    path = local_path(named)
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


def recipe_text(path: Path) -> str:
    """Return the text of a recipe file. Raises ConfigError."""
    try:
        return read_regular(path, _RECIPE_BYTES).decode()
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such recipe file{nearest_sibling(path)}") from None
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror or error}.") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: cannot be read as TOML: {error}") from error


def recipe_summary(text: str) -> str:
    """Return the first comment of a recipe, without a full stop; "" if it does not begin with one."""
    first = text.partition("\n")[0]
    return first.removeprefix("#").strip().removesuffix(".") if first.startswith("#") else ""


def states_setting(setting: str, recipe: str | Path | None, assignments: Iterable[str]) -> bool:
    """Return whether the user has chosen a setting: in an own recipe file, or by an assignment SECTION.KEY=VALUE.

    What a shipped recipe states is a default. Raises ConfigError for a recipe that cannot be read.
    """
    if any(each.partition("=")[0].strip() == setting for each in assignments):
        return True
    if recipe is None or (path := recipe_path(recipe)).parent == RECIPES:
        return False
    section, _, key = setting.partition(".")
    return key in tomllib.loads(recipe_text(path)).get(section, {})


def named_path(path: str | Path, what: str) -> Path:
    """Return the path of a user's text for `what`; for a URL in object storage its mirror folder.

    Raises ConfigError for an empty text, which Path reads as ".".
    """
    if not str(path):
        raise ConfigError(f"the path of {what} is empty; expected a path (. is the current folder).")
    url = url_of(path)
    return mirror_folder(url) if url else local_path(path)


def require_text(value: str, name: str) -> None:
    """Raises ConfigError for text that is not UTF-8, such as some file names, which recipes cannot store."""
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ConfigError(f"{name} is {value!a}, which is not UTF-8. Fix: correct it, or rename the file.") from None


def require_at_least(name: str, value: float, least: int) -> None:
    """Raises ConfigError with the name of the setting."""
    if not value >= least:
        raise ConfigError(f"{name} is {value}; expected at least {least}.")


def require_above_zero(name: str, value: float) -> None:
    """Raises ConfigError, also for infinity."""
    if not 0 < value < float("inf"):
        raise ConfigError(f"{name} is {value}; expected a number above 0.")


def require_seed(name: str, value: int) -> None:
    """Raises ConfigError for a value that numpy and torch do not accept as a seed."""
    if not 0 <= value < 1 << _SEED_BITS:
        raise ConfigError(f"{name} is {value}; expected 0 to {(1 << _SEED_BITS) - 1}.")


def _typed(value: Any, hint: Any, name: str) -> Any:
    """Return `value` as the type of a setting. Lists become tuples, and whole numbers floats where floats are expected.

    Raises ConfigError.
    """
    import msgspec

    for text in _texts(value):
        require_text(text, name)
    try:
        return msgspec.convert(value, hint, strict=True)
    except msgspec.ValidationError:
        pass
    raise ConfigError(f"{name} is {json.dumps(value, default=str)}; expected {describe_type(hint)}.")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from (text for pair in value.items() for part in pair for text in _texts(part))
    elif isinstance(value, list | tuple):
        yield from (text for part in value for text in _texts(part))
