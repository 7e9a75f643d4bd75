"""The client of an agent, for asyncio."""

from __future__ import annotations

import asyncio
import builtins
import os
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple, Self, TypedDict, Unpack, cast

from . import _wire as wire
from ._bounds import MAX_AGENT_OUTPUT, Size, limits_of, read_size, run_as
from ._core import Core, Session, State
from ._errors import (
    AgentError,
    BusyError,
    ClosedError,
    CommandError,
    DisconnectedError,
    ProtocolError,
    RecoveringError,
    RpcError,
    TimeoutError,
    shown,
)
from ._files import Files
from ._http import Http
from ._info import Info
from ._link import PAUSE
from ._paths import RemotePath, native, uri_of
from ._process import Kept, Overflow, Process, Result, Signal, started_of
from ._record import Record
from ._sandbox import EnvPolicy, Plan, Sandbox, make_plan
from ._socket import Forward, Socket, address_of
from ._stdin import Data, bytes_of
from ._watch import Ports, PortWatch, ports_of

_WATCH_WAIT = 300_000  # milliseconds that one request of an observer lets the server wait
_WATCH_BYTES = 256 << 10


class Tty(NamedTuple):
    """The size of a terminal, in characters."""

    rows: int = 24
    cols: int = 80


class ExecApproval(NamedTuple):
    """A policy of the client about commands. The stricter of it and of the agent's own holds (docs/execpolicy.md).

    ``rules`` are the texts of files of rules, by name. ``unmatched`` is the decision about commands that no rule
    matches: allow, prompt or forbidden. ``timeout`` is for how many seconds a question waits.
    """

    rules: Mapping[str, str]
    unmatched: str = "allow"
    opaque: str | None = None
    forced_rm: str | None = None
    enforce: str | None = None
    timeout: float | None = None
    report: str | None = None

    def wire(self) -> dict[str, Any]:
        """Return the policy in the form of the wire."""
        policy: dict[str, Any] = {
            "rules": [{"name": name, "text": text} for name, text in self.rules.items()],
            "unmatched": self.unmatched,
        }
        for name, value in (
            ("opaque", self.opaque),
            ("forcedRm", self.forced_rm),
            ("enforce", self.enforce),
            ("report", self.report),
            ("timeoutMs", None if self.timeout is None else round(self.timeout * 1000)),
        ):
            if value is not None:
                policy[name] = value
        return policy


class SpawnOptions(TypedDict, total=False):
    """The options of :meth:`Agent.spawn`."""

    cwd: RemotePath | None
    env: Mapping[str, str] | None
    env_policy: EnvPolicy | None
    stdin: bool
    kill_after: float | None
    max_output: Size | None
    memory: Size | None
    cpus: float | None
    pids: int | None
    file_size: Size | None
    user: str | None
    sandbox: Sandbox | Plan | None
    tty: Tty | bool
    id: str | None
    exec_approval: ExecApproval | None
    arg0: str | None
    builtin: bool


class RunOptions(TypedDict, total=False):
    """The options of :meth:`Agent.run`."""

    cwd: RemotePath | None
    env: Mapping[str, str] | None
    env_policy: EnvPolicy | None
    input: Data | None
    timeout: float | None
    kill_after: float | None
    max_output: Size | None
    overflow: Overflow | None
    check: bool
    memory: Size | None
    cpus: float | None
    pids: int | None
    file_size: Size | None
    user: str | None
    sandbox: Sandbox | Plan | None
    tty: Tty | bool
    exec_approval: ExecApproval | None


class ProcessInfo(NamedTuple):
    """A process of a session, that runs or whose output is kept. Times are seconds since 1970."""

    id: str
    argv: tuple[str, ...]
    pid: int
    tty: bool
    started: float
    exited: bool
    exit_code: int | None
    closed: bool
    next_seq: int


class SessionInfo(NamedTuple):
    """A session with a name. Times are seconds since 1970; ``expires`` is None while something holds it."""

    id: str
    name: str
    attached: bool
    client_name: str
    created: float
    retain: float
    expires: float | None
    running: int
    ended: int


class Chunk(NamedTuple):
    """Output of a process of another session. ``at`` is when it was read, in seconds since 1970.

    ``omitted`` is how many bytes of the stream were left out before ``data``, because of ``max_output``.
    """

    seq: int
    stream: str
    data: bytes
    at: float | None
    omitted: int = 0


