"""Starts whose answer is lost: the command runs once, or the caller learns that nobody knows.

The scenarios of sdk/scenarios/recovery.json have the rest: each place of the cut, input, output that is gone, refusals.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import execagent

from .conftest import ENOUGH, Server, start_agent, stop, until, until_async
from .proxy import Proxy
from .test_hostile import INFO, Conversation, nothing_left
from .test_hostile import server as scripted

PROMPT = execagent.ExecApproval({"x.rules": 'prefix_rule(pattern = ["sh"], decision = "prompt")'})


def once(folder: Path) -> list[str]:
    """Return a command that leaves a trace each time that it runs."""
    return ["sh", "-c", f"echo once >> {folder}/ran; echo out; [ -e {folder}/short ] || exec sleep 600"]


async def killed(agent: execagent.Agent) -> None:
    """Wait until the one process of the session has been killed."""

    async def is_so() -> bool:
        return [(p.exited, p.exit_code) for p in await agent.processes()] == [(True, 137)]

    await until_async(is_so)


async def test_given_up_during_recovery(server: Server, tmp_path: Path) -> None:
    async with Proxy(server.ws) as proxy, execagent.connect(proxy.url) as agent:
        proxy.at, proxy.until = "answer", str(tmp_path / "gate")
        run = asyncio.create_task(agent.run(once(tmp_path)))
        await until((tmp_path / "ran").exists)
        await until(lambda: agent.state is execagent.State.RECOVERING)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
        (tmp_path / "gate").touch()
        await killed(agent)
        assert (tmp_path / "ran").read_text() == "once\n"


async def test_whoever_does_not_wait(server: Server, tmp_path: Path) -> None:
    async with Proxy(server.ws) as proxy, execagent.connect(proxy.url) as agent:
        proxy.at, proxy.until = "answer", str(tmp_path / "ran")
        with execagent.fail_fast(), pytest.raises(execagent.DisconnectedError) as caught:
            await agent.spawn(once(tmp_path))
        assert caught.value.sent and not caught.value.retryable
        await killed(agent)


@pytest.mark.parametrize("allow", [True, False], ids=["allowed", "declined"])
async def test_start_that_waits_for_approval(allow: bool, server: Server, tmp_path: Path) -> None:
    asked: list[str] = []
    (tmp_path / "short").touch()

    async def on_approval(question: execagent.ApprovalQuestion) -> bool:
        asked.append(question.kind)
        return allow

    async with Proxy(server.ws) as proxy, execagent.connect(proxy.url, on_approval=on_approval) as agent:
        proxy.at = "answer"
        result = await asyncio.wait_for(agent.run(once(tmp_path), exec_approval=PROMPT), ENOUGH)
        assert (result.exit_code, result.stdout) == ((0, b"out\n") if allow else (126, b""))
        assert asked == ["start"]
        assert (tmp_path / "ran").exists() is allow
        assert not allow or (tmp_path / "ran").read_text() == "once\n"


async def test_session_is_gone(tmp_path: Path) -> None:
    """The error is that of a request that was sent, and the command is not started in another session."""
    agent_process, url = start_agent("--listen", "ws://127.0.0.1:0")
    try:
        async with Proxy(url) as proxy, execagent.connect(proxy.url, session="gone") as agent:
            proxy.at, proxy.until = "answer", str(tmp_path / "gate")
            run = asyncio.create_task(
                agent.run(["sh", "-c", f"echo once >> {tmp_path}/ran; echo $$ > {tmp_path}/pid; exec sleep 600"])
            )
            pid = tmp_path / "pid"
            await until(lambda: pid.exists() and pid.read_text().endswith("\n"))
            assert agent.session_id is not None
            async with execagent.connect(url) as other:
                await other.sessions.end(agent.session_id)
            await until(lambda: not Path(f"/proc/{pid.read_text().strip()}").exists())  # it ends with its session
            (tmp_path / "gate").touch()
            with pytest.raises(execagent.DisconnectedError, match="could not be resumed") as caught:
                await asyncio.wait_for(run, ENOUGH)
            assert caught.value.sent and not caught.value.retryable
            assert (tmp_path / "ran").read_text() == "once\n"
    finally:
        stop(agent_process)
    await nothing_left()


FORGOTTEN = {"code": -32600, "message": "gone", "data": {"reason": "forgotten"}}


@pytest.mark.parametrize(("flag", "then"), [(False, []), (True, [FORGOTTEN])], ids=["no flag", "forgotten"])
async def test_nobody_knows(flag: bool, then: list[dict[str, Any]]) -> None:
    """An agent without the flag gets a start once, and kills what it may have started."""
    starts: list[dict[str, Any]] = []
    ends: list[str] = []
    info = {**INFO, "capabilities": {**INFO["capabilities"], "processStartId": flag}}

    async def script(c: Conversation) -> None:
        await c.answer("initialize", {"sessionId": "s", "environmentInfo": info})
        while True:
            request = await c.request()
            match request["method"]:
                case "process/start":
                    starts.append(request["params"])
                    if len(starts) == 1:
                        await c.ws.close()
                        return
                    await c.send(id=request["id"], error=then[0])
                case "process/terminate":
                    ends.append(request["params"]["processId"])
                    await c.send(id=request["id"], result={"running": True})
                case _:
                    raise AssertionError(request)

    async with scripted(script) as url, execagent.connect(url) as agent:
        with pytest.raises(execagent.DisconnectedError) as caught:
            await asyncio.wait_for(agent.run(["x"]), ENOUGH)
        assert caught.value.sent and not caught.value.retryable
        if flag:
            assert len(starts) == 2 and starts[0] == starts[1] and starts[0]["startId"]
        else:
            await until(lambda: ends)
            assert ends == [starts[0]["processId"]]
            assert len(starts) == 1 and "startId" not in starts[0]
    await nothing_left()
