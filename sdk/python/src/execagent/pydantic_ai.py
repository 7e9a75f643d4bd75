"""Workspaces of Pydantic AI on an agent (docs/integrations/pydantic-ai.md).

    from pydantic_ai import Agent
    from execagent.pydantic_ai import ExecagentWorkspace

    agent = Agent(model, capabilities=[ExecagentWorkspace("wss://host:7000", token_file="token", cwd="/var/project")])

Needs the extra ``pydantic-ai``.
"""

from __future__ import annotations

import contextlib
import math
import posixpath
from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from typing import Any, TypeVar, Unpack, cast

from pydantic_ai import RunContext
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.workspaces import (
    CommandResult,
    FileEntry,
    SupportsCommands,
    SupportsFilesystem,
    SupportsRealpath,
    WorkspaceBackend,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)

from ._adapter import Options, Ref, SessionGoneError, Shared, Workspace, not_started
from ._errors import NotFoundError, OutputLimitError, RpcError

T = TypeVar("T")
DepsT = TypeVar("DepsT")

PROVIDER = "execagent"
"""The provider of the references of these workspaces."""

_MAX_OUTPUT = 10 << 20  # bytes of each stream of a command


class ExecagentBackend(WorkspaceBackend, SupportsCommands, SupportsFilesystem, SupportsRealpath):
    """An environment of Pydantic AI: a directory of an agent, and a session there for the commands.

    Nothing is done before the first operation. That makes the session, or with ``ref`` attaches to the one that the
    reference names. A session lives as long as a command runs in it, and then for ``retain`` seconds, a day by default.
    :meth:`destroy` ends it. The files stay.

    The options are those of every adapter: ``token``, ``token_file``, ``context`` or ``connect`` for the way to the
    agent; ``session``, ``retain`` and ``cwd``; ``sandbox``, ``env``, ``memory``, ``cpus``, ``pids``, ``file_size``,
    ``user`` and ``exec_approval`` for what commands and files may do and use.
    """

    def __init__(self, url: str | None = None, *, ref: WorkspaceRef | None = None, **options: Unpack[Options]) -> None:
        self._shared = Shared(url, "pydantic-ai", options)
        if ref is not None:
            named = parse_ref(ref)
            if (
                named is None
                or named.where != self._shared.ref.where
                or options.get("session", named.session) != (named.session)
            ):
                raise ValueError(f"ref is {ref}, and must be of a workspace of this agent")
            self._shared = Shared(url, "pydantic-ai", {**options, "session": named.session, "existing": True})

    @property
    def ref(self) -> WorkspaceRef | None:
        """The session and where it is; None: it was not yet made."""
        return WorkspaceRef(provider=PROVIDER, id=str(self._shared.ref)) if self._shared.opened else None

    async def working_dir(self) -> str:
        """Return the working directory, without links."""
        with _gone():
            return await self._shared.connect()

    async def run(
        self,
        command: str | Sequence[str],
        *,
        shell: bool = False,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
    ) -> CommandResult:
        """Run a command to its exit. What it leaves in the background goes on."""
        if timeout is not None and (
            not isinstance(cast("object", timeout), (int, float)) or not 0 < timeout < math.inf
        ):
            raise ValueError(f"timeout is {timeout!r}, and must be a positive number of seconds, or None")
        if isinstance(command, str) != shell:
            raise TypeError("a str needs shell=True, and a list of words shell=False")
        argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
        try:
            result = await self._call(
                lambda w: w.run(argv, env=env, timeout=timeout, max_output=_MAX_OUTPUT, overflow="error")
            )
        except OutputLimitError as error:
            raise WorkspaceOutputLimitError(
                f"the command printed more than {error.limit} bytes to one stream, and was killed",
                limit=error.limit,
                stdout=_text(error.stdout),
                stderr=_text(error.stderr),
            ) from error
        except RpcError as error:
            if isinstance(error, NotFoundError) and error.what == "cwd":
                raise WorkspaceUnavailableError(f"the working directory {error.filename} does not exist") from error
            result = not_started(argv[0], error)
        stdout, stderr = _text(result.stdout), _text(result.stderr)
        if result.timed_out:
            raise WorkspaceTimeoutError(
                f"the command did not exit within {timeout:g} s, and was killed", stdout=stdout, stderr=stderr
            )
        return CommandResult(exit_code=result.exit_code, stdout=stdout, stderr=stderr)

    async def read_bytes(self, path: str) -> bytes:
        """Return the content of a file of up to 256 MiB."""
        return await self._call(lambda w: w.read(path))

    async def write_bytes(self, path: str, data: bytes) -> None:
        """Create or replace a file, and make missing directories of its path."""
        await self._call(lambda w: w.write(path, data))

    async def stat(self, path: str) -> FileEntry:
        """Describe what a path leads to."""
        found = await self._call(lambda w: w.fs.stat(path))
        return FileEntry(
            name=posixpath.basename(path), path=path, is_dir=found.is_dir, size=None if found.is_dir else found.size
        )

    async def list_dir(self, path: str) -> Sequence[FileEntry]:
        """List a directory. A link is described by what it leads to, if that exists."""
        return [
            FileEntry(
                name=name,
                path=posixpath.join(path, name),
                is_dir=at is not None and at.is_dir,
                size=None if at is None or at.is_dir else at.size,
            )
            for name, at in await self._call(lambda w: w.entries(path))
        ]

    async def make_dir(self, path: str) -> None:
        """Make a directory with its parents. One that exists is no error."""
        await self._call(lambda w: w.mkdir(path))

    async def remove(self, path: str) -> None:
        """Remove a file, a link, or a directory with what is in it. The working directory is refused."""
        await self._call(lambda w: w.remove(path))

    async def exists(self, path: str) -> bool:
        """Report whether a path leads to something."""
        return await self._call(lambda w: w.fs.exists(path))

    async def realpath(self, path: str) -> str:
        """Resolve all links of a path whose last names may be missing."""
        return await self._call(lambda w: _realpath(w, path))

    async def destroy(self) -> None:
        """End the session: its commands are killed, and its reference leads nowhere. The files stay."""
        with _gone():
            await self._shared.end()

    async def aclose(self) -> None:
        """End the connection. The session lives on. This happens by itself when nobody holds the backend."""
        await self._shared.aclose()

    async def _call(self, work: Callable[[Workspace], Coroutine[Any, Any, T]]) -> T:
        with _gone():
            return await self._shared.call(work)


