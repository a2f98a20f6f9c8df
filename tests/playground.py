"""A folder with small versions of all files in the examples of the README and of help texts."""

import json
import random
from itertools import pairwise
from pathlib import Path

from tests.sts_tasks import write_tasks
from tests.written_files import pdf, write

FIRST = [
    {"id": "doc1", "title": "Whales", "text": "Whales sing for hours.", "year": 1970, "lang": "en", "source": "sea"},
    {"id": "doc2", "title": "Bridges", "text": "A bridge hangs from cables.", "year": 1883, "lang": "en"},
    {"id": "doc3", "title": "Bread", "text": "Yeast makes the dough rise.", "year": 1000, "lang": "en", "source": "b"},
]
_THINGS = (
    "clock",
    "river",
    "violin",
    "harbour",
    "comet",
    "orchard",
    "engine",
    "desert",
    "library",
    "glacier",
    "market",
)
_DEEDS = ("slows in winter", "was drawn by hand", "feeds the valley", "has many keepers", "cannot be heard at night")


_STDLIB = {
    "random.Random.shuffle": "Shuffle list x in place, and return None.",
    "random.Random.choice": "Choose a random element from a non-empty sequence.",
    "datetime.date.__sub__": "Subtract two dates, or a date and a timedelta.",
    "datetime.timedelta": "Represent the difference between two datetime objects.",
    "os.walk": "Directory tree generator.",
    "os.fwalk": "Directory tree generator. This behaves exactly like walk(), except that it yields a 4-tuple.",
    "shutil.copyfile": "Copy data from src to dst in the most efficient way possible.",
    "shutil.move": "Recursively move a file or directory to another location.",
}


_NOTES = {
    "home/ferry.md": "# Ferry to the island\n\n"
    "The boat takes ninety people and six cars. Tickets are sold on board, in cash, and at the\n"
    "kiosk beside the mill. Bicycles travel free; a trailer counts as half a car.\n\n## Summer\n\n"
    "A boat leaves every hour from seven to nine, and every half hour on market days. The crossing\n"
    "takes twenty minutes. In August the queue of cars is long: be there an hour early, or leave the\n"
    "car in the field behind the church. Dogs stay on the upper deck.\n\n## Winter\n\n"
    "The last boat leaves the island at half past six. From November on it leaves an hour earlier.\n"
    "In a storm no boat leaves; the harbour office then answers the telephone until midnight. The heated\n"
    "cabin has room for thirty people, and children go first. The ramp is steep at low water.\n",
    "home/bread.txt": "Rye bread\n\nMix the starter with rye flour the evening before, and bake it for an hour.\n",
    "work/budget.md": "# Budget of the harbour\n\nThe crane costs more than the new pier.\n\n## Open questions\n\n"
    "- who pays for the crane\n- when the pier is built\n",
    "work/minutes.html": "<html><head><title>Minutes of May</title></head><body><nav>Home</nav><h1>Minutes of May</h1>"
    "<p>The council voted for the new pier.</p></body></html>",
    "src/tides.py": '"""Tables of tides."""\n\n\ndef next_high_tide(hour: float) -> float:\n'
    '    """Return the hour of the next high tide."""\n    return hour + 12.42\n',
}
_LIGHTHOUSE = [
    ["The lighthouse of Bergen", "", "The keeper lit the lamp an hour before sunset."],
    ["Tide tables", "", "High water comes fifty minutes later every day."],
]


def write_notes(folder: Path) -> None:
    """Write a folder of notes."""
    for name, text in _NOTES.items():
        write(folder / name, text.encode())
    write(folder / "papers/lighthouse.pdf", pdf(_LIGHTHOUSE, "The lighthouse of Bergen"))


def demo_documents(size: int = 120) -> list[dict[str, object]]:
    """Return a few documents of `isotrope demo-corpus`: known names, then invented ones."""
    texts = _STDLIB | {f"town{n % 5}.Town.story_{n}": str(row["text"]) for n, row in enumerate(documents(size))}
    return [
        {"id": name, "text": text, "module": name.split(".")[0], "kind": _kind(name), "line": 10 * number + 1}
        for number, (name, text) in enumerate(list(texts.items())[:size])
    ]


