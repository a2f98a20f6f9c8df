"""`isotrope serve` as a process, for tests of what asks it."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_CLI = "from search.cli import main; main()"


@contextmanager
def running_server(index: Path, *options: str | Path) -> Iterator[str]:
    """The URL of a server of an index, on any port that is free. It is stopped by SIGTERM, and must end in order."""
    command = [sys.executable, "-c", _CLI, "serve", str(index), "--port", "0", *map(str, options)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as server:
        try:
            assert server.stdout
            assert server.stderr
            said = server.stdout.readline()
            assert " is served at http" in said, server.stderr.read()
            yield said.split(" is served at ")[1].split()[0]
        finally:
            server.terminate()
            server.communicate(timeout=60)
        assert server.returncode == 0
