"""Sockets that the agent opens for this client, and ports here that lead to them.

A socket is a stream of bytes in both directions that goes on over several connections: each side counts the bytes that
it has received, and tells the other one after a connection was lost.
"""

from __future__ import annotations

import asyncio
import builtins
import logging
import os
import socket as _socket
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from . import _wire as wire
from ._errors import (
    AgentError,
    BusyError,
    ClosedError,
    DisconnectedError,
    ProtocolError,
    RpcError,
    again,
    refusal,
    shown,
)
from ._link import PAUSE, Call, Link, is_busy
from ._process import EndOfEvents
from ._queue import Changes
from ._record import Record
from ._stdin import Data, base64_of, bytes_of
from ._within import CLEANUP, unanswered, within

if TYPE_CHECKING:
    from types import TracebackType

    from ._core import Core

_log = logging.getLogger("execagent")

_WINDOW = 1 << 20  # bytes that the agent sends and that are not acknowledged
_UNSENT = 1 << 20  # written bytes that the agent has not confirmed
_CHUNK = 256 << 10  # bytes of one write
_AHEAD = 3  # writes that are under way at once
_SMALL = 45 << 10  # bytes of a write after the agent had no memory for a larger one
_ACK_DELAY = 0.01  # how long a few read bytes may stay unacknowledged


