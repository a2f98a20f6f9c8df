"""`isotrope doctor`: its output as text and JSON, its exit codes, and an older processor."""

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


def test_json_has_facts_choices_and_problems() -> None:
    done = isotrope("doctor", "--json")
    shown = json.loads(done.stdout)
    assert set(shown) == {"found", "choices", "problems", "passed"}
    assert set(shown["found"]) == names(Machine)
    assert all(set(choice) == names(Choice) for choice in shown["choices"])
    assert all(set(problem) == names(Problem) for problem in shown["problems"])
    assert {f"encode, {precision}" for precision in get_args(Precision)} < {row["task"] for row in shown["choices"]}
    assert (done.returncode, shown["passed"]) == (0, True)


def test_the_text_output_has_the_same_facts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "4000")
    done = isotrope("doctor")
    assert done.returncode == 0
    for word in ("processor", "cores", "products", "encode, bfloat16", "find near-duplicates", "cache"):
        assert f"\n{word} " in done.stdout
    assert "\nwarning: OMP_NUM_THREADS is 4000" in done.stdout


def test_two_wheels_of_faiss_are_a_problem_with_a_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faiss_index, "named_version", {"faiss-cpu": "1.15.1", "faiss-gpu": "1.15.1"}.get)
    done = isotrope("doctor")
    assert done.returncode == 1
    line = next(line for line in done.stdout.splitlines() if line.startswith("broken: "))
    assert "faiss-cpu and faiss-gpu are both installed" in line
    assert "Run: pip uninstall -y faiss-cpu faiss-gpu" in line
    assert json.loads(isotrope("doctor", "--json").stdout)["passed"] is False


def test_an_absent_device_and_an_unknown_backend_give_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    done = isotrope("doctor", "--device", "cuda:99")
    assert (done.returncode, done.stdout) == (1, "")
    assert "this machine has cpu" in done.stderr
    monkeypatch.setenv("ISOTROPE_BACKEND", "nympy")
    assert "expected one of auto, torch" in isotrope("doctor").stderr


@pytest.mark.check
def test_an_older_processor_is_recognised(tmp_path: Path) -> None:
    environment = os.environ | {
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ISOTROPE_BACKEND": "auto",
        "ISOTROPE_CACHE": str(tmp_path),
    }
    done = subprocess.run([*ISOTROPE, "doctor", "--json"], capture_output=True, text=True, cwd=ROOT, env=environment)
    shown = json.loads(done.stdout)
    runs = {choice["task"]: choice["runs"] for choice in shown["choices"]}
    assert (done.returncode, shown["found"]["torch_level"]) == (0, "AVX2")
    # OpenVINO reports the processor's types, even if it may not use them.
    assert "BF16" not in shown["found"]["openvino"] or "avx512_bf16" in shown["found"]["instructions"]
    assert runs["encode, bfloat16"] == "openvino, f32"
    assert any("ONEDNN_MAX_CPU_ISA=AVX2" in problem["what"] for problem in shown["problems"])


def test_its_help_imports_no_examined_library() -> None:
    run = "import search.cli; search.cli.main()"
    code = f"import sys; sys.argv = ['isotrope', 'doctor', '--help']\ntry:\n    {run}\nexcept SystemExit: pass"
    assert loaded_by(code) & HEAVY == set()
