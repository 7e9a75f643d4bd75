"""The ways to an agent."""

from __future__ import annotations

import inspect
import os
import ssl
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from types import TracebackType
from typing import Any, NamedTuple

from . import _address, _contexts
from ._agent import Agent
from ._core import Config, Core
from ._errors import ConnectError, shown
from ._questions import (
    ApprovalQuestion,
    ApprovalReply,
    Callbacks,
    CommandDecision,
    NetworkDecision,
    NetworkQuestion,
    NetworkReply,
)
from ._transport import Command, Connection, dial


class Opening:
    """A client that is about to be opened: ``async with`` opens and closes it, ``await`` opens it."""

    def __init__(self, make: Callable[[], Awaitable[Config]]) -> None:
        self._make = make
        self._agent: Agent | None = None

    async def _open(self) -> Agent:
        core = Core(await self._make())
        await core.open()
        return Agent(core)

    def __await__(self) -> Generator[Any, None, Agent]:
        return self._open().__await__()

    async def __aenter__(self) -> Agent:
        self._agent = await self._open()
        return self._agent

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._agent is not None:
            await self._agent.close()


def connect(
    url: str | None = None,
    *,
    token: str | None = None,
    token_file: str | os.PathLike[str] | None = None,
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    tls_cert: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    tls_server_name: str | None = None,
    context: str | None = None,
    config: str | os.PathLike[str] | None = None,
    command: Sequence[str] | None = None,
    command_env: Mapping[str, str] | None = None,
    command_cwd: str | os.PathLike[str] | None = None,
    on_stderr: Callable[[str], None] | None = None,
    registry: str | None = None,
    environment_id: str | None = None,
    session: str | None = None,
    session_id: str | None = None,
    existing: bool = False,
    take: bool = False,
    retain: float | None = None,
    on_approval: Callable[[ApprovalQuestion], ApprovalReply | Awaitable[ApprovalReply]] | None = None,
    on_command_decision: Callable[[CommandDecision], None] | None = None,
    on_network: Callable[[NetworkQuestion], NetworkReply | Awaitable[NetworkReply]] | None = None,
    on_network_decision: Callable[[NetworkDecision], None] | None = None,
    client_name: str = "execagent-python",
    connect_timeout: float = 10.0,
    handshake_timeout: float = 10.0,
    recovery_timeout: float = 45.0,
) -> Opening:
    """Connect to an agent: ``async with connect(...) as agent``, or ``agent = await connect(...)``.

    The agent is one of these:

    - ``url``: it listens at ws://HOST:PORT, HOST:PORT, wss://HOST:PORT or unix:///PATH, with ``token`` or
      ``token_file``, and with the files ``tls_ca``, ``tls_cert`` and ``tls_key``, or a whole ``tls`` context
    - ``context``: the command line has a name for it. ``config`` is the file of contexts
    - ``command``: it is started for this client, here or behind ssh, and speaks on its standard input and output
    - ``registry`` and ``environment_id``: it has registered with a registry (needs the extra ``relay``)
    - nothing of these: the variables ``AGENT_URL``, ``AGENT_REGISTRY`` and ``AGENT_CONTEXT`` name it, or the current
      context

    ``session`` names a session to open, or to make. ``existing`` makes none, ``take`` takes it from another client, and
    ``retain`` is for how many seconds it is kept while nothing holds it. ``session_id`` resumes any session.

    ``on_approval`` answers questions about commands, ``on_network`` questions about the network of processes; without
    them the answer is no. They are coroutine functions, or functions, which then run in a thread. The callbacks of
    decisions are called in the event loop.

    ``recovery_timeout`` is for how long a lost connection is recovered. Only the opening is bounded by
    ``connect_timeout`` and ``handshake_timeout``, 10 s each.
    """
    ways = [
        name
        for name, value in (("url", url), ("context", context), ("command", command), ("registry", registry))
        if value
    ]
    if len(ways) > 1:
        raise ValueError(f"{' and '.join(ways)} cannot be used together")
    if command is not None and (isinstance(command, str) or not command):
        raise ValueError("command is a list: the program and its arguments")
    if session is not None and session_id is not None:
        raise ValueError("session and session_id cannot be used together")
    if token is not None and token_file is not None:
        raise ValueError("token and token_file cannot be used together")
    if tls is not None and any((tls_ca, tls_cert, tls_key)):
        raise ValueError("tls cannot be used with tls_ca, tls_cert and tls_key")
    if bool(tls_cert) != bool(tls_key):
        raise ValueError("tls_cert and tls_key must be given together")
    for name, value in (
        ("connect_timeout", connect_timeout),
        ("handshake_timeout", handshake_timeout),
        ("recovery_timeout", recovery_timeout),
    ):
        if value <= 0:
            raise ValueError(f"{name} is {value}, and must be positive")

    for name, callback in (
        ("on_command_decision", on_command_decision),
        ("on_network_decision", on_network_decision),
        ("on_stderr", on_stderr),
    ):
        if inspect.iscoroutinefunction(callback):
            raise TypeError(f"{name} is a coroutine function, and must be a function, because nobody waits for it")

    async def make() -> Config:
        if command is not None:
            argv, cwd = list(command), None if command_cwd is None else os.fspath(command_cwd)
            way = _Way(lambda: Command.start(argv, env=command_env, cwd=cwd, on_stderr=on_stderr), True)
        else:
            target = _target()
            if target.registry is not None:
                way = await _by_registry(target)
            else:
                way = await _by_url(target, headers, tls, connect_timeout)
        return Config(
            dial=way.dial,
            single=way.single,
            client_name=client_name,
            session_id=session_id,
            session_name=session,
            existing=existing,
            take=take,
            retain=retain,
            connect_timeout=connect_timeout,
            handshake_timeout=handshake_timeout,
            recovery_timeout=recovery_timeout,
            callbacks=Callbacks(on_approval, on_command_decision, on_network, on_network_decision),
        )

    def _target() -> _contexts.Target:
        given = _contexts.Token(token, None if token_file is None else os.fspath(token_file))
        if url is None and registry is None:
            found = _contexts.find(context, config)
            if token is None and token_file is None:
                given = found.token
            return _contexts.Target(
                found.url,
                found.registry,
                environment_id or found.environment_id,
                found.transport,
                given,
                _file(tls_ca) or found.tls_ca,
                _file(tls_cert) or found.tls_cert,
                _file(tls_key) or found.tls_key,
                tls_server_name or found.tls_server_name,
                found.context or "found",
            )
        return _contexts.Target(
            url,
            registry,
            environment_id,
            None,
            given,
            _file(tls_ca),
            _file(tls_cert),
            _file(tls_key),
            tls_server_name,
        )

    return Opening(make)


