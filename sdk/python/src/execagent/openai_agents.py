"""An agent as a sandbox of the OpenAI Agents SDK: ``pip install 'execagent[openai-agents]'``.

    client = ExecagentSandboxClient("ws://127.0.0.1:7000", sandbox=Sandbox(workspace="."))
    config = RunConfig(sandbox=SandboxRunConfig(client=client))
    result = await Runner.run(sandbox_agent, "Mend the tests.", run_config=config)

A sandbox session is a session with a name on the agent. Its commands outlive a lost connection, and the session can be
resumed from its state (docs/integrations/openai-agents.md).
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import errno
import functools
import io
import logging
import os
import posixpath
import shutil
import stat
import tarfile
import tempfile
import time
import uuid
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Annotated, Any, Literal, TypeVar, Unpack, cast

from agents.sandbox.errors import (
    ExecNonZeroError,
    ExecTimeoutError,
    ExecTransportError,
    ExposedPortUnavailableError,
    InvalidManifestPathError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceRootNotFoundError,
    WorkspaceStartError,
)
from agents.sandbox.files import EntryKind, FileEntry
from agents.sandbox.manifest import Manifest
from agents.sandbox.session import (
    BaseSandboxClient,
    BaseSandboxClientOptions,
    BaseSandboxSession,
    Dependencies,
    Instrumentation,
    SandboxSession,
    SandboxSessionState,
)
from agents.sandbox.session.mount_lifecycle import with_ephemeral_mounts_removed
from agents.sandbox.session.pty_output import collect_pty_output
from agents.sandbox.session.pty_types import (
    PTY_PROCESSES_MAX,
    PTY_PROCESSES_WARNING,
    PtyExecUpdate,
    allocate_pty_process_id,
    clamp_pty_yield_time_ms,
    process_id_to_prune_from_meta,
    resolve_pty_write_yield_time_ms,
)
from agents.sandbox.session.workspace_payloads import coerce_write_payload
from agents.sandbox.snapshot import SnapshotBase, SnapshotSpec, resolve_snapshot
from agents.sandbox.types import ExecResult, ExposedPortEndpoint, Permissions, User
from agents.sandbox.util.tar_utils import (
    UnsafeTarMemberError,
    should_skip_tar_member,
    strip_tar_member_prefix,
    validate_tarfile,
)
from agents.sandbox.workspace_paths import coerce_posix_path, posix_path_as_path
from pydantic import Field

from . import _wire as wire
from ._adapter import Options, Ref, SessionGoneError, Shared, Workspace, end_session, left_out, not_started
from ._errors import (
    AgentError,
    ClosedError,
    ConnectError,
    CopyError,
    DisconnectedError,
    IsADirectoryError,
    NotADirectoryError,
    NotFoundError,
    OutputLimitError,
    RpcError,
    StdinError,
    SystemCallError,
    retryable,
    shown,
)
from ._files import DirEntry, Stat
from ._order import Exited, Output
from ._paths import native
from ._process import Held, Process, Result
from ._refusals import Refusals
from ._socket import Forward

T = TypeVar("T")
Failure = AgentError | OSError
Work = Callable[[Workspace], Coroutine[Any, Any, T]]

_log = logging.getLogger("execagent")

_BACKEND = "execagent"
_KIND = "openai-agents"
_DEFAULT_ROOT = str(Manifest.model_fields["root"].default)
_MAX_OUTPUT = 64 << 20  # bytes of each stream of a command that is run to its end
_MAX_UNREAD = 1 << 20  # bytes of output of a command in the background that wait for the next look at it
_MAX_WHOLE = 32 << 20  # bytes of a file that are held in memory
_MAX_FILE = 4 << 30  # bytes of a file that is read; a longer one is for download()
_BLOCK = 1 << 20
_TAKEN = 17  # the exit code of a script that finds that a name exists
_TO_WRITE = 30.0  # for how many seconds a command may leave its input unread
_AFTER_KILL = 10.0  # for how many seconds the end of a command is waited for that was killed
_SPECIAL = ": left out: neither a file nor a directory nor a link"  # what no archive of a workspace has
_KINDS = {"directory": EntryKind.DIRECTORY, "file": EntryKind.FILE, "symlink": EntryKind.SYMLINK}


class ExecagentSandboxClientOptions(BaseSandboxClientOptions):
    """What one sandbox session is made with. All else belongs to :class:`ExecagentSandboxClient`.

    - ``exposed_ports``: ports of the workspace that ``resolve_exposed_port`` may make reachable
    - ``pause_on_exit``: the end of a run, or ``client.delete``, leaves the session and its workspace. They can be
      resumed for the time that ``retain`` of the client says
    """

    type: Literal["execagent"] = "execagent"
    exposed_ports: tuple[Annotated[int, Field(ge=1, le=65535)], ...] = ()
    pause_on_exit: bool = False


class ExecagentSandboxSessionState(SandboxSessionState):
    """What a sandbox session is resumed from. ``ref`` names the session on the agent; no token and no key is in it."""

    type: Literal["execagent"] = "execagent"
    ref: str
    pause_on_exit: bool = False


@dataclass
class _Pty:
    """A command that the model may look at again. Only the event loop of the session uses it."""

    process: Process
    tty: bool
    unread: Held = field(default_factory=lambda: Held(_MAX_UNREAD // 2, _MAX_UNREAD // 2))
    taken: deque[bytes] = field(default_factory=deque)
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    done: asyncio.Event = field(default_factory=asyncio.Event)
    last_used: float = field(default_factory=time.monotonic)
    exit_code: int | None = None
    error: Exception | None = None
    pump: asyncio.Task[None] | None = None

    async def read(self) -> None:
        """Take the output until the command exits. What it leaves in the background goes on."""
        try:
            async for event in self.process:
                if isinstance(event, Output):
                    self.unread.add(event.data, event.omitted)
                elif isinstance(event, Exited):
                    self.exit_code = event.exit_code
                    self.unread.add(_told(event.refusals), 0)
                    return
            raise ClosedError("the command has ended, and its exit code did not come")
        except Exception as error:
            self.error = error
        finally:
            self.process.close()
            self.done.set()

    async def take(self, _: float) -> None:
        """Give out the output that waits."""
        held, self.unread = self.unread, Held(_MAX_UNREAD // 2, _MAX_UNREAD // 2)
        if data := held.joined(left_out(held.omitted).encode()):
            self.taken.append(data)

    async def wait(self, seconds: float) -> None:
        """Wait for the exit. Output alone ends no wait, and so it is bounded."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.done.wait()

    async def end(self) -> None:
        """Kill the command, and wait until it has ended."""
        try:
            if not self.done.is_set():
                await self.process.kill()
                await self.wait(_AFTER_KILL)
        except AgentError as error:
            _log.debug("a command of a sandbox session was not killed: %s", error)
        finally:
            if self.pump is not None:
                self.pump.cancel()
                await asyncio.gather(self.pump, return_exceptions=True)