class Agent:
    """A client of an agent: one session, over one connection after the other. :func:`execagent.connect` makes it."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self.fs = Files(core)
        """The files of the agent."""
        self.http = Http(core)
        """HTTP requests that the agent makes."""
        self.sessions = Sessions(core)
        """The sessions with a name."""

    # The client itself.

    @property
    def session_id(self) -> str:
        """The id of the session, for a later ``connect(session_id=…)``."""
        return self._core.session_id

    @property
    def session(self) -> Session | None:
        """What the agent says of a session that has a name, or whose time was given."""
        return self._core.session

    @property
    def state(self) -> State:
        """What the client is doing."""
        return self._core.state

    @property
    def generation(self) -> int:
        """How many connections the session has had with this client."""
        return self._core.generation

    @property
    def error(self) -> Exception | None:
        """Why the client has failed for good; None: it has not."""
        return self._core.failure

    async def wait_failed(self) -> Exception:
        """Wait until the client has failed for good, or was closed, and return why."""
        while self._core.failure is None:
            await self._core.changes.wait()
        return self._core.failure

    async def info(self) -> Info:
        """Describe the machine of the agent."""
        return await self._core.info()

    async def status(self) -> str:
        """Ask whether the agent is ready, for up to 10 s: then it is ``ready``.

        This never waits for a lost connection. While it is recovered, the error is a RecoveringError at once.
        """
        answer = await self._core.ask_now(wire.ENVIRONMENT_STATUS, {}, 10.0)
        return Record(wire.ENVIRONMENT_STATUS, answer).text("status")

    async def request(self, method: str, params: Mapping[str, object]) -> Any:
        """Make any request of the protocol, and return the result as it came.

        It is repeated after a lost connection only if the contract says that this is safe.
        """
        return await self._core.request(method, params)

    async def close(self) -> None:
        """End the client. The session lives on at the agent until it expires. Closing again is no error."""
        await self._core.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    # Commands.

    async def run(
        self,
        argv: Sequence[str],
        *,
        cwd: RemotePath | None = None,
        env: Mapping[str, str] | None = None,
        env_policy: EnvPolicy | None = None,
        input: Data | None = None,
        timeout: float | None = None,
        kill_after: float | None = None,
        max_output: Size | None = None,
        overflow: Overflow | None = None,
        check: bool = False,
        memory: Size | None = None,
        cpus: float | None = None,
        pids: int | None = None,
        file_size: Size | None = None,
        user: str | None = None,
        sandbox: Sandbox | Plan | None = None,
        tty: Tty | bool = False,
        exec_approval: ExecApproval | None = None,
    ) -> Result:
        """Run a command to its end, and return its output. Another exit code than 0 is no error, unless ``check``.

        ``argv`` is the program, found in the PATH of the command, and its arguments. No shell reads it.

        ``timeout`` bounds the waiting: its error, a TimeoutError, has the output so far. ``kill_after`` bounds the
        command, as for :meth:`spawn`: the result has ``timed_out``. If the waiting ends first, because of ``timeout``
        or because the task is cancelled, the command is killed, too, since nobody holds it.

        ``max_output`` is how many bytes of each stream are kept, 64 MiB by default. What happens beyond that is
        ``overflow``: ``truncate`` keeps the first half and the last half, and the result counts what is left out
        between. ``error`` kills the command and is an OutputLimitError. The default is ``truncate`` where
        ``max_output`` is given, and ``error`` otherwise. Up to 8 MiB, an agent with ``processMaxOutput`` leaves it out.

        ``memory``, ``cpus``, ``pids``, ``file_size`` and ``user`` are as for :meth:`spawn`.
        """
        command = _argv(argv)
        if input is not None and tty:
            raise ValueError("input needs a pipe, and not a terminal")
        data = None if input is None else bytes_of(input)
        if data:
            await self._core.require("closing the standard input of a process", "processCloseStdin")
        feeding: asyncio.Task[None] | None = None
        process: Process | None = None
        kept = Kept(max_output, overflow)
        try:
            async with asyncio.timeout(timeout):
                by_agent = not kept.strict and 1 <= kept.limit <= MAX_AGENT_OUTPUT
                process = await self.spawn(
                    command,
                    cwd=cwd,
                    env=env,
                    env_policy=env_policy,
                    stdin=bool(data),
                    kill_after=kill_after,
                    max_output=kept.limit if by_agent and await self._core.supports("processMaxOutput") else None,
                    memory=memory,
                    cpus=cpus,
                    pids=pids,
                    file_size=file_size,
                    user=user,
                    sandbox=sandbox,
                    tty=tty,
                    exec_approval=exec_approval,
                )
                if data:
                    feeding = asyncio.create_task(feed(process, data))
                result = await process.collect(kept)
        except builtins.TimeoutError as error:
            if isinstance(error, AgentError):
                raise
            if process is None:
                raise TimeoutError(f"{shown(command)} was not started within {timeout:g} s") from None
            late = TimeoutError(
                f"{shown(command)} has not ended within {timeout:g} s, and is killed",
                stdout=kept.stdout,
                stderr=kept.stderr,
            )
            process.abandon(late)
            raise late from None
        except BaseException:
            if process is not None and not process.ended:
                process.abandon(ClosedError("the command was given up"))
            raise
        finally:
            if feeding is not None:
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)
        if check and result.exit_code != 0:
            raise CommandError(command, result)
        return result

    async def shell(self, script: str, **options: Unpack[RunOptions]) -> Result:
        """Run a script by one ``sh -c``. The options are those of :meth:`run`."""
        return await self.run(["/bin/sh", "-c", script], **options)

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        cwd: RemotePath | None = None,
        env: Mapping[str, str] | None = None,
        env_policy: EnvPolicy | None = None,
        stdin: bool = False,
        kill_after: float | None = None,
        max_output: Size | None = None,
        memory: Size | None = None,
        cpus: float | None = None,
        pids: int | None = None,
        file_size: Size | None = None,
        user: str | None = None,
        sandbox: Sandbox | Plan | None = None,
        tty: Tty | bool = False,
        id: str | None = None,
        exec_approval: ExecApproval | None = None,
        arg0: str | None = None,
        builtin: bool = False,
    ) -> Process:
        """Start a command, and return a handle of it.

        With ``stdin`` it gets a pipe as its input, with ``tty`` a terminal; otherwise its input is empty. ``env`` is
        added to the variables that it inherits (``env_policy``). ``id`` names the process in its session. With
        ``builtin``, ``argv[0]`` is a tool that is part of the agent.

        The agent holds these bounds, also without this client:

        - ``kill_after``: for how many seconds the command may run. Then it gets SIGTERM, and 2 s later all that it has
          started is killed. Where the agent cannot do that (``processTimeout``), this client kills the command
        - ``max_output``: the most that comes of each stream, up to 8 MiB: the first half as it comes, and the last half
          at the end (``processMaxOutput``)
        - ``memory``, ``cpus``, ``pids``, ``file_size``: limits of the command with its children: of its memory, of the
          processors that it uses, such as 1.5, of processes and threads, and of each file that it writes
          (``processLimits``). What the agent's host cannot hold is refused, and nothing runs
        - ``user``: who it runs as, ``NAME`` or ``NAME:GROUP``, each also as a number. The agent has to be root, and the
          command is not confined (``processRunAs``)

        Sizes are numbers of bytes, or texts such as ``64k``, ``512m`` and ``2g``.

        If the connection is lost before the answer comes, the request is made again after the recovery, and the command
        runs once (``processStartId``). Where the agent cannot do that, or the client fails, the error is a
        DisconnectedError. A process that was started like this is killed.
        """
        command = _argv(argv)
        if kill_after is not None and kill_after <= 0:
            raise ValueError(f"kill_after is {kill_after}, and must be positive")
        most = None if max_output is None else read_size(max_output, "max_output", 1, MAX_AGENT_OUTPUT)
        limits = limits_of(memory, cpus, pids, file_size)
        runs_as = None if user is None else run_as(user)
        core = self._core
        info = await core.info()
        if cwd is None:
            at = info.cwd or info.home
            if at is None:
                raise ValueError("cwd is needed, because the agent does not say where it is")
        else:
            at = native(cwd, "cwd")
        plan = await self.plan(sandbox, cwd=at) if isinstance(sandbox, Sandbox) else sandbox
        policy = env_policy or (plan.env_policy if plan is not None else None) or EnvPolicy()
        variables = dict(env or {})
        for name, value in variables.items():
            if not name or "=" in name or "\0" in name or "\0" in value:
                raise ValueError(f"env: {shown(name)} is not the name of a variable, or its value has a NUL")
        params: dict[str, object] = {
            "processId": id if id is not None else os.urandom(13).hex(),
            "argv": command,
            "cwd": uri_of(at, "cwd"),
            "env": variables,
            "envPolicy": policy.wire(),
            "tty": bool(tty),
            "pipeStdin": stdin and not tty,
        }
        if isinstance(tty, Tty):
            if not (0 < tty.rows < 65536 and 0 < tty.cols < 65536):
                raise ValueError("tty: rows and cols are 1 to 65535")
            if tty != Tty():
                await core.require("terminals of a given size", "processResize")
                params["rows"], params["cols"] = tty.rows, tty.cols
        if plan is not None:
            params["sandbox"] = plan.sandbox
            if plan.network_proxy is not None:
                params["enforceManagedNetwork"] = True
                params["networkProxy"] = plan.network_proxy
        if exec_approval is not None:
            await core.require("rules about commands", "subcommandApprovals")
            if exec_approval.opaque or exec_approval.forced_rm or exec_approval.enforce:
                await core.require("opaque, forced_rm and enforce in rules about commands", "execApprovalEnforce")
            params["execApproval"] = exec_approval.wire()
        if arg0 is not None:
            params["arg0"] = arg0
        if builtin:
            await core.require("tools of its own", "processBuiltins")
            params["builtin"] = True
        if most is not None:
            await core.require("bounds of the output of a command", "processMaxOutput")
            params["maxOutputBytes"] = most
        if limits is not None:
            await core.require("limits of one command", "processLimits")
            params["limits"] = limits
        if runs_as is not None:
            await core.require("commands of another user", "processRunAs")
            params["runAs"] = runs_as
        late = kill_after
        if kill_after is not None and "processTimeout" in info.capabilities:
            params["timeoutMs"], late = max(1, round(kill_after * 1000)), None
        process = await self._start(params, {"program": command[0], "cwd": at})
        if late is not None:
            core.background(process.kill_later(late))
        return process

    async def _start(self, params: dict[str, object], about: Mapping[str, str]) -> Process:
        core = self._core
        process_id = str(params["processId"])
        once = await core.supports("processStartId")
        if once:
            params["startId"] = os.urandom(13).hex()
        while True:
            # Events may come before the answer, so the handle is known before the request is sent.
            link = await core.connected()
            if process_id in core.processes:
                raise ValueError(f"id: this client has a handle of process {shown(process_id)} already")
            process = Process(core, process_id)
            core.processes[process_id] = process
            link.starts += 1
            try:
                answer = await link.called(wire.PROCESS_START, params, about)
                process.started = started_of(Record(wire.PROCESS_START, answer))
                return process
            except DisconnectedError as error:
                if core.failure is not None or (error.sent and not once):
                    process.abandon(error)
                    raise
                lost = error
                if error.sent:
                    process.doubt()
                else:
                    process.fail(error)
            except (RpcError, BusyError, ValueError) as error:
                process.fail(error)
                raise
            except BaseException as error:
                process.abandon(error if isinstance(error, Exception) else ClosedError("the start was given up"))
                raise
            finally:
                link.starts -= 1
                link.changes.notify()
            if lost.sent:
                return await self._start_again(process, params, about, lost)

    async def _start_again(
        self, process: Process, params: Mapping[str, object], about: Mapping[str, str], lost: DisconnectedError
    ) -> Process:
        """Make the request of a start again and again, until an answer comes. The agent knows it by its startId."""
        core = self._core
        try:
            while True:
                try:
                    link = await core.connected()
                    answer = await link.called(wire.PROCESS_START, params, about)
                    break
                except DisconnectedError as error:
                    if core.failure is not None:
                        error.sent, error.retryable = True, False
                        raise
                except BusyError:
                    await asyncio.sleep(PAUSE)
            process.started = started_of(Record(wire.PROCESS_START, answer))
        except RpcError as error:
            process.fail(error)
            if (error.data or {}).get("reason") == "forgotten":
                raise DisconnectedError(f"the answer to the start was lost: {error}", sent=True) from error
            raise
        except RecoveringError:
            process.abandon(lost)
            raise lost from None
        except BaseException as error:
            process.abandon(error if isinstance(error, Exception) else ClosedError("the start was given up"))
            raise
        process.believe()
        return process

    async def attach(self, id: str, *, after: int | None = None) -> Process:
        """Return a handle of a process of the session that this client has no handle of.

        Its events begin with the oldest that the agent has kept; ``skipped`` of the handle says how many are missing.
        With ``after`` they continue behind that event, or the error, a GapError, says what is missing.
        """
        process = Process(self._core, id, after=after or 0, attached=True)
        await process.attach()
        return process

    async def processes(self) -> list[ProcessInfo]:
        """List the processes of the session, oldest first."""
        return _processes(await self._core.request(wire.PROCESS_LIST, {}))

    async def plan(self, sandbox: Sandbox, *, cwd: RemotePath | None = None) -> Plan:
        """Return what a sandbox means on this agent, for many commands. Secrets that appear later are not hidden."""
        return await make_plan(self._core, sandbox, None if cwd is None else native(cwd, "cwd"))

    # Ports.

    async def ports(self, *, sandbox: Plan | None = None) -> Ports:
        """List the TCP ports that listen on the agent's side; with a sandbox those that a command in it can connect to.

        This needs an agent with ``ports``.
        """
        await self._core.require("listing ports", "ports")
        return ports_of(Record(wire.PORT_LIST, await self._core.request(wire.PORT_LIST, _confined(sandbox))))

    async def watch_ports(self, *, sandbox: Plan | None = None) -> PortWatch:
        """Watch the ports that :meth:`ports` lists. The watch first tells those that listen already."""
        await self._core.require("watching ports", "ports")
        watch = PortWatch(self._core, _confined(sandbox))
        await watch.open()
        return watch

    # Connections.

    async def dial(self, to: str | int, *, sandbox: Plan | None = None) -> Socket:
        """Connect to a port of the agent's machine, tcp://HOST:PORT or unix:///PATH, as the agent sees it."""
        socket = Socket(self._core, address_of(to), None if sandbox is None else sandbox.sandbox)
        await socket.open()
        return socket

    def forward(
        self,
        to: str | int,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        path: str | None = None,
        sandbox: Plan | None = None,
    ) -> Forward:
        """Let a port here, or a UNIX socket at ``path``, lead to an address of the agent's side: ``async with``.

        Port 0 takes a free one; ``port`` of the result is its number.
        """
        return Forward(self._core, address_of(to), host, port, path, None if sandbox is None else sandbox.sandbox)

    # Trees.

    async def upload(
        self,
        source: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        target: RemotePath,
        *,
        owners: bool = False,
    ) -> None:
        """Copy files and directories to the agent, as ``agent cp`` does.

        They go into ``target``, if that is a directory; otherwise the copy gets its name. A source that ends in ``/.``
        stands for what is in the directory. What cannot be copied is in the CopyError, and the rest is copied.
        """
        from ._copy import upload

        await upload(self, source, target, owners)

    async def download(
        self, source: RemotePath | Sequence[RemotePath], target: str | os.PathLike[str], *, follow: bool = False
    ) -> None:
        """Copy files and directories from the agent, as ``agent cp`` does.

        Nothing is written outside of ``target``, or through a link in it. A link at ``target`` itself is not followed:
        one to a file or to nothing is replaced, any other refused, and every one if ``target`` ends in a slash. With
        ``follow``, what a named link leads to is copied.
        """
        from ._copy import download

        await download(self, source, target, follow)


