"""Agents for the tests, and the ways to them."""

from __future__ import annotations

import asyncio
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import execagent

ROOT = Path(__file__).resolve().parents[3]
SCENARIOS = ROOT / "sdk" / "scenarios"


def find_agent() -> str:
    """Return the program of the agent: EXECAGENT_AGENT, or bin/agent of the repository."""
    path = os.environ.get("EXECAGENT_AGENT") or str(ROOT / "bin" / "agent")
    if not os.access(path, os.X_OK):
        pytest.exit(f"there is no agent at {path}: run make build, or set EXECAGENT_AGENT", 2)
    return path


AGENT = find_agent()


@dataclass
class Server:
    """An agent that listens over TCP and at a UNIX socket."""

    ws: str
    unix: str

    def connect(self, way: str, **options: Any) -> execagent.Opening:
        """Connect in one of the three ways."""
        if way == "stdio":
            return execagent.connect(command=[AGENT, "--listen", "stdio"], **options)
        return execagent.connect(self.unix if way == "unix" else self.ws, **options)


def start_agent(
    *args: str, cwd: str | None = None, env: dict[str, str] | None = None
) -> tuple[subprocess.Popen[bytes], str]:
    """Start an agent, and return it with the URL that it prints."""
    process = subprocess.Popen([AGENT, *args], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=cwd, env=env)
    assert process.stdout is not None
    line = process.stdout.readline().decode().strip()
    assert line, f"agent {args} printed nothing"
    return process, line


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a program."""
    process.terminate()
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """An agent for all tests."""
    folder = tempfile.mkdtemp(prefix="execagent-py-")
    tcp, ws = start_agent("--listen", "ws://127.0.0.1:0", cwd=folder)
    local, unix = start_agent("--listen", f"unix://{folder}/agent.sock", cwd=folder)
    yield Server(ws, unix)
    stop(tcp)
    stop(local)
    shutil.rmtree(folder)


@pytest.fixture(params=["ws", "unix", "stdio"])
def way(request: pytest.FixtureRequest) -> str:
    """A way to an agent."""
    return str(request.param)


@pytest.fixture
async def agent(server: Server) -> AsyncIterator[execagent.Agent]:
    """A client."""
    async with server.connect("ws") as client:
        yield client


ENOUGH = 120.0
"""Seconds after which something hangs: no machine takes so long."""


async def until(condition: Any) -> None:
    """Wait until something is so."""
    end = time.monotonic() + ENOUGH
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.005)


async def until_async(condition: Callable[[], Awaitable[bool]]) -> None:
    """Wait until something is so that has to be asked for."""
    end = time.monotonic() + ENOUGH
    while not await condition():
        assert time.monotonic() < end, "it did not happen"
        await asyncio.sleep(0.05)
