"""Strands Agents: a sandbox whose commands, code and files are those of an agent.

    from execagent.strands import ExecagentSandbox
    from strands import Agent

    sandbox = ExecagentSandbox("ws://127.0.0.1:7000", cwd="/srv/work")
    agent = Agent(model=..., sandbox=sandbox)

The agent of Strands gets the tools ``sandbox_shell`` and ``sandbox_file_editor``, as with the sandboxes of Strands.
"""

from __future__ import annotations

import asyncio
import builtins
import codecs
import contextlib
import signal
from collections.abc import AsyncGenerator, Mapping
from types import TracebackType
from typing import Any, Self, Unpack

from strands.sandbox import (
    LANGUAGE_PATTERN,
    ExecutionResult,
    FileInfo,
    Sandbox,
    StreamChunk,
    StreamType,
)
from strands.sandbox.errors import SandboxPathNotFoundError, SandboxTimeoutError
from strands.sandbox.posix_shell import validate_env_keys
from strands.types.tools import AgentTool
from strands.vended_tools.file_editor import make_file_editor
from strands.vended_tools.file_editor.file_editor import DEFAULT_FILE_EDITOR_DESCRIPTION
from strands.vended_tools.shell import make_shell
from strands.vended_tools.shell.types import SANDBOX_SHELL_DESCRIPTION

from ._adapter import Options, Ref, Shared, Workspace, left_out, refused_start, text_of
from ._agent import feed
from ._bounds import MAX_AGENT_OUTPUT, Size, read_size
from ._errors import AgentError, ClosedError, NotADirectoryError, NotFoundError, RpcError
from ._order import Exited, Output
from ._process import Kept, Process

_LAST_OUTPUT = 10.0  # for how many seconds the exit of a command is waited for that was killed


