"""One session on a server, over one connection after the other (docs/protocol/client.md 2)."""

from __future__ import annotations

import asyncio
import builtins
import contextlib
import enum
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ._errors import (
    About,
    AgentError,
    BusyError,
    ClosedError,
    ConnectError,
    ConnectTimeoutError,
    DisconnectedError,
    ProtocolError,
    RecoverError,
    RecoveringError,
    RpcError,
    SessionAttachedError,
    TakenError,
    TimeoutError,
    UnsupportedError,
    again,
    retryable,
    shown,
)
from ._info import Info, info_of
from ._link import PAUSE, Link
from ._order import Event
from ._questions import Callbacks, Questions
from ._queue import Changes
from ._record import Record
from ._transport import Connection
from ._wire import FLAG_OF, REPEAT_OF, InitializeParams
from ._within import CLEANUP, unanswered, within

if TYPE_CHECKING:
    from ._process import Process

_FIRST_ATTACHED = 0.002  # the first pause after the server said that the session still has a connection
_SETTLED = 1.0  # how long a connection must live to count as useful although nothing happened on it
_CATCHERS = 32  # processes that are caught up at once
_INFO_TIMEOUT = 30.0

_fail_fast: ContextVar[bool] = ContextVar("execagent_fail_fast", default=False)


@contextlib.contextmanager
def fail_fast() -> Generator[None]:
    """Let calls in this block fail with a RecoveringError while a lost connection is recovered, and not wait."""
    token = _fail_fast.set(True)
    try:
        yield
    finally:
        _fail_fast.reset(token)


class State(enum.Enum):
    """The state of a client. FAILED is final."""

    CONNECTED = "connected"
    RECOVERING = "recovering"
    FAILED = "failed"


class Session(NamedTuple):
    """What the server says of a session that has a name, or whose time was given.

    ``created`` says that this client has made it. It is kept for ``retain`` seconds while nothing holds it.
    """

    name: str
    created: bool
    retain: float


@dataclass(slots=True)
class Config:
    """How a client reaches its server, and what it asks for."""

    dial: Callable[[], Awaitable[Connection]]
    """Opens a connection. It is called again each time the connection is lost."""
    single: bool = False
    """The server can be reached only once, for example because dial starts it."""
    client_name: str = "execagent-python"
    session_id: str | None = None
    session_name: str | None = None
    existing: bool = False
    take: bool = False
    retain: float | None = None
    refusals: bool = True
    connect_timeout: float = 10.0
    handshake_timeout: float = 10.0
    recovery_timeout: float = 45.0
    callbacks: Callbacks = field(default_factory=Callbacks)


class Carried(Protocol):
    """Something that goes on over the next connection: a watch or a socket."""

    async def resume(self, link: Link) -> None:
        """Go on over a new connection."""

    def lost(self, reason: DisconnectedError) -> None:
        """The client has failed."""


