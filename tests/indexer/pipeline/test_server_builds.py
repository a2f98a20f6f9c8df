"""Indexes whose embeddings come from a server: built, killed, continued, changed, and refused with another model."""

import json
import os
import signal
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from indexer import (
    BuildConfig,
    Document,
    RunOptions,
    add_documents,
    build_index,
    compact_index,
    delete_documents,
    encode_pending,
    joined_text,
    prepare_parts,
    refit_index,
)
from indexer.encoders.load import load_encoder
from indexer.encoders.server.client import KEY
from indexer.encoders.server.encoder import ServerEncoder
from indexer.encoders.server.probes import FILE, PROBES
from indexer.errors import ConfigError, CorruptIndexError, ExistsError, IsotropeError, MachineError, MismatchError
from indexer.recipe.config import EncoderConfig
from indexer.store.integrity import damaged_files
from indexer.store.manifest import load_manifest
from search import SearchEngine
from tests.directories import snapshot
from tests.embedding_servers import Model, Reply, StubServer, status, stub_server, words_model
from tests.search.cli.test_cli import ISOTROPE
from tests.servers import ROOT, live_server
from tests.waiting import PATIENCE

DOCUMENTS = [
    Document(f"d{number}", f"It sings of {number % 7} songs in the sea", f"Whale {number}") for number in range(40)
]
TEXTS = [joined_text(document, ("title", "text")) for document in DOCUMENTS]
QUESTIONS = ["which whale sings", "songs of the deep sea", "whale 17"]


@pytest.fixture
def local(tiny_config: BuildConfig) -> Model:
    """The tiny model of `tiny_config` as the model of a server."""
    encoder, lock = load_encoder(tiny_config.encoder), threading.Lock()

    def encode(texts: list[str]) -> np.ndarray:
        with lock:
            return encoder.encode(texts, "document")

    return encode


@pytest.fixture
def stub(local: Model) -> Iterator[StubServer]:
    with stub_server(local) as running:
        yield running


@pytest.fixture
def config(stub: StubServer, tiny_config: BuildConfig) -> BuildConfig:
    """The recipe of `tiny_config` with the server."""
    return of_server(tiny_config, stub.url)


def of_server(config: BuildConfig, url: str, model: str = "m") -> BuildConfig:
    return replace(config, encoder=EncoderConfig(kind="server", model=model, url=url))


def assert_same_answers(index: Path, reference: Path) -> None:
    with SearchEngine(index) as engine, SearchEngine(reference) as other:
        for found, expected in zip(
            engine.search_many(QUESTIONS, k=40), other.search_many(QUESTIONS, k=40), strict=True
        ):
            scores = {hit.id: hit.score for hit in expected}
            assert len(found) == len(scores)
            assert max(abs(hit.score - scores[hit.id]) for hit in found) < 1e-5


@pytest.fixture
def reference(tiny_config: BuildConfig, tmp_path: Path) -> Path:
    """The index that the model gives without a server."""
    build_index(DOCUMENTS, tmp_path / "reference", tiny_config)
    return tmp_path / "reference"


@pytest.mark.parametrize("options", [RunOptions(requests=1), RunOptions(workers=2, executor="processes")])
def test_an_index_answers_as_that_of_the_local_model(
    options: RunOptions, stub: StubServer, config: BuildConfig, reference: Path, tmp_path: Path
) -> None:
    report = build_index(DOCUMENTS, tmp_path / "index", config, options)
    assert (report.documents, report.backend, report.truncated) == (40, f"server {stub.url.split('/')[2]}", 0)
    assert_same_answers(tmp_path / "index", reference)
    assert not any(damaged_files(tmp_path / "index", load_manifest(tmp_path / "index")))
    assert Counter(text for text in stub.documents if text in TEXTS) == Counter(TEXTS)  # the rest are titles


def test_the_same_build_again_asks_nothing(stub: StubServer, config: BuildConfig, tmp_path: Path) -> None:
    build_index(DOCUMENTS, tmp_path / "index", config)
    before = len(stub.requests)
    assert build_index(DOCUMENTS, tmp_path / "index", config).up_to_date
    moved = replace(config, encoder=replace(config.encoder, url="http://127.0.0.1:9"))
    assert build_index(DOCUMENTS, tmp_path / "index", moved).up_to_date
    assert len(stub.requests) == before


def test_a_refused_build_asks_nothing_and_changes_no_file(
    stub: StubServer, config: BuildConfig, tmp_path: Path
) -> None:
    build_index(DOCUMENTS, tmp_path / "index", config)
    before, files = len(stub.requests), snapshot(tmp_path / "index")
    other = config.with_overrides(["encoder.truncate_dim=4"])
    with pytest.raises(ExistsError, match=r"another recipe: encoder\.truncate_dim is 4, expected unset\. Fix"):
        build_index(DOCUMENTS, tmp_path / "index", other)
    assert len(stub.requests) == before
    assert snapshot(tmp_path / "index") == files


