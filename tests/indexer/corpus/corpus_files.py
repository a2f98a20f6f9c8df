"""Small corpora on disk with a bad row in the middle, and checks of the errors and of the remaining rows."""

import json
from pathlib import Path
from typing import Any

import pytest

from indexer.corpus.corpus import read_corpus
from indexer.errors import CorpusError

GOOD = ('{"_id": "a", "text": "first"}', '{"_id": "c", "text": "last"}')


def write(folder: Path, name: str, data: bytes | bytearray | str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    return path


def jsonl(folder: Path, bad: bytes | str) -> Path:
    """A file whose second line is bad and whose first and third are good."""
    bad = bad.encode() if isinstance(bad, str) else bad
    return write(folder, "docs.jsonl", GOOD[0].encode() + b"\n" + bad + b"\n" + GOOD[1].encode() + b"\n")


def refusal(*sources: Path, **options: Any) -> str:
    with pytest.raises(CorpusError) as caught:
        list(read_corpus(*sources, **options))
    return str(caught.value)


def without_bad_rows(*sources: Path, **options: Any) -> tuple[list[str], dict[str, int], list[dict[str, Any]]]:
    """Return the kept ids, the counted reasons and the entries of the rejects file."""
    rejects = sources[0].parent / "rejects.jsonl"
    corpus = read_corpus(*sources, on_error="skip", rejects=rejects, **options)
    kept = [document.id for document in corpus]
    assert corpus.report.rejects_file == str(rejects)
    assert corpus.report.documents == len(kept)
    entries = [json.loads(line) for line in rejects.read_text(encoding="utf-8").splitlines()]
    assert sum(corpus.report.rejected.values()) == len(entries)
    assert sorted(path.name for path in rejects.parent.glob(".*")) == [], "no temporary file is left"
    return kept, dict(corpus.report.rejected), entries


def check(
    path: Path,
    reason: str,
    what: str,
    *,
    line: int = 2,
    document_id: str | None = None,
    way_out: str = "",
    kept: list[str] | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Check one bad row in both modes; return its entry in the rejects file."""
    message = refusal(path, **options)
    whose = f' (id "{document_id}")' if document_id is not None else ""
    assert message.startswith(f"{path}:{line}: "), message
    assert what + whose + ". Fix: " + way_out in message, message
    assert message.endswith(', or pass on_error="skip" to skip such rows.'), message
    ids, reasons, entries = without_bad_rows(path, **options)
    assert ids == (["a", "c"] if kept is None else kept)
    assert reasons == {reason: 1}
    (entry,) = entries
    assert set(entry) == {"file", "line", "id", "reason", "message", "raw"}
    assert (entry["file"], entry["line"], entry["id"], entry["reason"]) == (str(path), line, document_id, reason)
    assert what in entry["message"]
    return entry
