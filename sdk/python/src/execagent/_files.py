"""The files of the agent: whole, in blocks, as trees, watched."""

from __future__ import annotations

import posixpath
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from . import _wire as wire
from ._errors import (
    AgentError,
    ClosedError,
    DisconnectedError,
    NotFoundError,
    OutputLimitError,
    ProtocolError,
    RpcError,
    again,
    shown,
)
from ._paths import RemotePath, from_uri, native, uri
from ._queue import Changes
from ._record import Record
from ._stdin import Data, base64_of, bytes_of
from ._within import CLEANUP, unanswered, within

if TYPE_CHECKING:
    from types import TracebackType

    from ._core import Core
    from ._link import Link
    from ._sandbox import Plan

_MAX_WHOLE = 32 << 20  # bytes of a file that passes as one message
_MAX_BLOCK = 1 << 20  # bytes of an open file that one request reads or writes
_MAX_CHANGES = 4096  # of a watch that wait
_MAX_CHANGE_BYTES = 1 << 20  # of their paths


class Stat(NamedTuple):
    """What is known of a path. All but ``is_symlink`` is about what a link leads to. Times are seconds since 1970."""

    is_file: bool
    is_dir: bool
    is_symlink: bool
    size: int
    modified: float
    created: float | None


class DirEntry(NamedTuple):
    """A name in a directory. The flags are about what a link leads to."""

    name: str
    path: str
    is_file: bool
    is_dir: bool


class WalkEntry(NamedTuple):
    """A file or a directory in a tree."""

    path: str
    is_dir: bool


class Walk(NamedTuple):
    """A tree, breadth first. ``errors`` has what could not be read, with the reason. ``truncated`` says that a bound
    was met, so that there is more."""

    entries: tuple[WalkEntry, ...]
    errors: tuple[tuple[str, str], ...]
    truncated: bool


class Change(NamedTuple):
    """A change of a path. With ``renamed``, ``source`` is the path that it had before."""

    kind: Literal["created", "modified", "removed", "renamed"]
    path: str
    source: str | None = None


class ChangeSet(NamedTuple):
    """Changes in the order in which they happened. ``overflow`` says that more has changed: read the tree again."""

    changes: tuple[Change, ...]
    overflow: bool


class PatchedFile(NamedTuple):
    """A file that a patch has changed. Of a file that was moved, ``source`` is the path that it had before."""

    kind: str
    path: str
    source: str | None


class PatchResult(NamedTuple):
    """What a patch did: the text that the tool prints, the files, and with ``dry_run`` a unified diff."""

    output: str
    changes: tuple[PatchedFile, ...]
    diff: str | None