class Socket:
    """A connection of the agent to an address on its side. It goes on over lost connections: nothing is lost, and
    nothing comes twice."""

    def __init__(self, core: Core, address: str, sandbox: Mapping[str, Any] | None) -> None:
        self._core = core
        self._id = os.urandom(16).hex()
        self._sandbox = sandbox
        self._changes = Changes()
        self._error: BaseException | None = None
        self._turn = 0  # the time of one connection
        self._halted = True  # no bytes are carried until the next turn
        self._resuming = asyncio.Lock()
        self.address = address
        # What comes.
        self._taken = b""  # by a call that was cancelled
        self._pieces: deque[bytes] = deque()
        self._received = 0
        self._consumed = 0  # bytes up to here were read
        self._acked = 0  # the agent knows that bytes up to here were read
        self._hasty = False  # acknowledge now
        self._unsure = False  # the agent may not have got the last acknowledgement
        self._end: BaseException | None = None  # what follows the received bytes
        self._slow: asyncio.TimerHandle | None = None
        # What goes.
        self._writing = asyncio.Lock()
        self._out = bytearray()  # begins at confirmed
        self._confirmed = 0
        self._next = 0  # bytes up to here are on their way
        self._eof = False
        self._eof_sent = False
        self._eof_taken = False
        self._refused: BaseException | None = None
        self._flying = 0
        self._size = _CHUNK

    # For users.

    async def read(self, n: int = -1) -> bytes:
        """Return up to n bytes, as soon as there are any; b"" at the end. Without n, return all until the end.

        What a call has taken that is cancelled, or that fails, comes with the next call.
        """
        if n < 0:
            parts: list[bytes] = []
            try:
                while data := await self.read(_WINDOW):
                    parts.append(data)
            except BaseException:
                self._taken = b"".join(parts)
                raise
            return b"".join(parts)
        if self._taken:
            data, self._taken = self._taken[:n], self._taken[n:]
            return data
        while not self._pieces:
            if self._error is not None:
                raise again(self._error)
            if isinstance(self._end, EndOfEvents):
                return b""
            if self._end is not None:
                raise again(self._end)
            await self._changes.wait()
        piece = self._pieces[0]
        if len(piece) <= n:
            self._pieces.popleft()
        else:
            self._pieces[0], piece = piece[n:], piece[:n]
        self._consumed += len(piece)
        if self._consumed - self._acked >= _WINDOW // 4:
            self._hurry()
        elif self._slow is None:
            # An agent that is short of memory sends nothing more until it gets the acknowledgement.
            self._slow = self._core.loop.call_later(_ACK_DELAY, self._hurry)
        return piece

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield what comes, in pieces."""
        return self._chunks()

    async def _chunks(self) -> AsyncIterator[bytes]:
        while data := await self.read(_WINDOW):
            yield data

    async def write(self, data: Data) -> None:
        """Queue bytes for the other end. While that does not read, this waits once 1 MiB is on its way."""
        view = bytes_of(data)
        async with self._writing:
            while view:
                self._check_write()
                room = _UNSENT - len(self._out)
                if room <= 0:
                    await self._changes.wait()
                    continue
                self._out += view[:room]
                view = view[room:]
                self._changes.notify()

    async def write_eof(self) -> None:
        """Tell the other end that nothing follows the written bytes."""
        async with self._writing:
            if self._error is not None:
                raise again(self._error)
            self._eof = True
            self._changes.notify()

    def _check_write(self) -> None:
        if self._error is not None:
            raise again(self._error)
        if self._refused is not None:
            raise again(self._refused)
        if self._eof:
            raise ValueError("nothing can be written behind the end")

    async def close(self) -> None:
        """End both directions. Waits up to 10 s until the agent has all written bytes."""
        if self._error is None:
            self._eof = True
            self._changes.notify()
            try:
                async with asyncio.timeout(CLEANUP):
                    while self._error is None and self._refused is None and not (self._eof_taken and not self._out):
                        await self._changes.wait()
            except builtins.TimeoutError:
                pass
        await self.abort()

    async def abort(self) -> None:
        """End both directions, without waiting for the written bytes. The other end may see a reset."""
        if self._finish(ClosedError("the socket is closed")) and self._core.failure is None:
            await self._hang_up()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            await self.close()
        else:
            await self.abort()

    # Opening and going on.

    async def open(self) -> None:
        """Let the agent connect."""
        core = self._core
        await core.require("forwarding sockets", "socketForward")
        params: dict[str, object] = {"socketId": self._id, "address": self.address, "window": _WINDOW}
        if self._sandbox is not None:
            params["sandbox"] = self._sandbox
        core.sockets[self._id] = self  # data may come before the answer
        sent = False
        try:
            while True:
                link = await core.connected()
                received = 0
                try:
                    known = False
                    if sent:
                        # The answer was lost, and perhaps the request too.
                        try:
                            received = await self._ask_resume(link)
                            known = True
                        except RpcError:
                            pass
                    if not known:
                        await link.called(wire.SOCKET_OPEN, params, self.address)
                except DisconnectedError as error:
                    if core.failure is not None:
                        raise
                    sent = sent or error.sent
                    continue
                async with self._resuming:
                    if core.is_current(link):
                        core.carried.add(self)
                        self._carry(link, received)
                        return
                sent = True
        except BaseException as error:
            self._finish(error if isinstance(error, AgentError) else ClosedError("the socket was not opened"))
            if sent or not isinstance(error, AgentError):
                core.background(self._hang_up())
            raise

    async def _ask_resume(self, link: Link) -> int:
        params: wire.SocketReceivedParams = {"socketId": self._id, "received": self._received}
        return Record(wire.SOCKET_RESUME, await link.called(wire.SOCKET_RESUME, params)).integer("received")

    async def resume(self, link: Link) -> None:
        """Go on over a new connection."""
        async with self._resuming:
            self._halt(self._turn)
            while self._error is None and self._core.is_current(link):
                try:
                    self._carry(link, await self._ask_resume(link))
                except BusyError:
                    await asyncio.sleep(PAUSE)
                    continue
                except DisconnectedError:
                    pass  # the next connection resumes it, if there is one
                except AgentError as error:
                    self._finish(error)
                return

    def lost(self, reason: DisconnectedError) -> None:
        """The client has failed."""
        self._finish(reason)

    def _carry(self, link: Link, received: int) -> None:
        """Carry bytes on a link from now on. received is how many bytes the agent has."""
        self._confirm(received, self._confirmed + len(self._out))
        self._turn += 1
        self._halted = False
        self._next, self._eof_sent, self._unsure, self._flying = received, False, True, 0
        self._core.background(self._send(link, self._turn))
        self._core.background(self._acknowledge(link, self._turn))
        self._changes.notify()

    def _halt(self, turn: int) -> None:
        if self._turn == turn:
            self._halted = True
            self._changes.notify()

    def _over(self, turn: int) -> bool:
        return self._error is not None or self._turn != turn or self._halted

    def _finish(self, error: BaseException) -> bool:
        """Fail the socket, once, and let the client forget it."""
        self._core.sockets.pop(self._id, None)
        self._core.carried.discard(self)
        if self._error is not None:
            return False
        self._error = error
        if self._slow is not None:
            self._slow.cancel()
        if not isinstance(error, ClosedError):
            self._pieces.clear()
        self._changes.notify()
        return True

    async def _hang_up(self) -> None:
        params: wire.SocketParams = {"socketId": self._id}
        try:
            async with within(CLEANUP, lambda: unanswered(wire.SOCKET_CLOSE, CLEANUP)):
                await self._core.replay(wire.SOCKET_CLOSE, params)
        except AgentError:
            pass  # the session ends, and its sockets with it

    # What comes.

    def accept(self, r: Record) -> None:
        """Take a notification. It never waits: the agent sends no more than the window."""
        offset, data = r.integer("offset"), r.data("chunk")
        if offset > self._received:
            self._broken(f"bytes from {offset} on have come, after {self._received}")
            return
        data = data[self._received - offset :]
        if data and self._end is not None:
            self._broken("bytes have come behind the end")
            return
        if self._received + len(data) > self._acked + _WINDOW:
            self._broken(f"more than {_WINDOW} bytes have come that were not acknowledged")
            return
        if data:
            self._pieces.append(data)
            self._received += len(data)
        error = r.text_or("error")
        if self._end is None and error:
            self._end = refusal(-32603, error, None, self.address)
        elif self._end is None and r.flag("eof"):
            self._end = EndOfEvents()
        self._changes.notify()

    def _broken(self, text: str) -> None:
        if self._finish(ProtocolError(f"socket {shown(self.address)}: {text}")):
            self._core.background(self._hang_up())

    def _hurry(self) -> None:
        self._slow = None
        self._hasty = True
        self._changes.notify()

    async def _acknowledge(self, link: Link, turn: int) -> None:
        """Tell the agent how many bytes were read."""
        while not self._over(turn):
            if not ((self._hasty and self._consumed > self._acked) or (self._unsure and self._consumed > 0)):
                await self._changes.wait()
                continue
            # The agent may send more as soon as it has this acknowledgement, so acked is set before.
            self._hasty, self._unsure, self._acked = False, False, self._consumed
            params: wire.SocketReceivedParams = {"socketId": self._id, "received": self._acked}
            try:
                await link.called(wire.SOCKET_ACK, params)
            except BusyError:
                self._unsure = True
                await asyncio.sleep(PAUSE)
            except DisconnectedError:
                return
            except AgentError as error:
                if not self._over(turn):
                    self._finish(error)
                return

    # What goes.

    async def _send(self, link: Link, turn: int) -> None:
        """Send the written bytes, several pieces at once and in order."""
        while not self._over(turn) and self._refused is None and not self._eof_sent:
            end = self._confirmed + len(self._out)
            if self._flying >= _AHEAD or (self._next == end and not self._eof):
                await self._changes.wait()
                continue
            at = self._next - self._confirmed
            chunk = bytes(self._out[at : at + self._size])
            offset, self._next = self._next, self._next + len(chunk)
            last = self._eof and self._next == end
            self._eof_sent = last
            params: wire.SocketWriteParams = {"socketId": self._id, "offset": offset, "chunk": base64_of(chunk)}
            if last:
                params["eof"] = True
            try:
                call = await link.begin(wire.SOCKET_WRITE, params)
            except DisconnectedError:
                self._halt(turn)
                return
            except BusyError:
                self._retry(link, turn)
                return
            self._flying += 1
            if not self._core.background(self._settle(link, turn, call, offset + len(chunk), last)):
                call.forget()

    async def _settle(self, link: Link, turn: int, call: Call, end: int, last: bool) -> None:
        """Take the answer to a write. After the first failed write, nothing more is sent in this turn."""
        try:
            received = Record(wire.SOCKET_WRITE, await call.wait()).integer("received")
            if self._over(turn):
                return
            link.useful = True
            self._flying -= 1
            self._size = min(2 * self._size, _CHUNK)
            if received < end:
                raise ProtocolError(f"{wire.SOCKET_WRITE}: {received} bytes were received of {end}")
            self._eof_taken = self._eof_taken or last
            self._confirm(received, self._next)
        except DisconnectedError:
            self._halt(turn)
        except RpcError as error:
            if self._over(turn):
                return
            if error.code in (-32600, -32602):
                # The agent had no memory for one more waiting request, and so not for the later ones.
                if is_busy(error):
                    self._size = _SMALL
                self._retry(link, turn)
            else:
                self._refused = error
                self._changes.notify()
        except AgentError as error:
            if not self._over(turn) and self._finish(error):
                await self._hang_up()

    def _retry(self, link: Link, turn: int) -> None:
        """End a turn, and begin another one after a while on the same link."""
        self._halt(turn)

        async def later() -> None:
            await asyncio.sleep(PAUSE)
            if self._turn == turn:
                await self.resume(link)

        self._core.background(later())

    def _confirm(self, received: int, most: int) -> None:
        if not self._confirmed <= received <= most:
            raise ProtocolError(f"the agent has received {received} bytes of {self._confirmed} to {most}")
        del self._out[: received - self._confirmed]
        self._confirmed = received
        self._changes.notify()


def address_of(to: str | int) -> str:
    """Return the address for a port of the agent's machine, or for an address as it is."""
    if isinstance(to, int):
        if not 0 < to < 65536:
            raise ValueError(f"the port {to} is not 1 to 65535")
        return f"tcp://localhost:{to}"
    if not to.startswith(("tcp://", "unix:///")):
        raise ValueError(f"{shown(to)} is not tcp://HOST:PORT or unix:///PATH")
    return to


