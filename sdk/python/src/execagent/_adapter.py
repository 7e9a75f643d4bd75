"""What the adapters to harnesses share: a workspace of an agent, that any thread and any event loop may use.

An adapter has a :class:`Shared`. Its first call connects, opens the session, and makes a :class:`Workspace` of it; all
calls run in one event loop, in a thread of its own, because harnesses change theirs between calls:

    data = await self._shared.call(lambda w: w.read(path))     # from any event loop
    data = self._shared.wait(lambda w: w.read(path))           # from any thread, which it blocks
"""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import errno
import os
import posixpath
import re
import secrets
import signal
import threading
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import IO, Any, NamedTuple, Protocol, Self, TypedDict, TypeVar, cast

from . import _address
from ._agent import Agent, ExecApproval, SpawnOptions, feed
from ._bounds import MAX_AGENT_OUTPUT, Size
from ._connect import connect
from ._errors import (
    INVALID_REQUEST,
    AgentError,
    ClosedError,
    CommandRefusedError,
    DisconnectedError,
    NotFoundError,
    OutputLimitError,
    RpcError,
    SessionAttachedError,
    SystemCallError,
    shown,
)
from ._files import DirEntry, Files, Stat
from ._info import Info
from ._loop import Loop, close_at_exit
from ._order import Output
from ._paths import RemotePath, native
from ._process import Kept, Overflow, Process, Result
from ._sandbox import EnvPolicy, Plan, Sandbox
from ._stdin import Data

T = TypeVar("T")

MAX_FILE = 256 << 20
"""How many bytes of a file are read into memory."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")  # the name of a session beside it is longer
_BESIDE = r"(\.[0-9a-f]{16})?"  # what the name of a session beside it has more
_MAX_REF = 4096
_COMMAND = ("env", "env_policy", "memory", "cpus", "pids", "file_size", "user", "exec_approval")
_SPAWN_KINDS = ("spawnNotFound", "spawnPermissionDenied", "spawnFailed")
_MORE_TRIES = 4  # how often something is done again over lost connections
_AFTER_KILL = 10.0  # for how many seconds the last output of a command is waited for that was killed


class Connect(Protocol):
    """A way to an agent: :func:`execagent.connect`, or what ``functools.partial`` makes of it."""

    def __call__(self, *, session: str, existing: bool, take: bool, retain: float | None) -> Awaitable[Agent]:
        """Return a client in the session."""
        ...


class Options(TypedDict, total=False):
    """What every adapter takes.

    The agent is the one at a URL, with ``token`` or ``token_file``; or the one of a ``context`` of the command line; or
    ``connect`` reaches it, such as ``functools.partial(execagent.connect, registry=…, environment_id=…)``. Without all
    of these it is the agent of the environment, as for :func:`execagent.connect`.

    - ``session``: the name of the session that holds the commands; a new one by default. With ``existing`` it is never
      made, and ``retain`` is for how many seconds it is kept while nothing holds it. While another client has it,
      commands run in a session beside it, which ends with it; with ``take`` it is taken from that client
    - ``cwd``: the working directory, that of the agent by default. It is made if it is missing
    - ``sandbox``: what commands and files may do. It becomes a plan once, when the adapter connects
    - ``env``, ``env_policy``, ``memory``, ``cpus``, ``pids``, ``file_size``, ``user``, ``exec_approval``: for each
      command, as for :meth:`execagent.Agent.spawn`
    """

    token: str | None
    token_file: str | os.PathLike[str] | None
    context: str | None
    connect: Connect | None
    session: str | None
    existing: bool
    take: bool
    retain: float | None
    cwd: RemotePath | None
    sandbox: Sandbox | None
    env: Mapping[str, str] | None
    env_policy: EnvPolicy | None
    memory: Size | None
    cpus: float | None
    pids: int | None
    file_size: Size | None
    user: str | None
    exec_approval: ExecApproval | None


class Ref(NamedTuple):
    """A session, and where it is: what an adapter keeps of itself. No token and no key is in it.

    ``where`` is a URL, a context, or empty: then a function or the environment leads to the agent.
    """

    session: str
    where: str

    def __str__(self) -> str:
        return f"{self.session}@{self.where}" if self.where else self.session

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a reference that ``str`` has made."""
        session, _, where = text.partition("@")
        if len(text) > _MAX_REF or _NAME.fullmatch(session) is None:
            raise ValueError(f"ref is {shown(text)}, and must be SESSION or SESSION@WHERE")
        return cls(session, where)


