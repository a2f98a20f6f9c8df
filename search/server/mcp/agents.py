"""Tools for agents by the Model Context Protocol, over standard input and output, or over HTTP at /mcp.

HTTP requests are independent: there are no sessions and no streams, so nothing is stored between two calls.
"""

import contextlib
import json
import logging
import re
from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Iterator, Mapping
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import anyio
from anyio.streams.memory import MemoryObjectSendStream
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPASGIApp, StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    PARSE_ERROR,
    CallToolRequestParams,
    CallToolResult,
    ErrorData,
    JSONRPCError,
    ListResourcesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    TextContent,
    TextResourceContents,
    ToolAnnotations,
)
from mcp_types import Tool as ListedTool
from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from indexer.errors import IsotropeError
from search.filters.expressions import shortened
from search.formatting import counted
from search.hits import Place
from search.result_files import to_json
from search.server.http.failures import RequestError, status_and_message
from search.server.links import address_of
from search.server.mcp.standard_streams import ProtocolStreams
from search.server.mcp.tools import INFO, NOTE, TOOLS, Link, columns_in_words, fault_of
from search.server.service import BusyError, DeadlineError, SearchService

LOG = logging.getLogger("isotrope.server")
PATH = "/mcp"
_MESSAGE = 2500  # characters of an error message
_META = {"isotrope/note": NOTE}
_READS = ToolAnnotations(read_only_hint=True, destructive_hint=False, idempotent_hint=True, open_world_hint=False)
_BASE = re.compile(r"https?://[\w.:\[\]-]+/", re.ASCII)
_JSON = (b"content-type", b"application/json")
_AT_PATH = SimpleNamespace(path=PATH)
Context = ServerRequestContext[Any, Any]


class _Endpoint(StreamableHTTPASGIApp):
    """The SDK's application, with a path for the metrics, and protocol errors of one line."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = _AT_PATH
        await super().__call__(scope, receive, _in_one_line(send))


def _in_one_line(send: Send) -> Send:
    """Return a `send` that keeps the first line of protocol errors; pydantic's other lines repeat the input."""
    starts: list[Message] = []

    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start" and message["status"] == 400 and _JSON in message["headers"]:
            starts.append(message)
        elif not starts:
            await send(message)
        else:
            fault = json.loads(message["body"])
            fault["error"]["message"] = shortened(fault["error"]["message"].partition("\n")[0], _MESSAGE)
            answer = Response(to_json(fault), 400, media_type="application/json")
            await send({"type": "http.response.start", "status": 400, "headers": answer.raw_headers})
            await send({"type": "http.response.body", "body": answer.body})

    return sent


async def _answer_faults(
    read: AsyncIterable[SessionMessage | Exception],
    write: Callable[[SessionMessage], Awaitable[None]],
    heard: MemoryObjectSendStream[SessionMessage | Exception],
) -> None:
    """Pass messages on, and answer invalid lines, which the SDK ignores."""
    async with heard:
        async for message in read:
            if not isinstance(message, Exception):
                await heard.send(message)
            elif (
                not isinstance(message, ValidationError)
                or message.errors(include_url=False, include_input=False)[0]["type"] == "json_invalid"
            ):
                await write(_fault(PARSE_ERROR, "The line is not JSON in UTF-8."))
            else:
                await write(_fault(INVALID_REQUEST, "The line is not a message of JSON-RPC 2.0."))


def _fault(code: int, message: str) -> SessionMessage:
    return SessionMessage(JSONRPCError(jsonrpc="2.0", id=None, error=ErrorData(code=code, message=message)))