class Forward:
    """A port here that leads to an address on the agent's side.

    As a context manager it listens in the block. ``address`` is where it listens.
    """

    def __init__(
        self, core: Core, to: str, host: str, port: int, path: str | None, sandbox: Mapping[str, Any] | None
    ) -> None:
        self._core = core
        self._to = to
        self._host = host
        self._port = port
        self._path = path
        self._sandbox = sandbox
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.address: tuple[str, int] | str = ("", 0)

    @property
    def port(self) -> int:
        """The port here."""
        return self.address[1] if isinstance(self.address, tuple) else 0

    async def open(self) -> None:
        """Begin to listen."""
        await self._core.require("forwarding sockets", "socketForward")
        if self._path is not None:
            self._server = await asyncio.start_unix_server(self._accept, self._path)
            self.address = self._path
            return
        self._server = await asyncio.start_server(self._accept, self._host, self._port)
        name = self._server.sockets[0].getsockname()
        self.address = (name[0], name[1])

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        socket = Socket(self._core, self._to, self._sandbox)
        try:
            await socket.open()
            async with asyncio.TaskGroup() as both:
                both.create_task(self._up(reader, socket))
                both.create_task(self._down(socket, writer))
            await socket.close()
        except* (AgentError, OSError) as errors:
            _log.debug("a forwarded connection to %s has ended: %s", self._to, errors.exceptions)
            # The client here must not take a part for the whole.
            raw: _socket.socket | None = writer.get_extra_info("socket")
            if raw is not None and raw.family != getattr(_socket, "AF_UNIX", None):
                raw.setsockopt(_socket.SOL_SOCKET, _socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        finally:
            await socket.abort()
            writer.close()

    @staticmethod
    async def _up(reader: asyncio.StreamReader, socket: Socket) -> None:
        while data := await reader.read(_CHUNK):
            await socket.write(data)
        await socket.write_eof()

    @staticmethod
    async def _down(socket: Socket, writer: asyncio.StreamWriter) -> None:
        async for data in socket:
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()

    async def close(self) -> None:
        """Stop listening, and end all connections."""
        if self._server is not None:
            self._server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._path is not None and self._server is not None:
            try:
                os.unlink(self._path)
            except FileNotFoundError:
                pass
        self._server = None

    async def __aenter__(self) -> Self:
        if self._server is None:
            await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
