"""Bounds of one command, and its user, in the words of ``agent exec``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ._errors import shown

if TYPE_CHECKING:
    from ._record import Record
    from ._wire import ProcessLimits, RunAs

Size = int | str
"""A number of bytes, or a text such as ``64k``, ``512m`` or ``2g``, by powers of 1024."""

MAX_AGENT_OUTPUT = 8 << 20
"""How many bytes of a stream an agent can keep until its end."""

_SIZE = re.compile(r"(\d{1,19})(?:([kmgt])(?:i?b)?)?", re.IGNORECASE | re.ASCII)
_MAX_SIZE = 1 << 62
_MAX_CPUS = 1000.0
_MAX_PIDS = 1 << 22
_WORDS = {"memory": "memoryBytes", "cpus": "milliCpus", "pids": "processes", "file_size": "fileSizeBytes"}


def read_size(value: Size, name: str, least: int = 0, most: int = _MAX_SIZE) -> int:
    """Read a number of bytes within bounds."""
    read = _SIZE.fullmatch(str(value))
    if isinstance(value, bool) or read is None:
        raise ValueError(f"{name} is {shown(value)}, and must be a number of bytes, or a text such as 64k, 512m or 2g")
    size = int(read[1]) << 10 * (" kmgt".index(read[2].lower()) if read[2] else 0)
    if not least <= size <= most:
        raise ValueError(f"{name} is {shown(value)}, and must be {least} to {most} bytes")
    return size


def limits_of(
    memory: Size | None, cpus: float | None, pids: int | None, file_size: Size | None
) -> ProcessLimits | None:
    """Return limits in the form of the wire; None: there are none."""
    limits: ProcessLimits = {}
    if memory is not None:
        limits["memoryBytes"] = read_size(memory, "memory", 1)
    if cpus is not None:
        if not 0.01 <= cpus <= _MAX_CPUS:
            raise ValueError(f"cpus is {shown(cpus)}, and must be 0.01 to {_MAX_CPUS:g} processors")
        limits["milliCpus"] = round(cpus * 1000)
    if pids is not None:
        if type(pids) is not int or not 1 <= pids <= _MAX_PIDS:
            raise ValueError(f"pids is {shown(pids)}, and must be 1 to {_MAX_PIDS}")
        limits["processes"] = pids
    if file_size is not None:
        limits["fileSizeBytes"] = read_size(file_size, "file_size", 1)
    return limits or None


def run_as(user: str) -> RunAs:
    """Return a user in the form of the wire."""
    name, colon, group = user.partition(":")
    if not name or (colon and not group) or ":" in group or "\0" in user:
        raise ValueError(f"user is {shown(user)}, and must be NAME or NAME:GROUP")
    return {"user": name, "group": group} if colon else {"user": name}


def held_by(r: Record | None) -> dict[str, str]:
    """Read what holds each limit, by the words of the parameters."""
    return {} if r is None else {word: r.text(name) for word, name in _WORDS.items() if name in r.members}
