"""Addresses of agents: URLs, UNIX sockets, proxies on the way."""

from __future__ import annotations

import os
import posixpath
import stat
from urllib.parse import urlsplit

from ._errors import ConnectError, shown

_MAX_SOCKET_PATH = 107


def full_url(address: str) -> str:
    """Return the URL for the short forms that the command line takes: 127.0.0.1:7000, :7000, localhost:7000."""
    scheme, rest, given = "ws://", address, False
    for prefix in ("ws://", "wss://"):
        if address.startswith(prefix):
            scheme, rest, given = prefix, address[len(prefix) :], True
    if not given and ("/" in address or ":" not in address):
        return address
    if rest.startswith(":"):
        rest = "127.0.0.1" + rest
    return scheme + rest


def check_url(url: str) -> None:
    """Refuse a URL that no agent can have."""
    if url.startswith("unix://"):
        socket_path(url)
        return
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        raise ValueError("the URL of the agent is malformed") from None
    if parts.username is not None or parts.password is not None:
        raise ValueError("the URL of the agent holds credentials: use token=")
    if parts.scheme not in ("ws", "wss") or not host:
        hint = ""
        if parts.scheme in ("http", "https") and host:
            hint = f": write ws{shown_url(url)[4:]}"
        elif url.startswith("/"):
            hint = f": for a UNIX socket write unix://{url}"
        raise ValueError(f"{shown(shown_url(url))} is not ws://HOST:PORT, HOST:PORT, wss:// or unix:///PATH{hint}")


def shown_url(url: str) -> str:
    """Return a URL without the parts that may be secret."""
    if url.startswith("unix:"):
        return url
    try:
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
    except ValueError:
        return "the agent"
    return f"{parts.scheme}://{host}{parts.path}" if parts.scheme and host else url.partition("?")[0]


def is_loopback(url: str) -> bool:
    """Report whether a URL is one of this machine."""
    if url.startswith("unix://"):
        return True
    import ipaddress  # here, because a stdio client needs none of it

    host = urlsplit(url).hostname or ""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def socket_path(url: str) -> str:
    """Return the path in unix:///PATH. It is taken literally."""
    path = url[len("unix://") :]
    if not path.startswith("/"):
        raise ValueError(f"{shown(url)} is not unix:///PATH with an absolute path")
    if "\0" in path or path == "/":
        raise ValueError(f"{shown(url)} names no socket")
    if path != posixpath.normpath(path):
        raise ValueError(f"{shown(url)}: the path is not in its shortest form, {posixpath.normpath(path)}")
    if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
        raise ValueError(f"{shown(url)}: the path of a socket has at most {_MAX_SOCKET_PATH} bytes")
    return path


def check_server(uid: int | None, folder: str) -> None:
    """Trust only a server that runs as this user or as root, or as the user to whom one of these gave the folder."""
    if uid is None or uid in (0, os.geteuid()):
        return
    if _given(folder) != uid:
        raise ConnectError(
            f"the server runs as uid {uid}, which is not trusted: it is neither this user nor root, "
            f"and they have not given it the folder {folder}",
            final=True,
        )


def _given(folder: str) -> int | None:
    """Return the owner of a folder that only this user and root can have made; None: others may have.

    Links are followed, because only those who may write the folder of a link can have made it.
    """
    parts = [part for part in folder.split("/") if part][::-1]
    at, links = "/", 0
    try:
        while parts:
            info = os.stat(at)
            if info.st_uid not in (0, os.geteuid()) or stat.S_IMODE(info.st_mode) & 0o022:
                return None
            part = parts.pop()
            if part == "..":
                at = posixpath.dirname(at)
                continue
            below = posixpath.join(at, part)
            if not stat.S_ISLNK(os.lstat(below).st_mode):
                at = below
                continue
            links += 1
            if links > 40:
                return None
            target = os.readlink(below)
            parts += [name for name in target.split("/") if name not in ("", ".")][::-1]
            if target.startswith("/"):
                at = "/"
        return os.lstat(at).st_uid
    except OSError:
        return None


def proxy_of(url: str) -> str | None:
    """Return the proxy to a URL that the variables name, as for the command line."""
    parts = urlsplit(url)
    host, port = parts.hostname or "", parts.port or (443 if parts.scheme == "wss" else 80)
    if is_loopback(url):
        return None
    names = ("HTTPS_PROXY" if parts.scheme == "wss" else "HTTP_PROXY", "ALL_PROXY")
    proxy = next((value for name in names if (value := _variable(name))), "")
    if not proxy or _without_proxy(host, port, _variable("NO_PROXY")):
        return None
    if "://" not in proxy:
        proxy = "http://" + proxy
    return proxy


def _variable(name: str) -> str:
    return (os.environ.get(name) or os.environ.get(name.lower()) or "").strip()


def _without_proxy(host: str, port: int, listed: str) -> bool:
    import ipaddress

    try:
        address: ipaddress.IPv4Address | ipaddress.IPv6Address | None = ipaddress.ip_address(host)
    except ValueError:
        address = None
    for word in listed.split(","):
        word = word.strip().lower()
        if not word:
            continue
        if word == "*":
            return True
        name, colon, number = word.rpartition(":")
        if colon and number.isdigit() and (":" not in name or name.endswith("]")):
            if int(number) != port:
                continue
            word = name
        word = word.strip("[]")
        if address is not None:
            try:
                if address in ipaddress.ip_network(word, strict=False):
                    return True
            except (ValueError, TypeError):
                pass
        domain = word.removeprefix("*").removeprefix(".")
        if host == domain or host.endswith("." + domain):
            return True
    return False
