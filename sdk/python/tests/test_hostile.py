"""Servers that break the rules: the client ends with an error that names what was wrong, and keeps its memory."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
import sys
import threading
import time
import tracemalloc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

import execagent
from execagent import _core, _link, _tar, _transport
from execagent._record import decode

from .conftest import ENOUGH, until

Script = Callable[["Conversation"], Awaitable[None]]

INFO: dict[str, Any] = {
    "shell": {"name": "sh", "path": "/bin/sh"},
    "executorVersion": "0",
    "providerId": "x",
    "cwd": "file:///w",
    "userHomeDir": "file:///h",
    "platformOs": "linux",
    "prependPathDirs": [],
    "temporaryDirectories": [],
    "tempDir": "file:///tmp",
    "capabilities": {
        "processCloseStdin": True,
        "processList": True,
        "fsWatch": True,
        "socketForward": True,
        "namedSessions": True,
    },
}


class Conversation:
    """One connection of a client to a scripted server."""

    def __init__(self, ws: ServerConnection) -> None:
        self.ws = ws
        self._requests: list[dict[str, Any]] = []

    async def _message(self) -> dict[str, Any]:
        message: dict[str, Any] = json.loads(await self.ws.recv())
        return message

    async def request(self, method: str | None = None) -> dict[str, Any]:
        """Return the next request."""
        while True:
            message = self._requests.pop(0) if self._requests else await self._message()
            if "id" in message and (method is None or message.get("method") == method):
                return message

    async def reply(self) -> dict[str, Any]:
        """Return the next answer of the client."""
        while True:
            message = await self._message()
            if "method" not in message:
                return message
            self._requests.append(message)

    async def send(self, **message: Any) -> None:
        await self.ws.send(json.dumps(message))

    async def raw(self, text: str | bytes) -> None:
        await self.ws.send(text)

    async def tell(self, method: str, **params: Any) -> None:
        await self.send(method=method, params=params)

    async def answer(self, method: str, result: Any) -> dict[str, Any]:
        """Wait for a request, and answer it."""
        request = await self.request(method)
        await self.send(id=request["id"], result=result)
        return request

    async def handshake(self) -> None:
        await self.answer("initialize", {"sessionId": "s", "environmentInfo": INFO})
        await self.ws.recv()

    async def start(self) -> str:
        """Let the client start a process."""
        request = await self.answer("process/start", {"processId": "p", "sandboxType": "none"})
        process_id: str = request["params"]["processId"]
        return process_id


@asynccontextmanager
async def server(script: Script, *, once: bool = False) -> AsyncIterator[str]:
    """A server that follows a script on each connection; with once, only on the first."""
    count = 0

    async def handler(ws: ServerConnection) -> None:
        nonlocal count
        count += 1
        if once and count > 1:
            await ws.close()
            return
        try:
            await script(Conversation(ws))
            await ws.wait_closed()
        except ConnectionClosed:
            pass

    async with serve(
        handler, "127.0.0.1", 0, compression=None, max_size=None, ping_interval=None, close_timeout=0.1
    ) as listening:
        yield f"ws://127.0.0.1:{next(iter(listening.sockets)).getsockname()[1]}"


@asynccontextmanager
async def raw_server(data: bytes, *, repeat: bool = False) -> AsyncIterator[str]:
    """A server that is none."""

    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            while True:
                writer.write(data)
                await writer.drain()
                if not repeat:
                    break
            await reader.read()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    listening = await asyncio.start_server(handler, "127.0.0.1", 0)
    async with listening:
        yield f"ws://127.0.0.1:{listening.sockets[0].getsockname()[1]}"


def connect(url: str, **options: Any) -> execagent.Opening:
    return execagent.connect(url, handshake_timeout=2, connect_timeout=2, recovery_timeout=0.3, **options)


def test_many_entries() -> None:
    entries = [{"fileName": f"{n}", "isDirectory": False, "isFile": True} for n in range(100_000)]
    assert len(decode(json.dumps({"id": 1, "result": {"entries": entries}}).encode())["result"]["entries"]) == 100_000


async def nothing_left() -> None:
    for _ in range(300):
        left = [
            task
            for task in asyncio.all_tasks()
            if task is not asyncio.current_task() and "execagent" in repr(task.get_coro())
        ]
        if not left:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(left)


DEEP = '{"id":1,"result":' + "[" * 100_000 + "]" * 100_000 + "}"
MANY = '{"id":1,"result":[' + "[]," * 300_000 + "1]}"
OPEN = "," * 300_000 + '"' + '\\"' * 1_000_000  # a text without an end, in which a text could begin anywhere

FIRST: dict[str, tuple[str | bytes | dict[str, Any], str]] = {
    "garbage": ("\x1b[31mboo", "not JSON"),
    "not UTF-8": (b"\xff\xfe", "not UTF-8"),
    "empty": ("", "not JSON"),
    "a list": ("[]", "not a JSON object"),
    "deep": (DEEP, "nested too deeply"),
    "many values": (MANY, "more than 262144 values"),
    "many values and an open text": (OPEN, "more than 287500 values"),
    "a long number": ('{"id":1,"result":{"sessionId":' + "9" * 5000 + "}}", "not JSON"),
    "no members": ({}, "neither a method nor a result"),
    "another id": ({"id": 77, "result": {}}, "the id 77, which no request has"),
    "id null": ({"id": None, "result": {}}, "the id None"),
    "id true": ({"id": True, "result": {}}, "the id True"),
    "id -1": ({"id": -1, "error": {"code": -32600, "message": "what?\x1b[0m"}}, "did not understand"),
    "result null": ({"id": 1, "result": None}, "None is not an object"),
    "session id missing": ({"id": 1, "result": {}}, "sessionId is missing"),
    "session id a number": ({"id": 1, "result": {"sessionId": 5}}, "sessionId is 5, and not a text"),
    "session id empty": ({"id": 1, "result": {"sessionId": ""}}, "has no id"),
    "info a list": ({"id": 1, "result": {"sessionId": "s", "environmentInfo": []}}, "is not an object"),
    "info empty": ({"id": 1, "result": {"sessionId": "s", "environmentInfo": {}}}, "shell"),
    "error a text": ({"id": 1, "error": "no"}, "is not an object"),
    "error without code": ({"id": 1, "error": {"message": "no"}}, "code is missing"),
    "method a number": ({"method": 5}, "the method 5"),
    "params a list": ({"method": "process/closed", "params": []}, "is not an object"),
    "seq a fraction": ({"method": "process/closed", "params": {"processId": "p", "seq": 1.5}}, "seq is 1.5"),
    "seq true": ({"method": "process/closed", "params": {"processId": "p", "seq": True}}, "seq is True"),
    "seq too large": ({"method": "process/closed", "params": {"processId": "p", "seq": 1 << 64}}, "an integer from 1"),
    "seq 0": ({"method": "process/closed", "params": {"processId": "p", "seq": 0}}, "an integer from 1"),
    "exit code a text": (
        {"method": "process/exited", "params": {"processId": "p", "seq": 1, "exitCode": "0"}},
        "exitCode is '0'",
    ),
    "chunk no base64": (
        {"method": "process/output", "params": {"processId": "p", "seq": 1, "stream": "stdout", "chunk": "a"}},
        "not base64",
    ),
    "another stream": (
        {"method": "process/output", "params": {"processId": "p", "seq": 1, "stream": "std\x1b[1m", "chunk": ""}},
        "is not known",
    ),
    "a request twice": ({"id": {}, "method": "x"}, "a request has the id"),
    "a request whose id is no text": ({"id": "\ud800", "method": "x"}, "a request has the id"),
    "taken": ({"method": "session/taken", "params": {"clientName": "\x1b]0;evil\x07"}}, "taken"),
}


@pytest.mark.parametrize("name", FIRST)
async def test_first_message(name: str) -> None:
    message, want = FIRST[name]

    async def script(c: Conversation) -> None:
        await c.request("initialize")
        await c.raw(message if isinstance(message, (str, bytes)) else json.dumps(message))

    async with server(script) as url:
        with pytest.raises(execagent.AgentError, match=want) as caught:
            await connect(url)
        text = str(caught.value)
        assert len(text) < 2000
        assert not any(ord(c) < 32 or 127 <= ord(c) < 160 for c in text), text
    await nothing_left()


async def test_silence() -> None:
    async def script(c: Conversation) -> None:
        await c.request("initialize")

    async with server(script) as url:
        with pytest.raises(execagent.ConnectTimeoutError, match="handshake within 0.2 s") as caught:
            await execagent.connect(url, handshake_timeout=0.2)
        assert caught.value.retryable and isinstance(caught.value, TimeoutError)
    await nothing_left()


UPGRADE = b"HTTP/1.1 101 Switching Protocols\r\n\r\n"


@pytest.mark.parametrize(
    ("data", "want", "final"),
    [
        (b"SSH-2.0-x\r\n\r\n", "valid HTTP response", False),
        (b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\n\x1b[0m", "status 404", False),
        (b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 2\r\n\r\nno", "status 401: no", True),
        (b"HTTP/1.1 302 Found\r\nlocation: ws://127.0.0.1:9/\r\ncontent-length: 0\r\n\r\n", "status 302", False),
        (UPGRADE, "header", False),
        (b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 100_000 + b"\r\n\r\n", "valid HTTP response|too long|status", False),
    ],
    ids=["ssh", "404", "401", "redirect", "bad upgrade", "long header"],
)
async def test_no_agent(data: bytes, want: str, final: bool) -> None:
    async with raw_server(data) as url:
        with pytest.raises(execagent.ConnectError, match=want) as caught:
            await connect(url)
        assert caught.value.final is final and caught.value.retryable is not final
        assert "\x1b" not in str(caught.value)
    await nothing_left()


async def test_token_that_comes_back() -> None:
    text = b"no Bearer very-secret, x-key: other"
    async with raw_server(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: %d\r\n\r\n%s" % (len(text), text)) as url:
        with pytest.raises(execagent.ConnectError, match="status 401: no Bearer") as caught:
            await connect(url, token="very-secret", headers={"x-key": "other"})
    assert "secret" not in str(caught.value) and "other" not in str(caught.value)
    with pytest.raises(ValueError, match="the value of x-key") as wrong:
        await connect("ws://127.0.0.1:1", headers={"x-key": "secret\n"})
    assert "secret" not in str(wrong.value)


async def test_endless_http() -> None:
    async with raw_server(b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 100, repeat=True) as url:
        with pytest.raises(execagent.ConnectError):
            await connect(url)


async def test_nobody_listens() -> None:
    with pytest.raises(execagent.ConnectError, match="ws://127.0.0.1:1"):
        await connect("ws://127.0.0.1:1/?secret=x")


async def started(c: Conversation) -> str:
    await c.handshake()
    return await c.start()


LATER: dict[str, tuple[list[dict[str, Any]], str]] = {
    "closed without exit": ([{"m": "process/closed", "seq": 1}], "has not exited"),
    "exited twice": (
        [{"m": "process/exited", "seq": 1, "exitCode": 0}, {"m": "process/exited", "seq": 2, "exitCode": 0}],
        "exited twice",
    ),
    "bad base64": ([{"m": "process/output", "seq": 1, "stream": "stdout", "chunk": "@@@@"}], "not base64"),
}


@pytest.mark.parametrize("name", LATER)
async def test_later_message(name: str) -> None:
    messages, want = LATER[name]

    async def script(c: Conversation) -> None:
        process_id = await started(c)
        for message in messages:
            params = {key: value for key, value in message.items() if key != "m"}
            await c.tell(message["m"], processId=process_id, **params)
        while True:
            request = await c.request()
            await c.send(id=request["id"], result={})

    async with server(script, once=True) as url, connect(url) as agent:
        with pytest.raises(execagent.AgentError, match=want):
            await agent.run(["x"])
    await nothing_left()


READS: dict[str, tuple[Any, str]] = {
    "wrong type": ("text", "is not an object"),
    "nextSeq 0": ({"chunks": [], "nextSeq": 0, "exited": False, "closed": False}, "nextSeq is 0"),
    "no progress": ({"chunks": [], "nextSeq": 1, "exited": False, "closed": False}, "cannot be read"),
    "a gap": ({"chunks": [], "nextSeq": 9, "exited": False, "closed": False}, "no longer has"),
    "exit without code": ({"chunks": [], "nextSeq": 2, "exited": True, "closed": False}, "its code is missing"),
    "failure": ({"chunks": [], "nextSeq": 2, "failure": "\x1b[1mbroken"}, "failed"),
    "chunks out of order": (
        {
            "chunks": [{"seq": 2, "stream": "stdout", "chunk": ""}, {"seq": 1, "stream": "stdout", "chunk": ""}],
            "nextSeq": 3,
        },
        "comes after",
    ),
    "chunk beyond the end": ({"chunks": [{"seq": 7, "stream": "stdout", "chunk": ""}], "nextSeq": 3}, "comes after"),
    "closed and more": (
        {"chunks": [{"seq": 2, "stream": "stdout", "chunk": ""}], "nextSeq": 3, "closed": True},
        "contradicts itself|no longer has",
    ),
}


@pytest.mark.parametrize("name", READS)
async def test_read(name: str) -> None:
    """A process whose missed events cannot be read fails alone, and is killed."""
    result, want = READS[name]
    killed = asyncio.Event()

    async def script(c: Conversation) -> None:
        process_id = await started(c)
        # Event 1 is missing, so the client asks.
        await c.tell("process/output", processId=process_id, seq=2, stream="stdout", chunk="aGk=")
        while True:
            request = await c.request()
            if request["method"] == "process/read":
                await c.send(id=request["id"], result=result)
            elif request["method"] == "process/terminate":
                killed.set()
                await c.send(id=request["id"], result={"running": True})
            else:
                await c.send(id=request["id"], result={"status": "ready"})

    async with server(script) as url, connect(url) as agent:
        process = await agent.spawn(["x"])
        with pytest.raises(execagent.AgentError, match=want) as caught:
            async with asyncio.timeout(10):
                await process.communicate()
        assert "\x1b" not in str(caught.value)
        await asyncio.wait_for(killed.wait(), ENOUGH)
        assert await agent.status() == "ready"
    await nothing_left()


async def test_unknown_messages_are_ignored() -> None:
    async def script(c: Conversation) -> None:
        await c.handshake()
        await c.tell("no/such", x=1)
        await c.tell("process/output", processId="nobody", seq=1, stream="stdout", chunk="aGk=")
        await c.send(id="q", method="no/such", params={})
        refused = await c.reply()
        assert refused["error"]["code"] == -32601
        await c.send(id="r", method="no/\ud800", params={})
        assert "no/\\ud800" in (await c.reply())["error"]["message"]
        request = await c.request("environment/status")
        await c.send(id=request["id"], result={"status": "ready"}, more=1)

    async with server(script) as url, connect(url) as agent:
        assert await agent.status() == "ready"


async def test_questions_without_bound() -> None:
    async def script(c: Conversation) -> None:
        await c.handshake()
        for i in range(300):
            await c.send(
                id=f"q{i}",
                method="network/policyRequest",
                params={"processId": "p", "request": {"protocol": "http", "host": "h", "port": 1}},
            )

    async def on_network(question: execagent.NetworkQuestion) -> bool:
        await asyncio.sleep(60)
        return True

    async with server(script, once=True) as url, connect(url, on_network=on_network) as agent:
        assert "256 questions" in str(await asyncio.wait_for(agent.wait_failed(), ENOUGH))
    await nothing_left()


async def test_agent_without_our_features() -> None:
    """Where the agent lacks a feature, an error names its flag and nothing is sent, or the client does it."""
    sent: list[str] = []

    async def script(c: Conversation) -> None:
        await c.handshake()
        while True:
            request = await c.request()
            method, params = request["method"], request["params"]
            sent.append(method)
            match method:
                case "process/start":
                    assert not {"timeoutMs", "maxOutputBytes", "limits", "runAs", "startId"} & set(params)
                    await c.send(id=request["id"], result={"processId": params["processId"], "sandboxType": "none"})
                    chunk = base64.b64encode(b"0123456789").decode()
                    await c.tell("process/output", processId=params["processId"], seq=1, stream="stdout", chunk=chunk)
                case "process/terminate":
                    await c.send(id=request["id"], result={"running": True})
                    await c.tell("process/exited", processId=params["processId"], seq=2, exitCode=137)
                    await c.tell("process/closed", processId=params["processId"], seq=3)
                case "fs/getMetadata":
                    assert "details" not in params
                    known = {"isFile": True, "isDirectory": False, "isSymlink": False, "size": 1}
                    await c.send(id=request["id"], result={**known, "createdAtMs": 0, "modifiedAtMs": 0})
                case _:
                    raise AssertionError(request)

    async with server(script) as url, connect(url) as agent:
        result = await asyncio.wait_for(agent.run(["x"], kill_after=0.1, max_output=5), ENOUGH)
        assert (result.timed_out, result.exit_code, result.stdout, result.stdout_omitted) == (True, 137, b"01289", 5)
        known = await agent.fs.stat("/f")
        assert (known.is_file, known.type, known.mode, known.owner) == (True, None, None, None)
        sent.clear()
        wanting: list[tuple[Callable[[], Awaitable[Any]], str]] = [
            (lambda: agent.spawn(["x"], max_output=5), "processMaxOutput"),
            (lambda: agent.spawn(["x"], memory="1g"), "processLimits"),
            (lambda: agent.run(["x"], pids=5), "processLimits"),
            (lambda: agent.run(["x"], user="nobody"), "processRunAs"),
            (lambda: agent.fs.write("/f", b"", mode=0o600), "fsWriteOptions"),
            (lambda: agent.fs.write_text("/f", "", atomic=True), "fsWriteOptions"),
            (lambda: agent.fs.stat("/f", follow=False), "fsMetadata"),
            (lambda: agent.fs.stat_many(["/f"]), "fsMetadata"),
            (lambda: agent.fs.list("/", follow=False), "fsReadDirectoryLstat"),
            (lambda: agent.fs.realpath("/f", missing_ok=True), "fsCanonicalizeMissing"),
            (lambda: agent.fs.search("/"), "fsSearch"),
            (lambda: agent.ports(), "ports"),
            (lambda: agent.watch_ports(), "ports"),
        ]
        for call, flag in wanting:
            with pytest.raises(execagent.UnsupportedError, match=flag) as caught:
                await call()
            assert caught.value.flag == flag
        assert sent == []
    await nothing_left()


PORT = {"port": 80, "address": "::"}
PORTS: dict[str, tuple[list[dict[str, Any]], str]] = {
    "early": ([{"opened": [], "closed": []}] * 17, "16 times before it answers"),
    "many": ([{"opened": [{**PORT, "pid": i} for i in range(20_000)], "closed": []}], "more than 16384 ports"),
    "no port": ([{"opened": [{**PORT, "port": 65536}], "closed": []}], "an integer from 0 to 65535"),
    "no list": ([{"opened": {}, "closed": []}], "opened is {}, and not a list"),
}


@pytest.mark.parametrize("name", PORTS)
async def test_ports(name: str) -> None:
    messages, want = PORTS[name]

    async def script(c: Conversation) -> None:
        await c.answer("initialize", {"sessionId": "s", "environmentInfo": {**INFO, "capabilities": {"ports": True}}})
        request = await c.request("port/watch")
        for message in messages:
            await c.tell("port/changed", watchId=request["params"]["watchId"], **message)
        await c.send(id=request["id"], result={"ports": []})

    async with server(script, once=True) as url, connect(url) as agent:
        with pytest.raises(execagent.AgentError, match=want):
            watch = await agent.watch_ports()
            await asyncio.wait_for(watch.next(), ENOUGH)
    await nothing_left()


async def test_blocked_callbacks() -> None:
    """A function that answers a question may block for ever. Others have threads, too."""
    block = threading.Event()
    answers: list[Any] = []

    async def script(c: Conversation) -> None:
        await c.handshake()
        for number in range(60):
            request = {"protocol": "http", "host": "blocked" if number < 50 else "free", "port": 1}
            await c.send(id=number, method="network/policyRequest", params={"processId": "p", "request": request})
        for _ in range(10):
            answers.append(await c.reply())
        await c.answer("environment/status", {"status": "ready"})

    def on_network(question: execagent.NetworkQuestion) -> bool:
        return question.host == "free" or block.wait()

    try:
        async with server(script, once=True) as url, connect(url, on_network=on_network) as agent:
            assert await asyncio.wait_for(agent.status(), ENOUGH) == "ready"
        assert [answer["result"] for answer in answers] == [{"decision": {"type": "allow"}}] * 10
        await nothing_left()
    finally:
        block.set()


async def test_answers_are_no_by_default() -> None:
    answers: list[Any] = []

    async def script(c: Conversation) -> None:
        await c.handshake()
        network = {"processId": "p", "request": {"protocol": "http", "host": "h", "port": 1}}
        await c.send(id="n", method="network/policyRequest", params=network)
        answers.append(await c.reply())
        await c.send(
            id="a",
            method="process/execApproval",
            params={
                "processId": "p",
                "approvalId": "1",
                "kind": "start",
                "argv": ["rm"],
                "exe": "",
                "cwd": "/",
                "reason": "",
                "matchedRules": [],
                "afterSeq": 0,
                "timeoutMs": 1000,
            },
        )
        answers.append(await c.reply())
        await c.send(id="b", method="process/execApproval", params={"processId": 5})
        answers.append(await c.reply())
        await c.answer("environment/status", {"status": "ready"})

    async def broken(question: object) -> bool:
        raise RuntimeError("oh")

    for options in ({}, {"on_network": broken, "on_approval": broken}):
        answers.clear()
        async with server(script) as url, connect(url, **options) as agent:
            assert await agent.status() == "ready"
        assert answers[0]["result"]["decision"]["type"] == "deny"
        assert answers[1]["result"] == {"decision": "decline"}
        assert answers[2]["error"]["code"] == -32602


async def test_answer_that_is_no_text() -> None:
    """An answer that repeats what the agent has sent may not be text. The connection goes on."""

    async def script(c: Conversation) -> None:
        await c.handshake()
        question = {"processId": "p", "approvalId": "1", "kind": "start", "argv": ["rm"], "proposedPrefix": ["\ud800"]}
        await c.send(id="a", method="process/execApproval", params=question)
        assert "not Unicode" in (await c.reply())["error"]["message"]
        await c.answer("environment/status", {"status": "ready"})

    async def on_approval(question: execagent.ApprovalQuestion) -> execagent.ApprovalAnswer:
        return execagent.ApprovalAnswer("accept_with_rule", question.proposed_prefix)

    async with server(script, once=True) as url, connect(url, on_approval=on_approval) as agent:
        assert await agent.status() == "ready"
    await nothing_left()


async def test_callbacks_that_nobody_waits_for() -> None:
    async def callback(_: object) -> None: ...

    for name in ("on_command_decision", "on_network_decision", "on_stderr"):
        with pytest.raises(TypeError, match=name):
            connect("ws://127.0.0.1:1", **{name: callback})


async def test_refused_kill() -> None:
    """The end of a block gives up the handle, although the agent refuses to kill the process."""

    async def script(c: Conversation) -> None:
        process_id = await started(c)
        request = await c.request("process/terminate")
        await c.send(id=request["id"], error={"code": -1, "message": "no"})
        await c.tell("process/exited", processId=process_id, seq=1, exitCode=0)

    async with server(script, once=True) as url, connect(url) as agent:
        with pytest.raises(execagent.RpcError, match="no"):
            async with await agent.spawn(["x"]) as process:
                pass
        assert process.ended


async def test_download_without_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A download can be given up although the agent does not answer what is told to its tool."""
    monkeypatch.setattr(_core, "CLEANUP", 0.1)
    monkeypatch.setitem(INFO["capabilities"], "processBuiltins", True)
    (tmp_path / "a").write_bytes(bytes(range(256)) * (8 << 10))
    parts: list[bytes] = []
    _tar.Sender([str(tmp_path / "a")]).send(parts.append)
    stream = b"".join(parts)
    written = asyncio.Event()

    async def script(c: Conversation) -> None:
        process_id = await started(c)
        for seq, at in enumerate(range(0, len(stream) - 4096, 1 << 16), 1):
            chunk = base64.b64encode(stream[at : at + (1 << 16)]).decode()
            await c.tell("process/output", processId=process_id, seq=seq, stream="stdout", chunk=chunk)
        await c.request("process/write")
        written.set()

    async with server(script, once=True) as url, connect(url) as agent:
        download = asyncio.create_task(agent.download("/x/a", tmp_path / "b"))
        await asyncio.wait_for(written.wait(), ENOUGH)
        download.cancel()
        _, late = await asyncio.wait({download}, timeout=ENOUGH)
        assert not late
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a"]
    await nothing_left()


