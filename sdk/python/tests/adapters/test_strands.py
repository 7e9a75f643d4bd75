"""Strands: what its own environment does, ours does, too; and a session that is driven by a scripted model."""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import strands
from strands.models import Model
from strands.sandbox import ExecutionResult, FileInfo, Sandbox, StreamChunk
from strands.sandbox.errors import SandboxPathNotFoundError, SandboxTimeoutError
from strands.sandbox.not_a_sandbox_local_environment import NotASandboxLocalEnvironment

import execagent
from execagent.strands import ExecagentSandbox

from ..conftest import Server, until
from .conftest import PATIENCE, CutProxy, Transcript

# The suite: what the sandboxes of Strands promise. The local environment is judged by it, too.


@pytest.fixture(params=["execagent", "local"])
async def sandbox(
    request: pytest.FixtureRequest, server: Server, folder: str, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Sandbox]:
    if request.param == "local":
        monkeypatch.chdir(folder)
        yield NotASandboxLocalEnvironment()
        return
    async with ExecagentSandbox(server.ws, cwd=folder) as made:
        yield made


async def pieces(stream: AsyncGenerator[StreamChunk | ExecutionResult, None]) -> tuple[str, str, ExecutionResult]:
    """Take all of a stream: the text of both outputs, and the result, which is the last piece."""
    out = {"stdout": "", "stderr": ""}
    last: ExecutionResult | None = None
    async for piece in stream:
        assert last is None
        if isinstance(piece, StreamChunk):
            out[piece.stream_type] += piece.data
        else:
            last = piece
    assert last is not None
    return out["stdout"], out["stderr"], last


async def test_commands(sandbox: Sandbox, folder: str) -> None:
    Path(folder, "sub").mkdir()
    script = 'echo "$A ä"; pwd >&2; exit 3'
    expected = ExecutionResult(3, "one two ä\n", f"{folder}/sub\n")
    assert await sandbox.execute(script, cwd=f"{folder}/sub", env={"A": "one two"}) == expected
    streamed = await pieces(sandbox.execute_streaming(script, cwd=f"{folder}/sub", env={"A": "one two"}))
    assert streamed == (expected.stdout, expected.stderr, expected)
    assert (await sandbox.execute("kill -9 $$")).exit_code == 137
    assert (await sandbox.execute("printf '\\303\\244\\377'")).stdout == "ä\ufffd"
    with pytest.raises(ValueError, match="A-B"):
        await sandbox.execute("true", env={"A-B": "1"})
    with pytest.raises(ValueError, match="A-B"):
        await pieces(sandbox.execute_streaming("true", env={"A-B": "1"}))


async def test_code(sandbox: Sandbox, folder: str) -> None:
    code = "import os, sys\nprint('$HOME `x` \\'\"', os.getcwd(), os.environ['A'])\nsys.exit(5)\n"
    expected = ExecutionResult(5, f"$HOME `x` '\" {folder} b\n", "")
    assert await sandbox.execute_code(code, "python3", env={"A": "b"}) == expected
    assert (await pieces(sandbox.execute_code_streaming(code, "python3", env={"A": "b"})))[2] == expected
    for language in ("python3\n", "sh -c", "../sh"):
        with pytest.raises(ValueError, match="language"):
            await sandbox.execute_code("", language)
        with pytest.raises(ValueError, match="language"):
            await pieces(sandbox.execute_code_streaming("", language))
    missing = await sandbox.execute_code("x", "no-such-language")
    assert missing.exit_code == 127 and "no-such-language" in missing.stderr
    assert (await pieces(sandbox.execute_code_streaming("x", "no-such-language")))[2].exit_code == 127


async def test_time_out(sandbox: Sandbox, folder: str) -> None:
    script = "echo $$ > pid; echo begun; echo error >&2; sleep 1000"
    for call in (
        lambda seconds: sandbox.execute(script, timeout=seconds),
        lambda seconds: pieces(sandbox.execute_streaming(script, timeout=seconds)),
    ):
        for seconds in PATIENCE:
            with pytest.raises(SandboxTimeoutError, match=f"after {seconds} seconds") as caught:
                await call(seconds)
            await gone(Path(folder, "pid"))
            if (caught.value.stdout, caught.value.stderr) == ("begun\n", "error\n"):
                break
        else:
            raise AssertionError(caught.value.stdout)


async def gone(pid: Path) -> None:
    """Wait until the process has ended that has written its id to a file, if it has got so far."""
    if pid.exists() and (number := pid.read_text().strip()):
        await until(lambda: not Path(f"/proc/{number}").exists())
    pid.unlink(missing_ok=True)


