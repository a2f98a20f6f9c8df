"""The parts of the reference that come from the code: commands, settings of recipes, routes.

cog runs the calls in the pages' `[[[cog` blocks. `python -m tests.docs.generate` writes these parts and the settings of
`configs/minilm.toml` again; `test_reference.py` compares them with the code.
"""

import ast
import dataclasses
import html
import inspect
import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_type_hints

import click
import tomli_w
from cogapp import Cog
from fastapi import FastAPI

from indexer.recipe.config import BuildConfig
from indexer.recipe.loading import RECIPES, recipe_names, recipe_path, recipe_summary, recipe_text
from indexer.recipe.paper_methods import SETTINGS, settings_class
from indexer.typed_arguments import describe_type
from search import hits
from search.cli import LazyGroup
from search.ranking.options import SEARCH_OPTIONS, SearchOptions
from search.server import generations
from search.server.http import messages
from search.server.http.routes import health_routes, search_routes
from search.server.metrics import ServerMetrics
from search.server.openai import attribute_filters, embeddings, vector_stores
from search.server.openai.embeddings import embedding_routes
from search.server.openai.vector_stores import vector_store_routes
from search.server.settings import ServerLimits, ServerSettings
from tests.docs.pages import COMMANDS, DOCS

RECIPE_PAGE = "https://isotrope.github.io/isotrope/reference/recipe/"
MINILM = RECIPES / "minilm.toml"
PAGES = [path for path in sorted(DOCS.rglob("*.md")) if "[[[cog" in path.read_text(encoding="utf-8")]
_WIDTH = 110  # of comments in recipes
_LEAVES = ("Stamp",)  # models whose fields their own field names


def regenerated(path: Path) -> str:
    """Return a page, or the default recipe, with its generated parts written anew."""
    text = path.read_text(encoding="utf-8")
    if path == MINILM:
        return text.partition("\n[")[0].rstrip("\n") + "\n" + recipe_settings()
    page: str = Cog().process_string(text, path.name)
    return page


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in line)} |\n" for line in lines)


def code(text: str) -> str:
    """Return text as code; Markdown's own marks would end at a bar in a table."""
    return f"<code>{html.escape(text, quote=False)}</code>" if "|" in text or "`" in text else f"`{text}`"


def prose(text: str) -> str:
    """Return a sentence of the program for a page: options, placeholders and URLs as code."""
    text = " ".join(text.split())
    marked = re.compile(
        r"`[^`]*`|isotrope (?!or)[a-z][a-z-]*( --[a-z-]+)*|(?<![\w-])--?[a-z][\w-]*|\w+://[^\s,;)\"]*|<[^>]+>|\*|(?<!\w)_\w+"
    )
    return marked.sub(lambda match: match[0] if match[0].startswith("`") else code(match[0]), text)


# --- commands


def commands(names: str) -> str:
    """Return a section for each command, and for those of a group after it."""
    wanted = names.split()
    chosen = {name: command for name, (command, _) in COMMANDS.items() if name.split()[0] in wanted}
    ordered = sorted(chosen, key=lambda name: wanted.index(name.split()[0]))
    return "\n".join(_command(name, chosen[name]) for name in ordered)


def command_list() -> str:
    """Return a table of the commands, linked to their sections."""
    homes = {
        name: path.stem
        for path in (DOCS / "reference").glob("commands-*.md")
        for name in re.findall(r"^## isotrope (.*)", path.read_text(encoding="utf-8"), re.MULTILINE)
    }
    rows = [
        (f"[`{name}`]({homes.get(name)}.md#isotrope-{name.replace(' ', '-')})", prose(line))
        for name, (_, line) in COMMANDS.items()
    ]
    return table(("command", "what it does"), rows)


def _command(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"isotrope {name}")
    usage = " ".join(command.get_usage(context).removeprefix("Usage: ").split())
    parts = [f"## isotrope {name}\n", *_help(command.help or "", usage)]
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    if options:
        rows = [(_flags(each), _kind(each), _default(each), prose(each.help or "")) for each in options]
        parts.append(table(("option", "type", "default", "meaning"), rows))
    if isinstance(command, LazyGroup):
        parts.append(f"Commands: {', '.join(f'`{each}`' for each in command.commands_at)}.\n")
    return "\n".join(parts)


def _help(text: str, usage: str) -> Iterator[str]:
    """Yield the paragraphs of a help text, and its examples and lists as code; the usage follows the first."""
    first, *others = inspect.cleandoc(text).split("\n\n")
    yield f"{prose(first)}\n"
    yield f"```text\n{usage}\n```\n"
    for block in others:
        lines = block.replace("\b", "").strip("\n").splitlines()
        if "\b" not in block and not block.startswith(" "):
            yield f"{prose(block)}\n"
            continue
        if lines[0].endswith(":"):
            yield f"{prose(lines.pop(0))}\n"
        yield "```sh\n" + textwrap.dedent("\n".join(lines)) + "\n```\n"


