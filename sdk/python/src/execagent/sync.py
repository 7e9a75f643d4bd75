"""The client of an agent without asyncio: the same calls, which block.

    from execagent.sync import connect

    with connect("ws://127.0.0.1:7000") as agent:
        print(agent.run(["uname", "-a"]).text)

Each client has a thread with an event loop of its own. So it works in scripts, in notebooks (whose own loop runs), and
from many threads at once. A call that is interrupted, for example by Ctrl-C, is given up.
"""

from __future__ import annotations

import builtins
import os
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypedDict, TypeVar, Unpack

from ._agent import Agent as AsyncAgent
from ._agent import Chunk, ProcessInfo, RunOptions, SessionInfo, SpawnOptions
from ._agent import Observer as AsyncObserver
from ._agent import Sessions as AsyncSessions
from ._bounds import Size
from ._connect import connect as async_connect
from ._core import Session, State
from ._errors import ClosedError, RpcError
from ._files import DirEntry, PatchResult, Search, SearchOptions, Stat, Walk
from ._files import File as AsyncFile
from ._files import Files as AsyncFiles
from ._http import EnvHeader, Headers, HeadersLike, Response
from ._http import Http as AsyncHttp
from ._http import StreamedResponse as AsyncStreamedResponse
from ._info import Info
from ._loop import Loop, close_at_exit
from ._order import Event, Exited
from ._paths import RemotePath
from ._process import OutputReader as AsyncOutputReader
from ._process import Overflow, Result, Signal, Started
from ._process import Process as AsyncProcess
from ._questions import (
    ApprovalQuestion,
    ApprovalReply,
    CommandDecision,
    NetworkDecision,
    NetworkQuestion,
    NetworkReply,
)
from ._sandbox import Plan, Sandbox
from ._socket import Forward as AsyncForward
from ._socket import Socket as AsyncSocket
from ._stdin import Data
from ._stdin import Stdin as AsyncStdin
from ._watch import ChangeSet, PortChanges, Ports
from ._watch import PortWatch as AsyncPortWatch
from ._watch import Watch as AsyncWatch

T = TypeVar("T")

__all__ = [
    "Agent",
    "ConnectOptions",
    "File",
    "Files",
    "Forward",
    "Http",
    "Observer",
    "OutputReader",
    "PortWatch",
    "Process",
    "Sessions",
    "Socket",
    "Stdin",
    "StreamedResponse",
    "Watch",
    "connect",
]


class _Iterator(Generic[T]):
    """Yields what an asynchronous iterator yields."""

    def __init__(self, loop: Loop, source: AsyncIterator[T]) -> None:
        self._loop = loop
        self._source = source

    def __iter__(self) -> Iterator[T]:
        return self

    def __next__(self) -> T:
        try:
            return self._loop.call(_next(self._source))
        except StopAsyncIteration:
            raise StopIteration from None


async def _next(source: AsyncIterator[T]) -> T:
    return await anext(source)


class Stdin:
    """The standard input of a process, see :class:`execagent.Stdin`."""

    def __init__(self, loop: Loop, stdin: AsyncStdin) -> None:
        self._loop = loop
        self._stdin = stdin

    def write(self, data: Data) -> None:
        """Send data, and wait until the server has queued all of it."""
        self._loop.call(self._stdin.write(data))

    def close(self) -> None:
        """End the input, after all writes before."""
        self._loop.call(self._stdin.close())


class OutputReader:
    """A stream of the output of a process, see :class:`execagent.OutputReader`."""

    def __init__(self, loop: Loop, reader: AsyncOutputReader) -> None:
        self._loop = loop
        self._reader = reader

    def read(self, n: int = -1) -> bytes:
        """Return up to n bytes, as soon as there are any; b"" at the end. Without n, return all until the end."""
        return self._loop.call(self._reader.read(n))

    def read_until(self, mark: bytes, limit: int = 1 << 20) -> bytes:
        """Return all bytes up to and with a mark, or to the end."""
        return self._loop.call(self._reader.read_until(mark, limit))

    def readline(self) -> bytes:
        """Return a line with its end; b"" at the end."""
        return self._loop.call(self._reader.readline())

    def __iter__(self) -> Iterator[bytes]:
        """Yield the lines."""
        while line := self.readline():
            yield line

    @property
    def omitted(self) -> int:
        """How many bytes were left out so far, because of ``max_output``."""
        return self._reader.omitted

    def close(self) -> None:
        """Drop the output of this stream, now and later."""
        self._loop.soon(self._reader.close)


