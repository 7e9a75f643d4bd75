"""A sandbox of deepagents on an agent (docs/integrations/deepagents.md).

    from deepagents import create_deep_agent
    from execagent.deepagents import ExecagentSandbox

    agent = create_deep_agent(model, backend=ExecagentSandbox("wss://host:7000", token_file="token", cwd="/var/app"))

Needs the extra ``deepagents``. Files are read, written and searched by native calls, so the host of the agent needs no
Python.
"""

from __future__ import annotations

import asyncio
import base64
import codecs
import contextlib
import fnmatch
import functools
import io
import itertools
import math
import posixpath
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any, TypeVar, Unpack

from deepagents.backends.protocol import (
    FILE_NOT_FOUND,
    INVALID_PATH,
    IS_DIRECTORY,
    PERMISSION_DENIED,
    DeleteResult,
    EditResult,
    ExecuteResponse,
    FileData,
    FileDownloadResponse,
    FileInfo,
    FileUploadResponse,
    GlobResult,
    GrepMatch,
    GrepResult,
    LsResult,
    ReadResult,
    WriteResult,
)
from deepagents.backends.sandbox import MAX_BINARY_BYTES, MAX_OUTPUT_BYTES, TRUNCATION_MSG, BaseSandbox
from deepagents.backends.utils import EMPTY_OLD_STRING_ERROR, normalize_read_bounds

from ._adapter import Options, Shared, Workspace, text_of
from ._bounds import MAX_AGENT_OUTPUT
from ._errors import AgentError, DisconnectedError, RpcError

T = TypeVar("T")

_TIMEOUT = 30 * 60  # seconds of a command for which nothing was said
_TIMED_OUT = 124  # the exit code of a command whose time was up, as of timeout(1)
_MAX_COUNTED = 1 << 20  # bytes of a file whose lines are all counted
_BLOCK = 4 << 20  # bytes of a file that is read as one message
_MAX_ALTERNATIVES = 64
_MAX_MATCHES = 10_000
_AT_ONCE = 64  # links that are asked for at the same time
_MAX_LINE = 16 << 10  # bytes of a line that was found
# What deepagents passes on as media, and never as text.
_IMAGES = {".png", ".jpeg", ".jpg", ".webp", ".gif", ".heic", ".heif"}
_VIDEOS = {".mp4", ".mpeg", ".mov", ".avi", ".flv", ".mpg", ".webm", ".wmv", ".3gpp", ".mkv"}
_SOUNDS = {".wav", ".mp3", ".aiff", ".aac", ".ogg", ".flac"}
_MEDIA = {*_IMAGES, *_VIDEOS, *_SOUNDS, ".pdf", ".ppt", ".pptx"}


