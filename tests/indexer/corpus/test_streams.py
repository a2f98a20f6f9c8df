"""The bytes of a source: long lines, compression bombs and broken streams in bounded memory."""

import bz2
import gzip
import json
import os
import re
import tracemalloc
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pyarrow as pa
import pytest

from indexer.corpus.corpus import read_corpus
from indexer.corpus.readers import streams
from indexer.corpus.readers.streams import MAX_LINE_BYTES
from tests.indexer.corpus.corpus_files import GOOD, refusal, without_bad_rows, write

# --- long lines


def test_a_line_of_100_megabytes_is_passed_over_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "docs.jsonl"
    with path.open("wb") as file:
        file.write(GOOD[0].encode() + b'\n{"_id": "b", "text": "')
        file.truncate(100_000_000)  # a hole, which uses no disk
        file.seek(0, os.SEEK_END)
        file.write(b"\n" + GOOD[1].encode() + b"\n")
    tracemalloc.start()
    ids, reasons, entries = without_bad_rows(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MAX_LINE_BYTES + (8 << 20)
    assert (ids, reasons) == (["a", "c"], {"long-line": 1})
    assert entries[0]["raw"].startswith('{"_id": "b", "text": "')
    assert len(entries[0]["raw"]) == 2000
    assert re.match(
        rf"{re.escape(str(path))}:2: the line has 99,9\d\d,\d\d\d bytes; the limit is 33,554,432", refusal(path)
    )


def test_a_long_line_of_csv_is_passed_over(tmp_path: Path) -> None:
    data = b"id,text\na,first\nb," + b"x" * (MAX_LINE_BYTES + 1) + b"\nc,last\n"
    assert without_bad_rows(write(tmp_path, "docs.csv", data))[:2] == (["a", "c"], {"long-line": 1})


# --- compression


def zstd(data: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue().to_pybytes())


PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "bz2": partial(bz2.compress, compresslevel=1),
    "zst": zstd,
}


@pytest.fixture
def small_bombs(monkeypatch: pytest.MonkeyPatch) -> None:
    """4 MB are a bomb already: 64 take a second to pack."""
    monkeypatch.setattr(streams, "BOMB_BYTES", 4 << 20)


@pytest.mark.parametrize("suffix", PACK)
def test_a_bomb_ends_its_file_and_the_next_is_read(tmp_path: Path, suffix: str, small_bombs: None) -> None:
    block = b"x" * 65_535 + b"\n"
    bomb = write(tmp_path, f"bomb.txt.{suffix}", PACK[suffix](block * 140))
    after = write(tmp_path, "docs.jsonl", GOOD[0])
    message = refusal(bomb)
    assert re.search(r"bomb\.txt\.\w+:\d+: the \w+ stream expands to [\d]+ times its size; the limit is 250", message)
    assert message.endswith('or pass on_error="skip" to skip the rest of such files.')
    corpus = read_corpus(bomb, after, on_error="skip")
    count = sum(1 for _ in corpus)
    assert corpus.report.rejected == {"bomb": 1}
    assert 60 < count < 80, "what came before the limit is kept, and so is the next file"


def test_a_bomb_of_one_line_is_met_in_bounded_memory(tmp_path: Path) -> None:
    bomb = write(tmp_path, "bomb.jsonl.gz", gzip.compress(bytes(100 << 20)))
    tracemalloc.start()
    assert "the gzip stream expands" in refusal(bomb)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MAX_LINE_BYTES + (8 << 20)


def test_a_parquet_file_inside_a_bomb_is_refused(tmp_path: Path) -> None:
    bomb = write(tmp_path, "bomb.parquet.gz", gzip.compress(bytes(100 << 20)))
    assert "the gzip stream expands" in refusal(bomb)


@pytest.mark.parametrize("suffix", PACK)
def test_well_compressed_text_below_the_limit_is_no_bomb(tmp_path: Path, suffix: str, small_bombs: None) -> None:
    path = write(tmp_path, f"a.txt.{suffix}", PACK[suffix]((b"x" * 300_000 + b"\n") * 10))
    assert path.stat().st_size * 250 < 3_000_000
    assert sum(1 for _ in read_corpus(path)) == 10


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("damage", ["truncated", "corrupt"])
def test_a_broken_stream_keeps_what_came_before(tmp_path: Path, suffix: str, damage: str) -> None:
    lines = [json.dumps({"id": n, "text": os.urandom(20).hex()}).encode() + b"\n" for n in range(6_000)]
    if damage == "truncated":
        packed = PACK[suffix](b"".join(lines))[:-1000]
    else:
        packed = PACK[suffix](b"".join(lines[:4_500])) + b"garbage" + PACK[suffix](b"".join(lines[4_500:]))
    broken = write(tmp_path, f"docs.jsonl.{suffix}", packed)
    after = write(tmp_path, "after.jsonl", '{"id": "z", "text": "x"}')
    assert re.search(rf":\d+: the \w+ stream is {damage}.*Fix: download the file again", refusal(broken))
    ids, reasons, entries = without_bad_rows(broken, after)
    assert reasons == {"compression": 1}
    assert ids[-1] == "z"
    assert ids[:-1] == [str(n) for n in range(len(ids) - 1)]
    assert len(ids) > 3_000
    assert entries[0]["line"] == len(ids)
    assert "the rest of the file is skipped" in entries[0]["message"]


def test_a_file_that_is_not_compressed_at_all(tmp_path: Path) -> None:
    for suffix in PACK:
        assert "is corrupt" in refusal(write(tmp_path, f"docs.jsonl.{suffix}", GOOD[0]))
