"""Builds and changes in processes that can be killed: runs everything once, then forks a child per line on stdin.

Run as `python -m tests.zygote MODEL FOLDER` (MODEL as in `config`); the first build, into FOLDER, imports and
warms up everything that would cost a child seconds. A line names a verb and an index. Prints the child's pid, reads
another line, and prints the child's exit status; until then the pid stays reserved even if the child has ended.
"""

import os
import shutil
import sys
from pathlib import Path

os.environ["TOKENIZERS_PARALLELISM"] = "false"  # a forked child lacks its threads

from indexer import BuildConfig, Document, add_documents, build_index, compact_index, delete_documents, refit_index
from indexer.recipe.config import EncoderConfig
from indexer.recipe.index_config import StoreConfig

DOCUMENTS = [
    Document(f"d{number}", f"Sentence number {number} is about {word}.", metadata={"length": len(word)})
    for number, word in enumerate(
        4 * ["whales", "bridges", "bread", "stars", "rivers", "clocks", "bees", "glass", "maps", "salt"]
    )
]


def config(model: str) -> BuildConfig:
    """Return a recipe with a model's folder, or with a file of word vectors, which needs no torch."""
    if Path(model).is_file():
        encoder = EncoderConfig(kind="static", model=model)
    else:
        encoder = EncoderConfig(model=model, max_length=32, precision="float32")
    return BuildConfig(encoder=encoder, store=StoreConfig(part_documents=4))


NEW = [Document(f"n{number}", f"New sentence {number} about owls and lamps.") for number in range(9)]


def run(verb: str, index: Path, model: str) -> None:
    """Run one verb on an index."""
    if verb == "build":
        build_index(DOCUMENTS, index, config(model))
    elif verb == "add":
        add_documents([*NEW, Document("d3", "Another text for a known id.")], index)
    elif verb == "delete":
        delete_documents(index, ["d1", "d7", "d20"], ignore_missing=True)
    elif verb == "refit":
        refit_index(index, ["whitening.strength=1"])
    elif verb == "compact":
        compact_index(index, keep=1, grace=0)


def main() -> None:
    model, first = sys.argv[1], Path(sys.argv[2])
    for verb in ("build", "add", "delete", "refit", "compact"):
        run(verb, first if verb == "build" else first.with_name("warm-up"), model)
        if verb == "build":
            shutil.copytree(first, first.with_name("warm-up"))
    for line in iter(sys.stdin.readline, ""):
        child = os.fork()
        if child == 0:
            verb, _, index = line.strip().partition(" ")
            run(verb, Path(index), model)
            os._exit(0)
        print(child, flush=True)
        sys.stdin.readline()
        print(os.waitpid(child, 0)[1], flush=True)


if __name__ == "__main__":
    main()