class ExecagentSandbox(Sandbox):
    """A sandbox of Strands on an agent. It connects at its first use, and works in every event loop.

    ``url`` and the options say where the agent is, and what commands and files may do: :class:`Options`.
    ``max_output`` is how many bytes of each stream of a command are kept, up to 8 MiB: the first half and the last
    half, with a line between that says how much is left out.

    ``async with`` and :meth:`aclose` end the connection. A session that the options name lives on, and so do its
    background commands; one that was made for this sandbox ends.
    """

    def __init__(self, url: str | None = None, *, max_output: Size = "1m", **options: Unpack[Options]) -> None:
        self._shared = Shared(url, "strands", options)
        self._most = read_size(max_output, "max_output", 1, MAX_AGENT_OUTPUT)
        self._cwd = options.get("cwd")

    @property
    def ref(self) -> Ref:
        """The session and where it is, for a later sandbox: ``ExecagentSandbox(url, session=…, existing=True)``."""
        return self._shared.ref

    # What Strands calls.

    def execute_streaming(
        self,
        command: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> AsyncGenerator[StreamChunk | ExecutionResult, None]:
        """Run a script by one ``sh -c``, yield its output as it comes, and then the result.

        A command that runs longer than ``timeout`` is killed with its process group: SandboxTimeoutError, which has
        the output. It is killed, too, when nobody takes its output any more.
        """
        return self._stream(["/bin/sh", "-c", command], None, timeout, cwd, env)

    def execute_code_streaming(
        self,
        code: str,
        language: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> AsyncGenerator[StreamChunk | ExecutionResult, None]:
        """Run an interpreter that reads the code from its standard input, without a shell."""
        return self._stream(_interpreter(language), code.encode(), timeout, cwd, env)

    async def execute(
        self,
        command: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> ExecutionResult:
        """Run a script by one ``sh -c``, and return its output and exit code: 128+n after signal n."""
        return await self._run(["/bin/sh", "-c", command], None, timeout, cwd, env)

    async def execute_code(
        self,
        code: str,
        language: str,
        *,
        timeout: float | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        **kwargs: Any,
    ) -> ExecutionResult:
        """Run an interpreter that reads the code from its standard input, and return its output and exit code."""
        return await self._run(_interpreter(language), code.encode(), timeout, cwd, env)

    async def read_file(self, path: str, **kwargs: Any) -> bytes:
        """Return the content of a file. Errors are those of Python, such as FileNotFoundError."""
        return await self._shared.call(lambda w: w.read(path))

    async def write_file(self, path: str, content: bytes, **kwargs: Any) -> None:
        """Create or replace a file, with missing directories of its path."""
        await self._shared.call(lambda w: w.write(path, content))

    async def remove_file(self, path: str, **kwargs: Any) -> None:
        """Remove a file, or an empty directory."""
        await self._shared.call(lambda w: w.remove(path, recursive=False))

    async def list_files(self, path: str, **kwargs: Any) -> list[FileInfo]:
        """List a directory, with what is known of what links lead to. A path that is none: SandboxPathNotFoundError."""
        try:
            return await self._shared.call(lambda w: _list(w, path))
        except (NotFoundError, NotADirectoryError) as error:
            raise SandboxPathNotFoundError(path) from error

    def get_tools(self) -> list[AgentTool]:
        """Return a file editor and a shell for this sandbox."""
        where = f" on {self.ref.where}" if self.ref.where else ""
        cwd = f" Working directory: {self._cwd}." if self._cwd else ""
        return [
            make_file_editor(
                sandbox=self,
                name="sandbox_file_editor",
                description=f"{DEFAULT_FILE_EDITOR_DESCRIPTION} Files are those of an execagent{where}.{cwd}",
            ),
            make_shell(
                sandbox=self,
                name="sandbox_shell",
                description=f"{SANDBOX_SHELL_DESCRIPTION} Runs on an execagent{where}.{cwd}",
            ),
        ]

    # The connection.

    async def aclose(self) -> None:
        """End the connection, and the session unless the options name it. Closing again is no error."""
        await self._shared.finish()

    async def destroy(self) -> None:
        """End the session, which kills all that runs in it, and the connection. The files stay."""
        await self._shared.end()
        await self._shared.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    # Commands.

    async def _run(
        self,
        argv: list[str],
        input: bytes | None,
        timeout: float | None,
        cwd: str | None,
        env: Mapping[str, str] | None,
    ) -> ExecutionResult:
        validate_env_keys(dict(env or {}))
        try:
            result = await self._shared.call(
                lambda w: w.run(argv, cwd=cwd, env=env, input=input, timeout=timeout, max_output=self._most)
            )
        except RpcError as error:
            return _not_started(argv[0], error)
        stdout = text_of(result.stdout, result.stdout_omitted, self._most)
        stderr = text_of(result.stderr, result.stderr_omitted, self._most)
        if result.timed_out:
            raise SandboxTimeoutError(timeout, stdout, stderr)
        return ExecutionResult(result.exit_code, stdout, stderr)

    async def _stream(
        self,
        argv: list[str],
        input: bytes | None,
        timeout: float | None,
        cwd: str | None,
        env: Mapping[str, str] | None,
    ) -> AsyncGenerator[StreamChunk | ExecutionResult, None]:
        validate_env_keys(dict(env or {}))
        running = _Running(argv, input, timeout, cwd, dict(env or {}), self._most)
        try:
            try:
                await self._shared.call(running.start)
            except RpcError as error:
                yield _not_started(argv[0], error)
                return
            while isinstance(piece := await self._shared.call(running.next), StreamChunk):
                yield piece
            yield piece
        finally:
            if running.held and not self._shared.closed:
                with contextlib.suppress(AgentError):  # a connection that is lost for good has ended the handle
                    await self._shared.call(running.give_up)


def _interpreter(language: str) -> list[str]:
    if not LANGUAGE_PATTERN.fullmatch(language):
        raise ValueError(f"language parameter contains invalid characters: {language}")
    return [language]


def _not_started(program: str, error: RpcError) -> ExecutionResult:
    """Return the result that a shell has for a program that cannot be executed."""
    code = refused_start(error)
    if code is None:
        raise error
    return ExecutionResult(code, "", f"{program}: {'not found' if code == 127 else 'cannot be executed'}\n")


async def _list(w: Workspace, path: str) -> list[FileInfo]:
    entries = await w.fs.list(w.at(path), follow=False)
    links = [entry.path for entry in entries if entry.type == "symlink"]
    leads = dict(zip(links, await w.fs.stat_many(links) if links else [], strict=True))
    found: list[FileInfo] = []
    for entry in entries:
        target = leads.get(entry.path, entry)
        if isinstance(target, RpcError):
            found.append(FileInfo(entry.name))
        else:
            found.append(FileInfo(entry.name, target.is_dir, target.size))
    return found


class _Running:
    """A command whose output is taken piece by piece. All its methods run in the loop of the workspace."""

    def __init__(
        self,
        argv: list[str],
        input: bytes | None,
        timeout: float | None,
        cwd: str | None,
        env: Mapping[str, str],
        most: int,
    ) -> None:
        self._argv = argv
        self._input = input
        self._timeout = timeout
        self._place = {"cwd": cwd, "env": env}
        self._kept = Kept(most, "truncate")
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders: dict[StreamType, codecs.IncrementalDecoder] = {
            "stdout": decoder("replace"),
            "stderr": decoder("replace"),
        }
        self._exit: Exited | None = None
        self._process: Process | None = None
        self._feeding: asyncio.Task[None] | None = None
        self._deadline: float | None = None
        self._killed = False
        self.held = False
        """Whether the command may be running, and nobody else would end it."""

    async def start(self, w: Workspace) -> None:
        """Start the command."""
        self.held = True
        bound = {"max_output": self._kept.limit} if "processMaxOutput" in w.info.capabilities else {}
        timer = asyncio.timeout(self._timeout)
        try:
            async with timer:
                self._process = await w.spawn(self._argv, stdin=bool(self._input), **self._place, **bound)
        except builtins.TimeoutError as error:
            if isinstance(error, AgentError) or not timer.expired():
                raise
            raise SandboxTimeoutError(self._timeout) from None
        self._deadline = timer.when()
        if self._input:
            self._feeding = asyncio.create_task(feed(self._process, self._input))

    async def next(self, _: Workspace) -> StreamChunk | ExecutionResult:
        """Return the next output, and at the end the result."""
        assert self._process is not None
        while True:
            timer = asyncio.timeout_at(self._deadline)
            try:
                async with timer:
                    event = self._exit or await self._process.next_event()
            except builtins.TimeoutError as error:
                if isinstance(error, AgentError) or not timer.expired():
                    raise
                if self._killed:
                    return self._result(128 + signal.SIGKILL)  # the kernel does not let it go
                self._killed = True
                await self._process.kill()
                self._deadline = asyncio.get_running_loop().time() + _LAST_OUTPUT
                continue
            if isinstance(event, Output):
                self._kept.take(event)
                stream: StreamType = "stderr" if event.stream == "stderr" else "stdout"
                text = left_out(event.omitted) if event.omitted else ""
                if text := text + self._decoders[stream].decode(event.data):
                    return StreamChunk(text, stream)
            elif event is None or isinstance(event, Exited):
                self._exit = event
                for stream, decoder in self._decoders.items():
                    if text := decoder.decode(b"", final=True):
                        return StreamChunk(text, stream)
                code = await self._process.wait() if event is None else event.exit_code
                return self._result(code)

    def _result(self, code: int) -> ExecutionResult:
        self._leave()
        stdout, stderr = (
            text_of(data, omitted, self._kept.limit)
            for data, omitted in zip((self._kept.stdout, self._kept.stderr), self._kept.omitted, strict=True)
        )
        if self._killed:
            raise SandboxTimeoutError(self._timeout, stdout, stderr)
        return ExecutionResult(code, stdout, stderr)

    def _leave(self) -> None:
        """Give up the handle. What the command has left in the background goes on."""
        self.held = False
        if self._feeding is not None:
            self._feeding.cancel()
        if self._process is not None:
            self._process.close()

    async def give_up(self, _: Workspace) -> None:
        """Kill the command, because nobody takes its output."""
        process = self._process
        if process is not None and not process.ended and process.exit_code is None:
            process.abandon(ClosedError("the command was given up"))
        self._leave()


__all__ = ["ExecagentSandbox", "Options", "Ref"]
