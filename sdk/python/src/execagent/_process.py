"""Processes: a handle that outlives connections."""

from __future__ import annotations

import asyncio
import builtins
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from types import MappingProxyType, TracebackType
from typing import TYPE_CHECKING, Literal, NamedTuple, Self

from ._bounds import Size, held_by, read_size
from ._errors import (
    AgentError,
    ClosedError,
    DisconnectedError,
    GapError,
    OutputLimitError,
    ProtocolError,
    RecoverError,
    TimeoutError,
    again,
    shown,
)
from ._order import Closed, Event, Exited, Order, Output, size_of
from ._queue import Changes, Queue
from ._record import Record
from ._refusals import Refusals
from ._stdin import Stdin
from ._wire import (
    PROCESS_READ,
    PROCESS_RESIZE,
    PROCESS_SIGNAL,
    PROCESS_TERMINATE,
    ReadParams,
    ResizeParams,
    SignalParams,
    TerminateParams,
)
from ._within import within

if TYPE_CHECKING:
    from ._core import Core
    from ._link import Link

_MAX_IDLE = 3  # how often in a row process/read may return nothing new although a later event was announced
_STRETCH = 16  # how much more output than usual may wait of a process that is killed
_KILLED_WITHIN = 5.0  # how long the end of a block waits for the exit of a process that it has killed
_MAX_OUTPUT = 64 << 20  # bytes of each stream that are kept by default
_IDLE_WAIT = 1000  # how long the server then waits for something new, in milliseconds

Signal = Literal[
    "interrupt",
    "hangup",
    "quit",
    "terminate",
    "kill",
    "user1",
    "user2",
    "stop",
    "continue",
    "windowChange",
]


class EndOfEvents(Exception):
    """All events were taken."""


class Started(NamedTuple):
    """The server's answer to a start.

    ``sandbox_layers`` are the names of what confines the process. ``network`` is ``advisory`` if nothing prevents it
    from bypassing its proxy. ``approval`` is ``pending`` if the client is asked first whether it may run. ``limits``
    says what holds each limit: ``cgroup``, a control group of the process, or ``rlimit``, a limit of each process.
    """

    sandbox_type: str = ""
    sandbox_layers: tuple[str, ...] = ()
    network: str = ""
    approval: str = ""
    limits: Mapping[str, str] = MappingProxyType({})


def started_of(r: Record) -> Started:
    """Read the answer to a process/start."""
    return Started(
        r.text_or("sandboxType"),
        tuple(r.texts_or("sandboxLayers") or ()),
        r.text_or("network"),
        r.text_or("approval"),
        held_by(r.record_or("limits")),
    )


def signal_of(exit_code: int) -> int | None:
    """Return the signal that an exit code stands for, as in a shell: 128+n; None: it stands for none."""
    return exit_code - 128 if 128 < exit_code <= 192 else None


class Result(NamedTuple):
    """The output and the exit code of a command.

    ``exit_code`` is 128+n after signal n. Of a terminal, all output is ``stdout``. ``stdout_omitted`` and
    ``stderr_omitted`` are how many bytes were left out in the middle, because of ``max_output``. ``timed_out`` says
    that the time of ``kill_after`` was up before the command had exited, and ``out_of_memory`` that the kernel has
    ended one of its processes because of ``memory``.
    """

    exit_code: int
    stdout: bytes
    stderr: bytes
    stdout_omitted: int = 0
    stderr_omitted: int = 0
    timed_out: bool = False
    out_of_memory: bool = False
    sandbox_denied: bool = False
    refusals: Refusals | None = None

    @property
    def stdout_truncated(self) -> bool:
        """Whether a part of the standard output was left out."""
        return self.stdout_omitted > 0

    @property
    def stderr_truncated(self) -> bool:
        """Whether a part of the standard error was left out."""
        return self.stderr_omitted > 0

    @property
    def signal(self) -> int | None:
        """The signal that has ended the command; None: it has exited."""
        return signal_of(self.exit_code)

    @property
    def text(self) -> str:
        """The standard output as UTF-8 text, with U+FFFD for what is none."""
        return self.stdout.decode(errors="replace")

    @property
    def ok(self) -> bool:
        """Whether the exit code is 0."""
        return self.exit_code == 0


