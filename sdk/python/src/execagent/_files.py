"""The files of the agent: whole, in blocks, as trees, watched."""

from __future__ import annotations

import builtins
import posixpath
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypedDict

from . import _wire as wire
from ._errors import (
    ClosedError,
    DisconnectedError,
    NotFoundError,
    OutputLimitError,
    ProtocolError,
    RpcError,
    refusal_of,
    shown,
)
from ._paths import RemotePath, native, uri
from ._record import Record
from ._stdin import Data, base64_of, bytes_of
from ._watch import Watch

if TYPE_CHECKING:
    from types import TracebackType

    from ._core import Core
    from ._link import Link
    from ._sandbox import Plan

_MAX_WHOLE = 32 << 20  # bytes of a file that passes as one message
_MAX_MANY = 1024  # paths of a request
_MAX_BLOCK = 1 << 20  # bytes of an open file that one request reads or writes


class Stat(NamedTuple):
    """What is known of a path. All but ``is_symlink`` is about what a link leads to, unless links are not followed.

    Times are seconds since 1970. ``type`` is file, directory, symlink, fifo, socket, blockDevice or characterDevice.
    ``mode`` has the permissions, the set-ID bits and the sticky bit. ``link_target`` is what a link leads to, if links
    are not followed. From ``type`` on, what the agent does not tell is None.
    """

    is_file: bool
    is_dir: bool
    is_symlink: bool
    size: int
    modified: float
    created: float | None
    type: str | None = None
    mode: int | None = None
    uid: int | None = None
    gid: int | None = None
    owner: str | None = None
    group: str | None = None
    link_target: str | None = None


def _stat_of(r: Record) -> Stat:
    created = r.integer("createdAtMs", -(1 << 63), 1 << 63)
    return Stat(
        r.flag("isFile"),
        r.flag("isDirectory"),
        r.flag("isSymlink"),
        r.integer("size"),
        r.integer("modifiedAtMs", -(1 << 63), 1 << 63) / 1000,
        created / 1000 if created else None,
        r.text_or_none("type"),
        r.integer_or("mode"),
        r.integer_or("uid"),
        r.integer_or("gid"),
        r.text_or_none("owner"),
        r.text_or_none("group"),
        r.text_or_none("linkTarget"),
    )


class DirEntry(NamedTuple):
    """A name in a directory. The flags are about what a link leads to, unless links are not followed.

    ``type``, ``size``, ``modified`` and ``mode``, as in :class:`Stat`, are known if links are not followed. All but
    ``type`` are None also where a sandbox denies the file.
    """

    name: str
    path: str
    is_file: bool
    is_dir: bool
    type: str | None = None
    size: int | None = None
    modified: float | None = None
    mode: int | None = None


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


class SearchMatch(NamedTuple):
    """A line that matches. Lines, columns and lengths count from 1, and are in bytes of the line.

    ``column`` and ``length`` are of the first match in the line. ``text`` is the line. Of a long line it is a part that
    begins at ``text_column``, and with ``cut`` the line goes on behind it. ``before`` and ``after`` are lines around,
    without those that another match has.
    """

    line: int
    column: int
    length: int
    text: str
    text_column: int
    cut: bool
    before: tuple[str, ...]
    after: tuple[str, ...]


class SearchedFile(NamedTuple):
    """Something that was found. ``kind`` is file, directory, symlink or other."""

    path: str
    kind: str
    matches: tuple[SearchMatch, ...]


class Search(NamedTuple):
    """What was found, sorted by path. ``errors`` has what could not be read, with the reason.

    ``truncated`` names the bound that was met, so that something is missing: matches, files, depth, time, size or line.
    ``files_read`` is how many files were searched, and ``binary_files`` how many were skipped, because their beginning
    has a zero byte.
    """

    files: tuple[SearchedFile, ...]
    errors: tuple[tuple[str, str], ...]
    truncated: str | None
    files_read: int
    binary_files: int


class SearchOptions(TypedDict, total=False):
    """The options of :meth:`Files.search`."""

    globs: str | Sequence[str]
    literal: bool
    ignore_case: bool
    hidden: bool
    no_ignore: bool
    kind: Literal["file", "directory", "symlink", "other"] | None
    before: int
    after: int
    max_matches: int | None
    max_file_matches: int | None
    max_files: int | None
    max_depth: int | None
    max_line_bytes: int | None
    max_time: float | None


def _found(r: Record) -> SearchedFile:
    matches = r.records("matches") if r.members.get("matches") is not None else ()
    return SearchedFile(
        r.path("path"),
        r.text("kind"),
        tuple(
            SearchMatch(
                each.integer("line", 1),
                each.integer("column", 1),
                each.integer("length"),
                each.text("text"),
                each.integer("textColumn", 1),
                each.flag("cut"),
                tuple(each.texts_or("before") or ()),
                tuple(each.texts_or("after") or ()),
            )
            for each in matches
        ),
    )