def _file(path: str | os.PathLike[str] | None) -> str | None:
    return None if path is None else os.fspath(path)


class _Way(NamedTuple):
    dial: Callable[[], Awaitable[Connection]]
    single: bool = False


async def _by_url(
    target: _contexts.Target, headers: Mapping[str, str] | None, tls: ssl.SSLContext | None, timeout: float
) -> _Way:
    assert target.url is not None
    files = (target.tls_ca, target.tls_cert, target.tls_key, target.tls_server_name)
    url = _address.full_url(target.url)
    if "://" not in target.url and (any(files) or tls is not None):
        url = url.replace("ws://", "wss://", 1)
    _address.check_url(url)
    if (any(files) or tls is not None) and not url.startswith("wss://"):
        raise ValueError(f"the TLS options need wss://, and {_address.shown_url(url)} has no TLS")
    token = await target.token.read()
    more = [(name, value) for name, value in (headers or {}).items()]
    for name, value in more:
        if any((ord(c) < 32 and c != "\t") or ord(c) == 127 for c in value):
            raise ValueError(f"headers: the value of {name} holds a control character, perhaps a newline at its end")
        if name.lower() in ("host", "connection", "upgrade", "content-length", "transfer-encoding") or (
            name.lower().startswith("sec-websocket-")
        ):
            raise ValueError(f"headers: {name} belongs to the WebSocket")
    plain = url.startswith("ws://") and not _address.is_loopback(url)
    if plain and (more or (token is not None and target.context is None)):
        # Who names a token in a context or a variable together with such a URL intends this.
        raise ValueError(f"a token or headers would be sent in plain text to {_address.shown_url(url)}: use wss://")
    accepted = False

    async def open_one() -> Connection:
        # The certificate is read again each time, because it may be renewed.
        trust = tls if tls is not None or not url.startswith("wss://") else _tls_of(target)
        sent = [*more, ("Authorization", f"Bearer {token}")] if token is not None else more
        return await dial(url, headers=sent, tls=trust, server_name=target.tls_server_name, timeout=timeout)

    async def open_again() -> Connection:
        nonlocal token, accepted
        try:
            connection = await open_one()
        except ConnectError as error:
            if error.status == 401 and token is None and not more:
                raise ConnectError(f"{error} (give token= or token_file=)", final=True, status=401) from error
            if not (accepted and error.status == 401 and target.token.renews):
                raise
            accepted = False
            token = await target.token.read()
            connection = await open_one()
        accepted = True
        return connection

    return _Way(open_again)


def _tls_of(target: _contexts.Target) -> ssl.SSLContext:
    try:
        trust = ssl.create_default_context(cafile=target.tls_ca)
        if target.tls_cert is not None and target.tls_key is not None:
            _contexts.read_secret(target.tls_key)
            trust.load_cert_chain(target.tls_cert, target.tls_key)
    except (OSError, ValueError) as error:
        named = [file for file in (target.tls_ca, target.tls_cert, target.tls_key) if file is not None]
        raise ConnectError(f"{', '.join(named)}: {error}", final=True) from error
    return trust


async def _by_registry(target: _contexts.Target) -> _Way:
    try:
        from ._relay import registry_dialler
    except ImportError as error:
        raise ConnectError(
            f"an agent behind the registry {shown(target.registry)} needs the extra relay: "
            f"pip install 'execagent[relay]' ({error})",
            final=True,
        ) from error
    return _Way(await registry_dialler(target))