class Files:
    """The file system of the agent. Paths are absolute.

    Requests that only read are made again after a lost connection. Those that change something are not: their error is
    a DisconnectedError, and its ``sent`` says whether the change may have been made.
    """

    def __init__(self, core: Core, sandbox: Mapping[str, Any] | None = None) -> None:
        self._core = core
        self._sandbox = sandbox

    def confined(self, sandbox: Plan) -> Files:
        """Return the files as far as a plan of ``Agent.plan`` allows."""
        return Files(self._core, sandbox.sandbox)

    def _params(self, path: str, more: Mapping[str, object] | None = None) -> dict[str, object]:
        params: dict[str, object] = {"path": uri(path), **(more or {})}
        if self._sandbox is not None:
            params["sandbox"] = self._sandbox
        return params

    async def _ask(self, method: str, path: RemotePath, more: Mapping[str, object] | None = None) -> Any:
        clean = native(path)
        return await self._core.request(method, self._params(clean, more), filename=clean)

    async def read(self, path: RemotePath, *, max_bytes: int | None = None) -> bytes:
        """Return the content of a file. A file above 32 MiB is read in blocks.

        Of a file above ``max_bytes`` nothing is returned: that is an OutputLimitError.
        """
        known = await self.stat(path)
        if max_bytes is not None and known.size > max_bytes:
            raise OutputLimitError(f"{shown(native(path))} has {known.size} bytes", max_bytes)
        data: bytes | None = None
        if known.size <= _MAX_WHOLE:
            try:
                data = Record(wire.FS_READ_FILE, await self._ask(wire.FS_READ_FILE, path)).data("dataBase64")
            except RpcError as error:
                if (error.data or {}).get("reason") != "memory":
                    raise
        if data is None:
            data = await self._read_blocks(path, max_bytes)
        if max_bytes is not None and len(data) > max_bytes:
            raise OutputLimitError(f"{shown(native(path))} has {len(data)} bytes", max_bytes)
        return data

    async def _read_blocks(self, path: RemotePath, limit: int | None) -> bytes:
        parts: list[bytes] = []
        size = 0
        async with await self.open(path) as file:
            async for block in file:
                size += len(block)
                if limit is not None and size > limit:
                    raise OutputLimitError(f"{shown(native(path))} has more than {limit} bytes", limit)
                parts.append(block)
        return b"".join(parts)

    async def read_text(self, path: RemotePath, *, encoding: str = "utf-8", max_bytes: int | None = None) -> str:
        """Return the content of a file as text."""
        return (await self.read(path, max_bytes=max_bytes)).decode(encoding)

    async def write(self, path: RemotePath, data: Data) -> None:
        """Create or replace a file. Data above 32 MiB is written in blocks, so an error may leave a part of it."""
        view = bytes_of(data)
        if len(view) <= _MAX_WHOLE:
            await self._ask(wire.FS_WRITE_FILE, path, {"dataBase64": base64_of(view)})
            return
        async with await self.open(path, "write") as file:
            await file.write_at(view, 0)

    async def write_text(self, path: RemotePath, text: str, *, encoding: str = "utf-8") -> None:
        """Create or replace a file with a text."""
        await self.write(path, text.encode(encoding))

    async def stat(self, path: RemotePath) -> Stat:
        """Describe a path; of a link, what it leads to."""
        r = Record(wire.FS_GET_METADATA, await self._ask(wire.FS_GET_METADATA, path))
        created = r.integer("createdAtMs", -(1 << 63), 1 << 63)
        return Stat(
            r.flag("isFile"),
            r.flag("isDirectory"),
            r.flag("isSymlink"),
            r.integer("size"),
            r.integer("modifiedAtMs", -(1 << 63), 1 << 63) / 1000,
            created / 1000 if created else None,
        )

    async def exists(self, path: RemotePath) -> bool:
        """Report whether a path exists. A link that leads nowhere does not."""
        try:
            await self.stat(path)
        except (NotFoundError, NotADirectoryError):
            return False
        return True

    async def list(self, path: RemotePath) -> list[DirEntry]:
        """List a directory, sorted by name. Links that lead nowhere are left out."""
        clean = native(path)
        r = Record(wire.FS_READ_DIRECTORY, await self._ask(wire.FS_READ_DIRECTORY, clean))
        entries: list[DirEntry] = []
        for each in r.records("entries"):
            name = each.text("fileName")
            if "/" in name or name in ("", ".", ".."):
                raise ProtocolError(f"{each.where}: fileName is {shown(name)}, and not a name")
            entries.append(DirEntry(name, posixpath.join(clean, name), each.flag("isFile"), each.flag("isDirectory")))
        return sorted(entries, key=lambda entry: entry.name)

    async def walk(
        self,
        path: RemotePath,
        *,
        max_depth: int = 64,
        max_entries: int = 50_000,
        max_directories: int = 10_000,
        follow_symlinks: bool = False,
        skip_hidden: bool = False,
    ) -> Walk:
        """List a tree, breadth first, within bounds. With ``skip_hidden``, hidden directories are not entered."""
        options: wire.WalkOptions = {
            "maxDepth": max_depth,
            "maxDirectories": max_directories,
            "maxEntries": max_entries,
            "followDirectorySymlinks": follow_symlinks,
            "pruneHiddenDirectories": skip_hidden,
        }
        r = Record(wire.FS_WALK, await self._ask(wire.FS_WALK, path, {"options": options}))
        return Walk(
            tuple(WalkEntry(each.path("path"), each.text("kind") == "directory") for each in r.records("entries")),
            tuple((each.path("path"), each.text("message")) for each in r.records("errors")),
            r.flag("truncated"),
        )

    async def realpath(self, path: RemotePath) -> str:
        """Resolve all links of a path that exists."""
        return Record(wire.FS_CANONICALIZE, await self._ask(wire.FS_CANONICALIZE, path)).path("path")

    async def mkdir(self, path: RemotePath, *, parents: bool = True) -> None:
        """Make a directory. With parents, missing parents too, and an existing directory is no error."""
        await self._ask(wire.FS_CREATE_DIRECTORY, path, {"recursive": parents})

    async def remove(self, path: RemotePath, *, recursive: bool = False, missing_ok: bool = False) -> None:
        """Delete a file, a link, or a directory: an empty one, or with recursive all of it."""
        await self._ask(wire.FS_REMOVE, path, {"recursive": recursive, "force": missing_ok})

    async def rename(self, source: RemotePath, target: RemotePath, *, replace: bool = True) -> None:
        """Move a path within one mount; with replace also onto an existing path."""
        await self._between(wire.FS_RENAME, source, target, {"replace": replace})

    async def copy(self, source: RemotePath, target: RemotePath) -> None:
        """Copy a file, a link or a tree, at the agent."""
        await self._between(wire.FS_COPY, source, target, {"recursive": True})

    async def _between(self, method: str, source: RemotePath, target: RemotePath, more: Mapping[str, object]) -> None:
        at, to = native(source, "source"), native(target, "target")
        params: dict[str, object] = {"sourcePath": uri(at), "destinationPath": uri(to), **more}
        if self._sandbox is not None:
            params["sandbox"] = self._sandbox
        await self._core.request(method, params, filename=at)

    async def open(self, path: RemotePath, mode: Literal["read", "write"] = "read") -> File:
        """Open a file, for blocks at any place. ``write`` empties or creates it at once.

        An open file ends with its connection, because the agent then closes it.
        """
        if mode not in ("read", "write"):
            raise ValueError(f"mode is {shown(mode)}, and must be 'read' or 'write'")
        clean = native(path)
        if mode == "write":
            await self._core.require("writing files in blocks", "fileWriteStreaming")
        if self._sandbox is not None:
            await self._core.require("open files under a sandbox", "sandboxedFileStreaming")
        number = f"f{self._core.next_id()}"
        params = self._params(clean, {"handleId": number, "mode": "replace" if mode == "write" else "read"})
        while True:
            link = await self._core.connected()
            file = File(self._core, link, number, clean)
            try:
                await link.called(wire.FS_OPEN, params, clean)
                return file
            except DisconnectedError as error:
                if error.sent or self._core.failure is not None:
                    raise
            except RpcError:
                raise
            except BaseException:
                self._core.background(file.close())  # it may be open
                raise

    async def watch(self, path: RemotePath, *, recursive: bool = False) -> Watch:
        """Watch a path, which need not exist: the file there, in a directory each name, with recursive all below."""
        await self._core.require("watching files", "fsWatch")
        watch = Watch(self._core, self._params(native(path), {"recursive": recursive}))
        await watch.open()
        return watch

    async def apply_patch(self, patch: str, *, cwd: RemotePath, dry_run: bool = False) -> PatchResult:
        """Change files as a patch of the tool apply_patch says: all of them, or none.

        The message of an RpcError is the text that a model expects.
        """
        at = native(cwd, "cwd")
        params: dict[str, object] = {"patch": patch, "cwd": uri(at)}
        if dry_run:
            params["dryRun"] = True
        if self._sandbox is not None:
            params["sandbox"] = self._sandbox
        r = Record(wire.FS_APPLY_PATCH, await self._core.request(wire.FS_APPLY_PATCH, params, safe=dry_run))
        changes = tuple(
            PatchedFile(each.text("kind"), each.path("path"), each.path_or("from")) for each in r.records("changes")
        )
        return PatchResult(r.text("output"), changes, r.text("diff") if "diff" in r.members else None)


