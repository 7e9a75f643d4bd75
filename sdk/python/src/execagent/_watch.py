"""Watches: of files, and of ports that listen. They go on over lost connections."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Generic, Literal, NamedTuple, Self, TypeVar

from . import _wire as wire
from ._errors import AgentError, ClosedError, DisconnectedError, ProtocolError, RpcError, again, shown
from ._paths import from_uri, uri
from ._queue import Changes
from ._record import Record

if TYPE_CHECKING:
    from types import TracebackType

    from ._core import Core
    from ._link import Link

_MAX_CHANGES = 4096  # of a watch that wait
_MAX_CHANGE_BYTES = 1 << 20  # of their paths
_MAX_PORTS = 4 * 4096  # that a watch knows
_MAX_EARLY = 16  # notifications before the answer that they belong to

News = TypeVar("News")


class Watching(ABC, Generic[News]):
    """Something that tells what changes at the agent.

    ``async for news in watch`` yields it as it comes, until the watch is closed.
    """

    def __init__(self, core: Core, prefix: str, methods: tuple[str, str], params: Mapping[str, object]) -> None:
        self._core = core
        self._id = f"{prefix}{core.next_id()}"
        self._watch_method, self._unwatch_method = methods
        self._params: dict[str, object] = {**params, "watchId": self._id}
        self._error: BaseException | None = None
        self._changes = Changes()

    @abstractmethod
    def _begun(self, answer: Record) -> None:
        """Take the answer that a watch has begun, over the first connection or a later one."""

    @abstractmethod
    def _take(self) -> News | None:
        """Take all that has come; None: there is nothing."""

    @abstractmethod
    def accept(self, r: Record) -> None:
        """Take a notification."""

    @property
    def _filename(self) -> str | None:
        return None

    async def open(self) -> None:
        """Begin to watch."""
        while True:
            link = await self._core.connected()
            try:
                await self._begin(link)
            except DisconnectedError:
                if self._core.failure is not None:
                    raise
                continue  # a watch ends with its connection
            except RpcError:
                link.watches.pop(self._id, None)
                raise
            except BaseException:
                self._core.background(self._unwatch(link))  # the server may have made it
                raise
            if self._core.is_current(link):
                if self._error is None:
                    self._core.carried.add(self)
                return

    async def _begin(self, link: Link) -> None:
        link.watches[self._id] = self  # notifications may come at once
        answer = await link.called(self._watch_method, self._params, self._filename)
        self._begun(Record(self._watch_method, answer))

    async def resume(self, link: Link) -> None:
        """Go on over a new connection."""
        try:
            await self._begin(link)
        except DisconnectedError:
            return  # the next connection resumes it, if there is one
        except AgentError as error:
            link.watches.pop(self._id, None)
            self._end(error)
            return
        if self._error is not None:
            await self._unwatch(link)

    def lost(self, reason: DisconnectedError) -> None:
        """The client has failed."""
        self._end(reason)

    async def next(self) -> News:
        """Wait for changes, and take all that have come."""
        while True:
            taken = self._take()
            if taken is not None:
                return taken
            if self._error is not None:
                raise again(self._error)
            await self._changes.wait()

    def __aiter__(self) -> AsyncIterator[News]:
        return self._all()

    async def _all(self) -> AsyncIterator[News]:
        while True:
            try:
                news = await self.next()
            except ClosedError:
                return
            yield news

    def _end(self, error: BaseException) -> bool:
        self._core.carried.discard(self)
        if self._error is not None:
            return False
        self._error = error
        self._changes.notify()
        return True

    async def _unwatch(self, link: Link) -> None:
        link.watches.pop(self._id, None)
        params: wire.UnwatchParams = {"watchId": self._id}
        await link.finish(self._unwatch_method, params)

    async def close(self) -> None:
        """End the watch, within 10 s. Closing it again is no error, nor is it while there is no connection."""
        link = self._core.link
        if self._end(ClosedError("the watch is closed")) and link is not None:
            await self._unwatch(link)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


# Files.


class Change(NamedTuple):
    """A change of a path. With ``renamed``, ``source`` is the path that it had before."""

    kind: Literal["created", "modified", "removed", "renamed"]
    path: str
    source: str | None = None


class ChangeSet(NamedTuple):
    """Changes in the order in which they happened. ``overflow`` says that more has changed: read the tree again."""

    changes: tuple[Change, ...]
    overflow: bool


def _change(r: Record) -> Change:
    match r.text("kind"):
        case "renamed":
            return Change("renamed", r.path("path"), r.path("from"))
        case "created" | "modified" | "removed" as kind:
            return Change(kind, r.path("path"))
        case _:
            raise r.wrong("kind", "a kind of change")


class Watch(Watching[ChangeSet]):
    """Tells what changes at a path. Over a lost connection it goes on, and tells of an overflow."""

    def __init__(self, core: Core, params: Mapping[str, object]) -> None:
        super().__init__(core, "w", (wire.FS_WATCH, wire.FS_UNWATCH), params)
        self._pending: list[Change] = []
        self._bytes = 0
        self._overflow = False
        self.path = ""
        """The watched path: the path of the call, with its links resolved."""

    @property
    def _filename(self) -> str | None:
        return from_uri(str(self._params["path"]), "path")

    def _begun(self, answer: Record) -> None:
        path, before = answer.path("path"), self.path
        if not before:
            self.path = path
            # From now on it is about this path, even if a link leads elsewhere later.
            self._params["path"] = uri(path)
        elif path != before:
            self._end(AgentError(f"since the connection was lost, {shown(before)} leads elsewhere"))
        else:
            self._add([], True)  # what changed in between is unknown

    def accept(self, r: Record) -> None:
        changes: list[Change] = []
        for each in r.records("changes"):
            change = _change(each)
            for path in (change.path, change.source):
                if path is not None and path != self.path and self.path and not self._below(path):
                    self._end(ProtocolError(f"the agent tells of {shown(path)}, which is not watched"))
                    return
            changes.append(change)
        self._add(changes, r.flag("overflow"))

    def _below(self, path: str) -> bool:
        return path.startswith(self.path.rstrip("/") + "/")

    def _add(self, changes: list[Change], overflow: bool) -> None:
        if self._error is not None:
            return
        self._bytes += sum(len(change.path) + len(change.source or "") for change in changes)
        too_many = len(self._pending) + len(changes) > _MAX_CHANGES or self._bytes > _MAX_CHANGE_BYTES
        self._overflow = self._overflow or overflow or too_many
        if self._overflow:
            self._pending, self._bytes = [], 0
        else:
            self._pending += changes
        self._changes.notify()

    def _take(self) -> ChangeSet | None:
        if not self._pending and not self._overflow:
            return None
        taken = ChangeSet(tuple(self._pending), self._overflow)
        self._pending, self._bytes, self._overflow = [], 0, False
        return taken


# Ports.


class Port(NamedTuple):
    """A TCP port that listens. ``address`` is where; 0.0.0.0 and :: are all addresses.

    ``uid`` is the user who has opened it, ``pid`` the process that has it, and ``program`` the name of its executable.
    They are None where the agent cannot see them.
    """

    port: int
    address: str
    uid: int | None = None
    pid: int | None = None
    program: str | None = None


class Ports(NamedTuple):
    """TCP ports that listen, by port and address. ``truncated`` says that there are more."""

    ports: tuple[Port, ...]
    truncated: bool


class PortChanges(NamedTuple):
    """Ports that have opened, and that have closed. One that another process has now is in both."""

    opened: tuple[Port, ...]
    closed: tuple[Port, ...]


def _ports(r: Record, name: str) -> list[Port]:
    return [
        Port(
            each.integer("port", 0, 65535),
            each.text("address"),
            each.integer_or("uid"),
            each.integer_or("pid"),
            each.text_or_none("program"),
        )
        for each in r.records(name)
    ]


def ports_of(r: Record) -> Ports:
    """Read the answer to a port/list."""
    return Ports(tuple(_ports(r, "ports")), r.flag("truncated"))


_Key = tuple[int, str, int | None, int | None]


class PortWatch(Watching[PortChanges]):
    """Tells which TCP ports open and close, first those that are open already.

    Over a lost connection it goes on, and tells what is different.
    """

    def __init__(self, core: Core, params: Mapping[str, object]) -> None:
        super().__init__(core, "p", (wire.PORT_WATCH, wire.PORT_UNWATCH), params)
        self._now: dict[_Key, Port] | None = None  # None: the answer of the connection has not come
        self._early: list[PortChanges] = []
        self._told: dict[_Key, Port] = {}

    async def _begin(self, link: Link) -> None:
        self._now, self._early = None, []
        await super()._begin(link)

    def _begun(self, answer: Record) -> None:
        self._now, early = {}, self._early
        self._apply(PortChanges(ports_of(answer).ports, ()))
        for changes in early:
            self._apply(changes)

    def accept(self, r: Record) -> None:
        changes = PortChanges(tuple(_ports(r, "opened")), tuple(_ports(r, "closed")))
        if self._now is not None:
            self._apply(changes)
            return
        self._early.append(changes)
        if len(self._early) > _MAX_EARLY:
            self._end(ProtocolError(f"the agent tells of ports {_MAX_EARLY} times before it answers"))

    def _apply(self, changes: PortChanges) -> None:
        assert self._now is not None
        for port in changes.closed:
            self._now.pop(port[:4], None)
        for port in changes.opened:
            self._now[port[:4]] = port
        if len(self._now) > _MAX_PORTS:
            self._end(ProtocolError(f"the agent tells of more than {_MAX_PORTS} ports"))
        self._changes.notify()

    def _take(self) -> PortChanges | None:
        if self._now is None or self._error is not None:
            return None
        opened = _missing(self._now, self._told)
        closed = _missing(self._told, self._now)
        if not opened and not closed:
            return None
        self._told = dict(self._now)
        return PortChanges(opened, closed)


def _missing(ports: Mapping[_Key, Port], known: Mapping[_Key, Port]) -> tuple[Port, ...]:
    """Return the ports that are not known, by port and address."""
    return tuple(sorted((port for key, port in ports.items() if key not in known), key=lambda port: port[:2]))