class ExecagentSandboxSession(BaseSandboxSession):
    """A workspace of an agent. :class:`ExecagentSandboxClient` makes it.

    Commands, and the files that the harness reads and writes, are confined by the sandbox of the client. Only the
    archive of a snapshot is not: the agent reads and writes it within the workspace.
    """

    state: ExecagentSandboxSessionState

    def __init__(
        self, state: ExecagentSandboxSessionState, share: Callable[[str | None, str, bool], Shared], *, existing: bool
    ) -> None:
        self.state = state
        self._share = share
        self._existing = existing
        self._started = False
        self._shared = self._reach()
        self._ptys: dict[int, _Pty] = {}
        self._forwards: dict[int, tuple[Workspace, Forward]] = {}

    @property
    def owns_root(self) -> bool:
        """Whether the workspace is a directory that was made for this session alone, and ends with it."""
        return self.state.manifest.root == root_of(self.state.session_id)

    def _reach(self) -> Shared:
        return self._share(Ref.parse(self.state.ref).session, self.state.manifest.root, self._existing)

    async def _call(self, work: Work[T], failed: Callable[[Failure], Exception] | None = None) -> T:
        """Do work in the workspace. What goes wrong there becomes an error of the harness."""
        try:
            if not self._started:
                raise ClosedError("the sandbox session is not started: call start(), or use it in 'async with'")
            return await self._shared.call(work)
        except (AgentError, OSError) as error:
            wrapped = error if failed is None else failed(error)
            if wrapped is error:
                raise
            raise wrapped from error

    # The life of the session.

    async def _ensure_backend_started(self) -> None:
        preserved = self._existing
        try:
            made = await self._shared.call(self._open)
        except SessionGoneError:
            # The agent has no such session any more, so its name is not used again.
            await self._shared.aclose()
            preserved = False
            self._shared = self._share(None, self.state.manifest.root, False)
            self.state.ref = str(self._shared.ref)
            made = await self._shared.call(self._open)
        self._existing = self._started = True
        preserved = preserved and not made
        self._set_start_state_preserved(preserved)
        if not preserved:
            self.state.workspace_root_ready = False

    async def _open(self, w: Workspace) -> bool:
        """Report whether the workspace was missing, and was made."""
        made = w.made
        if made and self.owns_root:
            # The directory that was made may be readable for all, so it is replaced by one that is not.
            parent, name = posixpath.split(w.cwd)
            await w.unpack(_private(f"{name}.new"), parent)
            try:
                await w.agent.fs.rename(f"{w.cwd}.new", w.cwd)
            except SystemCallError:
                # It was made by a later connection, and a command has filled it meanwhile.
                await w.agent.fs.remove(f"{w.cwd}.new", missing_ok=True)
        w.made = False
        return made

    def _wrap_start_error(self, error: Exception) -> Exception:
        if not isinstance(error, (AgentError, OSError)):
            return error
        return WorkspaceStartError(
            path=self._workspace_root_path(),
            context=_context(error),
            cause=error,
            message=f"failed to start the session: {error}",
            retryable=_may_retry(error),
        )

    async def running(self) -> bool:
        """Report whether the agent answers in this session. While a lost connection is recovered, this waits."""
        try:
            answer = await self._call(lambda w: w.agent.request(wire.ENVIRONMENT_STATUS, {}))
        except (AgentError, OSError):
            return False
        return cast("dict[str, object]", answer).get("status") == "ready"

    async def _shutdown_backend(self) -> None:
        self._started = False
        await self._shared.aclose()
        self._forwards.clear()
        self._shared = self._reach()

    async def destroy(self) -> None:
        """End the session at the agent, with all that runs in it, and remove a workspace that was made for it."""
        await self.shutdown()
        helper = self._share(None, "/", False)

        async def end(w: Workspace) -> None:
            await end_session(w.agent, Ref.parse(self.state.ref).session)
            if self.owns_root:
                await w.agent.fs.remove(self.state.manifest.root, recursive=True, missing_ok=True)

        try:
            await helper.call(end)
            await helper.end()
        finally:
            await helper.aclose()

    # Commands.

    async def exec(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
    ) -> ExecResult:
        """Run a command to its end."""
        if user is None:
            return await super().exec(*command, timeout=timeout, shell=shell)
        return await self._execute(self._prepare_exec_command(*command, shell=shell, user=None), timeout, user)

    async def _exec_internal(self, *command: str | Path, timeout: float | None = None) -> ExecResult:
        return await self._execute([str(word) for word in command], timeout)

    async def _execute(
        self, argv: list[str], timeout: float | None, user: str | User | None = None, data: bytes | None = None
    ) -> ExecResult:
        env = await self.state.manifest.environment.resolve()
        late = None if timeout is None else max(timeout, 0.001)

        async def run(w: Workspace) -> Result:
            command, more = _as_user(w, argv, user)
            try:
                return await w.run(
                    command, env=env, input=data, timeout=late, max_output=_MAX_OUTPUT, overflow="error", **more
                )
            except RpcError as error:
                return not_started(command[0], error)

        result = await self._call(run, lambda error: self._no_result(error, argv, timeout))
        if result.timed_out:
            raise ExecTimeoutError(command=argv, timeout_s=timeout, context={"backend": _BACKEND})
        return ExecResult(
            stdout=result.stdout, stderr=result.stderr + _told(result.refusals), exit_code=result.exit_code
        )

    def _no_result(self, error: Failure, argv: Sequence[str], timeout: float | None) -> Exception:
        """Return why a command has no result."""
        if isinstance(error, TimeoutError) and not isinstance(error, ConnectError):
            return ExecTimeoutError(command=argv, timeout_s=timeout, cause=error)
        if isinstance(error, NotFoundError) and error.what == "cwd":
            return WorkspaceRootNotFoundError(path=self._workspace_root_path(), cause=error)
        return _transport(error, argv)

    # Commands that the model may look at again.

    def supports_pty(self) -> bool:
        """Report that commands can go on in the background."""
        return True

    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Start a command, and return what it has printed when it ends, or when the time is up."""
        argv = self._prepare_exec_command(*command, shell=shell, user=None)
        env = await self.state.manifest.environment.resolve()
        wait = clamp_pty_yield_time_ms(_milliseconds(yield_time_s, 10_000))

        async def start(w: Workspace) -> PtyExecUpdate:
            words, more = _as_user(w, argv, user)
            try:
                async with asyncio.timeout(timeout):
                    process = await w.spawn(words, env=env, tty=tty, **more)
            except RpcError as error:
                refused = not_started(words[0], error)
                return PtyExecUpdate(None, refused.stderr, refused.exit_code, None)
            pty = _Pty(process, tty)
            try:
                number = await self._register(pty)
                return await self._update(number, pty, wait, max_output_tokens)
            except BaseException:
                if pty.exit_code is None:  # nobody knows its number, so nobody would end it
                    self._ptys = {number: each for number, each in self._ptys.items() if each is not pty}
                    process.abandon(ClosedError("the command was given up"))
                raise

        return await self._call(start, lambda error: self._no_result(error, argv, timeout))

    async def _register(self, pty: _Pty) -> int:
        pty.pump = asyncio.create_task(pty.read())
        oldest: _Pty | None = None
        if len(self._ptys) >= PTY_PROCESSES_MAX:
            known = [(number, each.last_used, each.done.is_set()) for number, each in self._ptys.items()]
            number = process_id_to_prune_from_meta(known)
            oldest = None if number is None else self._ptys.pop(number)
        number = allocate_pty_process_id(set(self._ptys))
        self._ptys[number] = pty
        if len(self._ptys) >= PTY_PROCESSES_WARNING:
            _log.warning("a sandbox session has %d commands, and keeps %d", len(self._ptys), PTY_PROCESSES_MAX)
        if oldest is not None:
            await oldest.end()
        return number

    async def _update(self, number: int, pty: _Pty, wait: int, most: int | None) -> PtyExecUpdate:
        output, tokens, ended = await collect_pty_output(
            output_chunks=pty.taken,
            output_lock=pty.lock,
            output_notify=pty.done,
            is_done=pty.done.is_set,
            yield_time_ms=wait,
            max_output_tokens=most,
            poll_output=pty.take,
            wait_for_output=pty.wait,
        )
        if not ended:
            return PtyExecUpdate(number, output, None, tokens)
        self._ptys.pop(number, None)
        if pty.error is not None:
            raise _transport(pty.error, (), started=True, output=output) from pty.error
        return PtyExecUpdate(None, output, pty.exit_code, tokens)

    async def pty_write_stdin(
        self,
        *,
        session_id: int,
        chars: str,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Give a command with a terminal input, and return what it has printed since."""
        wait = resolve_pty_write_yield_time_ms(yield_time_ms=_milliseconds(yield_time_s, 250), input_empty=chars == "")

        async def write(_: Workspace) -> PtyExecUpdate:
            pty = self._resolve_pty_session_entry(pty_processes=self._ptys, session_id=session_id)
            if chars:
                if not pty.tty:
                    raise RuntimeError("stdin is not available for this process")
                try:
                    async with asyncio.timeout(_TO_WRITE):
                        await pty.process.stdin.write(chars.encode(errors="replace"))
                except StdinError:
                    pass  # a command that has ended takes no input, and the update says so
                except TimeoutError as error:
                    raise TimeoutError("the command does not read its input: a part of it was not written") from error
            update = await self._update(session_id, pty, wait, max_output_tokens)
            pty.last_used = time.monotonic()
            return update

        return await self._call(write, lambda error: _transport(error, ("write_stdin", str(session_id))))

    async def pty_terminate_all(self) -> None:
        """Kill all these commands."""
        if not self._ptys:
            return

        async def end(_: Workspace) -> None:
            ending = list(self._ptys.values())
            self._ptys.clear()
            await asyncio.gather(*(each.end() for each in ending))

        try:
            await self._call(end)
        except (AgentError, OSError) as error:
            self._ptys.clear()  # they have ended with the session
            _log.debug("the commands of a sandbox session were not killed: %s", error)

    async def _resolve_exposed_port(self, port: int) -> ExposedPortEndpoint:
        async def forward(w: Workspace) -> int:
            known, found = self._forwards.get(port, (None, None))
            if found is None or known is not w:
                found = await w.stack.enter_async_context(w.agent.forward(port, sandbox=w.plan))
                self._forwards[port] = w, found
            return found.port

        def failed(error: Failure) -> Exception:
            return ExposedPortUnavailableError(
                port=port,
                exposed_ports=self.state.exposed_ports,
                reason="backend_unavailable",
                context=_context(error),
                cause=error,
                retryable=_may_retry(error),
            )

        here = await self._call(forward, failed)
        return ExposedPortEndpoint(host="127.0.0.1", port=here)

    # Files.

    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        return await self._validated(path, for_write)

    async def _validated(self, path: Path | str, for_write: bool, *, tree: bool = False) -> Path:
        """Check a path, and where its links lead. With ``tree``, what is below it is going to be removed."""
        policy = self._workspace_path_policy()
        at = policy.normalize_sandbox_path(path, for_write=for_write)
        rules = policy.extra_path_grant_rules()
        asked = [at, policy.sandbox_root(), *(granted for granted, _ in rules)]

        async def resolve(w: Workspace) -> list[PurePosixPath]:
            found = await asyncio.gather(*(w.agent.fs.realpath(str(each), missing_ok=True) for each in asked))
            return [PurePosixPath(each) for each in found]

        try:
            found, root, *grants = await self._call(resolve, _failure("realpath", at, unless=NotADirectoryError))
        except NotADirectoryError:
            return posix_path_as_path(at)  # so is what the caller does there
        if PurePosixPath("/") in grants:
            raise ValueError("an extra path grant leads to the root of the file system")
        wanted = [found]
        if tree:
            wanted += [
                each for each, (_, fixed) in zip(grants, rules, strict=True) if fixed and each.is_relative_to(found)
            ]
        for each in wanted:
            if each.is_relative_to(root):
                continue
            near = [
                (len(base.parts), fixed)
                for base, (_, fixed) in zip(grants, rules, strict=True)
                if each.is_relative_to(base)
            ]
            if not near:
                original = coerce_posix_path(path)
                raise InvalidManifestPathError(
                    rel=original.as_posix(),
                    reason="absolute" if original.is_absolute() else "escape_root",
                    context={"resolved_path": str(each)},
                )
            if for_write and max(near)[1]:
                raise WorkspaceArchiveWriteError(
                    path=posix_path_as_path(at),
                    context={"reason": "read_only_extra_path_grant", "resolved_path": str(each)},
                )
        return posix_path_as_path(at)

    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        """Return the content of a file."""
        if user is None:
            at = await self._validate_path_access(path)
        else:
            at = await self._check_read_with_exec(path, user=user)

        async def load(w: Workspace) -> io.IOBase:
            try:
                return io.BytesIO(await w.fs.read(str(at), max_bytes=_MAX_WHOLE))
            except OutputLimitError:
                pass
            left = (await w.fs.stat(str(at))).size  # a file that grows has no end
            if left > _MAX_FILE:
                raise OSError(errno.EFBIG, f"{os.strerror(errno.EFBIG)}: more than {_MAX_FILE} bytes", str(at))
            spool = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it
            try:
                async with await w.fs.open(str(at)) as file:
                    async for block in file:
                        await asyncio.to_thread(spool.write, block[:left])
                        left -= len(block)
                        if left <= 0:
                            break
                spool.seek(0)
            except BaseException:
                spool.close()
                raise
            return cast("io.IOBase", spool)

        return await self._call(lambda w: w.again(lambda: load(w)), functools.partial(_read_error, path))

    async def _read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        at = await self._validate_path_access(path)

        async def load(w: Workspace) -> bytes:
            async with await w.fs.open(str(at)) as file:
                return await file.read_at(0, max_bytes)

        return await self._call(lambda w: w.again(lambda: load(w)), functools.partial(_read_error, path))

    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        """Create or replace a file, and missing directories of its path."""
        await self._store(path, data, user, new=False)

    async def _write_new_file(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        await self._store(path, data, user, new=True)

    async def _store(self, path: Path, data: io.IOBase, user: str | User | None, *, new: bool) -> None:
        at = await self._validate_path_access(path, for_write=True)
        source = coerce_write_payload(path=path, data=data).stream
        if user is not None:
            taken = f'[ -e "$1" ] || [ -L "$1" ] && exit {_TAKEN}; set -C; ' if new else ""
            script = taken + 'mkdir -p -- "$(dirname -- "$1")" && cat >"$1"'
            result = await self._execute(["sh", "-c", script, "sh", str(at)], None, user, source.read())
            if new and result.exit_code == _TAKEN:
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(at))
            if not result.ok():
                raise WorkspaceArchiveWriteError(
                    path=at, context={"stderr": result.stderr.decode(errors="replace"), "exit_code": result.exit_code}
                )
            return

        async def store(w: Workspace) -> None:
            first = source.read(_MAX_WHOLE)
            more = source.read(_BLOCK) if len(first) == _MAX_WHOLE else b""
            if not more:
                write = functools.partial(w.fs.write, str(at), first, parents=True, exclusive=new)
                return await (write() if new else w.again(write))
            await w.fs.write(str(at), b"", parents=True, exclusive=new)
            async with await w.fs.open(str(at), "write") as file:
                await file.write_at(first, 0)
                offset = len(first)
                while more:
                    await file.write_at(more, offset)
                    offset += len(more)
                    more = source.read(_BLOCK)

        # A FileExistsError tells the tool that the name is taken.
        await self._call(store, lambda error: error if isinstance(error, FileExistsError) else _write_error(at, error))

    async def mkdir(self, path: Path | str, *, parents: bool = False, user: str | User | None = None) -> None:
        """Make a directory."""
        if user is not None:
            return await super().mkdir(path, parents=parents, user=user)
        at = await self._validate_path_access(path, for_write=True)

        async def mkdir(w: Workspace) -> None:
            try:
                make = functools.partial(w.fs.mkdir, str(at), parents=parents)
                await (w.again(make) if parents else make())
            except SystemCallError:
                # A sandbox that may not write there refuses a directory that exists, too.
                if not (parents and await _is_directory(w, str(at))):
                    raise

        await self._call(mkdir, functools.partial(_write_error, at))

    async def ls(self, path: Path | str, *, user: str | User | None = None) -> list[FileEntry]:
        """List a directory."""
        if user is not None:
            return await super().ls(path, user=user)
        at = await self._validate_path_access(path)

        async def look(w: Workspace) -> list[FileEntry]:
            try:
                known = await w.fs.list(str(at), follow=False)
            except NotADirectoryError:
                return [_entry(str(at), await w.fs.stat(str(at), follow=False))]
            # Of some names, such as those that are no text, only the list knows something.
            found = zip(known, await w.fs.stat_many([each.path for each in known], follow=False), strict=True)
            return [_entry(each.path, stat if isinstance(stat, Stat) else each) for each, stat in found]

        return await self._call(look, _failure("ls", "-la", "--", at))

    async def rm(self, path: Path | str, *, recursive: bool = False, user: str | User | None = None) -> None:
        """Remove a file, or with ``recursive`` a tree, which may be missing."""
        if user is not None:
            return await super().rm(path, recursive=recursive, user=user)
        at = await self._validated(path, True, tree=recursive)

        async def rm(w: Workspace) -> None:
            if not recursive and (await w.fs.stat(str(at), follow=False)).is_dir:
                raise IsADirectoryError(0, "Is a directory", errno=errno.EISDIR, filename=str(at))
            remove = functools.partial(w.fs.remove, str(at), recursive=recursive, missing_ok=recursive)
            await (w.again(remove) if recursive else remove())

        missing = _failure("rm", "--", at)
        await self._call(rm, lambda e: missing(e) if isinstance(e, NotFoundError) else _write_error(at, e))

    async def mv(self, source: Path | str, destination: Path | str, *, user: str | User | None = None) -> None:
        """Rename a file or a link, also onto another one."""
        if user is not None:
            return await super().mv(source, destination, user=user)
        at = await self._validate_path_access(source, for_write=True)
        to = await self._validate_path_access(destination, for_write=True)

        async def move(w: Workspace) -> None:
            kind = (await w.fs.stat(str(at), follow=False)).type
            if kind not in ("file", "symlink"):
                raise SystemCallError(0, f"it is a {kind}", errno=errno.EINVAL, filename=str(at))
            await w.fs.rename(str(at), str(to), replace=True)

        await self._call(move, _failure("mv", "-fT", "--", at, to))

    # Snapshots.

    async def persist_workspace(self) -> io.IOBase:
        """Return an archive of the workspace."""
        return await with_ephemeral_mounts_removed(
            self,
            self._persist,
            error_path=self._workspace_root_path(),
            error_cls=WorkspaceArchiveReadError,
            operation_error_context_key="snapshot_error_before_remount_corruption",
        )

    async def _persist(self) -> io.IOBase:
        root, skip = self.state.manifest.root, self._persist_workspace_skip_relpaths()
        archive = tempfile.TemporaryFile()  # noqa: SIM115 - the caller closes it

        async def pack(w: Workspace) -> None:
            try:
                await w.pack(w.cwd, archive)
            except CopyError as error:
                left_out = tuple(f"{w.cwd}/{each.as_posix()}" for each in skip)
                if not all(line.endswith(_SPECIAL) or line.startswith(left_out) for line in error.omitted or ("",)):
                    raise

        try:
            await self._call(pack)
            return await asyncio.to_thread(_portable, cast("io.IOBase", archive), root, skip)
        except BaseException as error:
            archive.close()
            if not isinstance(error, (AgentError, OSError, tarfile.TarError, UnsafeTarMemberError)):
                raise
            raise WorkspaceArchiveReadError(
                path=self._workspace_root_path(), context=_context(error), cause=error, retryable=_may_retry(error)
            ) from error

    async def hydrate_workspace(self, data: io.IOBase) -> None:
        """Read an archive into the workspace."""
        await self._restore(data, clear=False)

    async def _restore_snapshot_into_workspace_on_resume(self) -> None:
        archive = await self.state.snapshot.restore(dependencies=self.dependencies)
        with contextlib.closing(archive):
            await self._restore(archive, clear=True)

    async def _remove_workspace_entry_on_resume(self, path: Path) -> None:
        # The entry itself is removed, wherever it leads to.
        at = await self._validated(path.parent, True) / path.name

        async def remove(w: Workspace) -> None:
            await w.again(functools.partial(w.fs.remove, str(at), recursive=True, missing_ok=True))

        await self._call(remove, functools.partial(_write_error, at))

    async def _restore(self, data: io.IOBase, *, clear: bool) -> None:
        await with_ephemeral_mounts_removed(
            self,
            lambda: self._hydrate(data, clear),
            error_path=self._workspace_root_path(),
            error_cls=WorkspaceArchiveWriteError,
            operation_error_context_key="hydrate_error_before_remount_corruption",
        )

    async def _hydrate(self, data: io.IOBase, clear: bool) -> None:
        root = self._workspace_root_path()
        with tempfile.TemporaryFile() as spool:
            try:
                tar = await asyncio.to_thread(_checked, data, spool)
                with tar:
                    if clear:  # not before the archive is known to be good
                        await self._clear_workspace_root_on_resume()
                    await self._call(lambda w: _unpack(w, cast("IO[bytes]", tar.fileobj)))
            except UnsafeTarMemberError as error:
                raise WorkspaceArchiveWriteError(
                    path=root, context={"reason": error.reason, "member": error.member}, cause=error
                ) from error
            except (AgentError, OSError, EOFError, tarfile.TarError, TypeError) as error:
                raise _write_error(root, error) from error