class Core:
    """The session. One event loop uses it."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.loop = asyncio.get_running_loop()
        self.state = State.RECOVERING
        self.generation = 0
        self.session_id = ""
        self.session: Session | None = None
        self.failure: DisconnectedError | None = None
        self.processes: dict[str, Process] = {}
        self.carried: set[Carried] = set()
        self.sockets: dict[str, Any] = {}
        self.bodies: weakref.WeakSet[Any] = weakref.WeakSet()
        self.changes = Changes()
        self._link: Link | None = None
        self._info: Info | None = None
        self._deadline = 0.0
        self._last_id = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._closing: asyncio.Task[None] | None = None
        questions = Questions(config.callbacks)
        self.questions: Mapping[str, Any] = questions.handlers
        self.notifications: dict[str, Callable[[Link, Record], None]] = {
            **questions.notifications,
            "session/taken": self._taken,
            "http/request/bodyDelta": self._body,
            "fs/changed": self._changed,
            "port/changed": self._changed,
            "socket/data": self._socket_data,
        }

    # Connecting.

    async def open(self) -> None:
        """Open a connection and a session on it, in one attempt."""
        link = Link(self, await self._dial())
        try:
            await self._initialize(link, self.config.session_id)
            if self.failure is not None:
                raise again(self.failure)
        except BaseException as error:
            ending = ClosedError(f"the client was not opened: {error}")
            self._fail(ending)
            await link.close(ending)
            raise
        self._deadline = self.loop.time() + self.config.recovery_timeout
        self._install(link)
        if link.end is not None:
            self.lost(link)

    async def _dial(self) -> Connection:
        try:
            async with asyncio.timeout(self.config.connect_timeout):
                return await self.config.dial()
        except AgentError:
            raise
        except builtins.TimeoutError as error:
            notes: list[str] = getattr(error.__cause__, "__notes__", [])
            text = "; ".join((f"no connection within {self.config.connect_timeout:g} s", *notes))
            raise ConnectTimeoutError(text) from error

    async def _initialize(self, link: Link, resume: str | None) -> None:
        """Do the handshake on a link, for a session to resume, or for a new one."""
        config, first = self.config, not self.session_id
        params: InitializeParams = {"clientName": config.client_name, "resumeSessionId": resume, "errorData": True}
        if config.callbacks.on_approval is not None:
            params["subcommandApprovals"] = True
        if config.refusals:
            params["refusals"] = True
        if first:
            if config.session_name is not None:
                params["sessionName"] = config.session_name
            if config.existing:
                params["existing"] = True
            if config.take:
                params["take"] = True
            if config.retain is not None:
                params["retainMs"] = max(0, round(config.retain * 1000))
        try:
            async with asyncio.timeout(config.handshake_timeout):
                result = Record("initialize", await link.call("initialize", params))
                await link.notify("initialized", {})
        except builtins.TimeoutError as error:
            if isinstance(error, AgentError):
                raise
            raise ConnectTimeoutError(
                f"the agent did not finish the handshake within {config.handshake_timeout:g} s"
            ) from None
        except DisconnectedError as error:
            if isinstance(error, TakenError):
                raise
            raise ConnectError(f"the connection ended during the handshake: {error}") from error
        session_id = result.text("sessionId")
        if not session_id:
            raise ProtocolError("initialize: the session has no id")
        if resume is not None and session_id != resume:
            raise ProtocolError(f"initialize: the agent opened the session {shown(session_id)} instead of {resume}")
        if first:
            self.session = self._granted(result)
            self.session_id = session_id
            info = result.record_or("environmentInfo")
            self._info = None if info is None else info_of(info)

    def _granted(self, result: Record) -> Session | None:
        """Refuse the answer of a server that ignored what was asked of the session."""
        opened, wanted = result.record_or("session"), self.config.session_name
        if opened is None:
            if wanted is not None or self.config.retain is not None:
                raise UnsupportedError("named sessions", "namedSessions")
            return None
        name = opened.text_or("name")
        if wanted is not None and name != wanted:
            raise ProtocolError(f"initialize: the agent opened the session {shown(name)} instead of {wanted}")
        return Session(name, opened.flag("created"), opened.integer("retainMs") / 1000)

    # States.

    def _set(self, state: State) -> None:
        self.state = state
        self.changes.notify()

    def _install(self, link: Link) -> None:
        link.installed = self.loop.time()
        self._link = link
        self.generation += 1
        self._set(State.CONNECTED)
        for each in list(self.carried):
            self.background(each.resume(link))

    def lost(self, link: Link) -> None:
        """Take note that a link has ended. Only the loss of the installed one changes anything."""
        if self._link is not link or self.state is not State.CONNECTED:
            return
        assert link.end is not None
        if self.config.single:
            self._fail(link.end)
            return
        self._set(State.RECOVERING)
        self.background(self._recover(link))

    def _fail(self, why: DisconnectedError) -> None:
        """End the client for good, once."""
        if self.failure is not None:
            return
        self.failure = why
        self._set(State.FAILED)
        if self._link is not None:
            self._link.stop(why)
        for process in list(self.processes.values()):
            process.fail(why)
        for each in list(self.carried):
            each.lost(why)
        for socket in list(self.sockets.values()):
            socket.lost(why)

    async def connected(self, *, wait: bool | None = None) -> Link:
        """Return the link, and wait for it while the client recovers; by default not in a block of fail_fast."""
        if wait is None:
            wait = not _fail_fast.get()
        if asyncio.get_running_loop() is not self.loop:
            raise RuntimeError(
                "this client belongs to another event loop: make a client in each loop, or use execagent.sync"
            )
        while True:
            if self.state is State.CONNECTED:
                assert self._link is not None
                return self._link
            if self.failure is not None:
                raise again(self.failure)
            if not wait:
                raise RecoveringError("the client recovers a lost connection")
            await self.changes.wait()

    @property
    def link(self) -> Link | None:
        """The link; None: the client is not connected."""
        return self._link if self.state is State.CONNECTED else None

    def is_current(self, link: Link) -> bool:
        """Report whether a link is the one that the client uses."""
        return self.link is link

    def background(self, work: Coroutine[Any, Any, Any]) -> bool:
        """Run something that close waits for. After close it is not run."""
        if self._closing is not None:
            work.close()
            return False
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return True

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, AgentError):  # for an AgentError nobody waits
            self.loop.call_exception_handler({"message": "a task of execagent has failed", "exception": error})

    def next_id(self) -> int:
        """Return a number that this client has not used before."""
        self._last_id += 1
        return self._last_id

    async def close(self) -> None:
        """End the client, and wait for all its tasks. The session lives on at the server until it expires."""
        if self._closing is None:
            self._closing = asyncio.ensure_future(self._close())
        await asyncio.shield(self._closing)

    async def _close(self) -> None:
        reason = ClosedError("the client is closed")
        self._fail(reason)
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if self._link is not None:
            await self._link.close(reason)

    # Recovery.

    async def _recover(self, old: Link) -> None:
        """Move the session to a new connection, or end the client."""
        await old.ended()
        await old.wait_for_starts()
        await old.close(old.end or ClosedError("lost"))
        # A server that accepts each new connection and drops it before anything happened does not get more time
        # each time.
        wait = 0.0
        if old.useful or self.loop.time() - old.installed >= _SETTLED:
            self._deadline = self.loop.time() + self.config.recovery_timeout
        else:
            wait = PAUSE
        last: BaseException | None = None
        try:
            async with asyncio.timeout_at(self._deadline):
                while self.failure is None:
                    if wait:
                        await asyncio.sleep(wait)
                    wait = PAUSE
                    try:
                        link = await self._attempt()
                    except (DisconnectedError, ConnectError) as error:
                        last = error
                        if isinstance(error, ConnectError) and error.final:
                            break
                    except SessionAttachedError as error:
                        last = error
                    except (AgentError, ValueError) as error:
                        last = error
                        if not retryable(error):
                            break
                    except OSError as error:  # such as a token_command that cannot be started now
                        last = error
                    else:
                        if self.state is State.RECOVERING and link.end is None:
                            self._install(link)
                            return
                        await link.close(ClosedError("the client has left this connection"))
        except builtins.TimeoutError:
            late = f"no success within {self.config.recovery_timeout:g} s"
            last = TimeoutError(late if last is None else f"{late}: {last}")
        self._fail(self._given_up(old, last))

    @staticmethod
    def _given_up(old: Link, last: BaseException | None) -> DisconnectedError:
        assert old.end is not None
        error = DisconnectedError(f"{old.end}; the session could not be resumed: {last}")
        error.__cause__ = last
        error.retryable = False
        return error

    async def _attempt(self) -> Link:
        """Open a connection, resume the session on it, and catch up with every process."""
        connection = await self._dial()
        # A process that caught up over the connection of an earlier, failed attempt has missed events since then, too.
        for process in self.processes.values():
            process.fall_behind()
        link = Link(self, connection)
        try:
            await self._rejoin(link)
            await self._catch_up(link)
        except BaseException as error:
            link.abort()
            await link.close(DisconnectedError(f"the session was not resumed: {error}"))
            raise
        return link

    async def _rejoin(self, link: Link) -> None:
        """Resume the session. While it still has a connection, the server has not noticed the loss yet: ask again."""
        wait = _FIRST_ATTACHED
        while True:
            try:
                await self._initialize(link, self.session_id)
                return
            except SessionAttachedError:
                if wait >= PAUSE:
                    raise
            await asyncio.sleep(wait)
            wait = min(2 * wait, PAUSE)

    async def _catch_up(self, link: Link) -> None:
        """Get the missed events of every process. The error is the loss of the link: a process fails alone."""
        slots = asyncio.Semaphore(_CATCHERS)

        async def one(process: Process) -> None:
            async with slots:
                try:
                    await process.catch_up(link)
                except DisconnectedError:
                    raise
                except Exception as error:
                    process.abandon(error if isinstance(error, RecoverError) else RecoverError(process.id, error))

        outcomes = await asyncio.gather(*(one(p) for p in list(self.processes.values())), return_exceptions=True)
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome

    # Requests.

    async def request(
        self,
        method: str,
        params: Mapping[str, object],
        *,
        filename: About = None,
        safe: bool = False,
    ) -> Any:
        """Make a request as the contract says: only of a server that knows it, and again after a lost connection only
        where it is safe."""
        flag = FLAG_OF.get(method)
        if flag is not None:
            await self.require(method, flag)
        if safe or REPEAT_OF.get(method) == "safe":
            return await self.replay(method, params, filename=filename)
        return await self.call(method, params, filename=filename)

    async def call(self, method: str, params: Mapping[str, object], *, filename: About = None) -> Any:
        """Make a request once. While the client recovers, it waits.

        A request that was under way when the connection was lost is not repeated: its error says ``sent``.
        """
        while True:
            link = await self.connected()
            try:
                return await link.called(method, params, filename)
            except DisconnectedError as error:
                if error.sent or self.failure is not None:
                    raise

    async def replay(self, method: str, params: Mapping[str, object], *, filename: About = None) -> Any:
        """Make a request that may be sent twice: it changes nothing, or the server recognizes it."""
        while True:
            link = await self.connected()
            try:
                return await link.called(method, params, filename)
            except DisconnectedError:
                if self.failure is not None:
                    raise

    async def info(self) -> Info:
        """Describe the machine of the server. The answer usually came with the handshake."""
        if self._info is None:
            self._info = info_of(Record("environment/info", await self.probe("environment/info", {}, _INFO_TIMEOUT)))
        return self._info

    async def probe(self, method: str, params: Mapping[str, object], limit: float) -> Any:
        """Make a request that the server must answer in time. Otherwise the connection counts as lost."""
        link: Link | None = None

        def late() -> TimeoutError:
            if link is not None:
                link.abort()
            return unanswered(method, limit)

        async with within(limit, late):
            while True:
                link = await self.connected()
                try:
                    return await link.called(method, params)
                except DisconnectedError:
                    if self.failure is not None:
                        raise

    async def ask_now(self, method: str, params: Mapping[str, object], limit: float) -> Any:
        """Make a request once, over the connection that there is now. Its failure says nothing about the connection."""
        async with within(limit, lambda: unanswered(method, limit)):
            link = await self.connected(wait=False)
            return await link.called(method, params)

    async def finish(self, method: str, params: Mapping[str, object]) -> Any:
        """Make a request that ends something at the server, and that may be sent twice.

        It waits while the client recovers, and then 10 s for the answer.
        """
        whole = self.config.recovery_timeout + CLEANUP
        async with within(whole, lambda: unanswered(method, whole)):
            while True:
                link = await self.connected(wait=True)
                try:
                    async with within(CLEANUP, lambda: unanswered(method, CLEANUP)):
                        return await link.called(method, params)
                except DisconnectedError:
                    if self.failure is not None:
                        raise

    async def supports(self, flag: str) -> bool:
        """Report whether the server advertises a feature."""
        return flag in (await self.info()).capabilities

    async def require(self, feature: str, flag: str) -> None:
        """Raise an UnsupportedError if the server does not advertise a feature."""
        if not await self.supports(flag):
            raise UnsupportedError(feature, flag)

    # What comes.

    async def deliver(self, link: Link, process_id: str, event: Event) -> None:
        """Give an event to its process, and drop the event of a process without a handle."""
        process = self.processes.get(process_id)
        if process is not None and await process.accept(event, link.gone):
            link.useful = True

    def _taken(self, link: Link, r: Record) -> None:
        by = shown(r.text("clientName"))
        taken = TakenError(f"another client has taken the session: {by}")
        self._fail(taken)
        link.stop(taken)

    def _body(self, link: Link, r: Record) -> None:
        body = link.bodies.get(r.text("requestId"))
        if body is not None:
            body.accept(r)

    def _changed(self, link: Link, r: Record) -> None:
        watch = link.watches.get(r.text("watchId"))
        if watch is not None:
            watch.accept(r)
            link.useful = True

    def _socket_data(self, link: Link, r: Record) -> None:
        socket = self.sockets.get(r.text("socketId"))
        if socket is not None:
            socket.accept(r)
            link.useful = True


__all__ = ["BusyError", "Config", "Core", "RpcError", "Session", "State", "fail_fast"]
