"""The errors of this package.

All are an :class:`AgentError`. Where Python has a class for the same thing, such as :class:`FileNotFoundError`, the
error is one of these too. ``retryable`` says whether the same call may be repeated, because it was not carried out and
may succeed.
"""

from __future__ import annotations

import builtins
import errno as _errno
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar, cast

from ._guards import is_list, is_table

if TYPE_CHECKING:
    from ._process import Result
    from ._record import Record

__all__ = [
    "AgentError",
    "AlreadyExistsError",
    "BusyError",
    "ClosedError",
    "CommandError",
    "CommandRefusedError",
    "ConnectError",
    "ConnectTimeoutError",
    "ConnectionRefusedError",
    "CopyError",
    "DisconnectedError",
    "GapError",
    "IsADirectoryError",
    "NotADirectoryError",
    "NotFoundError",
    "OutputLimitError",
    "PermissionDeniedError",
    "ProtocolError",
    "RecoverError",
    "RecoveringError",
    "RpcError",
    "SessionAttachedError",
    "StdinError",
    "SystemCallError",
    "TakenError",
    "TimeoutError",
    "UnsupportedError",
]

_MAX_MESSAGE = 64 << 10  # characters of a message of the server that an error keeps
_CONTROLS = {c: f"\\x{c:02x}" for c in (*range(0x20), *range(0x7F, 0xA0)) if chr(c) not in "\n\t"}
_OS_ERROR = re.compile(r"\(os error (\d{1,9})\)")


def printable(text: str) -> str:
    """Return a text of the server without characters that could control a terminal."""
    return text.translate(_CONTROLS)


def shown(value: object, longest: int = 128) -> str:
    """Return the beginning of a value, for the text of an error."""
    text = repr(value)
    return text if len(text) <= longest else text[:longest] + "…"


class AgentError(Exception):
    """An error of this package. Its cause, if there is one, is ``__cause__``."""

    retryable: bool = False

    def __str__(self) -> str:
        # Some subclasses are an OSError too, which would print its own form.
        return printable(str(self.args[0])) if self.args else type(self).__name__

    def __reduce__(self) -> tuple[Any, ...]:
        # The parameters of __init__ differ from args, so an error is rebuilt without __init__.
        return (_rebuild, (type(self), self.args, _state(self), self.__cause__))


def _state(error: AgentError) -> dict[str, Any]:
    state = dict(error.__dict__)
    if isinstance(error, OSError):
        # An OSError keeps these elsewhere.
        state.update({name: getattr(error, name) for name in ("errno", "strerror", "filename")})
    return state


def _rebuild(
    kind: type[AgentError], args: tuple[Any, ...], state: dict[str, Any], cause: BaseException | None
) -> AgentError:
    error = kind.__new__(kind, *args)
    error.args = args
    for name, value in state.items():
        setattr(error, name, value)
    error.__cause__ = cause
    return error


class ConnectError(AgentError, ConnectionError):
    """There is no connection. ``final`` says that another attempt would fail too."""

    def __init__(self, message: str, *, final: bool = False, status: int | None = None) -> None:
        super().__init__(message)
        self.final = final
        self.status = status
        """The HTTP status of a server that refused the connection; None: it did not answer with one."""
        self.retryable = not final


class ConnectTimeoutError(ConnectError, builtins.TimeoutError):
    """The connection was not opened in time, or the server did not finish the handshake in time."""


class DisconnectedError(AgentError, ConnectionError):
    """The connection is gone. ``sent`` says that the request was sent, so it may have been carried out."""

    def __init__(self, message: str, *, sent: bool = False) -> None:
        super().__init__(message)
        self.sent = sent
        self.retryable = not sent


class ClosedError(DisconnectedError):
    """The client, or the handle, was closed here."""

    def __init__(self, message: str, *, sent: bool = False) -> None:
        super().__init__(message, sent=sent)
        self.retryable = False


class TakenError(DisconnectedError):
    """Another client has taken the session."""

    def __init__(self, message: str, *, sent: bool = False) -> None:
        super().__init__(message, sent=sent)
        self.retryable = False


class RecoveringError(AgentError, ConnectionError):
    """The client recovers a lost connection, and the caller does not want to wait (:func:`execagent.fail_fast`)."""

    retryable = True