def _flags(option: click.Option) -> str:
    names = ", ".join(code(name) for name in (*option.opts, *option.secondary_opts))
    return names if option.is_flag or not option.metavar else f"{names} {code(option.metavar)}"


def _kind(option: click.Option) -> str:
    kind = option.type
    if option.is_flag:
        return "flag"
    if isinstance(kind, click.Choice):
        words = " or ".join(code(str(choice)) for choice in kind.choices)
    elif isinstance(kind, click.types.IntParamType):
        low, high = getattr(kind, "min", None), getattr(kind, "max", None)
        words = (
            "whole number" if low is None else f"whole number, {low} or more" if high is None else f"{low} to {high:,}"
        )
    elif isinstance(kind, click.types.FloatParamType):
        words = "number"
    elif isinstance(kind, click.Path):
        words = "path"
    else:
        words = "text" if isinstance(kind, click.types.StringParamType | click.types.FuncParamType) else code(kind.name)
    return f"{words}, repeatable" if option.multiple else words


def _default(option: click.Option) -> str:
    value = option.to_info_dict()["default"]
    is_shown = isinstance(value, int | float | str) and value != "" and not option.is_flag
    return "required" if option.required else code(str(value)) if is_shown else ""


# --- settings


@cache
def meanings(cls: type) -> dict[str, str]:
    """Return the docstrings below the fields of a class and of its bases."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__[:-1]):
        try:
            (tree,) = ast.parse(textwrap.dedent(inspect.getsource(each))).body
        except (OSError, TypeError):  # a class that is made, not written
            continue
        body = getattr(tree, "body", [])
        for field, below in pairwise(body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.split())
    return found


def section_class(section: str) -> Any:
    """Return the dataclass of a recipe's section, such as "encoder" or "papers.flow"."""
    paper = section.removeprefix("papers.")
    return get_type_hints(BuildConfig)[section] if paper == section else settings_class(paper)


def sections() -> list[str]:
    """Return the names of all sections."""
    names = [field.name for field in dataclasses.fields(BuildConfig) if field.name != "papers"]
    return [*names, *(f"papers.{name}" for name in SETTINGS)]


def settings(section: str) -> str:
    """Return the table of a section's settings."""
    cls = section_class(section)
    hints, about = get_type_hints(cls), meanings(cls)
    rows = [
        (f"`{field.name}`", _words(hints[field.name]), code(_toml(field)), prose(about[field.name]))
        for field in dataclasses.fields(cls)
    ]
    return table(("setting", "type", "default", "meaning"), rows)


def _words(hint: Any) -> str:
    """Return a type in words, with choices as code."""
    words = describe_type(hint).removeprefix("a ")
    words = words.replace(" or ", ", ", words.count(" or ") - 1)
    return re.sub(r'"[^"]*"', lambda match: code(match[0]), words)


def _toml(field: "dataclasses.Field[Any]") -> str:
    """Return the default of a setting as TOML."""
    value = field.default_factory() if callable(field.default_factory) else field.default
    value = list(value) if isinstance(value, tuple) else float(value) if isinstance(value, float) else value
    if isinstance(value, list | dict):
        return json.dumps(value)
    return tomli_w.dumps({"": value}).partition(" = ")[2].strip()


def search_options() -> str:
    """Return the table of the fields of SearchOptions."""
    hints = get_type_hints(SearchOptions)
    rows = [(f"`{option.name}`", _words(hints[option.name]), prose(option.help)) for option in SEARCH_OPTIONS]
    return table(("field", "type", "meaning"), rows)


def recipe_settings() -> str:
    """Return every setting of `configs/minilm.toml` with its meaning."""
    lines = []
    for section in sections():
        if section.startswith("papers."):
            continue
        cls = section_class(section)
        lines += ["", f"[{section}]"]
        for field in dataclasses.fields(cls):
            about = meanings(cls)[field.name].replace("`", "")
            lines += [*textwrap.wrap(about, _WIDTH, initial_indent="# ", subsequent_indent="# ")]
            lines += [f"{field.name} = {_toml(field)}"]
    papers = ", ".join(f"[papers.{name}]" for name in SETTINGS)
    return "\n".join(
        [
            *lines,
            "",
            f"# Settings of papers' methods have a section each: {papers}. Their settings:",
            f"# {RECIPE_PAGE}",
            "",
        ]
    )


def recipes() -> str:
    """Return the table of the shipped recipes."""
    rows = []
    for name in recipe_names():
        config, text = BuildConfig.load(name), recipe_text(recipe_path(name))
        strength = config.whitening.strength
        rows.append((f"`{name}`", prose(recipe_summary(text)), code(config.encoder.model), str(strength)))
    return table(("recipe", "what it is for", "model", "whitening.strength"), rows)


# --- routes


