"""Inspect: its own checks of a sandbox, and an evaluation that is driven by a scripted model."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from inspect_ai import Task
from inspect_ai import eval as evaluate
from inspect_ai.dataset import Sample
from inspect_ai.log import EvalLog
from inspect_ai.model import ChatMessage, ChatMessageTool, ModelOutput, ModelUsage, get_model
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import bash, python, text_editor
from inspect_ai.util import (
    OutputLimitExceededError,
    SandboxEnvironment,
    SandboxEnvironmentSpec,
    SandboxUnavailableError,
)
from inspect_ai.util._sandbox.limits import override_max_exec_output_size
from inspect_ai.util._sandbox.self_check import *  # noqa: F403

import execagent
from execagent.inspect_ai import ExecagentSandboxConfig, ExecagentSandboxEnvironment

from ..conftest import AGENT, ENOUGH, Server, start_agent, stop
from .conftest import PATIENCE, CutProxy, Transcript

# What a way of running cannot do, by the names of the checks.
FAILS = {
    "root": {
        # Nothing is forbidden to root.
        "test_read_file_not_allowed",
        "test_write_text_file_without_permissions",
        "test_write_binary_file_without_permissions",
    },
    "user": {"test_exec_as_user"},
    # A program that cannot be executed is the result 101, because the sandbox is entered first.
    "confined": {"test_exec_as_user", "test_exec_permission_error"},
}


@pytest.fixture(scope="module")
def of_a_user(server: Server) -> Iterator[str]:
    """An agent whose user is not root."""
    if os.geteuid() != 0:
        yield server.ws
        return
    folder = tempfile.mkdtemp(prefix="execagent-user-")
    program = shutil.copy(AGENT, folder)
    for path in (folder, program):
        os.chown(path, 65534, 65534)
    process = subprocess.Popen(
        [program, "--listen", "ws://127.0.0.1:0"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": folder},
        user=65534,
        group=65534,
        extra_groups=[],
    )
    assert process.stdout is not None
    yield process.stdout.readline().decode().strip()
    stop(process)
    shutil.rmtree(folder)


@pytest.fixture(params=["root", "user", "confined"])
async def sandbox_env(
    request: pytest.FixtureRequest, server: Server, of_a_user: str
) -> AsyncIterator[SandboxEnvironment]:
    way = str(request.param)
    if way == "root" and os.geteuid() != 0:
        pytest.skip("needs root")
    if request.node.originalname in FAILS[way]:
        request.applymarker(pytest.mark.xfail(strict=True))
    config = ExecagentSandboxConfig(
        url=server.ws if way == "root" else of_a_user,
        sandbox=execagent.Sandbox(workspace=".") if way == "confined" else None,
    )
    made = await ExecagentSandboxEnvironment.sample_init("task", config, {})
    directory = made["default"].as_type(ExecagentSandboxEnvironment).directory
    assert Path(directory).is_dir()
    yield made["default"]
    await ExecagentSandboxEnvironment.sample_cleanup("task", config, made, False)
    assert not Path(directory).exists()


# What only ours has.


def of(environments: dict[str, SandboxEnvironment]) -> ExecagentSandboxEnvironment:
    return environments["default"].as_type(ExecagentSandboxEnvironment)


async def start(config: ExecagentSandboxConfig) -> ExecagentSandboxEnvironment:
    return of(await ExecagentSandboxEnvironment.sample_init("task", config, {}))


async def test_commands(server: Server) -> None:
    sample = await start(ExecagentSandboxConfig(url=server.ws))
    missing = await sample.exec(["no-such-program"])
    assert (missing.success, missing.returncode, missing.stderr) == (
        False,
        127,
        "no-such-program: No such file or directory (os error 2)\n",
    )
    with pytest.raises(FileNotFoundError, match="nowhere"):
        await sample.exec(["true"], cwd="nowhere")
    with override_max_exec_output_size(1000), pytest.raises(OutputLimitExceededError) as caught:
        await sample.exec(["seq", "100000"])
    assert caught.value.truncated_output is not None and caught.value.truncated_output.endswith("\n100000\n")
    for seconds in map(ceil, PATIENCE):
        with pytest.raises(TimeoutError, match=f"{seconds} seconds") as late:
            await sample.exec(["sh", "-c", "echo begun; sleep 1000"], timeout=seconds)
        if getattr(late.value, "truncated_output", None) == "begun\n":
            break
    else:
        raise AssertionError(late.value)
    left = await sample.exec(["sh", "-c", "sleep 1000 & echo $!"])
    assert Path(f"/proc/{left.stdout.strip()}").exists()
    os.kill(int(left.stdout), 9)
    command = (await sample.connection(user="me")).command
    assert command == f"agent exec -t --url {server.ws} -C {sample.directory} --user me -- /bin/sh"
    await sample.close()


async def test_an_agent_that_is_gone(cutting: CutProxy) -> None:
    """Inspect turns the error into one of the tool, and the sample goes on."""
    sample = await start(ExecagentSandboxConfig(url=cutting.url))
    session, directory = sample.name, Path(sample.directory)
    async with execagent.connect(cutting.url) as other:
        await other.sessions.end(next(each.id for each in await other.sessions.list() if each.name == session))
    for call in (sample.exec(["true"]), sample.exec(["true"]), sample.read_file("x"), sample.write_file("x", "")):
        with pytest.raises(SandboxUnavailableError):
            await call
    await sample.close()  # says in the log that the directory is left
    directory.rmdir()


async def test_tools_that_do_not_stop_are_killed(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    sample = await start(ExecagentSandboxConfig(url=server.ws))
    tool = Path(sample.directory, "tool")
    tool.write_text("#!/bin/sh\nexec sleep 1000\n")
    tool.chmod(0o755)
    monkeypatch.setattr("execagent.inspect_ai.SANDBOX_CLI", str(tool))
    monkeypatch.setattr("execagent.inspect_ai._TOOLS_STOP", 1)
    sample._with_tools = True
    await sample.close()
    assert not Path(sample.directory).exists()
    async with server.connect("ws") as agent:
        assert sample.name not in {each.name for each in await agent.sessions.list()}


async def test_a_sample_that_cannot_begin_leaves_nothing(server: Server, folder: str) -> None:
    config = ExecagentSandboxConfig(
        url=server.ws, directory=folder, sandbox=execagent.Sandbox(profile="/no/such/profile")
    )
    with pytest.raises(FileNotFoundError):
        await start(config)
    assert os.listdir(folder) == []


async def test_rules_of_the_agent(folder: str) -> None:
    """Inspect turns the error into one of the tool. Nobody can be asked."""
    rules = Path(folder, "rules")
    rules.mkdir()
    (rules / "a.rules").write_text(
        'prefix_rule(pattern = ["ls"], decision = "forbidden")\nprefix_rule(pattern = ["id"], decision = "prompt")\n'
    )
    process, url = start_agent("--listen", "ws://127.0.0.1:0", "--exec-policy", str(rules), cwd=folder)
    sample = await start(ExecagentSandboxConfig(url=url, directory=folder))
    for program, says in (("ls", "forbids"), ("id", "requires approval")):
        with pytest.raises(PermissionError, match=says):
            await sample.exec([program])
    await sample.close()
    stop(process)


async def test_clean_up_by_the_command_line(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AGENT_URL", server.ws)
    one, two = await start(ExecagentSandboxConfig()), await start(ExecagentSandboxConfig())
    await ExecagentSandboxEnvironment.cli_cleanup(one.name)
    assert not Path(one.directory).exists() and (await two.exec(["true"])).success
    await ExecagentSandboxEnvironment.cli_cleanup(None)
    assert not Path(two.directory).exists()
    await one.close()
    await two.close()


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (ExecagentSandboxConfig(url="http://h:1"), "is not ws://"),
        (ExecagentSandboxConfig(url="ws://h:1", context="c"), "cannot be used together"),
    ],
)
async def test_a_wrong_configuration_is_told_before_the_first_sample(config: ExecagentSandboxConfig, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        await ExecagentSandboxEnvironment.task_init("task", config)


def test_configurations() -> None:
    config = ExecagentSandboxConfig(
        registry="https://r", environment_id="e", token_file="/t", sandbox=execagent.Sandbox(workspace=".")
    )
    spec = SandboxEnvironmentSpec("execagent", config)
    assert SandboxEnvironmentSpec.model_validate_json(spec.model_dump_json()) == spec and hash(spec)
    assert config.flags() == ["--registry", "https://r", "--environment-id", "e", "--registry-token-file", "/t"]
    wrong: list[dict[str, Any]] = [
        {"token": "sesame"},
        {"url": "wss://h:1/?key=sesame"},
        {"registry": "https://u:sesame@r"},
    ]
    for each in wrong:
        with pytest.raises(ValueError, match=next(iter(each))) as caught:
            ExecagentSandboxConfig(**each)
        assert "sesame" not in str(caught.value)


def test_a_configuration_may_be_a_file(tmp_path: Path) -> None:
    file = tmp_path / "execagent.toml"
    file.write_text('context = "box"\ntoken_file = "token"\nmemory = "2g"\n[sandbox]\nworkspace = "."\n')
    assert ExecagentSandboxConfig.of(str(file)) == ExecagentSandboxConfig(
        context="box", token_file=f"{tmp_path}/token", memory="2g", sandbox=execagent.Sandbox(workspace=".")
    )
    assert ExecagentSandboxEnvironment.config_files() == [file.name]
    for text in ("url = 1", 'token = "secret"', "[", "\xff", "#" * 70_000):
        file.write_bytes(text.encode("latin-1"))
        with pytest.raises(ValueError, match=re.escape(str(file))):
            ExecagentSandboxConfig.of(str(file))


# A session.

Step = str | tuple[str, dict[str, Any]]


def run(config: ExecagentSandboxConfig, sample: Sample, told: Transcript, *script: Step) -> EvalLog:
    """Evaluate a sample with a scripted model, and write down what was said."""
    steps = list(script)

    def answer(messages: list[ChatMessage], *_: object) -> ModelOutput:
        last = messages[-1]
        if isinstance(last, ChatMessageTool) and last.error is not None:
            told.say(f"error ({last.error.type})", last.error.message)
        else:
            told.say(last.role, re.sub("inspect-[0-9a-f]{16}", "inspect-1", last.text))
        step = steps.pop(0)
        if isinstance(step, str):
            told.say("model", step)
            output = ModelOutput.from_content("mockllm/model", step)
        else:
            told.say("model", f"{step[0]} {json.dumps(step[1])}")
            output = ModelOutput.for_tool_call("mockllm/model", step[0], step[1])
        output.usage = ModelUsage()  # otherwise it is counted with a table from the network
        return output

    task = Task(
        dataset=[sample],
        solver=[use_tools(bash(timeout=int(ENOUGH)), python(timeout=1), text_editor()), generate()],
        sandbox=SandboxEnvironmentSpec("execagent", config),
    )
    model = get_model("mockllm/model", custom_outputs=answer)
    (log,) = evaluate(task, model=model, display="none", log_dir=config.directory)
    assert log.status == "success", log.error
    return log


@pytest.fixture
def bare(folder: str) -> Iterator[str]:
    """An agent whose user has an empty home, because the tool bash reads the profile there."""
    process, url = start_agent(
        "--listen", "ws://127.0.0.1:0", cwd=folder, env={"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": folder}
    )
    yield url
    stop(process)


def test_session(bare: str, folder: str, transcript: Callable[[str], Transcript]) -> None:
    cutting = CutProxy(bare)
    told = transcript("inspect-ai")
    token = Path(folder, "token")
    token.write_text("the-secret")
    token.chmod(0o600)
    directories: list[Path] = []

    def cut_when_it_runs() -> None:
        while not (found := list(Path(folder).glob("inspect-*/running"))):
            threading.Event().wait(0.01)
        cutting.cut()
        directories.append(found[0].parent)
        Path(found[0].parent, "go").touch()

    cutter = threading.Thread(target=cut_when_it_runs, daemon=True)
    cutter.start()
    log = run(
        ExecagentSandboxConfig(url=cutting.url, directory=folder, token_file=str(token)),
        Sample(
            input="Mend the greeting.",
            files={
                "greet.sh": 'echo "Helo, $1"\n',
                "test.sh": 'test "$(sh greet.sh you)" = "Hello, you" || { echo "FAIL: $(sh greet.sh you)"; exit 1; }\n',
            },
        ),
        told,
        ("bash", {"command": "sh test.sh && echo PASS"}),
        (
            "text_editor",
            {"command": "str_replace", "path": "greet.sh", "old_str": "Helo", "new_str": "Hello"},
        ),
        ("bash", {"command": "sh test.sh && echo PASS"}),
        ("bash", {"command": "touch running; until test -e go; do sleep 0.05; done; echo done"}),
        ("python", {"code": "import time; time.sleep(1000)"}),
        "It greets now, and its test passes. What took long is done, though the connection was cut meanwhile.",
    )
    cutter.join()
    assert cutting.cuts > 0 and not directories[0].exists()
    assert "the-secret" not in log.model_dump_json()
    told.say("", "Another sample may only read.")
    run(
        ExecagentSandboxConfig(url=bare, directory=folder, sandbox=execagent.Sandbox(read_only=True)),
        Sample(input="Make a file."),
        told,
        ("bash", {"command": "echo hello > new"}),
        "I may not write here.",
    )
    assert not list(Path(folder).glob("inspect-*"))
    cutting.close()