class ExecagentSandboxClient(BaseSandboxClient[ExecagentSandboxClientOptions | None]):
    """Makes and resumes sandbox sessions on an agent: the client of ``SandboxRunConfig``.

    The agent is the one at a URL, with ``token`` or ``token_file``; or the one of a ``context`` of the command line; or
    ``connect`` reaches it, such as ``functools.partial(execagent.connect, registry=…, environment_id=…)``, which can
    also answer questions. Without all of these it is the agent of the environment.

    - ``cwd``: the workspace of manifests that name none. By default each session has a new directory below /tmp, which
      ends with it
    - ``sandbox``: what commands and files may do; relative paths begin at the workspace
    - ``retain``: for how many seconds the agent keeps a session, and what runs in it, while nothing holds it
    - ``env``, ``env_policy``, ``memory``, ``cpus``, ``pids``, ``file_size``, ``user``, ``exec_approval``: for each
      command, as for :meth:`execagent.Agent.spawn`

    None of this is in the state of a session, so a state that was changed cannot change it.
    """

    backend_id = _BACKEND
    supports_default_options = True

    def __init__(
        self,
        url: str | None = None,
        *,
        instrumentation: Instrumentation | None = None,
        dependencies: Dependencies | None = None,
        **options: Unpack[Options],
    ) -> None:
        for name in ("session", "existing", "take"):
            if options.get(name):
                raise ValueError(f"{name} cannot be used here, because each sandbox session has a session of its own")
        self._url = url
        self._options = options
        self._instrumentation = instrumentation if instrumentation is not None else Instrumentation()
        self._dependencies = dependencies
        self._share(None, "/", False)  # so that wrong options are refused here

    def _share(self, session: str | None, cwd: str, existing: bool) -> Shared:
        return Shared(
            self._url,
            _KIND,
            cast("Options", {**self._options, "session": session, "cwd": cwd, "existing": existing, "take": existing}),
        )

    async def create(
        self,
        *,
        snapshot: SnapshotSpec | SnapshotBase | None = None,
        manifest: Manifest | None = None,
        options: ExecagentSandboxClientOptions | None = None,
    ) -> SandboxSession:
        """Make a session. It connects when it is started."""
        chosen = options if options is not None else ExecagentSandboxClientOptions()
        session_id = uuid.uuid4()
        manifest = self._validate_manifest_for_create(manifest if manifest is not None else Manifest())
        if manifest.root == _DEFAULT_ROOT:
            cwd = self._options.get("cwd")
            root = root_of(session_id) if cwd is None else native(cwd, "cwd")
            manifest = manifest.model_copy(update={"root": root}, deep=True)
        state = ExecagentSandboxSessionState(
            session_id=session_id,
            snapshot=resolve_snapshot(snapshot, str(session_id)),
            manifest=manifest,
            exposed_ports=chosen.exposed_ports,
            ref=str(self._share(None, manifest.root, False).ref),
            pause_on_exit=chosen.pause_on_exit,
        )
        inner = ExecagentSandboxSession(state, self._share, existing=False)
        return self._wrap_session(inner, instrumentation=self._instrumentation)

    async def resume(self, state: SandboxSessionState) -> SandboxSession:
        """Return a session that attaches to the one on the agent, or makes a new one if that is gone."""
        if not isinstance(state, ExecagentSandboxSessionState):
            raise TypeError(f"state is {type(state).__name__}, and must be an ExecagentSandboxSessionState")
        state.assert_path_grants_rebound()
        if not Ref.parse(state.ref).session.startswith(f"{_KIND}-"):
            # A state may have been changed, and must not lead into a session of somebody else.
            raise ValueError(f"state.ref is {shown(state.ref)}, and must be that of a sandbox session")
        inner = ExecagentSandboxSession(state, self._share, existing=True)
        return self._wrap_session(inner, instrumentation=self._instrumentation)

    async def delete(self, session: SandboxSession) -> SandboxSession:
        """End a session at the agent, unless it has ``pause_on_exit``."""
        inner = session._inner
        if not isinstance(inner, ExecagentSandboxSession):
            raise TypeError(f"session is {type(inner).__name__}, and must be an ExecagentSandboxSession")
        try:
            if inner.state.pause_on_exit:
                await inner.shutdown()
            else:
                await inner.destroy()
        except (AgentError, OSError) as error:
            _log.warning("the session %s was not ended at the agent: %s", inner.state.ref, error)
        return session

    def deserialize_session_state(self, payload: dict[str, object]) -> SandboxSessionState:
        """Read a state that ``serialize_session_state`` has made."""
        return self._deserialize_session_state_payload(payload, ExecagentSandboxSessionState)


