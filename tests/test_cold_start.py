"""The modules that a command loads: a first answer waits for no library that it does not need. Times play no part."""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from indexer import build_index, read_corpus
from indexer.errors import CorruptIndexError, MismatchError
from indexer.recipe.config import BuildConfig, EncoderConfig, WhiteningConfig
from indexer.recipe.run_options import RunOptions
from search.engine import SearchEngine
from tests.search.cli.test_cli import isotrope
from tests.servers import live_server

ROOT = Path(__file__).resolve().parents[1]
CALL = """
import sys
sys.argv = ["isotrope", *{arguments!r}]
from search.cli import main
try:
    main()
except SystemExit as end:
    assert not end.code
"""
SAY = "print('\\n' + ' '.join(sys.modules))"
TEXTS = {f"d{n}": f"{word} in the sea" for n, word in enumerate(["whale", "song", "deep", "library", "data", "sing"])}
SLOW = {"torch", "transformers", "huggingface_hub._snapshot_download", "scipy", "sklearn", "pandas", "duckdb"}


def loaded_by(*arguments: str, **environment: str) -> set[str]:
    """Return every module of a fresh interpreter after running a command."""
    code = f"{CALL.format(arguments=arguments)}\n{SAY}"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=os.environ | environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines()[-1].split())


@pytest.fixture(scope="module")
def index(tiny_model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index of a tiny BERT in the default precision."""
    folder = tmp_path_factory.mktemp("cold")
    texts = TEXTS | {f"note {number}": f"note {number}" for number in range(40)}
    rows = [json.dumps({"_id": name, "text": text}) for name, text in texts.items()]
    (folder / "docs.jsonl").write_text("\n".join(rows), encoding="utf-8")
    config = BuildConfig(
        encoder=EncoderConfig(model=str(tiny_model("bert")), max_length=32), whitening=WhiteningConfig(strength=0.0)
    )
    build_index(read_corpus(folder / "docs.jsonl"), folder / "index", config, RunOptions(threads=1))
    return folder / "index"


def test_help_loads_click_and_nothing_else_that_is_not_ours_or_pythons() -> None:
    modules = loaded_by("--help")
    bare = subprocess.run([sys.executable, "-c", f"import sys\n{SAY}"], capture_output=True, text=True, check=True)
    known = {*sys.stdlib_module_names, *bare.stdout.split(), "click", "search", "indexer", "__main__"}
    assert {name.split(".")[0] for name in modules} - {name.split(".")[0] for name in known} == set()
    own = {"indexer.errors", "indexer.lazy_imports", "indexer.system", "indexer.system.escaping"}
    assert {name for name in modules if name.startswith("indexer.")} == own


@pytest.fixture(scope="module")
def loaded_by_query(index: Path) -> Callable[..., set[str]]:
    """Return every module that a query with a backend and further options loads, after the model is converted for the
    backend."""
    unset = {"ISOTROPE_BACKEND": "auto", "ISOTROPE_CACHE": str(index.parent / "cache")}

    @cache
    def loaded(backend: str, *options: str) -> set[str]:
        if backend == "openvino" and importlib.util.find_spec("openvino") is None:
            pytest.skip("needs OpenVINO (pip install 'isotrope[fast]')")
        ask = ("query", str(index), "whale song", "--backend", backend)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in unset.items():
                patch.setenv(name, value)
            done = isotrope(*ask)  # converts the model, which may take any of them
        assert done.returncode == 0, done.stderr
        return loaded_by(*ask, *options, **unset)

    return loaded


@pytest.mark.parametrize(
    "backend", ["auto", *(pytest.param(name, marks=pytest.mark.check) for name in ("openvino", "numpy"))]
)
def test_a_query_imports_none_of_the_slow_libraries(backend: str, loaded_by_query: Callable[..., set[str]]) -> None:
    modules = loaded_by_query(backend)
    assert modules & SLOW == set()
    assert not {name for name in modules if name.startswith("indexer.pipeline")}  # what builds
    assert "numpy.ma" not in modules  # numpy loads it for `np.unique`, late
    if backend == "openvino":
        assert "openvino" in modules
    else:
        assert modules & {"rich.console", "multiprocessing", "importlib.metadata"} == set()


@pytest.mark.parametrize("options", [("--where", "id > 'd1'"), ("--where", f"id IN {(*TEXTS,) * 50}"), ("-k", "50")])
def test_filters_and_many_hits_do_not_import_pandas(
    options: tuple[str, ...], loaded_by_query: Callable[..., set[str]]
) -> None:
    modules = loaded_by_query("auto", *options)
    assert ("duckdb" in modules) == ("--where" in options)
    assert "pandas" not in modules


@pytest.mark.check
def test_a_query_of_openvino_sends_nothing_home(loaded_by_query: Callable[..., set[str]]) -> None:
    """Importing OpenVINO sends telemetry from a separate process if openvino_telemetry is installed."""
    modules = loaded_by_query("openvino")
    assert not {name for name in modules if name.startswith("openvino_telemetry.")}


def test_an_engine_that_loads_ahead_gives_the_same_answers(index: Path) -> None:
    late, ahead = SearchEngine(index), SearchEngine(index, ahead=True)
    assert ahead.search_many(list(TEXTS.values()), 3) == late.search_many(list(TEXTS.values()), 3)


def test_an_engine_that_loads_ahead_checks_what_the_other_checks(index: Path, tmp_path: Path) -> None:
    import shutil

    for name in ("documents.parquet", ".faiss", ".safetensors"):
        spoiled = Path(shutil.copytree(index, tmp_path / name.strip(".")))
        file = next(path for path in spoiled.rglob(f"*{name}") if path.is_file())
        data = bytearray(file.read_bytes())
        data[len(data) // 2] ^= 1
        file.write_bytes(data)
        with pytest.raises(CorruptIndexError, match=file.name):
            SearchEngine(spoiled, ahead=True)


def test_an_engine_that_loads_ahead_refuses_another_encoder_at_the_first_question(
    index: Path, tiny_model: Callable[[str], Path]
) -> None:
    engine = SearchEngine(index, model=tiny_model("roberta"), ahead=True)
    with pytest.raises(MismatchError, match="differs from the one this index was built with"):
        engine.search("whale song")


def test_a_query_of_a_server_loads_no_numerical_library(index: Path, tmp_path: Path) -> None:
    (tmp_path / "q.txt").write_text("whale song\n", encoding="utf-8")
    with live_server(index) as server:
        modules = loaded_by("query", "--url", server.url, "whale song", "--json")
        of_file = loaded_by("query", "--url", server.url, "--queries", str(tmp_path / "q.txt"), "--json")
    heavy = {"faiss", "pyarrow", "openvino", "indexer.store.manifest", "search.engine", "search.index"} | SLOW
    assert modules & (heavy | {"numpy", "fastapi", "uvicorn", "pydantic"}) == set()
    assert of_file & heavy == set()
