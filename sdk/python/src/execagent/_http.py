"""HTTP requests that the agent makes, with the names of httpx."""

from __future__ import annotations

import asyncio
import builtins
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from . import _wire as wire
from ._errors import AgentError, ClosedError, DisconnectedError, OutputLimitError, ProtocolError, TimeoutError
from ._process import EndOfEvents
from ._queue import Queue
from ._record import Record
from ._stdin import Data, base64_of, bytes_of

if TYPE_CHECKING:
    from types import TracebackType

    from ._core import Core
    from ._link import Link

_MAX_DELTA = 1 << 20  # bytes of a piece of a body

HeadersLike = Mapping[str, str] | Sequence[tuple[str, str]]


class EnvHeader(NamedTuple):
    """The value of a header that ends with the content of a variable of the agent, which the client never sees."""

    variable: str
    prefix: str = ""


class Headers(Mapping[str, str]):
    """The headers of an answer. Names are compared without case; repeated headers are joined by a comma."""

    def __init__(self, items: Sequence[tuple[str, str]]) -> None:
        self.items_list = tuple(items)
        """All headers, in their order."""
        self._joined: dict[str, str] = {}
        for name, value in items:
            key = name.lower()
            self._joined[key] = f"{self._joined[key]}, {value}" if key in self._joined else value

    def __getitem__(self, name: str) -> str:
        return self._joined[name.lower()]

    def __iter__(self) -> Any:
        return iter(self._joined)

    def __len__(self) -> int:
        return len(self._joined)

    def __repr__(self) -> str:
        return f"Headers({list(self.items_list)!r})"


class Response(NamedTuple):
    """An answer with its whole content."""

    status_code: int
    headers: Headers
    content: bytes

    @property
    def text(self) -> str:
        """The content as UTF-8 text, with U+FFFD for what is none."""
        return self.content.decode(errors="replace")


class StreamedResponse:
    """An answer whose content comes while it is read. It ends with its connection."""

    def __init__(self, link: Link, number: str) -> None:
        self._link = link
        self._id = number
        self._queue: Queue[bytes] = Queue()
        self._seq = 0
        self.status_code = 0
        self.headers = Headers(())

    def opened(self, r: Record) -> None:
        """Take the status and the headers."""
        self.status_code = r.integer("status", 100, 999)
        self.headers = Headers([(each.text("name"), each.text("value")) for each in r.records("headers")])

    async def accept(self, r: Record) -> None:
        """Take a piece of the body."""
        self._seq += 1
        if r.integer("seq") != self._seq:
            self._end(ProtocolError(f"{r.where}: piece {r.integer('seq')} came instead of piece {self._seq}"))
            return
        data = r.data("deltaBase64")
        if len(data) > _MAX_DELTA:
            self._end(ProtocolError(f"{r.where}: {len(data)} bytes came at once"))
            return
        if data:
            await self._queue.put(data, len(data))
        error = r.members.get("error")
        if error is not None:
            self._end(AgentError(f"the answer could not be read to its end: {r.text('error')[:4096]}"))
        elif r.flag("done"):
            self._end(EndOfEvents())

    def lost(self, reason: DisconnectedError) -> None:
        """The connection is gone. No body goes on over another one."""
        self._queue.fail(DisconnectedError(str(reason), sent=True))

    def _end(self, error: BaseException) -> None:
        self._queue.fail(error)
        self._link.bodies.pop(self._id, None)

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        """Yield the content in pieces."""
        while True:
            try:
                data = await self._queue.take()
            except EndOfEvents:
                return
            yield data

    async def aread(self, max_bytes: int | None = None) -> bytes:
        """Return the rest of the content. More than ``max_bytes`` is an OutputLimitError."""
        parts: list[bytes] = []
        size = 0
        async for data in self.aiter_bytes():
            size += len(data)
            if max_bytes is not None and size > max_bytes:
                raise OutputLimitError(f"the answer has more than {max_bytes} bytes", max_bytes)
            parts.append(data)
        return b"".join(parts)

    async def aclose(self) -> None:
        """Drop the rest of the content."""
        self._queue.discard(lambda _: True)
        self._end(ClosedError("the answer is closed"))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class Http:
    """Makes the agent send HTTP requests. Every status is a result, and no error."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def request(
        self,
        method: str,
        url: str,
        *,
        headers: HeadersLike | Mapping[str, str | EnvHeader] | None = None,
        content: Data | None = None,
        timeout: float | None = None,
        follow_redirects: bool = True,
        max_bytes: int | None = None,
    ) -> Response:
        """Send a request, and return the answer with its content.

        A request is sent once. If the connection is lost meanwhile, the error is a DisconnectedError. ``timeout`` is
        for the whole answer.
        """
        try:
            async with asyncio.timeout(timeout):
                stream = await self.stream(
                    method, url, headers=headers, content=content, timeout=timeout, follow_redirects=follow_redirects
                )
                async with stream:
                    return Response(stream.status_code, stream.headers, await stream.aread(max_bytes))
        except builtins.TimeoutError as error:
            if isinstance(error, AgentError):
                raise
            raise TimeoutError(f"{method} {url}: no whole answer within {timeout:g} s") from None

    async def get(self, url: str, *, timeout: float | None = None) -> Response:
        """Send a GET."""
        return await self.request("GET", url, timeout=timeout)

    async def stream(
        self,
        method: str,
        url: str,
        *,
        headers: HeadersLike | Mapping[str, str | EnvHeader] | None = None,
        content: Data | None = None,
        timeout: float | None = None,
        follow_redirects: bool = True,
    ) -> StreamedResponse:
        """Send a request, and return the answer as soon as its headers have come. It has to be closed."""
        core = self._core
        params: wire.HTTPRequestParams = {
            "method": method,
            "url": url,
            "headers": _wire_headers(headers),
            "redirectPolicy": "follow" if follow_redirects else "stop",
            "requestId": f"http-{core.next_id()}",
            "streamResponse": True,
        }
        if any("valueEnvVar" in header for header in params.get("headers", [])):
            await core.require("headers from variables", "httpHeaderEnvVars")
        if content is not None:
            params["bodyBase64"] = base64_of(bytes_of(content))
        if timeout is not None:
            params["timeoutMs"] = max(1, round(timeout * 1000))
        number = params["requestId"]
        while True:
            link = await core.connected()
            body = StreamedResponse(link, number)
            link.bodies[number] = body  # pieces may come before the answer
            try:
                body.opened(Record(wire.HTTP_REQUEST, await link.called(wire.HTTP_REQUEST, params)))
                return body
            except DisconnectedError as error:
                link.bodies.pop(number, None)
                if error.sent or core.failure is not None:
                    raise
            except BaseException:
                await body.aclose()
                raise


def _wire_headers(headers: HeadersLike | Mapping[str, str | EnvHeader] | None) -> list[wire.HTTPHeader]:
    pairs = list(headers.items()) if isinstance(headers, Mapping) else list(headers or ())
    result: list[wire.HTTPHeader] = []
    for name, value in pairs:
        if isinstance(value, EnvHeader):
            result.append({"name": name, "value": value.prefix, "valueEnvVar": value.variable})
        else:
            result.append({"name": name, "value": value})
    return result