class BusyError(AgentError):
    """1,024 calls already wait for their answers on the connection."""

    retryable = True


class ProtocolError(AgentError):
    """The server broke the rules of the protocol."""


class UnsupportedError(AgentError):
    """The server lacks a feature. Nothing was sent."""

    def __init__(self, feature: str, flag: str) -> None:
        super().__init__(f"the agent does not support {feature} (its capability {flag} is not set)")
        self.feature = feature
        self.flag = flag


class StdinError(AgentError, BrokenPipeError):
    """The process takes no input. ``status`` is the server's word for the reason."""

    def __init__(self, status: str) -> None:
        hint = "; a process takes input if it was started with stdin=True" if status == "stdinClosed" else ""
        super().__init__(f"writing to the process's standard input: status {status}{hint}")
        self.status = status


class RecoverError(AgentError):
    """The connection was recovered, but one process could not be followed. That process was terminated."""

    def __init__(self, process_id: str, cause: BaseException) -> None:
        super().__init__(f"process {shown(process_id)} could not be followed over a lost connection: {cause}")
        self.process_id = process_id
        self.__cause__ = cause


class GapError(RecoverError):
    """The server no longer has some events of a process: those after ``after``, up to ``through``."""

    def __init__(self, process_id: str, after: int, through: int) -> None:
        AgentError.__init__(
            self,
            f"the agent no longer has the output of process {shown(process_id)} after event {after}, "
            f"up to event {through}",
        )
        self.process_id = process_id
        self.after = after
        self.through = through


class TimeoutError(AgentError, builtins.TimeoutError):
    """Waiting took longer than the caller allowed.

    ``stdout`` and ``stderr`` are the output that was read before, if the call returns output.
    """

    def __init__(self, message: str, *, stdout: bytes = b"", stderr: bytes = b"") -> None:
        super().__init__(message)
        self.stdout = stdout
        self.stderr = stderr


class OutputLimitError(AgentError):
    """A result is larger than the caller allows. ``limit`` is what the caller allows, in bytes.

    Of a command, ``stdout`` and ``stderr`` are the output that was read before.
    """

    def __init__(self, message: str, limit: int, *, stdout: bytes = b"", stderr: bytes = b"") -> None:
        super().__init__(message)
        self.limit = limit
        self.stdout = stdout
        self.stderr = stderr


class CommandError(AgentError):
    """A command has ended with another exit code than 0, and the caller wanted this to be an error."""

    def __init__(self, argv: list[str], result: Result) -> None:
        last = result.stderr[-2048:].decode(errors="replace").strip()
        super().__init__(f"{shown(argv)} ended with exit code {result.exit_code}" + (f": {last}" if last else ""))
        self.argv = argv
        self.result = result

    @property
    def exit_code(self) -> int:
        """The exit code, 128+n after signal n."""
        return self.result.exit_code

    @property
    def stdout(self) -> bytes:
        """The standard output of the command."""
        return self.result.stdout

    @property
    def stderr(self) -> bytes:
        """The standard error of the command."""
        return self.result.stderr


class CopyError(AgentError):
    """Not everything was copied. ``omitted`` are the lines that say what, and why."""

    def __init__(self, message: str, omitted: tuple[str, ...] = ()) -> None:
        super().__init__("; ".join((message, *omitted[:5])))
        self.omitted = omitted


class RpcError(AgentError):
    """The server refused a request.

    ``code`` and ``message`` are those of the answer, and ``data`` is more about the error, for programs. ``errno`` is
    the number of the system's error, if there was one. ``filename`` is what the request was about: a path, or a
    program.
    """

    errno: int | None
    filename: Any
    strerror: Any

    def __init__(
        self,
        code: int,
        message: str,
        data: Mapping[str, Any] | None = None,
        *,
        errno: int | None = None,
        filename: str | None = None,
    ) -> None:
        text = f"the agent refused the request ({code}): {message}"
        if filename is not None:
            text = f"{message}: {shown(filename, 4096)}"
        super().__init__(text)
        self.code = code
        self.message = message
        self.data = data
        self.errno = errno
        self.filename = filename
        if isinstance(self, OSError):
            self.strerror = os.strerror(errno) if errno is not None else message

    @property
    def kind(self) -> str | None:
        """The server's word for the error, such as ``spawnNotFound`` or ``limitUnavailable``."""
        return self._word("kind")

    @property
    def what(self) -> str | None:
        """What the system's error is about: ``program``, ``cwd``, ``path`` or ``address``."""
        return self._word("what")

    def _word(self, name: str) -> str | None:
        word = (self.data or {}).get(name)
        return word if isinstance(word, str) else None