class Agents:
    """The server for agents. With `page`, documents without a URL get one on the search page."""

    def __init__(self, service: SearchService, page: bool = False) -> None:
        self._service, self._page = service, page
        name = service.settings.name
        self.server = Server[Any](
            "isotrope",
            title=f"Isotrope: {name}",
            version=version("isotrope"),
            instructions=f'Search in the index "{name}" by meaning; fetch returns whole documents. {NOTE}',
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
            on_list_resources=self._list_resources,
            on_read_resource=self._read_resource,
        )
        self._calls = StreamableHTTPSessionManager(
            self.server,
            json_response=True,
            stateless=True,
            security_settings=TransportSecuritySettings(enable_dns_rebinding_protection=False),  # the guard does this
            max_request_body_size=service.settings.limits.body_bytes,
        )
        # No GET, which would open a stream without messages.
        self.route = Route(PATH, _Endpoint(self._calls), methods=["POST"])

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer at `route` until the block ends."""
        async with self._calls.run():
            yield

    async def speak(self, streams: ProtocolStreams) -> None:
        """Answer over standard input and output until the input ends."""
        wire = stdio_server(anyio.wrap_file(streams.input), anyio.wrap_file(streams.output))
        try:
            async with wire as (read, write), anyio.create_task_group() as tasks:
                send, heard = anyio.create_memory_object_stream[SessionMessage | Exception]()
                async with read, heard, send:
                    tasks.start_soon(_answer_faults, read, write.send, send)
                    await self.server.run(heard, write, self.server.create_initialization_options())
                    tasks.cancel_scope.cancel()
        except* BrokenPipeError:
            LOG.info("the agent has disconnected")

    # --- tools

    async def _list_tools(self, _: Context, __: PaginatedRequestParams | None) -> ListToolsResult:
        summary, columns = await self._summary()
        return ListToolsResult(
            tools=[
                ListedTool(
                    name=tool.name,
                    title=tool.title,
                    description="\n".join(
                        [f"{tool.purpose} {summary}", *([columns] if tool.name == "search_documents" else []), NOTE]
                    ),
                    input_schema=tool.takes,
                    output_schema=tool.answers.model_json_schema(),
                    annotations=_READS,
                )
                for tool in TOOLS
            ]
        )

    async def _summary(self) -> tuple[str, str]:
        """Return a sentence on the index, and its metadata columns, both of one generation."""
        with self._failures():
            while True:
                facets, stamp = await self._service.facets()
                with self._service.generations.lease() as generation:
                    if generation.stamp == stamp:
                        documents = counted(len(generation.engine), "document")
                        name = self._service.settings.name
                        return f'The index "{name}" contains {documents}.', columns_in_words(facets)

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except (IsotropeError, BusyError, DeadlineError) as error:
            raise MCPError(INTERNAL_ERROR, self._message(error)) from error

    async def _call_tool(self, context: Context, params: CallToolRequestParams) -> CallToolResult:
        tool = next((tool for tool in TOOLS if tool.name == params.name), None)
        if tool is None:
            names = ", ".join(tool.name for tool in TOOLS)
            raise MCPError(INVALID_PARAMS, f'unknown tool "{params.name[:100]}"; the tools are {names}.')
        try:
            text = await tool.answer(self._service, params.arguments or {}, self._link(context))
        except Exception as error:  # noqa: BLE001  # the agent gets its message
            return CallToolResult(content=[TextContent(text=self._message(error))], is_error=True)
        return CallToolResult(content=[TextContent(text=text)], structured_content=json.loads(text), _meta=_META)

    def _message(self, error: Exception) -> str:
        message = str(error)
        if isinstance(error, ValidationError):
            message = fault_of(error)
        elif isinstance(error, IsotropeError):
            message = status_and_message(error, self._service)[1]
        elif not isinstance(error, RequestError | BusyError | DeadlineError):
            LOG.error("a tool failed unexpectedly", exc_info=error)
            message = "The server failed at this call; see its log."
        return shortened(message, _MESSAGE)

    def _link(self, context: Context) -> Link:
        base = str(context.request.base_url) if self._page and isinstance(context.request, Request) else ""
        start, template = f"{base}?doc=" if _BASE.fullmatch(base) else "isotrope:///", self._service.settings.link

        def link(identity: str, metadata: Mapping[str, Any], place: Place | None) -> str:
            own = address_of(template, identity, metadata, place)
            return own or f"{start}{quote(identity, safe='', errors='replace')}"

        return link

    # --- resources

    async def _list_resources(self, _: Context, __: PaginatedRequestParams | None) -> ListResourcesResult:
        about = "The contents of the index, its build, and its measured quality."
        return ListResourcesResult(
            resources=[Resource(name="index", uri=INFO, description=about, mime_type="application/json")]
        )

    async def _read_resource(self, _: Context, params: ReadResourceRequestParams) -> ReadResourceResult:
        if params.uri != INFO:
            raise MCPError(INVALID_PARAMS, f"unknown resource; expected {INFO}. fetch returns documents.")
        with self._failures():
            text = to_json(await self._service.info())
        text = text.encode("utf-8", "replace").decode()
        return ReadResourceResult(
            contents=[TextResourceContents(uri=INFO, text=text, mime_type="application/json", _meta=_META)]
        )
