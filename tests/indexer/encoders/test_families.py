"""For each family of models a random one in sentence-transformers' layout: both roles equal sentence-transformers."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from indexer.encoders.load import load_encoder
from indexer.models.hub import quiet_transformers
from indexer.pipeline.build import build_index
from indexer.recipe.config import BasicPooling, BuildConfig, EncoderConfig, Role, WhiteningConfig
from indexer.recipe.run_options import Backend, RunOptions
from search import SearchEngine
from tests.documents import DOCUMENTS

TEXTS = [
    "",
    "a",
    "The whales sing in the deep sea.",
    "song of the deep " * 40,
    "鯨は海で歌う。",
    "الحوت يغني 🐋",
    "Wal, Größe",
]
SEARCH = "Represent this sentence for searching relevant passages: "


@dataclass(frozen=True)
class Family:
    """A model's pooling, the modules after it (sizes of Dense, and "norm"), and its prompts."""

    architecture: str
    pooling: BasicPooling
    modules: tuple[int | str, ...] = ()
    query: str = ""
    document: str = ""
    unit: bool = True


FAMILIES = {
    "bge": Family("bert", "cls", query=SEARCH),
    "e5": Family("bert", "mean", query="query: ", document="passage: "),
    "multilingual-e5": Family("xlm-roberta", "mean", query="query: ", document="passage: "),
    "mpnet": Family("mpnet", "mean"),
    "nomic": Family("nomic", "mean", query="search_query: ", document="search_document: "),
    "gte": Family("gte", "cls"),
    "gte-modernbert": Family("modernbert", "cls"),
    "sentence-t5": Family("t5", "mean", (24,)),
    "gte-qwen2": Family("qwen2", "lasttoken", query="Instruct: find the passage\nQuery: "),
    "qwen3-embedding": Family("qwen3", "lasttoken", query="Instruct: find the passage\nQuery:"),
    "e5-mistral": Family("mistral", "lasttoken", query="Instruct: find the passage\nQuery: "),
    "embeddinggemma": Family(
        "embeddinggemma", "mean", (48, 32), "task: search result | query: ", "title: none | text: "
    ),
    "gemma3": Family("gemma3", "lasttoken"),
    "sgpt": Family("gpt2", "weightedmean", unit=False),
    "square-root": Family("bert", "mean_sqrt_len_tokens", ("norm",), unit=False),
    "maximum": Family("bert", "max", unit=False),
}
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
            _save(FAMILIES[name], tiny_model(FAMILIES[name].architecture), saved[name])
        return saved[name]

    return folder


def _save(family: Family, source: Path, folder: Path) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Dense, LayerNorm, Normalize, Pooling, Transformer

    torch.manual_seed(3)
    with quiet_transformers():
        transformer: Any = Transformer(str(source))
        modules, size = [transformer, Pooling(32, pooling_mode=family.pooling)], 32
        for module in family.modules:
            if isinstance(module, int):
                modules.append(Dense(size, module, bias=False, activation_function=torch.nn.Identity()))
                size = module
            else:
                modules.append(LayerNorm(size))
        prompts = {"query": family.query, "document": family.document}
        model = SentenceTransformer(modules=modules + [Normalize()] * family.unit, prompts=prompts, device="cpu")
        model.max_seq_length = 64
        if model.tokenizer.pad_token is None:  # sentence-transformers pads even a single text
            model.tokenizer.pad_token = model.tokenizer.eos_token
        model.save_pretrained(str(folder), create_model_card=False)


def reference(folder: Path, role: Role, texts: list[str], truncate_dim: int | None = None) -> Any:
    """Encode text by text: sentence-transformers pads some decoders on the left, which moves absolute positions."""
    from sentence_transformers import SentenceTransformer

    with quiet_transformers():
        model = SentenceTransformer(str(folder), device="cpu", local_files_only=True, truncate_dim=truncate_dim)
    encode = model.encode_query if role == "query" else model.encode_document
    return np.asarray(encode(texts, batch_size=1, show_progress_bar=False))


def scaled(family: Family, rows: Any) -> Any:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True) if family.unit else rows


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
