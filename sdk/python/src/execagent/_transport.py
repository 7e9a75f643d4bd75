"""Connections: a WebSocket over TCP or at a UNIX socket, and a program's standard input and output.

A connection moves whole messages. What lies above cannot tell the kinds apart.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import select
import signal
import socket
import ssl
import struct
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, cast

from . import _address
from ._errors import ConnectError, ConnectTimeoutError, printable, shown
from ._queue import Changes
from ._record import MAX_MESSAGE

if TYPE_CHECKING:
    from websockets.asyncio.client import ClientConnection
    from websockets.frames import Frame

_PING_EVERY = 30.0
_LOOK_EVERY = 1.0  # seconds between looks at a connection that is not read
_SILENCE = 90.0  # a peer from which nothing has come for so long is gone
_MAX_FRAGMENTS = 4096
_silent = logging.getLogger("execagent.websockets")
_silent.setLevel(logging.WARNING)
_PIPE = 1 << 20  # bytes that a pipe holds, so that a message comes in few pieces
_FRAGMENT = 8 << 20  # characters; the reference accepts no frame above 16 MiB


class EndError(Exception):
    """The connection has ended, for the reason in the text."""


class Connection(Protocol):
    """What a client needs of a connection."""

    @property
    def gone(self) -> asyncio.Future[None]:
        """Done once the other end sends nothing more. Unlike :meth:`read`, it tells so while nobody reads."""
        ...

    @property
    def closed(self) -> bool:
        """Whether nothing can be sent any more."""
        ...

    async def read(self) -> bytes:
        """Return the next message, or raise EndError. One task reads."""
        ...

    async def write(self, message: str) -> None:
        """Send a message. Messages are sent in the order of the calls."""
        ...

    def abort(self) -> None:
        """End the connection without waiting."""
        ...

    async def close(self) -> None:
        """End the connection in good order."""
        ...


class WebSocket:
    """A connection to a server that listens."""

    def __init__(self, ws: ClientConnection) -> None:
        from websockets.exceptions import ConnectionClosed

        self._ws = ws
        self._ended = ConnectionClosed
        self._reading = False
        self._time = asyncio.get_running_loop().time
        self._heard = self._time()
        self.fault = ""
        """What the other end has done, if the connection was ended here because of it."""
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._keeper = asyncio.create_task(self._keep())

    @property
    def closed(self) -> bool:
        return self._ws.state.name != "OPEN"

    def heard(self) -> None:
        """Note that something has come."""
        self._heard = self._time()

    async def read(self) -> bytes:
        message = await self._receive(False)
        return message if isinstance(message, bytes) else message.encode()

    async def read_binary(self) -> bytes:
        """Return the next message. A text message ends the connection."""
        message = await self._receive(None)
        if isinstance(message, str):
            raise EndError("the other end sent a text message")
        return message

    async def _receive(self, decode: bool | None) -> str | bytes:
        self._reading = True
        self._heard = self._time()
        try:
            return await self._ws.recv(decode)
        except self._ended as error:
            raise EndError(self.fault or _end_text(error)) from error
        finally:
            self._reading = False

    async def write_binary(self, message: bytes) -> None:
        """Send a binary message."""
        try:
            await self._ws.send(message)
        except self._ended as error:
            raise EndError(_end_text(error)) from error

    async def write(self, message: str) -> None:
        try:
            if len(message) <= _FRAGMENT:
                await self._ws.send(message)
            else:
                pieces = [message[i : i + _FRAGMENT] for i in range(0, len(message), _FRAGMENT)]
                # A caller that is cancelled must not leave half a message.
                await asyncio.shield(asyncio.ensure_future(self._ws.send(pieces)))
        except self._ended as error:
            raise EndError(_end_text(error)) from error

    def abort(self) -> None:
        self._keeper.cancel()
        self._ws.transport.abort()

    async def close(self) -> None:
        self._keeper.cancel()
        try:
            async with asyncio.timeout(2):
                await self._ws.close()
        except TimeoutError:
            pass
        finally:
            self._ws.transport.abort()

    async def _keep(self) -> None:
        """Send pings, and notice the end of a connection.

        While the reader waits for its consumer, the socket is not read. So silence means nothing then, and the kernel
        is asked.
        """
        sock: socket.socket = self._ws.transport.get_extra_info("socket")
        closed = asyncio.ensure_future(self._ws.wait_closed())
        # A ping waits as long as nothing can be sent, and the end has to be noticed meanwhile.
        sending = asyncio.create_task(self._ping())
        pinged = self._time()
        try:
            while not closed.done():
                silent = self._time() - self._heard if self._reading else _unheard(sock)
                if silent >= _SILENCE:
                    self._ws.transport.abort()
                if not self._reading and _hung_up(sock):
                    self._is_gone()
                if self._time() - pinged >= _PING_EVERY and sending.done():
                    sending = asyncio.create_task(self._ping())
                    pinged = self._time()
                await asyncio.wait({closed}, timeout=_LOOK_EVERY)
        finally:
            self._is_gone()
            closed.cancel()
            sending.cancel()
            await asyncio.gather(closed, sending, return_exceptions=True)

    async def _ping(self) -> None:
        with contextlib.suppress(self._ended):
            await self._ws.ping()

    def _is_gone(self) -> None:
        if not self.gone.done():
            self.gone.set_result(None)


def _hung_up(sock: socket.socket) -> bool:
    """Report whether the other end has closed a connection, although there may be more to read."""
    if sock.fileno() < 0:
        return True
    poll = select.poll()
    poll.register(sock, getattr(select, "POLLRDHUP", 0))
    return bool(poll.poll(0))


def _unheard(sock: socket.socket) -> float:
    """Return for how many seconds the kernel of the other end has not confirmed what was sent to it; 0: it has.

    It confirms also what its program does not read.
    """
    if sys.platform != "linux" or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return 0
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 60)
    except OSError:
        return 0
    # tcpi_unacked and tcpi_last_ack_recv of struct tcp_info.
    (unconfirmed,), (heard,) = struct.unpack_from("I", info, 24), struct.unpack_from("I", info, 56)
    return heard / 1000 if unconfirmed else 0


def _end_text(error: Exception) -> str:
    cause = error.__cause__
    if cause is not None and str(cause):
        return str(cause)
    received = getattr(error, "rcvd", None)
    sent = getattr(error, "sent", None)
    for frame in (sent, received):
        if frame is not None and frame.code not in (1000, 1001, 1006) and frame.reason:
            return f"{frame.reason} (close code {frame.code})"
    return "the connection was closed"


async def dial(
    url: str,
    *,
    headers: Sequence[tuple[str, str]] = (),
    tls: ssl.SSLContext | None = None,
    server_name: str | None = None,
    timeout: float,
    max_size: int = MAX_MESSAGE,
) -> WebSocket:
    """Open a WebSocket. Only the opening is bounded by timeout. Errors are a ConnectError."""
    from websockets.asyncio.client import ClientConnection, connect
    from websockets.exceptions import InvalidHandshake, InvalidStatus, InvalidURI, WebSocketException

    ends: list[Exception] = []

    class Limited(ClientConnection):
        """A connection that bounds the fragments of a message, and notes each frame and its end."""

        fragments = 0
        over: WebSocket | None = None

        def process_event(self, event: Any) -> None:
            super().process_event(event)
            if self.over is not None:
                self.over.heard()
                frame = cast("Frame", event)
                if frame.opcode < 8:
                    self.fragments = 0 if frame.fin else self.fragments + 1
                    if self.fragments > _MAX_FRAGMENTS:
                        self.over.fault = f"a message has more than {_MAX_FRAGMENTS} fragments"
                        self.transport.abort()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            if exc is not None:
                ends.append(exc)

    class Straight(connect):
        """A dialler that follows no redirects, because another server would get the token."""

        def process_redirect(self, exc: Exception) -> Exception | str:
            return exc

    name = _address.shown_url(url)
    options: dict[str, Any] = {
        "additional_headers": list(headers),
        "compression": None,
        "max_size": max_size,
        "ping_interval": None,
        "open_timeout": timeout,
        "close_timeout": 2,
        "write_limit": 1 << 20,
        "create_connection": Limited,
        "user_agent_header": None,
        "logger": _silent,  # at DEBUG it writes every header, so the token too
        "max_queue": 2,  # messages of up to max_size, behind one that waits for its consumer
    }
    try:
        if url.startswith("unix://"):
            sock = await _unix_socket(url, timeout)
            ws = await Straight("ws://localhost/", sock=sock, proxy=None, **options)
        else:
            if url.startswith("wss://"):
                options["ssl"] = tls if tls is not None else ssl.create_default_context()
                if server_name is not None:
                    options["server_hostname"] = server_name
            ws = await Straight(url, proxy=_address.proxy_of(url), **options)
    except ConnectError:
        raise
    except TimeoutError as error:
        raise ConnectTimeoutError(f"{name}: no connection within {timeout:g} s") from error
    except InvalidStatus as error:
        status = error.response.status_code
        body = (error.response.body or b"").decode(errors="replace")
        for _, value in headers:  # a server may repeat what it got, and the error goes to logs
            body = body.replace(value.removeprefix("Bearer ") or "\0", "[redacted]")
        body = body[:256].strip()
        text = f"{name}: the server answered with status {status}" + (f": {body}" if body else "")
        raise ConnectError(text, final=status in (401, 403), status=status) from error
    except (InvalidURI, ValueError, ImportError) as error:
        raise ConnectError(f"{name}: {error}", final=True) from error
    except ssl.SSLError as error:
        # The certificate of the server is not trusted, or the server does not want that of the client.
        raise ConnectError(f"{name}: {error}", final=True) from error
    except socket.gaierror as error:
        unknown = error.errno == socket.EAI_NONAME
        raise ConnectError(f"{name}: {error.strerror}", final=unknown) from error
    except OSError as error:
        raise ConnectError(f"{name}: {error}") from error
    except (InvalidHandshake, WebSocketException, EOFError) as error:
        # With TLS 1.3 the refusal of a certificate comes in place of the answer.
        cause = next((end for end in ends if isinstance(end, ssl.SSLError)), error.__cause__)
        text = f"{error}: {cause}" if cause is not None else str(error)
        raise ConnectError(f"{name}: {text}", final=isinstance(cause, ssl.SSLError)) from error
    result = WebSocket(ws)
    cast("Limited", ws).over = result
    return result


async def _unix_socket(url: str, timeout: float) -> socket.socket:
    path = _address.socket_path(url)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        async with asyncio.timeout(timeout):
            await asyncio.get_running_loop().sock_connect(sock, path)
        _address.check_server(_peer(sock), os.path.dirname(path))
    except BaseException:
        sock.close()
        raise
    return sock


def _peer(sock: socket.socket) -> int | None:
    """Return the user at the other end; None: this system does not tell."""
    if not hasattr(socket, "SO_PEERCRED"):
        return None
    _, uid, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(uid)


class Command(asyncio.SubprocessProtocol):
    """A connection to a program that was started for this client: one message a line.

    The program has a process group of its own. When it ends, the rest of its group is killed.
    """

    GRACE = 2.0
    _HIGH = 4 << 20  # bytes that wait for the reader
    _LATE = 0.1  # how long output is waited for once the program is gone, or has closed its standard output

    def __init__(self, name: str, on_stderr: Callable[[str], None] | None) -> None:
        self._name = name
        self._on_stderr = on_stderr
        self._lines: deque[bytes] = deque()
        self._waiting = 0  # bytes of the lines
        self._part: list[bytes] = []
        self._part_size = 0
        self._error_part = b""
        self._told: deque[str] = deque(maxlen=5)  # the last lines of the standard error
        self._lost: set[int] = set()  # the ends of its outputs that have come
        self._paused_reading = False
        self._paused_writing = False
        self._end: str | None = None
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changes = Changes()
        self._exited = asyncio.get_running_loop().create_future()
        self._transport: asyncio.SubprocessTransport | None = None
        self._pid = 0
        self._writing = asyncio.Lock()

    @classmethod
    async def start(
        cls,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        on_stderr: Callable[[str], None] | None = None,
    ) -> Command:
        """Start a program, and connect to it."""
        connection = cls(argv[0], on_stderr)
        try:
            await asyncio.get_running_loop().subprocess_exec(
                lambda: connection,
                *argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env=None if env is None else dict(env),
                cwd=cwd,
                process_group=0,
            )
        except (OSError, ValueError) as error:
            raise ConnectError(f"starting {shown(argv[0])}: {error}", final=True) from error
        return connection

    # Calls of the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.SubprocessTransport", transport)
        self._pid = self._transport.get_pid()
        # Not every system has it, or allows so much; and a program that ends at once has no pipe any more.
        with contextlib.suppress(OSError, AttributeError, ValueError):
            fcntl.fcntl(self._transport_of(1).get_extra_info("pipe"), fcntl.F_SETPIPE_SZ, _PIPE)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == 2:
            self._stderr(data)
            return
        if self._end is not None:
            return
        first, *rest = data.split(b"\n")
        self._part.append(first)
        self._part_size += len(first)
        if self._part_size > MAX_MESSAGE + 2:
            self._finish(f"a message has more than {MAX_MESSAGE} bytes")
            self._signal(signal.SIGKILL)
            return
        if rest:
            self._line(b"".join(self._part))
            for line in rest[:-1]:
                self._line(line)
            self._part, self._part_size = [rest[-1]], len(rest[-1])
        self._changes.notify()
        if not self._paused_reading and (self._waiting > self._HIGH or len(self._lines) > 4096):
            self._paused_reading = True
            self._pipe(1).pause_reading()

    def _line(self, line: bytes) -> None:
        line = line.strip()
        if line:
            self._lines.append(line)
            self._waiting += len(line)

    def _stderr(self, data: bytes) -> None:
        lines = (self._error_part + data).split(b"\n")
        self._error_part = lines.pop()[:8192]
        for line in lines:
            text = line[:8192].decode(errors="replace").rstrip("\r")
            self._told.append(printable(text)[:512])
            if self._on_stderr is not None:
                self._on_stderr(text)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1:
            if any(self._part):
                self._line(b"".join(self._part))
            self._lost.add(fd)
        elif fd == 2:
            self._lost.add(fd)
        else:
            self.resume_writing()
        if 1 in self._lost:
            # The standard error often says why, and perhaps comes later. A process that goes on can hold it open.
            why = "the program has closed its output"
            if 2 in self._lost:
                self._finish(why)
            else:
                asyncio.get_running_loop().call_later(self._LATE, self._finish, why)

    def process_exited(self) -> None:
        if not self._exited.done():
            self._exited.set_result(None)
        # The group is gone with its last process; until then its number belongs to it.
        self._signal(signal.SIGKILL)
        asyncio.get_running_loop().call_later(self._LATE, self._gone)

    def _gone(self) -> None:
        # Only a process that has left the group can still hold the output open.
        self._finish("the program has ended")
        if self._transport is not None:
            self._transport.close()

    def pause_writing(self) -> None:
        self._paused_writing = True

    def resume_writing(self) -> None:
        self._paused_writing = False
        self._changes.notify()

    # What a client calls.

    @property
    def closed(self) -> bool:
        return self._end is not None

    async def read(self) -> bytes:
        while not self._lines:
            if self._end is not None:
                raise EndError(self._end)
            await self._changes.wait()
        line = self._lines.popleft()
        self._waiting -= len(line)
        if self._paused_reading and self._waiting <= self._HIGH // 2 and len(self._lines) <= 1024:
            self._paused_reading = False
            if self._end is None:
                self._pipe(1).resume_reading()
        return line

    async def write(self, message: str) -> None:
        if self._end is not None:
            raise EndError(self._end)
        pipe = cast("asyncio.WriteTransport", self._transport_of(0))
        if pipe.is_closing():
            # Its end often follows, and says why.
            await asyncio.wait({self.gone}, timeout=2 * self._LATE)
            self._finish("the program has closed its input")
            raise EndError(self._end)
        pipe.write(message.encode() + b"\n")
        while self._paused_writing and self._end is None:
            await self._changes.wait()

    def abort(self) -> None:
        self._finish("the connection was closed here")
        self._signal(signal.SIGKILL)
        self._release()

    async def close(self) -> None:
        self._finish("the connection was closed here")
        self._release()
        for number in (signal.SIGTERM, signal.SIGKILL, None):
            try:
                async with asyncio.timeout(self.GRACE):
                    await asyncio.shield(self._exited)
                break
            except TimeoutError:
                if number is not None:
                    self._signal(number)
        if self._transport is not None:
            self._transport.close()
        await asyncio.sleep(0)

    def _release(self) -> None:
        """Close the input of the program, and read its output to the end."""
        self._transport_of(0).close()
        if self._paused_reading:
            self._paused_reading = False
            self._pipe(1).resume_reading()

    def _transport_of(self, fd: int) -> asyncio.BaseTransport:
        assert self._transport is not None
        pipe = self._transport.get_pipe_transport(fd)
        assert pipe is not None
        return pipe

    def _pipe(self, fd: int) -> asyncio.ReadTransport:
        return cast("asyncio.ReadTransport", self._transport_of(fd))

    def _text(self, reason: str) -> str:
        told = "; ".join(line for line in self._told if line)
        return f"{self._name}: {reason}" + (f": {told}" if told else "")

    def _finish(self, reason: str) -> None:
        if self._end is None:
            self._end = self._text(reason)
            self.gone.set_result(None)
            self._changes.notify()

    def _signal(self, number: signal.Signals) -> None:
        if self._pid:
            try:
                os.killpg(self._pid, number)
            except (ProcessLookupError, PermissionError):
                pass
