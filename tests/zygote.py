"""Builds in processes that can be killed: does everything once, then forks a child for each line on stdin.

Run as `python -m tests.zygote MODEL FOLDER`; the first build, into FOLDER, imports and warms up all that a child
would spend seconds on. A line names an index. Prints the child's pid, reads another line, and prints the child's
exit status; until that line comes, the pid stays the child's even if it has ended.
"""

import os
import sys
from pathlib import Path

from indexer import BuildConfig, Document, build_index
from indexer.config import EncoderConfig, StoreConfig

DOCUMENTS = [
    Document(f"d{number}", f"Sentence number {number} is about {word}.", metadata={"length": len(word)})
    for number, word in enumerate(
        4 * ["whales", "bridges", "bread", "stars", "rivers", "clocks", "bees", "glass", "maps", "salt"]
    )
]


def config(model: str) -> BuildConfig:
    return BuildConfig(
        encoder=EncoderConfig(model=model, max_length=32, precision="float32"), store=StoreConfig(part_documents=4)
    )


def main() -> None:
    build_index(DOCUMENTS, Path(sys.argv[2]), config(sys.argv[1]))
    for line in iter(sys.stdin.readline, ""):
        child = os.fork()
        if child == 0:
            build_index(DOCUMENTS, Path(line.strip()), config(sys.argv[1]))
            os._exit(0)
        print(child, flush=True)
        sys.stdin.readline()
        print(os.waitpid(child, 0)[1], flush=True)


if __name__ == "__main__":
    main()
