"""Copies trees of files to the agent and back, by the tool ``copy`` that is part of it (docs/protocol/rpc.md 8.3).

The files here are read and written in a thread, so that the event loop goes on.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import functools
import json
import os
from collections.abc import Callable, Coroutine, Sequence
from typing import IO, TYPE_CHECKING, Any, TypeVar

from ._errors import AgentError, CopyError, NotFoundError, OutputLimitError, RpcError, StdinError, printable, shown
from ._paths import RemotePath, native
from ._process import Process
from ._sandbox import EnvPolicy
from ._tar import CutError, OmittedError, Receiver, Sender, StoppedError, names_of
from ._threads import in_thread

if TYPE_CHECKING:
    from ._agent import Agent

_WINDOW = 4 << 20  # bytes that the tool sends beyond those that have come here
_PATIENCE = 5.0  # how long the tool may take to clean up and to end, after the copy has failed here
_PIECE = 1 << 20  # bytes of an archive that are read at once
_MAX_LINES = 200
_MAX_LINE = 8 << 10  # bytes: a path and a reason

T = TypeVar("T")

LocalPath = str | os.PathLike[str]


async def upload(agent: Agent, source: LocalPath | Sequence[LocalPath], target: RemotePath, owners: bool) -> None:
    """Copy files and directories to the agent."""
    sources = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    if not sources:
        raise ValueError("source is empty: name at least one file or directory")
    sender = Sender([os.fspath(each) for each in sources])
    request: dict[str, Any] = {"receive": _at(target, "target"), "many": len(sources) > 1}
    if owners:
        request["owners"] = True
    async with _Tool(agent, request) as tool:
        await tool.start()
        bridge = _Bridge(sender)

        def write(data: bytes) -> None:
            bridge.call(tool.process.stdin.write(data))

        try:
            await _in_thread(lambda: sender.send(write), bridge.stop)
            await tool.process.stdin.close()
        except OmittedError:
            await tool.process.stdin.close()
        except (StdinError, OSError, AgentError) as error:
            # The tool has ended, and says why; or the cause is here.
            await tool.give_up(error, told=isinstance(error, (StdinError, RpcError)))
        await tool.finish(sender.omitted)


async def download(agent: Agent, source: RemotePath | Sequence[RemotePath], target: LocalPath, follow: bool) -> None:
    """Copy files and directories from the agent."""
    sources = [source] if isinstance(source, (str, os.PathLike)) else list(source)
    if not sources:
        raise ValueError("source is empty: name at least one file or directory")
    paths = [_at(each, "source") for each in sources]
    receiver = Receiver(os.fspath(target), many=len(paths) > 1, names=names_of(paths))
    request: dict[str, Any] = {"send": paths}
    if follow:
        request["follow"] = True
    async with _Tool(agent, request) as tool:
        await tool.start()
        bridge = _Bridge(receiver)
        try:
            await _in_thread(lambda: receiver.receive(lambda: bridge.call(tool.more())), bridge.stop)
        except OmittedError:
            pass
        except (AgentError, OSError, CutError) as error:
            await tool.give_up(error, told=isinstance(error, CutError))
        finally:
            await tool.acknowledged()
        await tool.finish(receiver.omitted)


async def pack(agent: Agent, path: str, into: IO[bytes], most: int | None) -> None:
    """Write what is in a directory as a tar archive that any program can read."""
    async with _Tool(agent, {"send": [path.rstrip("/") + "/."], "plain": True}) as tool:
        await tool.start()
        received = 0
        try:
            while data := await tool.more():
                received += len(data)
                if most is not None and received > most:
                    raise OutputLimitError(f"the archive of {shown(path)} has more than {most} bytes", most)
                await in_thread(functools.partial(into.write, data))
        finally:
            await tool.acknowledged()
        await tool.finish([])


async def unpack(agent: Agent, archive: IO[bytes], path: str) -> None:
    """Read a tar archive of any program into a directory."""
    async with _Tool(agent, {"receive": path, "many": True, "plain": True}) as tool:
        await tool.start()
        try:
            while data := await in_thread(lambda: archive.read(_PIECE)):
                await tool.process.stdin.write(data)
            await tool.process.stdin.close()
        except (StdinError, RpcError) as error:
            await tool.give_up(error, told=True)
        await tool.finish([])


class _Bridge:
    """Lets a thread wait for coroutines of the event loop, until it is told to stop."""

    def __init__(self, files: Sender | Receiver) -> None:
        self._loop = asyncio.get_running_loop()
        self._files = files
        self._stopped = False
        self._waiting: concurrent.futures.Future[Any] | None = None

    def call(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for a coroutine, in the thread."""
        if self._stopped:
            work.close()
            raise StoppedError
        waiting = asyncio.run_coroutine_threadsafe(work, self._loop)
        self._waiting = waiting
        if self._stopped:
            waiting.cancel()
        try:
            return waiting.result()
        except concurrent.futures.CancelledError:
            raise StoppedError from None

    def stop(self) -> None:
        """Let the thread end soon."""
        self._stopped = True
        self._files.stop()
        if self._waiting is not None:
            self._waiting.cancel()


