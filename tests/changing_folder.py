"""A folder of notes that changes at random: files are added, edited, touched, deleted, renamed and broken."""

import os
import random
from pathlib import Path

from tests.mixed_folder import write_note
from tests.written_files import SUFFIXES

_FOLDERS = ("", "work", "work/plans", "home", "src")


class ChangingFolder:
    """A folder of notes below `folder`. The same seed makes the same changes."""

    def __init__(self, folder: Path, files: int, seed: int) -> None:
        self.folder = folder
        self._draw, self._number = random.Random(seed), 0
        self._broken: set[str] = set()
        self._names: list[str] = []
        while len(self._names) < files:
            self._add()

    def change(self) -> None:
        """Make one change."""
        changes = [self._add, self._add, self._edit, self._edit, self._touch, self._delete, self._rename, self._break]
        self._draw.choice(changes)()

    def mend(self) -> None:
        """Delete a half of the broken files, and write the others anew."""
        for name in sorted(self._broken):
            if self._draw.random() < 0.5:
                self._remove(name)
            else:
                self._write(name)

    def _add(self) -> None:
        name = f"note-{self._number:04d}{self._draw.choice(SUFFIXES)}"
        name = "/".join(filter(None, (self._draw.choice(_FOLDERS), name)))
        self._write(name)
        self._names.append(name)

    def _write(self, name: str) -> None:
        """Write a note that no file contained before."""
        self._number += 1 + (self._number % 40 == 38)  # every 40th note of the generator is broken
        write_note(self.folder, name, self._number)
        self._broken.discard(name)

    def _edit(self) -> None:
        self._write(self._draw.choice(self._names))

    def _touch(self) -> None:
        os.utime(self.folder / self._draw.choice(self._names))

    def _delete(self) -> None:
        self._remove(self._draw.choice(self._names))

    def _remove(self, name: str) -> None:
        (self.folder / name).unlink()
        self._names.remove(name)
        self._broken.discard(name)

    def _rename(self) -> None:
        old = self._draw.choice(self._names)
        new = f"moved/{self._number:04d}-{Path(old).name}"
        (self.folder / "moved").mkdir(exist_ok=True)
        (self.folder / old).rename(self.folder / new)
        self._names[self._names.index(old)] = new
        if old in self._broken:
            self._broken.remove(old)
            self._broken.add(new)

    def _break(self) -> None:
        """Cut a file in the middle of a write, or empty it."""
        name = self._draw.choice(self._names)
        data = (self.folder / name).read_bytes()
        (self.folder / name).write_bytes(b"" if self._draw.random() < 0.5 else b"\0" + data[: len(data) // 2])
        self._broken.add(name)
