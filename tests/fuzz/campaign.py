"""Running of examples in the world, and a search for faults in a family of examples for a given time."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st

from tests.fuzz.commands import Command
from tests.fuzz.judge import Ending, Fault, faults
from tests.fuzz.strategies import Example
from tests.fuzz.world import Snapshot, World, Zygote, snapshot

SECONDS = 20.0  # limit of a command; the slowest needs one second
_ROUND = 2  # examples drawn from hypothesis at once: the simplest and one more, because most of many would be similar
_APART = 10**6  # rounds of one seed
_SHRINKING = 15.0  # seconds to minimise an example


class Laboratory:
    """A world, and the process that runs commands in it."""

    def __init__(self, folder: Path) -> None:
        root = folder / "outside/of/world"  # so that a few `..` do not reach files of this machine
        self.zygote = Zygote(root)
        self.world = World(root, folder / "pristine")
        self._now: Snapshot | None = None  # the state of the world after the last command

    def close(self) -> None:
        self.zygote.close()

    def try_out(self, example: Example, sabotage: str = "", seconds: float = SECONDS) -> list[Fault]:
        """Return the faults of an example. The world is restored before, and stays as the command leaves it."""
        before = self._damaged(example)
        if example.damage and before == self.world.before:  # the damage was impossible
            return []
        ending, after = self.run(example.command, sabotage, seconds)
        if faults_found := faults(example.command, ending, before, after, self.world.root):
            return faults_found
        if not example.damage:
            return self._still_in_order(example.command) if before != after else []
        return self.other_answers(example.command, ending) if example.answers_must_hold and not ending.status else []

    def _damaged(self, example: Example) -> Snapshot:
        self._mend()
        if not example.damage:
            return self.world.before
        for damage in example.damage:
            damage.apply(self.world.root / "desk")
        return snapshot(self.world.root)

    def run(self, command: Command, sabotage: str = "", seconds: float = SECONDS) -> tuple[Ending, Snapshot]:
        stdin = None if command.stdin is None else command.stdin.hex()
        request: dict[str, object] = {"argv": command.argv, "stdin": stdin, "seconds": seconds, "sabotage": sabotage}
        answer = self.zygote.run(request)
        self._now = snapshot(self.world.root)
        return Ending(**answer), self._now  # type: ignore[arg-type]

    def _mend(self) -> None:
        self.world.mend(self._now)
        self._now = None

    def other_answers(self, command: Command, ending: Ending) -> list[Fault]:
        """Return a fault if the command's output differs in the restored world."""
        self._mend()
        whole, _ = self.run(command)
        if whole.stdout == ending.stdout:
            return []
        return [Fault("wrong answers of a damaged index", f"{ending.stdout}\nexpected\n{whole.stdout}")]

    def _still_in_order(self, command: Command) -> list[Fault]:
        """Return a fault if `verify` rejects the index after a command on it, successful or not."""
        if command.writes is None or not (self.world.root / "desk" / command.writes / "manifests").is_dir():
            return []
        check = replace(command, argv=("verify", command.writes))
        ending, _ = self.run(check)
        if not ending.status:
            return []
        return [Fault(f"{command.argv[0]} left an index that verify rejects", ending.stderr[-2000:])]


class _FaultFoundError(Exception):
    pass


class Search:
    """A search for faults in families of examples, one fault for each cause."""

    def __init__(self, laboratory: Laboratory, first_seed: int = 0) -> None:
        self._laboratory, self._seed = laboratory, first_seed
        self.tried = 0
        self.found: dict[str, tuple[Example, Fault, int]] = {}  # by cause, with the number of occurrences
        self._known: dict[str, list[Fault]] = {}  # by the repr of examples, which is the same for NaN

    def run(self, family: st.SearchStrategy[Example], seconds: float) -> None:
        """Try examples for some seconds and add their faults to `found`."""
        end = time.monotonic() + seconds
        number = 0
        while time.monotonic() < end:
            self._round(family, self._seed * _APART + number, end)
            number += 1

    def _round(self, family: st.SearchStrategy[Example], number: int, end: float) -> None:
        hunted: list[str] = []
        deadline = [end]

        @seed(number)
        @settings(
            max_examples=_ROUND,
            database=None,
            deadline=None,
            derandomize=False,
            phases=(Phase.generate, Phase.shrink),
            suppress_health_check=list(HealthCheck),
            verbosity=Verbosity.quiet,
            print_blob=False,
            report_multiple_bugs=False,
        )
        @given(family)
        def attempt(example: Example) -> None:
            late = time.monotonic() > deadline[0]
            if late and repr(example) not in self._known:
                return
            for fault in self._faults(example):
                if not hunted and fault.cause not in self.found:
                    hunted.append(fault.cause)
                    deadline[0] = time.monotonic() + _SHRINKING
                if fault.cause in hunted:
                    self._note(example, fault)
                    raise _FaultFoundError(fault.cause)
                self._count(fault)

        _quietly(attempt)

    def _faults(self, example: Example) -> list[Fault]:
        key = repr(example)
        if key not in self._known:
            self.tried += 1
            self._known[key] = self._laboratory.try_out(example)
        return self._known[key]

    def _note(self, example: Example, fault: Fault) -> None:
        _, _, times = self.found.get(fault.cause, (example, fault, 0))
        self.found[fault.cause] = (example, fault, times + 1)  # the last example of hypothesis is the smallest

    def _count(self, fault: Fault) -> None:
        if fault.cause in self.found:
            example, first, times = self.found[fault.cause]
            self.found[fault.cause] = (example, first, times + 1)

    def report(self) -> str:
        """Return each cause with its smallest example."""
        return "\n\n".join(
            f"== {cause} ({times} times)\n{example}\n{fault.details}"
            for cause, (example, fault, times) in sorted(self.found.items())
        )


def _quietly(attempt: Callable[[], None]) -> None:
    """Run an attempt, without hypothesis' report of the fault, which is recorded already."""
    try:
        attempt()
    except _FaultFoundError:
        return