async def _finish(link: Link, method: str, params: Mapping[str, object]) -> None:
    """End something that ends with its connection in any case."""
    try:
        async with within(CLEANUP, lambda: unanswered(method, CLEANUP)):
            await link.called(method, params)
    except DisconnectedError:
        pass


class File:
    """An open file of the agent."""

    def __init__(self, core: Core, link: Link, number: str, path: str) -> None:
        self._core = core
        self._link = link
        self._id = number
        self._closed = False
        self.path = path

    def _check(self) -> None:
        if self._closed:
            raise ClosedError(f"{shown(self.path)} is closed")

    async def read_at(self, offset: int, length: int) -> bytes:
        """Return the bytes at an offset. They are fewer than length only at the end of the file."""
        self._check()
        if offset < 0 or length < 0:
            raise ValueError("offset and length must not be negative")
        parts: list[bytes] = []
        while length > 0:
            want = min(length, _MAX_BLOCK)
            params: wire.ReadBlockParams = {"handleId": self._id, "offset": offset, "len": want}
            r = Record(wire.FS_READ_BLOCK, await self._link.called(wire.FS_READ_BLOCK, params, self.path))
            block = r.data("chunk")
            if len(block) > want:
                raise ProtocolError(f"{r.where}: {want} bytes were asked for, and {len(block)} came")
            parts.append(block)
            offset, length = offset + len(block), length - len(block)
            if r.flag("eof") or not block:
                break
        return b"".join(parts)

    async def write_at(self, data: Data, offset: int) -> None:
        """Write bytes at an offset. A gap between the end of the file and the offset becomes zeros."""
        self._check()
        if offset < 0:
            raise ValueError("offset must not be negative")
        view = bytes_of(data)
        for at in range(0, len(view), _MAX_BLOCK):
            params: wire.WriteBlockParams = {
                "handleId": self._id,
                "offset": offset + at,
                "chunk": base64_of(view[at : at + _MAX_BLOCK]),
            }
            await self._link.called(wire.FS_WRITE_BLOCK, params, self.path)

    def __aiter__(self) -> AsyncIterator[bytes]:
        """Yield the content in blocks of up to 1 MiB."""
        return self._blocks()

    async def _blocks(self) -> AsyncIterator[bytes]:
        offset = 0
        while block := await self.read_at(offset, _MAX_BLOCK):
            offset += len(block)
            yield block

    async def close(self) -> None:
        """Close the file, within 10 s. Closing it again is no error, nor is it after the connection is gone."""
        if self._closed:
            return
        self._closed = True
        params: wire.HandleParams = {"handleId": self._id}
        await _finish(self._link, wire.FS_CLOSE, params)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


