"""Paths of the server, and the file URIs that stand for them on the wire."""

from __future__ import annotations

import os
import posixpath
from urllib.parse import quote, unquote_to_bytes

from ._errors import ProtocolError, shown

RemotePath = str | os.PathLike[str]

# What a URI may carry as it is; everything else is encoded, also all bytes from 0x80.
_SAFE = "!$&'()*+,-./:;=@[]^_|~"


def native(path: RemotePath, what: str = "path") -> str:
    """Return the clean form of an absolute path."""
    text = os.fspath(path)
    if type(text) is not str:  # os.fspath may give bytes at run time
        raise TypeError(f"{what} is {type(text).__name__}, and must be a str or a path")
    if not text.startswith("/"):
        raise ValueError(f"{what} {shown(text)} is not absolute: paths of the agent begin with /")
    if "\0" in text:
        raise ValueError(f"{what} {shown(text)} has a NUL")
    clean = posixpath.normpath(text)
    return clean[1:] if clean.startswith("//") else clean


def uri(path: str) -> str:
    """Return the URI of a path in its clean form."""
    encoded = quote(os.fsencode(path), safe=_SAFE)
    if len(encoded) > 2 and encoded[2] == ":" and encoded[1].isascii() and encoded[1].isalpha():
        # A plain "C:" at the top would be read as a drive letter; with the letter encoded it is a name.
        encoded = f"/%{ord(encoded[1]):02X}{encoded[2:]}"
    return "file://" + encoded


def uri_of(path: RemotePath, what: str = "path") -> str:
    """Return the URI of an absolute path of a caller."""
    return uri(native(path, what))


def from_uri(text: str, where: str) -> str:
    """Return the path of a URI of the server."""
    if not text.startswith("file:///"):
        raise ProtocolError(f"{where}: {shown(text)} is not the URI of a path")
    path = os.fsdecode(unquote_to_bytes(text[len("file://") :]))
    if "\0" in path:
        raise ProtocolError(f"{where}: {shown(text)} has a NUL")
    clean = posixpath.normpath(path)
    return clean[1:] if clean.startswith("//") else clean