async def _in_thread(work: Callable[[], T], stop: Callable[[], None]) -> T:
    """Run blocking work in a thread. If the caller is cancelled, the work is told to stop, and is waited for."""
    task = asyncio.ensure_future(in_thread(work))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        stop()
        while not task.done():
            try:
                await asyncio.shield(task)
            except (Exception, asyncio.CancelledError):
                pass
        if not task.cancelled():
            task.exception()  # so that nobody complains that it was not taken
        raise


class _Tool:
    """The tool at the agent."""

    def __init__(self, agent: Agent, request: dict[str, Any]) -> None:
        self._agent = agent
        self._request = request
        self._lines: list[str] = []
        self._listening: asyncio.Task[None] | None = None
        self._received = self._acked = 0
        self._acking: asyncio.Task[None] | None = None
        self.process: Process

    async def start(self) -> None:
        """Start it."""
        text = json.dumps(self._request, ensure_ascii=False)
        # All paths are absolute, and the agent's directory may be gone.
        self.process = await self._agent.spawn(
            ["copy", text], cwd="/", builtin=True, stdin=True, env_policy=EnvPolicy("none")
        )
        if "receive" in self._request:
            self.process.stdout.close()  # the tool writes nothing there
        self._listening = asyncio.ensure_future(self._listen())

    async def _listen(self) -> None:
        try:
            async for line in self.process.stderr:
                if len(self._lines) < _MAX_LINES:
                    self._lines.append(printable(line[:_MAX_LINE].decode(errors="replace").rstrip("\n")))
        except AgentError:
            pass  # the copy notices it, too

    async def more(self) -> bytes:
        """Return the next output, and tell the tool how much has come; b"" at the end."""
        data = await self.process.stdout.read(_WINDOW)
        self._received += len(data)
        if self._received - self._acked >= _WINDOW // 4 and (self._acking is None or self._acking.done()):
            self._acked = self._received
            # Not waited for, because the answer comes behind output that nobody takes meanwhile.
            self._acking = asyncio.ensure_future(self._acknowledge(self._received))
        return data

    async def _acknowledge(self, received: int) -> None:
        try:
            await self.process.stdin.write(received.to_bytes(8, "big"))
        except (AgentError, OSError):
            pass  # the tool or the connection has ended, and the next read says so

    async def acknowledged(self) -> None:
        """Acknowledge nothing any more, because no more output comes, and perhaps no answer either."""
        if self._acking is not None:
            self._acking.cancel()
            await asyncio.gather(self._acking, return_exceptions=True)

    async def finish(self, omitted: list[str]) -> None:
        """Wait for the end of the tool, and raise what was not copied."""
        code = await self.process.wait()
        assert self._listening is not None
        await self._listening
        if code != 0 or omitted:
            self._raise(code, omitted)

    def _raise(self, code: int, omitted: list[str]) -> None:
        lines = tuple(self._lines + omitted)
        if len(lines) == 1 and lines[0].endswith(": no such file or directory"):
            path = lines[0].removesuffix(": no such file or directory")
            raise NotFoundError(code, "No such file or directory", errno=2, filename=path)
        raise CopyError("not everything was copied" if lines else f"the copy ended with exit code {code}", lines)

    async def give_up(self, error: BaseException, *, told: bool) -> None:
        """End the tool, which then removes incomplete files, and raise why the copy has failed."""
        process = self.process
        process.stdout.close()
        code = 0
        try:
            async with asyncio.timeout(_PATIENCE):
                await process.stdin.close()
                code = await process.wait()
                assert self._listening is not None
                await self._listening
        except (AgentError, OSError, TimeoutError):
            pass
        if told and code != 0 and self._lines:
            self._raise(code, [])
        if isinstance(error, CutError):
            raise CopyError(str(error), tuple(self._lines)) from error
        raise error

    async def __aenter__(self) -> _Tool:
        return self

    async def __aexit__(self, *_: object) -> None:
        process: Process | None = getattr(self, "process", None)
        if process is not None:
            await process.__aexit__(None, None, None)
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.gather(self._listening, return_exceptions=True)


def _at(path: RemotePath, what: str) -> str:
    """Return an absolute path of the agent. The end keeps its meaning: /. is the content, and / a directory."""
    text = os.fspath(path)
    clean = native(text, what)
    try:
        clean.encode()
    except UnicodeEncodeError:
        raise ValueError(f"{what} {shown(text)} is not Unicode text") from None
    if clean == "/":
        return clean
    if text.endswith(("/.", "/..")):
        return clean + "/."
    return clean + "/" if text.endswith("/") else clean
