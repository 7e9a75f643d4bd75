"""The stream of a copy: what is sent is received, and a hostile sender writes nothing outside of the target."""

from __future__ import annotations

import hashlib
import os
import random
import stat
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

import execagent
from execagent._tar import (
    CutError,
    OmittedError,
    Receiver,
    Sender,
    _header,
    _padded,
    _records,
    names_of,
)


def send(*sources: str) -> bytes:
    parts: list[bytes] = []
    Sender(sources).send(parts.append)
    return b"".join(parts)


def receive(data: bytes, target: Path | str, *, many: bool = False, asked: Sequence[str] = ("/t",)) -> Receiver:
    rest = [data]

    def read() -> bytes:
        size = random.choice((1, 100, 5000, 1 << 20))
        part, rest[0] = rest[0][:size], rest[0][size:]
        return part

    receiver = Receiver(str(target), many=many, names=names_of(asked))
    try:
        receiver.receive(read)
    except OmittedError:
        pass
    return receiver


def snapshot(folder: Path) -> dict[str, tuple[object, ...]]:
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted(folder.rglob("*")):
        info = path.lstat()
        kind = stat.S_IFMT(info.st_mode)
        content: object = None
        if path.is_symlink():
            content = os.readlink(path)
        elif path.is_file():
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        mode = None if path.is_symlink() else stat.S_IMODE(info.st_mode)
        found[str(path.relative_to(folder))] = (kind, mode, info.st_mtime_ns, content)
    return found