class Process:
    """A process at the server, see :class:`execagent.Process`."""

    def __init__(self, loop: Loop, process: AsyncProcess) -> None:
        self._loop = loop
        self._process = process
        self.stdin = Stdin(loop, process.stdin)

    @property
    def id(self) -> str:
        """The id of the process in its session."""
        return self._process.id

    @property
    def started(self) -> Started:
        """The server's answer to the start."""
        return self._process.started

    @property
    def exit_code(self) -> int | None:
        """The exit code, 128+n after signal n; None: the process has not exited, as far as is known here."""
        return self._process.exit_code

    @property
    def exit(self) -> Exited | None:
        """What is known of the exit."""
        return self._process.exit

    @property
    def timed_out(self) -> bool:
        """Whether the time of ``kill_after`` was up before the process had exited."""
        return self._process.timed_out

    @property
    def out_of_memory(self) -> bool:
        """Whether the kernel has ended one of its processes because of ``memory``."""
        return self._process.out_of_memory

    @property
    def skipped(self) -> int:
        """How many events the server no longer had when this handle was attached."""
        return self._process.skipped

    @property
    def last_seq(self) -> int:
        """The number of the last event that has come."""
        return self._process.last_seq

    def _reader(self, name: Literal["stdout", "stderr"]) -> OutputReader:
        async def reader() -> AsyncOutputReader:
            return self._process.stdout if name == "stdout" else self._process.stderr

        return OutputReader(self._loop, self._loop.call(reader()))

    @property
    def stdout(self) -> OutputReader:
        """The standard output as a stream; of a terminal, all output."""
        return self._reader("stdout")

    @property
    def stderr(self) -> OutputReader:
        """The standard error as a stream."""
        return self._reader("stderr")

    def __iter__(self) -> Iterator[Event]:
        """Yield the events in their order; the last one is ``Closed``."""
        return _Iterator(self._loop, aiter(self._process))

    def wait(self, *, timeout: float | None = None) -> int:
        """Wait until the process has ended and all its output has come, and return the exit code.

        This takes no output. A timeout ends only the waiting.
        """
        return self._loop.call(self._process.wait(timeout=timeout))

    def communicate(
        self, *, max_output: Size | None = None, overflow: Overflow | None = None, timeout: float | None = None
    ) -> Result:
        """Take all output, and return it with the exit code. A timeout ends only the waiting."""
        return self._loop.call(self._process.communicate(max_output=max_output, overflow=overflow, timeout=timeout))

    def discard(self) -> None:
        """Drop all output that was not taken, now and later, so that nobody has to take it."""
        self._loop.soon(self._process.discard)

    def signal(self, name: Signal) -> None:
        """Send a signal to the process and its group, once."""
        self._loop.call(self._process.signal(name))

    def kill(self) -> None:
        """Kill the process and its group."""
        self._loop.call(self._process.kill())

    def resize(self, rows: int, cols: int) -> None:
        """Set the size of the terminal."""
        self._loop.call(self._process.resize(rows, cols))

    def close(self) -> None:
        """Give up the handle. The process goes on."""
        self._loop.soon(self._process.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._loop.call(self._process.__aexit__(kind, error, trace))
        except ClosedError:
            pass  # the client was closed first


class File:
    """An open file of the agent, see :class:`execagent.File`."""

    def __init__(self, loop: Loop, file: AsyncFile) -> None:
        self._loop = loop
        self._file = file
        self.path = file.path

    def read_at(self, offset: int, length: int) -> bytes:
        """Return the bytes at an offset. They are fewer than length only at the end of the file."""
        return self._loop.call(self._file.read_at(offset, length))

    def write_at(self, data: Data, offset: int) -> None:
        """Write bytes at an offset."""
        self._loop.call(self._file.write_at(data, offset))

    def __iter__(self) -> Iterator[bytes]:
        """Yield the content in blocks of up to 1 MiB."""
        return _Iterator(self._loop, aiter(self._file))

    def close(self) -> None:
        """Close the file."""
        self._loop.call(self._file.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Watch:
    """Tells what changes at a path, see :class:`execagent.Watch`."""

    def __init__(self, loop: Loop, watch: AsyncWatch) -> None:
        self._loop = loop
        self._watch = watch

    @property
    def path(self) -> str:
        """The watched path."""
        return self._watch.path

    def next(self) -> ChangeSet:
        """Wait for changes, and take all that have come."""
        return self._loop.call(self._watch.next())

    def __iter__(self) -> Iterator[ChangeSet]:
        return _Iterator(self._loop, aiter(self._watch))

    def close(self) -> None:
        """End the watch."""
        self._loop.call(self._watch.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class PortWatch:
    """Tells which TCP ports open and close, see :class:`execagent.PortWatch`."""

    def __init__(self, loop: Loop, watch: AsyncPortWatch) -> None:
        self._loop = loop
        self._watch = watch

    def next(self) -> PortChanges:
        """Wait for changes, and take all that have come."""
        return self._loop.call(self._watch.next())

    def __iter__(self) -> Iterator[PortChanges]:
        return _Iterator(self._loop, aiter(self._watch))

    def close(self) -> None:
        """End the watch."""
        self._loop.call(self._watch.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Files:
    """The file system of the agent, see :class:`execagent.Files`."""

    def __init__(self, loop: Loop, files: AsyncFiles) -> None:
        self._loop = loop
        self._files = files

    def confined(self, sandbox: Plan) -> Files:
        """Return the files as far as a plan of ``Agent.plan`` allows."""
        return Files(self._loop, self._files.confined(sandbox))

    def read(self, path: RemotePath, *, max_bytes: int | None = None) -> bytes:
        """Return the content of a file."""
        return self._loop.call(self._files.read(path, max_bytes=max_bytes))

    def read_text(self, path: RemotePath, *, encoding: str = "utf-8", max_bytes: int | None = None) -> str:
        """Return the content of a file as text."""
        return self._loop.call(self._files.read_text(path, encoding=encoding, max_bytes=max_bytes))

    def write(
        self,
        path: RemotePath,
        data: Data,
        *,
        mode: int | None = None,
        parents: bool = False,
        exclusive: bool = False,
        atomic: bool = False,
    ) -> None:
        """Create or replace a file, see :meth:`execagent.Files.write`."""
        writing = self._files.write(path, data, mode=mode, parents=parents, exclusive=exclusive, atomic=atomic)
        self._loop.call(writing)

    def write_text(
        self,
        path: RemotePath,
        text: str,
        *,
        encoding: str = "utf-8",
        mode: int | None = None,
        parents: bool = False,
        exclusive: bool = False,
        atomic: bool = False,
    ) -> None:
        """Create or replace a file with a text."""
        self.write(path, text.encode(encoding), mode=mode, parents=parents, exclusive=exclusive, atomic=atomic)

    def stat(self, path: RemotePath, *, follow: bool = True) -> Stat:
        """Describe a path; without ``follow``, a link itself."""
        return self._loop.call(self._files.stat(path, follow=follow))

    def stat_many(self, paths: Sequence[RemotePath], *, follow: bool = True) -> builtins.list[Stat | RpcError]:
        """Describe many paths with few requests: what :meth:`stat` returns or raises for each, in their order."""
        return self._loop.call(self._files.stat_many(paths, follow=follow))

    def exists(self, path: RemotePath) -> bool:
        """Report whether a path exists."""
        return self._loop.call(self._files.exists(path))

    def list(self, path: RemotePath, *, follow: bool = True) -> builtins.list[DirEntry]:
        """List a directory, sorted by name; without ``follow``, all names with links, described themselves."""
        return self._loop.call(self._files.list(path, follow=follow))

    def search(self, path: RemotePath, pattern: str | None = None, **options: Unpack[SearchOptions]) -> Search:
        """Find names, or with a pattern lines of files, see :meth:`execagent.Files.search`."""
        return self._loop.call(self._files.search(path, pattern, **options))

    def walk(
        self,
        path: RemotePath,
        *,
        max_depth: int = 64,
        max_entries: int = 50_000,
        max_directories: int = 10_000,
        follow_symlinks: bool = False,
        skip_hidden: bool = False,
    ) -> Walk:
        """List a tree, breadth first, within bounds."""
        return self._loop.call(
            self._files.walk(
                path,
                max_depth=max_depth,
                max_entries=max_entries,
                max_directories=max_directories,
                follow_symlinks=follow_symlinks,
                skip_hidden=skip_hidden,
            )
        )

    def realpath(self, path: RemotePath, *, missing_ok: bool = False) -> str:
        """Resolve all links of a path that exists; with ``missing_ok``, names at its end may be missing."""
        return self._loop.call(self._files.realpath(path, missing_ok=missing_ok))

    def mkdir(self, path: RemotePath, *, parents: bool = True) -> None:
        """Make a directory."""
        self._loop.call(self._files.mkdir(path, parents=parents))

    def remove(self, path: RemotePath, *, recursive: bool = False, missing_ok: bool = False) -> None:
        """Delete a file, a link, or a directory."""
        self._loop.call(self._files.remove(path, recursive=recursive, missing_ok=missing_ok))

    def rename(self, source: RemotePath, target: RemotePath, *, replace: bool = True) -> None:
        """Move a path within one mount."""
        self._loop.call(self._files.rename(source, target, replace=replace))

    def copy(self, source: RemotePath, target: RemotePath) -> None:
        """Copy a file, a link or a tree, at the agent."""
        self._loop.call(self._files.copy(source, target))

    def open(self, path: RemotePath, mode: Literal["read", "write"] = "read") -> File:
        """Open a file, for blocks at any place."""
        return File(self._loop, self._loop.call(self._files.open(path, mode)))

    def watch(self, path: RemotePath, *, recursive: bool = False) -> Watch:
        """Watch a path, which need not exist."""
        return Watch(self._loop, self._loop.call(self._files.watch(path, recursive=recursive)))

    def apply_patch(self, patch: str, *, cwd: RemotePath, dry_run: bool = False) -> PatchResult:
        """Change files as a patch of the tool apply_patch says: all of them, or none."""
        return self._loop.call(self._files.apply_patch(patch, cwd=cwd, dry_run=dry_run))


class StreamedResponse:
    """An answer whose content comes while it is read, see :class:`execagent.StreamedResponse`."""

    def __init__(self, loop: Loop, response: AsyncStreamedResponse) -> None:
        self._loop = loop
        self._response = response

    @property
    def status_code(self) -> int:
        """The status."""
        return self._response.status_code

    @property
    def headers(self) -> Headers:
        """The headers."""
        return self._response.headers

    def iter_bytes(self) -> Iterator[bytes]:
        """Yield the content in pieces."""
        return _Iterator(self._loop, self._response.aiter_bytes())

    def read(self, max_bytes: int | None = None) -> bytes:
        """Return the rest of the content."""
        return self._loop.call(self._response.aread(max_bytes))

    def close(self) -> None:
        """Drop the rest of the content."""
        self._loop.call(self._response.aclose())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Http:
    """Makes the agent send HTTP requests, see :class:`execagent.Http`."""

    def __init__(self, loop: Loop, http: AsyncHttp) -> None:
        self._loop = loop
        self._http = http

    def request(
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
        """Send a request, and return the answer with its content."""
        return self._loop.call(
            self._http.request(
                method,
                url,
                headers=headers,
                content=content,
                timeout=timeout,
                follow_redirects=follow_redirects,
                max_bytes=max_bytes,
            )
        )

    def get(self, url: str, *, timeout: float | None = None) -> Response:
        """Send a GET."""
        return self.request("GET", url, timeout=timeout)

    def stream(
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
        return StreamedResponse(
            self._loop,
            self._loop.call(
                self._http.stream(
                    method, url, headers=headers, content=content, timeout=timeout, follow_redirects=follow_redirects
                )
            ),
        )


class Socket:
    """A connection of the agent to an address on its side, see :class:`execagent.Socket`."""

    def __init__(self, loop: Loop, socket: AsyncSocket) -> None:
        self._loop = loop
        self._socket = socket

    def read(self, n: int = -1) -> bytes:
        """Return up to n bytes, as soon as there are any; b"" at the end. Without n, return all until the end."""
        return self._loop.call(self._socket.read(n))

    def write(self, data: Data) -> None:
        """Queue bytes for the other end."""
        self._loop.call(self._socket.write(data))

    def write_eof(self) -> None:
        """Tell the other end that nothing follows the written bytes."""
        self._loop.call(self._socket.write_eof())

    def close(self) -> None:
        """End both directions."""
        self._loop.call(self._socket.close())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Forward:
    """A port here that leads to an address on the agent's side, see :class:`execagent.Forward`."""

    def __init__(self, loop: Loop, forward: AsyncForward) -> None:
        self._loop = loop
        self._forward = forward

    @property
    def address(self) -> tuple[str, int] | str:
        """Where it listens."""
        return self._forward.address

    @property
    def port(self) -> int:
        """The port here."""
        return self._forward.port

    def open(self) -> None:
        """Begin to listen."""
        self._loop.call(self._forward.open())

    def close(self) -> None:
        """Stop listening, and end all connections."""
        self._loop.call(self._forward.close())

    def __enter__(self) -> Self:
        self._loop.call(self._forward.__aenter__())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Observer:
    """Looks into a session with a name, see :class:`execagent.Observer`."""

    def __init__(self, loop: Loop, observer: AsyncObserver) -> None:
        self._loop = loop
        self._observer = observer

    def processes(self) -> list[ProcessInfo]:
        """List the processes of the session, oldest first."""
        return self._loop.call(self._observer.processes())

    def follow(self, process_id: str, *, after: int = 0, wait: bool = True) -> Iterator[Chunk]:
        """Yield the output of a process behind an event, to its end, or without ``wait`` what is kept."""
        return _Iterator(self._loop, self._observer.follow(process_id, after=after, wait=wait))

    def wait(self, process_id: str) -> int:
        """Wait for the exit of a process, and return its code."""
        return self._loop.call(self._observer.wait(process_id))

    def signal(self, process_id: str, name: Signal) -> None:
        """Send a signal to a process and its group."""
        self._loop.call(self._observer.signal(process_id, name))

    def kill(self, process_id: str) -> bool:
        """Kill a process and the rest of its group, and report whether it had not exited."""
        return self._loop.call(self._observer.kill(process_id))


class Sessions:
    """The sessions with a name, see :class:`execagent.Sessions`."""

    def __init__(self, loop: Loop, sessions: AsyncSessions) -> None:
        self._loop = loop
        self._sessions = sessions

    def list(self) -> builtins.list[SessionInfo]:
        """List the sessions, oldest first."""
        return self._loop.call(self._sessions.list())

    def end(self, session_id: str) -> None:
        """End a session."""
        self._loop.call(self._sessions.end(session_id))

    def observe(self, session_id: str) -> Observer:
        """Look into a session, also while another client is attached to it."""
        return Observer(self._loop, self._sessions.observe(session_id))


class Agent:
    """A client of an agent, see :class:`execagent.Agent`. Its methods may be called from several threads at once."""

    def __init__(self, loop: Loop, agent: AsyncAgent) -> None:
        self._loop = loop
        self._agent = agent
        self.fs = Files(loop, agent.fs)
        self.http = Http(loop, agent.http)
        self.sessions = Sessions(loop, agent.sessions)
        close_at_exit(self)

    @property
    def session_id(self) -> str:
        """The id of the session, for a later ``connect(session_id=…)``."""
        return self._agent.session_id

    @property
    def session(self) -> Session | None:
        """What the agent says of a session that has a name, or whose time was given."""
        return self._agent.session

    @property
    def state(self) -> State:
        """What the client is doing."""
        return self._agent.state

    @property
    def generation(self) -> int:
        """How many connections the session has had with this client."""
        return self._agent.generation

    @property
    def error(self) -> Exception | None:
        """Why the client has failed for good; None: it has not."""
        return self._agent.error

    def info(self) -> Info:
        """Describe the machine of the agent."""
        return self._loop.call(self._agent.info())

    def status(self) -> str:
        """Ask whether the agent is ready, for up to 10 s. This never waits for a lost connection."""
        return self._loop.call(self._agent.status())

    def request(self, method: str, params: Mapping[str, object]) -> Any:
        """Make any request of the protocol, and return the result as it came."""
        return self._loop.call(self._agent.request(method, params))

    def run(self, argv: Sequence[str], **options: Unpack[RunOptions]) -> Result:
        """Run a command to its end, and return its output, see :meth:`execagent.Agent.run`."""
        return self._loop.call(self._agent.run(argv, **options))

    def shell(self, script: str, **options: Unpack[RunOptions]) -> Result:
        """Run a script by one ``sh -c``."""
        return self._loop.call(self._agent.shell(script, **options))

    def spawn(self, argv: Sequence[str], **options: Unpack[SpawnOptions]) -> Process:
        """Start a command, and return a handle of it, see :meth:`execagent.Agent.spawn`."""
        return Process(self._loop, self._loop.call(self._agent.spawn(argv, **options)))

    def attach(self, id: str, *, after: int | None = None) -> Process:
        """Return a handle of a process of the session that this client has no handle of."""
        return Process(self._loop, self._loop.call(self._agent.attach(id, after=after)))

    def processes(self) -> list[ProcessInfo]:
        """List the processes of the session, oldest first."""
        return self._loop.call(self._agent.processes())

    def plan(self, sandbox: Sandbox, *, cwd: RemotePath | None = None) -> Plan:
        """Return what a sandbox means on this agent, for many commands."""
        return self._loop.call(self._agent.plan(sandbox, cwd=cwd))

    def ports(self, *, sandbox: Plan | None = None) -> Ports:
        """List the TCP ports that listen on the agent's side."""
        return self._loop.call(self._agent.ports(sandbox=sandbox))

    def watch_ports(self, *, sandbox: Plan | None = None) -> PortWatch:
        """Watch the ports that :meth:`ports` lists."""
        return PortWatch(self._loop, self._loop.call(self._agent.watch_ports(sandbox=sandbox)))

    def dial(self, to: str | int, *, sandbox: Plan | None = None) -> Socket:
        """Connect to a port of the agent's machine, tcp://HOST:PORT or unix:///PATH, as the agent sees it."""
        return Socket(self._loop, self._loop.call(self._agent.dial(to, sandbox=sandbox)))

    def forward(
        self,
        to: str | int,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        path: str | None = None,
        sandbox: Plan | None = None,
    ) -> Forward:
        """Let a port here, or a UNIX socket at ``path``, lead to an address of the agent's side: ``with``."""
        return Forward(self._loop, self._agent.forward(to, host=host, port=port, path=path, sandbox=sandbox))

    def upload(
        self,
        source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        target: RemotePath,
        *,
        owners: bool = False,
    ) -> None:
        """Copy files and directories to the agent, as ``agent cp`` does."""
        self._loop.call(self._agent.upload(source, target, owners=owners))

    def download(
        self, source: RemotePath | Sequence[RemotePath], target: str | os.PathLike[str], *, follow: bool = False
    ) -> None:
        """Copy files and directories from the agent, as ``agent cp`` does."""
        self._loop.call(self._agent.download(source, target, follow=follow))

    def close(self) -> None:
        """End the client. Closing again is no error. It happens by itself when Python ends."""
        self._loop.close(self._agent.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class ConnectOptions(TypedDict, total=False):
    """The options of :func:`connect`, which are those of :func:`execagent.connect`."""

    token: str | None
    token_file: str | os.PathLike[str] | None
    headers: Mapping[str, str] | None
    tls: ssl.SSLContext | None
    tls_ca: str | os.PathLike[str] | None
    tls_cert: str | os.PathLike[str] | None
    tls_key: str | os.PathLike[str] | None
    tls_server_name: str | None
    context: str | None
    config: str | os.PathLike[str] | None
    command: Sequence[str] | None
    command_env: Mapping[str, str] | None
    command_cwd: str | os.PathLike[str] | None
    on_stderr: Callable[[str], None] | None
    registry: str | None
    environment_id: str | None
    session: str | None
    session_id: str | None
    existing: bool
    take: bool
    retain: float | None
    on_approval: Callable[[ApprovalQuestion], ApprovalReply] | None
    on_command_decision: Callable[[CommandDecision], None] | None
    on_network: Callable[[NetworkQuestion], NetworkReply] | None
    on_network_decision: Callable[[NetworkDecision], None] | None
    client_name: str
    connect_timeout: float
    handshake_timeout: float
    recovery_timeout: float


def connect(url: str | None = None, **options: Unpack[ConnectOptions]) -> Agent:
    """Connect to an agent, see :func:`execagent.connect`.

    The callbacks of questions run in threads of their own, and may use and close the client. Those of decisions run in
    its event loop, and must not. A process that was forked needs a client of its own.
    """
    opening = async_connect(url, **options)
    loop = Loop()

    async def open() -> AsyncAgent:
        return await opening

    try:
        return Agent(loop, loop.call(open()))
    except BaseException:
        loop.close()
        raise
