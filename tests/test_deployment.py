"""Deployment files parse, and their statements are true: the Dockerfile, compose.yaml and the page about serving."""

import configparser
import json
import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from search.cli import LazyGroup, cli
from search.server.settings import ServerLimits
from tests.docs.pages import COMMANDS, examples

ROOT = Path(__file__).resolve().parents[1]
DOCS = (ROOT / "docs/how-to/search-site.md").read_text(encoding="utf-8")
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
SERVICE = COMPOSE["services"]["isotrope"]


def instructions() -> list[tuple[str, str]]:
    """Return the Dockerfile's instructions: name and arguments, with continued lines joined."""
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    joined = re.sub(r"\\\n\s*", "", "\n".join(line for line in lines if not line.startswith("#")))
    found = [line.split(None, 1) for line in joined.splitlines() if line.strip()]
    return [(name, rest) for name, rest in found]


DOCKERFILE = instructions()
STARTS = [name for name, _ in DOCKERFILE].index("FROM", [name for name, _ in DOCKERFILE].index("FROM") + 1)
RUNTIME = DOCKERFILE[STARTS:]


def unit() -> configparser.ConfigParser:
    """Return the systemd unit in the docs."""
    found = re.search(r"```ini\n(.*?)```", DOCS, re.DOTALL)
    assert found
    parser = configparser.ConfigParser(interpolation=None, strict=True)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(found.group(1))
    return parser


def parsed(words: list[str]) -> dict[str, Any]:
    """Return the values of an isotrope command line without running it. Raises UsageError if it is invalid."""
    assert isinstance(cli, LazyGroup)
    context = click.Context(cli, info_name="isotrope")
    name, command, rest = cli.resolve_command(context, list(words))
    assert command is not None
    return command.make_context(name, rest, parent=context).params


def test_the_command_lines_of_images_and_units_are_valid() -> None:
    calls = {
        "Dockerfile": json.loads(dict(RUNTIME)["CMD"]),
        "compose.yaml": SERVICE["command"],
        "unit": shlex.split(unit()["Service"]["ExecStart"].replace("\\\n", " "))[1:],
    }
    for where, words in calls.items():
        found = parsed(words)
        assert words[0] == "serve", where
        assert found["api_key_file"] is not None, where
        assert found["port"] == 8080, where
    assert parsed(calls["Dockerfile"])["host"] == parsed(calls["compose.yaml"])["host"] == "0.0.0.0"  # noqa: S104
    assert parsed(calls["unit"])["host"] == "127.0.0.1"


def test_the_image_runs_as_nobody_in_particular_and_holds_what_it_is_built_of() -> None:
    names = dict(RUNTIME)
    assert json.loads(names["ENTRYPOINT"]) == ["isotrope"]
    assert re.fullmatch(r"[1-9]\d+:[1-9]\d+", names["USER"])
    assert "/healthz" in names["HEALTHCHECK"]
    assert all(name != "ADD" for name, _ in DOCKERFILE)
    (image,) = [rest.partition("=")[2] for name, rest in DOCKERFILE if rest.startswith("PYTHON_IMAGE=")]
    assert re.fullmatch(r"python:3\.\d+-slim-\w+", image)
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = {
        word for name, rest in DOCKERFILE if name == "COPY" and "--from" not in rest for word in rest.split()[:-1]
    }
    assert copied == allowed
    assert all((ROOT / name).exists() for name in copied)


def test_the_image_installs_extras_that_there_are() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (asked,) = [found for _, rest in DOCKERFILE for found in re.findall(r'"\.\[(.*?)\]"', rest)]
    assert "FAISS=cpu" in [rest for name, rest in DOCKERFILE if name == "ARG"]
    for faiss in ("cpu", "gpu"):
        assert set(asked.replace("${FAISS}", faiss).split(",")) <= set(extras)


def test_the_health_check_is_a_program_that_can_be_run_and_the_same_in_both_files() -> None:
    own = json.loads(dict(RUNTIME)["HEALTHCHECK"].partition("CMD ")[2])
    assert own == SERVICE["healthcheck"]["test"][1:]
    compile(own[-1], "healthcheck", "exec")


def test_the_service_can_write_nowhere_but_to_its_cache_and_has_time_to_stop() -> None:
    assert SERVICE["read_only"] is True
    assert SERVICE["cap_drop"] == ["ALL"]
    assert [volume["target"] for volume in SERVICE["volumes"] if not volume.get("read_only")] == ["/cache"]
    assert {volume["source"] for volume in SERVICE["volumes"] if volume["type"] == "volume"} == set(COMPOSE["volumes"])
    assert {secret["source"] for secret in SERVICE["secrets"]} == set(COMPOSE["secrets"])
    assert f"/run/secrets/{SERVICE['secrets'][0]['source']}" in SERVICE["command"]
    assert all(port.startswith("127.0.0.1:") for port in SERVICE["ports"])
    assert int(SERVICE["stop_grace_period"].removesuffix("s")) > ServerLimits().drain


def test_the_unit_is_hardened_and_waits_for_the_last_answer() -> None:
    service = unit()["Service"]
    assert int(service["TimeoutStopSec"]) > ServerLimits().drain
    for name, value in {"DynamicUser": "yes", "ProtectSystem": "strict", "NoNewPrivileges": "yes"}.items():
        assert service[name] == value
    credential = service["LoadCredential"].partition(":")[0]
    assert f"${{CREDENTIALS_DIRECTORY}}/{credential}" in service["ExecStart"]


def test_the_examples_of_serve_are_valid() -> None:
    calls = examples(COMMANDS["serve"][0].help or "")
    assert calls
    assert all(parsed(call)["index"] for call in calls)


def test_every_call_of_the_page_is_valid_and_every_option_it_names_exists() -> None:
    calls = examples(re.sub(r"  +#.*", "", DOCS))
    assert len(calls) >= 3
    for call in calls:
        assert parsed(call)
    of_isotrope = {flag for command, _ in COMMANDS.values() for each in command.params for flag in each.opts}
    of_docker = {"--build-arg", "--build", "--detach", "--gpus"}
    named = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", DOCS))
    assert named <= of_isotrope | of_docker


def test_the_page_names_every_metric_and_no_other() -> None:
    pytest.importorskip("prometheus_client")
    from search.server import app
    from search.server.metrics import ServerMetrics

    own = [metric for metric in ServerMetrics().registry.collect() if not metric.name.startswith("process_")]
    counted = {f"{metric.name}_info" if metric.type == "info" else metric.name for metric in own}
    totals = {"isotrope_requests", "isotrope_refused", "isotrope_clients_left"}
    looked_up = set(re.findall(r'"(isotrope_\w+)"', Path(app.__file__).read_text(encoding="utf-8")))
    expected = {f"{name}_total" if name in totals else name for name in counted} | looked_up
    assert set(re.findall(r"`(isotrope_\w+)`", DOCS)) == expected
