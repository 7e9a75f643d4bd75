"""Measures the adapter to the OpenAI Agents SDK beside the SDK's own local provider, in one run.

    EXECAGENT_AGENT=bin/agent python bench/openai_agents.py [ROUNDS]

Cold start is from the client to the first result of a command in a new session. Then come 100 small commands, one after
the other, as the tools run them. Both take turns, so that a busy machine slows both down. It prints the minimum and the
median.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

from agents.sandbox.manifest import Manifest
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient
from agents.sandbox.session import BaseSandboxClient

from execagent import Sandbox
from execagent.openai_agents import ExecagentSandboxClient

COMMANDS = 100


async def measure(make: Callable[[], BaseSandboxClient[Any]]) -> tuple[float, list[float]]:
    """Return the time of a cold start, and those of the commands, in milliseconds."""
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        client = make()
        session = await client.create(manifest=Manifest(root=folder), options=None)
        async with session:
            assert (await session.pty_exec_start("echo hi")).output == b"hi\n"
            cold = (time.perf_counter() - begin) * 1000
            each: list[float] = []
            for _ in range(COMMANDS):
                begin = time.perf_counter()
                assert (await session.pty_exec_start("echo hi")).exit_code == 0
                each.append((time.perf_counter() - begin) * 1000)
        await client.delete(session)
        return cold, each


async def compare(url: str, rounds: int) -> None:
    """Print the figures."""
    ways: dict[str, Callable[[], BaseSandboxClient[Any]]] = {
        "unix_local": UnixLocalSandboxClient,
        "execagent": lambda: ExecagentSandboxClient(url),
        "execagent, sandbox": lambda: ExecagentSandboxClient(url, sandbox=Sandbox(workspace=".")),
    }
    cold: dict[str, list[float]] = {name: [] for name in ways}
    small: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, make in ways.items():
            first, each = await measure(make)
            cold[name].append(first)
            small[name] += each
    for name in ways:
        print(
            f"{name:20} cold {min(cold[name]):7.1f} {statistics.median(cold[name]):7.1f} ms"
            f"   command {min(small[name]):6.2f} {statistics.median(small[name]):6.2f} ms (min, median)"
        )


def main(rounds: int) -> None:
    """Measure on an agent of our own."""
    agent = os.environ.get("EXECAGENT_AGENT", "bin/agent")
    command = [agent, "--listen", "ws://127.0.0.1:0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        try:
            asyncio.run(compare(server.stdout.readline().decode().strip(), rounds))
        finally:
            server.terminate()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
