"""Small corpora for tuning, one with judgements."""

import json
import random
from pathlib import Path

from indexer.corpus.document import Document

WORDS = ("whale", "song", "deep", "sea", "library", "data", "the", "of", "and", "in", "to", "for", "sing", "a")
COLUMNS = ("title", "text")


def corpus(size: int, titles: bool = True) -> list[Document]:
    """Documents of three sentences, each with two words that no other document has."""
    found = []
    for number in range(size):
        chance = random.Random(number)
        own = chance.sample(WORDS, 3)
        sentences = [" ".join(chance.choices([*own, *own, *WORDS], k=9)).capitalize() + "." for _ in range(3)]
        found.append(Document(f"d{number}", " ".join(sentences), " ".join(own) if titles else None))
    return found


def written(documents: list[Document], path: Path) -> Path:
    rows = [{"id": one.id, "title": one.title, "text": one.text} for one in documents]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def judged(documents: list[Document], folder: Path) -> Path:
    """A BEIR folder whose queries are the titles of the first twenty documents."""
    (folder / "qrels").mkdir(parents=True)
    written(documents, folder / "corpus.jsonl")
    queries = [{"_id": f"q{n}", "text": documents[n].title} for n in range(20)]
    (folder / "queries.jsonl").write_text("".join(json.dumps(row) + "\n" for row in queries))
    (folder / "qrels/test.tsv").write_text("".join(f"q{n}\td{n}\t1\n" for n in range(20)))
    return folder
