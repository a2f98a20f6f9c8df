"""A small Hugging Face hub for tests: dataset repositories with commits, LFS objects, and faults on demand."""

import base64
import contextlib
import hashlib
import json
import re
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import close_session, constants

from tests.waiting import PATIENCE

TOKEN = "hf_token-of-the-tests"
_REGULAR = 300  # bytes of a JSON or Markdown file that Git itself stores; the hub's limit is 10 MB
Files = dict[str, bytes]


@dataclass
class Repository:
    """A repository: its files after each commit, newest last."""

    private: bool = False
    commits: list[tuple[str, Files]] = field(default_factory=list)

    @property
    def files(self) -> Files:
        """The files of the newest commit."""
        return self.commits[-1][1]

    def commit(self, files: Files) -> str:
        name = hashlib.sha1(f"{len(self.commits)}".encode(), usedforsecurity=False).hexdigest()
        self.commits.append((name, files))
        return name

    def at(self, revision: str) -> tuple[str, Files]:
        found = [commit for commit in self.commits if revision in (commit[0], "main")]
        if not found:
            raise RefusedError(404, "RevisionNotFound")
        return found[-1]


class RefusedError(Exception):
    """An answer with an error."""

    def __init__(self, status: int, code: str = "") -> None:
        super().__init__(status)
        self.status, self.code = status, code


@dataclass
class Answer:
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


@dataclass
class FakeHub:
    """The server: its `url`, its repositories by name, what was uploaded and downloaded, and a `fault` that sees every
    request (method and path) and may raise RefusedError."""

    url: str = ""
    repositories: dict[str, Repository] = field(default_factory=dict)
    objects: Files = field(default_factory=dict)  # of LFS, by sha256
    uploads: list[str] = field(default_factory=list)
    downloads: list[str] = field(default_factory=list)
    damaged: set[str] = field(default_factory=set)  # names whose last byte differs in a download
    fault: Callable[[str, str], None] = lambda method, path: None
    lock: Any = field(default_factory=threading.Lock)

    def answer(self, method: str, path: str, headers: Any, body: bytes) -> Answer:
        token = headers.get("Authorization", "").removeprefix("Bearer ")
        self.fault(method, path)
        if path == "/api/validate-yaml":
            return _json({"errors": [], "warnings": []})
        if path.startswith("/lfs/"):
            assert hashlib.sha256(body).hexdigest() == path.removeprefix("/lfs/")
            self.objects[path.removeprefix("/lfs/")] = body
            self.uploads.append(path.removeprefix("/lfs/"))
            return Answer()
        if path == "/api/repos/create":
            return self._create(json.loads(body), token)
        match = re.fullmatch(r"(?:/api)?/datasets/(\w+/[\w-]+)(?:\.git/info)?/(\w+)/(.+)", path)
        if match is None:
            raise RefusedError(404)
        name, action, rest = match.groups()
        repository = self.repositories.get(name)
        if repository is None or (repository.private and token != TOKEN):
            raise RefusedError(404 if token else 401, "RepoNotFound")
        if method == "POST" and token != TOKEN:
            raise RefusedError(403)
        act: Callable[[Repository, str, bytes], Answer] = getattr(self, f"_{action}")
        return act(repository, rest, body)

    def _create(self, asked: dict[str, Any], token: str) -> Answer:
        if token != TOKEN:
            raise RefusedError(401)
        name = f"{asked['organization']}/{asked['name']}"
        assert asked["type"] == "dataset"
        self.repositories[name] = Repository(asked.get("visibility") == "private")
        self.repositories[name].commit({".gitattributes": b"*.parquet filter=lfs\n"})
        return _json({"url": f"{self.url}/datasets/{name}"})

    def _revision(self, repository: Repository, revision: str, _: bytes) -> Answer:
        return _json({"id": "user/name", "sha": repository.at(revision)[0], "private": repository.private})

    def _tree(self, repository: Repository, revision: str, _: bytes) -> Answer:
        folders = [{"type": "directory", "path": "parts", "oid": "0" * 40}]
        return _json(folders + [_entry(name, data) for name, data in repository.at(revision)[1].items()])

    def _preupload(self, repository: Repository, revision: str, body: bytes) -> Answer:
        files = repository.at(revision)[1]
        modes = [
            {
                "path": file["path"],
                "uploadMode": "lfs" if _is_lfs(file["path"], file["size"]) else "regular",
                "shouldIgnore": False,
                "oid": _entry(file["path"], files[file["path"]])["oid"] if file["path"] in files else None,
            }
            for file in json.loads(body)["files"]
        ]
        return _json({"files": modes})

    def _lfs(self, _: Repository, rest: str, body: bytes) -> Answer:
        assert rest == "objects/batch"
        objects = json.loads(body)["objects"]
        for each in objects:
            if each["oid"] not in self.objects:
                each["actions"] = {"upload": {"href": f"{self.url}/lfs/{each['oid']}"}}
        return _json({"transfer": "basic", "objects": objects})

    def _commit(self, repository: Repository, revision: str, body: bytes) -> Answer:
        before, files = repository.at(revision)
        files = dict(files)
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            match line["key"]:
                case "header":
                    if value.get("parentCommit", before) != before:
                        raise RefusedError(412)
                case "file":
                    files[value["path"]] = base64.b64decode(value["content"])
                    self.uploads.append(value["path"])
                case "lfsFile":
                    files[value["path"]] = self.objects[value["oid"]]
                case "deletedFile":
                    del files[value["path"]]
        commit = repository.commit(files)
        return _json({"commitUrl": f"{self.url}/datasets/user/name/commit/{commit}", "commitOid": commit})

    def _resolve(self, repository: Repository, rest: str, _: bytes) -> Answer:
        revision, name = rest.split("/", 1)
        commit, files = repository.at(revision)
        if name not in files:
            raise RefusedError(404, "EntryNotFound")
        data = files[name]
        digest = hashlib.sha256(data).hexdigest()
        if name in self.damaged:
            data = data[:-1] + bytes([data[-1] ^ 1])
        return Answer(data, {"X-Repo-Commit": commit, "ETag": f'"{digest}"'})