def description() -> dict[str, Any]:
    """Return the OpenAPI description of the server's routes; they need an index only to answer."""
    served: Any = SimpleNamespace(settings=ServerSettings("index"), room=None)
    api = FastAPI()
    for routes in (search_routes, embedding_routes, vector_store_routes):
        api.include_router(routes(served))
    api.include_router(health_routes(served, ServerMetrics()))
    return api.openapi()


def routes() -> str:
    """Return a section for each route."""
    described = description()
    schemas = described["components"]["schemas"]
    return "\n".join(
        part
        for path, methods in described["paths"].items()
        for method, route in methods.items()
        for part in _route(f"{method.upper()} {path}", route, schemas)
    )


def _route(name: str, route: dict[str, Any], schemas: dict[str, Any]) -> Iterator[str]:
    yield f"### {name}\n"
    yield f"{prose(route['description'])}\n"
    fields = [_field(each["name"], each["schema"] | each, each["required"]) for each in route.get("parameters", ())]
    if fields:
        yield table(("parameter", "type", "default", "meaning"), fields)
    if body := _json_of(route.get("requestBody", {})):
        yield f"Fields of the body: {_about(body, schemas)}\n"
        yield table(("field", "type", "default", "meaning"), _fields(body, schemas))
    if answer := _json_of(route["responses"]["200"]):
        rows = [(name, kind, about) for name, kind, _, about in _fields(answer, schemas)]
        if rows:
            yield f"Fields of the answer: {_about(answer, schemas)}\n"
            yield table(("field", "type", "meaning"), rows)
    yield f"Statuses: {', '.join(sorted(route['responses']))}.\n"


def _json_of(message: dict[str, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = message.get("content", {}).get("application/json", {}).get("schema", {})
    return schema


def _inner(schema: dict[str, Any], schemas: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the models that a schema leads to, each with what follows the name of its field."""
    if "$ref" in schema:
        yield "", schema["$ref"].rpartition("/")[2]
    for part in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
        yield from _inner(part, schemas)
    if "items" in schema:
        yield from ((f"[]{suffix}", model) for suffix, model in _inner(schema["items"], schemas))


def _model(name: str) -> type:
    """Return the class of a schema."""
    rooms = (messages, embeddings, vector_stores, attribute_filters, generations, hits)
    found: type = next(getattr(room, name) for room in rooms if hasattr(room, name))
    return found


def _about(schema: dict[str, Any], schemas: dict[str, Any]) -> str:
    return " ".join(prose(schemas[model]["description"].partition("\n\n")[0]) for _, model in _inner(schema, schemas))


def _fields(
    schema: dict[str, Any], schemas: dict[str, Any], prefix: str = "", above: tuple[str, ...] = ()
) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, type, default and meaning of the fields of a body, those of its objects after them."""
    for suffix, model in _inner(schema, schemas):
        within = f"{prefix}{suffix}." if prefix else ""
        for name, field in schemas[model].get("properties", {}).items() if model not in (*above, *_LEAVES) else ():
            about = meanings(_model(model)).get(name, "")
            is_required = name in schemas[model].get("required", ())
            yield _field(f"{within}{name}", {"description": about} | field, is_required)
            yield from _fields(field, schemas, f"{within}{name}", (*above, model))


def _field(name: str, schema: dict[str, Any], is_required: bool) -> tuple[str, str, str, str]:
    default = "required" if is_required else code(json.dumps(schema["default"])) if "default" in schema else ""
    return code(name), _kind_of(schema), default, prose(schema.get("description", ""))


def _kind_of(schema: dict[str, Any]) -> str:
    """Return the type of a JSON schema in words, with its bounds."""
    parts = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if parts:
        return " or ".join(dict.fromkeys(map(_kind_of, parts)))
    if "enum" in schema or "const" in schema:
        return " or ".join(code(json.dumps(value)) for value in schema.get("enum", [schema.get("const")]))
    words = {"string": "text", "integer": "whole number", "boolean": "true or false", "array": "list"}
    kind: str = words.get(schema.get("type", "object"), schema.get("type", "object"))
    if kind == "list" and "prefixItems" in schema:
        kind = "two whole numbers"
    elif kind == "list":
        kind = f"list of {_kind_of(schema['items'])}"
    bounds = {"minimum": "at least {:g}", "maximum": "at most {:g}", "maxLength": "at most {:,} characters"}
    limits = [words.format(schema[key]) for key, words in bounds.items() if schema.get(key) is not None]
    return f"{kind} ({', '.join(limits)})" if limits else kind


def limits() -> str:
    """Return the table of a server's limits."""
    about = meanings(ServerLimits)
    rows = [
        (f"`{field.name}`", f"{field.default:,}", prose(about[field.name]))
        for field in dataclasses.fields(ServerLimits)
    ]
    return table(("limit", "default", "meaning"), rows)


if __name__ == "__main__":
    for path in (*PAGES, MINILM):
        path.write_text(regenerated(path), encoding="utf-8")