def test_a_failed_build_continues_and_sends_finished_parts_only_once(
    stub: StubServer, config: BuildConfig, reference: Path, tmp_path: Path
) -> None:
    stub.faults = [None] * 6 + [status(401)] * 9
    with pytest.raises(ConfigError, match="status 401"):
        build_index(DOCUMENTS, tmp_path / "index", config)
    stub.faults = []
    sent = len(stub.documents)
    assert 16 <= sent <= 24
    build_index(DOCUMENTS, tmp_path / "index", config)
    assert sum(text in TEXTS for text in stub.documents) <= 40 + 4  # the part that failed is sent again, at most
    assert_same_answers(tmp_path / "index", reference)


def test_a_killed_build_is_continued(stub: StubServer, config: BuildConfig, reference: Path, tmp_path: Path) -> None:
    """The command is killed while the server works for it."""
    source = tmp_path / "docs.jsonl"
    source.write_text(
        "".join(f"{json.dumps({'id': each.id, 'title': each.title, 'text': each.text})}\n" for each in DOCUMENTS)
    )
    plain = ["whitening.strength=none"]  # 40 documents are too few for another process
    refit_index(reference, plain)
    (tmp_path / "recipe.toml").write_text(config.with_overrides(plain).to_toml())
    command = [*ISOTROPE, "build", str(source), str(tmp_path / "index"), "--config", str(tmp_path / "recipe.toml")]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}

    def kill(_: StubServer, reply: Reply) -> None:
        process.send_signal(signal.SIGKILL)
        reply.cut = 0

    stub.faults = [None] * 7 + [kill]
    with stub.lock:  # no request is answered before the process is known
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stderr=subprocess.DEVNULL)
    assert process.wait(PATIENCE) == -signal.SIGKILL
    sent = Counter(stub.documents)
    assert sum(sent.values()) == 24
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    again = [text for text, count in Counter(stub.documents).items() if count > 1 and text in TEXTS]
    assert len(again) <= 8  # of a part that was not yet written, and one in progress
    assert_same_answers(tmp_path / "index", reference)


def test_a_build_through_isotrope_serve_is_continued_and_answers_as_the_local_one(
    tiny_config: BuildConfig, tmp_path: Path
) -> None:
    """`isotrope serve` returns unit vectors after the transform: without whitening they are those of the model."""
    plain = tiny_config.with_overrides(['whitening.strength="none"'])
    build_index(DOCUMENTS, tmp_path / "reference", plain)
    with live_server(tmp_path / "reference") as server:
        config = of_server(plain, server.url, "tests")
        stopped = [*DOCUMENTS[:20], replace(DOCUMENTS[20], text="x" * 200_000), *DOCUMENTS[21:]]
        with pytest.raises(IsotropeError, match=r"status 400.*at most 100,000.*begins \"Whale 20 xxx"):
            build_index(stopped, tmp_path / "index", config, RunOptions(requests=2))
        parts = len(list((tmp_path / "index" / "parts").glob("*/part.json")))
        assert parts >= 4
        report = build_index(DOCUMENTS, tmp_path / "index", config)
        assert report.parts_kept >= 4
        assert_same_answers(tmp_path / "index", tmp_path / "reference")


# --- another model


def test_another_model_in_the_middle_of_a_build_spoils_no_part(
    stub: StubServer, local: Model, config: BuildConfig, reference: Path, tmp_path: Path
) -> None:
    def change(server: StubServer, _: Reply) -> None:
        server.model = words_model(dim=32)

    stub.faults = [None] * 5 + [change]
    with pytest.raises(MismatchError, match="no longer the model of the first use"):
        build_index(DOCUMENTS, tmp_path / "index", config)
    with pytest.raises(MismatchError, match="no longer the model of the first use"):
        build_index(DOCUMENTS, tmp_path / "index", config)
    stub.model = local
    assert build_index(DOCUMENTS, tmp_path / "index", config).parts_kept >= 3
    assert_same_answers(tmp_path / "index", reference)


def test_an_index_is_bound_to_its_model(stub: StubServer, config: BuildConfig, tmp_path: Path) -> None:
    index = tmp_path / "index"
    build_index(DOCUMENTS, index, config)
    stub.model = words_model(dim=32)
    new = [Document("new", "a library of data")]
    with pytest.raises(MismatchError, match=r"cosine .* relative difference"):
        add_documents(new, index)
    with SearchEngine(index) as engine, pytest.raises(MismatchError, match="name its server with model=URL"):
        engine.search("whale")
    with pytest.raises(MismatchError):
        build_index([*DOCUMENTS, *new], index, config, RunOptions(overwrite=True))
    stub.model = words_model(dim=8)
    with pytest.raises(MismatchError, match="have 8 numbers; expected 32"):
        add_documents(new, index)
    assert load_manifest(index).generation == 1