class SessionGoneError(AgentError):
    """The session of a reference no longer exists. It is never made again under its name."""


class Workspace:
    """A directory of an agent, and a session for commands. Only coroutines of :meth:`Shared.call` use it."""

    def __init__(
        self, agent: Agent, info: Info, cwd: str, plan: Plan | None, command: SpawnOptions, *, made: bool = False
    ) -> None:
        self.agent = agent
        self.info = info
        self.cwd = cwd
        """The working directory, without links."""
        self.made = made
        """Whether the working directory was missing, and was made."""
        self.stack = contextlib.AsyncExitStack()
        """What ends with the connection, such as a port that is forwarded."""
        self.plan = plan
        self.fs: Files = agent.fs if plan is None else agent.fs.confined(plan)
        """The files, as far as the sandbox allows."""
        self._command = command

    async def close(self) -> None:
        """End the connection."""
        try:
            await self.stack.aclose()
        finally:
            await self.agent.close()

    def at(self, path: RemotePath) -> str:
        """Return the clean absolute form of a path, which may be relative to the working directory."""
        text = os.fspath(path)
        if type(text) is not str:  # os.fspath may give bytes at run time
            raise TypeError(f"path is {type(text).__name__}, and must be a str or a path")
        return native(posixpath.join(self.cwd, text))

    async def spawn(self, argv: Sequence[str], **options: Any) -> Process:
        """Start a command under the options of the adapter. Those of this call are :class:`execagent.SpawnOptions`."""
        given = {name: value for name, value in options.items() if value is not None}
        merged = cast("SpawnOptions", {**self._command, **given})
        merged["env"] = {**(self._command.get("env") or {}), **given.get("env", {})}
        merged["cwd"] = self.at(given.get("cwd", self.cwd))
        return await self.agent.spawn(argv, **merged)

    async def run(
        self,
        argv: Sequence[str],
        *,
        cwd: RemotePath | None = None,
        env: Mapping[str, str] | None = None,
        input: Data | None = None,
        timeout: float | None = None,
        max_output: Size = MAX_AGENT_OUTPUT,
        overflow: Overflow = "truncate",
        seen: Callable[[Output], None] | None = None,
        **more: Any,
    ) -> Result:
        """Run a command until it exits, and return its output. What it leaves in the background goes on.

        Further options are those of :meth:`spawn`.

        When ``timeout`` is up, the command is killed with its process group, and the result has ``timed_out``. This
        client has the timer, because the agent's own would later end what the command has left in the background. A
        call that is cancelled kills the command, too.

        Of output beyond ``max_output`` the middle is left out, or with ``overflow="error"`` the command is killed and
        the error is an OutputLimitError. ``seen`` is told all output when it comes.
        """
        kept = Kept(max_output, overflow, seen)
        options: dict[str, Any] = {**more, "cwd": cwd, "env": env, "stdin": bool(input)}
        if not kept.strict and 1 <= kept.limit <= MAX_AGENT_OUTPUT and "processMaxOutput" in self.info.capabilities:
            options["max_output"] = kept.limit
        process: Process | None = None
        feeding: asyncio.Task[None] | None = None
        try:
            timer = asyncio.timeout(timeout)
            try:
                async with timer:
                    process = await self.spawn(argv, **options)
                    if input:
                        feeding = asyncio.create_task(feed(process, input))
                    return await process.collect(kept, "exited")
            except builtins.TimeoutError as error:
                if isinstance(error, AgentError) or not timer.expired():
                    raise
            if process is None:
                return Result(128 + signal.SIGKILL, b"", b"", timed_out=True)  # its start was given up
            await process.kill()
            with contextlib.suppress(builtins.TimeoutError):
                async with asyncio.timeout(_AFTER_KILL):
                    return (await process.collect(kept, "exited"))._replace(timed_out=True)
            process.close()  # the kernel does not let it go
            return Result(128 + signal.SIGKILL, kept.stdout, kept.stderr, *kept.omitted, timed_out=True)
        except BaseException:
            if process is not None and process.exit_code is None and not process.ended:
                process.abandon(ClosedError("the command was given up"))
            raise
        finally:
            if feeding is not None:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
            if process is not None and process.exit_code is not None:
                process.close()

    async def shell(self, script: str, **options: Any) -> Result:
        """Run a script by one ``sh -c``. The options are those of :meth:`run`."""
        return await self.run(["/bin/sh", "-c", script], **options)

    async def again(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Do what may be done twice, and do it again if a lost connection leaves open whether it was done."""
        for _ in range(_MORE_TRIES):
            try:
                return await work()
            except DisconnectedError:
                if self.agent.error is not None:
                    raise
        return await work()

    async def read(self, path: RemotePath, *, max_bytes: int = MAX_FILE) -> bytes:
        """Return the content of a file. A directory is the builtin IsADirectoryError, and a longer one an OSError."""
        at = self.at(path)
        try:
            return await self.again(lambda: self.fs.read(at, max_bytes=max_bytes))
        except OutputLimitError as error:
            raise OSError(errno.EFBIG, f"{os.strerror(errno.EFBIG)}: more than {max_bytes} bytes", at) from error
        except SystemCallError as error:
            # The agent says only that this is no regular file.
            if error.errno != errno.EINVAL or not (await self.fs.stat(at)).is_dir:
                raise
            raise builtins.IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), at) from error

    async def entries(self, path: RemotePath) -> list[tuple[str, DirEntry | Stat | None]]:
        """List a directory: each name with what is there, or what a link leads to; None: the link leads nowhere."""
        found = await self.fs.list(self.at(path), follow=False)
        links = [each.path for each in found if each.type == "symlink"]
        leads = dict(zip(links, await self.fs.stat_many(links) if links else (), strict=True))
        targets = [(each.name, leads.get(each.path, each)) for each in found]
        return [(name, None if isinstance(target, RpcError) else target) for name, target in targets]

    async def write(self, path: RemotePath, data: Data) -> None:
        """Create or replace a file, and make missing directories of its path."""
        at = self.at(path)
        try:
            await self.again(lambda: self.fs.write(at, data))
        except NotFoundError:
            await self.mkdir(posixpath.dirname(at))
            await self.again(lambda: self.fs.write(at, data))

    async def mkdir(self, path: RemotePath) -> None:
        """Make a directory with its parents. One that exists is no error."""
        at = self.at(path)
        await self.again(lambda: self.fs.mkdir(at))

    async def remove(self, path: RemotePath, *, recursive: bool = True) -> None:
        """Remove a file, a link, or a directory with what is in it. What is missing is a NotFoundError.

        The working directory, and what is above it, is refused: a ValueError.
        """
        at, asked = self.at(path), False
        real = posixpath.join(await self.fs.realpath(posixpath.dirname(at)), posixpath.basename(at))
        if f"{self.cwd}/".startswith(real.rstrip("/") + "/"):
            raise ValueError(f"path is {shown(path)}, the working directory or one above it, which cannot be removed")

        async def remove() -> None:
            nonlocal asked
            again, asked = asked, True
            await self.fs.remove(at, recursive=recursive, missing_ok=again)

        await self.again(remove)

    async def pack(self, path: RemotePath, into: IO[bytes], *, most: int | None = None) -> None:
        """Write what is in a directory as a tar archive, by a tool of the agent. The sandbox does not confine it.

        An archive above ``most`` bytes is an OutputLimitError.
        """
        from ._copy import pack

        await pack(self.agent, self.at(path), into, most)

    async def unpack(self, archive: IO[bytes], path: RemotePath) -> None:
        """Read a tar archive into a directory, which exists, by a tool of the agent. The sandbox does not confine it.

        Nothing is written outside of the directory.
        """
        from ._copy import unpack

        await unpack(self.agent, archive, self.at(path))


class _Held:
    """What a thread of its own has to end when nobody holds the adapter any more."""

    def __init__(self) -> None:
        self.workspace: Workspace | None = None

    async def end(self) -> None:
        """End the connection."""
        if self.workspace is not None:
            await self.workspace.close()


class Shared:
    """The connection of an adapter: made by its first call, and again if it has failed for good.

    It ends with :meth:`close`, with Python, or when nobody holds this any more, because some harnesses close nothing.
    """

    def __init__(self, url: str | None, kind: str, options: Options) -> None:
        """Take what :class:`Options` says. ``kind`` is the beginning of the name of a new session."""
        self._options = options
        self._kind = kind
        ways = [name for name in ("context", "connect") if options.get(name)] + (["url"] if url else [])
        if len(ways) > 1:
            raise ValueError(f"{' and '.join(ways)} cannot be used together")
        if options.get("connect") and (options.get("token") or options.get("token_file")):
            raise ValueError("a token belongs to the function connect: functools.partial(execagent.connect, token=…)")
        session = options.get("session")
        if session is None and options.get("existing"):
            raise ValueError("existing needs session, the name of the session that exists")
        if session is not None and _NAME.fullmatch(session) is None:
            raise ValueError(
                f"session is {shown(session)}, and must be 1 to 100 letters, digits, '.', '_' and '-', "
                "of which the first is a letter or a digit"
            )
        if url is not None:
            url = _address.full_url(url)
            _address.check_url(url)
        self._url = url
        context = options.get("context")
        self.ref = Ref(
            session or f"{kind}-{secrets.token_hex(8)}",
            _address.shown_url(url) if url else f"context:{context}" if context else "",
        )
        """The session, and where it is."""
        self._existing = options.get("existing", False)
        self._gone = False
        self._held = _Held()
        self._opening: asyncio.Lock | None = None
        self._lock = threading.Lock()
        self._loop: Loop | None = None
        self._closed = False

    def __reduce__(self) -> tuple[Any, ...]:
        """Let the options be serialized, for an adapter with a connection of its own; never a secret."""
        for word in ("token", "connect", "env", "env_policy"):
            if self._options.get(word):
                raise TypeError(
                    f"an adapter with {word} is not serialized, because that may hold a secret: "
                    "use token_file, context, or the variables of the environment"
                )
        if self._url is not None and self._url != _address.shown_url(self._url):
            raise TypeError("an adapter is not serialized whose url may hold a secret: use context")
        return (Shared, (self._url, self._kind, self._options))

    @property
    def closed(self) -> bool:
        """Whether the adapter was closed."""
        return self._closed

    @property
    def opened(self) -> bool:
        """Whether the session existed when the adapter last connected."""
        return self._existing

    async def call(self, work: Callable[[Workspace], Coroutine[Any, Any, T]]) -> T:
        """Do work in the workspace, for a coroutine of any event loop. If that is cancelled, so is the work."""
        loop = self._running()
        return await (self._do(work) if loop.here else loop.acall(self._do(work)))

    async def connect(self) -> str:
        """Connect, unless that was done, and return the working directory."""

        async def cwd(w: Workspace) -> str:
            return w.cwd

        return await self.call(cwd)

    def wait(self, work: Callable[[Workspace], Coroutine[Any, Any, T]]) -> T:
        """Do work in the workspace, and block until it is done."""
        return self.block(self._do(work))

    def block(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine that uses :meth:`call`, and block until it is done."""
        try:
            loop = self._running()
        except BaseException:
            work.close()
            raise
        return loop.call(work)

    def _running(self) -> Loop:
        if self._loop is None:  # after a fork nobody may ever give the lock back, and the loop says so
            with self._lock:
                if self._loop is None and not self._closed:
                    self._loop = Loop()
                    close_at_exit(self)
                    weakref.finalize(self, self._loop.close_soon, self._held.end).atexit = False
                    if self._closed:  # by somebody who has seen no loop
                        self._loop.close_soon(self._held.end)
        if self._loop is None or self._closed:
            raise self._is_gone() if self._gone else ClosedError("the adapter is closed")
        return self._loop

    async def _do(self, work: Callable[[Workspace], Coroutine[Any, Any, T]]) -> T:
        workspace = await self._open()
        try:
            return await work(workspace)
        except DisconnectedError as error:
            if self._gone:
                raise self._is_gone() from error
            if workspace.agent.error is not None:
                try:
                    await self._open()
                except SessionGoneError as gone:
                    raise gone from error
                except AgentError:
                    pass  # nobody knows whether the session is gone
            raise

    async def _open(self) -> Workspace:
        if self._opening is None:
            self._opening = asyncio.Lock()
        async with self._opening:
            known = self._held.workspace
            if known is not None and known.agent.error is None:
                return known
            if self._gone:
                raise self._is_gone()
            if known is not None:
                self._held.workspace = None
                await known.close()
            agent = await self._connect()
            try:
                workspace = self._held.workspace = await self._make(agent)
            except BaseException:
                await self._unmake(agent)
                raise
            # From now on the session is the adapter's own: one that is lost is an error, and never made again.
            self._existing = True
            return workspace

    @staticmethod
    async def _unmake(agent: Agent) -> None:
        """End a connection that is of no use, and a session that was made for it."""
        try:
            if agent.session is not None and agent.session.created:
                await agent.sessions.end(agent.session_id)
        except AgentError:
            pass  # the agent ends it when its time is up
        finally:
            await agent.close()

    async def _connect(self) -> Agent:
        try:
            return await self._connect_to(self.ref.session, self._existing)
        except SessionAttachedError:
            return await self._connect_to(f"{self.ref.session}.{secrets.token_hex(8)}", False)
        except RpcError as error:
            if error.code == INVALID_REQUEST and error.message.startswith("unknown session name"):
                self._gone = True
                raise self._is_gone() from error
            raise

    async def _connect_to(self, session: str, existing: bool) -> Agent:
        options = self._options
        way, take, retain = options.get("connect"), options.get("take", False), options.get("retain")
        if way is not None:
            return await way(session=session, existing=existing, take=take, retain=retain)
        return await connect(
            self._url,
            token=options.get("token"),
            token_file=options.get("token_file"),
            context=options.get("context"),
            session=session,
            existing=existing,
            take=take,
            retain=retain,
        )

    def _is_gone(self) -> SessionGoneError:
        return SessionGoneError(f"the session {self.ref} is gone, with all that ran in it")

    async def _make(self, agent: Agent) -> Workspace:
        options = self._options
        info = await agent.info()
        wanted = options.get("cwd") or info.cwd or info.home
        if wanted is None:
            raise ValueError("cwd is needed, because the agent does not say where it is")
        cwd = native(wanted, "cwd")
        sandbox = options.get("sandbox")
        made = False
        try:
            await agent.fs.stat(cwd)
        except NotFoundError:
            await agent.fs.mkdir(cwd)
            made = True
        try:
            cwd = await agent.fs.realpath(cwd)
            plan = None if sandbox is None else await agent.plan(sandbox, cwd=cwd)
        except BaseException:
            if made:
                with contextlib.suppress(AgentError):
                    await agent.fs.remove(cwd)
            raise
        command = {name: value for name, value in options.items() if name in _COMMAND and value is not None}
        if plan is not None:
            command["sandbox"] = plan
        return Workspace(agent, info, cwd, plan, cast("SpawnOptions", command), made=made)

    async def end(self) -> None:
        """End the session and those beside it, which kills all that runs in them."""

        async def end(w: Workspace) -> None:
            await end_session(w.agent, self.ref.session)
            self._gone = True

        await self.call(end)

    async def finish(self) -> None:
        """Close the adapter, and end a session that was made for it. One that the options name lives on."""
        workspace = self._held.workspace
        named = self._options.get("session") is not None
        try:
            if not self._closed and not named and workspace is not None and workspace.agent.error is None:
                await self.end()
        except AgentError:
            pass  # the agent ends the session when its time is up
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """End the connection. The session lives on until it expires. Closing again is no error."""
        await asyncio.to_thread(self.close)

    def close(self) -> None:
        """Do what :meth:`aclose` does, and block until it is done."""
        self._closed = True
        if self._loop is not None:
            self._loop.close(self._held.end)


async def end_session(agent: Agent, name: str) -> None:
    """End a session and those beside it. One that somebody else has ended is no error."""
    ours, names = agent.session_id, re.compile(re.escape(name) + _BESIDE)
    known = [each for each in await agent.sessions.list() if names.fullmatch(each.name)]
    for each in sorted(known, key=lambda each: each.id == ours):  # the own connection ends with its session
        try:
            await agent.sessions.end(each.id)
        except RpcError as error:
            if error.code != INVALID_REQUEST:
                raise


def left_out(omitted: int) -> str:
    """Return the line that stands for bytes that were left out of an output."""
    return f"\n[... {omitted} bytes left out ...]\n"


def text_of(data: bytes, omitted: int, most: int) -> str:
    """Return output of which up to ``most`` bytes were kept as a text, with a line for what was left out."""
    if not omitted:
        return data.decode(errors="replace")
    head = most - most // 2
    return data[:head].decode(errors="replace") + left_out(omitted) + data[head:].decode(errors="replace")


def not_started(program: str, error: RpcError) -> Result:
    """Return the result that a shell has for a program that cannot be executed: 127 if it is missing, otherwise 126.

    So it is for one that a rule about commands refuses, because the model has to learn of it. An error that has another
    reason is raised.
    """
    refused = isinstance(error, CommandRefusedError)
    if not refused and (error.what not in (None, "program") or error.kind not in _SPAWN_KINDS):
        raise error
    code = 127 if error.errno == errno.ENOENT and not refused else 126
    return Result(code, b"", f"{program}: {error.message}\n".encode(errors="replace"))


__all__ = [
    "MAX_FILE",
    "Connect",
    "Options",
    "Ref",
    "SessionGoneError",
    "Shared",
    "Workspace",
    "end_session",
    "left_out",
    "not_started",
    "text_of",
]