class Sessions:
    """The sessions with a name of this client's principal."""

    def __init__(self, core: Core) -> None:
        self._core = core

    async def list(self) -> builtins.list[SessionInfo]:
        """List the sessions, oldest first."""
        r = Record(wire.SESSION_LIST, await self._core.request(wire.SESSION_LIST, {}))
        return [_session(each) for each in r.records("sessions")]

    async def end(self, session_id: str) -> None:
        """End a session: its processes are killed, and its output is dropped. An attached client fails."""
        core = self._core
        await core.require("named sessions", "namedSessions")
        sent = False
        while True:
            link = await core.connected()
            try:
                await link.called(wire.SESSION_END, {"sessionId": session_id})
                return
            except DisconnectedError as error:
                if core.failure is not None:
                    raise
                sent = sent or error.sent
            except RpcError:
                if sent:
                    return  # the request whose answer was lost ended it
                raise

    def observe(self, session_id: str) -> Observer:
        """Look into a session, also while another client is attached to it."""
        return Observer(self._core, session_id)


class Observer:
    """Looks into a session with a name. It takes nothing away from the client that is attached."""

    def __init__(self, core: Core, session_id: str) -> None:
        self._core = core
        self.session_id = session_id

    async def processes(self) -> list[ProcessInfo]:
        """List the processes of the session, oldest first."""
        await self._core.require("named sessions", "namedSessions")
        params: wire.ListParams = {"sessionId": self.session_id}
        return _processes(await self._core.request(wire.PROCESS_LIST, params))

    async def follow(self, process_id: str, *, after: int = 0, wait: bool = True) -> AsyncIterator[Chunk]:
        """Yield the output of a process behind an event, to its end, or without ``wait`` what is kept."""
        while True:
            params: wire.ReadParams = {
                "processId": process_id,
                "sessionId": self.session_id,
                "afterSeq": after,
                "maxBytes": _WATCH_BYTES,
                "timestamps": True,
                "waitMs": _WATCH_WAIT if wait else 0,
            }
            r = await self._read(params)
            chunks = list(r.records("chunks"))
            for chunk in chunks:
                at = chunk.integer_or("atMs")
                yield Chunk(
                    chunk.integer("seq", 1),
                    chunk.text("stream"),
                    chunk.data("chunk"),
                    None if at is None else at / 1000,
                    chunk.integer_or("omitted") or 0,
                )
            after = max(after, r.integer("nextSeq", 1) - 1)
            if not chunks and (r.flag("closed") or not wait):
                return

    async def wait(self, process_id: str) -> int:
        """Wait for the exit of a process, and return its code. This takes no output."""
        while True:
            params: wire.ReadParams = {
                "processId": process_id,
                "sessionId": self.session_id,
                "exitOnly": True,
                "waitMs": _WATCH_WAIT,
            }
            r = await self._read(params)
            if r.flag("exited"):
                code = r.integer_or("exitCode", None, -(1 << 31))
                if code is None:
                    raise ProtocolError(f"{r.where}: the process has exited, and its code is missing")
                return code

    async def _read(self, params: wire.ReadParams) -> Record:
        await self._core.require("named sessions", "namedSessions")
        return Record(wire.PROCESS_READ, await self._core.request(wire.PROCESS_READ, params))

    async def signal(self, process_id: str, name: Signal) -> None:
        """Send a signal to a process and its group."""
        await self._core.require("named sessions", "namedSessions")
        params: wire.SignalParams = {"processId": process_id, "sessionId": self.session_id, "signal": name}
        await self._core.request(wire.PROCESS_SIGNAL, params)

    async def kill(self, process_id: str) -> bool:
        """Kill a process and the rest of its group, and report whether it had not exited."""
        await self._core.require("named sessions", "namedSessions")
        params: wire.TerminateParams = {"processId": process_id, "sessionId": self.session_id}
        return Record(wire.PROCESS_TERMINATE, await self._core.finish(wire.PROCESS_TERMINATE, params)).flag("running")