def root_of(session_id: uuid.UUID) -> str:
    """Return the directory that is made for one session."""
    return f"/tmp/{_KIND}-{session_id.hex}"


def _milliseconds(seconds: float | None, default: int) -> int:
    return default if seconds is None else int(seconds * 1000)


def _as_user(w: Workspace, argv: list[str], user: str | User | None) -> tuple[list[str], dict[str, Any]]:
    """Return how a command is run as a user: by the agent, or where it cannot do that by sudo."""
    name = user.name if isinstance(user, User) else user
    if not name:
        return argv, {}
    if w.plan is None and "processRunAs" in w.info.capabilities:
        return argv, {"user": name}
    return ["sudo", "-n", "-u", name, "--", *argv], {}


def _told(refusals: Refusals | None) -> bytes:
    """Return what the sandbox has refused to a command, for the model."""
    if refusals is None:
        return b""
    lines = [each.text for each in refusals.list] + ([refusals.note] if refusals.note else [])
    return "".join(f"{line}\n" for line in lines).encode()


def _may_retry(error: BaseException) -> bool | None:
    """Report whether the same call may be made again; None: it may have been carried out."""
    if retryable(error):
        return True
    return None if isinstance(error, DisconnectedError) and error.sent else False


def _context(error: BaseException) -> dict[str, object]:
    return {"backend": _BACKEND, "detail": f"{type(error).__name__}: {error}"}


