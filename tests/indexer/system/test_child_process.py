"""A call in a child process: its result, its errors, its death, and nothing left behind."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from indexer.errors import CorpusError, MachineError
from indexer.system.child_process import call_in_child
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[3]


def loaded(module: str) -> list[object]:
    """Import a module; return whether it is loaded, and the process id."""
    __import__(module)
    print("what a library says on its standard output")
    return [module in sys.modules, os.getpid()]


def refuse(reason: str) -> None:
    raise CorpusError(reason)


def crash() -> None:
    raise ZeroDivisionError("a fault of the code")


def die(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(60)


def wait(beacon: str) -> None:
    Path(beacon).write_text(str(os.getpid()), encoding="utf-8")
    time.sleep(60)


def test_the_result_comes_back_and_what_was_imported_does_not() -> None:
    assert "turtledemo" not in sys.modules
    there, process = call_in_child(f"{__name__}:loaded", {"module": "turtledemo"}, "looking")
    assert there
    assert process != os.getpid()
    assert "turtledemo" not in sys.modules


def test_an_error_of_ours_comes_back_as_itself() -> None:
    with pytest.raises(CorpusError, match=r'^line 3: "text" is null — é$'):
        call_in_child(f"{__name__}:refuse", {"reason": 'line 3: "text" is null — é'}, "reading")


def test_any_other_failure_says_which_task_and_why() -> None:
    with pytest.raises(MachineError, match=r"process for dividing failed with exit code 1: ZeroDivisionError: a fault"):
        call_in_child(f"{__name__}:crash", {}, "dividing")


@pytest.mark.parametrize(
    ("number", "why"), [(signal.SIGKILL, "SIGKILL, probably out of memory"), (signal.SIGTERM, "SIGTERM")]
)
def test_a_killed_process_is_an_error_of_the_machine(number: int, why: str) -> None:
    with pytest.raises(MachineError, match=f"process for dying was ended by the signal {why}"):
        call_in_child(f"{__name__}:die", {"number": int(number)}, "dying")


def test_what_lies_in_the_current_folder_is_not_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('taken from the current folder')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert call_in_child(f"{__name__}:loaded", {"module": "json"}, "looking")[0]


def test_the_process_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    beacon = tmp_path / "beacon"
    code = (
        "from indexer.system.child_process import call_in_child; "
        f"call_in_child('{__name__}:wait', {{'beacon': {str(beacon)!r}}}, 'waiting')"
    )
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT) as parent:
        wait_until(lambda: parent.poll() is not None or (beacon.exists() and beacon.read_text(encoding="utf-8")))
        parent.kill()
    child = int(beacon.read_text(encoding="utf-8"))
    try:
        wait_until(lambda: not running(child))
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)


def running(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
