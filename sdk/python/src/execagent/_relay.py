"""Agents behind a registry: a connection through a rendezvous, encrypted from end to end (docs/protocol/remote.md).

A stream outlives its websocket by 30 s, if its executor acknowledges. Records are kept until they are acknowledged, and
sent again as they were sealed: none is sealed twice.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import random
import re
import ssl
import struct
import uuid
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import urlsplit

from . import _address, _frame
from ._errors import ConnectError, ProtocolError, printable, shown
from ._frame import ACK, DATA, HANDSHAKE, HEARTBEAT, RESET, RESUME, Frame, FrameError
from ._guards import is_table
from ._noise import TAG, Cipher, Identity, Initiator, NoiseError, PublicKey, prologue
from ._queue import Changes
from ._record import MAX_MESSAGE, Record
from ._transport import Connection, EndError, WebSocket, dial

if TYPE_CHECKING:
    from ._contexts import Target

_PROFILE = "noise_hybrid_ik_v1"
_SUITE = "Noise_hybridIK_X25519+MLKEM768_AESGCM_SHA256"
_MAX_ANSWER = 1 << 20
_MAX_AUTHORIZATION = 4096
_CALL_TIMEOUT = 10.0
_HANDSHAKE_TIMEOUT = 10.0
_REFUSAL_PATIENCE = 10.0  # how long handshakes are repeated after the executor refused the first one
_GRACE = 30.0  # how long a stream lives without a websocket

_MAX_RECORD = 61_440  # bytes of plaintext
_MAX_KEPT = 4 << 20  # bytes of records that are not acknowledged
_MAX_FRAME = 128 << 10
_MAX_UNREAD = 1 << 20  # bytes that wait for the reader
_MAX_EARLY = 64  # records before their turn
_MAX_EARLY_BYTES = 1 << 20
_ACK_RECORDS, _ACK_BYTES, _ACK_DELAY = 32, 256 << 10, 0.02
_RESEND_AFTER, _MAX_RESEND_AFTER = 0.5, 5.0
_RESENT = 32  # records that are sent again at once
_ENVIRONMENT = re.compile(r"[A-Za-z0-9_-]{1,256}")


class _Answer(NamedTuple):
    """What the registry says of an executor."""

    url: str
    registration_id: str
    executor: PublicKey
    authorization: str


class _RefusedError(Exception):
    """The executor has refused a handshake, because it is busy or the harness may not connect."""


async def registry_dialler(target: Target) -> Callable[[], Awaitable[Connection]]:
    """Return what opens connections to the agent of a target."""
    assert target.registry is not None
    if target.transport == "direct":
        raise ConnectError(
            "the direct transport is not supported: it has no encryption from end to end; use noise", final=True
        )
    environment = target.environment_id
    if environment is None or not _ENVIRONMENT.fullmatch(environment):
        raise ValueError(f"environment_id is {shown(environment)}, and must be 1 to 256 of A-Z, a-z, 0-9, _ and -")
    parts = urlsplit(target.registry)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username is not None:
        raise ValueError("registry is not a URL: write https://HOST, or http:// for this machine")
    if parts.scheme == "http" and not _address.is_loopback(target.registry):
        raise ValueError("registry needs https://, because the token would be sent in plain text")
    token = await target.token.read()
    if token is None:
        raise ValueError("a registry needs a token: token=, token_file=, or AGENT_REGISTRY_TOKEN")
    return _Dialler(target, environment, token).dial


class _Dialler:
    """A harness: one identity, and the key of the executor of its first connection."""

    def __init__(self, target: Target, environment: str, token: str) -> None:
        assert target.registry is not None
        self._base = target.registry.rstrip("/")
        self._environment = environment
        self._target = target
        self._token = token
        self._accepted = False  # the token, the last time
        self._identity = Identity()
        self._pinned: PublicKey | None = None

    async def dial(self) -> Connection:
        """Open a connection. Failures that pass by themselves are repeated, as long as the caller waits."""
        attempt, refused_since = 0, 0.0
        loop = asyncio.get_running_loop()
        last: Exception | None = None
        try:
            while True:
                try:
                    return await self._open()
                except _RefusedError as error:
                    refused_since = refused_since or loop.time()
                    if loop.time() - refused_since > _REFUSAL_PATIENCE:
                        raise ConnectError(str(error)) from error
                    last = error
                except ConnectError as error:
                    if error.final:
                        raise
                    last = error
                base = min(0.5 * 2 ** min(attempt, 4), 5.0)
                attempt += 1
                await asyncio.sleep(base * (1 + random.random() / 2))
        except asyncio.CancelledError as cancelled:
            if last is not None:
                cancelled.add_note(str(last))  # for whom the time was too short
            raise

    async def ask(self) -> tuple[_Answer, WebSocket]:
        """Ask the registry for the executor, and open a websocket to the rendezvous."""
        answer = await self._connect()
        if self._pinned is not None and answer.executor != self._pinned:
            raise ConnectError("another executor has taken the place of the one that this session is at", final=True)
        url = answer.url
        if not url.startswith("wss://") and not (url.startswith("ws://") and _address.is_loopback(url)):
            raise ConnectError("the registry names a rendezvous without TLS", final=True)
        trust = self._trust() if url.startswith("wss://") else None
        try:
            ws = await dial(url, tls=trust, timeout=_CALL_TIMEOUT, max_size=_frame.MAX_MESSAGE)
        except ConnectError as error:
            status = error.status
            final = status is not None and 400 <= status < 500 and status not in (408, 410, 429)
            raise ConnectError(f"connecting to the rendezvous: {error}", final=final, status=status) from error
        return answer, ws

    async def _open(self) -> Connection:
        answer, ws = await self.ask()
        stream_id = str(uuid.uuid4())
        try:
            async with asyncio.timeout(_HANDSHAKE_TIMEOUT):
                sending, receiving, acknowledges = await self._shake_hands(ws, answer, stream_id)
        except TimeoutError as error:
            ws.abort()
            raise ConnectError("the executor did not answer the handshake in time") from error
        except EndError as error:
            ws.abort()
            raise ConnectError(f"the rendezvous has ended the connection: {error}") from error
        except (FrameError, NoiseError) as error:
            ws.abort()
            raise ConnectError(f"handshake with the executor: {error}", final=True) from error
        except BaseException:
            ws.abort()
            raise
        self._pinned = answer.executor
        return Stream(self, answer, stream_id, ws, sending, receiving, acknowledges)

    async def _shake_hands(self, ws: WebSocket, answer: _Answer, stream_id: str) -> tuple[Cipher, Cipher, bool]:
        place = prologue(self._environment, answer.registration_id, stream_id)
        initiator = Initiator(self._identity, answer.executor, place, answer.authorization.encode())
        name = stream_id.encode()
        await ws.write_binary(_frame.encode(Frame(name, RESUME)))
        # The bit says that this end acknowledges.
        await ws.write_binary(_frame.encode(Frame(name, HANDSHAKE, ack_bits=1, payload=initiator.message)))
        while True:
            frame = _read_frame(await ws.read_binary(), name)
            if frame is None:
                continue
            if frame.body == HANDSHAKE:
                to, back = initiator.finish(frame.payload)
                return Cipher(to), Cipher(back), frame.acknowledges
            if frame.body == DATA:
                raise FrameError("data has come before the answer to the handshake")
            if frame.body == RESET:
                raise _RefusedError(f"the executor refuses the handshake: {_reason(frame)}")

    def _trust(self) -> ssl.SSLContext:
        try:
            return ssl.create_default_context(cafile=self._target.tls_ca)
        except OSError as error:
            raise ConnectError(f"{self._target.tls_ca}: {error}", final=True) from error

    async def _connect(self) -> _Answer:
        key = self._identity.public
        body = json.dumps(
            {
                "harness_public_key": {
                    "suite": _SUITE,
                    "x25519_public_key": base64.b64encode(key.x25519).decode(),
                    "mlkem768_public_key": base64.b64encode(key.mlkem).decode(),
                }
            }
        ).encode()
        url = f"{self._base}/cloud/environment/{self._environment}/connect"
        try:
            async with asyncio.timeout(_CALL_TIMEOUT):
                status, answer = await self._post(url, body)
        except TimeoutError as error:
            raise ConnectError(f"the registry did not answer within {_CALL_TIMEOUT:g} s") from error
        except ssl.SSLError as error:
            raise ConnectError(f"the registry: {error}", final=True) from error
        except (OSError, EOFError) as error:
            raise ConnectError(f"the registry cannot be reached: {error}") from error
        if status == 401 and self._accepted and self._target.token.renews:
            self._accepted = False
            self._token = await self._target.token.read() or self._token
            return await self._connect()
        if not 200 <= status < 300:
            # It may repeat what it got, and the error goes to logs.
            code, text = _registry_error(answer.replace(self._token.encode(), b"[redacted]"))
            offline = status == 409 and code == "environment_offline"
            passing = offline or status in (408, 429) or status >= 500
            raise ConnectError(
                "no executor is connected to the environment"
                if offline
                else f"the registry refuses with {status}: {text}",
                final=not passing,
                status=status,
            )
        self._accepted = True
        try:
            r = Record("the answer of the registry", json.loads(answer))
            if r.text("environment_id") != self._environment:
                raise ProtocolError(f"the registry answers about {shown(r.text('environment_id'))}")
            if r.text("security_profile") != _PROFILE:
                raise ProtocolError(f"the registry offers {shown(r.text('security_profile'))}, and not {_PROFILE}")
            texts = [r.text(name).strip() for name in ("url", "executor_registration_id", "harness_key_authorization")]
            if not all(texts) or len(texts[2].encode()) > _MAX_AUTHORIZATION:
                raise ProtocolError("the answer of the registry has an empty member, or a long authorization")
            return _Answer(
                r.text("url"), r.text("executor_registration_id"), _key_of(r), r.text("harness_key_authorization")
            )
        except (ValueError, RecursionError, ProtocolError) as error:
            raise ConnectError(f"the registry broke the protocol: {error}", final=True) from error

    async def _post(self, url: str, body: bytes) -> tuple[int, bytes]:
        """Send a POST, and return the status and the content. Redirects are not followed."""
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        host, port = parts.hostname or "", parts.port or (443 if secure else 80)
        trust = self._trust() if secure else None
        proxy = _address.proxy_of(url.replace("http", "ws", 1))
        if proxy is None:
            reader, writer = await asyncio.open_connection(host, port, ssl=trust, limit=_MAX_ANSWER)
        else:
            via = urlsplit(proxy)
            if via.scheme != "http":
                raise ConnectError(
                    f"the registry is reached only by a proxy with http://, not {via.scheme}://", final=True
                )
            reader, writer = await asyncio.open_connection(via.hostname, via.port or 80, limit=_MAX_ANSWER)
        try:
            if proxy is not None:
                writer.write(f"CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n\r\n".encode())
                if not re.match(rb"HTTP/1\.[01] 2\d\d", await reader.readuntil(b"\r\n\r\n")):
                    raise OSError("the proxy refuses the connection")
                if trust is not None:
                    await writer.start_tls(trust, server_hostname=host)
            head = (
                f"POST {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nAuthorization: Bearer {self._token}\r\n"
                f"Content-Type: application/json\r\nAccept: */*\r\nContent-Length: {len(body)}\r\n"
                "Connection: close\r\n\r\n"
            )
            writer.write(head.encode() + body)
            await writer.drain()
            return await _read_answer(reader)
        finally:
            writer.close()


async def _read_answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.LimitOverrunError:
        raise OSError("the head of the answer is too long") from None
    status = re.match(rb"HTTP/1\.[01] (\d{3})", head)
    if status is None:
        raise OSError("the answer is not HTTP")
    size = re.search(rb"(?i)\r\ncontent-length: *(\d{1,9}) *\r\n", head)
    if re.search(rb"(?i)\r\ntransfer-encoding: *chunked *\r\n", head):
        content = b""
        while True:
            length = int((await reader.readline()).split(b";")[0] or b"x", 16)
            if length > _MAX_ANSWER - len(content):
                raise OSError("the answer is too long")
            content += await reader.readexactly(length)
            await reader.readline()
            if length == 0:
                break
    elif size is not None:
        if int(size[1]) > _MAX_ANSWER:
            raise OSError("the answer is too long")
        content = await reader.readexactly(int(size[1]))
    else:
        content = await reader.read(_MAX_ANSWER)
    return int(status[1]), content


def _registry_error(answer: bytes) -> tuple[str, str]:
    try:
        value: object = json.loads(answer)
        error: object = value.get("error") if is_table(value) else None
        if is_table(error):
            return str(error.get("code")), printable(str(error.get("message")))[:512]
    except (ValueError, RecursionError):
        pass
    return "", printable(answer[:512].decode(errors="replace"))


def _key_of(r: Record) -> PublicKey:
    key = r.record("executor_public_key")
    if key.text("suite") != _SUITE:
        raise ProtocolError(f"the key of the executor is of the suite {shown(key.text('suite'))}")
    try:
        found = PublicKey(
            binascii.a2b_base64(key.text("x25519_public_key"), strict_mode=True),
            binascii.a2b_base64(key.text("mlkem768_public_key"), strict_mode=True),
        )
    except ValueError:
        raise ProtocolError("the key of the executor is not base64") from None
    if (len(found.x25519), len(found.mlkem)) != (32, 1184):
        raise ProtocolError("the key of the executor has another length")
    return found


def _read_frame(message: bytes, stream: bytes) -> Frame | None:
    """Read a frame of a stream; None: it is of another one."""
    try:
        frame = _frame.decode(message)
    except FrameError:
        if stream in message[:128]:
            raise
        return None
    return frame if frame.stream_id == stream else None


def _reason(frame: Frame) -> str:
    return printable(frame.reason.decode(errors="replace"))[:128]


class _Kept(NamedTuple):
    seq: int
    message: bytes


class Stream:
    """A connection to an executor: one Noise stream, on one websocket after another."""

    def __init__(
        self,
        dialler: _Dialler,
        answer: _Answer,
        stream_id: str,
        ws: WebSocket,
        sending: Cipher,
        receiving: Cipher,
        acknowledges: bool,
    ) -> None:
        self._dialler = dialler
        self._answer = answer
        self._id = stream_id.encode()
        self._ws: WebSocket | None = ws
        self._sending = sending
        self._receiving = receiving
        self._changes = Changes()
        self._end: str | None = None
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._closing = False
        # What goes.
        self._turn = asyncio.Lock()  # of the writer of a whole message
        self._writing = asyncio.Lock()  # held while frames are sent in their order
        self._proven = acknowledges  # the peer acknowledges
        self._next = 0
        self._acked = 0  # records below it are acknowledged
        self._kept: deque[_Kept] = deque()
        self._kept_bytes = 0
        self._progress = 0.0
        self._patience = _RESEND_AFTER
        # What comes.
        self._taken = 0  # records in order
        self._early: dict[int, bytes] = {}
        self._told = 0
        self._untold_bytes = 0
        self._ack_timer: asyncio.TimerHandle | None = None
        self._ack_due = self._acking = False
        self._part = bytearray()  # of a message with its length
        self._messages: deque[bytes] = deque()
        self._unread = 0
        self._loop = asyncio.get_running_loop()
        self._tasks = {asyncio.create_task(self._run(ws)), asyncio.create_task(self._tend())}

    # What a client calls.

    @property
    def closed(self) -> bool:
        return self._end is not None

    async def read(self) -> bytes:
        while not self._messages:
            if self._end is not None:
                raise EndError(self._end)
            await self._changes.wait()
        message = self._messages.popleft()
        self._unread -= len(message)
        self._changes.notify()
        return message

    async def write(self, message: str) -> None:
        # A caller that is cancelled must not leave half a message.
        await asyncio.shield(asyncio.ensure_future(self._write(message.encode())))

    def abort(self) -> None:
        self._finish("the connection was closed here")

    async def close(self) -> None:
        self._closing = True
        ws, self._ws = self._ws, None
        if ws is not None and not ws.closed:
            try:
                async with asyncio.timeout(1):
                    await ws.write_binary(_frame.encode(Frame(self._id, RESET, reason=b"closed")))
                    await ws.close()
            except (EndError, TimeoutError):
                pass
            ws.abort()
        self._finish("the connection was closed here")
        current = asyncio.current_task()
        await asyncio.gather(*(task for task in self._tasks if task is not current), return_exceptions=True)

    def _finish(self, reason: str) -> None:
        if self._end is None:
            self._end = reason
            self.gone.set_result(None)
            self._changes.notify()
        self._kept.clear()
        if self._ack_timer is not None:
            self._ack_timer.cancel()
        ws, self._ws = self._ws, None
        if ws is not None:
            ws.abort()
        for task in self._tasks:
            task.cancel()

    # Websockets.

    async def _run(self, ws: WebSocket) -> None:
        """Serve one websocket after another, until the stream is over."""
        try:
            while True:
                lost = await self._serve(ws)
                self._ws = None
                ws.abort()
                if not self._proven:
                    self._finish(f"the connection to the rendezvous is lost: {lost}")
                    return
                try:
                    async with asyncio.timeout(_GRACE):
                        ws = await self._again()
                except TimeoutError:
                    self._finish(f"the connection to the rendezvous is lost: {lost}")
                    return
                try:
                    await self._resume(ws)
                except asyncio.CancelledError:
                    ws.abort()  # _finish does not know it yet
                    raise
        except (ConnectError, FrameError, NoiseError, ProtocolError, _RefusedError) as error:
            self._finish(str(error))

    async def _again(self) -> WebSocket:
        """Open another websocket to the same registration of the same executor."""
        pause = 0.0
        while True:
            await asyncio.sleep(pause)
            pause = min(max(0.1, 2 * pause), 5) * random.uniform(0.5, 1)
            try:
                answer, ws = await self._dialler.ask()
            except ConnectError as error:
                if error.final:
                    raise
                continue
            if (answer.registration_id, answer.executor) != (self._answer.registration_id, self._answer.executor):
                ws.abort()
                raise ConnectError(
                    "another executor has taken the place of the one that this session is at", final=True
                )
            return ws

    async def _resume(self, ws: WebSocket) -> None:
        """Go on over a new websocket: first a resume, then everything that is not acknowledged, then new records."""
        async with self._writing:
            try:
                ack, bits = self._acknowledgement()
                await ws.write_binary(_frame.encode(Frame(self._id, RESUME, ack, bits, next_seq=self._next)))
                await self._repeat(ws, len(self._kept))
            except EndError:
                pass  # the reader of the websocket notices it, too
            self._ws = ws
            self._patience, self._progress = _RESEND_AFTER, self._loop.time()
        self._changes.notify()

    async def _repeat(self, ws: WebSocket, count: int) -> None:
        try:
            for kept in list(self._kept)[:count]:
                await ws.write_binary(kept.message)
        except EndError:
            pass  # the reader of the websocket notices it, too

    async def _serve(self, ws: WebSocket) -> str:
        """Take the frames of a websocket, and return why no more come."""
        while True:
            try:
                frame = _read_frame(await ws.read_binary(), self._id)
            except EndError as error:
                return str(error)
            if frame is None or frame.body == HEARTBEAT:
                continue
            if frame.body == RESET:
                raise _RefusedError(f"the executor has ended the stream: {_reason(frame)}")
            if frame.body == HANDSHAKE:
                raise FrameError("a second answer to the handshake has come")
            if frame.acknowledges:
                self._acknowledged(frame.ack, frame.ack_bits)
            if frame.body == DATA:
                self._data(frame.seq, frame.payload)
            elif frame.body == RESUME and self._proven:
                # The reader goes on meanwhile, because the peer may wait until it does.
                self._spawn(self._repeat(ws, len(self._kept)))
            # The websocket carries no other stream, so it is not read while there is no room, unless it ends.
            while self._unread > _MAX_UNREAD and self._end is None and not ws.gone.done():
                await self._changes.wait(ws.gone)

    # What comes.

    def _data(self, seq: int, payload: bytes) -> None:
        if seq < self._taken or seq in self._early:
            self._owe(True)  # the peer has not seen the acknowledgement
            return
        if seq != self._taken:
            held = sum(len(data) for data in self._early.values())
            if seq - self._taken <= _MAX_EARLY and held + len(payload) <= _MAX_EARLY_BYTES:
                self._early[seq] = payload
            self._owe(True)
            return
        data: bytes | None = payload
        while data is not None:
            self._record(data)
            self._taken += 1
            self._untold_bytes += len(data)
            data = self._early.pop(self._taken, None)
        first = self._told == 0
        self._owe(first or self._taken - self._told >= _ACK_RECORDS or self._untold_bytes >= _ACK_BYTES)

    def _record(self, payload: bytes) -> None:
        if not TAG <= len(payload) <= _MAX_RECORD + TAG:
            raise NoiseError(f"a record has {len(payload)} bytes")
        self._part += self._receiving.open(payload)
        while len(self._part) >= 4:
            size = int.from_bytes(self._part[:4], "big")
            if not 0 < size <= MAX_MESSAGE:
                raise NoiseError(f"a message has {size} bytes")
            if len(self._part) < 4 + size:
                break
            message = bytes(memoryview(self._part)[4 : 4 + size])
            del self._part[: 4 + size]
            self._messages.append(message)
            self._unread += size
            self._changes.notify()

    def _acknowledgement(self) -> tuple[int, int]:
        if self._taken == 0:
            return 0, 0
        bits = sum(1 << (seq - self._taken) for seq in self._early if seq - self._taken < 32)
        self._told, self._untold_bytes = self._taken, 0
        return self._taken - 1, bits

    def _owe(self, now: bool) -> None:
        """Let the peer know what has come: now, or within 20 ms."""
        if now:
            if self._ack_timer is not None:
                self._ack_timer.cancel()
                self._ack_timer = None
            self._ack_due = True
            if not self._acking:
                self._acking = True
                self._spawn(self._send_acks())
        elif self._ack_timer is None:
            self._ack_timer = self._loop.call_later(_ACK_DELAY, self._late_ack)

    def _late_ack(self) -> None:
        self._ack_timer = None
        if self._taken > self._told:
            self._owe(True)

    async def _send_acks(self) -> None:
        try:
            while self._ack_due and self._ws is not None and self._taken > 0:
                self._ack_due = False
                ack, bits = self._acknowledgement()
                await self._ws.write_binary(_frame.encode(Frame(self._id, ACK, ack, bits)))
        except EndError:
            pass
        finally:
            self._acking = False

    def _spawn(self, work: Awaitable[None]) -> None:
        async def run() -> None:
            await work

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # What goes.

    async def _write(self, message: bytes) -> None:
        if not 0 < len(message) <= MAX_MESSAGE:
            raise ValueError(f"a message has {len(message)} bytes, and may have 1 to {MAX_MESSAGE}")
        async with self._turn:
            data = memoryview(struct.pack(">I", len(message)) + message)
            for at in range(0, len(data), _MAX_RECORD):
                await self._send(bytes(data[at : at + _MAX_RECORD]))

    def _must_wait(self) -> bool:
        """Whether the peer must acknowledge first, or there is no websocket and nothing may be kept for the next."""
        return self._kept_bytes > _MAX_KEPT - _MAX_FRAME if self._proven else self._ws is None

    async def _send(self, data: bytes) -> None:
        """Seal and send a record. Only the writer with the turn does."""
        while self._end is None and self._must_wait():
            await self._changes.wait()
        async with self._writing:
            if self._end is not None:
                raise EndError(self._end)
            ack, bits = self._acknowledgement() if self._taken > 1 else (0, 0)
            sealed = self._sending.seal(data)
            message = _frame.encode(Frame(self._id, DATA, ack, bits, seq=self._next, payload=sealed))
            if self._proven:
                if not self._kept:
                    self._patience, self._progress = _RESEND_AFTER, self._loop.time()
                self._kept.append(_Kept(self._next, message))
                self._kept_bytes += len(message)
            self._next += 1
            ws = self._ws
            if ws is None:
                return
            try:
                await ws.write_binary(message)
            except EndError:
                if not self._proven:
                    raise

    def _acknowledged(self, ack: int, bits: int) -> None:
        if ack >= self._next and (ack or bits):
            return  # records that were never sent
        self._proven = True
        moved = ack + 1 > self._acked
        if moved:
            self._acked = ack + 1
            while self._kept and self._kept[0].seq < self._acked:
                self._kept_bytes -= len(self._kept.popleft().message)
            self._patience, self._progress = _RESEND_AFTER, self._loop.time()
            self._changes.notify()

    async def _tend(self) -> None:
        """Send records again for which no acknowledgement comes."""
        while True:
            await asyncio.sleep(_RESEND_AFTER / 2)
            ws = self._ws
            if ws is None or not self._kept or self._loop.time() - self._progress < self._patience:
                continue
            self._patience = min(2 * self._patience, _MAX_RESEND_AFTER)
            self._progress = self._loop.time()
            await self._repeat(ws, _RESENT)
