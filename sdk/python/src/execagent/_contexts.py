"""Which agent? Contexts, variables and files, found as the command line finds them (docs/cli.md)."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import stat
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ._errors import shown
from ._guards import is_table, is_texts

_log = logging.getLogger("execagent")

_MAX_FILE = 1 << 20
_MAX_TOKEN = 64 << 10
_MAX_CONTEXTS = 1000
_MAX_VALUE = 4 << 10
_MAX_WORDS = 64
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_COMMAND_TIMEOUT = 60.0
_HOST_FILE = "/etc/execagent/config.toml"
_TEXTS = (
    "url",
    "registry",
    "environment_id",
    "transport",
    "token",
    "token_file",
    "tls_ca",
    "tls_cert",
    "tls_key",
    "tls_server_name",
)


class Token(NamedTuple):
    """Where a token is: a file, a command that prints it, or the text itself."""

    text: str | None = None
    file: str | None = None
    command: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return "Token(...)"  # it may be a secret

    @property
    def renews(self) -> bool:
        """Whether reading it again may give another token."""
        return bool(self.command)

    async def read(self) -> str | None:
        """Return the token; None: there is none. No error quotes it."""
        if self.text is not None:
            return check_token("token", self.text)
        if self.file is not None:
            return check_token(f"the token file {self.file}", read_secret(self.file))
        if self.command:
            return await _run(self.command)
        return None


class Target(NamedTuple):
    """An agent, and how to reach it."""

    url: str | None = None
    registry: str | None = None
    environment_id: str | None = None
    transport: str | None = None
    token: Token = Token()
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_server_name: str | None = None
    context: str | None = None


def find(context: str | None, config: str | os.PathLike[str] | None) -> Target:
    """Return the agent that a context, the variables or the files name."""
    path = _config_path(config)
    if context is not None and context != "":
        return _context(path, context)
    options = _options(path)
    url, registry = options.get("url"), options.get("registry")
    if context is None and (url or registry):
        if url and registry:
            raise ValueError("AGENT_URL and AGENT_REGISTRY cannot be used together")
        if registry:
            return Target(
                registry=registry,
                environment_id=options.get("environment-id"),
                transport=options.get("transport"),
                token=_registry_token(options.get("registry-token-file")),
                tls_ca=options.get("tls-ca"),
            )
        return Target(
            url=url,
            token=Token(file=options.get("token-file")),
            tls_ca=options.get("tls-ca"),
            tls_cert=options.get("tls-cert"),
            tls_key=options.get("tls-key"),
            tls_server_name=options.get("tls-server-name"),
        )
    name = options.get("context") if context is None else None
    current, contexts = _read(path)
    if name:
        return _find(path, contexts, name)
    if current is not None and context is None:
        return _find(path, contexts, current)
    known = ", ".join(sorted(contexts)[:10])
    raise ValueError(
        "which agent? give a URL or context=, or set AGENT_URL" + (f"; the contexts are {known}" if known else "")
    )


def _registry_token(file: str | None) -> Token:
    if file is not None:
        return Token(file=file)
    for name in ("AGENT_REGISTRY_TOKEN", "CODEX_API_KEY"):
        if os.environ.get(name, "").strip():
            return Token(text=os.environ[name])
    return Token()


def _config_path(config: str | os.PathLike[str] | None) -> str:
    named = os.fspath(config) if config is not None else os.environ.get("AGENT_CONFIG", "")
    if named:
        return named
    base = os.environ.get("XDG_CONFIG_HOME", "")
    if not os.path.isabs(base):
        base = os.path.expanduser("~/.config")
    return os.path.join(base, "execagent", "config.toml")


_VARIABLES = {
    "url": "AGENT_URL",
    "registry": "AGENT_REGISTRY",
    "context": "AGENT_CONTEXT",
    "environment-id": "AGENT_ENVIRONMENT_ID",
    "transport": "AGENT_REGISTRY_TRANSPORT",
    "token-file": "AGENT_TOKEN_FILE",
    "registry-token-file": "AGENT_REGISTRY_TOKEN_FILE",
    "tls-ca": "AGENT_TLS_CA",
    "tls-cert": "AGENT_CLIENT_TLS_CERT",
    "tls-key": "AGENT_CLIENT_TLS_KEY",
    "tls-server-name": "AGENT_TLS_SERVER_NAME",
}
_PATHS = ("token-file", "registry-token-file", "tls-ca", "tls-cert", "tls-key")


def _options(path: str) -> dict[str, str]:
    """Return the options of [client] in the files, and of the variables, which win.

    A token belongs to the URL of its own source.
    """
    options: dict[str, str] = {}
    for file in (_HOST_FILE, path):
        try:
            table = _table(file, "client", _load(file).get("client"))
        except PermissionError:
            continue  # this user may not look there
        found: dict[str, str] = {}
        for key, value in table.items():
            if key in _VARIABLES and isinstance(value, str):
                found[key] = _resolve(file, value) if key in _PATHS else value
        _replace(options, found)
    _replace(options, {key: os.environ[name] for key, name in _VARIABLES.items() if os.environ.get(name)})
    return options


def _replace(options: dict[str, str], found: Mapping[str, str]) -> None:
    if "url" in found or "registry" in found or "context" in found:
        for key in ("url", "registry", "context", "environment-id", "token-file", "registry-token-file"):
            options.pop(key, None)
    options.update(found)


def _load(path: str) -> dict[str, Any]:
    """Read a file of this user or root that nobody else can write. A missing file and /dev/null have nothing."""
    if path == os.devnull:
        return {}
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK | os.O_CLOEXEC)) as file:
            info = os.fstat(file.fileno())
            if not stat.S_ISREG(info.st_mode):
                raise ValueError(f"{path} is not a regular file")
            if info.st_uid not in (0, os.geteuid()):
                raise ValueError(f"{path} belongs to user {info.st_uid}, who could have its commands run as you")
            if info.st_mode & 0o022:
                mode = stat.S_IMODE(info.st_mode)
                raise ValueError(
                    f"{path} has mode {mode:04o}: others can write it, and have its commands run as you "
                    f"(chmod go-w {path})"
                )
            text = file.read(_MAX_FILE + 1)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    if len(text) > _MAX_FILE:
        raise ValueError(f"{path} is longer than {_MAX_FILE} bytes")
    import tomllib  # here, because only some programs have contexts

    try:
        values = tomllib.loads(text.decode())
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        # The text of the error could quote a secret, but not its place.
        place = re.search(r"\(at ([^)]*)\)$", str(error))
        raise ValueError(f"{path} is not TOML" + (f" (at {place[1]})" if place else "")) from None
    if "token" in str(values.get("contexts", "")) and info.st_mode & 0o077:
        for context in _table(path, "contexts", values.get("contexts")).values():
            if is_table(context) and "token" in context:
                raise ValueError(f"{path} holds a token, and others can read it: chmod 600 {path}")
    return values


def _table(path: str, name: str, value: object) -> dict[str, Any]:
    if value is None:
        return {}
    if not is_table(value):
        raise ValueError(f"{path}: {name} is not a table")
    return value


def _read(path: str) -> tuple[str | None, dict[str, Any]]:
    values = _load(path)
    current = values.get("current")
    if current is not None and not isinstance(current, str):
        raise ValueError(f"{path}: current is not a string")
    contexts = _table(path, "contexts", values.get("contexts"))
    if len(contexts) > _MAX_CONTEXTS:
        raise ValueError(f"{path} has more than {_MAX_CONTEXTS} contexts")
    return current, contexts


def _context(path: str, name: str) -> Target:
    return _find(path, _read(path)[1], name)


def _find(path: str, contexts: Mapping[str, Any], name: str) -> Target:
    if name not in contexts:
        known = ", ".join(sorted(contexts)[:10])
        raise ValueError(f"context {shown(name)} is not in {path}, which has {known or 'no contexts'}")
    if not _NAME.fullmatch(name):
        raise ValueError(f"{path}: context {shown(name)} is not a valid name")
    where = f"{path}: context {name}"
    values = _table(path, f"context {name}", contexts[name])
    for key, value in values.items():
        if key == "token_command":
            if not is_texts(value):
                raise ValueError(f"{where}: token_command is not an array of strings")
            if not 0 < len(value) <= _MAX_WORDS or not value[0]:
                raise ValueError(f"{where}: token_command is empty or has more than {_MAX_WORDS} words")
        elif key not in _TEXTS:
            raise ValueError(f"{where}: unknown key {shown(key)}: use {', '.join(_TEXTS)} or token_command")
        elif not isinstance(value, str) or not value or len(value) > _MAX_VALUE:
            raise ValueError(f"{where}: {key} is not a string of 1 to {_MAX_VALUE} characters")
    if ("url" in values) == ("registry" in values):
        raise ValueError(f"{where}: one of url and registry must be given")
    if "url" in values and ("environment_id" in values or "transport" in values):
        raise ValueError(f"{where}: environment_id and transport cannot be used with url")
    if values.get("transport", "noise") not in ("noise", "direct"):
        raise ValueError(f"{where}: transport is neither noise nor direct")
    if ("tls_cert" in values) != ("tls_key" in values):
        raise ValueError(f"{where}: tls_cert and tls_key must be given together")
    if sum(key in values for key in ("token", "token_file", "token_command")) > 1:
        raise ValueError(f"{where}: token, token_file and token_command cannot be used together")
    file = values.get("token_file")
    tls = {key: _resolve(path, values[key]) if key in values else None for key in ("tls_ca", "tls_cert", "tls_key")}
    return Target(
        url=values.get("url"),
        registry=values.get("registry"),
        environment_id=values.get("environment_id"),
        transport=values.get("transport"),
        token=Token(
            values.get("token"),
            None if file is None else _resolve(path, file),
            tuple(values.get("token_command", ())),
        ),
        tls_ca=tls["tls_ca"],
        tls_cert=tls["tls_cert"],
        tls_key=tls["tls_key"],
        tls_server_name=values.get("tls_server_name"),
        context=name,
    )


def _resolve(path: str, named: str) -> str:
    """Return the path of a file that another file names: ~/ is the home, and relative paths begin beside the file."""
    if named.startswith("~/"):
        return os.path.expanduser(named)
    return os.path.join(os.path.dirname(path), named)


def read_secret(path: str) -> str:
    """Read a small file. One that others can change is refused; one that they can read is told."""
    if not os.path.exists(path):
        raise FileNotFoundError(2, os.strerror(2), path)
    at = os.path.abspath(path)
    for each in (at, os.path.dirname(at)):
        info = os.stat(each)
        mode = stat.S_IMODE(info.st_mode)
        ours = info.st_uid in (0, os.geteuid())
        if stat.S_ISREG(info.st_mode) or stat.S_ISDIR(info.st_mode):
            sticky = stat.S_ISDIR(info.st_mode) and mode & stat.S_ISVTX
            if not ours or (mode & 0o022 and not sticky):
                raise ValueError(f"{path} is not used, because others can change {each}: chmod go-w {each}")
    mode = stat.S_IMODE(os.stat(at).st_mode)
    if os.path.isfile(at) and mode & 0o077:
        _log.warning("%s has mode %04o: others can read it (chmod 600 %s)", path, mode, path)
    with open(path, "rb") as file:
        content = file.read(_MAX_TOKEN + 1)
    if len(content) > _MAX_TOKEN:
        raise ValueError(f"{path} is longer than {_MAX_TOKEN} bytes")
    return content.decode("ascii", errors="replace")


def check_token(what: str, text: str) -> str:
    """Return the token in a text, without the white space around it."""
    token = text.strip()
    if not token:
        raise ValueError(f"{what} is empty")
    if not all("!" <= c <= "~" for c in token):
        raise ValueError(f"{what} holds characters that a token cannot have")
    return token


async def _run(argv: Sequence[str]) -> str:
    """Run a command, and return the token that it prints. It gets no standard input."""
    process = await asyncio.create_subprocess_exec(
        *argv, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(_COMMAND_TIMEOUT):
            text = b""
            while part := await process.stdout.read(_MAX_TOKEN):
                text += part
                if len(text) > _MAX_TOKEN:
                    raise ValueError(f"token_command {argv[0]} prints more than {_MAX_TOKEN} bytes")
            code = await process.wait()
    except TimeoutError:
        raise ValueError(f"token_command {argv[0]} took longer than {_COMMAND_TIMEOUT:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if code != 0:
        raise ValueError(f"token_command {argv[0]} ended with exit code {code}")
    return check_token(f"the output of token_command {argv[0]}", text.decode("ascii", errors="replace"))