async def test_upload_whose_tool_has_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent may refuse a write because the tool has just ended. The error is the reason of the tool."""
    monkeypatch.setitem(INFO["capabilities"], "processBuiltins", True)

    async def script(c: Conversation) -> None:
        process_id = await started(c)
        request = await c.request("process/write")
        await c.send(id=request["id"], error={"code": -32603, "message": "a process that has exited"})
        chunk = base64.b64encode(b"the disk is on fire\n").decode()
        await c.tell("process/output", processId=process_id, seq=1, stream="stderr", chunk=chunk)
        await c.tell("process/exited", processId=process_id, seq=2, exitCode=1)
        await c.tell("process/closed", processId=process_id, seq=3)
        await c.answer("process/closeStdin", {"status": "stdinClosed"})

    async with server(script, once=True) as url, connect(url) as agent:
        with pytest.raises(execagent.CopyError, match="on fire"):
            await agent.upload(tmp_path, "/x")
    await nothing_left()


async def test_memory_is_bounded() -> None:
    """A flood of events that nobody takes, early ones and late ones, is held within bounds."""

    async def script(c: Conversation) -> None:
        process_id = await started(c)
        chunk = "eHh4" * 16_384
        for seq in range(1, 100_000):
            # Every second event is before its turn, because event 1 never comes.
            await c.tell("process/output", processId=process_id, seq=seq + 1, stream="stdout", chunk=chunk)

    async with server(script) as url, connect(url) as agent:
        await agent.info()
        tracemalloc.start()
        process = await agent.spawn(["x"])
        await asyncio.sleep(2)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 40 << 20
        process.close()


async def test_ends_have_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """What ends something waits neither for a server that does not answer nor for a connection."""
    monkeypatch.setattr(_core, "CLEANUP", 0.1)
    monkeypatch.setattr(_link, "CLEANUP", 0.1)
    cut = asyncio.Event()

    async def script(c: Conversation) -> None:
        if cut.is_set():
            await c.ws.wait_closed()
        await c.handshake()
        await c.start()
        for _ in range(2):
            await c.answer("fs/watch", {"path": "file:///w"})
        for _ in range(2):
            await c.answer("fs/open", {})
        await cut.wait()
        c.ws.transport.abort()

    async with server(script) as url, execagent.connect(url) as agent:
        process = await agent.spawn(["x"])
        watches = [await agent.fs.watch("/w") for _ in range(2)]
        files = [await agent.fs.open("/w/f") for _ in range(2)]
        for call in (process.kill, watches[0].close, files[0].close):
            with pytest.raises(execagent.TimeoutError, match="did not answer"):
                await asyncio.wait_for(call(), ENOUGH)
        cut.set()
        await until(lambda: agent.state is execagent.State.RECOVERING)
        with execagent.fail_fast():
            for end in (watches[1].close, files[1].close):
                await asyncio.wait_for(end(), ENOUGH)
            # A process runs on, so killing it waits for the connection.
            killing = asyncio.create_task(process.kill())
            await asyncio.sleep(0.3)
            assert not killing.done()
        await agent.close()
        with pytest.raises(execagent.DisconnectedError):
            await asyncio.wait_for(killing, ENOUGH)
    await nothing_left()


@pytest.mark.parametrize("how", ["closed", "reset", "silent"])
async def test_end_while_output_waits(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a connection is noticed although its reader waits for somebody who takes output."""
    taken = asyncio.Event()
    chunk = base64.b64encode(b"x" * 65536).decode()

    async def script(c: Conversation) -> None:
        process_id = await started(c)
        for seq in range(1, 25):
            await c.tell("process/output", processId=process_id, seq=seq, stream="stdout", chunk=chunk)
        await c.request("fs/getMetadata")
        if how == "closed":
            c.ws.transport.write_eof()
        elif how == "reset":
            c.ws.transport.abort()
        else:
            monkeypatch.setattr(_transport, "_unheard", lambda sock: 1000.0)
        await taken.wait()

    async with server(script, once=True) as url, connect(url) as agent:
        process = await agent.spawn(["x"])
        try:
            with pytest.raises(execagent.DisconnectedError):
                await asyncio.wait_for(agent.fs.stat("/"), ENOUGH)
            with pytest.raises(execagent.DisconnectedError):
                await asyncio.wait_for(process.wait(), ENOUGH)
        finally:
            taken.set()
        # What has come is not lost.
        count = 0
        with pytest.raises(execagent.DisconnectedError):
            while await process.next_event():
                count += 1
        assert count >= 16 and (how == "silent" or count == 24)
    await nothing_left()


