"""Keys and addresses that are refused before a server listens."""

import resource
from pathlib import Path

import pytest

from indexer.errors import ConfigError
from search.server.settings import Keys, ServerLimits, ServerSettings, is_readable_by_others, open_connections
from tests.servers import ADMIN_KEY, READ_KEY, keys


def test_a_file_of_keys_has_one_a_line(tmp_path: Path) -> None:
    found = keys(f"\n# rotated in May\n {READ_KEY} \r\n{ADMIN_KEY}\n", tmp_path)
    assert [found.admit(key.encode()) for key in (READ_KEY, ADMIN_KEY, "", f" {READ_KEY}")] == [
        True,
        True,
        False,
        False,
    ]
    assert READ_KEY not in repr(found)
    assert not Keys().are_needed
    assert not Keys().admit(b"")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "contains no key"),
        ("# nothing\n\n", "contains no key"),
        ("short\n", r"keys\.txt:1: invalid key; expected 16"),
        (f"{READ_KEY}\ntwo words in a line\n", r"keys\.txt:2: invalid key"),
        ("schlüssel-mit-umlaut\n", r"keys\.txt:1: invalid key"),
    ],
)
def test_invalid_keys_are_reported_by_line_and_never_shown(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        keys(text, tmp_path)
    assert "two words" not in str(caught.value)


def test_files_that_hold_no_keys(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="is not UTF-8 text"):
        Keys.read(tmp_path / "binary")
    for missing in (tmp_path / "nothing", tmp_path):
        with pytest.raises(ConfigError, match="the keys cannot be read"):
            Keys.read(missing)


def test_others_may_not_read_the_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys.txt"
    file.write_text(READ_KEY)
    file.chmod(0o600)
    assert not is_readable_by_others(file)
    file.chmod(0o640)
    assert is_readable_by_others(file)


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.3.2.1"])
def test_this_machine_alone_needs_no_key(host: str) -> None:
    assert ServerSettings("x", host).host == host


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "10.0.0.7", "example.org", "localhost.example.org"])  # noqa: S104
def test_any_other_address_needs_one(host: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="Fix: pass --api-key-file"):
        ServerSettings("x", host)
    with pytest.raises(ConfigError, match="Fix: pass --api-key-file"):
        ServerSettings("x", host, admin_keys=keys(ADMIN_KEY, tmp_path))
    assert ServerSettings("x", host, read_keys=keys(READ_KEY, tmp_path)).read_keys.are_needed


def test_settings_that_make_no_sense(tmp_path: Path) -> None:
    for port in (-1, 65536):
        with pytest.raises(ConfigError, match="port is"):
            ServerSettings("x", port=port)
    same = keys(READ_KEY, tmp_path)
    with pytest.raises(ConfigError, match="expected different keys"):
        ServerSettings("x", read_keys=same, admin_keys=same)
    for value in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(ConfigError, match=r"deadline is .*; expected a finite number above 0"):
            ServerLimits(deadline=value)


@pytest.mark.parametrize(
    ("limits", "connections", "raised"),
    [
        ((256, 256), 128, None),
        ((256, 1000), 500, 1000),
        ((1024, 1 << 20), 1024, 2048),
        ((4096, 4096), 1024, None),
        ((1, 1), 1, None),
        ((1024, resource.RLIM_INFINITY), 1024, 2048),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), 1024, None),
    ],
)
def test_connections_leave_half_of_the_files_that_may_be_open(
    limits: tuple[int, int], connections: int, raised: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = list[tuple[int, int]]()
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits)
    monkeypatch.setattr(resource, "setrlimit", lambda _, both: given.append(both))
    assert open_connections(1024) == connections
    assert given == ([] if raised is None else [(raised, limits[1])])
