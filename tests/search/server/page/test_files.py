"""The files of the page: their types, and content that they never have."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from search.server.page import SHELL, page_files
from search.server.settings import ServerSettings
from tests.servers import LiveServer, keys, live_server

FILES = page_files()
TYPES = {"html": "text/html", "js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}
SVG = "http://www.w3.org/2000/svg"
READ = "a-key-that-opens-it"


@pytest.fixture(scope="module")
def locked(served_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    """A server that requires a key, which no test here sends."""
    held = keys(f"{READ}\n", tmp_path_factory.mktemp("keys"))
    with live_server(served_folder, ServerSettings("whale-songs", port=0, read_keys=held)) as server:
        yield server


def text_of(name: str) -> str:
    return FILES[name].content.decode()


@pytest.mark.parametrize("name", sorted(FILES))
def test_each_file_is_served_with_its_type(name: str, locked: LiveServer) -> None:
    response = locked.client.get("/" if name == SHELL else f"/assets/{name}")
    assert response.status_code == 200
    assert response.content == FILES[name].content
    assert response.headers["content-type"].startswith(TYPES[name.rpartition(".")[2]])
    assert response.headers["cache-control"] == ("max-age=3600" if name.endswith(".svg") else "no-cache")
    assert response.headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize("path", ["/", "/assets/app.js"])
def test_a_browser_that_has_a_file_is_not_sent_it_again(path: str, locked: LiveServer) -> None:
    tag = locked.client.get(path).headers["etag"]
    for sent in (tag, f'"other", W/{tag}'):
        again = locked.client.get(path, headers={"If-None-Match": sent})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert locked.client.get(path, headers={"If-None-Match": '"other"'}).status_code == 200
    assert locked.client.head(path).headers["content-length"] == str(len(locked.client.get(path).content))


@pytest.mark.parametrize("name", ["nothing.js", SHELL, "..%2fpage.py", "%2e%2e%2fapp.py", "__init__.py", "APP.JS", ""])
def test_no_other_file_is_served(name: str, locked: LiveServer) -> None:
    assert locked.client.get(f"/assets/{name}").status_code == 404


def test_the_page_tells_a_stranger_nothing_about_the_index(locked: LiveServer) -> None:
    assert locked.client.get("/v1/info").status_code == 401
    for name in FILES:
        response = locked.client.get("/" if name == SHELL else f"/assets/{name}")
        for told in ("whale-songs", "generation 1", READ, locked.served.service.generations.current.stamp.fingerprint):
            assert told not in response.text
            assert told not in str(response.headers)


def test_the_shell_has_no_script_and_no_style_of_its_own() -> None:
    shell = text_of(SHELL)
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", shell)
    assert re.findall(r"<script(?![^>]*\ssrc=)", shell) == []
    named = re.findall(r'(?:src|href)="assets/([^"]+)"', shell)
    assert set(named) <= set(FILES)
    assert {name for name in FILES if name != SHELL} == set(named)  # scripts that others import: loaded beforehand


@pytest.mark.parametrize("name", sorted(FILES))
def test_nothing_is_loaded_from_elsewhere(name: str) -> None:
    found = set(re.findall(r"\b(?:https?|wss?|ftp):/*[\w.]+[^\s\"'`)]*", text_of(name)))
    assert found <= {SVG}
    assert not re.search(r"""["'(=]//[\w.]""", text_of(name))


@pytest.mark.parametrize("name", sorted(name for name in FILES if name.endswith(".js")))
def test_scripts_never_make_markup_or_code_of_text(name: str) -> None:
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|srcdoc|DOMParser"
    assert not re.search(forbidden, text_of(name))
    assert set(re.findall(r'from "\./([\w.]+)"', text_of(name))) <= set(FILES)


def test_files_are_short_enough_to_be_read() -> None:
    assert [name for name in FILES if text_of(name).count("\n") > 400] == []
