"""The adapter to Pydantic AI: its conformance suite, cuts, secrets, a session of its agent with a scripted model."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from pydantic_ai import Agent, ModelMessage, ModelRequest, ModelResponse, RunContext, TextPart, ToolCallPart
from pydantic_ai.messages import ModelMessagesTypeAdapter, ToolReturnPart
from pydantic_ai.models.function import AgentInfo, FunctionModel
from pydantic_ai.workspaces import (
    LocalWorkspaceBackend,
    WorkspaceBackend,
    WorkspaceOutputLimitError,
    WorkspaceRef,
    WorkspaceTimeoutError,
    WorkspaceUnavailableError,
)
from pydantic_ai.workspaces.conformance import WorkspaceBackendSuite

import execagent
from execagent._adapter import Shared
from execagent.pydantic_ai import ExecagentBackend, ExecagentWorkspace

from ..conftest import Server, until
from .conftest import PATIENCE, CutProxy, Transcript, has_output


class TestConformance(WorkspaceBackendSuite):
    """The suite of Pydantic AI, at an agent over TCP."""

    @pytest.fixture
    def anyio_backend(self) -> str:
        return "asyncio"

    @pytest.fixture
    async def backend(self, server: Server, folder: str) -> AsyncIterator[WorkspaceBackend]:
        made = ExecagentBackend(server.ws, cwd=folder)
        yield made
        await made.destroy()

    @pytest.fixture
    def fresh_backend(self, server: Server, folder: str) -> Callable[[], WorkspaceBackend]:
        return lambda: ExecagentBackend(server.ws, cwd=folder)

    @pytest.fixture
    def attach_backend(self, server: Server, folder: str) -> Callable[[WorkspaceRef], WorkspaceBackend]:
        return lambda ref: ExecagentBackend(server.ws, ref=ref, cwd=folder)

    @pytest.fixture
    def destroy_environment(self) -> Callable[[WorkspaceBackend], Awaitable[None]]:
        async def destroy(backend: WorkspaceBackend) -> None:
            assert isinstance(backend, ExecagentBackend)
            await backend.destroy()

        return destroy


async def test_bounds(server: Server, folder: str) -> None:
    backend = ExecagentBackend(server.ws, cwd=folder)
    with pytest.raises(WorkspaceOutputLimitError) as much:
        await backend.run("head -c 20000000 /dev/zero", shell=True)
    assert len(much.value.stdout) == much.value.limit
    for timeout in PATIENCE:
        with pytest.raises(WorkspaceTimeoutError) as late:
            await backend.run("echo begun; sleep 1000", shell=True, timeout=timeout)
        if late.value.stdout:
            break
    assert late.value.stdout == "begun\n"
    assert (await backend.run("kill -9 $$", shell=True)).exit_code == 137
    assert (await backend.run(["/etc/passwd"])).exit_code == 126
    for timeout in (0, -1, float("nan"), float("inf")):
        with pytest.raises(ValueError, match="timeout is"):
            await backend.run(["true"], timeout=timeout)
    Path(folder).rmdir()
    with pytest.raises(WorkspaceUnavailableError, match="does not exist"):
        await backend.run(["true"])
    await backend.destroy()


async def test_a_rule_refuses_a_command(server: Server, folder: str) -> None:
    """It is a result for the model, because an error would end the run."""
    rules = execagent.ExecApproval({"a.rules": 'prefix_rule(pattern = ["ls"], decision = "forbidden")\n'})
    backend = ExecagentBackend(server.ws, cwd=folder, exec_approval=rules)
    done = await backend.run(["ls"])
    assert done.exit_code == 126 and "forbid" in done.stderr
    await backend.destroy()


async def test_cut(cutting: CutProxy, folder: str) -> None:
    """A command and a file that are under way while the connection is cut come out right."""
    backend = ExecagentBackend(cutting.url, cwd=folder)
    command = asyncio.create_task(backend.run("echo one; until test -e go; do sleep 0.05; done; echo two", shell=True))
    await until(lambda: has_output(backend._shared))
    cutting.cut()
    await backend.write_bytes(f"{folder}/go", b"")
    assert (await command).stdout == "one\ntwo\n"
    await backend.destroy()


async def test_references(server: Server, folder: str) -> None:
    """A reference leads to the same session, has no secret, and is not followed elsewhere."""
    workspace = ExecagentWorkspace[None](
        "ws://127.0.0.1:7000/?key=secret", token="secret", cwd=folder, env={"KEY": "secret"}
    )
    context = RunContext(deps=None, model=FunctionModel(lambda _, __: ModelResponse(parts=[])), usage=None)  # type: ignore[arg-type]
    fresh = workspace.get_workspace(context, ref=None)
    assert isinstance(fresh, ExecagentBackend) and fresh.ref is None
    ref = WorkspaceRef(provider="execagent", id=str(fresh._shared.ref))
    assert "secret" not in repr(ref) and b"secret" not in pickle.dumps(ref)
    attached = workspace.get_workspace(context, ref=ref)
    assert attached is not None and attached.ref == ref
    for foreign in (
        WorkspaceRef(provider="local", id=ref.id),
        WorkspaceRef(provider="execagent", id=ref.id + ":1"),
        WorkspaceRef(provider="execagent", id="work@ws://127.0.0.1:7000/"),
        WorkspaceRef(provider="execagent", id="?"),
    ):
        assert workspace.get_workspace(context, ref=foreign) is None
    with pytest.raises(ValueError, match="must be of a workspace of this agent"):
        ExecagentBackend(server.ws, ref=ref)
    with pytest.raises(ValueError, match="session is"):
        ExecagentWorkspace[None](server.ws, session="a b")


SERVER = "until test -e stop; do sleep 0.05; done; touch stopped"
Step = Callable[[str], tuple[str, dict[str, object]] | str]


def scripted(steps: list[Step]) -> FunctionModel:
    """Return a model that takes its steps by what the last tool has returned."""

    async def respond(messages: list[ModelMessage], _: AgentInfo) -> ModelResponse:
        last = messages[-1]
        assert isinstance(last, ModelRequest)
        returned = next((str(part.content) for part in last.parts if isinstance(part, ToolReturnPart)), "")
        step = steps.pop(0)(returned)
        return ModelResponse(parts=[TextPart(step) if isinstance(step, str) else ToolCallPart(step[0], step[1])])

    return FunctionModel(respond)


def assistant(transcript: Transcript, workspace: ExecagentWorkspace[None], used: list[Shared]) -> Agent[None, str]:
    """Return an agent with two tools on its workspace."""
    agent = Agent[None, str](capabilities=[workspace])

    @agent.tool
    async def shell(ctx: RunContext[None], command: str, timeout: float = 60) -> str:
        transcript.say("shell", command)
        assert isinstance(ctx.workspace.backend, ExecagentBackend)
        used.append(ctx.workspace.backend._shared)
        try:
            done = await ctx.workspace.run(command, shell=True, timeout=timeout)
            answer = f"{done.stdout}{done.stderr}[exit code {done.exit_code}]"
        except WorkspaceTimeoutError as error:
            answer = f"{error.stdout}[{error}]"
        transcript.say("result", answer)
        return answer

    @agent.tool
    async def write(ctx: RunContext[None], path: str, content: str) -> str:
        transcript.say("write", f"{path}\n{content}")
        try:
            await ctx.workspace.write_text(path, content)
            answer = "written"
        except OSError as error:
            answer = str(error)
        transcript.say("result", answer)
        return answer

    return agent


async def test_a_session(cutting: CutProxy, project: str, transcript: Callable[[str], Transcript]) -> None:
    """An agent mends a program, is cut off, goes on in another run, and a sandbox refuses it."""
    said = transcript("pydantic-ai")
    cuts: list[asyncio.Task[None]] = []
    said_to: list[Shared] = []

    async def cut_and_go() -> None:
        await until(lambda: has_output(said_to[-1]))
        cutting.cut()
        Path(project, "go").touch()

    def cut(_: str) -> tuple[str, dict[str, object]]:
        said.say("(network)", "the connection is cut while the next command runs")
        cuts.append(asyncio.create_task(cut_and_go()))
        return "shell", {"command": "echo begun; until test -e go; do sleep 0.05; done; sh test.sh"}

    workspace = ExecagentWorkspace[None](cutting.url, cwd=project, env={"KEY": "sesame"})
    agent = assistant(said, workspace, said_to)
    first: list[Step] = [
        lambda _: ("shell", {"command": "sh test.sh"}),
        lambda _: ("write", {"path": "greet.sh", "content": 'echo "Hello, $1"\n'}),
        lambda _: ("shell", {"command": "sleep 1000", "timeout": 0.5}),
        lambda _: ("shell", {"command": f"setsid sh -c '{SERVER}' >/dev/null 2>&1 & echo started"}),
        cut,
        lambda returned: f"Mended. The test says {returned.splitlines()[1]}.",
    ]
    said.say("user", "Mend greet.sh.")
    done = await agent.run("Mend greet.sh.", model=scripted(first))
    said.say("assistant", done.output)
    assert cutting.cuts > 0
    await asyncio.gather(*cuts)

    history = ModelMessagesTypeAdapter.dump_json(done.all_messages())
    assert b"sesame" not in history
    refs = {message.workspace_ref for message in done.all_messages() if isinstance(message, ModelResponse)}
    (ref,) = refs
    assert ref is not None and ref.provider == "execagent"

    said.say("(later)", "another process goes on with the history of the messages")
    second: list[Step] = [
        lambda _: (
            "shell",
            {"command": "touch stop; until test -e stopped; do sleep 0.05; done; echo it was still there"},
        ),
        lambda returned: returned.splitlines()[0],
    ]
    again = assistant(said, ExecagentWorkspace[None](cutting.url, cwd=project), said_to)
    said.say("user", "Stop the server.")
    messages = ModelMessagesTypeAdapter.validate_json(history)
    result = await again.run("Stop the server.", message_history=messages, model=scripted(second))
    said.say("assistant", result.output)
    assert result.output == "it was still there"

    said.say("(later)", "a run in a sandbox that may only read")
    third: list[Step] = [
        lambda _: ("write", {"path": "greet.sh", "content": "no\n"}),
        lambda _: ("shell", {"command": "echo no > greet.sh"}),
        lambda _: "I may not change it.",
    ]
    confined = assistant(said, ExecagentWorkspace[None](cutting.url, cwd=project, sandbox=execagent.Sandbox()), said_to)
    said.say("user", "Break greet.sh.")
    said.say("assistant", (await confined.run("Break greet.sh.", model=scripted(third))).output)
    assert Path(project, "greet.sh").read_text() == 'echo "Hello, $1"\n'
    await ExecagentBackend(cutting.url, ref=ref, cwd=project).destroy()


async def test_the_same_as_the_local_backend(server: Server, folder: str) -> None:
    """Results and kinds of errors are those of the local backend of Pydantic AI."""
    backends = LocalWorkspaceBackend(folder), ExecagentBackend(server.ws, cwd=folder)
    Path(folder, "link").symlink_to("missing")
    Path(folder, "file").write_text("text")

    async def outcome(work: Callable[[WorkspaceBackend], Awaitable[object]], backend: WorkspaceBackend) -> object:
        try:
            return await work(backend)
        except (OSError, ValueError, TypeError) as error:
            return next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")

    for work in (
        lambda b: b.list_dir(folder),
        lambda b: b.stat(f"{folder}/file"),
        lambda b: b.stat(f"{folder}/link"),
        lambda b: b.exists(f"{folder}/link"),
        lambda b: b.read_bytes(f"{folder}/link"),
        lambda b: b.remove(f"{folder}/missing"),
        lambda b: b.remove(folder),
        lambda b: b.realpath(f"{folder}/link/../x"),
        lambda b: b.run("echo $0; exit 5", shell=True),
        lambda b: b.run(["sh", "-c", "echo $HOME"], env={"HOME": "/h"}),
        lambda b: b.run("x"),
    ):
        local, ours = [await outcome(work, each) for each in backends]
        assert ours == local
    await backends[1].destroy()
