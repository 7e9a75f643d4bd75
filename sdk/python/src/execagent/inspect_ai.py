"""Inspect: a sandbox for evaluations whose samples run on an agent. Inspect finds it by its name, ``execagent``.

    Task(..., sandbox=SandboxEnvironmentSpec("execagent", ExecagentSandboxConfig(url=..., sandbox=Sandbox(...))))
    Task(..., sandbox=("execagent", "agent.toml"))  # a file with the same
    Task(..., sandbox="execagent")                  # execagent.toml beside the task, or the agent of the variables

Each sample has a session and a directory of its own. Both end with the sample.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import logging
import os
import posixpath
import secrets
import shlex
import tomllib
from collections.abc import Callable, Coroutine
from typing import Any, Literal, TypeVar, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUnavailableError,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from inspect_ai.util._sandbox._cli import SANDBOX_CLI
from pydantic import BaseModel, ConfigDict, field_validator
from typing_extensions import override

from . import _address
from ._adapter import Options, SessionGoneError, Shared, Workspace, not_started
from ._connect import connect
from ._errors import (
    AgentError,
    BusyError,
    ConnectError,
    DisconnectedError,
    RecoveringError,
    RpcError,
    UnsupportedError,
    shown,
)
from ._process import Result
from ._sandbox import Sandbox

T = TypeVar("T")

_log = logging.getLogger("execagent")

_KIND = "inspect"
_DIRECTORY = "/tmp"
_CONFIG = "execagent.toml"
_MAX_CONFIG = 64 << 10
_TOOLS_DIR = "INSPECT_SANDBOX_TOOLS_DIR"  # where the tools that Inspect brings along keep what is of one sandbox
_TOOLS_STOP = 55  # seconds that these tools may take to end
_LOST = (DisconnectedError, ConnectError, RecoveringError, SessionGoneError, BusyError)


class ExecagentSandboxConfig(BaseModel):
    """Where the agent is, and what samples may do there. The log of an evaluation has it, so it holds no token.

    - ``url``, ``context``, ``registry`` with ``environment_id``, ``token_file``: as for :func:`execagent.connect`
    - ``directory``: where each sample gets a directory of its own
    - ``sandbox``: what commands and files may do; relative paths begin at the directory of the sample
    - ``memory``, ``cpus``, ``pids``, ``file_size``, ``user``: for each command, as for :meth:`execagent.Agent.spawn`
    """

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    url: str | None = None
    context: str | None = None
    registry: str | None = None
    environment_id: str | None = None
    token_file: str | None = None
    directory: str = _DIRECTORY
    sandbox: Sandbox | None = None
    memory: int | str | None = None
    cpus: float | None = None
    pids: int | None = None
    file_size: int | str | None = None
    user: str | None = None

    @field_validator("url", "registry")
    @classmethod
    def _without_secret(cls, url: str | None) -> str | None:
        if url is not None and _address.full_url(url) != _address.shown_url(_address.full_url(url)):
            raise ValueError("it may hold a secret, and the log of an evaluation has it: use token_file or context")
        return url

    @classmethod
    def of(cls, config: SandboxEnvironmentConfigType | None) -> ExecagentSandboxConfig:
        """Read what a task names: a configuration, a file of TOML that has one, or nothing."""
        if config is None or isinstance(config, cls):
            return config or cls()
        if isinstance(config, str):
            return cls._read(config)
        raise ValueError(f"the sandbox execagent takes an ExecagentSandboxConfig, and not a {type(config).__name__}")

    @classmethod
    def _read(cls, path: str) -> ExecagentSandboxConfig:
        with open(path, "rb") as file:
            text = file.read(_MAX_CONFIG + 1)
        if len(text) > _MAX_CONFIG:
            raise ValueError(f"{path} is longer than {_MAX_CONFIG} bytes")
        try:
            read = cls(**tomllib.loads(text.decode()))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        if read.token_file is None:
            return read
        return read.model_copy(update={"token_file": os.path.join(os.path.dirname(path), read.token_file)})

    def shared(self, session: str, cwd: str) -> Shared:
        """Return the connection of a sample."""
        options: Options = {
            "session": session,
            "cwd": cwd,
            "sandbox": self.sandbox,
            "memory": self.memory,
            "cpus": self.cpus,
            "pids": self.pids,
            "file_size": self.file_size,
            "user": self.user,
        }
        if self.registry is None:
            return Shared(self.url, _KIND, {**options, "token_file": self.token_file, "context": self.context})
        way = functools.partial(
            connect,
            self.url,
            context=self.context,
            registry=self.registry,
            environment_id=self.environment_id,
            token_file=self.token_file,
        )
        return Shared(None, _KIND, {**options, "connect": way})

    def flags(self) -> list[str]:
        """Return the flags of the command line for the agent."""
        named = {
            "--url": self.url,
            "--context": self.context,
            "--registry": self.registry,
            "--environment-id": self.environment_id,
            "--registry-token-file" if self.registry else "--token-file": self.token_file,
        }
        return [word for flag, value in named.items() if value for word in (flag, value)]


@sandboxenv(name="execagent")
class ExecagentSandboxEnvironment(SandboxEnvironment):
    """The sandbox of one sample: a session and a directory of an agent."""

    def __init__(self, config: ExecagentSandboxConfig) -> None:
        super().__init__()
        self.config = config
        self.name = f"{_KIND}-{secrets.token_hex(8)}"
        """The name of the session, and of the directory."""
        self.directory = posixpath.join(config.directory, self.name)
        self._shared = config.shared(self.name, self.directory)
        self._with_tools = False  # Inspect has brought tools along, which serve it in the background
        self._as: str | None = None

    # The life of a sample.

    @override
    @classmethod
    def config_files(cls) -> list[str]:
        return [_CONFIG]

    @override
    @classmethod
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return ExecagentSandboxConfig(**config)

    @override
    @classmethod
    async def task_init(cls, task_name: str, config: SandboxEnvironmentConfigType | None) -> None:
        ExecagentSandboxConfig.of(config).shared(_KIND, _DIRECTORY)  # a wrong one is told before the first sample

    @override
    @classmethod
    async def sample_init(
        cls, task_name: str, config: SandboxEnvironmentConfigType | None, metadata: dict[str, str]
    ) -> dict[str, SandboxEnvironment]:
        environment = cls(ExecagentSandboxConfig.of(config))
        try:
            await environment._shared.connect()
        except BaseException:
            if environment._shared.opened:
                await environment.close()
            else:
                await environment._shared.aclose()
            raise
        return {"default": environment}

    @override
    @classmethod
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        for environment in environments.values():
            await environment.as_type(cls).close()

    @override
    @classmethod
    async def cli_cleanup(cls, id: str | None) -> None:
        """End sessions of samples on the agent of the variables or of the current context: all, or that of a name."""
        async with connect() as agent:
            for session in await agent.sessions.list():
                if session.name.startswith(f"{_KIND}-") and id in (None, session.name):
                    await agent.sessions.end(session.id)
                    await agent.fs.remove(posixpath.join(_DIRECTORY, session.name), recursive=True, missing_ok=True)

    async def close(self) -> None:
        """Kill what the sample has started, remove its directory, and end its session."""

        async def clean(w: Workspace) -> None:
            session = w.agent.sessions.observe(w.agent.session_id)
            for process in await session.processes():
                if not process.exited:
                    await session.kill(process.id)
            await w.agent.fs.remove(self.directory, recursive=True, missing_ok=True)

        try:
            if self._with_tools:
                with contextlib.suppress(TimeoutError):  # then they are killed as all else is
                    await self.exec([SANDBOX_CLI, "stop-server"], cwd="/", user=self._as, timeout=_TOOLS_STOP)
            await self._shared.call(clean)
            await self._shared.end()
        except (AgentError, OSError, SandboxUnavailableError) as error:
            _log.warning("the sandbox %s is not cleaned up: %s", self._shared.ref, error)
        finally:
            await self._shared.aclose()

    # What solvers and tools call.

    @override
    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command until it exits. What it leaves in the background goes on.

        After ``timeout`` it is killed with its process group. It is not started again, whatever ``timeout_retry``
        says, because an agent that does not answer is noticed otherwise. Of output above the limit of Inspect, the
        OutputLimitExceededError has the beginning and the end.
        """
        data = input.encode() if isinstance(input, str) else input
        limit = SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE
        if cmd and cmd[0] == SANDBOX_CLI:
            # Samples are on one host, so their tools must not meet.
            self._with_tools, self._as = True, user
            env = {**(env or {}), _TOOLS_DIR: posixpath.join(self.directory, "sandbox-tools")}

        async def run(w: Workspace) -> Result:
            other = user if user is not None and await self._is_other(w, user) else None
            return await w.run(cmd, cwd=cwd, env=env, input=data, timeout=timeout, max_output=limit, user=other)

        try:
            result = await self._ask(run)
        except UnsupportedError as error:
            if error.flag == "processRunAs":
                raise _no_user(user, error) from error
            raise
        except RpcError as error:
            if error.kind == "userUnavailable":
                raise _no_user(user, error) from error
            result = not_started(cmd[0], error)
            if result.exit_code == 126:
                raise PermissionError(str(error)) from error
        stdout, stderr = result.stdout.decode(errors="replace"), result.stderr.decode(errors="replace")
        if result.timed_out:
            late = TimeoutError(f"Command timed out after {timeout} seconds")
            late.truncated_output = stdout + stderr  # type: ignore[attr-defined] # Inspect looks for it
            raise late
        if result.stdout_truncated or result.stderr_truncated:
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, stdout + stderr)
        return ExecResult(result.ok, result.exit_code, stdout, stderr)

    async def _is_other(self, w: Workspace, user: str) -> bool:
        """Report whether a user is another one than that of the commands."""
        if user == self.config.user:
            return False
        if self.config.user is None:
            own = await w.agent.fs.stat("/proc/self")  # the process of the agent
            if user in (own.owner, str(own.uid)):
                return False
        if w.plan is not None:
            raise SandboxUserUnsupportedError(f"a confined command cannot run as {shown(user)}")
        return True

    @override
    async def write_file(self, file: str, contents: str | bytes) -> None:
        data = contents.encode() if isinstance(contents, str) else contents
        await self._ask(lambda w: w.write(file, data))

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    @override
    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        try:
            data = await self._ask(lambda w: w.read(file, max_bytes=limit))
        except OSError as error:
            if error.errno != errno.EFBIG:
                raise
            raise OutputLimitExceededError(SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR, None) from error
        return data.decode() if text else data

    @override
    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        """Return a command that opens a shell in the directory of the sample. It is not confined."""
        command = ["agent", "exec", "-t", *self.config.flags(), "-C", self.directory]
        if user:
            command += ["--user", user]
        return SandboxConnection(type="execagent", command=shlex.join([*command, "--", "/bin/sh"]))

    @override
    def default_polling_interval(self) -> float:
        return 0.2

    async def _ask(self, work: Callable[[Workspace], Coroutine[Any, Any, T]]) -> T:
        try:
            return await self._shared.call(work)
        except _LOST as error:
            raise SandboxUnavailableError(f"the agent cannot be reached: {error}") from error


def _no_user(user: str | None, error: Exception) -> SandboxUserUnsupportedError:
    return SandboxUserUnsupportedError(f"commands cannot run as {shown(user)}: {error}")


__all__ = ["ExecagentSandboxConfig", "ExecagentSandboxEnvironment"]
