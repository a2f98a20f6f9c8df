"""Follow a page as a reader does: run its blocks in order in one folder, and compare the outputs that it shows.

Blocks of `sh` and `python` run; a block without a language is the output of the block before it. In an output, a line
`...` stands for any lines, and decimals may differ by 0.02, as they do between float32 and bfloat16. Comments above a
block: `<!-- exits with 1 -->`, and `<!-- not run: WHY -->` for a block that needs what no test has, such as a cluster.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from tests.docs.pages import ROOT, page

_FENCE = re.compile(r"(?:<!-- (not run|exits with 1)[^>]*-->\n+)?^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_DECIMAL = re.compile(r"-?\d+\.\d+")
_ENCODER = re.compile(r"^(encoder +)\w+, \w+$", re.MULTILINE)  # the fastest of the machine
_TOLERANCE = 0.02
_RUNNERS = {"sh": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"]}


def follow(name: str, folder: Path, instead: Mapping[str, str] | None = None) -> int:
    """Run the blocks of a page with some texts replaced, and return how many. Raises AssertionError for the first
    block that fails or prints something else."""
    count, printed, environment = 0, "", _environment(folder)
    for remark, language, code in _FENCE.findall(page(name)):
        if remark == "not run":
            continue
        for text, other in (instead or {}).items():
            code = code.replace(text, other)
        if language in _RUNNERS:
            count += 1
            done = subprocess.run(
                [*_RUNNERS[language], code], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=folder,
                env=environment, check=False, stdin=subprocess.DEVNULL,
            )  # fmt: skip
            printed = done.stdout
            assert done.returncode == (1 if remark else 0), f"{name}: {code}\n{printed}"
        elif not language:
            assert agrees(code, printed), f"{name} shows:\n{code}\nprinted:\n{printed}"
    return count


def agrees(shown: str, printed: str) -> bool:
    """Whether a page shows what was printed, but for white space, omitted lines and the last digits of decimals."""
    shown, printed = (_ENCODER.sub(r"\1", text) for text in (shown, printed))
    omitted = re.split(r"^\.\.\.$", shown, flags=re.MULTILINE)
    pattern = ".*?".join(_words(part) for part in omitted)
    found = re.fullmatch(pattern, " ".join(printed.split()) + " ", re.DOTALL)
    return found is not None and all(
        abs(float(there) - float(here)) <= _TOLERANCE
        for there, here in zip(_DECIMAL.findall(shown), found.groups(), strict=True)
    )


def _words(text: str) -> str:
    return "".join(_DECIMAL.sub(r"(-?\\d+\\.\\d+)", re.escape(word).replace(r"\-", "-").replace(r"\.", ".")) + r" "
                   for word in text.split())  # fmt: skip


def _environment(folder: Path) -> dict[str, str]:
    """Return an environment with `isotrope` and a `pip` that installs nothing, as everything is installed."""
    bin_folder = folder.parent / f"{folder.name}-bin"
    bin_folder.mkdir()
    commands = {
        "isotrope": f'exec "{sys.executable}" -m isotrope "$@"',
        "pip": "exit 0",
        "python": f'exec "{sys.executable}" "$@"',
    }
    for name, script in commands.items():
        (bin_folder / name).write_text(f"#!/bin/sh\n{script}\n")
        (bin_folder / name).chmod(0o755)
    return os.environ | {"PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
