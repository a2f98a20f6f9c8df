"""`isotrope doctor`: what it prints, as JSON too, its exit codes, and an older processor."""

import json
import os
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import pytest

from indexer.ann import faiss_index
from indexer.recipe.config import Precision
from search.cli.doctor import Choice, Machine, Problem
from tests.search.cli.test_cli import ISOTROPE, ROOT, isotrope
from tests.test_architecture import HEAVY, loaded_by


def names(kind: Any) -> set[str]:
    return {field.name for field in fields(kind)}


def test_json_has_what_was_found_what_runs_and_what_is_amiss() -> None:
    done = isotrope("doctor", "--json")
    told = json.loads(done.stdout)
    assert set(told) == {"found", "choices", "problems", "passed"}
    assert set(told["found"]) == names(Machine)
    assert all(set(choice) == names(Choice) for choice in told["choices"])
    assert all(set(problem) == names(Problem) for problem in told["problems"])
    assert {f"encode, {precision}" for precision in get_args(Precision)} < {one["task"] for one in told["choices"]}
    assert (done.returncode, told["passed"]) == (0, True)


def test_people_read_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4000")
    done = isotrope("doctor")
    assert done.returncode == 0
    for word in ("processor", "cores", "products", "encode, bfloat16", "find near-duplicates", "cache"):
        assert f"\n{word} " in done.stdout
    assert "\nwarning: OMP_NUM_THREADS is 4000" in done.stdout


def test_two_wheels_of_faiss_are_a_fault_with_the_way_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faiss_index, "_installed", lambda name: name in ("faiss-cpu", "faiss-gpu"))
    done = isotrope("doctor")
    assert done.returncode == 1
    line = next(line for line in done.stdout.splitlines() if line.startswith("broken: "))
    assert "faiss-cpu and faiss-gpu are both installed" in line
    assert "Run: pip uninstall -y faiss-cpu faiss-gpu" in line
    assert json.loads(isotrope("doctor", "--json").stdout)["passed"] is False


def test_a_device_that_is_not_there_and_a_backend_that_is_none_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    done = isotrope("doctor", "--device", "cuda:99")
    assert (done.returncode, done.stdout) == (1, "")
    assert "this machine has cpu" in done.stderr
    monkeypatch.setenv("ISOTROPE_BACKEND", "nympy")
    assert "expected one of auto, torch" in isotrope("doctor").stderr


@pytest.mark.check
def test_an_older_processor_is_told_as_such(tmp_path: Path) -> None:
    environment = os.environ | {
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ISOTROPE_BACKEND": "auto",
        "ISOTROPE_CACHE": str(tmp_path),
    }
    done = subprocess.run([*ISOTROPE, "doctor", "--json"], capture_output=True, text=True, cwd=ROOT, env=environment)
    told = json.loads(done.stdout)
    runs = {choice["task"]: choice["runs"] for choice in told["choices"]}
    assert (done.returncode, told["found"]["torch_level"]) == (0, "AVX2")
    # OpenVINO offers what the processor has, whatever it may use.
    assert "BF16" not in told["found"]["openvino"] or "avx512_bf16" in told["found"]["instructions"]
    assert runs["encode, bfloat16"] == "openvino, f32"
    assert any("ONEDNN_MAX_CPU_ISA=AVX2" in problem["what"] for problem in told["problems"])


def test_its_help_imports_nothing_that_it_looks_at() -> None:
    run = "import search.cli; search.cli.main()"
    code = f"import sys; sys.argv = ['isotrope', 'doctor', '--help']\ntry:\n    {run}\nexcept SystemExit: pass"
    assert loaded_by(code) & HEAVY == set()
