"""``agent mcp``, driven by the official SDK for Python, of its first and its second generation.

The scenarios are the files of ``test/e2e/testdata/mcp``; ``test/e2e/mcp_test.go`` explains their lines. A file that has
the word "versions" in its prose is played once for each way in which the SDK opens a connection.
"""

from __future__ import annotations

import asyncio
import base64
import importlib
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import mcp
import mcp.client.streamable_http
import pytest
from mcp import ClientSession, StdioServerParameters
from mcp.client.stdio import stdio_client

from ..conftest import AGENT, ROOT, stop, until, until_async

FILES = [
    file
    for file in sorted((ROOT / "test/e2e/testdata/mcp").glob("*.txt"))
    if "\nregistry\n" not in file.read_text()  # the way to the agent is nothing to a client
]
SECOND = hasattr(mcp, "Client")
"""Whether the SDK is of its second generation. The first one has no protocol after 2025-11-25."""
MODES = {"legacy": "2025-11-25", "2026-07-28": "2026-07-28"} if SECOND else {"legacy": "2025-11-25"}
PATIENCE = 240.0


def plays() -> list[Any]:
    """Return each file with the ways in which it is played."""
    newest = list(MODES)[-1]
    return [
        pytest.param(file, mode, id=f"{file.stem}-{MODES[mode]}")
        for file in FILES
        for mode in MODES
        if mode == newest or "versions" in prose(file)
    ]


def prose(file: Path) -> str:
    """Return what is said on top of a file."""
    return file.read_text().partition("\n\n")[0]


@pytest.mark.parametrize(("file", "mode"), plays())
async def test_scenario(file: Path, mode: str, tmp_path: Path) -> None:
    """A scenario says the same to the official client."""
    if "needs curl" in prose(file) and shutil.which("curl") is None:
        pytest.skip("there is no curl")
    if file.stem == "http_questions" and not SECOND:
        pytest.skip("over HTTP no client before 2026-07-28 can be asked")
    stage = Stage(tmp_path, mode)
    try:
        async with asyncio.timeout(PATIENCE):
            await stage.play(file.read_text().partition("\n\n")[2])
    finally:
        await stage.close()


def words(text: str) -> list[str]:
    """Return the words of a line. A space in a word is %20."""
    return [word.replace("%20", " ") for word in text.split()]


class Client:
    """A client of the SDK, in a task of its own, because that task has to end it."""

    def __init__(self, opening: AbstractAsyncContextManager[Any], pid: Path | None) -> None:
        self._pid = pid
        self._over = asyncio.Event()
        self._ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._life = asyncio.create_task(self._live(opening))

    async def _live(self, opening: AbstractAsyncContextManager[Any]) -> None:
        try:
            async with opening as session:
                self._ready.set_result(session)
                await self._over.wait()
        except Exception as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def session(self) -> Any:
        """Return what calls tools."""
        return await self._ready

    async def close(self) -> None:
        """End the client, and wait for its server."""
        self._over.set()
        await self._life

    def kill(self) -> None:
        """Kill the server, as a host that dies does."""
        assert self._pid is not None
        os.kill(int(self._pid.read_text()), signal.SIGKILL)


