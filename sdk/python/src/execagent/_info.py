"""What the server says of its machine."""

from __future__ import annotations

from typing import NamedTuple

from ._record import Record


class Shell(NamedTuple):
    """The shell of the server's user."""

    name: str
    path: str


class Info(NamedTuple):
    """The machine of the server. ``capabilities`` are the flags that are set."""

    version: str
    os: str
    shell: Shell
    cwd: str | None
    home: str | None
    temp_dir: str | None
    temporary_directories: tuple[str, ...]
    capabilities: frozenset[str]


def info_of(r: Record) -> Info:
    """Read an environment/info."""
    shell = r.record("shell")
    flags = r.record("capabilities").members
    return Info(
        version=r.text_or("executorVersion"),
        os=r.text_or("platformOs"),
        shell=Shell(shell.text("name"), shell.text("path")),
        cwd=r.path_or("cwd"),
        home=r.path_or("userHomeDir"),
        temp_dir=r.path_or("tempDir"),
        temporary_directories=tuple(
            Record(r.where, {"path": each}).path("path") for each in r.texts_or("temporaryDirectories") or ()
        ),
        capabilities=frozenset(name for name, value in flags.items() if value is True),
    )