def _kind(name: str) -> str:
    return "method" if name.count(".") > 1 else "class" if name == "datetime.timedelta" else "function"


def documents(size: int = 120) -> list[dict[str, object]]:
    """Return the first three documents, then others of two sentences each."""
    found: list[dict[str, object]] = list(FIRST)
    for number in range(len(FIRST), size):
        chance = random.Random(number)
        thing, other = chance.sample(_THINGS, 2)
        year = 1500 + number
        text = f"The {thing} of town {number} {chance.choice(_DEEDS)}. Since {year} nobody there has seen a {other}."
        rest = {"year": year, "lang": "la" if number % 7 == 3 else "en", "source": f"town{number % 5}"}
        found.append({"id": f"doc{number + 1}", "title": f"A {thing}", "text": text, **rest})
    return found


def lay_out(folder: Path) -> None:
    """Write all files."""
    (folder / "demo").mkdir()
    write_rows(folder / "demo/stdlib.jsonl", demo_documents())
    write_rows(folder / "docs.jsonl", documents())
    new = [row | {"id": f"new{number}"} for number, row in enumerate(demo_documents(20))]
    write_rows(folder / "new.jsonl", [*new, demo_documents()[0] | {"text": "Shuffle a list in place."}])
    (folder / "old.txt").write_text("random.Random.choice\nos.fwalk\n")
    (folder / "questions.txt").write_text("shuffle a list\nsubtract two dates\nwalk a directory tree\n")
    write_tasks(folder / "sts-folder")
    _write_words(folder)
    _write_beir(folder / "scifact")
    _write_rte(folder)
    write_notes(folder / "notes")


def write_rows(path: Path, rows: list[dict[str, object]]) -> None:
    """Write JSON Lines."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def _write_words(folder: Path) -> None:
    """Write word vectors and word-level data sets in their published formats, and sentences for training."""
    chance = random.Random(0)
    rows = {word: " ".join(f"{chance.gauss(0, 1):.3f}" for _ in range(8)) for word in _THINGS}
    (folder / "glove.6B.300d.txt").write_text("".join(f"{word} {row}\n" for word, row in rows.items()))
    pairs = [f"{a}\t{b}\tN\t{number % 10}\n" for number, (a, b) in enumerate(pairwise(_THINGS))]
    (folder / "SimLex-999.txt").write_text("word1\tword2\tPOS\tSimLex999\n" + "".join(pairs))
    fours = zip(_THINGS, _THINGS[1:], _THINGS[2:], _THINGS[3:], strict=False)
    (folder / "questions-words.txt").write_text(": things\n" + "".join(" ".join(four) + "\n" for four in fours))
    (folder / "sentences.txt").write_text("".join(f"{row['text']}\n" for row in documents(40)))


def _write_beir(folder: Path) -> None:
    (folder / "qrels").mkdir(parents=True)
    rows = documents()
    write_rows(
        folder / "corpus.jsonl", [{"_id": row["id"], "title": row["title"], "text": row["text"]} for row in rows]
    )
    write_rows(folder / "queries.jsonl", [{"_id": f"q{row['id']}", "text": row["title"]} for row in rows[:12]])
    lines = ["query-id\tcorpus-id\tscore", *(f"q{row['id']}\t{row['id']}\t1" for row in rows[:12])]
    (folder / "qrels/test.tsv").write_text("\n".join(lines) + "\n")


def _write_rte(folder: Path) -> None:
    (folder / "RTE").mkdir()
    texts = [str(row["text"]) for row in documents(40)]
    pairs = [(text, text.split(".")[0] + ".", True) for text in texts[:20]]
    pairs += [(text, other, False) for text, other in zip(texts[:20], texts[20:], strict=True)]
    for start, name in enumerate(("dev", "train")):
        rows = [
            f"{number}\t{one}\t{two}\t{'entailment' if entailed else 'not_entailment'}"
            for number, (one, two, entailed) in enumerate(pairs[start::2])
        ]
        (folder / f"RTE/{name}.tsv").write_text("\n".join(["index\tsentence1\tsentence2\tlabel", *rows]) + "\n")
    write_rows(
        folder / "val.jsonl",
        [
            {"premise": one, "hypothesis": two, "label": "entailment" if entailed else "not_entailment"}
            for one, two, entailed in pairs
        ],
    )
