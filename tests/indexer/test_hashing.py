"""The hashes that indexes store or sort by, pinned: another value would be another index format."""

import threading
from datetime import date
from io import BufferedReader
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from indexer import hashing
from indexer.corpus.document import Document
from indexer.hashing import (
    bottom_k,
    canonical_json,
    canonical_sha256,
    file_sha256,
    fingerprint,
    hash_ahead,
    hash_id,
    hash_texts,
    hash_vectors,
)
from indexer.moments import Moments, tree_sum
from indexer.store import parts
from indexer.store.parts import document_key, embedding_key
from indexer.system.regular_files import open_regular

PLAIN: dict[str, Any] = {"b": [1, 2.5, None, True], "a": "Größe — 😀", "é": {"z": 1, "y": []}}


def test_a_fingerprint_is_ascii_and_a_canonical_hash_is_utf8() -> None:
    assert fingerprint(PLAIN) == PINNED["fingerprint"]
    assert canonical_json(PLAIN) == '{"a":"Größe — 😀","b":[1,2.5,null,true],"é":{"y":[],"z":1}}'.encode()
    assert canonical_sha256(PLAIN) == PINNED["canonical"]


def test_long_texts_are_hashed_piece_by_piece_to_the_same_value(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["Größe 😀", "", 'a\n"b"\\', "xy"]
    documents = [Document(str(number), text, text, {"ü": text}) for number, text in enumerate(texts)]
    hashes, key = hash_texts(texts), document_key("key", documents, {})
    monkeypatch.setattr(hashing, "_BLOCK", 2)
    monkeypatch.setattr(parts, "_PIECE", 2)
    assert hash_texts(texts).tobytes() == hashes.tobytes()
    assert document_key("key", documents, {}) == key


def test_texts_and_vectors_are_hashed_to_two_numbers() -> None:
    texts = hash_texts(["", "Größe", "a\nb"])
    assert texts.shape == (3, 2)
    assert texts.dtype == np.uint64
    assert texts.tolist() == PINNED["texts"]
    assert hash_vectors(np.array([[0.5, -1.0], [0.0, 3.0]], np.float16)).tolist() == PINNED["vectors"]
    assert hash_vectors(np.array([[0.5, -1.0]], np.float32)).tolist() == PINNED["float32"]


def test_a_file_is_hashed_again_only_when_it_was_touched(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"abc")
    for _ in range(2):
        assert file_sha256(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    path.write_bytes(b"")
    assert file_sha256(path) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_keys_of_parts() -> None:
    embeddings = embedding_key("ab" * 32, hash_texts(["one", "zwölf"]))
    documents = [
        Document("1", "one", "Title", {"year": 1999, "seen": date(2020, 2, 29), "raw": b"\x00", "x": 0.1, "n": None}),
        Document("ä", "zwölf", None, {}),
    ]
    assert embeddings == PINNED["embedding_key"]
    assert document_key(embeddings, documents, {"text": ("title", "text"), "ü": 1}) == PINNED["document_key"]


def test_samples_are_drawn_by_the_smallest_hashes_of_ids() -> None:
    hashes = np.array([hash_id(identity) for identity in ["a", "b", "c", "ä", ""]], np.uint64)
    assert hashes.tolist() == PINNED["ids"]
    assert bottom_k(hashes, 2).tolist() == np.sort(np.argsort(hashes)[:2]).tolist()
    assert bottom_k(hashes, "all").tolist() == [0, 1, 2, 3, 4]


def test_moments_are_summed_in_one_tree() -> None:
    rows = np.random.default_rng(3).standard_normal((7 * 4096 + 11, 3)).astype(np.float32)
    whole = Moments.of(rows)
    blocks = [Moments.of(rows[start : start + 4096]) for start in range(0, len(rows), 4096)]
    first, second = (blocks[0] + blocks[1]) + (blocks[2] + blocks[3]), (blocks[4] + blocks[5])
    by_hand = first + (second + (blocks[6] + blocks[7]))
    for found in (whole, tree_sum(blocks)):
        assert np.array_equal(found.mean, by_hand.mean)
        assert np.array_equal(found.scatter, by_hand.scatter)


PINNED: dict[str, Any] = {
    "fingerprint": "8fb9db89e9c02d1bcd0835b6dbfa68ce3dca0f4088cf30cf65d152d7f66e3ca2",
    "canonical": "a042bb4d3c80ab30ff9ed8ab15fe2c8cfd0a12471975bb1e475f210821b01991",
    "texts": [
        [4665148505410102986, 8103847710287220046],
        [5552272056297428154, 7100738103538823793],
        [9308681969209410572, 9690920378526537093],
    ],
    "vectors": [[7201743070800255003, 10267722374077583551], [14663109704209403134, 18096281583688508722]],
    "float32": [[17162624131391801565, 16766709322547405010]],
    "embedding_key": "2be95c6313780a196c03b663ef102b58ef394206fb1b0cd16d151b4d753d1a0c",
    "document_key": "01a93d155221328ef8169bcd18c43b41f456811456a83b198e0b5d2a5de69f94",
    "ids": [4681665781835383343, 9543904841865449333, 3981009880206486555, 17315702723226345529, 16476032584258269876],
}


def test_files_hashed_ahead_are_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Concurrent callers wait for the same hash, and an unreadable file is an error for its callers only."""
    path, begun, opened = tmp_path / "weights", threading.Event(), list[str]()
    path.write_bytes(b"abc")

    def slowly(name: str | Path) -> BufferedReader:
        opened.append(str(name))
        begun.set()
        return open_regular(name)

    monkeypatch.setattr("indexer.hashing.open_regular", slowly)
    hash_ahead([tmp_path / "missing", path])
    assert begun.wait(60)
    assert file_sha256(path) == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert opened == [str(path)]
    with pytest.raises(FileNotFoundError):
        file_sha256(tmp_path / "missing")