class SystemCallError(RpcError, OSError):
    """The operating system of the agent refused something. ``errno`` says what."""


class NotFoundError(SystemCallError, FileNotFoundError):
    """Something does not exist: a path, or the program of a command."""


class PermissionDeniedError(SystemCallError, PermissionError):
    """Something is not permitted."""


class AlreadyExistsError(SystemCallError, FileExistsError):
    """Something exists already."""


class NotADirectoryError(SystemCallError, builtins.NotADirectoryError):
    """A path, or a part of it, is not a directory."""


class IsADirectoryError(SystemCallError, builtins.IsADirectoryError):
    """A path is a directory."""


class ConnectionRefusedError(SystemCallError, builtins.ConnectionRefusedError):
    """Nobody listens at an address, as the agent sees it."""


class SessionAttachedError(RpcError):
    """The session still has a connection of another client."""

    retryable = True


class CommandRefusedError(RpcError):
    """A policy about commands does not allow a command."""

    @property
    def matched_rules(self) -> list[Any]:
        """The rules that decided, as the agent gives them."""
        rules = (self.data or {}).get("matchedRules")
        return rules if is_list(rules) else []


_BY_ERRNO: dict[int, type[SystemCallError]] = {
    _errno.ENOENT: NotFoundError,
    _errno.EACCES: PermissionDeniedError,
    _errno.EPERM: PermissionDeniedError,
    _errno.EEXIST: AlreadyExistsError,
    _errno.ENOTDIR: NotADirectoryError,
    _errno.EISDIR: IsADirectoryError,
    _errno.ECONNREFUSED: ConnectionRefusedError,
}

About = str | Mapping[str, str] | None
"""What a request is about, for its errors: a path or a program, or several things by the server's word for them, first
the one that is meant if the server has no word."""

NOT_FOUND = -32004
ATTACHED = -32010
INVALID_REQUEST = -32600
INVALID_PARAMS = -32602


def refusal_of(r: Record, filename: str | None) -> RpcError:
    """Read the error of an answer that refuses a request."""
    data = r.members.get("data")
    return refusal(
        r.integer("code", -(1 << 63), (1 << 63) - 1), r.text("message"), data if is_table(data) else None, filename
    )


def refusal(code: int, message: str, data: Mapping[str, Any] | None, filename: About = None) -> RpcError:
    """Return the error for an answer that refuses a request."""
    if isinstance(filename, Mapping):
        filename = filename.get(str((data or {}).get("what")), next(iter(filename.values())))
    if len(message) > _MAX_MESSAGE:
        message, data = message[:_MAX_MESSAGE], None
    number = (data or {}).get("errno")
    if type(number) is not int or not 0 < number < 1 << 16:
        found = _OS_ERROR.search(message)
        number = int(found[1]) if found else None
    reason = (data or {}).get("reason")
    kind: type[RpcError] = RpcError
    if code == ATTACHED:
        kind = SessionAttachedError
    elif reason == "execPolicy":
        kind = CommandRefusedError
    elif number is not None:
        kind = _BY_ERRNO.get(number, SystemCallError)
    elif code == NOT_FOUND:
        kind, number = NotFoundError, _errno.ENOENT
    elif filename is not None:
        # A request about a file fails with an OSError, as open() does.
        kind, number = SystemCallError, _errno.EINVAL
    return kind(code, message, data, errno=number, filename=filename)


def retryable(error: BaseException) -> bool:
    """Report whether the call that raised the error may be repeated: it was not carried out, and may succeed."""
    return isinstance(error, AgentError) and error.retryable


E = TypeVar("E", bound=BaseException)


def again(error: E) -> E:
    """Return an error that was kept, to be raised once more: a copy, so that tracebacks do not grow together."""
    if isinstance(error, AgentError):
        fresh = _rebuild(type(error), error.args, _state(error), error.__cause__)
        return cast("E", fresh)
    return error
