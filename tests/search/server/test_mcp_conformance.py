"""The conformance suite of the Model Context Protocol, run against `isotrope mcp --http`."""

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.agents import server_for_agents
from tests.waiting import PATIENCE

SUITE = "@modelcontextprotocol/conformance@0.1.16"
NODE = "node@22"  # the suite needs Node 22 or newer
UNREACHABLE = r"npm error (code|errno) (ENOTFOUND|EAI_AGAIN|ECONN\w+|ETIMEDOUT|E\w+UNREACH|ERR_SOCKET_TIMEOUT)"

APPLICABLE = {"server-initialize", "ping", "tools-list", "resources-list", "dns-rebinding-protection"}


@dataclass(frozen=True)
class Inapplicable:
    """Scenarios that do not apply to a server of tools, and how the server answers them."""

    scenarios: str
    reason: str
    answer: str


INAPPLICABLE = [
    Inapplicable(
        "tools-call-simple-text tools-call-image tools-call-audio tools-call-embedded-resource "
        "tools-call-mixed-content tools-call-error tools-call-with-progress tools-call-sampling "
        "tools-call-elicitation json-schema-2020-12 elicitation-sep1034-defaults elicitation-sep1330-enums",
        "They call or list tools of the reference server.",
        "unknown tool|Available tools: search, fetch, search_documents",
    ),
    Inapplicable(
        "resources-read-text resources-read-binary resources-templates-read",
        "They read resources of the reference server.",
        "unknown resource",
    ),
    Inapplicable(
        "prompts-list prompts-get-simple prompts-get-with-args prompts-get-embedded-resource prompts-get-with-image "
        "completion-complete logging-set-level tools-call-with-logging resources-subscribe resources-unsubscribe",
        "Prompts, completions, log messages and subscriptions are optional; the server declares none of them.",
        "Method not found",
    ),
    Inapplicable(
        "server-sse-polling server-sse-multiple-streams",
        "Sessions and streams are optional; the server has neither.",
        "Server did not provide session ID",
    ),
]


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command of the suite. npm keeps its downloads, so only the first installation needs the registry."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("needs node and npm")
    folder = tmp_path_factory.mktemp("conformance")
    done = subprocess.run(
        [npm, "install", "--prefix", str(folder), "--prefer-offline", "--no-audit", "--no-fund", SUITE, NODE],
        capture_output=True, text=True, check=False, timeout=PATIENCE,
    )  # fmt: skip
    if re.search(UNREACHABLE, done.stderr):
        pytest.skip("the npm registry cannot be reached")
    assert done.returncode == 0, done.stderr
    programs = folder / "node_modules/.bin"
    return [str(programs / "node"), str(programs / "conformance")]


@pytest.mark.check
def test_every_scenario_for_a_server_of_tools_passes(suite: list[str], library: Path, tmp_path: Path) -> None:
    """The whole suite runs: every other scenario must fail for the reason above, and for no other."""
    results = tmp_path / "results"
    with server_for_agents(library) as url:
        command = [*suite, "server", "--url", url, "--suite", "all", "-o", str(results)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=PATIENCE)
    summary = done.stdout.partition("=== SUMMARY ===\n")[2]
    print(summary)  # shown by pytest -rP
    checks = {
        re.sub(r"^server-|-[^-]*-\d\d-\d\dT.*", "", path.parent.name): read(path) for path in results.glob("*/*.json")
    }
    inapplicable = {name: group for group in INAPPLICABLE for name in group.scenarios.split()}
    assert checks.keys() == APPLICABLE | inapplicable.keys(), done.stdout + done.stderr
    for name in APPLICABLE:
        assert {check["status"] for check in checks[name]} == {"SUCCESS"}, summary
    for name, group in inapplicable.items():
        poor = [check for check in checks[name] if check["status"] not in ("SUCCESS", "INFO")]
        assert re.search(group.answer, json.dumps(poor)), (name, poor)


def read(path: Path) -> list[dict[str, Any]]:
    checks: list[dict[str, Any]] = json.loads(path.read_text())
    return checks