def test_unheard() -> None:
    """The kernel tells for how long the other end has not confirmed anything."""
    with socket.create_server(("127.0.0.1", 0)) as listening, socket.create_connection(listening.getsockname()) as here:
        there, _ = listening.accept()
        with there:
            here.sendall(b"never read")
            assert 0 <= _transport._unheard(here) < ENOUGH
            assert not _transport._hung_up(here)
            there.shutdown(socket.SHUT_WR)
            end = time.monotonic() + ENOUGH
            while not _transport._hung_up(here):
                assert time.monotonic() < end


async def test_unread_answer() -> None:
    """An HTTP answer that nobody reads fails alone: the connection does not wait for its reader."""

    async def script(c: Conversation) -> None:
        await c.handshake()
        ids: list[str] = []
        for _ in range(2):
            request = await c.answer("http/request", {"status": 200, "headers": [], "bodyBase64": ""})
            ids.append(request["params"]["requestId"])
        large, small = ids
        piece = base64.b64encode(b"x" * (1 << 20)).decode()
        await c.tell("http/request/bodyDelta", requestId=small, seq=1, deltaBase64="aGk=", done=False)
        for seq in range(1, 40):
            await c.tell("http/request/bodyDelta", requestId=large, seq=seq, deltaBase64=piece, done=False)
        await c.tell("http/request/bodyDelta", requestId=small, seq=2, deltaBase64="IQ==", done=True)
        await c.answer("environment/status", {"status": "ready"})

    async with server(script) as url, connect(url) as agent:
        large = await agent.http.stream("GET", "http://h/large")
        small = await agent.http.stream("GET", "http://h/small")
        assert await asyncio.wait_for(agent.status(), ENOUGH) == "ready"
        assert await small.aread() == b"hi!"
        with pytest.raises(execagent.OutputLimitError, match="read it, or close it"):
            await large.aread()
    await nothing_left()