def _transport(
    error: BaseException, argv: Sequence[str], *, started: bool = False, output: bytes = b""
) -> ExecTransportError:
    again = None if started else _may_retry(error)
    context = {**_context(error), "retry_safe": again is True}
    if output:
        context["output"] = output[-4096:].decode(errors="replace")
    return ExecTransportError(
        command=argv,
        context=context,
        cause=error,
        message=f"the agent has no result of the command: {error}",
        retryable=again,
    )


def _failure(*command: object, unless: type[Exception] | tuple[()] = ()) -> Callable[[Failure], Exception]:
    """Return what makes the error that the harness expects of a command in the place of a native call."""
    words = [str(word) for word in command]

    def failed(error: Failure) -> Exception:
        if isinstance(error, unless):
            return error
        if not isinstance(error, SystemCallError):
            return _transport(error, words)
        result = ExecResult(stdout=b"", stderr=str(error).encode(errors="replace"), exit_code=1)
        return ExecNonZeroError(result, command=words, context={"backend": _BACKEND}, cause=error)

    return failed


def _read_error(path: Path, error: Failure) -> Exception:
    if isinstance(error, NotFoundError):
        return WorkspaceReadNotFoundError(path=path, context=_context(error), cause=error)
    return WorkspaceArchiveReadError(path=path, context=_context(error), cause=error, retryable=_may_retry(error))