def test_round_trip(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    (tree / "a" / "empty").mkdir(parents=True)
    (tree / "a" / "small").write_bytes(b"small")
    (tree / "a" / "zero").write_bytes(b"")
    (tree / "large").write_bytes(os.urandom(1_500_000))
    (tree / "just").write_bytes(os.urandom(512 << 10))
    (tree / ("n" * 200)).write_bytes(b"long name")
    (tree / "Grüße \n\x1b").write_bytes(b"odd name")
    Path(os.fsdecode(os.fsencode(tree) + b"/\xff\xfe")).write_bytes(b"not UTF-8")
    (tree / "link").symlink_to("a/small")
    (tree / "broken").symlink_to("nowhere" * 30)
    os.link(tree / "a" / "small", tree / "again")
    (tree / "a" / "small").chmod(0o741)
    with open(tree / "holes", "wb") as file:
        file.truncate(50_000_000)
        for at in (1_000_000, 30_000_000):
            file.seek(at)
            file.write(b"data" * 1000)
    os.utime(tree / "large", ns=(1, -1_500_000_000))
    os.utime(tree / "a", ns=(1, 1_600_000_000_123_456_789))
    data = send(str(tree))
    assert len(data) < 5_000_000  # holes are not sent
    receive(data, tmp_path / "back", asked=["/x/tree"])
    assert snapshot(tree) == snapshot(tmp_path / "back")
    assert (tmp_path / "back" / "again").stat().st_ino == (tmp_path / "back" / "a" / "small").stat().st_ino
    assert (tmp_path / "back" / "holes").stat().st_blocks * 512 < 10_000_000
    # Once more, over itself, into a directory, and as contents.
    receive(data, tmp_path / "back", asked=["/x/tree"])
    assert (tmp_path / "back" / "tree" / "large").exists()
    receive(send(str(tree) + "/."), tmp_path / "back", asked=["/x/tree/."])
    assert not any(path.name.startswith(".agent-cp") for path in tmp_path.rglob("*"))


def test_unreadable(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "f").write_bytes(b"x")
    os.mkfifo(tmp_path / "t" / "pipe")
    parts: list[bytes] = []
    sender = Sender([str(tmp_path / "t")])
    with pytest.raises(OmittedError):
        sender.send(parts.append)
    assert sender.omitted == [f"{tmp_path}/t/pipe: left out: neither a file nor a directory nor a link"]
    receive(b"".join(parts), tmp_path / "back")
    assert (tmp_path / "back" / "f").read_bytes() == b"x"
    for source, error in ((str(tmp_path / "none"), FileNotFoundError), (str(tmp_path / "t" / "f") + "/", OSError)):
        with pytest.raises(error):
            Sender([source])


def glob(**records: bytes) -> bytes:
    data = _records({"EXECAGENT." + key: value for key, value in records.items()})
    return _header(b"g", b"GlobalHead", len(data), 0o644, 0, 0, 0) + _padded(data)


def entry(kind: bytes, name: bytes, content: bytes = b"", link: bytes = b"", **records: bytes) -> bytes:
    if kind == b"0" and "sha256" not in records and "size" not in records:
        records["sha256"] = hashlib.sha256(content).hexdigest().encode()
    data = _records({"EXECAGENT." + key: value for key, value in records.items()} | {"path": name, "linkpath": link})
    head = _header(b"x", b"PaxHeaders", len(data), 0o644, 0, 0, 0) + _padded(data)
    return head + _header(kind, name, len(content), 0o7777, 0, 0, 0, link) + _padded(content)


def stream(*entries: bytes) -> bytes:
    return glob(begin=b"1") + b"".join(entries) + glob(end=str(len(entries)).encode()) + b"\0" * 1024


@pytest.mark.parametrize(
    "entries",
    [
        [entry(b"0", b"../out", b"x")],
        [entry(b"0", b"/tmp/execagent-out", b"x")],
        [entry(b"0", b"t/../../out", b"x")],
        [entry(b"0", b"other", b"x")],
        [entry(b"0", b"./t", b"x")],
        [entry(b"0", b"t\0x", b"x")],
        [entry(b"0", b"", b"x")],
        [entry(b"0", b"t/" * 600, b"x")],
        [entry(b"0", b"t/f", b"x", sha256=b"0" * 64)],
        [entry(b"0", b"t/f", b"x", size=b"5")],
        [entry(b"0", b"t/f", size=b"99999999999999999999")],
        [entry(b"0", b"t/f", size=b"10"), entry(b"0", b"t/g", b"x")],
        [entry(b"1", b"t/f", link=b"../../etc/passwd")],
        [entry(b"1", b"t/f", link=b"/etc/passwd")],
    ],
)
def test_hostile_names(entries: list[bytes], tmp_path: Path) -> None:
    target = tmp_path / "in"
    target.mkdir()
    with pytest.raises(execagent.ProtocolError):
        receive(stream(*entries), target)
    assert set(tmp_path.rglob("*")) <= {target, target / "t"}


def test_hostile_links(tmp_path: Path) -> None:
    """Nothing is written through a link of the stream, or through one that was there."""
    outside, target = tmp_path / "outside", tmp_path / "in"
    outside.mkdir()
    target.mkdir()
    receiver = receive(
        stream(
            entry(b"5", b"t/"),
            entry(b"2", b"t/way", link=bytes(outside)),
            entry(b"0", b"t/way/f", b"x"),
            entry(b"5", b"t/way/"),
            entry(b"1", b"t/hard", link=b"t/way"),
            entry(b"3", b"t/device"),
            entry(b"6", b"t/pipe"),
            entry(b"0", b"t/good", b"good"),
        ),
        target,
        asked=["/t"],
    )
    assert list(outside.iterdir()) == []
    assert (target / "t" / "good").read_bytes() == b"good"
    assert sorted(path.name for path in (target / "t").iterdir()) == ["good", "way"]
    assert len(receiver.omitted) == 5
    # Set-ID bits are never given.
    assert stat.S_IMODE((target / "t" / "good").stat().st_mode) == 0o777


KINDS = {
    "file": [entry(b"0", b"t", b"new")],
    "link": [entry(b"2", b"t", link=b"elsewhere")],
    "directory": [entry(b"5", b"t/"), entry(b"0", b"t/kept", b"new")],
    "file in it": [entry(b"0", b"t/kept", b"new")],
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("to", ["outside/kept", "outside/new"])
def test_target_is_a_link(kind: str, to: str, tmp_path: Path) -> None:
    """A link that an earlier copy may have made at the target is replaced, and never followed."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("old")
    target = tmp_path / "target"
    target.symlink_to(to)
    receiver = receive(stream(*KINDS[kind]), target)
    assert [path.name for path in outside.iterdir()] == ["kept"] and (outside / "kept").read_text() == "old"
    match kind:
        case "file":
            assert not target.is_symlink() and target.read_text() == "new"
        case "link":
            assert os.readlink(target) == "elsewhere"
        case "directory":
            assert not target.is_symlink() and (target / "kept").read_text() == "new"
        case _:
            assert target.is_symlink() and len(receiver.omitted) == 1


@pytest.mark.parametrize("to", ["directory", "/dev/null", "target", "file", "nothing"])
@pytest.mark.parametrize("end", ["", "/", "/.", "//", "/./"])
@pytest.mark.parametrize("many", [False, True])
def test_target_is_refused(to: str, end: str, many: bool, tmp_path: Path) -> None:
    """A link to anything else is refused, and so is every link where a directory is meant."""
    (tmp_path / "directory").mkdir()
    (tmp_path / "file").write_text("old")
    target = tmp_path / "target"
    target.symlink_to(to)
    before = snapshot(tmp_path)
    if to in ("file", "nothing") and not end and not many:
        end = "/"
    with pytest.raises(NotADirectoryError) as caught:
        receive(stream(entry(b"0", b"t", b"x")), f"{target}{end}", many=many)
    assert caught.value.strerror == "is a link, which no copy follows: name what it leads to, or remove it"
    assert caught.value.filename == str(target) and snapshot(tmp_path) == before
    receive(stream(entry(b"0", b"t", b"x")), f"{tmp_path}/directory{end}", many=many)
    assert (tmp_path / "directory" / "t").read_text() == "x"


@pytest.mark.parametrize("name", [b".", b"./", b"./."])
@pytest.mark.parametrize("exists", [True, False])
def test_source_is_a_directory(name: bytes, exists: bool, tmp_path: Path) -> None:
    """A source of which only the contents are copied is a directory, whatever the stream says."""
    target = tmp_path / "target"
    if exists:
        target.mkdir()
    for hostile in (entry(b"0", name, b"x"), entry(b"2", name, link=b"/"), entry(b"1", name, link=b"./x")):
        with pytest.raises(execagent.ProtocolError, match="no directory"):
            receive(stream(hostile), target, asked=["/t/."])
    with pytest.raises(execagent.ProtocolError, match="nobody has asked"):
        receive(stream(entry(b"2", b"t", link=b"/")), target, asked=["/t/."])
    assert not target.is_symlink() and list(tmp_path.rglob("*")) == ([target] if exists else [])


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\0" * 1024,
        b"x" * 512,
        glob(begin=b"2") + b"\0" * 1024,
        glob(begin=b"1") + glob(end=b"1") + b"\0" * 1024,
        entry(b"0", b"t", b"x"),
        glob(begin=b"1") + glob(sha256=b"x") + b"\0" * 1024,
        glob(begin=b"1") + _header(b"x", b"p", 1 << 30, 0, 0, 0, 0),
        glob(begin=b"1") + _header(b"x", b"p", 8, 0, 0, 0, 0) + _padded(b"9 a=b\n12"),
        glob(begin=b"1") + entry(b"0", b"t", b"x") + glob(end=b"1"),
    ],
)
def test_hostile_streams(data: bytes, tmp_path: Path) -> None:
    with pytest.raises((execagent.ProtocolError, CutError)):
        receive(data, tmp_path)


def test_cut_anywhere(tmp_path: Path) -> None:
    """A stream that is cut, or of which a byte is changed, leaves no half file."""
    source = tmp_path / "t"
    source.mkdir()
    (source / "f").write_bytes(b"content of f")
    (source / "g").write_bytes(os.urandom(2000))
    data = send(str(source))
    whole = {"f": (source / "f").read_bytes(), "g": (source / "g").read_bytes()}
    random.seed(1)
    for number in range(300):
        target = tmp_path / f"to{number}"
        target.mkdir()
        at = random.randrange(len(data))
        broken = data[:at] if number % 2 else data[:at] + bytes([data[at] ^ 0x55]) + data[at + 1 :]
        try:
            receive(broken, target)
        except (execagent.ProtocolError, CutError):
            pass
        for path in target.rglob("*"):
            if path.is_file():
                assert path.read_bytes() == whole[path.name], path


def test_pieces(tmp_path: Path) -> None:
    """Extents that overlap, run backwards or beyond the end are refused."""

    def piece(*extents: tuple[int, int], content: bytes) -> bytes:
        places = b"".join(struct.pack(">QQ", *extent) for extent in extents)
        return entry(b"0", b"piece", places + content, extents=str(len(extents)).encode(), sha256=b"")

    wrong: list[Callable[[], bytes]] = [
        lambda: piece((5, 2), (4, 2), content=b"abcd"),
        lambda: piece((9, 2), content=b"ab"),
        lambda: piece((0, 0), content=b""),
        lambda: piece((0, 2), content=b"abc"),
        lambda: piece((1 << 63, 2), content=b"ab"),
    ]
    for make in wrong:
        with pytest.raises((execagent.ProtocolError, CutError)):
            receive(stream(entry(b"0", b"t", size=b"10"), make()), tmp_path)
