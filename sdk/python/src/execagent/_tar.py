"""The stream of a copy: a tar archive (POSIX pax) with records of ours in global headers (docs/protocol/rpc.md 8.3).

A sender follows links only on the way to a source. A receiver writes only in its target, and only the names that were
asked for: it opens one name after the other, and follows no link below the target. A file takes its place in one step,
when all of its content has come and has the sum that was sent.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import stat
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ._errors import ProtocolError, printable, shown

_BLOCK = 512
_BUFFER = 512 << 10  # bytes that are read and written at once; a smaller file has its sum in its own header
_MAX_ENTRIES = 50_000_000
_MAX_NAME = 64 << 10
_MAX_DEPTH = 512
_MAX_FILE = 1 << 50
_MAX_RECORDS = 1 << 20  # bytes of a header of records
_MAX_LINKS = 1 << 20
_MAX_EXTENTS = 1024
_MAX_OMITTED = 100
_FATAL = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ENOMEM, errno.EMFILE, errno.ENFILE)

_BEGIN, _END = "EXECAGENT.begin", "EXECAGENT.end"
_SUM, _CHANGED = "EXECAGENT.sha256", "changed"
_SIZE, _EXTENTS = "EXECAGENT.size", "EXECAGENT.extents"


class _Sum(Protocol):
    def update(self, data: bytes, /) -> None: ...
    def digest(self) -> bytes: ...
    def hexdigest(self) -> str: ...


class CutError(Exception):
    """The stream ends too early."""


class OmittedError(Exception):
    """Some files were left out, and all others were copied."""


class StoppedError(Exception):
    """The caller has given up."""


def contents(path: str) -> bool:
    """Report whether a path means the contents of a directory, and not the directory itself."""
    return path.endswith("/.") or os.path.basename(path.rstrip("/") or "/") in (".", "..", "")


def name_of(source: str) -> str:
    """Return the name that a source has in the stream."""
    return "." if contents(source) else os.path.basename(source.rstrip("/"))


def names_of(sources: Sequence[str]) -> frozenset[bytes]:
    """Return the names that the sources have in the stream."""
    return frozenset(os.fsencode(name_of(source)) for source in sources)


class _Omits:
    """What was left out, for people."""

    def __init__(self) -> None:
        self.omitted: list[str] = []
        self.count = 0
        self._stopped = False

    def omit(self, path: str, reason: object) -> None:
        self.count += 1
        if isinstance(reason, OSError) and reason.strerror:
            reason = reason.strerror.lower()
        if len(self.omitted) < _MAX_OMITTED:
            self.omitted.append(printable(f"{path}: {reason}"))

    def stop(self) -> None:
        """Let the work end soon."""
        self._stopped = True

    def check(self) -> None:
        if self._stopped:
            raise StoppedError


# Sending.


def _octal(value: int, size: int) -> bytes:
    return b"%0*o\0" % (size - 1, value)


def _records(records: Mapping[str, bytes]) -> bytes:
    """Return the records of a pax header."""
    parts: list[bytes] = []
    for key, value in records.items():
        rest = b" " + key.encode() + b"=" + value + b"\n"
        size = len(rest) + 1
        while len(str(size)) + len(rest) != size:
            size = len(str(size)) + len(rest)
        parts.append(str(size).encode() + rest)
    return b"".join(parts)


def _header(kind: bytes, name: bytes, size: int, mode: int, mtime: int, uid: int, gid: int, link: bytes = b"") -> bytes:
    fields = struct.pack(
        "100s8s8s8s12s12s8s1s100s6s2s32s32s8s8s155s12x",
        name[:100],
        _octal(mode, 8),
        _octal(uid if uid < 1 << 21 else 0, 8),
        _octal(gid if gid < 1 << 21 else 0, 8),
        _octal(size if size < 1 << 33 else 0, 12),
        _octal(mtime if 0 <= mtime < 1 << 33 else 0, 12),
        b" " * 8,
        kind,
        link[:100],
        b"ustar\0",
        b"00",
        b"",
        b"",
        _octal(0, 8),
        _octal(0, 8),
        b"",
    )
    return fields[:148] + b"%06o\0 " % sum(fields) + fields[156:]


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % _BLOCK)


@dataclass(slots=True)
class _Root:
    name: bytes
    path: str


class Sender(_Omits):
    """Sends files and trees."""

    def __init__(self, sources: Sequence[str]) -> None:
        super().__init__()
        self._roots = [self._root(source) for source in sources]
        self._parts: list[bytes] = []
        self._held = 0
        self._entries = 0
        self._links: dict[tuple[int, int], bytes] = {}

    @staticmethod
    def _root(source: str) -> _Root:
        if not source:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), source)
        name, path = name_of(source), os.path.normpath(source)
        # A slash at the end makes the path follow a link, as for the kernel.
        directory = source.endswith("/") or name == "."
        if directory:
            path = os.path.realpath(source, strict=True)
        if directory and not stat.S_ISDIR(os.stat(path).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), source)
        os.lstat(path)
        return _Root(os.fsencode(name), os.path.abspath(path))

    def send(self, write: Callable[[bytes], None]) -> None:
        """Send all sources. If something cannot be read, the error at the end is OmittedError."""
        self._write = write
        self._global({_BEGIN: b"1"})
        for root in self._roots:
            try:
                folder = os.open(os.path.dirname(root.path), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as error:
                self.omit(root.path, error)
                continue
            try:
                depth = 0 if root.name == b"." else 1
                self._tree(root.name, folder, os.path.basename(root.path) or ".", root.path, depth)
            finally:
                os.close(folder)
        self._global({_END: str(self._entries).encode()})
        self._put(b"\0" * 2 * _BLOCK)
        self._flush()
        if self.count:
            raise OmittedError

    def _put(self, data: bytes) -> None:
        self._parts.append(data)
        self._held += len(data)
        if self._held >= _BUFFER:
            self._flush()

    def _flush(self) -> None:
        self.check()
        if self._held:
            data, self._parts, self._held = b"".join(self._parts), [], 0
            self._write(data)

    def _global(self, records: Mapping[str, bytes]) -> None:
        data = _records(records)
        self._put(_header(b"g", b"GlobalHead", len(data), 0o644, 0, 0, 0) + _padded(data))

    def _entry(
        self, kind: bytes, name: bytes, info: os.stat_result, size: int, records: dict[str, bytes], link: bytes = b""
    ) -> None:
        records = dict(records)
        if len(name) > 100 or any(c < 32 or c > 126 for c in name):
            records["path"] = name
        if link and (len(link) > 100 or any(c < 32 or c > 126 for c in link)):
            records["linkpath"] = link
        seconds, part = divmod(info.st_mtime_ns, 1_000_000_000)
        if part or not 0 <= seconds < 1 << 33:
            # Of a time before 1970, the part counts away from it.
            whole, rest = divmod(abs(info.st_mtime_ns), 1_000_000_000)
            sign = b"-" if info.st_mtime_ns < 0 else b""
            records["mtime"] = sign + (b"%d.%09d" % (whole, rest)).rstrip(b"0").rstrip(b".")
        for key, number, digits in (("size", size, 11), ("uid", info.st_uid, 7), ("gid", info.st_gid, 7)):
            if number >= 8**digits:
                records[key] = str(number).encode()
        mode = info.st_mode & 0o777
        if kind == b"5":
            mode |= info.st_mode & stat.S_ISVTX
        if records:
            data = _records(records)
            self._put(_header(b"x", b"PaxHeaders", len(data), 0o644, 0, 0, 0) + _padded(data))
        self._put(_header(kind, name, size, mode, seconds, info.st_uid, info.st_gid, link))
        self._entries += 1

    def _tree(self, name: bytes, folder: int, base: str, path: str, depth: int) -> None:
        """Send a file, link or directory, and everything below it."""
        self.check()
        try:
            info = os.stat(base, dir_fd=folder, follow_symlinks=False)
        except OSError as error:
            self.omit(path, error)
            return
        if len(name) > _MAX_NAME:
            self.omit(path, "file name too long")
        elif stat.S_ISREG(info.st_mode):
            self._file(name, folder, base, path)
        elif stat.S_ISLNK(info.st_mode):
            try:
                target = os.fsencode(os.readlink(base, dir_fd=folder))
            except OSError as error:
                self.omit(path, error)
                return
            self._entry(b"2", name, info, 0, {}, target)
        elif stat.S_ISDIR(info.st_mode):
            self._directory(name, folder, base, path, info, depth)
        else:
            self.omit(path, "left out: neither a file nor a directory nor a link")

    def _directory(self, name: bytes, folder: int, base: str, path: str, info: os.stat_result, depth: int) -> None:
        self._entry(b"5", name + b"/", info, 0, {})
        try:
            below = os.open(base, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
        except OSError as error:
            self.omit(path, error)
            return
        try:
            names = sorted(os.listdir(below))
            if depth >= _MAX_DEPTH and names:
                self.omit(path, f"what is in it is left out: it would be more than {_MAX_DEPTH} directories deep")
                return
            for each in names:
                self._tree(name + b"/" + os.fsencode(each), below, each, os.path.join(path, each), depth + 1)
        except OSError as error:
            self.omit(path, error)
        finally:
            os.close(below)

    def _file(self, name: bytes, folder: int, base: str, path: str) -> None:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            file = os.fdopen(os.open(base, flags, dir_fd=folder), "rb", buffering=0)
        except OSError as error:
            self.omit(path, error)
            return
        with file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                self.omit(path, "left out: neither a file nor a directory nor a link")
                return
            inode = (info.st_dev, info.st_ino) if info.st_nlink > 1 else None
            if inode is not None and inode in self._links:
                self._entry(b"1", name, info, 0, {}, self._links[inode])
                return
            try:
                if info.st_size > _BUFFER and info.st_blocks * 512 < info.st_size:
                    whole = self._pieces(file.fileno(), path, name, info)
                else:
                    whole = self._content(file.fileno(), path, name, info)
            except _ReadError as error:
                self.omit(path, error.cause)
                return
            if whole and inode is not None and len(self._links) < _MAX_LINKS:
                self._links[inode] = name

    def _content(self, file: int, path: str, name: bytes, info: os.stat_result) -> bool:
        begin = b""
        while len(begin) < _BUFFER:
            part = _read(file, _BUFFER - len(begin))
            begin += part
            if not part or len(begin) == info.st_size:
                break
        else:
            if info.st_size < len(begin):
                self.omit(path, "left out: its size is not known")
                return False
        size = len(begin) if len(begin) < _BUFFER else info.st_size
        sum256 = hashlib.sha256(begin)
        if size == len(begin):
            self._entry(b"0", name, info, size, {_SUM: sum256.hexdigest().encode()})
            self._put(_padded(begin))
            return True
        self._entry(b"0", name, info, size, {})
        self._put(begin)
        whole = self._rest(file, path, size - len(begin), sum256, True)
        self._put(b"\0" * (-size % _BLOCK))
        self._finish(sum256, whole)
        return whole

    def _finish(self, sum256: _Sum, whole: bool) -> None:
        self._global({_SUM: sum256.hexdigest().encode() if whole else _CHANGED.encode()})

    def _rest(self, file: int, path: str, left: int, sum256: _Sum, whole: bool) -> bool:
        """Send the next bytes of a file. If it is shorter than it was, zeros follow, and the result is false."""
        while left > 0:
            self.check()
            data = b""
            if whole:
                try:
                    data = os.read(file, min(left, _BUFFER))
                    if not data:
                        self.omit(path, "left out: it has become shorter while it was read")
                except OSError as error:
                    self.omit(path, error)
            if not data:
                whole, data = False, b"\0" * min(left, _BUFFER)
            sum256.update(data)
            self._put(data)
            left -= len(data)
        return whole

    def _pieces(self, file: int, path: str, name: bytes, info: os.stat_result) -> bool:
        """Send a file with holes: only the parts with data, each piece with a bounded number of them."""
        size = info.st_size
        self._entry(b"0", name, info, 0, {_SIZE: str(size).encode()})
        sum256, whole, at = hashlib.sha256(), True, 0
        while at < size:
            extents: list[tuple[int, int]] = []
            while at < size and len(extents) < _MAX_EXTENTS:
                begin, end = _next_data(file, at, size)
                at = end
                if begin == end:
                    break
                extents.append((begin, end - begin))
            if not extents:
                break
            places = b"".join(struct.pack(">QQ", *extent) for extent in extents)
            total = len(places) + sum(length for _, length in extents)
            records = {_EXTENTS: str(len(extents)).encode()}
            if total >= 1 << 33:
                records["size"] = str(total).encode()
            data = _records(records)
            self._put(_header(b"x", b"PaxHeaders", len(data), 0o644, 0, 0, 0) + _padded(data))
            self._put(_header(b"0", b"piece", total, 0o644, 0, 0, 0) + places)
            sum256.update(places)
            for begin, length in extents:
                os.lseek(file, begin, os.SEEK_SET)
                whole = self._rest(file, path, length, sum256, whole)
            self._put(b"\0" * (-total % _BLOCK))
        self._finish(sum256, whole)
        return whole


class _ReadError(Exception):
    def __init__(self, cause: OSError) -> None:
        super().__init__(str(cause))
        self.cause = cause


def _read(file: int, size: int) -> bytes:
    try:
        return os.read(file, size)
    except OSError as error:
        raise _ReadError(error) from error


def _next_data(file: int, at: int, size: int) -> tuple[int, int]:
    """Return the next part with data, from at on; an empty one at the end of the file."""
    try:
        begin = os.lseek(file, at, os.SEEK_DATA)
        return min(begin, size), min(os.lseek(file, begin, os.SEEK_HOLE), size)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return size, size
        return at, size  # the file system does not know


# Receiving.


@dataclass(slots=True)
class _Entry:
    kind: bytes
    name: bytes
    link: bytes
    size: int
    mode: int
    mtime: int | None
    records: Mapping[str, bytes]


class _Stream:
    """Reads a tar stream."""

    def __init__(self, read: Callable[[], bytes]) -> None:
        self._more = read
        self._held: bytes = b""
        self._at = 0
        self._left = 0  # of the content of the entry
        self._pad = 0

    def _some(self) -> bool:
        if self._at == len(self._held):
            self._held, self._at = self._more(), 0
        return bool(self._held)

    def _exactly(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0:
            if not self._some():
                raise CutError("the stream ends too early")
            part = self._held[self._at : self._at + size]
            self._at += len(part)
            size -= len(part)
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def content(self, size: int) -> bytes:
        """Return up to size bytes of the content of the entry."""
        if self._left == 0 or not self._some():
            raise CutError("the stream ends too early")
        part = self._held[self._at : self._at + min(size, self._left)]
        self._at += len(part)
        self._left -= len(part)
        return part

    @property
    def left(self) -> int:
        """How many bytes of the content of the entry follow."""
        return self._left

    def drain(self) -> None:
        """Read the padding of the archive, so that the sender gets no error."""
        while self._some():
            self._at = len(self._held)

    def entries(self) -> Iterator[_Entry]:
        """Yield the entries and the global headers, to the end."""
        records: dict[str, bytes] = {}
        while True:
            while self._left:
                self.content(_BUFFER)
            self._exactly(self._pad)
            block = self._exactly(_BLOCK)
            if block == b"\0" * _BLOCK:
                return
            entry = _parse(block)
            self._left, self._pad = entry.size, -entry.size % _BLOCK
            if entry.kind in (b"x", b"g"):
                if entry.size > _MAX_RECORDS:
                    raise ProtocolError(f"the stream has {entry.size} bytes of records")
                found = _parse_records(self._exactly(entry.size))
                self._left = 0
                if entry.kind == b"g":
                    yield _Entry(b"g", b"", b"", 0, 0, None, found)
                else:
                    records = found
                continue
            entry = _with(entry, records)
            records = {}
            self._left, self._pad = entry.size, -entry.size % _BLOCK
            yield entry


def _number(data: bytes) -> int:
    text = data.strip(b"\0 ")
    if not text:
        return 0
    try:
        value = int(text, 8)
    except ValueError:
        raise ProtocolError(f"the stream has the number {shown(text)}") from None
    if value < 0:
        raise ProtocolError(f"the stream has the number {shown(text)}")
    return value


def _parse(block: bytes) -> _Entry:
    if _number(block[148:156]) != sum(block[:148]) + 8 * 32 + sum(block[156:]):
        raise ProtocolError("the stream has a header with a wrong sum")
    name = block[:100].split(b"\0", 1)[0]
    prefix = block[345:500].split(b"\0", 1)[0]
    if prefix and block[257:263] == b"ustar\0":
        name = prefix + b"/" + name
    kind = block[156:157]
    return _Entry(
        b"0" if kind == b"\0" else kind,
        name,
        block[157:257].split(b"\0", 1)[0],
        _number(block[124:136]),
        _number(block[100:108]),
        _number(block[136:148]) * 1_000_000_000,
        {},
    )


def _parse_records(data: bytes) -> dict[str, bytes]:
    records: dict[str, bytes] = {}
    at = 0
    while at < len(data):
        blank = data.find(b" ", at, at + 9)
        size_text = data[at : max(blank, at)]
        if not size_text.isdigit():
            raise ProtocolError("the stream has a record that cannot be read")
        record = data[blank + 1 : at + int(size_text)]
        at += int(size_text)
        key, equals, value = record.partition(b"=")
        if not equals or not value.endswith(b"\n"):
            raise ProtocolError("the stream has a record that cannot be read")
        records[key.decode(errors="replace")] = value[:-1]
    return records


def _with(entry: _Entry, records: Mapping[str, bytes]) -> _Entry:
    """Return an entry as its records have it."""
    entry.records = records
    entry.name = records.get("path", entry.name)
    entry.link = records.get("linkpath", entry.link)
    if "size" in records:
        entry.size = _decimal("size", records["size"])
    if "mtime" in records:
        text = records["mtime"].decode(errors="replace")
        whole, _, part = text.lstrip("-").partition(".")
        if not whole.isdigit() or (part and not part.isdigit()) or len(whole) > 18:
            raise ProtocolError(f"the stream has the time {shown(text)}")
        value = int(whole) * 1_000_000_000 + int((part + "0" * 9)[:9])
        entry.mtime = -value if text.startswith("-") else value
    return entry


def _decimal(what: str, text: bytes) -> int:
    if not text.isdigit() or len(text) > 18:
        raise ProtocolError(f"the stream has the {what} {shown(text)}")
    return int(text)


@dataclass(slots=True)
class _Level:
    name: bytes
    fd: int
    entry: _Entry | None  # of a directory that was made here, whose mode and time are set at the end


@dataclass(slots=True)
class _NewFile:
    """A file that is being written, under a temporary name. Without one its content is read and dropped."""

    names: list[bytes]
    entry: _Entry
    size: int
    holes: bool
    folder: int = -1
    temp: bytes = b""
    fd: int = -1
    filled: int = 0
    sum256: _Sum = field(default_factory=hashlib.sha256)


class Receiver(_Omits):
    """Writes the files of a stream."""

    def __init__(self, target: str, *, many: bool, names: frozenset[bytes]) -> None:
        super().__init__()
        self._asked = names
        self._entries = 0
        self._began = self._ended = False
        self._stack: list[_Level] = []
        self._file: _NewFile | None = None
        self._skip: list[bytes] | None = None  # a directory that was left out, with all below it
        self._base, self._dir, self._rename, self._missing = _aim(target, many)

    def receive(self, read: Callable[[], bytes]) -> None:
        """Read the stream to its end. After an error, files that had come completely are in place, and of others
        nothing. If something could not be written, the error at the end is OmittedError."""
        stream = _Stream(read)
        try:
            for entry in stream.entries():
                self.check()
                if entry.kind == b"g":
                    self._record(entry.records)
                elif _EXTENTS in entry.records:
                    self._piece(entry, stream)
                else:
                    self._take(entry, stream)
            if not self._ended:
                raise CutError("the stream ends too early")
            stream.drain()
        finally:
            self._drop()
            self._leave(0)
            os.close(self._base)
        if self.count:
            raise OmittedError

    def _record(self, records: Mapping[str, bytes]) -> None:
        if _BEGIN in records and not self._began:
            if records[_BEGIN] != b"1":
                raise ProtocolError(f"the stream is of version {shown(records[_BEGIN])}, and not of 1")
            self._began = True
        elif _SUM in records and self._file is not None:
            self._finish(records[_SUM])
        elif _END in records and self._began and self._file is None:
            if records[_END] != str(self._entries).encode():
                raise ProtocolError(f"the stream has {self._entries} entries and says {shown(records[_END])}")
            self._ended = True
        else:
            raise ProtocolError("the stream has a record out of its order")

    def _split(self, name: bytes) -> tuple[list[bytes], bool]:
        """Check the name of an entry. Return its parts, and whether it belongs to a source of which only the contents
        are copied. Such a source itself has no parts."""
        if not name or name.startswith(b"/") or b"\0" in name or len(name) > _MAX_NAME:
            raise ProtocolError(f"the stream has the name {shown(name)}")
        names = [part for part in name.split(b"/") if part not in (b"", b".")]
        inside = name == b"." or name.startswith(b"./")
        if b".." in names:
            raise ProtocolError(f"the stream has the name {shown(name)}, which leads out")
        if len(names) > _MAX_DEPTH:
            raise ProtocolError(f"the stream has a name that is {len(names)} directories deep")
        if (b"." if inside else names[0]) not in self._asked:
            raise ProtocolError(f"the stream has the name {shown(name)}, which nobody has asked for")
        return names, inside

    def _place(self, names: list[bytes], inside: bool) -> list[bytes]:
        """Return where an entry goes, as names from the base on. No names mean the base itself."""
        if self._rename is None:
            return names
        return [self._rename, *(names if inside else names[1:])]

    def _path(self, names: Sequence[bytes]) -> str:
        return os.path.join(self._dir, *(os.fsdecode(name) for name in names))

    def _lose(self, names: Sequence[bytes], error: OSError) -> None:
        """Leave an entry out. An error that other entries would meet, too, ends the copy."""
        if error.errno in _FATAL:
            raise OSError(error.errno, error.strerror, self._path(names)) from error
        self.omit(self._path(names), error)

    def _take(self, entry: _Entry, stream: _Stream) -> None:
        if not self._began or self._ended or self._file is not None:
            raise ProtocolError("the stream has an entry out of its order")
        self._entries += 1
        if self._entries > _MAX_ENTRIES:
            raise ProtocolError(f"the stream has more than {_MAX_ENTRIES} entries")
        parts, inside = self._split(entry.name)
        if entry.kind != b"5" and not parts:
            raise ProtocolError(f"the stream has the source {shown(entry.name)}, which is no directory")
        names = self._place(parts, inside)
        regular = entry.kind in (b"0", b"7")
        made: _NewFile | None = None
        if self._skip is not None and len(names) > len(self._skip) and names[: len(self._skip)] == self._skip:
            pass
        else:
            try:
                made = self._make(entry, names)
            except OSError as error:
                if entry.kind == b"5":
                    self._skip = names
                self._lose(names, error)
        if regular:
            self._content(made or self._dropped(entry, names), stream)

    def _make(self, entry: _Entry, names: list[bytes]) -> _NewFile | None:
        if entry.kind == b"5":
            self._directory(entry, names)
            return None
        if not names:
            raise IsADirectoryError(errno.EISDIR, "is a directory")
        if self._missing and len(names) == 1:
            raise NotADirectoryError(errno.ENOTDIR, "there is no such directory")
        if entry.kind in (b"0", b"7"):
            return self._create(entry, names)
        if entry.kind == b"2":
            folder = self._enter(names[:-1])
            _replace(folder, names[-1], lambda name: self._symlink(entry, folder, name))
        elif entry.kind == b"1":
            self._again(names, self._place(*self._split(entry.link)))
        else:
            raise OSError(errno.EINVAL, "left out: neither a file nor a directory nor a link")
        return None

    def _dropped(self, entry: _Entry, names: list[bytes]) -> _NewFile:
        size, holes = self._size(entry)
        return _NewFile(names, entry, size, holes)

    @staticmethod
    def _size(entry: _Entry) -> tuple[int, bool]:
        size, holes = entry.size, False
        if _SIZE in entry.records:
            size, holes = _decimal("size", entry.records[_SIZE]), True
            if entry.size:
                raise ProtocolError("the stream has a file with holes that has content")
        if size > _MAX_FILE:
            raise ProtocolError(f"the stream has a file of {size} bytes")
        return size, holes

    # Directories: one name after the other, and no link.

    def _top(self) -> int:
        return self._stack[-1].fd if self._stack else self._base

    def _step(self, name: bytes) -> int:
        return os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._top())

    def _enter(self, names: list[bytes]) -> int:
        """Open the directory at a place. Missing ones on the way are made."""
        same = 0
        while same < min(len(names), len(self._stack)) and names[same] == self._stack[same].name:
            same += 1
        self._leave(same)
        for name in names[same:]:
            try:
                fd = self._step(name)
            except FileNotFoundError:
                try:
                    os.mkdir(name, 0o777, dir_fd=self._top())
                except FileExistsError:
                    pass
                fd = self._step(name)
            self._stack.append(_Level(name, fd, None))
        return self._top()

    def _leave(self, depth: int) -> None:
        while len(self._stack) > depth:
            level = self._stack[-1]
            if level.entry is not None:
                try:
                    _give(level.fd, level.entry)
                except OSError as error:
                    self.omit(self._path([each.name for each in self._stack]), error)
            os.close(level.fd)
            self._stack.pop()

    def _directory(self, entry: _Entry, names: list[bytes]) -> None:
        if not names:
            self._leave(0)
            return
        folder = self._enter(names[:-1])
        if self._rename is not None and len(names) == 1 and _is_link(names[0], folder):
            os.unlink(names[0], dir_fd=folder)  # the target, which is replaced and not followed
        try:
            os.mkdir(names[-1], 0o700, dir_fd=folder)
        except FileExistsError:
            self._enter(names)  # it stays as it is
            return
        self._stack.append(_Level(names[-1], self._step(names[-1]), entry))

    @staticmethod
    def _symlink(entry: _Entry, folder: int, name: bytes) -> None:
        os.symlink(entry.link, name, dir_fd=folder)
        if entry.mtime is not None:
            os.utime(name, ns=(entry.mtime, entry.mtime), dir_fd=folder, follow_symlinks=False)

    def _again(self, names: list[bytes], first: list[bytes]) -> None:
        """Give a file below the base another name."""
        if not first:
            raise IsADirectoryError(errno.EISDIR, "is a directory")
        opened: list[int] = []
        try:
            at = self._base
            for name in first[:-1]:
                at = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=at)
                opened.append(at)
            if not stat.S_ISREG(os.stat(first[-1], dir_fd=at, follow_symlinks=False).st_mode):
                raise OSError(errno.EINVAL, "is one more name of what is no file")
            folder = self._enter(names[:-1])
            source = at
            _replace(
                folder,
                names[-1],
                lambda name: os.link(first[-1], name, src_dir_fd=source, dst_dir_fd=folder, follow_symlinks=False),
            )
        finally:
            for fd in opened:
                os.close(fd)

    # Files.

    def _create(self, entry: _Entry, names: list[bytes]) -> _NewFile:
        size, holes = self._size(entry)
        folder = self._enter(names[:-1])
        temp = _temporary()
        flags = os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(temp, flags, 0o600, dir_fd=folder)
        return _NewFile(names, entry, size, holes, os.dup(folder), temp, fd)

    def _content(self, file: _NewFile, stream: _Stream) -> None:
        self._file = file
        self._write(file, stream, 0, stream.left)
        if _SUM in file.entry.records:
            self._finish(file.entry.records[_SUM])

    def _piece(self, entry: _Entry, stream: _Stream) -> None:
        """Write a part of a file with holes: first come the places of its extents, then their bytes."""
        wrong = ProtocolError("the stream has a piece that fits no file")
        count = _decimal("number of extents", entry.records[_EXTENTS])
        file = self._file
        if file is None or not file.holes or not 1 <= count <= _MAX_EXTENTS or stream.left < 16 * count:
            raise wrong
        places = b""
        while len(places) < 16 * count:
            places += stream.content(16 * count - len(places))
        file.sum256.update(places)
        for begin, length in struct.iter_unpack(">QQ", places):
            if begin < file.filled or not 1 <= length <= stream.left or begin > file.size - length:
                raise wrong
            self._write(file, stream, begin, length)
            file.filled = begin + length
        if stream.left:
            raise wrong

    def _write(self, file: _NewFile, stream: _Stream, at: int, size: int) -> None:
        while size > 0:
            self.check()
            data = stream.content(min(size, _BUFFER))
            file.sum256.update(data)
            if file.fd >= 0:
                try:
                    view = memoryview(data)
                    done = 0
                    while done < len(view):
                        done += os.pwrite(file.fd, view[done:], at + done)
                except OSError as error:
                    self._lose(file.names, error)
                    self._unlink(file)
            at += len(data)
            size -= len(data)

    def _finish(self, sent: bytes) -> None:
        """Put the received file in its place, if it has the content that was sent."""
        file = self._file
        assert file is not None
        if sent == _CHANGED.encode():
            self._drop()  # the sender tells the reason
            return
        got = file.sum256.hexdigest().encode()
        if sent != got:
            raise ProtocolError(f"{self._path(file.names)}: what came is not what was sent: its SHA-256 differs")
        if file.fd >= 0:
            try:
                os.ftruncate(file.fd, file.size)
                _give(file.fd, file.entry)
                os.rename(file.temp, file.names[-1], src_dir_fd=file.folder, dst_dir_fd=file.folder)
                file.temp = b""
            except OSError as error:
                self._lose(file.names, error)
        self._drop()

    def _drop(self) -> None:
        if self._file is not None:
            self._unlink(self._file)
            self._file = None

    @staticmethod
    def _unlink(file: _NewFile) -> None:
        if file.fd >= 0:
            os.close(file.fd)
            file.fd = -1
        if file.temp:
            try:
                os.unlink(file.temp, dir_fd=file.folder)
            except OSError:
                pass
            file.temp = b""
        if file.folder >= 0:
            os.close(file.folder)
            file.folder = -1


def _temporary() -> bytes:
    return b".agent-cp-" + secrets.token_hex(12).encode()


def _replace(folder: int, name: bytes, make: Callable[[bytes], None]) -> None:
    """Make something under a name. It takes the place of whatever is there, except for a directory."""
    try:
        make(name)
        return
    except FileExistsError:
        pass
    temp = _temporary()
    try:
        make(temp)
        os.rename(temp, name, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        try:
            # After a success, too: rename does nothing if both names are the same file.
            os.unlink(temp, dir_fd=folder)
        except FileNotFoundError:
            pass


def _give(fd: int, entry: _Entry) -> None:
    """Give an open file or directory its mode and time. Set-ID bits are never given."""
    sticky = entry.mode & stat.S_ISVTX if entry.kind == b"5" else 0
    os.fchmod(fd, (entry.mode & 0o777) | sticky)
    if entry.mtime is not None:
        os.utime(fd, ns=(entry.mtime, entry.mtime))


def _is_link(name: bytes, folder: int) -> bool:
    try:
        return stat.S_ISLNK(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return False


def _aim(target: str, many: bool) -> tuple[int, str, bytes | None, bool]:
    """Find the place for a copy: into a directory, otherwise to the path itself.

    A link at the path is never followed, because an earlier copy may have made it. One to a file or to nothing is
    replaced. Any other link is refused, because it may be one that the host needs, as /bin is. So is every link where a
    directory is meant.

    The result is an open directory, its path, the name that replaces the first name of each entry, and whether only a
    directory may be made there.
    """
    if not target:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), target)
    bare = _bare(target)
    ends = bare != target  # in a slash, or in /.
    try:
        info = os.lstat(bare)
    except FileNotFoundError:
        if many or contents(target):
            raise
        return (*_beside(bare), ends)
    if stat.S_ISLNK(info.st_mode):
        if many or ends or not _replaceable(bare):
            why = "is a link, which no copy follows: name what it leads to, or remove it"
            raise NotADirectoryError(errno.ENOTDIR, why, bare)
        return (*_beside(bare), False)
    if stat.S_ISDIR(info.st_mode):
        return _folder(bare, os.O_NOFOLLOW), bare, None, False
    if many or ends or not stat.S_ISREG(info.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), target)
    return (*_beside(bare), False)


def _bare(path: str) -> str:
    """Return a path without the slashes and the /. at its end."""
    while (cut := path.rstrip("/").removesuffix("/.") or "/") != path:
        path = cut
    return path


def _replaceable(link: str) -> bool:
    """Report whether a link leads to a file or to nothing."""
    try:
        return stat.S_ISREG(os.stat(link).st_mode)
    except FileNotFoundError:
        return True
    except OSError:
        return False


def _beside(path: str) -> tuple[int, str, bytes]:
    """Open the directory of a path."""
    folder = os.path.dirname(path) or "."
    return _folder(folder), folder, os.fsencode(os.path.basename(path))


def _folder(path: str, more: int = 0) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | more)