def _write_error(path: Path, error: BaseException) -> Exception:
    return WorkspaceArchiveWriteError(
        path=path,
        context=_context(error),
        cause=error,
        message=f"failed to write {path}: {error}",
        retryable=_may_retry(error),
    )


async def _is_directory(w: Workspace, path: str) -> bool:
    try:
        return (await w.fs.stat(path)).is_dir
    except SystemCallError:
        return False


def _entry(path: str, found: Stat | DirEntry) -> FileEntry:
    permissions = Permissions.from_mode((found.mode or 0) | (stat.S_IFDIR if found.type == "directory" else 0))
    owner, group = "?", "?"
    if isinstance(found, Stat):
        owner, group = found.owner or str(found.uid), found.group or str(found.gid)
    return FileEntry(
        path=path,
        permissions=permissions,
        owner=owner,
        group=group,
        size=found.size or 0,
        kind=_KINDS.get(found.type or "", EntryKind.OTHER),
    )


async def _unpack(w: Workspace, archive: IO[bytes]) -> None:
    await w.agent.fs.mkdir(w.cwd)
    await w.unpack(archive, w.cwd)


def _private(name: str) -> io.BytesIO:
    """Return an archive that makes a directory private."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        top = tarfile.TarInfo(name)
        top.type, top.mode, top.mtime = tarfile.DIRTYPE, 0o700, int(time.time())
        tar.addfile(top)
    archive.seek(0)
    return archive


def _portable(archive: io.IOBase, root: str, skip: Iterable[Path]) -> io.IOBase:
    """Return an archive that every backend restores: without what is skipped, without hard links, and with links that
    lead to files of the workspace by relative paths."""
    skipped = list(skip)

    def left_out(member: tarfile.TarInfo) -> bool:
        return should_skip_tar_member(member.name, skip_rel_paths=skipped, root_name=None)

    archive.seek(0)
    with tarfile.open(fileobj=cast("IO[bytes]", archive), mode="r:") as tar:
        members = tar.getmembers()
        if not any(
            left_out(each) or each.islnk() or (each.issym() and each.linkname.startswith("/")) for each in members
        ):
            validate_tarfile(tar)
            archive.seek(0)
            return archive
        renamed = tempfile.TemporaryFile()  # noqa: SIM115 - strip_tar_member_prefix closes it
        with tarfile.open(fileobj=renamed, mode="w") as out:
            for each in members:
                if left_out(each):
                    continue
                content = tar.extractfile(each) if each.isreg() or each.islnk() else None
                moved = copy.copy(each)
                moved.name, moved.pax_headers = posixpath.join(_KIND, each.name), {}
                if each.islnk() and content is not None:
                    moved.type, moved.linkname = tarfile.REGTYPE, ""
                    moved.size = content.seek(0, io.SEEK_END)
                    content.seek(0)
                out.addfile(moved, content)
    archive.close()
    renamed.seek(0)
    return strip_tar_member_prefix(cast("io.IOBase", renamed), prefix=_KIND, relativize_symlinks_under=root)


def _checked(data: io.IOBase, spool: IO[bytes]) -> tarfile.TarFile:
    """Copy an archive, so that nobody changes it any more, and check that it stays within the workspace."""
    shutil.copyfileobj(cast("IO[bytes]", data), spool)
    spool.seek(0)
    tar = tarfile.open(fileobj=spool, mode="r:*")  # noqa: SIM115 - the caller closes it
    try:
        validate_tarfile(tar, allow_external_symlink_targets=False)
        assert tar.fileobj is not None
        tar.fileobj.seek(0)
    except BaseException:
        tar.close()
        raise
    return tar


__all__ = [
    "ExecagentSandboxClient",
    "ExecagentSandboxClientOptions",
    "ExecagentSandboxSession",
    "ExecagentSandboxSessionState",
]