async def test_files(sandbox: Sandbox, folder: str) -> None:
    data = bytes(range(256)) * 5000
    await sandbox.write_file(f"{folder}/a/b/data", data)
    assert await sandbox.read_file(f"{folder}/a/b/data") == data == Path(folder, "a/b/data").read_bytes()
    await sandbox.write_text("text", "ä\r\n")
    assert await sandbox.read_text("text") == "ä\r\n"
    os.symlink("a", f"{folder}/to a")
    os.symlink("text", f"{folder}/to text")
    os.symlink("nowhere", f"{folder}/x")
    assert sorted(await sandbox.list_files(folder), key=lambda f: f.name) == [
        FileInfo("a", True, os.stat(f"{folder}/a").st_size),
        FileInfo("text", False, 4),
        FileInfo("to a", True, os.stat(f"{folder}/a").st_size),
        FileInfo("to text", False, 4),
        FileInfo("x"),
    ]
    for missing in ("nowhere", "text"):
        with pytest.raises(SandboxPathNotFoundError):
            await sandbox.list_files(missing)
    await sandbox.remove_file("text")
    for call in (sandbox.read_file, sandbox.remove_file):
        with pytest.raises(FileNotFoundError):
            await call("text")
    with pytest.raises(IsADirectoryError):
        await sandbox.read_file("a")
    with pytest.raises(IsADirectoryError):
        await sandbox.write_file("a", b"")


# What only ours has.


async def test_whoever_stops_listening_ends_the_command(server: Server, folder: str) -> None:
    pid, sandbox = Path(folder, "pid"), ExecagentSandbox(server.ws, cwd=folder)

    async def listen() -> None:
        async for _ in sandbox.execute_streaming("echo $$ > pid; echo begun; sleep 1000"):
            pass

    for call in (listen, lambda: sandbox.execute("echo $$ > pid; sleep 1000")):
        task = asyncio.ensure_future(call())
        await until(lambda: pid.exists() and pid.read_text().strip())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await gone(pid)
    await sandbox.aclose()


async def test_a_stream_blocks_no_other_call(server: Server, folder: str) -> None:
    """Whoever takes output slowly has the rest later, and meanwhile the sandbox does other work."""
    async with ExecagentSandbox(server.ws, cwd=folder, max_output="8m") as sandbox:
        Path(folder, "file").write_text("here")
        script = "echo begun; head -c 4000000 /dev/zero | tr '\\0' x; touch printed"
        stream = sandbox.execute_streaming(f"{script}; until test -e go; do sleep 0.05; done")
        assert isinstance(await anext(stream), StreamChunk)
        await until(Path(folder, "printed").exists)
        assert await sandbox.read_text("file") == "here"
        Path(folder, "go").touch()
        assert (await pieces(stream))[2].stdout == "begun\n" + "x" * 4_000_000


async def test_a_stream_that_nobody_takes_ends_in_time(server: Server, folder: str) -> None:
    async with ExecagentSandbox(server.ws, cwd=folder) as sandbox:
        for seconds in PATIENCE:
            stream, begun = sandbox.execute_streaming("echo $$ > pid; echo; exec sleep 1000", timeout=seconds), False
            with pytest.raises(SandboxTimeoutError):
                begun = isinstance(await anext(stream), StreamChunk)
                await gone(Path(folder, "pid"))
                await pieces(stream)
            if begun:
                break
        assert begun


async def test_a_rule_refuses_a_command(server: Server, folder: str) -> None:
    rules = execagent.ExecApproval({"a.rules": 'prefix_rule(pattern = ["ls"], decision = "forbidden")\n'})
    async with ExecagentSandbox(server.ws, cwd=folder, exec_approval=rules) as sandbox:
        for result in (
            await sandbox.execute_code("", "ls"),
            (await pieces(sandbox.execute_code_streaming("", "ls")))[2],
        ):
            assert result.exit_code == 126 and "forbid" in result.stderr


async def test_a_character_may_come_in_pieces(server: Server, folder: str) -> None:
    async with ExecagentSandbox(server.ws, cwd=folder) as sandbox:
        out, _, result = await pieces(sandbox.execute_streaming("printf '\\303'; sleep 0.1; printf '\\244\\303'"))
        assert out == result.stdout == "ä\ufffd"


async def test_what_a_command_leaves_behind_goes_on(server: Server, folder: str) -> None:
    """A process in the background holds the output, and the result does not wait for it."""
    async with ExecagentSandbox(server.ws, cwd=folder) as sandbox:
        script = "sleep 1000 & echo $!"
        one = await sandbox.execute(script)
        two = await pieces(sandbox.execute_streaming(script))
        pids = [int(one.stdout), int(two[0])]
        assert all(Path(f"/proc/{pid}").exists() for pid in pids)
        for pid in pids:
            os.kill(pid, 9)


