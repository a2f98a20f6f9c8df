"""Arguments of public functions and settings, checked by their annotations.

Values that mean the same are converted: text where only a path is expected, an iterator where a sequence is expected,
and a list where a tuple is expected. Items of an `Iterable` are not checked, because it can be a corpus.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from functools import cache, wraps
from inspect import Parameter, signature
from numbers import Integral, Real
from operator import is_
from os import PathLike
from pathlib import Path
from sys import modules
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from indexer.errors import ConfigError

Checked = TypeVar("Checked", bound=Callable[..., Any])
_Hint = tuple[Any, frozenset[type]]  # an annotation, and the classes of `_classes`
_ANY: _Hint = (Any, frozenset())
_SHOWN = (str, bytes, int, float, bool, NoneType)  # types of values that errors show, if they are short
_LONGEST = 60  # characters
_FIXES = {  # argument -> the method that takes a list or an array
    "query": " Fix: for several queries, call search_many; for embeddings, SearchEngine.search_vectors.",
    "queries": " Fix: for embeddings, call SearchEngine.search_vectors.",
}
_WORDS: dict[Any, str] = {bool: "true or false", int: "a whole number", float: "a number", str: "text", Path: "a path",
                          NoneType: "None", Callable: "a function", Any: "any value"}  # fmt: skip


class _UnfitError(Exception):
    """A value does not fit an annotation; `at` is "number 2" if it is an item of a list."""

    def __init__(self, value: Any, hint: Any, at: str = "") -> None:
        super().__init__()
        self.value, self.hint, self.at = value, hint, at


def checked(call: Checked) -> Checked:
    """Raise ConfigError for arguments of a wrong type, given to a function or to the constructor of a class.

    A wrong number or name of arguments stays Python's TypeError.
    """
    if isinstance(call, type):
        constructor: Any = call
        constructor.__init__ = checked(constructor.__init__)
        return call

    @wraps(call)
    def checking(*given: Any, **named: Any) -> Any:
        hints, positions, others = _parameters(call)
        names = [*positions[: len(given)], *[others] * (len(given) - len(positions))]
        fitting = [_fitted(name, value, hints.get(name, _ANY)) for name, value in zip(names, given, strict=True)]
        return call(*fitting, **{name: _fitted(name, value, hints.get(name, _ANY)) for name, value in named.items()})

    result: Any = checking
    return result  # type: ignore[no-any-return]


@cache
def _parameters(call: Callable[..., Any]) -> tuple[dict[str, _Hint], list[str], str]:
    """Return the annotations by name, the names of positional parameters, and that of the rest, or ""."""
    known, named = vars(modules[call.__module__]), signature(call).parameters
    hints = {name: _resolved(each.annotation, known) for name, each in named.items() if each.kind != each.VAR_KEYWORD}
    kinds = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)
    rest = [name for name, each in named.items() if each.kind == each.VAR_POSITIONAL]
    positions = [name for name, each in named.items() if each.kind in kinds]
    return {name: (hint, _classes(hint)) for name, hint in hints.items()}, positions, rest[0] if rest else ""


def _classes(hint: Any) -> frozenset[type]:
    """Return classes whose values fit an annotation: most values are known to fit by their class, which is faster."""
    if get_origin(hint) is Iterable:  # its items are not checked
        return frozenset((list, tuple))
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    return frozenset(part for part in parts if isinstance(part, type) and part is not Any)


def _resolved(annotation: Any, known: dict[str, Any]) -> Any:
    """Return an annotation as a type; Any for a name that is imported for type checking only."""
    if annotation is Parameter.empty:
        return Any
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, known)  # noqa: S307 - of this program
    except NameError:
        return Any


def _fitted(name: str, value: Any, annotation: _Hint) -> Any:
    hint, classes = annotation
    if hint is Any or type(value) in classes:
        return value
    try:
        return _fit(value, hint)
    except _UnfitError as error:
        where, found, expected = error.at and f": {error.at}", _shown(error.value), describe_type(error.hint)
        if isinstance(error.value, str) and expected.startswith("a list"):
            found, expected = "one string", f"{expected}. Fix: pass it in a list"
        several = isinstance(error.value, list | tuple) or hasattr(error.value, "ndim")
        fix = _FIXES.get(name, "") if several else ""
        raise ConfigError(f"{name}{where} is {found}; expected {expected}.{fix}") from None


def _shown(value: Any) -> str:
    """Return a short value of a simple type, else its type."""
    shown = json.dumps(value) if isinstance(value, str) else repr(value) if isinstance(value, _SHOWN) else ""
    return shown if 0 < len(shown) <= _LONGEST else f"of type {type(value).__name__}"


def _fit(value: Any, hint: Any) -> Any:
    """Return a value that fits an annotation. Raises _UnfitError."""
    origin, parts = get_origin(hint) or hint, get_args(hint)
    if origin is Annotated:
        return _fit(value, parts[0])
    if origin in (Union, UnionType):
        return _fit_any(value, hint)
    if origin is Literal:
        fits = isinstance(value, str | int) and value in parts
    elif origin in (bool, int, float):
        is_bool = type(value).__name__ in ("bool", "bool_")  # also numpy's
        fits = is_bool if origin is bool else not is_bool and isinstance(value, Integral if origin is int else Real)
    elif origin is Path and isinstance(value, str | PathLike):
        if not str(value):
            raise _UnfitError(value, hint)
        return Path(value)
    elif isinstance(origin, type) and issubclass(origin, Iterable) and origin is not str and parts:
        return _fit_items(value, hint)
    elif origin is Callable or getattr(origin, "_is_protocol", False):
        names = [name for name in dir(origin) if not name.startswith("_")]
        fits = callable(value) if origin is Callable else all(hasattr(value, name) for name in names)
    else:
        fits = origin is Any or not isinstance(origin, type) or isinstance(value, origin)  # type variables fit
    if not fits:
        raise _UnfitError(value, hint)
    return value


def _fit_any(value: Any, hint: Any) -> Any:
    of_item = None
    for part in get_args(hint):
        try:
            return _fit(value, part)
        except _UnfitError as error:
            of_item = error if error.at else of_item
    raise of_item or _UnfitError(value, hint)


def _fit_items(value: Any, hint: Any) -> Any:
    """Return a collection that fits an annotation such as `Sequence[str]`."""
    origin, parts = get_origin(hint), get_args(hint)
    if issubclass(origin, Mapping) and isinstance(value, Mapping):
        fitted = {_fit(key, parts[0]): _fit(item, parts[1]) for key, item in value.items()}
        return value if all(map(is_, fitted.values(), value.values())) else fitted  # a caller may read what is added
    is_array = origin.__module__ == "numpy"
    is_list = hasattr(value, "__iter__") and not isinstance(value, str | bytes | Mapping)
    if issubclass(origin, Mapping) or not (isinstance(value, origin) if is_array else is_list):
        raise _UnfitError(value, hint)
    if origin is Iterable or is_array:
        return value
    given = list(value)
    kinds = [parts[0]] * len(given) if origin is not tuple or Ellipsis in parts else parts
    if len(given) != len(kinds):
        raise _UnfitError(value, hint)
    items = [_fit_item(number, *pair) for number, pair in enumerate(zip(given, kinds, strict=True), start=1)]
    if isinstance(value, origin) and all(map(is_, items, given)):
        return value
    return tuple(items) if origin is tuple else items


def _fit_item(number: int, item: Any, kind: Any) -> Any:
    try:
        return _fit(item, kind)
    except _UnfitError as error:
        raise _UnfitError(error.value, error.hint, f"number {number}") from None


def describe_type(hint: Any) -> str:
    """Return a type in words."""
    origin, parts = get_origin(hint) or hint, get_args(hint)
    if origin is Annotated:
        return describe_type(parts[0])
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(describe_type(part) for part in parts))
    if origin is Literal:
        return " or ".join(json.dumps(part) for part in parts)
    if origin in _WORDS:
        return _WORDS[origin]
    if origin is dict:
        return "a table of text" if parts[1:] == (str,) else "a table of sections"
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return "a dict"
    if isinstance(origin, type) and issubclass(origin, Iterable) and parts and origin.__module__ != "numpy":
        item = describe_type(parts[0])
        return f"a list of {item[2:]}s" if item.startswith("a ") and " or " not in item else f"a list of {item}"
    return "an array" if getattr(origin, "__name__", "") == "ndarray" else getattr(origin, "__name__", str(origin))
