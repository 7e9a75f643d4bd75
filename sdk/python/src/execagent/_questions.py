"""Questions that the server asks: about commands, and about the network of processes.

Without a callback the answer is no. A callback that fails says no, too.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeVar

from ._errors import ProtocolError, shown
from ._link import Link
from ._record import Record
from ._threads import in_thread

_MAX_THREADS = 64  # functions that answer questions at once
_log = logging.getLogger("execagent")

T = TypeVar("T")

Callback = Callable[[T], Any]


class ApprovalQuestion(NamedTuple):
    """A question whether a command may run.

    ``kind`` is ``start`` for the command of a process, and ``exec`` for a program that it executes. ``reason`` is why a
    rule asks. ``proposed_prefix`` is the beginning of a command that a rule could allow. If nobody answers within
    ``timeout`` seconds, the command is declined. A question that comes again after a lost connection has its
    ``approval_id`` again.
    """

    process_id: str
    approval_id: str
    kind: str
    argv: tuple[str, ...]
    truncated: bool
    exe: str
    cwd: str
    pid: int
    reason: str
    matched_rules: Any
    proposed_prefix: tuple[str, ...]
    timeout: float


class ApprovalAnswer(NamedTuple):
    """An answer to an :class:`ApprovalQuestion`.

    ``accept_for_process`` also allows the same command again, of this process. ``accept_with_rule`` allows all commands
    that begin with ``prefix``. ``cancel`` declines, and ends the process.
    """

    decision: Literal["accept", "accept_for_process", "accept_with_rule", "decline", "cancel"]
    prefix: tuple[str, ...] = ()


class CommandDecision(NamedTuple):
    """A decision about a command, as the server reports it. ``members`` is all that it says."""

    decision: str
    argv: tuple[str, ...]
    source: str
    members: dict[str, Any]


class NetworkQuestion(NamedTuple):
    """A question whether a process may reach a host.

    ``protocol`` is http, https_connect, socks5_tcp or socks5_udp. ``method`` and ``path`` are those of an HTTP request,
    if the network has rules about requests.
    """

    process_id: str
    protocol: str
    host: str
    port: int
    method: str
    path: str


class NetworkAnswer(NamedTuple):
    """An answer to a :class:`NetworkQuestion`. ``ask`` refuses because somebody has to be asked first."""

    decision: Literal["allow", "deny", "ask"]
    reason: str = "the client refuses it"


class NetworkDecision(NamedTuple):
    """The outcome of a process's attempt to reach a host, as the server reports it."""

    process_id: str
    decision: str
    source: str
    reason: str
    protocol: str
    host: str
    port: int
    method: str
    path: str
    policy_override: bool


ApprovalReply = ApprovalAnswer | bool
NetworkReply = NetworkAnswer | bool


@dataclass(slots=True)
class Callbacks:
    """The callbacks of a client. One that answers is a coroutine function, or a function, which then has a thread."""

    on_approval: Callable[[ApprovalQuestion], ApprovalReply | Awaitable[ApprovalReply]] | None = None
    on_command_decision: Callable[[CommandDecision], None] | None = None
    on_network: Callable[[NetworkQuestion], NetworkReply | Awaitable[NetworkReply]] | None = None
    on_network_decision: Callable[[NetworkDecision], None] | None = None


_DECISIONS = {
    "accept": "accept",
    "accept_for_process": "acceptForProcess",
    "decline": "decline",
    "cancel": "cancel",
}


