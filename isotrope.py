"""The command `isotrope`, started in a way that files in the working directory cannot break.

Python puts the working directory on its path for `python -m isotrope`, and for an empty entry of PYTHONPATH. A file
search.py or indexer.py there would be imported in place of this project's packages.
"""

import sys
from contextlib import suppress
from pathlib import Path


def main() -> None:
    """Run the command line, with the working directory off the path unless the packages are there."""
    with suppress(FileNotFoundError):  # a working directory that was deleted holds no files
        home, here = Path(__file__).resolve().parent, Path.cwd()
        if here != home:
            sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != here]
    from search.cli import main as run

    run()


if __name__ == "__main__":
    main()