def _confined(sandbox: Plan | None) -> dict[str, object]:
    return {} if sandbox is None else {"sandbox": sandbox.sandbox}


def _argv(argv: Sequence[str]) -> list[str]:
    if isinstance(cast("object", argv), (str, bytes)):
        raise TypeError("argv is a list: the program and its arguments; for a script use shell()")
    command: list[str] = []
    words = cast("Sequence[object]", argv)
    for i, word in enumerate(words):
        if not isinstance(word, str):
            raise TypeError(f"argv[{i}] is {type(word).__name__}, and must be a str")
        if "\0" in word:
            raise ValueError(f"argv[{i}] has a NUL")
        command.append(word)
    if not command:
        raise ValueError("argv is empty: the first word is the program")
    return command


async def feed(process: Process, data: Data) -> None:
    """Give a command its input. This fails if the command has ended, or has closed its input."""
    try:
        await process.stdin.write(data)
        await process.stdin.close()
    except (AgentError, OSError):
        pass


def _processes(answer: object) -> list[ProcessInfo]:
    return [
        ProcessInfo(
            each.text("processId"),
            tuple(each.texts("argv")),
            each.integer("pid"),
            each.flag("tty"),
            each.integer("startedAtMs") / 1000,
            each.flag("exited"),
            each.integer_or("exitCode", None, -(1 << 31)),
            each.flag("closed"),
            each.integer("nextSeq"),
        )
        for each in Record(wire.PROCESS_LIST, answer).records("processes")
    ]


def _session(r: Record) -> SessionInfo:
    expires = r.integer_or("expiresAtMs")
    return SessionInfo(
        r.text("sessionId"),
        r.text("name"),
        r.flag("attached"),
        r.text_or("clientName"),
        r.integer("createdAtMs") / 1000,
        r.integer("retainMs") / 1000,
        None if expires is None else expires / 1000,
        r.integer("running"),
        r.integer("ended"),
    )
