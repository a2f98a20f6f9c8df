"""Only regular files are opened by name: anything that would hang or never end is an error at once."""

import os
import socket
from pathlib import Path

import pytest

from indexer.system.regular_files import open_regular, read_regular


def test_a_regular_file_is_read_through_links_unless_told_otherwise(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abc")
    (tmp_path / "link").symlink_to("file")
    assert read_regular(tmp_path / "link") == b"abc"
    with open_regular(tmp_path / "file", follow_links=False) as file:
        assert file.read() == b"abc"
    with pytest.raises(OSError, match="it is a link"):
        open_regular(tmp_path / "link", follow_links=False)
    with pytest.raises(OSError, match="3 bytes; expected at most 2"):
        read_regular(tmp_path / "file", most_bytes=2)


def test_pipes_devices_sockets_and_folders_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        for path in (tmp_path / "pipe", tmp_path / "s", Path("/dev/zero")):
            with pytest.raises(OSError, match="pipe, socket or device"):
                open_regular(path)
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "gone")
