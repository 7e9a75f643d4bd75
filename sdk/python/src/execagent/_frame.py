"""The protobuf frames on a relay's websocket, one in each binary message (docs/protocol/remote.md 5)."""

from __future__ import annotations

from typing import NamedTuple

MAX_MESSAGE = 262_144
_VERSION, _STREAM, _ACK, _ACK_BITS = 1, 2, 3, 4
DATA, ACK, RESUME, RESET, HEARTBEAT, HANDSHAKE = 5, 6, 7, 8, 9, 10
_TRACES = (11, 12)
_MASK = (1 << 32) - 1


class FrameError(Exception):
    """A message is not a frame."""


class Frame(NamedTuple):
    """A frame. ``body`` is the number of its kind; the members of other kinds have no meaning."""

    stream_id: bytes
    body: int
    ack: int = 0
    ack_bits: int = 0
    seq: int = 0
    next_seq: int = 0
    payload: bytes = b""
    reason: bytes = b""

    @property
    def acknowledges(self) -> bool:
        """Whether it acknowledges records or, in a handshake, says that its sender will."""
        return self.ack != 0 or self.ack_bits != 0 or self.body == ACK


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value) if value else b""


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def encode(f: Frame) -> bytes:
    """Return a frame as the reference encodes it: fields in order, zeros left out."""
    if f.body == DATA:
        body = _number(1, f.seq) + _number(3, 1) + _bytes(4, f.payload)
    elif f.body == RESUME:
        body = _number(1, f.next_seq)
    elif f.body == RESET:
        body = _bytes(1, f.reason)
    elif f.body == HANDSHAKE:
        body = _bytes(1, f.payload)
    else:
        body = b""
    head = _number(_VERSION, 1) + _bytes(_STREAM, f.stream_id) + _number(_ACK, f.ack) + _number(_ACK_BITS, f.ack_bits)
    return head + _bytes(f.body, body)


class _Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def more(self) -> bool:
        return self._at < len(self._data)

    def varint(self) -> int:
        value = shift = 0
        while True:
            if self._at >= len(self._data) or shift > 63:
                raise FrameError("a number is cut")
            byte = self._data[self._at]
            self._at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    def tag(self) -> tuple[int, int]:
        value = self.varint()
        field, kind = value >> 3, value & 7
        if not 0 < field < 1 << 29:
            raise FrameError(f"there is no field {field}")
        return field, kind

    def number(self, kind: int) -> int:
        if kind != 0:
            raise FrameError("a number has another type")
        return self.varint() & _MASK

    def data(self, kind: int) -> bytes:
        if kind != 2:
            raise FrameError("bytes have another type")
        return self._take(self.varint())

    def text(self, kind: int) -> bytes:
        value = self.data(kind)
        try:
            value.decode()
        except UnicodeDecodeError:
            raise FrameError("a text is not UTF-8") from None
        return value

    def skip(self, field: int, kind: int, depth: int = 0) -> None:
        if kind == 0:
            self.varint()
        elif kind == 1:
            self._take(8)
        elif kind == 2:
            self._take(self.varint())
        elif kind == 5:
            self._take(4)
        elif kind == 3 and depth < 16:
            while True:
                inner, inner_kind = self.tag()
                if inner_kind == 4:
                    if inner != field:
                        raise FrameError("a group ends as another")
                    return
                self.skip(inner, inner_kind, depth + 1)
        else:
            raise FrameError(f"the type {kind} is not known")

    def _take(self, size: int) -> bytes:
        if size > len(self._data) - self._at:
            raise FrameError("bytes are cut")
        self._at += size
        return self._data[self._at - size : self._at]


def decode(message: bytes) -> Frame:
    """Read a frame, and check it as section 5 requires."""
    r = _Reader(message)
    version = body = ack = bits = seq = index = count = next_seq = 0
    stream = payload = reason = b""
    while r.more:
        field, kind = r.tag()
        if field == _VERSION:
            version = r.number(kind)
        elif field == _STREAM:
            stream = r.text(kind)
        elif field == _ACK:
            ack = r.number(kind)
        elif field == _ACK_BITS:
            bits = r.number(kind)
        elif field in _TRACES:
            r.text(kind)
        elif DATA <= field <= HANDSHAKE:
            inner = _Reader(r.data(kind))
            if field != body:
                body, seq, index, count, next_seq, payload, reason = field, 0, 0, 0, 0, b"", b""
            while inner.more:
                number, kind = inner.tag()
                if body == DATA and number == 1:
                    seq = inner.number(kind)
                elif body == DATA and number == 2:
                    index = inner.number(kind)
                elif body == DATA and number == 3:
                    count = inner.number(kind)
                elif (body == DATA and number == 4) or (body == HANDSHAKE and number == 1):
                    payload = inner.data(kind)
                elif body == RESUME and number == 1:
                    next_seq = inner.number(kind)
                elif body == RESET and number == 1:
                    reason = inner.text(kind)
                else:
                    inner.skip(number, kind)
        else:
            r.skip(field, kind)
    if version != 1:
        raise FrameError(f"the version is {version}")
    if not stream.strip():
        raise FrameError("the stream has no id")
    if body == 0:
        raise FrameError("there is no body")
    if body == DATA and (index != 0 or count != 1):
        raise FrameError("data has several segments")
    if body in (DATA, HANDSHAKE) and not payload:
        raise FrameError("the payload is empty")
    if body == RESET and not reason:
        raise FrameError("a reset has no reason")
    return Frame(stream, body, ack, bits, seq, next_seq, payload, reason)
