"""One connection of a session: requests, their answers, and what the server tells or asks.

A client has one link after the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol

from ._errors import (
    About,
    BusyError,
    ClosedError,
    DisconnectedError,
    ProtocolError,
    RpcError,
    again,
    refusal,
    shown,
)
from ._guards import is_table
from ._order import Closed, Event, Output, exited_of, output_of, stream_of
from ._queue import Changes
from ._record import Record, decode, encode, fast_output, not_text
from ._transport import Connection, EndError
from ._within import CLEANUP, unanswered, within

MAX_CALLS = 1024  # that wait for their answers on one connection
_MAX_QUESTIONS = 256  # of the server, that are open at once
PAUSE = 0.1  # between two attempts

Handler = Callable[["Link", Record], Awaitable[Any]]


class Owner(Protocol):
    """What a link needs of its client."""

    @property
    def questions(self) -> Mapping[str, Handler]:
        """What answers the requests of the server, by method."""
        ...

    @property
    def notifications(self) -> Mapping[str, Callable[[Link, Record], None]]:
        """What takes the notifications of the server, by method. None waits: only the events of processes do."""
        ...

    def lost(self, link: Link) -> None:
        """Take note that a link has ended."""

    async def deliver(self, link: Link, process_id: str, event: Event) -> None:
        """Give an event to its process."""


class Call:
    """A request that was sent, and whose answer is awaited once."""

    __slots__ = ("_answer", "_filename", "_id", "_link")

    def __init__(self, link: Link, number: int, answer: asyncio.Future[Any], filename: About) -> None:
        self._link = link
        self._id = number
        self._answer = answer
        self._filename = filename

    async def wait(self) -> Any:
        """Wait for the answer. Its refusal is an RpcError, the loss of the connection a DisconnectedError."""
        try:
            return await self._answer
        except _Refused as refused:
            raise refusal(refused.code, refused.message, refused.data, self._filename) from None
        finally:
            self.forget()

    def forget(self) -> None:
        """Give up on the answer."""
        self._link.pending.pop(self._id, None)
        if self._answer.done() and not self._answer.cancelled():
            self._answer.exception()  # so that nobody complains that it was not taken


class _Refused(Exception):
    def __init__(self, code: int, message: str, data: Mapping[str, Any] | None) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.data = data


def is_busy(error: BaseException | None) -> bool:
    """Report whether the server did not carry out a request because too much waits there."""
    return isinstance(error, RpcError) and (error.data or {}).get("reason") == "busy"


class Link:
    """One connection, and the task that reads it."""

    def __init__(self, owner: Owner, connection: Connection) -> None:
        self._owner = owner
        self._connection = connection
        self._next_id = 1
        self._stop: DisconnectedError | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._asked: set[str | int] = set()
        self.pending: dict[int, asyncio.Future[Any]] = {}
        self.gone = connection.gone
        """Done once nothing more can come, besides what has come already."""
        self.end: DisconnectedError | None = None
        """Why the link has ended; None: it lives."""
        self.useful = False
        """Whether it has carried an answer to a caller, or an event."""
        self.installed = 0.0
        self.starts = 0
        """Calls of process/start whose handle is not settled."""
        self.changes = Changes()
        self.bodies: dict[str, Any] = {}
        self.watches: dict[str, Any] = {}
        self._reader = asyncio.create_task(self._read())
        self._reader.add_done_callback(self._read_ended)

    # Requests.

    async def begin(self, method: str, params: Mapping[str, object], filename: About = None) -> Call:
        """Send a request. Requests are sent in the order of the calls."""
        if self.end is not None:
            raise again(self.end)
        if len(self.pending) >= MAX_CALLS:
            raise BusyError(f"{MAX_CALLS} calls wait for their answers already")
        number = self._next_id
        try:
            message = encode({"id": number, "method": method, "params": params})
            if not message.isascii():
                message.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{method}: {not_text(params)} is not Unicode text, and a request has only text") from None
        except ValueError as error:
            raise ValueError(f"{method}: {error}") from None
        self._next_id += 1
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.pending[number] = answer
        call = Call(self, number, answer, filename)
        if self._connection.closed:
            # The reader has not noticed yet. Nothing was sent.
            call.forget()
            self._connection.abort()
            await self.ended()
            raise again(self._ending())
        try:
            await self._connection.write(message)
        except EndError:
            # Even so the message may have arrived. The answer is the end of the link.
            self._connection.abort()
        except BaseException:
            call.forget()
            raise
        return call

    async def call(self, method: str, params: Mapping[str, object], filename: About = None) -> Any:
        """Make a request on this link. A server that has no room for it is asked again after a while."""
        while True:
            call = await self.begin(method, params, filename)
            try:
                return await call.wait()
            except RpcError as error:
                if not is_busy(error):
                    raise
            await asyncio.sleep(PAUSE)

    async def called(self, method: str, params: Mapping[str, object], filename: About = None) -> Any:
        """Make a request for a caller of the client."""
        try:
            result = await self.call(method, params, filename)
        except RpcError:
            self.useful = True
            raise
        self.useful = True
        return result

    async def finish(self, method: str, params: Mapping[str, object]) -> None:
        """End something at the server, within 10 s, that ends with the connection in any case."""
        try:
            async with within(CLEANUP, lambda: unanswered(method, CLEANUP)):
                await self.called(method, params)
        except DisconnectedError:
            pass

    async def notify(self, method: str, params: Mapping[str, object]) -> None:
        """Send a notification."""
        try:
            await self._connection.write(encode({"method": method, "params": params}))
        except EndError:
            self._connection.abort()
            await self.ended()
            raise again(self._ending()) from None

    # The end.

    def abort(self) -> None:
        """End the connection without waiting."""
        self._connection.abort()

    async def ended(self) -> None:
        """Wait until the reader has ended, and the client knows it."""
        while self.end is None:
            await self.changes.wait()

    def _ending(self) -> DisconnectedError:
        assert self.end is not None
        return self.end

    def stop(self, reason: DisconnectedError) -> None:
        """End the link for a reason, without waiting."""
        if self._stop is None:
            self._stop = reason
        self._reader.cancel()

    async def close(self, reason: DisconnectedError) -> None:
        """End the link for a reason, and wait for all its tasks."""
        self.stop(reason)
        await self.ended()
        await self._connection.close()
        tasks = [task for task in self._tasks if task is not asyncio.current_task()]
        await asyncio.gather(*tasks, return_exceptions=True)

    async def wait_for_starts(self) -> None:
        """Wait until each call of process/start has settled its handle."""
        while self.starts:
            await self.changes.wait()

    async def _read(self) -> DisconnectedError:
        """Take all messages, and return why no more come."""
        try:
            while True:
                message = await self._connection.read()
                await self._take(message)
        except EndError as error:
            return DisconnectedError(f"the connection to the agent is lost: {error}")
        except ProtocolError as error:
            reason = DisconnectedError(f"the agent broke the protocol: {error}")
            reason.__cause__ = error
            return reason
        except Exception as error:
            reason = DisconnectedError(f"a message of the agent could not be handled: {type(error).__name__}: {error}")
            reason.__cause__ = error
            return reason

    def _read_ended(self, reader: asyncio.Task[DisconnectedError]) -> None:
        if reader.cancelled():
            self._over(self._stop or ClosedError("the event loop has ended the client"))
        else:
            self._over(reader.result())

    def _over(self, reason: DisconnectedError) -> None:
        if self._stop is None:
            self._connection.abort()
        self.end = reason
        for answer in self.pending.values():
            if not answer.done():
                lost = again(reason)
                lost.sent, lost.retryable = True, False
                answer.set_exception(lost)
        self.pending.clear()
        for task in self._tasks:
            task.cancel()
        bodies, self.bodies = self.bodies, {}
        for body in bodies.values():
            body.lost(reason)
        self._owner.lost(self)
        self.changes.notify()

    # What comes.

    async def _take(self, message: bytes) -> None:
        found = fast_output(message)
        if found is not None:
            process_id, seq, stream, data = found
            await self._owner.deliver(self, process_id, Output(seq, stream_of(stream, "process/output"), data))
            return
        members = decode(message)
        method = members.get("method")
        if method is None:
            self._answered(members)
            return
        if type(method) is not str:
            raise ProtocolError(f"a message has the method {shown(method)}")
        if "id" in members:
            self._request(method, members)
            return
        await self._told(method, members.get("params"))

    async def _told(self, method: str, params: object) -> None:
        match method:
            case "process/output":
                r = Record(method, params)
                event: Event = output_of(r)
            case "process/exited":
                r = Record(method, params)
                event = exited_of(r)
            case "process/closed":
                r = Record(method, params)
                event = Closed(r.integer("seq", 1))
            case _:
                handler = self._owner.notifications.get(method)
                if handler is not None:
                    handler(self, Record(method, params))
                return
        await self._owner.deliver(self, r.text("processId"), event)

    def _answered(self, members: dict[str, Any]) -> None:
        number = members.get("id")
        if "error" in members:
            error = Record("an answer: error", members["error"])
            code = error.integer("code", -(1 << 63), (1 << 63) - 1)
            text = error.text("message")
            if number == -1:
                raise ProtocolError(f"the agent did not understand a message: {text[:1024]}")
            data = error.members.get("data")
            outcome: _Refused | None = _Refused(code, text, data if is_table(data) else None)
            if code == -32000 and text == "JSON-RPC transport closed":
                raise EndError(text)
        elif "result" in members:
            outcome = None
        else:
            raise ProtocolError("a message has neither a method nor a result nor an error")
        if type(number) is not int:
            raise ProtocolError(f"an answer has the id {shown(number)}, which no request has")
        answer = self.pending.get(number)
        if answer is None:
            if number >= self._next_id or number < 1:
                raise ProtocolError(f"an answer has the id {number}, which no request has")
            return  # its caller has given up
        if answer.cancelled():
            return  # its caller gives up, and has not yet taken it out
        if answer.done():
            raise ProtocolError(f"request {number} was answered twice")
        if outcome is None:
            answer.set_result(members["result"])
        else:
            answer.set_exception(outcome)

    def _request(self, method: str, members: dict[str, Any]) -> None:
        number = members["id"]
        if (type(number) is not int and type(number) is not str) or not_text(number) is not None:
            raise ProtocolError(f"a request has the id {shown(number)}")
        if number in self._asked:
            raise ProtocolError(f"a request has the id {shown(number)}, which is in use")
        if len(self._asked) >= _MAX_QUESTIONS:
            raise ProtocolError(f"more than {_MAX_QUESTIONS} questions are open")
        self._asked.add(number)
        task = asyncio.create_task(self._answer(number, method, members.get("params")))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _answer(self, number: int | str, method: str, params: object) -> None:
        answer: dict[str, Any]
        try:
            handler = self._owner.questions.get(method)
            if handler is None:
                answer = {"error": {"code": -32601, "message": f"this client does not know {shown(method)}"}}
            else:
                try:
                    answer = {"result": await handler(self, Record(method, params))}
                except ProtocolError as error:
                    answer = {"error": {"code": -32602, "message": str(error)[:1024]}}
            if not_text(answer) is not None:
                answer = {"error": {"code": -32602, "message": "the answer of this client is not Unicode text"}}
            if self.end is None:
                await self._connection.write(encode({**answer, "id": number}))
        except EndError:
            self._connection.abort()
        finally:
            self._asked.discard(number)