class Stage:
    """Plays one file."""

    def __init__(self, folder: Path, mode: str) -> None:
        self._mode = mode
        self._dir = folder.resolve() / "work"
        self._dir.mkdir()
        self._beside = folder.resolve()
        self._names = {"$DIR": str(self._dir), "$MEGA": "b" * 2**20}
        self._programs: list[subprocess.Popen[bytes]] = []
        self._clients: dict[str, Client] = {}
        self._asked = 0
        self._told: list[str] = []
        self._answer = ""
        self._data: Any = None
        self._begun: asyncio.Task[tuple[str, Any]] | None = None

    async def play(self, script: str) -> None:
        """Do the steps in order."""
        for number, written in enumerate(script.splitlines(), 1):
            line = written
            for name, value in self._names.items():
                line = line.replace(name, value)
            word, _, rest = line.partition(" ")
            if word not in ("", "#"):
                try:
                    await self._step(word, rest)
                except Exception as error:
                    raise AssertionError(f"line {number}: {written}\nthe answer is {self._answer!r}") from error

    async def _step(self, word: str, rest: str) -> None:
        match word:
            case "agent":
                self._names["$URL"], _ = self._start("--listen", "ws://127.0.0.1:0", *words(rest))
            case "http":
                self._names["$HTTP"], said = self._start("mcp", "--listen", "http://127.0.0.1:0", *words(rest))
                await until(lambda: re.search(r"token in the file (\S+)\n", said.read_text()))
                file = re.search(r"token in the file (\S+)\n", said.read_text())
                assert file is not None
                self._names["$TOKEN"] = Path(file[1]).read_text().strip()
            case "client":
                name, answer, *args = words(rest)
                await self._connect(name, answer, args)
            case "~":
                assert re.search(rest, self._answer, re.MULTILINE), rest
            case "!~":
                assert not re.search(rest, self._answer, re.MULTILINE), rest
            case "data":
                want = json.loads(rest)
                assert self._data == want or {name: self._data.get(name) for name in want} == want
            case "begin":
                self._begun = asyncio.create_task(self._call(rest))
            case "until" if rest.startswith("sh "):
                await until_async(lambda: self._shell(rest.removeprefix("sh ")))
            case "until":
                pattern = re.compile(rest.removeprefix("~ "), re.MULTILINE)
                await until(lambda: any(pattern.search(line) for line in self._told))
            case "end":
                assert self._begun is not None
                self._answer, self._data = await self._begun
            case "cancel":
                assert self._begun is not None
                self._begun.cancel()
                await asyncio.wait([self._begun])
                self._answer = "failed: cancelled" if self._begun.cancelled() else "not cancelled"
            case "close":
                await self._clients.pop(rest).close()
            case "kill":
                self._clients[rest].kill()
            case "asked":
                assert self._asked == int(rest)
            case "sh":
                assert await self._shell(rest)
            case _:
                self._answer, self._data = await self._call(f"{word} {rest}")

    def _start(self, *args: str) -> tuple[str, Path]:
        """Start an agent, and return the URL that it prints and the file of its standard error."""
        said = self._beside / f"said-{len(self._programs)}"
        with said.open("wb") as error:
            program = subprocess.Popen([AGENT, *args], stdout=subprocess.PIPE, stderr=error, cwd=self._dir)
        self._programs.append(program)
        assert program.stdout is not None
        return program.stdout.readline().decode().strip(), said

    async def _shell(self, command: str) -> bool:
        env = {**os.environ, "PATH": f"{Path(AGENT).parent}:{os.environ['PATH']}"}
        out, error = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
        shell = await asyncio.create_subprocess_shell(command, stdout=out, stderr=error, cwd=self._dir, env=env)
        printed, _ = await shell.communicate()
        self._answer = printed.decode()
        return shell.returncode == 0

    async def _connect(self, name: str, answer: str, args: list[str]) -> None:
        pid = None
        if args[:1] == ["http"]:
            opening = self._over_http(answer)
        else:
            pid = self._beside / f"pid-{len(self._clients)}"
            line = ["-c", 'echo $$ >"$0"; exec "$@"', str(pid), AGENT, "mcp", *args]
            opening = self._open(stdio_client(StdioServerParameters(command="sh", args=line, cwd=self._dir)), answer)
        self._clients[name] = Client(opening, pid)
        session = await self._clients[name].session()
        listed = [tool.name for tool in (await session.list_tools()).tools]
        assert len(listed) == 9, listed

    @asynccontextmanager
    async def _over_http(self, answer: str) -> AsyncIterator[Any]:
        # The library for HTTP is another one in each generation of the SDK.
        http = importlib.import_module("httpx2" if SECOND else "httpx")
        headers = {"Authorization": f"Bearer {self._names['$TOKEN']}"}
        async with http.AsyncClient(headers=headers, timeout=PATIENCE) as library:
            transport = mcp.client.streamable_http.streamable_http_client(self._names["$HTTP"], http_client=library)
            async with self._open(transport, answer) as session:
                yield session

    @asynccontextmanager
    async def _open(self, transport: Any, answer: str) -> AsyncIterator[Any]:
        """Open a client whose user answers questions."""

        async def elicited(context: Any, params: Any) -> Any:
            self._asked += 1
            assert "decision" in params.model_dump(by_alias=True)["requestedSchema"]["properties"]
            if answer == "decline":
                return mcp.types.ElicitResult(action="decline")
            return mcp.types.ElicitResult(action="accept", content={"decision": answer})

        callback = None if answer == "none" else elicited
        if SECOND:
            async with mcp.Client(transport, mode=self._mode, elicitation_callback=callback) as client:
                assert client.protocol_version == MODES[self._mode]
                yield client
            return
        async with (
            transport as streams,
            ClientSession(streams[0], streams[1], elicitation_callback=callback) as session,
        ):
            opened: Any = await session.initialize()
            assert opened.protocolVersion == MODES[self._mode]
            yield session

    async def _call(self, line: str) -> tuple[str, Any]:
        """Call a tool, and return its answer as text and as data."""
        name, tool, arguments = line.split(" ", 2)

        async def told(progress: float, total: float | None, message: str | None) -> None:
            self._told.append(message or "")

        session = await self._clients[name].session()
        try:
            result = await session.call_tool(tool, json.loads(arguments), progress_callback=told)
        except Exception as error:
            return f"failed: {error}", None
        answer = result.model_dump(by_alias=True)
        text = "error: " if answer.get("isError") else ""
        for content in answer["content"]:
            match content["type"]:
                case "text":
                    text += content["text"]
                case "image":
                    text += f"{content['mimeType']} of {len(base64.b64decode(content['data']))} bytes"
        return text, answer.get("structuredContent")

    async def close(self) -> None:
        """End all that was started."""
        if self._begun is not None:
            self._begun.cancel()
        for client in self._clients.values():
            await client.close()
        for program in self._programs:
            stop(program)