def _change(r: Record) -> Change:
    match r.text("kind"):
        case "renamed":
            return Change("renamed", r.path("path"), r.path("from"))
        case "created" | "modified" | "removed" as kind:
            return Change(kind, r.path("path"))
        case _:
            raise r.wrong("kind", "a kind of change")


class Watch:
    """Tells what changes at a path. It goes on over lost connections: then it tells of an overflow.

    ``async for change_set in watch`` yields the changes as they come.
    """

    def __init__(self, core: Core, params: dict[str, object]) -> None:
        self._core = core
        self._id = f"w{core.next_id()}"
        self._params = {**params, "watchId": self._id}
        self._pending: list[Change] = []
        self._bytes = 0
        self._overflow = False
        self._error: BaseException | None = None
        self._changes = Changes()
        self.path = ""
        """The watched path: the path of the call, with its links resolved."""

    async def open(self) -> None:
        """Begin to watch."""
        filename = from_uri(str(self._params["path"]), "path")
        while True:
            link = await self._core.connected()
            try:
                self.path = await self._begin(link, filename)
            except DisconnectedError:
                if self._core.failure is not None:
                    raise
                continue  # a watch ends with its connection
            except RpcError:
                link.watches.pop(self._id, None)
                raise
            except BaseException:
                self._core.background(self._unwatch(link))  # the server may have made it
                raise
            if self._core.is_current(link):
                # From now on it is about this path, even if a link leads elsewhere later.
                self._params["path"] = uri(self.path)
                self._core.carried.add(self)
                return

    async def _begin(self, link: Link, filename: str) -> str:
        link.watches[self._id] = self  # notifications may come at once
        return Record(wire.FS_WATCH, await link.called(wire.FS_WATCH, self._params, filename)).path("path")

    async def resume(self, link: Link) -> None:
        """Go on over a new connection. What changed in between is unknown."""
        try:
            path = await self._begin(link, self.path)
        except DisconnectedError:
            return  # the next connection resumes it, if there is one
        except AgentError as error:
            self._end(error)
            return
        if path != self.path:
            self._end(AgentError(f"since the connection was lost, {shown(self.path)} leads elsewhere"))
        if self._error is not None:
            await self._unwatch(link)
            return
        self._add([], True)

    def lost(self, reason: DisconnectedError) -> None:
        """The client has failed."""
        self._end(reason)

    def accept(self, r: Record) -> None:
        """Take a notification."""
        changes: list[Change] = []
        for each in r.records("changes"):
            change = _change(each)
            for path in (change.path, change.source):
                if path is not None and path != self.path and self.path and not self._below(path):
                    self._end(ProtocolError(f"the agent tells of {shown(path)}, which is not watched"))
                    return
            changes.append(change)
        self._add(changes, r.flag("overflow"))

    def _below(self, path: str) -> bool:
        return path.startswith(self.path.rstrip("/") + "/")

    def _add(self, changes: list[Change], overflow: bool) -> None:
        if self._error is not None:
            return
        self._bytes += sum(len(change.path) + len(change.source or "") for change in changes)
        too_many = len(self._pending) + len(changes) > _MAX_CHANGES or self._bytes > _MAX_CHANGE_BYTES
        self._overflow = self._overflow or overflow or too_many
        if self._overflow:
            self._pending, self._bytes = [], 0
        else:
            self._pending += changes
        self._changes.notify()

    async def next(self) -> ChangeSet:
        """Wait for changes, and take all that have come."""
        while True:
            if self._pending or self._overflow:
                taken = ChangeSet(tuple(self._pending), self._overflow)
                self._pending, self._bytes, self._overflow = [], 0, False
                return taken
            if self._error is not None:
                raise again(self._error)
            await self._changes.wait()

    def __aiter__(self) -> AsyncIterator[ChangeSet]:
        return self._sets()

    async def _sets(self) -> AsyncIterator[ChangeSet]:
        while True:
            try:
                changes = await self.next()
            except ClosedError:
                return
            yield changes

    def _end(self, error: BaseException) -> bool:
        self._core.carried.discard(self)
        if self._error is not None:
            return False
        self._error = error
        self._changes.notify()
        return True

    async def _unwatch(self, link: Link) -> None:
        link.watches.pop(self._id, None)
        params: wire.UnwatchParams = {"watchId": self._id}
        await _finish(link, wire.FS_UNWATCH, params)

    async def close(self) -> None:
        """End the watch, within 10 s. Closing it again is no error, nor is it while there is no connection."""
        link = self._core.link
        if self._end(ClosedError("the watch is closed")) and link is not None:
            await self._unwatch(link)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


__all__ = [
    "Change",
    "ChangeSet",
    "DirEntry",
    "File",
    "Files",
    "PatchResult",
    "PatchedFile",
    "Stat",
    "Walk",
    "WalkEntry",
    "Watch",
]
