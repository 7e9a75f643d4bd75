"""HTTP requests that the agent makes, with the names of httpx."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from . import _wire as wire
from ._errors import (
    AgentError,
    ClosedError,
    DisconnectedError,
    OutputLimitError,
    ProtocolError,
    TimeoutError,
    again,
)
from ._process import EndOfEvents
from ._queue import Changes
from ._record import Record
from ._stdin import Data, base64_of, bytes_of
from ._within import within

if TYPE_CHECKING:
    from types import TracebackType

    from ._core import Core
    from ._link import Link

_MAX_DELTA = 1 << 20  # bytes of a piece of a body
_MAX_CONTENT = 64 << 20  # bytes of a whole answer by default
_MAX_UNREAD = 16 << 20  # bytes of all answers of a client that wait to be read

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
    """An answer whose content comes while it is read. It ends with its connection.

    If more than 16 MiB of all answers wait to be read, the answer that has most of them fails.
    """

    def __init__(self, core: Core, link: Link, number: str) -> None:
        self._core = core
        self._link = link
        self._id = number
        self._unread = bytearray()
        self._taken = b""  # by a call that was cancelled
        self._end: BaseException | None = None
        self._changes = Changes()
        self._seq = 0
        self.status_code = 0
        self.headers = Headers(())
        link.bodies[number] = self  # pieces may come before the answer
        core.bodies.add(self)

    def opened(self, r: Record) -> None:
        """Take the status and the headers."""
        self.status_code = r.integer("status", 100, 999)
        self.headers = Headers([(each.text("name"), each.text("value")) for each in r.records("headers")])

    @property
    def unread(self) -> int:
        """How many bytes wait to be read."""
        return len(self._unread)

    def accept(self, r: Record) -> None:
        """Take a piece of the body. This does not wait for room, because the connection carries other things, too."""
        self._seq += 1
        if r.integer("seq") != self._seq:
            self.fail(ProtocolError(f"{r.where}: piece {r.integer('seq')} came instead of piece {self._seq}"))
            return
        data = r.data("deltaBase64")
        if len(data) > _MAX_DELTA:
            self.fail(ProtocolError(f"{r.where}: {len(data)} bytes came at once"))
            return
        self._unread += data
        self._changes.notify()
        error = r.members.get("error")
        if error is not None:
            self.fail(AgentError(f"the answer could not be read to its end: {r.text('error')[:4096]}"))
        elif r.flag("done"):
            self.fail(EndOfEvents())
        if sum(each.unread for each in self._core.bodies) > _MAX_UNREAD:
            max(self._core.bodies, key=lambda each: each.unread).overflow()

    def overflow(self) -> None:
        """Fail, because nobody reads the content."""
        self._unread.clear()
        self._end = None  # this comes before its end
        self.fail(
            OutputLimitError(
                f"the answer was not read while more than {_MAX_UNREAD} bytes have come: read it, or close it",
                _MAX_UNREAD,
            )
        )

    def lost(self, reason: DisconnectedError) -> None:
        """The connection is gone. No body goes on over another one."""
        self.fail(DisconnectedError(str(reason), sent=True))

    def fail(self, end: BaseException) -> None:
        """Take what follows the bytes that have come, once."""
        if self._end is None:
            self._end = end
        self._link.bodies.pop(self._id, None)
        self._changes.notify()

    async def _take(self) -> bytes:
        """Return all that has come; b"" at the end."""
        if self._taken:
            taken, self._taken = self._taken, b""
            return taken
        while not self._unread:
            if isinstance(self._end, EndOfEvents):
                return b""
            if self._end is not None:
                raise again(self._end)
            await self._changes.wait()
        data, self._unread = bytes(self._unread), bytearray()
        return data

    async def aiter_bytes(self) -> AsyncIterator[bytes]:
        """Yield the content in pieces."""
        while data := await self._take():
            yield data

    async def aread(self, max_bytes: int | None = None) -> bytes:
        """Return the rest of the content. More than ``max_bytes``, 64 MiB by default, is an OutputLimitError.

        What a call has taken that is cancelled, or that fails, comes with the next call.
        """
        most = _MAX_CONTENT if max_bytes is None else max_bytes
        parts: list[bytes] = []
        size = 0
        try:
            while data := await self._take():
                parts.append(data)
                size += len(data)
                if size > most:
                    raise OutputLimitError(f"the answer has more than {most} bytes; see max_bytes and stream", most)
        except BaseException:
            self._taken = b"".join(parts)
            raise
        return b"".join(parts)

    async def aclose(self) -> None:
        """Drop the rest of the content."""
        self._taken = b""
        self._unread.clear()
        self.fail(ClosedError("the answer is closed"))

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
        for the whole answer. Content of more than ``max_bytes``, 64 MiB by default, is an OutputLimitError.
        """
        async with within(timeout, lambda: TimeoutError(f"{method} {url}: no whole answer within {timeout:g} s")):
            stream = await self.stream(
                method, url, headers=headers, content=content, timeout=timeout, follow_redirects=follow_redirects
            )
            async with stream:
                return Response(stream.status_code, stream.headers, await stream.aread(max_bytes))

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
            body = StreamedResponse(core, link, number)
            try:
                body.opened(Record(wire.HTTP_REQUEST, await link.called(wire.HTTP_REQUEST, params)))
                return body
            except DisconnectedError as error:
                body.fail(error)
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
