"""The search page: static files without data of the index. The page requests its data from /v1 like other clients."""

import hashlib
from dataclasses import dataclass
from importlib.resources import files

from fastapi import APIRouter, Request, Response
from starlette.exceptions import HTTPException

SHELL = "index.html"
_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}


@dataclass(frozen=True)
class PageFile:
    """A file of the page, and its ETag."""

    content: bytes
    media_type: str
    tag: str

    @property
    def cache(self) -> str:
        """Cache-Control: browsers validate every file, so that versions do not mix, except the icon, which they would
        request at every change of the address."""
        return "max-age=3600" if self.media_type == _TYPES["svg"] else "no-cache"


def page_files() -> dict[str, PageFile]:
    """Return the served files of the page by name."""
    served = {}
    for file in files("search.server").joinpath("page").iterdir():
        media_type = _TYPES.get(file.name.rpartition(".")[2])
        if media_type:
            content = file.read_bytes()
            served[file.name] = PageFile(content, media_type, f'"{hashlib.sha256(content).hexdigest()[:16]}"')
    return served


def page_routes() -> APIRouter:
    """Return GET / and GET /assets/{name}, which need no key."""
    router, pages = APIRouter(include_in_schema=False), page_files()

    @router.api_route("/", methods=["GET", "HEAD"])
    async def shell(request: Request) -> Response:
        return _answer(request, pages[SHELL])

    @router.api_route("/assets/{name}", methods=["GET", "HEAD"])
    async def asset(request: Request, name: str) -> Response:
        if name == SHELL or name not in pages:
            raise HTTPException(404)
        return _answer(request, pages[name])

    return router


def _answer(request: Request, file: PageFile) -> Response:
    """Return the file, or 304 if the browser has it."""
    headers = {"ETag": file.tag, "Cache-Control": file.cache}
    tags = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if file.tag in tags:
        return Response(status_code=304, headers=headers)
    return Response(file.content, media_type=file.media_type, headers=headers)