Overflow = Literal["truncate", "error"]
Until = Literal["closed", "exited"]


class Held:
    """The beginning and the end of a stream."""

    def __init__(self, head: int, tail: int) -> None:
        self._room = head
        self._most = tail
        self._parts: list[bytes] = []
        self._tail: deque[bytes | memoryview] = deque()
        self._size = 0  # of the tail
        self.omitted = 0

    def add(self, data: bytes, omitted: int) -> bool:
        """Take the next bytes, before which some were left out. Report whether there is room for all."""
        self.omitted += omitted
        if self._room:
            self._parts.append(data[: self._room])
            data, self._room = data[self._room :], max(0, self._room - len(data))
        if not data:
            return True
        self._tail.append(data)
        self._size += len(data)
        fits = self._size <= self._most
        while self._size > self._most:
            over, first = self._size - self._most, self._tail.popleft()
            if over < len(first):
                self._tail.appendleft(memoryview(first)[over:])  # without a copy for each small event
            dropped = min(over, len(first))
            self._size -= dropped
            self.omitted += dropped
        return fits

    def joined(self, gap: bytes = b"") -> bytes:
        """Return what is held, with ``gap`` where something was left out."""
        return b"".join((*self._parts, gap if self.omitted else b"", *self._tail))


class Kept:
    """Output that is kept, up to a number of bytes of each stream.

    What happens beyond that is ``overflow``: ``truncate`` keeps the first half and the last half, ``error`` is an
    OutputLimitError. The default is ``truncate`` where a number is given, and ``error`` otherwise. ``seen`` is told all
    output before.
    """

    def __init__(
        self, max_output: Size | None, overflow: Overflow | None, seen: Callable[[Output], None] | None = None
    ) -> None:
        self._seen = seen
        if overflow not in (None, "truncate", "error"):
            raise ValueError(f"overflow is {shown(overflow)}, and must be 'truncate' or 'error'")
        self.limit = most = _MAX_OUTPUT if max_output is None else read_size(max_output, "max_output")
        self.strict = (overflow or ("error" if max_output is None else "truncate")) == "error"
        head, tail = (most, 0) if self.strict else (most - most // 2, most // 2)
        self._stdout, self._stderr = Held(head, tail), Held(head, tail)

    def take(self, event: Output) -> None:
        """Keep output, as far as there is room."""
        if self._seen is not None:
            self._seen(event)
        stream = self._stderr if event.stream == "stderr" else self._stdout
        if not stream.add(event.data, event.omitted) and self.strict:
            raise OutputLimitError(
                f"the command printed more than {self.limit} bytes to one stream; see max_output and overflow",
                self.limit,
                stdout=self.stdout,
                stderr=self.stderr,
            )

    @property
    def stdout(self) -> bytes:
        """The standard output, and that of a terminal."""
        return self._stdout.joined()

    @property
    def stderr(self) -> bytes:
        """The standard error."""
        return self._stderr.joined()

    @property
    def omitted(self) -> tuple[int, int]:
        """How many bytes of the two streams were left out."""
        return self._stdout.omitted, self._stderr.omitted


class OutputReader:
    """A stream of the output of a process.

    It holds up to 1 MiB of unread output. Then it blocks the other stream and the connection: so read both at the same
    time, or close the one that is not needed.
    """

    def __init__(self, process: Process) -> None:
        self._process = process
        self._queue: Queue[bytes] = Queue()
        self._held: bytes = b""
        self._at = 0  # bytes of held before it were read
        self.omitted = 0
        """How many bytes were left out so far, because of ``max_output``."""
        self._reading = asyncio.Lock()

    async def read(self, n: int = -1) -> bytes:
        """Return up to n bytes, as soon as there are any; b"" at the end. Without n, return all until the end.

        What a call has taken that is cancelled, or that fails, comes with the next call.
        """
        async with self._reading:
            if n >= 0:
                if self._at == len(self._held):
                    self._held, self._at = await self._more(), 0
                return self._cut(n)
            parts = [self._held[self._at :]]
            self._held, self._at = b"", 0
            try:
                while data := await self._more():
                    parts.append(data)
            except BaseException:
                self._held = b"".join(parts)
                raise
            return b"".join(parts)

    async def read_until(self, mark: bytes, limit: int = 1 << 20) -> bytes:
        """Return all bytes up to and with a mark, or to the end. Of a longer text, the first limit bytes."""
        if not mark:
            raise ValueError("mark is empty")
        async with self._reading:
            found = self._held.find(mark, self._at, self._at + limit)
            if found >= 0:
                return self._cut(found + len(mark) - self._at)
            held = bytearray(self._held[self._at :])
            size, looked = limit, 0
            try:
                while len(held) < limit and (data := await self._more()):
                    looked = max(0, len(held) - len(mark) + 1)
                    held += data
                    if (found := held.find(mark, looked, limit)) >= 0:
                        size = found + len(mark)
                        break
            except BaseException:
                size = 0
                raise
            finally:
                self._held, self._at = bytes(held[size:]), 0
            return bytes(held[:size])

    def _cut(self, size: int) -> bytes:
        """Take the next bytes that are held."""
        begin, self._at = self._at, min(len(self._held), self._at + size)
        return self._held[begin : self._at]

    async def readline(self) -> bytes:
        """Return a line with its end; b"" at the end. A line of more than 1 MiB comes in pieces."""
        return await self.read_until(b"\n")

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the lines."""
        return self._lines()

    async def _lines(self) -> AsyncIterator[bytes]:
        while line := await self.readline():
            yield line

    async def _more(self) -> bytes:
        try:
            return await self._queue.take()
        except EndOfEvents:
            return b""

    def close(self) -> None:
        """Drop the output of this stream, now and later. The process does not notice."""
        self._queue.discard(lambda _: True)
        self._queue.fail(ClosedError("the reader is closed"))

    async def put(self, event: Output) -> None:
        """Take output of the process."""
        self.omitted += event.omitted
        if event.data:
            await self._queue.put(event.data, len(event.data))

    def fail(self, end: BaseException) -> None:
        """Take the end of the output."""
        self._queue.fail(end)


class Process:
    """A process at the server.

    The handle goes on over lost connections: the client asks for the events in between. Its output goes to one
    consumer: ``async for event in process``, or the readers ``stdout`` and ``stderr``, or :meth:`communicate`. While
    nobody takes it, the connection stops once 1 MiB waits, and then the process stops, too.

    As a context manager it kills the process at the end of the block, unless it has ended.
    """

    def __init__(self, core: Core, process_id: str, *, after: int = 0, attached: bool = False) -> None:
        self.core = core
        self.id = process_id
        """The id of the process in its session."""
        self.started = Started()
        """The server's answer to the start. It is empty for a process that was attached to."""
        self.stdin = Stdin(self)
        self._after = after
        self._order = Order(process_id, fresh=attached)
        self._queue: Queue[Event] = Queue()
        self._readers: tuple[OutputReader, OutputReader] | None = None
        self._catching = asyncio.Lock()
        self._behind = attached  # events are held until the server was asked for earlier ones
        self._unknown = False  # whether the server has it: its start is made again, and nobody asks for events
        self._chasing = False
        self._deaf = False  # events are dropped from now on
        self._ended = False
        self._error: BaseException | None = None
        self._exit: Exited | None = None
        self._killed = False
        self._changes = Changes()

    # For users.

    @property
    def exit_code(self) -> int | None:
        """The exit code, 128+n after signal n; None: the process has not exited, as far as is known here."""
        return None if self._exit is None else self._exit.exit_code

    @property
    def exit(self) -> Exited | None:
        """What is known of the exit."""
        return self._exit

    @property
    def ended(self) -> bool:
        """Whether nothing more comes: the process has exited and all its output has come, or the handle has failed."""
        return self._ended

    @property
    def timed_out(self) -> bool:
        """Whether the time of ``kill_after`` was up before the process had exited."""
        return self._killed or (self._exit is not None and self._exit.timed_out)

    @property
    def out_of_memory(self) -> bool:
        """Whether the kernel has ended one of its processes because of ``memory``."""
        return self._exit is not None and self._exit.out_of_memory

    @property
    def skipped(self) -> int:
        """How many events the server no longer had when this handle was attached."""
        return self._order.skipped

    @property
    def last_seq(self) -> int:
        """The number of the last event that has come, for a later ``attach(id, after=…)``."""
        return self._order.last

    @property
    def stdout(self) -> OutputReader:
        """The standard output as a stream; of a terminal, all output. Events are no longer given out then."""
        return self._streams()[0]

    @property
    def stderr(self) -> OutputReader:
        """The standard error as a stream."""
        return self._streams()[1]

    def _streams(self) -> tuple[OutputReader, OutputReader]:
        if self._readers is None:
            self._readers = OutputReader(self), OutputReader(self)
            if not self.core.background(self._sort(*self._readers)):
                for reader in self._readers:
                    reader.fail(ClosedError("the client is closed"))
        return self._readers

    async def _sort(self, stdout: OutputReader, stderr: OutputReader) -> None:
        """Give each output to its reader, until the events end."""
        end: BaseException = ClosedError("the client is closed")
        try:
            while True:
                event = await self._queue.take()
                if isinstance(event, Output):
                    await (stderr if event.stream == "stderr" else stdout).put(event)
        except asyncio.CancelledError:
            raise
        except Exception as error:
            end = error
        finally:
            stdout.fail(end)
            stderr.fail(end)

    def __aiter__(self) -> AsyncIterator[Event]:
        """Yield the events in their order; the last one is :class:`Closed`.

        After a break, another loop goes on where this one has ended.
        """
        return self._events()

    async def _events(self) -> AsyncIterator[Event]:
        if self._readers is not None:
            raise RuntimeError("the output goes to the readers: read the rest from stdout and stderr")
        while True:
            try:
                event = await self._queue.take()
            except EndOfEvents:
                return
            yield event

    async def next_event(self) -> Event | None:
        """Return the next event; None: there are no more."""
        try:
            return await self._queue.take()
        except EndOfEvents:
            return None

    async def wait(self, *, timeout: float | None = None) -> int:
        """Wait until the process has ended and all its output has come, and return the exit code.

        This takes no output: somebody else has to take it, or :meth:`discard` drops it. A timeout ends only the
        waiting, and the process goes on.
        """
        async with within(timeout, lambda: self._late(timeout)):
            while not self._ended:
                await self._changes.wait()
        if self._error is not None:
            raise again(self._error)
        if self._exit is None:
            raise ProtocolError(f"process {shown(self.id)} has closed, and has not exited")
        return self._exit.exit_code

    async def communicate(
        self, *, max_output: Size | None = None, overflow: Overflow | None = None, timeout: float | None = None
    ) -> Result:
        """Take all output, and return it with the exit code.

        A timeout ends only the waiting: the error has the output that was taken. If the call is cancelled, that output
        is lost. ``max_output`` and ``overflow`` are as for :meth:`Agent.run`, but nothing is killed.
        """
        kept = Kept(max_output, overflow)
        async with within(timeout, lambda: self._late(timeout, kept)):
            return await self.collect(kept)

    def _late(self, timeout: float | None, kept: Kept | None = None) -> TimeoutError:
        text = f"process {shown(self.id)} has not ended within {timeout:g} s"
        return TimeoutError(text, stdout=kept.stdout if kept else b"", stderr=kept.stderr if kept else b"")

    async def collect(self, kept: Kept, until: Until = "closed") -> Result:
        """Take all output into kept; until ``exited``, all that came before the exit."""
        if self._readers is not None:
            raise RuntimeError("the output goes to the readers: read the rest from stdout and stderr")
        while (event := await self.next_event()) is not None:
            if isinstance(event, Output):
                kept.take(event)
            elif until == "exited" and isinstance(event, Exited):
                break
        last = self._exit
        code = last.exit_code if last is not None and until == "exited" else await self.wait()
        return Result(
            code,
            kept.stdout,
            kept.stderr,
            *kept.omitted,
            self.timed_out,
            self.out_of_memory,
            last is not None and last.sandbox_denied,
            None if last is None else last.refusals,
        )

    def discard(self) -> None:
        """Drop all output that was not taken, now and later, so that nobody has to take it."""
        self._queue.discard(lambda event: isinstance(event, Output))

    async def signal(self, name: Signal) -> None:
        """Send a signal to the process and its group, once. A process that has exited is no error."""
        if name != "interrupt":
            await self.core.require(f"the signal {name}", "processSignals")
        params: SignalParams = {"processId": self.id, "signal": name}
        await self.core.request(PROCESS_SIGNAL, params)

    async def kill(self) -> None:
        """Kill the process and its group. A process that has exited is no error.

        If the answer does not come within 10 s, for example because output of another process waits that nobody takes,
        the error is a TimeoutError. A lost connection is recovered first.
        """
        # Output that was sent before comes before the answer, and perhaps nobody takes it.
        self._queue.stretch(_STRETCH)
        params: TerminateParams = {"processId": self.id}
        await self.core.finish(PROCESS_TERMINATE, params)

    async def resize(self, rows: int, cols: int) -> None:
        """Set the size of the terminal, in characters, 1 to 65535 each."""
        params: ResizeParams = {"processId": self.id, "rows": rows, "cols": cols}
        await self.core.request(PROCESS_RESIZE, params)

    def close(self) -> None:
        """Give up the handle. The process goes on, and its events are dropped here."""
        self._queue.discard(lambda _: True)
        self.fail(ClosedError("the handle of the process is closed"))
        for reader in self._readers or ():
            reader.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if not self._ended:
                self._queue.discard(lambda _: True)
                if self._exit is None and self.core.failure is None:
                    await self.kill()
                    async with asyncio.timeout(_KILLED_WITHIN):
                        while self._exit is None and not self._ended:
                            await self._changes.wait()
        except (DisconnectedError, builtins.TimeoutError):
            pass
        finally:
            self.close()

    # For the client.

    async def kill_later(self, delay: float) -> None:
        """Kill the process, unless it has ended by then."""
        try:
            async with asyncio.timeout(delay):
                while not self._ended and self._exit is None:
                    await self._changes.wait()
        except builtins.TimeoutError:
            self._killed = True
            await self.kill()

    def _note(self, event: Event) -> None:
        # Noted before anybody can see the event.
        if isinstance(event, Exited) and self._exit is None:
            self._exit = event
            if self._killed and event.exit_code != 137:
                self._killed = False  # it had ended by itself
            self._changes.notify()

    async def accept(self, event: Event, gone: asyncio.Future[None]) -> bool:
        """Take an event from the reader of a connection, and report whether it was published.

        The next event is published, and this waits while the queue is full, so that in the end the server waits, too.
        Once the server is gone, there is no use in that: what it has sent is taken as it is, and the connection ends.
        An event before its turn is held.
        """
        if self._deaf or event.seq <= self._order.last:
            return False
        if self._behind or event.seq != self._order.last + 1:
            self._order.hold(event)
            if not self._behind:
                self._behind = True
                self._chase()
            return False
        self._note(event)
        # Nothing else publishes now, because the process is not behind and this is its reader. If the connection ends
        # meanwhile, the event is read again over the next one.
        size = size_of(event)
        if event.seq > self._after and not self._queue.try_put(event, size):
            await self._queue.put(event, size, gone)
        try:
            self._order.publish(event)
        except ProtocolError as error:
            self.abandon(error)
            return True
        self._settle_if_closed()
        return True

    def _settle_if_closed(self) -> None:
        if self._order.closed:
            self._end(None, EndOfEvents())

    def fall_behind(self) -> None:
        """Note that events may have been missed. Until catch_up has asked the server, events are held."""
        self._behind = True

    def doubt(self) -> None:
        """Note that the server may not know the process."""
        self._unknown = self._behind = True

    def believe(self) -> None:
        """End the doubt, and ask for all events."""
        self._unknown = False
        self._chase()

    async def catch_up(self, link: Link) -> None:
        """Ask the server for missed events, until none is missing.

        A process whose events are not taken stays behind, and goes on later.
        """
        async with self._catching:
            wait, idle = 0, 0
            while idle < _MAX_IDLE:
                if self._deaf or not self._behind or self._unknown:
                    return
                if self._queue.overfull:
                    self._chase()
                    return
                params: ReadParams = {"processId": self.id, "afterSeq": self._order.last, "waitMs": wait}
                answer = Record(PROCESS_READ, await link.call(PROCESS_READ, params))
                if self._take(answer):
                    wait, idle, link.useful = 0, 0, True
                else:
                    wait, idle = _IDLE_WAIT, idle + 1
            if self._behind:
                raise ProtocolError(
                    f"events after {self._order.last} of process {shown(self.id)} were announced, and cannot be read"
                )

    def _take(self, answer: Record) -> bool:
        """Publish the events in an answer, and those that waited for them. Report whether there were any."""
        if self._deaf:
            return False
        events, failure = self._order.merge(answer)
        moved = False
        waiting = iter(events)
        while True:
            event = next(waiting, None)
            if event is None and failure is None:
                event = self._order.next()
            if event is None:
                break
            self._note(event)
            self._order.publish(event)
            if event.seq > self._after:
                self._queue.push(event, size_of(event))
            moved = True
        if failure is not None:
            raise failure
        self._behind = self._order.behind
        self._settle_if_closed()
        return moved

    def _chase(self) -> None:
        if not self._chasing:
            self._chasing = self.core.background(self._chase_events())

    async def _chase_events(self) -> None:
        """Catch up as soon as the consumer has made room."""
        try:
            while self._behind and not self._deaf:
                await self._queue.wait_for_room()
                try:
                    await self.catch_up(await self.core.connected())
                except DisconnectedError:
                    if self.core.failure is not None:
                        return
        except asyncio.CancelledError:
            raise
        except Exception as error:
            if not self._deaf:
                self.abandon(error if isinstance(error, RecoverError) else RecoverError(self.id, error))
        finally:
            self._chasing = False

    def _settle(self, error: BaseException | None, end: BaseException) -> None:
        self._deaf = True
        if not self._ended:
            self._ended, self._error = True, error
            self._changes.notify()
        self._queue.fail(end)

    def _deregister(self) -> None:
        if self.core.processes.get(self.id) is self:
            del self.core.processes[self.id]

    def _end(self, error: BaseException | None, end: BaseException) -> None:
        self._settle(error, end)
        self._deregister()

    def fail(self, error: BaseException) -> None:
        """End the handle with an error."""
        self._end(error, error)

    def abandon(self, error: BaseException) -> None:
        """Fail a process that may be running, and kill it. Its id stays taken until then."""
        self._settle(error, error)
        if not self.core.background(self._terminate()):
            self._deregister()

    async def _terminate(self) -> None:
        try:
            await self.kill()
        except AgentError:
            pass  # no caller waits for the error
        finally:
            self._deregister()

    async def attach(self) -> None:
        """Ask for the events that the server has kept."""
        core = self.core
        link = await core.connected()
        if self.id in core.processes:
            raise ValueError(f"this client has a handle of process {shown(self.id)} already")
        core.processes[self.id] = self
        try:
            while True:
                try:
                    await self.catch_up(link)
                    break
                except DisconnectedError:
                    link = await core.connected()
        except BaseException as error:
            self.fail(error if isinstance(error, Exception) else ClosedError("the process was not attached to"))
            raise
        # A recovery may have ended the handle first.
        if self._error is not None:
            raise again(self._error)
        if self._after and self.skipped > self._after:
            self.close()
            raise GapError(self.id, self._after, self.skipped)


__all__ = ["Closed", "EndOfEvents", "Event", "Exited", "Output", "OutputReader", "Process", "Result", "Started"]