def _is_lfs(name: str, size: int) -> bool:
    return size > _REGULAR or not name.endswith((".json", ".md", ".gitattributes"))


def _entry(name: str, data: bytes) -> dict[str, Any]:
    """Return the entry of a file in a listing."""
    git = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
    entry: dict[str, Any] = {"type": "file", "path": name, "size": len(data), "oid": git}
    if _is_lfs(name, len(data)):
        sha256 = hashlib.sha256(data).hexdigest()
        entry |= {"oid": sha256[:40], "lfs": {"oid": sha256, "size": len(data), "pointerSize": 130}}
    return entry


def _json(value: Any) -> Answer:
    return Answer(json.dumps(value).encode(), {"Content-Type": "application/json"})


@contextlib.contextmanager
def running_hub() -> Iterator[FakeHub]:
    """Run a hub on a free port of this machine."""
    hub, connections = FakeHub(), list[Any]()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # it would hold back the body of each answer for 40 ms

        def setup(self) -> None:
            super().setup()
            connections.append(self.connection)

        def do_any(self) -> None:
            path = unquote(urlsplit(self.path).path)
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, answer = 200, Answer()
            with hub.lock:
                try:
                    answer = hub.answer(self.command, path, self.headers, body)
                    if self.command == "GET" and "/resolve/" in path:
                        hub.downloads.append(path.split("/resolve/")[1].partition("/")[2])
                except RefusedError as error:
                    status, answer = error.status, Answer(b"{}", {"X-Error-Code": error.code} if error.code else {})
            self.send_response(status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            if self.command != "HEAD":
                with contextlib.suppress(OSError):
                    self.wfile.write(answer.body)

        do_GET = do_HEAD = do_POST = do_PUT = do_any  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        thread.join(PATIENCE)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    """A hub to which the library of Hugging Face connects, with a token."""
    with running_hub() as running:
        template = f"{running.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # Xet is not HTTP alone
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        yield running
        close_session()