async def test_output_is_bounded(server: Server, folder: str) -> None:
    async with ExecagentSandbox(server.ws, cwd=folder, max_output=1000) as sandbox:
        done = await sandbox.execute("seq 100000")
        assert done.stdout.startswith("1\n2\n") and done.stdout.endswith("\n99999\n100000\n")
        assert "\n[... 587895 bytes left out ...]\n" in done.stdout and len(done.stdout) < 1100
        streamed = await pieces(sandbox.execute_streaming("seq 100000"))
        assert streamed[0] == streamed[2].stdout == done.stdout
    with pytest.raises(ValueError, match="max_output"):
        ExecagentSandbox(server.ws, max_output="9m")


async def test_no_secret_is_kept(server: Server) -> None:
    sandbox = ExecagentSandbox("wss://host:7000", token="the-secret", session="work")
    assert sandbox.ref == ("work", "wss://host:7000")
    assert "the-secret" not in f"{sandbox!r}{sandbox.ref}" + "".join(
        json.dumps(tool.tool_spec) for tool in sandbox.get_tools()
    )
    with pytest.raises(TypeError, match="token"):
        pickle.dumps(sandbox)
    copied = pickle.loads(pickle.dumps(ExecagentSandbox(server.ws)))
    assert (await copied.execute("echo hello")).stdout == "hello\n"
    await copied.aclose()


# A session.


class Scripted(Model):
    """A model that says what a script says: a text, or a call of a tool."""

    def __init__(self, script: Iterable[str | tuple[str, dict[str, Any]]], transcript: Transcript) -> None:
        self._script = iter(script)
        self._transcript = transcript
        self._calls = 0

    def update_config(self, **model_config: Any) -> None:
        pass

    def get_config(self) -> dict[str, Any]:
        return {}

    def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        for block in messages[-1]["content"]:
            if "toolResult" in block:
                result = block["toolResult"]
                self._transcript.say(result["status"], "".join(part["text"] for part in result["content"]))
            else:
                self._transcript.say("user", block["text"])
        step = next(self._script)
        yield {"messageStart": {"role": "assistant"}}
        if isinstance(step, str):
            self._transcript.say("model", step)
            yield {"contentBlockStart": {"start": {}}}
            yield {"contentBlockDelta": {"delta": {"text": step}}}
        else:
            name, arguments = step
            self._calls += 1
            self._transcript.say("model", f"{name} {json.dumps(arguments)}")
            yield {"contentBlockStart": {"start": {"toolUse": {"name": name, "toolUseId": f"call-{self._calls}"}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": json.dumps(arguments)}}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": "end_turn" if isinstance(step, str) else "tool_use"}}


def test_session(cutting: CutProxy, project: str, transcript: Callable[[str], Transcript]) -> None:
    """Each call of an agent of Strands has an event loop of its own, and all of them have one session."""
    told = transcript("strands")

    def cut_when_it_runs() -> None:
        while not Path(project, "running").exists():
            threading.Event().wait(0.01)
        cutting.cut()
        Path(project, "go").touch()

    def talk(sandbox: ExecagentSandbox, said: str, *script: str | tuple[str, dict[str, Any]]) -> None:
        agent = strands.Agent(model=Scripted(script, told), sandbox=sandbox, callback_handler=None)
        agent(said)

    sandbox = ExecagentSandbox(cutting.url, cwd=project, session="strands", sandbox=execagent.Sandbox(workspace="."))
    talk(
        sandbox,
        "Mend the greeting.",
        ("sandbox_shell", {"command": "sh test.sh"}),
        ("sandbox_file_editor", {"command": "view", "path": f"{project}/greet.sh"}),
        (
            "sandbox_file_editor",
            {"command": "str_replace", "path": f"{project}/greet.sh", "old_str": "Helo", "new_str": "Hello"},
        ),
        ("sandbox_shell", {"command": "sh test.sh"}),
        "It greets now, and its test passes.",
    )
    cutter = threading.Thread(target=cut_when_it_runs, daemon=True)
    cutter.start()
    talk(
        sandbox,
        "Run what takes long, and what hangs.",
        ("sandbox_shell", {"command": "touch running; until test -e go; do sleep 0.05; done; echo done"}),
        ("sandbox_shell", {"command": "sleep 1000", "timeout": 1}),
        "The first is done, though the connection was cut meanwhile. The second has hung.",
    )
    cutter.join()
    assert cutting.cuts > 0
    told.say("", "The program ends. Another one comes back to the session, and may only read.")
    asyncio.run(sandbox.aclose())
    again = ExecagentSandbox(
        cutting.url, cwd=project, session="strands", existing=True, sandbox=execagent.Sandbox(read_only=True)
    )
    talk(
        again,
        "Change the greeting.",
        ("sandbox_file_editor", {"command": "create", "path": f"{project}/new.sh", "file_text": "echo\n"}),
        ("sandbox_shell", {"command": "echo 'echo Bye' > greet.sh"}),
        ("sandbox_shell", {"command": "sh test.sh"}),
        "I may not write here. The test still passes.",
    )
    assert Path(project, "greet.sh").read_text() == 'echo "Hello, $1"\n'
    asyncio.run(again.destroy())
