"""Measures adapters beside the providers of their harnesses for this machine, in one run, turn by turn.

    bin/venv-adapters/bin/python sdk/python/bench/adapters.py [NAME…]

For each it prints the time from nothing to the first result of a command, and that of 100 small commands one after the
other, each as minimum and median. The agent is EXECAGENT_AGENT, or bin/agent; it runs already, as a service does.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parents[3]
ROUNDS = int(os.environ.get("ROUNDS", "7"))
COMMANDS = 100


class Provider(NamedTuple):
    """A thing that runs commands: how it is made, used and ended."""

    make: Callable[[], Any]
    run: Callable[[Any], Awaitable[str]]
    end: Callable[[Any], Awaitable[None]]


async def nothing(_: Any) -> None:
    """End a provider that needs no end."""


def pydantic_ai(url: str, folder: str) -> tuple[Provider, Provider]:
    """Return the backend of this package, and the local one of Pydantic AI."""
    from pydantic_ai.workspaces import LocalWorkspaceBackend

    from execagent.pydantic_ai import ExecagentBackend

    async def run(backend: Any) -> str:
        return str((await backend.run("echo hello", shell=True)).stdout)

    return (
        Provider(lambda: ExecagentBackend(url, cwd=folder), run, lambda backend: backend.destroy()),
        Provider(lambda: LocalWorkspaceBackend(folder), run, nothing),
    )


def deepagents(url: str, folder: str) -> tuple[Provider, Provider]:
    """Return the sandbox of this package, and the local shell of deepagents."""
    from deepagents.backends.local_shell import LocalShellBackend

    from execagent.deepagents import ExecagentSandbox

    async def run(sandbox: Any) -> str:
        return str((await sandbox.aexecute("echo hello")).output)

    return (
        Provider(lambda: ExecagentSandbox(url, cwd=folder), run, lambda sandbox: sandbox.destroy()),
        Provider(lambda: LocalShellBackend(root_dir=folder, virtual_mode=False, env=dict(os.environ)), run, nothing),
    )


def strands(url: str, folder: str) -> tuple[Provider, Provider]:
    """Return the sandbox of this package, and the local environment of Strands."""
    from strands.sandbox.not_a_sandbox_local_environment import NotASandboxLocalEnvironment

    from execagent.strands import ExecagentSandbox

    async def run(sandbox: Any) -> str:
        return str((await sandbox.execute("echo hello", cwd=folder)).stdout)

    return (
        Provider(lambda: ExecagentSandbox(url, cwd=folder), run, lambda sandbox: sandbox.destroy()),
        Provider(NotASandboxLocalEnvironment, run, nothing),
    )


def adk(url: str, folder: str) -> tuple[Provider, Provider]:
    """Return the environment of this package, and the local one of ADK."""
    from google.adk.environment import LocalEnvironment

    from execagent.adk import ExecagentEnvironment

    async def run(environment: Any) -> str:
        if not environment.is_initialized:
            await environment.initialize()
        return str((await environment.execute("echo hello")).stdout)

    return (
        Provider(lambda: ExecagentEnvironment(url, cwd=folder), run, lambda environment: environment.close()),
        Provider(lambda: LocalEnvironment(working_dir=Path(folder)), run, lambda environment: environment.close()),
    )


def openai_agents(url: str, folder: str) -> tuple[Provider, Provider]:
    """Return sessions of this package, and of the local provider of the OpenAI Agents SDK, with a start of the tool."""
    from agents.sandbox.manifest import Manifest
    from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient

    from execagent.openai_agents import ExecagentSandboxClient

    async def run(made: list[Any]) -> str:
        if len(made) == 1:
            made.append(await made[0].create(manifest=Manifest(root=folder), options=None))
            await made[1].start()
        return str((await made[1].pty_exec_start("echo hello")).output)

    async def end(made: list[Any]) -> None:
        await made[1].aclose()
        await made[0].delete(made[1])

    return Provider(lambda: [ExecagentSandboxClient(url)], run, end), Provider(
        lambda: [UnixLocalSandboxClient()], run, end
    )


def inspect_ai(url: str, folder: str) -> tuple[Provider, Provider]:
    """Return the sandbox of this package, and the local one of Inspect, each with the directory of a sample."""
    from inspect_ai.util._sandbox.local import LocalSandboxEnvironment

    from execagent.inspect_ai import ExecagentSandboxConfig, ExecagentSandboxEnvironment

    async def run(sandbox: Any) -> str:
        return str((await sandbox.exec(["sh", "-c", "echo hello"])).stdout)

    async def end(sandbox: Any) -> None:
        await type(sandbox).sample_cleanup("bench", None, {"default": sandbox}, False)

    config = ExecagentSandboxConfig(url=url, directory=folder)
    return Provider(lambda: ExecagentSandboxEnvironment(config), run, end), Provider(LocalSandboxEnvironment, run, end)


HARNESSES = {
    "strands": strands,
    "adk": adk,
    "inspect-ai": inspect_ai,
    "openai-agents": openai_agents,
    "pydantic-ai": pydantic_ai,
    "deepagents": deepagents,
}


async def measure(provider: Provider) -> tuple[float, float]:
    """Return the seconds to the first result, and of many commands behind it."""
    begin = time.perf_counter()
    made = provider.make()
    assert "hello" in await provider.run(made)
    first = time.perf_counter()
    for _ in range(COMMANDS):
        await provider.run(made)
    end = time.perf_counter()
    await provider.end(made)
    return first - begin, end - first


async def main(url: str, folder: str) -> None:
    """Measure all harnesses that are named, or all."""
    for name in sys.argv[1:] or HARNESSES:
        providers = dict(zip(("execagent", "local"), HARNESSES[name](url, folder), strict=True))
        for provider in providers.values():
            await measure(provider)  # imports and caches
        times: dict[str, list[tuple[float, float]]] = {who: [] for who in providers}
        for _ in range(ROUNDS):
            for who, provider in providers.items():
                times[who].append(await measure(provider))
        for who, found in times.items():
            for what, values in zip(("first result", f"{COMMANDS} commands"), zip(*found, strict=True), strict=True):
                low, middle = min(values) * 1000, statistics.median(values) * 1000
                print(f"{name:14}{who:12}{what:16}min {low:8.1f} ms   median {middle:8.1f} ms")


agent = os.environ.get("EXECAGENT_AGENT") or str(ROOT / "bin" / "agent")
with (
    tempfile.TemporaryDirectory() as here,
    subprocess.Popen(
        [agent, "--listen", "ws://127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=here
    ) as server,
):
    assert server.stdout is not None
    try:
        asyncio.run(main(server.stdout.readline().strip(), here))
    finally:
        server.terminate()
