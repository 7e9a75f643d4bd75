"""Strands Agents: a sandbox whose commands, code and files are those of an agent.

    from execagent.strands import ExecagentSandbox
    from strands import Agent

    sandbox = ExecagentSandbox("ws://127.0.0.1:7000", cwd="/srv/work")
    agent = Agent(model=..., sandbox=sandbox)

The agent of Strands gets the tools ``sandbox_shell`` and ``sandbox_file_editor``, as with the sandboxes of Strands.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Callable, Mapping
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

from ._adapter import Options, Ref, Shared, Workspace, left_out, not_started, text_of
from ._bounds import MAX_AGENT_OUTPUT, Size, read_size
from ._errors import AgentError, NotADirectoryError, NotFoundError, RpcError
from ._order import Output


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
            entries = await self._shared.call(lambda w: w.entries(path))
        except (NotFoundError, NotADirectoryError) as error:
            raise SandboxPathNotFoundError(path) from error
        return [FileInfo(name) if at is None else FileInfo(name, at.is_dir, at.size) for name, at in entries]

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
        return await self._shared.call(_Command(argv, input, timeout, cwd, env, self._most).run)

    async def _stream(
        self,
        argv: list[str],
        input: bytes | None,
        timeout: float | None,
        cwd: str | None,
        env: Mapping[str, str] | None,
    ) -> AsyncGenerator[StreamChunk | ExecutionResult, None]:
        validate_env_keys(dict(env or {}))
        command = _Command(argv, input, timeout, cwd, env, self._most)
        try:
            while isinstance(piece := await self._shared.call(command.next), StreamChunk):
                yield piece
            yield piece
        finally:
            if command.running and not self._shared.closed:
                with contextlib.suppress(AgentError):  # a connection that is lost for good has ended the handle
                    await self._shared.call(command.end)


def _interpreter(language: str) -> list[str]:
    if not LANGUAGE_PATTERN.fullmatch(language):
        raise ValueError(f"language parameter contains invalid characters: {language}")
    return [language]


class _Command:
    """A command whose output is taken as a whole, or piece by piece. All methods run in the loop of the workspace."""

    def __init__(
        self,
        argv: list[str],
        input: bytes | None,
        timeout: float | None,
        cwd: str | None,
        env: Mapping[str, str] | None,
        most: int,
    ) -> None:
        self._argv = argv
        self._options: dict[str, Any] = {"input": input, "timeout": timeout, "cwd": cwd, "env": env}
        self._most = most
        self._task: asyncio.Task[ExecutionResult] | None = None
        self._changed = asyncio.Event()
        self._pieces: deque[tuple[StreamType, int, bytearray]] = deque()  # with how much is left out before each
        self._waiting = 0  # bytes in them
        decoder = codecs.getincrementaldecoder("utf-8")
        self._decoders: dict[StreamType, codecs.IncrementalDecoder] = {
            "stdout": decoder("replace"),
            "stderr": decoder("replace"),
        }
        self._lost: dict[StreamType, int] = {"stdout": 0, "stderr": 0}

    async def run(self, w: Workspace, seen: Callable[[Output], None] | None = None) -> ExecutionResult:
        """Run it to its end."""
        try:
            result = await w.run(self._argv, max_output=self._most, seen=seen, **self._options)
        except RpcError as error:
            result = not_started(self._argv[0], error)
        stdout = text_of(result.stdout, result.stdout_omitted, self._most)
        stderr = text_of(result.stderr, result.stderr_omitted, self._most)
        if result.timed_out:
            raise SandboxTimeoutError(self._options["timeout"], stdout, stderr)
        return ExecutionResult(result.exit_code, stdout, stderr)

    async def next(self, w: Workspace) -> StreamChunk | ExecutionResult:
        """Return the next output, and at the end the result. The first call starts the command.

        Output is held until it is asked for, because otherwise it would block all other calls.
        """
        if self._task is None:
            self._task = asyncio.create_task(self.run(w, self._see))
            self._task.add_done_callback(self._ended)
        while True:
            self._changed.clear()
            while self._pieces:
                stream, omitted, data = self._pieces.popleft()
                self._waiting -= len(data)
                text = left_out(omitted) if omitted else ""
                if text := text + self._decoders[stream].decode(data):
                    return StreamChunk(text, stream)
            if self._task.done():
                for stream, decoder in self._decoders.items():
                    if text := decoder.decode(b"", final=True):
                        return StreamChunk(text, stream)
                return await self._task
            await self._changed.wait()

    def _ended(self, task: asyncio.Task[ExecutionResult]) -> None:
        if not task.cancelled():
            task.exception()  # so that nobody complains if it is not taken
        self._changed.set()

    def _see(self, event: Output) -> None:
        stream: StreamType = "stderr" if event.stream == "stderr" else "stdout"
        omitted = self._lost[stream] + event.omitted
        if self._waiting >= 2 * self._most:  # more than an agent sends that bounds the output
            self._lost[stream] = omitted + len(event.data)
            return
        self._lost[stream] = 0
        if omitted or not self._pieces or self._pieces[-1][0] != stream:
            self._pieces.append((stream, omitted, bytearray()))
        self._pieces[-1][2].extend(event.data)
        self._waiting += len(event.data)
        self._changed.set()

    @property
    def running(self) -> bool:
        """Whether it was started, and has not ended."""
        return self._task is not None and not self._task.done()

    async def end(self, _: Workspace) -> None:
        """Kill it, because nobody takes its output."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)


__all__ = ["ExecagentSandbox", "Options", "Ref"]
