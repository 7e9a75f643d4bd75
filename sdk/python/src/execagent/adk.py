"""Google's Agent Development Kit (ADK): an environment whose commands and files are those of an agent.

    from execagent.adk import ExecagentEnvironment
    from google.adk.agents import LlmAgent
    from google.adk.tools.environment import EnvironmentToolset

    environment = ExecagentEnvironment("ws://127.0.0.1:7000", cwd="/srv/work")
    agent = LlmAgent(name="coder", model=..., tools=[EnvironmentToolset(environment=environment)])

The agent of ADK gets the tools ``Execute``, ``ReadFile``, ``EditFile`` and ``WriteFile`` from the toolset.
"""

from __future__ import annotations

from pathlib import Path
from typing import Unpack

from google.adk.environment import BaseEnvironment, ExecutionResult
from typing_extensions import override

from ._adapter import Options, Ref, Shared, not_started, text_of
from ._bounds import MAX_AGENT_OUTPUT, Size, read_size
from ._errors import RpcError


class ExecagentEnvironment(BaseEnvironment):
    """An environment of ADK on an agent. ``initialize`` connects, or else the first use; any event loop will do.

    ``url`` and the options say where the agent is, and what commands and files may do: :class:`Options`.
    ``max_output`` is how many bytes of each stream of a command are kept, up to 8 MiB: the first half and the last
    half, with a line between that says how much is left out.

    ``close`` ends the connection. A session that the options name lives on, and so do its background commands; one
    that was made for this environment ends. ``initialize`` connects again.
    """

    def __init__(self, url: str | None = None, *, max_output: Size = "1m", **options: Unpack[Options]) -> None:
        self._url = url
        self._options = options
        self._shared = Shared(url, "adk", options)
        self._most = read_size(max_output, "max_output", 1, MAX_AGENT_OUTPUT)
        self._working_dir: Path | None = None

    @property
    def ref(self) -> Ref:
        """The session and where it is, for a later environment with ``session`` and ``existing``."""
        return self._shared.ref

    @property
    @override
    def working_dir(self) -> Path:
        if self._working_dir is None:
            raise RuntimeError("the working directory is not known before initialize()")
        return self._working_dir

    @override
    async def initialize(self) -> None:
        if self._shared.closed:
            self._shared = Shared(self._url, "adk", self._options)
        self._working_dir = Path(await self._shared.connect())
        self._is_initialized = True

    @override
    async def close(self) -> None:
        self._is_initialized = False
        await self._shared.finish()

    async def destroy(self) -> None:
        """End the session, which kills all that runs in it, and the connection. The files stay."""
        self._is_initialized = False
        await self._shared.end()
        await self._shared.aclose()

    @override
    async def execute(self, command: str, *, timeout: float | None = None) -> ExecutionResult:
        """Run a script by one ``sh -c`` until it exits. The exit code is 128+n after signal n.

        A command that runs longer than ``timeout`` is killed with its process group, and the result has its output.
        """
        try:
            result = await self._shared.call(lambda w: w.shell(command, timeout=timeout, max_output=self._most))
        except RpcError as error:
            result = not_started("/bin/sh", error)
        return ExecutionResult(
            result.exit_code,
            text_of(result.stdout, result.stdout_omitted, self._most),
            text_of(result.stderr, result.stderr_omitted, self._most),
            result.timed_out,
        )

    @override
    async def read_file(self, path: str | Path) -> bytes:
        """Return the content of a file. Errors are those of Python, such as FileNotFoundError."""
        return await self._shared.call(lambda w: w.read(path))

    @override
    async def write_file(self, path: str | Path, content: str | bytes) -> None:
        """Create or replace a file, with missing directories of its path."""
        data = content.encode() if isinstance(content, str) else content
        await self._shared.call(lambda w: w.write(path, data))


__all__ = ["ExecagentEnvironment", "Options", "Ref"]