def test_what_encodes_nothing_needs_no_server(config: BuildConfig, stub: StubServer, tmp_path: Path) -> None:
    index = tmp_path / "index"
    build_index(DOCUMENTS, index, config)
    before = len(stub.requests)
    stub.faults = [status(401)] * 100
    delete_documents(index, ["d3"])
    refit_index(index, ["whitening.strength=0.5", "whitening.centre=common"])
    common = config.with_overrides(["whitening.centre=common", "encoder.url=http://127.0.0.1:9"])
    refit_index(index, recipe=common)
    compact_index(index, keep=1, grace=0)
    assert not any(damaged_files(index, load_manifest(index)))
    with SearchEngine(index) as engine:
        assert len(engine.neighbours("d4", k=3)) == 3
    assert len(stub.requests) == before


def test_a_server_that_moved_is_named_by_its_new_url(local: Model, tiny_config: BuildConfig, tmp_path: Path) -> None:
    index = tmp_path / "index"
    with stub_server(local) as stub:
        build_index(DOCUMENTS, index, of_server(tiny_config, stub.url))
    with SearchEngine(index) as engine, pytest.raises(MachineError, match="cannot be reached"):
        engine.search("whale")
    with stub_server(local) as stub:
        for url in (stub.url, Path(stub.url)):  # the command line makes a path of it
            with SearchEngine(index, url) as engine:
                assert engine.search("whale", k=1)
        assert add_documents([Document("new", "a library")], index, model=stub.url).added == 1
        refit_index(index, recipe=of_server(tiny_config, stub.url))
    with pytest.raises(ConfigError, match=r"model: .* is not the URL of a server"):
        SearchEngine(index, tmp_path).search("whale")
    with pytest.raises(ConfigError, match=r"encoder\.model is 'other' in the recipe"):
        refit_index(index, recipe=of_server(tiny_config, "http://127.0.0.1:9", "other"))


def test_probes_that_are_damaged_are_not_asked_anew(config: BuildConfig, tmp_path: Path) -> None:
    index = tmp_path / "index"
    build_index(DOCUMENTS, index, config)
    (path,) = index.glob(f"encoder/*/{FILE}")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(CorruptIndexError, match=r"probe texts.*missing or damaged"):
        build_index(DOCUMENTS, index, config)
    with pytest.raises(CorruptIndexError, match=r"probes\.npy: its bytes differ"):
        SearchEngine(index).search("whale")
    assert path.read_bytes() == data


# --- other ways to build


def test_parts_can_be_encoded_by_other_processes(
    stub: StubServer, config: BuildConfig, reference: Path, tmp_path: Path
) -> None:
    prepared = prepare_parts(DOCUMENTS, tmp_path / "index", config)
    encode_pending(tmp_path / "index", slice(0, 3))
    encode_pending(tmp_path / "index", slice(3, prepared.pending), RunOptions(workers=2, executor="processes"))
    assert build_index(DOCUMENTS, tmp_path / "index", config).parts_kept == 10
    assert_same_answers(tmp_path / "index", reference)
    assert Counter(text for text in stub.documents if text in TEXTS) == Counter(TEXTS)


def test_a_build_reuses_embeddings_and_the_transform_of_another_index(
    stub: StubServer, config: BuildConfig, tmp_path: Path
) -> None:
    build_index(DOCUMENTS[:20], tmp_path / "first", config)
    build_index(DOCUMENTS, tmp_path / "second", config, transform_from=tmp_path / "first")
    first, second = (load_manifest(tmp_path / name) for name in ("first", "second"))
    assert first.fingerprint == second.fingerprint
    before = len(stub.documents)
    changed = replace(config, store=replace(config.store, part_documents=7))
    report = build_index(DOCUMENTS, tmp_path / "second", changed, RunOptions(overwrite=True))
    assert report.rows_reused == 40
    assert sum(text in TEXTS for text in stub.documents[before:]) == 0


def test_windows_prompts_and_sizes_are_those_of_the_recipe(
    stub: StubServer, config: BuildConfig, tmp_path: Path
) -> None:
    encoder = replace(config.encoder, truncate_dim=9, document_prompt="passage: ", query_prompt="query: ")
    chunked = replace(config, encoder=encoder).with_overrides(["chunk.tokens=8", "chunk.overlap=2"])
    report = build_index(DOCUMENTS, tmp_path / "index", chunked)
    assert report.rows > 40
    assert report.dim <= 9
    assert all(text.startswith(("passage: ", "query: ")) for text in stub.documents)
    with SearchEngine(tmp_path / "index") as engine:
        assert engine.search("whale 7", k=1)[0].window is not None
        assert stub.requests[-1] == [*PROBES, "query: whale 7"]


def test_no_file_holds_the_key(config: BuildConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY, "sk-a-secret-of-the-tests")
    report = build_index(DOCUMENTS, tmp_path / "index", config)
    assert "secret" not in repr(report)
    files = [path for path in (tmp_path / "index").rglob("*") if path.is_file()]
    assert not [path for path in files if b"sk-a-secret" in path.read_bytes()]


def test_a_recipe_can_be_measured_before_there_is_an_index(stub: StubServer, config: BuildConfig) -> None:
    encoder: Callable[..., ServerEncoder] = load_encoder  # type: ignore[assignment]
    assert encoder(config).probes().shape == (16, 32)