class ExecagentWorkspace(AbstractCapability[DepsT]):
    """Gives runs a workspace on an agent. A run whose history has a reference of one goes on in it.

    The options are those of :class:`ExecagentBackend`. Without ``session`` each conversation has a session of its own.
    A reference to another agent, to another session than ``session``, or to one of another kind is not followed.
    """

    def __init__(self, url: str | None = None, *, id: str | None = "execagent", **options: Unpack[Options]) -> None:
        self.id = id
        self._url = url
        self._options = options
        self._own = ExecagentBackend(url, **options)._shared.ref  # wrong options are errors here

    @classmethod
    def combine(cls, capabilities: Sequence[AbstractCapability[DepsT]]) -> AbstractCapability[DepsT]:
        """Let a later one replace an earlier one whole, so that no option of the earlier one is carried over."""
        return capabilities[-1]

    def get_workspace(self, ctx: RunContext[DepsT], *, ref: WorkspaceRef | None) -> WorkspaceBackend | None:
        """Return the backend of a run; None: the reference belongs to others."""
        if ref is None:
            return ExecagentBackend(self._url, **self._options)
        named = parse_ref(ref)
        if named is None or named.where != self._own.where or not self._may_follow(named.session):
            return None
        return ExecagentBackend(self._url, ref=ref, **self._options)

    def _may_follow(self, session: str) -> bool:
        """Report whether a reference in a history, which others may have written, may name a session."""
        named = self._options.get("session")
        return session == named if named is not None else session.startswith("pydantic-ai-")


def parse_ref(ref: WorkspaceRef) -> Ref | None:
    """Read a reference; None: it belongs to another provider."""
    if ref.provider != PROVIDER:
        return None
    try:
        return Ref.parse(ref.id)
    except ValueError:
        return None


@contextlib.contextmanager
def _gone() -> Generator[None]:
    try:
        yield
    except SessionGoneError as error:
        raise WorkspaceUnavailableError(str(error)) from error


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


async def _realpath(w: Workspace, path: str) -> str:
    """Resolve a path. A .. leads to the parent of what is before it, also behind a link."""
    if not posixpath.isabs(path):
        raise ValueError(f"path is {path!r}, and must be absolute")
    at, names = "/", list[str]()
    for name in path.split("/"):
        if name == "..":
            at, names = posixpath.dirname(await w.fs.realpath(posixpath.join(at, *names), missing_ok=True)), []
        else:
            names.append(name)
    return await w.fs.realpath(posixpath.join(at, *filter(None, names)), missing_ok=True)


__all__ = ["PROVIDER", "ExecagentBackend", "ExecagentWorkspace"]
