"""Puts the events of a process in order.

Events come as notifications, mostly in order, and in the answers of process/read, in whole ranges
(docs/protocol/client.md 2.5).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from ._errors import GapError, ProtocolError, shown
from ._record import Record
from ._refusals import Refusals, refusals_of

MAX_PENDING = 256
MAX_PENDING_BYTES = 1 << 20


class Output(NamedTuple):
    """Output of a process. Of a terminal, all output has the stream ``pty``.

    ``omitted`` is how many bytes of the stream were left out before ``data``, because of ``max_output``. Then ``data``
    may be empty.
    """

    seq: int
    stream: Literal["stdout", "stderr", "pty"]
    data: bytes
    omitted: int = 0


class Exited(NamedTuple):
    """The process has exited. Output of other processes that it has left behind may follow.

    ``exit_code`` is 128+n after signal n. ``sandbox_denied`` says that a sandbox may be the reason. ``timed_out`` says
    that the time of ``kill_after`` was up, and ``out_of_memory`` that the kernel has ended one of its processes because
    of ``memory``.
    """

    seq: int
    exit_code: int
    sandbox_denied: bool = False
    refusals: Refusals | None = None
    timed_out: bool = False
    out_of_memory: bool = False


class Closed(NamedTuple):
    """All output has come. This is the last event."""

    seq: int


Event = Output | Exited | Closed


def size_of(event: Event) -> int:
    """Return how many bytes an event has for the bounds of a queue."""
    return len(event.data) if isinstance(event, Output) else 0


def stream_of(name: str, where: str) -> Literal["stdout", "stderr", "pty"]:
    """Check the name of a stream."""
    match name:
        case "stdout" | "stderr" | "pty":
            return name
        case _:
            pass
    raise ProtocolError(f"{where}: the stream {shown(name)} is not known")


def exited_of(r: Record) -> Exited:
    """Read a process/exited."""
    return Exited(
        r.integer("seq", 1),
        r.integer("exitCode", -(1 << 31), (1 << 32) - 1),
        r.flag("sandboxDenied"),
        refusals_of(r),
        r.flag("timedOut"),
        r.flag("outOfMemory"),
    )


def output_of(r: Record) -> Output:
    """Read a process/output, or a chunk of a process/read."""
    omitted = r.integer_or("omitted") or 0
    return Output(r.integer("seq", 1), stream_of(r.text("stream"), r.where), r.data("chunk"), omitted)


class Order:
    """The order of the events of one process."""

    def __init__(self, process_id: str, *, fresh: bool = False) -> None:
        self._id = process_id
        self.last: int = 0
        """The event that was published last."""
        self.exited = False
        self.closed = False
        self.pending: dict[int, Event] = {}
        self._bytes = 0
        self._dropped = 0  # the greatest number that did not fit into hold
        # Nothing was published yet, and early events that the server no longer has are skipped.
        self._fresh = fresh
        self.skipped = 0

    def hold(self, event: Event) -> None:
        """Keep an event that comes before its turn. Without room only its number, and the event is read again."""
        if event.seq <= self.last or event.seq in self.pending:
            return
        if len(self.pending) >= MAX_PENDING or self._bytes + size_of(event) > MAX_PENDING_BYTES:
            self._dropped = max(self._dropped, event.seq)
            return
        self.pending[event.seq] = event
        self._bytes += size_of(event)

    def publish(self, event: Event) -> None:
        """Note that an event was published."""
        if isinstance(event, Exited):
            if self.exited:
                raise ProtocolError(f"process {shown(self._id)} has exited twice")
            self.exited = True
        self.last, self._fresh = event.seq, False
        self.closed = self.closed or isinstance(event, Closed)

    def next(self) -> Event | None:
        """Remove and return the next event, if it is pending."""
        event = self.pending.get(self.last + 1)
        if event is not None:
            self._drop(event)
        return event

    def _drop(self, event: Event) -> None:
        known = self.pending.pop(event.seq, None)
        if known is not None:
            self._bytes -= size_of(known)

    @property
    def behind(self) -> bool:
        """Whether the server has announced more events than were published."""
        return self._dropped > self.last or bool(self.pending)

    def merge(self, r: Record) -> tuple[list[Event], Exception | None]:
        """Take the answer to a process/read after the last event.

        Return the events to publish now, in order, and the reason for which the process has failed after them. An
        answer that contradicts earlier events, or has gaps, is an error and changes nothing.
        """
        failure = r.members.get("failure")
        if failure is not None:
            return self._beside(r), ProtocolError(f"process {shown(self._id)} failed: {shown(failure, 1024)}")
        target = r.integer("nextSeq", 1) - 1
        if self.closed or target <= self.last:
            return [], None
        known = self._known(r, target)
        # The answer has no number for the exit. It is the missing number.
        exited = r.flag("exited")
        exit_due = exited and not self.exited and not any(isinstance(e, Exited) for e in known)
        code = r.integer_or("exitCode", None, -(1 << 31))
        denied, refused = r.flag("sandboxDenied"), refusals_of(r)
        timed_out, out_of_memory = r.flag("timedOut"), r.flag("outOfMemory")
        if exit_due and code is None:
            raise ProtocolError(f"{r.where}: the process has exited, and its code is missing")
        gap = GapError(self._id, self.last, target)
        events: list[Event] = []
        last, skipped = self.last, 0

        def fill(before: int) -> None:
            """Account for the numbers between the last event and the next one."""
            nonlocal last, skipped, exit_due
            missing = before - last - 1
            if self._fresh and not events and missing > 0:
                # The exit may be among the skipped events. It is better reported late than never.
                skipped = missing - (1 if exit_due and not _holed(known, before, target) else 0)
                missing -= skipped
                last += skipped
            if missing == 1 and exit_due and code is not None:
                last += 1
                events.append(Exited(last, code, denied, refused, timed_out, out_of_memory))
                exit_due, missing = False, 0
            if missing != 0:
                raise gap

        for event in known:
            fill(event.seq)
            if isinstance(event, Exited):
                event = event._replace(
                    sandbox_denied=event.sandbox_denied or denied,
                    refusals=event.refusals or refused,
                    timed_out=event.timed_out or timed_out,
                    out_of_memory=event.out_of_memory or out_of_memory,
                )
            events.append(event)
            last = event.seq
        fill(target + 1)
        if exit_due:
            raise gap
        for event in known:
            self._drop(event)
        if skipped:
            self.last, self.skipped, self._fresh = self.last + skipped, skipped, False
        return events, None

    def _beside(self, r: Record) -> list[Event]:
        """Return the events that an answer about a failed process has, as far as they follow the published ones."""
        if self.closed:
            return []
        try:
            known = self._known(r, r.integer("nextSeq", 1) - 1)
        except ProtocolError:
            return []
        events: list[Event] = []
        for event in known:
            if isinstance(event, Closed) or event.seq != self.last + len(events) + 1:
                break
            events.append(event)
            self._drop(event)
        return events

    def _known(self, r: Record, target: int) -> list[Event]:
        """Return the events up to target that are pending or in an answer, in order."""
        known = dict(self.pending)
        last = 0
        for chunk in r.records("chunks"):
            seq = chunk.integer("seq", 1)
            if not last < seq <= target:
                raise ProtocolError(f"{chunk.where}: event {seq} comes after {last}, and before {target + 1}")
            last = seq
            if seq in known and not isinstance(known[seq], Output):
                raise ProtocolError(f"{chunk.where}: event {seq} is output, and it is not")
            output = output_of(chunk)
            if seq > self.last and seq not in known:
                known[seq] = output
        events = [known[seq] for seq in sorted(known) if seq <= target]
        closed = r.flag("closed")
        ended = bool(events) and isinstance(events[-1], Closed)
        if (
            any(isinstance(event, Closed) for event in events[:-1])
            or (ended and (not closed or events[-1].seq != target))
            or (closed and not ended and bool(events) and events[-1].seq == target)
        ):
            raise ProtocolError(f"{r.where}: the server contradicts itself about the end of the process at {target}")
        if closed and not ended:
            events.append(Closed(target))
        return events


def _holed(events: list[Event], first: int, last: int) -> bool:
    """Report whether a number from first to last is missing among the events."""
    for event in events:
        if event.seq != first:
            return True
        first += 1
    return first <= last