def _errors(r: Record) -> tuple[tuple[str, str], ...]:
    return tuple((each.path("path"), each.text("message")) for each in r.records("errors"))


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
        known = await self._stat(path, None)
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

    async def write(
        self,
        path: RemotePath,
        data: Data,
        *,
        mode: int | None = None,
        parents: bool = False,
        exclusive: bool = False,
        atomic: bool = False,
    ) -> None:
        """Create or replace a file. Data above 32 MiB is written in blocks, so an error may leave a part of it.

        - ``mode``: the permissions that the file has then, 0 to 0o777
        - ``parents``: make missing directories of the path
        - ``exclusive``: make a new file; one that exists is an AlreadyExistsError
        - ``atomic``: replace the file as a whole: others see the old content or the new one

        These need an agent with ``fsWriteOptions``, and at most 32 MiB.
        """
        view = bytes_of(data)
        more: dict[str, object] = {}
        if mode is not None:
            if not 0 <= mode <= 0o777:
                raise ValueError(f"mode is {mode:#o}, and must be 0 to 0o777")
            more["mode"] = mode
        for word, wanted in (("parents", parents), ("exclusive", exclusive), ("atomic", atomic)):
            if wanted:
                more[word] = True
        if more:
            if len(view) > _MAX_WHOLE:
                raise ValueError(f"{', '.join(more)}: {len(view)} bytes are more than 32 MiB; use upload()")
            await self._core.require("mode, parents, exclusive and atomic of a file", "fsWriteOptions")
        if len(view) <= _MAX_WHOLE:
            await self._ask(wire.FS_WRITE_FILE, path, {"dataBase64": base64_of(view), **more})
            return
        async with await self.open(path, "write") as file:
            await file.write_at(view, 0)

    async def write_text(
        self,
        path: RemotePath,
        text: str,
        *,
        encoding: str = "utf-8",
        mode: int | None = None,
        parents: bool = False,
        exclusive: bool = False,
        atomic: bool = False,
    ) -> None:
        """Create or replace a file with a text, as :meth:`write` does."""
        data = text.encode(encoding)
        await self.write(path, data, mode=mode, parents=parents, exclusive=exclusive, atomic=atomic)

    async def stat(self, path: RemotePath, *, follow: bool = True) -> Stat:
        """Describe a path. Without ``follow``, a link is described itself; this needs an agent with ``fsMetadata``."""
        return await self._stat(path, await self._details(follow))

    async def _details(self, follow: bool) -> str | None:
        if not follow:
            await self._core.require("describing links", "fsMetadata")
            return "lstat"
        return "stat" if await self._core.supports("fsMetadata") else None

    async def _stat(self, path: RemotePath, details: str | None) -> Stat:
        more = None if details is None else {"details": details}
        return _stat_of(Record(wire.FS_GET_METADATA, await self._ask(wire.FS_GET_METADATA, path, more)))

    async def stat_many(self, paths: Sequence[RemotePath], *, follow: bool = True) -> builtins.list[Stat | RpcError]:
        """Describe many paths with few requests: what :meth:`stat` returns or raises for each, in their order.

        This needs an agent with ``fsMetadata``.
        """
        clean = [native(path) for path in paths]
        await self._core.require("describing many paths at once", "fsMetadata")
        details = "stat" if follow else "lstat"
        found: builtins.list[Stat | RpcError] = []
        while len(found) < len(clean):
            some = clean[len(found) : len(found) + _MAX_MANY]
            params: dict[str, object] = {"paths": [uri(path) for path in some], "details": details}
            if self._sandbox is not None:
                params["sandbox"] = self._sandbox
            r = Record(wire.FS_GET_METADATA_MANY, await self._core.request(wire.FS_GET_METADATA_MANY, params))
            files = list(r.records("files"))
            if len(files) != len(some):
                raise ProtocolError(f"{r.where}: {len(some)} files were asked for, and {len(files)} came")
            for path, each in zip(some, files, strict=True):
                error = each.record_or("error")
                found.append(_stat_of(each.record("metadata")) if error is None else refusal_of(error, path))
        return found

    async def exists(self, path: RemotePath) -> bool:
        """Report whether a path exists. A link that leads nowhere does not."""
        try:
            await self._stat(path, None)
        except (NotFoundError, NotADirectoryError):
            return False
        return True

    async def list(self, path: RemotePath, *, follow: bool = True) -> builtins.list[DirEntry]:
        """List a directory, sorted by name. Links that lead nowhere are left out.

        Without ``follow``, all names are listed and described themselves, with links, sizes, times and modes. This
        needs an agent with ``fsReadDirectoryLstat``.
        """
        clean = native(path)
        more: dict[str, object] | None = None
        if not follow:
            await self._core.require("lists of links", "fsReadDirectoryLstat")
            more = {"entries": "lstat"}
        r = Record(wire.FS_READ_DIRECTORY, await self._ask(wire.FS_READ_DIRECTORY, clean, more))
        entries: builtins.list[DirEntry] = []
        for each in r.records("entries"):
            name = each.text("fileName")
            if "/" in name or name in ("", ".", ".."):
                raise ProtocolError(f"{each.where}: fileName is {shown(name)}, and not a name")
            modified = each.integer_or("modifiedAtMs", None, -(1 << 63))
            entries.append(
                DirEntry(
                    name,
                    posixpath.join(clean, name),
                    each.flag("isFile"),
                    each.flag("isDirectory"),
                    each.text_or_none("type"),
                    each.integer_or("size"),
                    None if modified is None else modified / 1000,
                    each.integer_or("mode"),
                )
            )
        return sorted(entries, key=lambda entry: entry.name)

    async def search(
        self,
        path: RemotePath,
        pattern: str | None = None,
        *,
        globs: str | Sequence[str] = (),
        literal: bool = False,
        ignore_case: bool = False,
        hidden: bool = False,
        no_ignore: bool = False,
        kind: Literal["file", "directory", "symlink", "other"] | None = None,
        before: int = 0,
        after: int = 0,
        max_matches: int | None = None,
        max_file_matches: int | None = None,
        max_files: int | None = None,
        max_depth: int | None = None,
        max_line_bytes: int | None = None,
        max_time: float | None = None,
    ) -> Search:
        """Find names, or with a pattern lines of files, below a directory or in a file.

        Names that begin with a dot are left out, and so is what a .gitignore names. Links are not followed.

        - ``pattern``: a regular expression of RE2, or with ``literal`` a text; with ``ignore_case`` in any case
        - ``globs``: names, each as a line of a .gitignore, such as ``*.py`` and ``!test_*``; the last that matches
          decides
        - ``hidden``, ``no_ignore``: also names that begin with a dot; also what a .gitignore names
        - ``kind``: the only kind that is listed without a pattern
        - ``before``, ``after``: how many lines around each match are given
        - ``max_matches`` (1,000), ``max_file_matches``, ``max_files`` (100,000), ``max_depth`` (256),
          ``max_line_bytes`` (512), ``max_time`` (10 s): bounds, which the agent has in any case. One that was met is no
          error, and ``truncated`` names it

        This needs an agent with ``fsSearch``, and no other program there.
        """
        await self._core.require("searching files", "fsSearch")
        words: dict[str, object] = {
            "globs": [globs] if isinstance(globs, str) else list(globs),
            "pattern": pattern,
            "literal": literal,
            "ignoreCase": ignore_case,
            "hidden": hidden,
            "noIgnore": no_ignore,
            "kind": kind,
            "before": before,
            "after": after,
            "maxMatches": max_matches,
            "maxFileMatches": max_file_matches,
            "maxFiles": max_files,
            "maxDepth": max_depth,
            "maxLineBytes": max_line_bytes,
            "timeoutMs": None if max_time is None else round(max_time * 1000),
        }
        more = {word: value for word, value in words.items() if value is not None}
        r = Record(wire.FS_SEARCH, await self._ask(wire.FS_SEARCH, path, more))
        return Search(
            tuple(_found(each) for each in r.records("files")),
            _errors(r),
            r.text_or_none("truncated"),
            r.integer("filesRead"),
            r.integer("binaryFiles"),
        )

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
            _errors(r),
            r.flag("truncated"),
        )

    async def realpath(self, path: RemotePath, *, missing_ok: bool = False) -> str:
        """Resolve all links of a path that exists.

        With ``missing_ok``, names at its end may be missing, also behind a link. This needs an agent with
        ``fsCanonicalizeMissing``.
        """
        more: dict[str, object] | None = None
        if missing_ok:
            await self._core.require("canonical paths of missing files", "fsCanonicalizeMissing")
            more = {"allowMissing": True}
        return Record(wire.FS_CANONICALIZE, await self._ask(wire.FS_CANONICALIZE, path, more)).path("path")

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
        await self._link.finish(wire.FS_CLOSE, params)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


__all__ = [
    "DirEntry",
    "File",
    "Files",
    "PatchResult",
    "PatchedFile",
    "Search",
    "SearchMatch",
    "SearchOptions",
    "SearchedFile",
    "Stat",
    "Walk",
    "WalkEntry",
]
