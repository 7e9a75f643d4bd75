"""Every scenario of sdk/scenarios, over each way to an agent."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from typing import Any

import pytest

from .conftest import SCENARIOS, Server
from .proxy import Proxy
from .scenario import Runner, Web, load

ALL = load(SCENARIOS)


def test_names_are_unique() -> None:
    names = [scenario["name"] for scenario in ALL]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("scenario", ALL, ids=[scenario["name"] for scenario in ALL])
async def test_scenario(scenario: dict[str, Any], way: str, server: Server, tmp_path: Path) -> None:
    if way not in scenario.get("over", ["ws", "unix", "stdio"]):
        pytest.skip(f"it is not for {way}")
    here, there = tmp_path.resolve() / "here", tmp_path.resolve() / "there"
    here.mkdir()
    there.mkdir()
    cuts = any(step["do"] == "cut" for step in scenario["steps"])
    async with Web() as web:
        if cuts:
            path = str(tmp_path / "p") if way == "unix" else None
            async with Proxy(server.unix if way == "unix" else server.ws, path) as proxy:
                through = Server(proxy.url, proxy.url)
                await _run(scenario, way, through, here, there, web, proxy)
        else:
            await _run(scenario, way, server, here, there, web, None)
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    if left:
        await asyncio.wait(left, timeout=2)
    assert [task for task in left if not task.done()] == []
    gc.collect()


async def _run(
    scenario: dict[str, Any], way: str, server: Server, here: Path, there: Path, web: Web, proxy: Proxy | None
) -> None:
    async with server.connect(way) as agent:
        missing = set(scenario.get("needs", ())) - (await agent.info()).capabilities
        if missing:
            pytest.skip(f"the agent lacks {missing}")
        await Runner(agent, str(here), str(there), web, proxy).run(scenario["steps"])
