"""Google's ADK: what its own environment does, ours does, too; and a session that is driven by a scripted model."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from google.adk.agents import LlmAgent
from google.adk.environment import BaseEnvironment, ExecutionResult, LocalEnvironment
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_request import LlmRequest
from google.adk.models.llm_response import LlmResponse
from google.adk.runners import InMemoryRunner
from google.adk.tools.environment import EnvironmentToolset
from google.genai import types
from pydantic import PrivateAttr

import execagent
from execagent.adk import ExecagentEnvironment

from ..conftest import ENOUGH, Server, until
from .conftest import PATIENCE, CutProxy, Transcript

# The suite: what an environment promises. The local one is judged by it, too.


@pytest.fixture(params=["execagent", "local"])
async def environment(request: pytest.FixtureRequest, server: Server, folder: str) -> AsyncIterator[BaseEnvironment]:
    made: BaseEnvironment
    if request.param == "local":
        made = LocalEnvironment(working_dir=Path(folder))
    else:
        made = ExecagentEnvironment(server.ws, cwd=folder)
    await made.initialize()
    await made.initialize()  # again is no error
    assert made.is_initialized and str(made.working_dir) == folder
    yield made
    await made.close()
    await made.close()
    assert not made.is_initialized


async def test_commands(environment: BaseEnvironment, folder: str) -> None:
    assert await environment.execute("echo ä; pwd >&2; exit 3") == ExecutionResult(3, "ä\n", f"{folder}\n")
    assert (await environment.execute("printf 'a\\377'")).stdout == "a\ufffd"


async def test_time_out(environment: BaseEnvironment, folder: str) -> None:
    pid = Path(folder, "pid")
    for seconds in PATIENCE:
        done = await environment.execute("echo $$ > pid; echo begun; sleep 1000", timeout=seconds)
        assert done.timed_out and done.exit_code != 0
        await until(lambda: not pid.exists() or not Path(f"/proc/{pid.read_text().strip() or 0}").exists())
        if done.stdout == "begun\n":
            return
    raise AssertionError(done)


async def test_files(environment: BaseEnvironment, folder: str) -> None:
    await environment.write_file(Path("a/b/text"), "ä\r\n")
    assert await environment.read_file(Path(folder, "a/b/text")) == "ä\r\n".encode()
    await environment.write_file(Path(folder, "data"), bytes(range(256)))
    assert await environment.read_file(Path("data")) == bytes(range(256))
    with pytest.raises(FileNotFoundError):
        await environment.read_file(Path("nowhere"))
    with pytest.raises(IsADirectoryError):
        await environment.read_file(Path("a"))


# What only ours has.


async def test_whoever_is_cancelled_ends_the_command(server: Server, folder: str) -> None:
    pid, environment = Path(folder, "pid"), ExecagentEnvironment(server.ws, cwd=folder)
    task = asyncio.create_task(environment.execute("echo $$ > pid; sleep 1000"))
    await until(lambda: pid.exists() and pid.read_text().strip())
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not Path(f"/proc/{pid.read_text().strip()}").exists())
    await environment.close()


async def test_signals_and_bounds(server: Server, folder: str) -> None:
    environment = ExecagentEnvironment(server.ws, cwd=folder, max_output=1000, env={"A": "1"})
    with pytest.raises(RuntimeError, match="initialize"):
        _ = environment.working_dir
    assert (await environment.execute("echo $A; kill -9 $$")) == ExecutionResult(137, "1\n")
    done = await environment.execute("seq 100000")
    assert "\n[... 587895 bytes left out ...]\n" in done.stdout and done.stdout.endswith("\n100000\n")
    left = await environment.execute("sleep 1000 & echo $!")
    os.kill(int(left.stdout), 9)  # it holds the output, and nobody has waited for it
    await environment.close()


async def test_a_rule_refuses_a_command(server: Server, folder: str) -> None:
    rules = execagent.ExecApproval({"a.rules": 'prefix_rule(pattern = ["ls"], decision = "forbidden")\n'})
    environment = ExecagentEnvironment(server.ws, cwd=folder, exec_approval=rules)
    done = await environment.execute("ls")
    assert done.exit_code == 126 and "forbid" in done.stderr
    await environment.close()


async def test_a_session_ends_with_its_environment_unless_it_is_named(
    server: Server, folder: str, agent: execagent.Agent
) -> None:
    async def names() -> set[str]:
        return {session.name for session in await agent.sessions.list()}

    unnamed = ExecagentEnvironment(server.ws, cwd=folder)
    named = ExecagentEnvironment(server.ws, cwd=folder, session="adk-kept")
    for environment in (unnamed, named):
        await environment.initialize()
        await environment.execute("sleep 1000 > /dev/null & echo $! > pid")
    first = unnamed.ref.session
    assert await names() >= {first, "adk-kept"}
    for environment in (unnamed, named):
        await environment.close()
    assert first not in await names() and "adk-kept" in await names()
    await unnamed.initialize()
    assert (await unnamed.execute("echo again")).stdout == "again\n" and unnamed.ref.session != first
    await unnamed.close()
    os.kill(int(Path(folder, "pid").read_text()), 9)
    await named.initialize()
    await named.destroy()


async def test_no_secret_is_kept(server: Server, folder: str) -> None:
    for secret in ({"token": "s"}, {"env": {"KEY": "s"}}, {"connect": execagent.connect}):
        with pytest.raises(TypeError, match=next(iter(secret))):
            pickle.dumps(ExecagentEnvironment("wss://host:7000" if "token" in secret else None, **secret))
    with pytest.raises(TypeError, match="url"):
        pickle.dumps(ExecagentEnvironment("wss://host:7000/?key=s"))
    toolset = EnvironmentToolset(environment=ExecagentEnvironment(server.ws, cwd=folder))
    assert await toolset.get_tools()
    copied = pickle.loads(pickle.dumps(toolset))
    assert len(await copied.get_tools()) == 4
    await copied.close()
    await toolset.close()


# A session.

Step = str | tuple[str, dict[str, Any]]


class Scripted(BaseLlm):
    """A model that says what a script says: a text, or a call of a tool."""

    _script: list[Step] = PrivateAttr()
    _transcript: Transcript = PrivateAttr()

    def __init__(self, script: tuple[Step, ...], transcript: Transcript) -> None:
        super().__init__(model="scripted")
        self._script = list(script)
        self._transcript = transcript

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        for part in llm_request.contents[-1].parts or []:
            if part.function_response is not None:
                answer = part.function_response.response or {}
                status = answer.pop("status")
                self._transcript.say(status, json.dumps(answer))
            elif part.text is not None:
                self._transcript.say("user", part.text)
        step = self._script.pop(0)
        if isinstance(step, str):
            self._transcript.say("model", step)
            part = types.Part.from_text(text=step)
        else:
            self._transcript.say("model", f"{step[0]} {json.dumps(step[1])}")
            part = types.Part.from_function_call(name=step[0], args=step[1])
        yield LlmResponse(content=types.Content(role="model", parts=[part]))


async def test_session(
    cutting: CutProxy, project: str, transcript: Callable[[str], Transcript], monkeypatch: pytest.MonkeyPatch
) -> None:
    def time_out(seconds: float) -> None:
        monkeypatch.setattr("google.adk.tools.environment._execute_tool.DEFAULT_TIMEOUT", seconds)

    told = transcript("google-adk")

    async def talk(environment: ExecagentEnvironment, said: str, *script: Step) -> None:
        agent = LlmAgent(
            name="coder", model=Scripted(script, told), tools=[EnvironmentToolset(environment=environment)]
        )
        runner = InMemoryRunner(agent=agent, app_name="test")
        session = await runner.session_service.create_session(app_name="test", user_id="user")
        message = types.Content(role="user", parts=[types.Part.from_text(text=said)])
        async for _ in runner.run_async(user_id="user", session_id=session.id, new_message=message):
            pass
        await runner.close()

    time_out(ENOUGH)

    async def cut_when_it_runs() -> None:
        await until(Path(project, "running").exists)
        cutting.cut()
        Path(project, "go").touch()

    environment = ExecagentEnvironment(
        cutting.url, cwd=project, session="adk", sandbox=execagent.Sandbox(workspace=".")
    )
    await talk(
        environment,
        "Mend the greeting.",
        ("Execute", {"command": "sh test.sh"}),
        ("ReadFile", {"path": "greet.sh"}),
        ("EditFile", {"path": "greet.sh", "old_string": "Helo", "new_string": "Hello"}),
        ("Execute", {"command": "sh test.sh"}),
        "It greets now, and its test passes.",
    )
    cutter = asyncio.create_task(cut_when_it_runs())
    await talk(
        environment,
        "Run what takes long.",
        ("Execute", {"command": "touch running; until test -e go; do sleep 0.05; done; echo done"}),
        "It is done, though the connection was cut meanwhile.",
    )
    await cutter
    assert cutting.cuts > 0
    time_out(1)
    await talk(environment, "Run what hangs.", ("Execute", {"command": "sleep 1000"}), "It has hung, and is killed.")
    time_out(ENOUGH)
    told.say("", "The program ends. Another one comes back to the session, and may only read.")
    again = ExecagentEnvironment(
        cutting.url, cwd=project, session="adk", existing=True, sandbox=execagent.Sandbox(read_only=True)
    )
    await talk(
        again,
        "Change the greeting.",
        ("WriteFile", {"path": "new.sh", "content": "echo\n"}),
        ("Execute", {"command": "echo 'echo Bye' > greet.sh"}),
        ("Execute", {"command": "sh test.sh"}),
        "I may not write here. The test still passes.",
    )
    assert Path(project, "greet.sh").read_text() == 'echo "Hello, $1"\n'
    await again.initialize()
    await again.destroy()