class Questions:
    """Answers the questions of the server."""

    def __init__(self, callbacks: Callbacks) -> None:
        self._callbacks = callbacks
        self._open: dict[str, asyncio.Task[Any]] = {}
        self._threads = asyncio.Semaphore(_MAX_THREADS)
        self.handlers = {"process/execApproval": self._approval, "network/policyRequest": self._network}
        self.notifications = {
            "process/execApprovalClosed": self._closed,
            "process/execDecision": self._command_decided,
            "network/policyDecision": self._network_decided,
        }

    async def _ask(self, callback: Callback[T], question: T) -> Any:
        """Call a callback. Its failure is logged, and is None."""
        try:
            if inspect.iscoroutinefunction(callback) or inspect.iscoroutinefunction(type(callback).__call__):
                return await callback(question)
            # A function may wait for a user, and holds up nothing else. One whose question needs no answer any more
            # still has its thread.
            await self._threads.acquire()
            answer: object = await in_thread(lambda: callback(question), self._threads.release)
            if inspect.isawaitable(answer):
                answer = await answer
            return answer
        except Exception:
            _log.exception("a callback for a question of the agent has failed, so the answer is no")
            return None

    async def _approval(self, link: Link, r: Record) -> dict[str, Any]:
        question = ApprovalQuestion(
            process_id=r.text("processId"),
            approval_id=r.text("approvalId"),
            kind=r.text("kind"),
            argv=tuple(r.texts("argv")),
            truncated=r.flag("truncated"),
            exe=r.text_or("exe"),
            cwd=r.text_or("cwd"),
            pid=r.integer_or("pid") or 0,
            reason=r.text_or("reason"),
            matched_rules=r.members.get("matchedRules"),
            proposed_prefix=tuple(r.texts_or("proposedPrefix") or ()),
            timeout=(r.integer_or("timeoutMs") or 0) / 1000,
        )
        callback = self._callbacks.on_approval
        if callback is None:
            return {"decision": "decline"}
        task = asyncio.ensure_future(self._ask(callback, question))
        self._open[question.approval_id] = task
        try:
            answer = await task
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                task.cancel()
                raise
            answer = None  # the question needs no answer any more
        finally:
            if self._open.get(question.approval_id) is task:
                del self._open[question.approval_id]
        return {"decision": _approval_of(answer)}

    async def _network(self, link: Link, r: Record) -> dict[str, Any]:
        request = r.record("request")
        question = NetworkQuestion(
            r.text("processId"),
            request.text("protocol"),
            request.text("host"),
            request.integer("port", 0, 65535),
            request.text_or("method"),
            request.text_or("path"),
        )
        if self._callbacks.on_network is None:
            return {"decision": {"type": "deny", "reason": "this client decides nothing"}}
        answer = await self._ask(self._callbacks.on_network, question)
        if answer is True:
            answer = NetworkAnswer("allow")
        if not isinstance(answer, NetworkAnswer):
            answer = NetworkAnswer("deny")
        if answer.decision == "allow":
            return {"decision": {"type": "allow"}}
        kind = "ask" if answer.decision == "ask" else "deny"
        return {"decision": {"type": kind, "reason": str(answer.reason)[:256] or "the client refuses it"}}

    def _closed(self, link: Link, r: Record) -> None:
        task = self._open.get(r.text("approvalId"))
        if task is not None:
            task.cancel()

    def _command_decided(self, link: Link, r: Record) -> None:
        if self._callbacks.on_command_decision is not None:
            decided = CommandDecision(
                r.text("decision"), tuple(r.texts_or("argv") or ()), r.text_or("source"), r.members
            )
            self._tell(self._callbacks.on_command_decision, decided)

    def _network_decided(self, link: Link, r: Record) -> None:
        if self._callbacks.on_network_decision is None:
            return
        try:
            decided = NetworkDecision(
                r.text("processId"),
                r.text("decision"),
                r.text("source"),
                r.text("reason"),
                r.text("protocol"),
                r.text("host"),
                r.integer("port", 0, 65535),
                r.text_or("method"),
                r.text_or("path"),
                r.flag("policyOverride"),
            )
        except ProtocolError as error:
            _log.debug("a decision about the network was dropped: %s", error)  # client.md 1.4
            return
        self._tell(self._callbacks.on_network_decision, decided)

    @staticmethod
    def _tell(callback: Callable[[T], None], decided: T) -> None:
        try:
            callback(decided)
        except Exception:
            _log.exception("a callback for a decision of the agent has failed: %s", shown(decided, 512))


def _approval_of(answer: object) -> str | dict[str, Any]:
    if answer is True:
        return "accept"
    if not isinstance(answer, ApprovalAnswer):
        return "decline"
    if answer.decision == "accept_with_rule":
        return {"acceptWithRule": {"prefix": list(answer.prefix)}} if answer.prefix else "decline"
    return _DECISIONS.get(answer.decision, "decline")