async def test_message_too_large() -> None:
    async def script(c: Conversation) -> None:
        await c.handshake()
        request = await c.request()
        await c.raw(json.dumps({"id": request["id"], "result": {"x": "y" * (65 << 20)}}))

    async with server(script, once=True) as url, connect(url) as agent:
        with pytest.raises(execagent.DisconnectedError, match="64|67108864|size|exceeds"):
            await agent.status()


async def test_endless_fragments() -> None:
    async def script(c: Conversation) -> None:
        await c.handshake()

        async def endless() -> AsyncIterator[str]:
            while True:
                yield ""
                await asyncio.sleep(0)

        await c.ws.send(endless())

    async with server(script, once=True) as url, connect(url) as agent:
        assert "fragment" in str(await asyncio.wait_for(agent.wait_failed(), ENOUGH))


async def test_program_that_speaks_garbage() -> None:
    for code, want in (
        ("print('hello')", "not JSON"),
        ("import sys; sys.stderr.write('no such file\\x1b[0m\\n')", "no such file"),
        ("import sys; sys.stdout.write('x' * (66 << 20)); sys.stdout.flush(); input()", "more than 67108864 bytes"),
    ):
        with pytest.raises(execagent.AgentError, match=want) as caught:
            await execagent.connect(command=[sys.executable, "-c", code], handshake_timeout=20)
        assert "\x1b" not in str(caught.value)
    wrong: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: wrong.append(context))
    for _ in range(20):  # it ends before it is looked at
        with pytest.raises(execagent.ConnectError, match="why"):
            await execagent.connect(command=["sh", "-c", "echo why >&2; exit 3"])
    assert not wrong
    with pytest.raises(execagent.ConnectError, match="starting '/no/such'"):
        await execagent.connect(command=["/no/such"])
    await nothing_left()


async def test_wrong_names_of_files() -> None:
    """Names that would lead out of a directory, and paths that are none."""
    listing: dict[str, Any] = {}

    async def script(c: Conversation) -> None:
        await c.handshake()
        while True:
            request = await c.request()
            await c.send(id=request["id"], result=listing)

    async with server(script) as url, connect(url) as agent:
        for name in ("../x", "", ".", "a/b"):
            listing = {"entries": [{"fileName": name, "isDirectory": False, "isFile": True}]}
            with pytest.raises(execagent.ProtocolError, match="not a name"):
                await agent.fs.list("/d")
        for path in ("http://x/", "relative", "file:///a%00b", 5):
            listing = {"path": path}
            with pytest.raises(execagent.ProtocolError):
                await agent.fs.realpath("/d")
        listing = {"path": "file:///a/../../%2e%2e/b"}
        assert await agent.fs.realpath("/d") == "/b"
