"""Entry point of the command `isotrope`, protected from files in the working directory.

Python puts the working directory on its path for `python -m isotrope`, and for an empty entry of PYTHONPATH. It would
import a file search.py or indexer.py there instead of this project's packages.
"""

import sys
from contextlib import suppress
from pathlib import Path


def main() -> None:
    """Remove the working directory from the path, unless it contains the packages, and run the command line."""
    with suppress(FileNotFoundError):  # the working directory was deleted
        home, here = Path(__file__).resolve().parent, Path.cwd()
        if here != home:
            sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]
    from search.cli import main as run

    run()


if __name__ == "__main__":
    main()
