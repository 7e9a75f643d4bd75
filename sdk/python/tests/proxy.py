"""A proxy that cuts connections: now, or after so many bytes, or behind so many messages."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable
from typing import Self
from urllib.parse import urlsplit


class Proxy:
    """Passes connections on to an agent, at a TCP port of its own or at a UNIX socket."""

    def __init__(self, target: str, path: str | None = None) -> None:
        self._target = target
        self._path = path
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self.refusing = False
        self.budget: Callable[[], int | None] = lambda: None
        """How many bytes the next connection may carry from the agent before it is cut; None: any number."""
        self.whole_frames = False
        """Cut at the end of a message, and not within it."""
        self.at: str | None = None
        """Cut at the next message: of the client (request), or of the agent (answer; half: half of it arrives)."""
        self.until: str | None = None
        """Nobody can connect until this file exists; None: there is none to wait for."""
        self.cuts = 0
        self.url = ""

    async def __aenter__(self) -> Self:
        if self._path is not None:
            self._server = await asyncio.start_unix_server(self._accept, self._path)
            self.url = f"unix://{self._path}"
        else:
            self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
            self.url = f"ws://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        self.cut()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.sleep(0.01)  # until what was aborted is closed
        if self._path is not None and os.path.exists(self._path):
            os.unlink(self._path)

    def budgets(self, least: int, most: int) -> None:
        """Give each further connection a budget at random."""
        self.budget = lambda: random.randrange(least, most)

    def cut(self) -> None:
        """Cut all connections."""
        for writer in list(self._open):
            self.cuts += 1
            writer.transport.abort()

    async def cut_for(self, seconds: float) -> None:
        """Cut all connections, and let nobody connect for a while."""
        self.refusing = True
        self.cut()
        await asyncio.sleep(seconds)
        self.refusing = False

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._tasks.add(task)

        def end(_: object) -> None:
            self._tasks.discard(task)
            writer.transport.abort()  # a task that is cancelled before it begins cannot do it

        task.add_done_callback(end)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self.refusing or (self.until is not None and not os.path.exists(self.until)):
            return
        try:
            if self._target.startswith("unix://"):
                up_reader, up_writer = await asyncio.open_unix_connection(self._target[len("unix://") :])
            else:
                parts = urlsplit(self._target)
                up_reader, up_writer = await asyncio.open_connection(parts.hostname, parts.port)
        except OSError:
            return
        ends = (writer, up_writer)
        self._open.update(ends)
        budget = self.budget()
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pass(reader, up_writer, ends, None, ("request",)))
                both.create_task(self._pass(up_reader, writer, ends, budget, ("answer", "half")))
        except* (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            for end in ends:
                self._open.discard(end)
                end.transport.abort()

    async def _pass(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        ends: tuple[asyncio.StreamWriter, asyncio.StreamWriter],
        budget: int | None,
        cut_at: tuple[str, ...],
    ) -> None:
        head = True
        while True:
            if budget is None or not self.whole_frames:
                data = await reader.read(random.choice((64, 1024, 65536)) if budget is not None else 65536)
            elif head:
                data, head = await reader.readuntil(b"\r\n\r\n"), False  # the answer to the upgrade
            else:
                data = await _frame(reader)
            if not data:
                break
            if self.at in cut_at and (begin := _control(data)) < len(data):
                writer.write(data[:begin])
                data = data[begin:]
                half, self.at = self.at == "half", None
                self.cuts += 1
                writer.write(data[: len(data) // 2] if half else b"")
                break
            if budget is not None:
                if not self.whole_frames:
                    data = data[:budget]
                budget -= len(data)
            writer.write(data)
            await writer.drain()
            if budget is not None and budget <= 0:
                self.cuts += 1
                await asyncio.sleep(0)
                break
        for end in ends:
            end.transport.abort()


def _control(data: bytes) -> int:
    """Return how many bytes the control frames have with which data begins: a ping or a pong is no message."""
    at = 0
    while at + 2 <= len(data) and data[at] & 0xF8 == 0x88:
        at += 2 + (data[at + 1] & 0x7F) + (4 if data[at + 1] & 0x80 else 0)
    return min(at, len(data))


async def _frame(reader: asyncio.StreamReader) -> bytes:
    """Read one frame of a WebSocket server."""
    head = await reader.readexactly(2)
    length = head[1] & 0x7F
    more = b""
    if length == 126:
        more = await reader.readexactly(2)
        length = int.from_bytes(more, "big")
    elif length == 127:
        more = await reader.readexactly(8)
        length = int.from_bytes(more, "big")
    return head + more + await reader.readexactly(length)