class ExecagentSandbox(BaseSandbox):
    """A sandbox of deepagents: a directory of an agent, and a session there for the commands.

    Nothing is done before the first call, and all may be made from any thread and any event loop. ``id`` names the
    session and where it is: ``ExecagentSandbox(url, session=…, existing=True)`` comes back to it. A session lives as
    long as a command runs in it, and then for ``retain`` seconds, a day by default. The files stay.

    ``timeout`` is for how many seconds a command may run unless a call says otherwise; 0 is no limit.

    The options are those of every adapter: ``token``, ``token_file``, ``context`` or ``connect`` for the way to the
    agent; ``session``, ``existing``, ``retain`` and ``cwd``; ``sandbox``, ``env``, ``memory``, ``cpus``, ``pids``,
    ``file_size``, ``user`` and ``exec_approval`` for what commands and files may do and use.
    """

    def __init__(self, url: str | None = None, *, timeout: int = _TIMEOUT, **options: Unpack[Options]) -> None:
        self._timeout = _seconds(timeout)
        self._editing = asyncio.Lock()  # models edit a file twice at the same time, and both edits count
        self._shared = Shared(url, "deepagents", options)

    @property
    def id(self) -> str:
        """The name of the session, and where it is."""
        return str(self._shared.ref)

    def close(self) -> None:
        """End the connection. The session lives on. This happens by itself when nobody holds the sandbox."""
        self._shared.close()

    async def aclose(self) -> None:
        """Do what :meth:`close` does."""
        await self._shared.aclose()

    async def destroy(self) -> None:
        """End the session: its commands are killed. The files stay."""
        await self._shared.end()

    async def _call(self, work: Callable[[Workspace], Coroutine[Any, Any, T]], failed: Callable[[str], T]) -> T:
        """Do work in the workspace, and return an error as deepagents wants it: as a result."""
        try:
            return await self._shared.call(work)
        except (AgentError, OSError, ValueError) as error:
            return failed(_why(error))

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a script by ``sh -c``. The output is that of both streams, in the order in which it was written.

        When the time is up, the script is killed and the exit code is 124. If a connection that is lost for good leaves
        open how it ended, the exit code is None.
        """
        return self._shared.block(self.aexecute(command, timeout=timeout))

    async def aexecute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Do what :meth:`execute` does."""
        seconds = self._timeout if timeout is None else _seconds(timeout)
        return await self._call(
            lambda w: _execute(w, command, seconds),
            lambda why: ExecuteResponse(f"Error: the command was not run: {why}"),
        )

    def ls(self, path: str) -> LsResult:
        """List a directory. Links are not followed."""
        return self._shared.block(self.als(path))

    async def als(self, path: str) -> LsResult:
        """Do what :meth:`ls` does."""
        return await self._call(lambda w: _ls(w, path), lambda why: LsResult(error=f"Path '{path}': {why}"))

    def read(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Return lines of a text, or the base64 of another file of up to 500 KiB."""
        return self._shared.block(self.aread(file_path, offset, limit))

    async def aread(self, file_path: str, offset: int = 0, limit: int = 2000) -> ReadResult:
        """Do what :meth:`read` does."""
        return await self._call(
            lambda w: w.again(lambda: _read(w, file_path, *normalize_read_bounds(offset, limit))),
            lambda why: ReadResult(error=f"File '{file_path}': {why}"),
        )

    def write(self, file_path: str, content: str) -> WriteResult:
        """Create or replace a file, and make missing directories of its path."""
        return self._shared.block(self.awrite(file_path, content))

    async def awrite(self, file_path: str, content: str) -> WriteResult:
        """Do what :meth:`write` does."""

        async def write(w: Workspace) -> WriteResult:
            await w.write(_absolute(file_path), content.encode())
            return WriteResult(path=file_path)

        return await self._call(write, lambda why: WriteResult(error=f"Failed to write file '{file_path}': {why}"))

    def edit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        """Replace a text in a file. The ends of the lines stay those of the file."""
        return self._shared.block(self.aedit(file_path, old_string, new_string, replace_all))

    async def aedit(self, file_path: str, old_string: str, new_string: str, replace_all: bool = False) -> EditResult:
        """Do what :meth:`edit` does."""
        if not old_string:
            return EditResult(error=EMPTY_OLD_STRING_ERROR)
        said = {
            FILE_NOT_FOUND: f"Error: File '{file_path}' not found",
            PERMISSION_DENIED: f"Error: Permission denied editing file '{file_path}'",
            IS_DIRECTORY: f"Error: '{file_path}' is not a regular file",
        }

        async def edit(w: Workspace) -> EditResult:
            async with self._editing:
                return await _edit(w, file_path, old_string, new_string, replace_all)

        return await self._call(
            edit,
            lambda why: EditResult(error=said.get(why, f"Error editing file '{file_path}': {why}")),
        )

    def delete(self, file_path: str) -> DeleteResult:
        """Delete a file, a link, or a directory with what is in it."""
        return self._shared.block(self.adelete(file_path))

    async def adelete(self, file_path: str) -> DeleteResult:
        """Do what :meth:`delete` does."""

        async def delete(w: Workspace) -> DeleteResult:
            await w.remove(_absolute(file_path))
            return DeleteResult(path=file_path)

        def failed(why: str) -> DeleteResult:
            missing = why == FILE_NOT_FOUND
            return DeleteResult(
                error=f"Error: '{file_path}' not found" if missing else f"Error deleting file '{file_path}': {why}"
            )

        return await self._call(delete, failed)

    def grep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Find a text in files below a directory, the working directory by default. At most 10,000 lines are found."""
        return self._shared.block(self.agrep(pattern, path, glob, max_count=max_count))

    async def agrep(
        self, pattern: str, path: str | None = None, glob: str | None = None, *, max_count: int | None = None
    ) -> GrepResult:
        """Do what :meth:`grep` does."""
        return await self._call(
            lambda w: _grep(w, pattern, path or w.cwd, glob, max_count, self.grep_exclude_dirs),
            lambda why: GrepResult(error=f"Path '{path or '.'}': {why}"),
        )

    def glob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Find files by their names below a directory, / by default. Paths are absolute. At most 10,000 are found."""
        return self._shared.block(self.aglob(pattern, path))

    async def aglob(self, pattern: str, path: str | None = None) -> GlobResult:
        """Do what :meth:`glob` does."""
        root = posixpath.normpath("/" + (path or "")).replace("//", "/")
        return await self._call(
            lambda w: _glob(w, pattern, root), lambda why: GlobResult(error=f"Path '{root}': {why}")
        )

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files, and make missing directories of their paths. Each has its own error."""
        return self._shared.block(self.aupload_files(files))

    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Do what :meth:`upload_files` does."""

        async def upload(w: Workspace, path: str, data: bytes) -> FileUploadResponse:
            await w.write(_absolute(path), data)
            return FileUploadResponse(path)

        return [
            await self._call(
                functools.partial(upload, path=path, data=data), functools.partial(FileUploadResponse, path)
            )
            for path, data in files
        ]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files of up to 256 MiB. Each has its own error."""
        return self._shared.block(self.adownload_files(paths))

    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Do what :meth:`download_files` does."""

        async def download(w: Workspace, path: str) -> FileDownloadResponse:
            return FileDownloadResponse(path, await w.read(_absolute(path)))

        return [
            await self._call(
                functools.partial(download, path=path), functools.partial(FileDownloadResponse, path, None)
            )
            for path in paths
        ]


def _seconds(timeout: float) -> float | None:
    if not 0 <= timeout < math.inf:
        raise ValueError(f"timeout is {timeout!r}, and must be a number of seconds; 0 is no limit")
    return timeout or None


def _absolute(path: str) -> str:
    if not path.startswith("/"):
        raise ValueError(f"path is {path!r}, and must be absolute")
    return path


def _why(error: Exception) -> str:
    """Return the word of deepagents for an error."""
    match error:
        case FileNotFoundError():
            return FILE_NOT_FOUND
        case PermissionError():
            return PERMISSION_DENIED
        case IsADirectoryError():
            return IS_DIRECTORY
        case NotADirectoryError():
            return "not_a_directory"
        case UnicodeError():
            return str(error)
        case ValueError():
            return INVALID_PATH
        case DisconnectedError() if error.sent:
            return f"{error}. It is not known whether this was done"
        case _:
            return str(error)


async def _execute(w: Workspace, command: str, timeout: float | None) -> ExecuteResponse:
    if "\0" in command:
        return ExecuteResponse("Error: the command has a NUL", 1)
    # The first shell only joins the streams, so that their order is that of the command.
    argv = ["/bin/sh", "-c", 'exec "$0" -c "$1" 2>&1', "/bin/sh", command]
    result = await w.run(argv, timeout=timeout, max_output=MAX_AGENT_OUTPUT)
    text = text_of(result.stdout, result.stdout_omitted, MAX_AGENT_OUTPUT)
    if result.timed_out:
        text += f"\nError: the command did not exit within {timeout:g} s, and was killed."
        return ExecuteResponse(text.lstrip("\n"), _TIMED_OUT, result.stdout_truncated)
    return ExecuteResponse(text, result.exit_code, result.stdout_truncated)


async def _ls(w: Workspace, path: str) -> LsResult:
    found: list[FileInfo] = []
    for each in await w.fs.list(_absolute(path), follow=False):
        info: FileInfo = {"path": posixpath.join(path, each.name), "is_dir": each.is_dir}
        if each.size is not None and not each.is_dir:
            info["size"] = each.size
        if each.modified is not None:
            info["modified_at"] = datetime.fromtimestamp(each.modified, UTC).isoformat()
        found.append(info)
    return LsResult(entries=found)


async def _read(w: Workspace, path: str, offset: int, limit: int) -> ReadResult:
    known = await w.fs.stat(_absolute(path))
    if not known.is_file:
        return ReadResult(error=f"File '{path}': not_a_file")
    if known.size == 0:
        return ReadResult(file_data=FileData(content="", encoding="utf-8"))
    media = posixpath.splitext(path)[1].lower() in _MEDIA
    too_large = f"File '{path}': Binary file exceeds maximum preview size of {MAX_BINARY_BYTES} bytes"
    if media and known.size > MAX_BINARY_BYTES:
        return ReadResult(error=too_large)
    async with contextlib.aclosing(_blocks(w, path, known.size)) as blocks:
        first = await anext(blocks, b"")
        if media or not _is_text(first):
            if known.size > MAX_BINARY_BYTES:
                return ReadResult(error=too_large)
            return ReadResult(file_data=FileData(content=base64.b64encode(first).decode(), encoding="base64"))
        if limit == 0:
            return ReadResult(file_data=FileData(content="", encoding="utf-8"), no_lines_requested=True)
        page = _Page(offset, limit, count=known.size <= _MAX_COUNTED)
        page.add(first)
        while not page.full and (block := await anext(blocks, b"")):
            page.add(block)
    return page.result(path)


async def _blocks(w: Workspace, path: str, size: int) -> AsyncGenerator[bytes]:
    """Yield the content of a file: a small one as a whole."""
    if size <= _BLOCK:
        yield await w.read(path, max_bytes=2 * _BLOCK)
        return
    async with await w.fs.open(path) as file:
        offset = 0
        while block := await file.read_at(offset, _BLOCK):
            yield block
            offset += len(block)


def _is_text(data: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(data[:8192], len(data) <= 8192)
    except UnicodeDecodeError:
        return False
    return True


class _Page:
    """Lines of a text, from an offset on."""

    def __init__(self, offset: int, limit: int, *, count: bool) -> None:
        self._offset = offset
        self._limit = limit
        self._count = count  # all lines of the text
        self._decoder = io.IncrementalNewlineDecoder(codecs.getincrementaldecoder("utf-8")("replace"), translate=True)
        self._rest = ""
        self._seen = 0
        self._lines: list[str] = []
        self._size = 0
        self._whole = 0  # how many of the lines were not cut
        self._cut = False
        self.full = False
        """Whether no more of the text is needed."""

    def add(self, data: bytes) -> None:
        """Take the next part of the text."""
        *lines, self._rest = (self._rest + self._decoder.decode(data)).split("\n")
        for line in lines:
            self._take(line)
        if len(self._rest) > MAX_OUTPUT_BYTES:
            self._rest = self._rest[: MAX_OUTPUT_BYTES + 1]  # what follows is cut in any case
            if not self._count and self._offset <= self._seen < self._offset + self._limit:
                self._take(self._rest)
        self.full = not self._count and (self._cut or self._seen > self._offset + self._limit)

    def _take(self, line: str) -> None:
        self._seen += 1
        if self._cut or not self._offset < self._seen <= self._offset + self._limit:
            return
        end = 1 if self._lines else 0  # what ends the line before
        size = len(line.encode()) + end
        room = MAX_OUTPUT_BYTES - len(TRUNCATION_MSG.encode()) - self._size
        if size > room:
            self._cut = True
            if room > 0:
                self._lines.append(line.encode()[: room - end].decode(errors="ignore"))
            return
        self._lines.append(line)
        self._whole += 1
        self._size += size

    def result(self, path: str) -> ReadResult:
        """Return the page."""
        if not self.full:
            rest = self._rest + self._decoder.decode(b"", final=True)
            if rest:
                self._take(rest)
        if not self._lines:
            return ReadResult(
                error=f"File '{path}': Line offset {self._offset} exceeds file length ({self._seen} lines)"
            )
        content = "\n".join(self._lines) + (TRUNCATION_MSG if self._cut else "")
        # A line that was cut comes again, unless it is the only one: the next page has to begin behind it.
        end = self._offset + max(1, self._whole)
        return ReadResult(
            file_data=FileData(content=content, encoding="utf-8"),
            total_lines=None if self.full else self._seen,
            start_line=self._offset + 1,
            end_line=end,
            next_offset=end if self.full or end < self._seen else None,
        )


async def _edit(w: Workspace, path: str, old: str, new: str, everywhere: bool) -> EditResult:
    try:
        text = (await w.read(_absolute(path))).decode()
    except UnicodeDecodeError:
        return EditResult(error=f"Error: File '{path}' is not a text file")
    # A model has seen LF alone at the ends of lines. The form that the file has is the one of both texts.
    lf = old.replace("\r\n", "\n"), new.replace("\r\n", "\n")
    forms = (old, new), (lf[0].replace("\n", "\r\n"), lf[1].replace("\n", "\r\n")), lf
    found = next((form for form in forms if form[0] in text), None)
    if found is None:
        return EditResult(error=f"Error: String not found in file: '{old}'")
    count = text.count(found[0])
    if count > 1 and not everywhere:
        return EditResult(
            error=f"Error: String '{old}' appears multiple times. Use replace_all=True to replace all occurrences."
        )
    await w.write(path, text.replace(*found).encode())
    return EditResult(path=path, occurrences=count)


async def _grep(
    w: Workspace, pattern: str, path: str, glob: str | None, most: int | None, excluded: Sequence[str]
) -> GrepResult:
    root = w.at(path)
    globs = [
        *_escaped(_alternatives(glob or "")),
        *(f"!{each}/" for each in excluded if each != posixpath.basename(root)),
    ]
    lines = pattern.split("\n")  # each is looked for
    most = _MAX_MATCHES if most is None else min(max(0, most), _MAX_MATCHES)
    found = await w.fs.search(
        root,
        pattern if len(lines) == 1 else "|".join(map(re.escape, lines)),
        literal=len(lines) == 1,
        globs=globs,
        hidden=True,
        no_ignore=True,
        max_matches=min(most + 1, _MAX_MATCHES),
        max_line_bytes=_MAX_LINE,
    )
    shown, length = path.rstrip("/"), len(root.rstrip("/"))
    matches: list[GrepMatch] = [
        {"path": shown + each.path[length:], "line": match.line, "text": match.text}
        for each in found.files
        for match in each.matches
    ]
    return GrepResult(matches=matches[:most], truncated=found.truncated is not None or len(matches) > most)


async def _glob(w: Workspace, pattern: str, root: str) -> GlobResult:
    if ".." in pattern.split("/"):
        return GlobResult(error=f"Path '{root}': invalid_pattern")
    candidates = _alternatives(pattern)
    if len(candidates) > _MAX_ALTERNATIVES:
        return GlobResult(error=f"Path '{root}': pattern_too_broad")
    # The agent looks at the last names only; the whole rule of deepagents, about leading dots too, is applied here.
    names = {posixpath.basename(each) for each in candidates}
    globs = [] if names & {"", "**"} else _escaped(sorted(names))
    found = await w.fs.search(root, globs=globs, hidden=True, no_ignore=True)
    if any(each.path == root and each.kind != "directory" for each in found.files):
        return GlobResult(error=f"Path '{root}': not_a_directory")
    prefix, rules = len(root.rstrip("/")) + 1, [_Rule(each) for each in candidates]
    files = [
        each
        for each in found.files
        if each.kind in ("file", "symlink") and any(rule.takes(each.path[prefix:]) for rule in rules)
    ]
    cut, files = len(files) > _MAX_MATCHES, files[:_MAX_MATCHES]
    links = await _links_to_files(w, root, [each.path for each in files if each.kind == "symlink"])
    return GlobResult(
        matches=[{"path": each.path, "is_dir": False} for each in files if each.kind == "file" or each.path in links],
        truncated=cut or found.truncated is not None or bool(found.errors),
        truncation_reason="unreadable" if found.errors else "budget" if cut or found.truncated else None,
    )


async def _links_to_files(w: Workspace, root: str, links: Sequence[str]) -> set[str]:
    """Return the links that lead to a regular file below a directory."""
    kept: set[str] = set()
    if not links:
        return kept
    real_root = (await w.fs.realpath(root)).rstrip("/") + "/"
    slots = asyncio.Semaphore(_AT_ONCE)

    async def look(link: str) -> None:
        async with slots:
            with contextlib.suppress(OSError):  # it may have changed meanwhile
                if (await w.fs.realpath(link)).startswith(real_root):
                    kept.add(link)

    targets = zip(links, await w.fs.stat_many(links), strict=True)
    await asyncio.gather(*(look(link) for link, at in targets if not isinstance(at, RpcError) and at.is_file))
    return kept


class _Rule:
    """A glob of deepagents: one without a slash is about a name at any depth, another about the path.

    ``*`` takes no name that begins with a dot, and ``**`` enters no directory whose name does.
    """

    def __init__(self, pattern: str) -> None:
        self._deep = "/" not in pattern
        self._names = [each for each in pattern.split("/") if each]
        if pattern.endswith("/") and self._names[-1:] != ["**"]:
            self._names = []  # only directories
        elif self._names[-1:] == ["**"]:
            self._names.append("*")  # what is below
        self._tests = [re.compile(fnmatch.translate(each.replace("[^", "[!"))) for each in self._names]

    def takes(self, path: str) -> bool:
        """Report whether a path, relative to the root of the search, matches."""
        if not self._names:
            return False
        if self._deep:
            return self._takes_name(0, posixpath.basename(path))
        # The names of the pattern that may come next: without a way back, so that no pattern is slow.
        states = {0}
        for name in path.split("/"):
            following: set[int] = set()
            for number in self._with_none(states):
                if number == len(self._names):
                    continue
                if self._names[number] == "**":
                    if not name.startswith("."):
                        following.add(number)
                elif self._takes_name(number, name):
                    following.add(number + 1)
            states = following
        return len(self._names) in states

    def _takes_name(self, number: int, name: str) -> bool:
        if name.startswith(".") and not self._names[number].startswith("."):
            return False
        return self._tests[number].match(name) is not None

    def _with_none(self, states: set[int]) -> set[int]:
        """Add what comes behind each **, which may stand for no name."""
        found = set(states)
        for number in states:
            while number < len(self._names) and self._names[number] == "**":
                number += 1
                found.add(number)
        return found


def _alternatives(pattern: str) -> list[str]:
    """Return what the braces of a pattern stand for, up to one more than are allowed."""
    return list(itertools.islice(_expand(pattern), _MAX_ALTERNATIVES + 1)) if pattern else []


def _expand(pattern: str) -> Iterator[str]:
    depth, begin, commas = 0, -1, list[int]()
    for at, char in enumerate(pattern):
        if char == "{":
            depth += 1
            if depth == 1:
                begin, commas = at, []
        elif char == "," and depth == 1:
            commas.append(at)
        elif char == "}" and depth:
            depth -= 1
            if depth == 0 and commas:
                ends = [begin, *commas, at]
                for left, right in itertools.pairwise(ends):
                    yield from _expand(pattern[:begin] + pattern[left + 1 : right] + pattern[at + 1 :])
                return
    yield pattern


def _escaped(globs: Sequence[str]) -> list[str]:
    """Return globs in the form of the lines of a .gitignore, for which some beginnings and braces mean more."""
    return [("\\" + each if each[:1] in ("!", "#") else each).replace("{", "[{]").replace("}", "[}]") for each in globs]


__all__ = ["ExecagentSandbox"]
