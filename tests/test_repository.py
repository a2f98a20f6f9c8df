"""Content that no file of the repository may have."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]


def test_no_machine_path_or_registry_host_is_in_the_repository() -> None:
    if not (ROOT / ".git").exists():
        pytest.skip("needs git, which lists the files of the repository")
    tracked = subprocess.run(["git", "ls-files", "-z"], capture_output=True, text=True, cwd=ROOT, check=True)
    files = [name for name in tracked.stdout.split("\0") if (ROOT / name).is_file()]  # and no link to a folder
    names = [name for name in files if not name.startswith("tests/data/")]
    hosts = re.compile("pypi" + r"\.org|files\.pythonhosted|download\." + r"pytorch\.org|/(work|root)/\w")
    for name in names:
        text = (ROOT / name).read_text(encoding="utf-8", errors="replace")  # a picture is no text, and is looked at too
        assert not hosts.search(text), name
