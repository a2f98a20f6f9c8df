"""`isotrope plan` on the command line."""

import json
import re
import shlex
from pathlib import Path

import pytest

from tests.docs.pages import page
from tests.search.cli.test_cli import isotrope

BILLION = ("plan", "--documents", "1e9", "--tokens", "128", "--model", "bert-base-uncased", "--gpus", "8")


def test_a_billion_documents_with_the_arithmetic_shown() -> None:
    done = isotrope(*BILLION, "--memory", "256G", "--gpu-price", "2.5", "--storage-price", "0.02")
    assert done.returncode == 0, done.stderr
    for shown in ("GPU-hours *", "2 x 84.9M params x 128 tokens", "0.32 x 989 TFLOP/s", "embeddings.npy", "3.07 TB",
                  "manifest", "7 hosts", "memory to serve", "exact join", "--method ann", "19.6 GPU-hours x 2.5",
                  "data sheet", "measured", "extrapolated", "2026-"):  # fmt: skip
        assert shown in done.stdout, shown
    assert "note: no GPU was measured" in done.stderr


def test_the_plans_in_the_documentation_are_those_that_are_printed() -> None:
    shown = re.findall(
        r"```sh\n(isotrope plan [^\n]*)\n```\n\n```text\n(.*?)\n```", page("how-to/many-machines"), re.DOTALL
    )
    assert len(shown) == 3
    for command, lines in shown:
        printed = isotrope(*shlex.split(command)[1:]).stdout
        assert lines in printed
        if "1e9" in command:  # the whole plan; of the others, an excerpt
            assert lines == printed.partition("\n\nConstants")[0]


def test_json_and_a_file_say_the_same(tmp_path: Path) -> None:
    done = isotrope(*BILLION, "--json", "-o", tmp_path / "plan.json")
    printed = json.loads(done.stdout)
    assert printed == json.loads((tmp_path / "plan.json").read_text())
    assert (printed["documents"], printed["index"]["segments"], printed["index"]["shards"]) == (10**9, 1, 1)
    again = isotrope(*BILLION, "-o", tmp_path / "plan.json")
    assert (again.returncode, "--force" in again.stderr) == (1, True)


def test_short_options_are_settings_of_the_recipe() -> None:
    short = isotrope("plan", "--documents", "1M", "--dim", "64", "--embeddings", "float16", "--chunk", "100", "--json")
    settings = [word for name in ("whitening.dim=64", "store.embeddings=float16", "chunk.tokens=100")
                for word in ("--set", name)]  # fmt: skip
    long = isotrope("plan", "--documents", "1M", *settings, "--json")
    assert short.stdout == long.stdout != ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--documents", "lots"), '--documents is "lots"'),
        (("--documents", "1M", "--model", "bert-bse-uncased"), 'did you mean "bert-base-uncased"?'),
        (("--documents", "1M", "--gpus", "1", "--gpu", "h10"), 'did you mean "h100"?'),
        (("--documents", "1M", "--gpu-price", "-1"), "--gpu-price is -1.0"),
        (("--documents", "1e30"), '--documents is "1e30"; expected at most 281,474,976,710,656'),
        (("--documents", "1M", "--gpu", "h100"), "pass --gpus too"),
        (("--documents", "1M", "--gpu-price", "3"), "pass --gpus too"),
        (("--documents", "1M", "--gpus", "8", "--model", "potion-base-4M"), "leave out --gpus"),
        (("--documents", "1M", "--dim", "100000"), "has 384 dimensions"),
        (("--documents", "1M", "--model", "."), "is a folder without config.json"),
        (("--documents", "1M", "--memory", "huge"), 'memory is "huge"'),
        (("--documents", "1M", "--memory", "100M"), "--memory"),
    ],
)
def test_mistakes_get_one_clear_line(arguments: tuple[str, ...], message: str) -> None:
    done = isotrope("plan", *arguments)
    assert (done.returncode, done.stdout) == (1, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
