"""Messages of the server, checked as they are read."""

from __future__ import annotations

import binascii
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, cast

from ._errors import ProtocolError, shown
from ._guards import is_list, is_table, is_texts
from ._paths import from_uri

MAX_MESSAGE = 64 << 20  # bytes of a message
_MAX_VALUES = 262_144  # JSON values of a message, unless each has
_MIN_VALUE = 8  # bytes. An entry of a directory has 50, and counts as 4 values.
# The way to the next comma or bracket outside of texts. It never goes back, because then a hostile message would take
# time of the square of its size, and memory of many times its size. A text without an end goes to the end.
_SEPARATOR = re.compile(rb'(?:[^",\[{]++|"(?:[^"\\]++|\\.)*+"?)*+[,\[{]', re.DOTALL)
_OUTPUT = re.compile(
    rb'\{"method":"process/output","params":\{"processId":"([^"\\\x00-\x1f]*)","seq":(\d{1,19}),"stream":"([a-z]{1,16})",'
    rb'"chunk":"'
)


_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def encode(message: Mapping[str, object]) -> str:
    """Return a message as JSON."""
    return _encode(message)


def not_text(value: object, at: str = "") -> str | None:
    """Name the first text in a request that is not Unicode; None: all are.

    JSON has only text, so the request would name another file or another program.
    """
    match value:
        case str():
            try:
                value.encode()
            except UnicodeEncodeError:
                return at
        case dict():
            for key, member in cast("dict[str, object]", value).items():
                if not_text(key) is not None:
                    return f"{at}: a name"
                if (found := not_text(member, f"{at}.{key}" if at else key)) is not None:
                    return found
        case list() | tuple():
            for i, member in enumerate(cast("list[object]", value)):
                if (found := not_text(member, f"{at}[{i}]")) is not None:
                    return found
        case _:
            pass
    return None


def decode(message: bytes) -> dict[str, Any]:
    """Read a message as a JSON object. Its size is bounded by the transport, and the number of its values here."""
    most = max(_MAX_VALUES, len(message) // _MIN_VALUE)
    few = message.count(b",") + message.count(b"[") + message.count(b"{") <= most
    if not few and _many(message, most):
        raise ProtocolError(f"a message has more than {most} values")
    try:
        value = json.loads(message.decode())
    except UnicodeDecodeError:
        raise ProtocolError(f"a message is not UTF-8: {shown(message)}") from None
    except RecursionError:
        raise ProtocolError(f"a message is nested too deeply: {shown(message)}") from None
    except ValueError as error:
        raise ProtocolError(f"a message is not JSON: {error}: {shown(message)}") from None
    if not is_table(value):
        raise ProtocolError(f"a message is not a JSON object: {shown(message)}")
    return value


def _many(message: bytes, most: int) -> bool:
    """Report whether a message has more values than that. Commas and brackets in texts do not count."""
    at = 0
    for _ in range(most + 1):
        found = _SEPARATOR.match(message, at)
        if found is None:
            return False
        at = found.end()
    return True


def fast_output(message: bytes) -> tuple[str, int, str, bytes] | None:
    """Read a process/output in the form in which our agent writes it, without a JSON parser.

    The result is the process, the number of the event, the stream and the data. Any other message gives None.
    """
    head = _OUTPUT.match(message)
    if head is None or not message.endswith(b'"}}'):
        return None
    try:
        # Characters outside of the alphabet, such as a quote, are an error in the strict mode.
        data = binascii.a2b_base64(memoryview(message)[head.end() : -3], strict_mode=True)
        return head[1].decode(), int(head[2]), head[3].decode(), data
    except ValueError:
        return None


class Record:
    """A JSON object of the server. Reading a member that is missing or of a wrong type is a ProtocolError."""

    __slots__ = ("members", "where")

    def __init__(self, where: str, value: object) -> None:
        self.where = where
        if not is_table(value):
            raise ProtocolError(f"{where}: {shown(value)} is not an object")
        self.members = value

    def wrong(self, name: str, want: str) -> ProtocolError:
        """Return the error about a member."""
        if name not in self.members:
            return ProtocolError(f"{self.where}: the member {name} is missing")
        return ProtocolError(f"{self.where}: {name} is {shown(self.members[name])}, and not {want}")

    def text(self, name: str) -> str:
        """Return a text."""
        value = self.members.get(name)
        if type(value) is not str:
            raise self.wrong(name, "a text")
        return value

    def text_or(self, name: str, default: str = "") -> str:
        """Return a text that may be absent or null."""
        return default if self.members.get(name) is None else self.text(name)

    def text_or_none(self, name: str) -> str | None:
        """Return a text that may be absent or null; None: it is."""
        return None if self.members.get(name) is None else self.text(name)

    def integer(self, name: str, least: int = 0, most: int = (1 << 64) - 1) -> int:
        """Return an integer within bounds."""
        value = self.members.get(name)
        if type(value) is not int or not least <= value <= most:
            raise self.wrong(name, f"an integer from {least} to {most}")
        return value

    def integer_or(self, name: str, default: int | None = None, least: int = 0) -> int | None:
        """Return an integer that may be absent or null."""
        return default if self.members.get(name) is None else self.integer(name, least)

    def flag(self, name: str) -> bool:
        """Return a boolean; false if it is absent or null."""
        value = self.members.get(name)
        if value is None:
            return False
        if type(value) is not bool:
            raise self.wrong(name, "true or false")
        return value

    def data(self, name: str) -> bytes:
        """Return bytes, which are base64 on the wire."""
        text = self.text(name)
        try:
            return binascii.a2b_base64(text, strict_mode=True)
        except ValueError:
            raise self.wrong(name, "base64") from None

    def path(self, name: str) -> str:
        """Return a path, which is a URI on the wire."""
        return from_uri(self.text(name), f"{self.where}: {name}")

    def path_or(self, name: str) -> str | None:
        """Return a path that may be absent or null."""
        return None if self.members.get(name) is None else self.path(name)

    def record(self, name: str) -> Record:
        """Return an object."""
        return Record(f"{self.where}: {name}", self.members.get(name))

    def record_or(self, name: str) -> Record | None:
        """Return an object that may be absent or null."""
        return None if self.members.get(name) is None else self.record(name)

    def array(self, name: str) -> list[Any]:
        """Return a list."""
        value = self.members.get(name)
        if not is_list(value):
            raise self.wrong(name, "a list")
        return value

    def records(self, name: str) -> Iterator[Record]:
        """Return the objects of a list."""
        for i, value in enumerate(self.array(name)):
            yield Record(f"{self.where}: {name}[{i}]", value)

    def texts(self, name: str) -> list[str]:
        """Return a list of texts."""
        value = self.members.get(name)
        if not is_texts(value):
            raise self.wrong(name, "a list of texts")
        return value

    def texts_or(self, name: str) -> list[str] | None:
        """Return a list of texts that may be absent or null."""
        return None if self.members.get(name) is None else self.texts(name)
