"""For each family of models a random one in sentence-transformers' layout: both roles equal sentence-transformers."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from indexer.encoders.load import load_encoder
from indexer.models.hub import quiet_transformers
from indexer.pipeline.build import build_index
from indexer.recipe.config import BuildConfig, EncoderConfig, Role, WhiteningConfig
from indexer.recipe.run_options import Backend, RunOptions
from search import SearchEngine
from tests.documents import DOCUMENTS
from tests.model_families import FAMILIES, save_family, scaled

TEXTS = [
    "",
    "a",
    "The whales sing in the deep sea.",
    "song of the deep " * 40,
    "鯨は海で歌う。",
    "الحوت يغني 🐋",
    "Wal, Größe",
]

QUICK = ("bge", "qwen3-embedding", "embeddinggemma", "sgpt")  # in `make test`; the others in `make check`
CASES = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.check) for name in FAMILIES]
Models = Callable[[str], Path]
Save = Callable[[str], Path]


@pytest.fixture(scope="session")
def save(tiny_model: Models, tmp_path_factory: pytest.TempPathFactory) -> Save:
    """Return a function that saves a family's model by sentence-transformers and returns the folder."""
    saved: dict[str, Path] = {}

    def folder(name: str) -> Path:
        if name not in saved:
            saved[name] = tmp_path_factory.mktemp(name) / "model"
            save_family(FAMILIES[name], tiny_model(FAMILIES[name].architecture), saved[name])
        return saved[name]

    return folder


def reference(folder: Path, role: Role, texts: list[str], truncate_dim: int | None = None) -> Any:
    """Encode text by text: sentence-transformers pads some decoders on the left, which moves absolute positions."""
    from sentence_transformers import SentenceTransformer

    with quiet_transformers():
        model = SentenceTransformer(str(folder), device="cpu", local_files_only=True, truncate_dim=truncate_dim)
    encode = model.encode_query if role == "query" else model.encode_document
    return np.asarray(encode(texts, batch_size=1, show_progress_bar=False))


@pytest.mark.parametrize("backend", ["torch", pytest.param("openvino", marks=pytest.mark.check)])
@pytest.mark.parametrize("name", CASES)
def test_both_roles_equal_sentence_transformers(save: Save, name: str, backend: Backend) -> None:
    family = FAMILIES[name]
    texts = TEXTS[1:] if family.architecture == "gpt2" else TEXTS  # no special tokens: an empty text has no tokens
    options = RunOptions(device="cpu", threads=1, backend=backend)
    encoder = load_encoder(EncoderConfig(model=str(save(name)), precision="float32"), options)
    assert encoder.spec.identity.max_length == 64
    for role in get_args(Role):
        found = scaled(family, encoder.encode(texts, role))
        np.testing.assert_allclose(found, reference(save(name), role, texts), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_a_matryoshka_size_equals_sentence_transformers(save: Save, name: str) -> None:
    family = FAMILIES[name]
    config = EncoderConfig(model=str(save(name)), precision="float32", truncate_dim=16)
    rows = load_encoder(config, RunOptions(device="cpu", threads=1)).encode(TEXTS[1:], "document")
    want = reference(save(name), "document", TEXTS[1:], truncate_dim=16)
    np.testing.assert_allclose(scaled(family, rows), scaled(family, want), atol=1e-5, rtol=1e-5)


def test_to_name_the_model_is_enough_for_an_index_and_its_questions(save: Save, tmp_path: Path) -> None:
    """The vectors of an index without whitening are those of sentence-transformers, of documents and of questions."""
    config = BuildConfig(
        encoder=EncoderConfig(model=str(save("bge")), precision="float32"), whitening=WhiteningConfig(strength="none")
    )
    report = build_index(DOCUMENTS, tmp_path / "index", config, RunOptions(backend="torch"))
    assert not [note for note in report.notes if "model's folder" in note]
    engine = SearchEngine(tmp_path / "index", options=RunOptions(backend="torch"))
    questions = ["how do whales sing", "the deep sea"]
    texts = [f"{document.title} {document.text}".strip() for document in DOCUMENTS]
    both: list[tuple[Role, list[str]]] = [("query", questions), ("document", texts)]
    for role, given in both:
        np.testing.assert_allclose(engine.embed(given, role), reference(save("bge"), role, given), atol=1e-5)
    scores = reference(save("bge"), "query", questions) @ reference(save("bge"), "document", texts).T
    for question, row in zip(questions, scores, strict=True):
        best = {DOCUMENTS[number].id: row[number] for number in np.argsort(-row)[:3]}
        assert {hit.id: pytest.approx(hit.score, abs=1e-5) for hit in engine.search(question, k=3)} == best
