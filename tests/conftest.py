"""Fixtures that several test modules share, and the rule about tests that need ../shared."""

import ast
import copy
import gc
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

# Tiny models gain nothing from threads, and two test processes with two threads each wait for one another.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests of the other backends name them; a conversion for each tiny model of the suite would take minutes.
os.environ.setdefault("ISOTROPE_BACKEND", "torch")
if "PYTEST_XDIST_WORKER" not in os.environ:  # workers inherit what is set here
    # Colours, widths, proxies and credentials of the shell are no part of a test.
    outside = r"(?i)(http|https|all|no)_proxy|(aws|azure|google)_.*|columns|lines|(no|force)_color"
    for name in [name for name in os.environ if re.fullmatch(outside, name)]:
        del os.environ[name]
    os.environ["ISOTROPE_TESTS"] = tempfile.mkdtemp(prefix="isotrope-tests-")  # of this run alone, gone at its end
    os.environ["ISOTROPE_CACHE"] = os.path.join(os.environ["ISOTROPE_TESTS"], "cache")
    os.environ["MTEB_CACHE"] = os.path.join(os.environ["ISOTROPE_TESTS"], "mteb")  # made by an import

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN and threading.current_thread() is threading.main_thread():
    # A shell's background commands ignore Ctrl-C, and so would the commands that tests interrupt.
    signal.signal(signal.SIGINT, signal.default_int_handler)

import pytest
import torch
from hypothesis import settings

from indexer.encoders import hf_model, transformer
from indexer.encoders.hf_model import LoadedModel
from indexer.models.model_files import ModelFiles
from indexer.recipe.config import BuildConfig, EncoderConfig
from indexer.recipe.index_config import StoreConfig
from indexer.transforms import whitening
from tests.hubs import hub as hub
from tests.object_storage import _server as _server
from tests.object_storage import storage as storage
from tests.tiny_models import make_tiny_model

if sys.version_info < (3, 11, 9):
    # "AST constructor recursion depth mismatch": there a finaliser that parses, run while something is being parsed,
    # breaks it (gh-106905). It happened to a test that parses notebooks.
    _parse = ast.parse

    def _parse_undisturbed(*given: Any, **named: Any) -> Any:
        enabled = gc.isenabled()
        gc.disable()
        try:
            return _parse(*given, **named)
        finally:
            if enabled:
                gc.enable()

    ast.parse = _parse_undisturbed

gc.disable()  # until the tests are collected: what imports leave stays, and is not worth looking through
SHARED = Path(__file__).resolve().parents[2] / "shared"
_SMALL_MODEL = 1 << 22  # bytes
_skipped_although_there: list[str] = []
# A busy machine is not a failing test, and a change is judged by the same examples each time.
settings.register_profile("isotrope", deadline=None, max_examples=40, derandomize=bool(os.environ.get("CI")))
settings.load_profile("isotrope")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real corpora beside the checkout; tests that use it skip where it is absent."""
    if not SHARED.is_dir():
        pytest.skip("needs ../shared")
    return SHARED


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Folders with tiny random models, one an architecture, made once a session."""
    root, made = tmp_path_factory.mktemp("models"), {}

    def make(architecture: str) -> Path:
        if architecture not in made:
            made[architecture] = make_tiny_model(architecture, root / architecture)
        return made[architecture]

    return make


@pytest.fixture
def tiny_config(tiny_model: Callable[[str], Path]) -> BuildConfig:
    """A recipe with a tiny BERT and parts of four documents, so that small corpora have several."""
    encoder = EncoderConfig(model=str(tiny_model("bert")), pooling="mean", max_length=32, precision="float32")
    return BuildConfig(encoder=encoder, store=StoreConfig(part_documents=4))


@pytest.fixture(autouse=True)
def _number_type() -> Iterator[None]:
    """torch's default type is the process's: a thread that a test leaves behind must not change the next test's."""
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="session", autouse=True)
def _few_documents_are_whitened() -> Iterator[None]:
    """The corpora of tests are smaller than the dimensions of their models. `test_small.py` tests the real limit."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(whitening, "ROWS_PER_DIRECTION", 0)
        yield


@pytest.fixture(scope="session", autouse=True)
def _nothing_is_synced() -> Iterator[None]:
    """A disk takes milliseconds for what no test can see; what would be lost is for `faults.FaultyOs` to say."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def _models_are_read_once() -> Iterator[None]:
    """Of a small model whose files have not changed since, a copy: transformers takes 0.1 s to read each anew."""
    read, held = hf_model.load_model, dict[object, LoadedModel]()

    def load(files: ModelFiles, layers: Sequence[int], dtype: torch.dtype, device: torch.device) -> LoadedModel:
        states = [path.stat() for path in sorted(files.root.iterdir())]
        state = tuple((s.st_ino, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for s in states)
        if sum(s.st_size for s in states) > _SMALL_MODEL:
            return read(files, layers, dtype, device)
        key = (files, tuple(layers), dtype, device, state)
        if key not in held:
            held[key] = read(files, layers, dtype, device)
        return copy.deepcopy(held[key])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transformer, "load_model", load)
        yield


def pytest_unconfigure() -> None:
    if "PYTEST_XDIST_WORKER" not in os.environ:
        shutil.rmtree(os.environ["ISOTROPE_TESTS"], ignore_errors=True)


@pytest.hookimpl
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "shared" in getattr(item, "fixturenames", ()):
            item.user_properties.append(("shared", True))


def pytest_collection_finish() -> None:
    """Leave modules and tests out of later collections of garbage, each of which would take half a second."""
    gc.freeze()
    gc.enable()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.skipped and ("shared", True) in report.user_properties and SHARED.is_dir():
        _skipped_although_there.append(report.nodeid)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for name in _skipped_although_there:
        terminalreporter.write_line(f"SKIPPED ALTHOUGH ../shared IS THERE: {name}", red=True)


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    if _skipped_although_there:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED
