"""The standard input of a process.

Writes are sent ahead of their answers, so that the round-trip time does not matter, and each has an id, so that the
server makes it once although it is sent again. The process gets all data in order: a write that was refused because
the server was busy comes again before all later ones.
"""

from __future__ import annotations

import asyncio
import binascii
import os
from collections import deque
from typing import TYPE_CHECKING

from ._errors import BusyError, DisconnectedError, StdinError
from ._link import PAUSE, Call, Link, is_busy
from ._record import Record
from ._wire import PROCESS_CLOSE_STDIN, PROCESS_WRITE, ProcessParams, WriteParams

if TYPE_CHECKING:
    from ._process import Process

Data = bytes | bytearray | memoryview | str

_PIECE = 1 << 20  # bytes of a request: as many as a server queues for a process
_AHEAD = 3  # requests that are under way at once
_SMALL = 45 << 10  # bytes of a request after the server had no memory for a larger one
_CALM = 16  # after so many requests without a refusal the next ones get twice as large


def bytes_of(data: Data) -> memoryview:
    """Return data of a caller as bytes. A text is sent as UTF-8."""
    try:
        return memoryview(data.encode() if isinstance(data, str) else data).cast("B")
    except TypeError:
        raise TypeError(f"data is {type(data).__name__}, and must be bytes or str") from None


def base64_of(data: memoryview | bytes) -> str:
    """Return bytes in the form of the wire."""
    return binascii.b2a_base64(data, newline=False).decode("ascii")


class Stdin:
    """The standard input of a process. Writes of several tasks do not mix."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._lock = asyncio.Lock()
        self._prefix = os.urandom(8).hex() + "-"
        self._count = 0
        # Ids of writes that were given up. The server may still expect them before all others.
        self._unsure: list[str] = []
        self._size = _PIECE
        self._calm = 0

    async def write(self, data: Data) -> None:
        """Send data, and wait until the server has queued all of it.

        While the server's queue is full, this waits. After an error the process may have got the beginning of the
        data, and nothing behind that.
        """
        view = bytes_of(data)
        async with self._lock:
            feed = _Feed(self, self._process)
            # A server that has refused a write expects it before all others. It gets it without data, because the
            # caller was told that the write had failed.
            for number in self._unsure:
                feed.add(view[:0], number)
            feed.cut(view)
            try:
                await feed.run()
            finally:
                self._unsure = feed.unsure

    async def close(self) -> None:
        """End the input, after all writes before. The input of a terminal cannot be closed: write ``\\x04``."""
        core = self._process.core
        await core.require("closing the standard input of a process", "processCloseStdin")
        async with self._lock:
            params: ProcessParams = {"processId": self._process.id}
            status = Record(PROCESS_CLOSE_STDIN, await core.replay(PROCESS_CLOSE_STDIN, params)).text("status")
            # Closing it again is no error, nor is closing that of a process that has ended.
            if status not in ("accepted", "stdinClosed") and self._process.exit is None:
                raise StdinError(status)

    def next_id(self) -> str:
        """Return an id that no other write to the process has."""
        self._count += 1
        return self._prefix + str(self._count)

    @property
    def piece(self) -> int:
        """How many bytes a request carries now."""
        return self._size

    def refused(self) -> None:
        """Note that the server had no memory for a request."""
        self._size, self._calm = _SMALL, 0

    def taken(self) -> None:
        """Note that the server took a request."""
        self._calm += 1
        if self._calm == _CALM:
            self._size, self._calm = min(2 * self._size, _PIECE), 0


class _Write:
    __slots__ = ("call", "data", "error", "fixed", "id")

    def __init__(self, data: memoryview, number: str) -> None:
        self.data = data
        self.id = number
        self.call: Call | None = None
        self.error: Exception | None = None
        # The server may have taken these bytes over an earlier connection, so other bytes must not have the id.
        self.fixed = False


class _Feed:
    """One call of write."""

    def __init__(self, stdin: Stdin, process: Process) -> None:
        self._stdin = stdin
        self._process = process
        self._ahead: deque[_Write] = deque()
        self._sent = 0  # of ahead, over this link
        self._tried = 0  # of ahead, ever
        self._stuck = False  # the last one could not be sent, and nothing may be sent behind it
        self._shut = False  # the server refused a write, and has taken none since
        self._link: Link | None = None

    @property
    def unsure(self) -> list[str]:
        """The ids that the server may expect."""
        return [write.id for write in list(self._ahead)[: self._tried]]

    def add(self, data: memoryview, number: str | None = None) -> None:
        self._ahead.append(_Write(data, number or self._stdin.next_id()))

    def cut(self, data: memoryview, ids: deque[str] | None = None) -> None:
        """Add data in pieces, with these ids first."""
        size = self._stdin.piece
        for at in range(0, max(len(data), 1), size):
            self.add(data[at : at + size], ids.popleft() if ids else None)

    async def run(self) -> None:
        """Send all, until the server has taken it."""
        try:
            while self._ahead:
                await self._fill()
                await self._wait()
        finally:
            self._rewind()

    async def _fill(self) -> None:
        while not self._stuck and self._sent < min(len(self._ahead), _AHEAD):
            if self._sent == 0:
                # All of them go over one link, because on another one a later write could overtake them.
                self._link = await self._process.core.connected()
            assert self._link is not None
            write = self._ahead[self._sent]
            self._tried = max(self._tried, self._sent + 1)
            params: WriteParams = {"processId": self._process.id, "writeId": write.id, "chunk": base64_of(write.data)}
            try:
                write.call, write.error = await self._link.begin(PROCESS_WRITE, params), None
            except (DisconnectedError, BusyError) as error:
                write.call, write.error, self._stuck = None, error, True
            self._sent += 1

    async def _wait(self) -> None:
        """Take the answer to the oldest write."""
        write = self._ahead[0]
        try:
            if write.call is None:
                raise write.error or DisconnectedError("the write was not sent")
            status = Record(PROCESS_WRITE, await write.call.wait()).text("status")
        except DisconnectedError:
            self._rewind()
            if self._process.core.failure is not None:
                raise
            for each in list(self._ahead)[: self._tried]:
                each.fixed = True
            return
        except BusyError:
            self._rewind()
            await self._pause()
            return
        except Exception as error:
            if not is_busy(error):
                raise
            # So are the later writes, until this one comes again. None of them was taken.
            self._rewind()
            self._shrink()
            await self._pause()
            return
        if status != "accepted":
            raise StdinError(status)
        assert self._link is not None
        self._link.useful = True
        self._ahead.popleft()
        self._sent -= 1
        self._tried -= 1
        self._shut = False
        self._stdin.taken()

    def _rewind(self) -> None:
        """Give up on the answers to writes under way, because they must be sent again."""
        for write in list(self._ahead)[: self._sent]:
            if write.call is not None:
                write.call.forget()
                write.call = None
        self._sent, self._stuck = 0, False

    def _shrink(self) -> None:
        """Make smaller writes of those ahead. Their ids stay, in order, because the server takes nothing else now."""
        self._stdin.refused()
        ahead = list(self._ahead)
        kept = 0
        while kept < len(ahead) and ahead[kept].fixed:
            kept += 1
        self._ahead = deque(ahead[:kept])
        rest = ahead[kept:]
        ids = deque(write.id for write in rest)
        for write in rest:
            self.cut(write.data, ids)

    async def _pause(self) -> None:
        """Wait for a while, if nothing was taken since the last refusal."""
        if self._shut:
            await asyncio.sleep(PAUSE)
        self._shut = True
