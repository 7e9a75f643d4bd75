"""The adapter to the OpenAI Agents SDK: the rules of its providers, and its Runner with a scripted model."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import io
import json
import os
import re
import socket
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from agents import RunConfig, Runner, RunState
from agents.sandbox import LocalSnapshotSpec, Manifest, SandboxAgent, SandboxPathGrant, SandboxRunConfig
from agents.sandbox.capabilities import Filesystem, Shell
from agents.sandbox.entries import File
from agents.sandbox.errors import (
    ExecNonZeroError,
    ExecTimeoutError,
    ExecTransportError,
    ExposedPortUnavailableError,
    InvalidManifestPathError,
    PtySessionNotFoundError,
    SandboxError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceRootNotFoundError,
    WorkspaceStartError,
    WorkspaceWriteTypeError,
)
from agents.sandbox.files import EntryKind
from agents.sandbox.sandboxes.unix_local import UnixLocalSandboxClient, UnixLocalSandboxSessionState
from agents.sandbox.session import BaseSandboxClientOptions, SandboxSession, SandboxSessionState
from agents.sandbox.session.pty_output import collect_pty_output
from agents.sandbox.snapshot import NoopSnapshot, NoopSnapshotSpec
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call
from openai.types.responses import ResponseCustomToolCall

import execagent
from execagent import Sandbox, openai_agents
from execagent.openai_agents import (
    ExecagentSandboxClient,
    ExecagentSandboxClientOptions,
    ExecagentSandboxSession,
    ExecagentSandboxSessionState,
)

from ..conftest import ROOT, until
from .conftest import CutProxy, Server, Transcript

SECRET = "a-token-that-nobody-may-see"


@contextlib.asynccontextmanager
async def opened(
    client: ExecagentSandboxClient,
    folder: str | None,
    *,
    options: ExecagentSandboxClientOptions | None = None,
    **more: Any,
) -> AsyncIterator[SandboxSession]:
    """A session in a folder, or in a directory of its own."""
    manifest = Manifest(**cast("Any", more if folder is None else {"root": folder, **more}))
    session = await client.create(manifest=manifest, options=options)
    try:
        async with session:
            yield session
    finally:
        await client.delete(session)


@pytest.fixture
async def session(server: Server, folder: str) -> AsyncIterator[SandboxSession]:
    """A session in the folder."""
    async with opened(ExecagentSandboxClient(server.ws), folder) as each:
        yield each


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let updates come at once, and note for how long they would have waited."""
    waits: list[int] = []

    async def at_once(*, yield_time_ms: int, **more: Any) -> Any:
        waits.append(yield_time_ms)
        return await collect_pty_output(yield_time_ms=0, **more)

    monkeypatch.setattr(openai_agents, "collect_pty_output", at_once)
    return waits


def alive(pid: int) -> bool:
    """Report whether a process runs."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def text_of(session: SandboxSession, path: str) -> str:
    """Read a file of a session."""
    return bytes((await session.read(Path(path))).read()).decode()


# Commands.


async def test_a_command_has_output_and_an_exit_code(server: Server, folder: str) -> None:
    client = ExecagentSandboxClient(server.ws, env={"ONE": "1", "TWO": "no"})
    async with opened(client, folder, environment={"value": {"TWO": "2"}}) as session:
        result = await session.exec('printf "$ONE$TWO "; pwd; printf "\\377" >&2; exit 3')
        assert (result.stdout.decode(), result.stderr, result.exit_code) == (f"12 {folder}\n", b"\xff", 3)
        assert (await session.exec("kill -9 $$")).exit_code == 137
        assert (await session.exec("printf", "%s.", "a b", "c", shell=False)).stdout == b"a b.c."
        assert (await session.exec("echo $0", shell=["bash", "-c"])).stdout == b"bash\n"


async def test_a_command_that_cannot_be_started_is_answered_as_by_a_shell(session: SandboxSession, folder: str) -> None:
    missing = await session.exec("no-such-program", shell=False)
    assert (missing.exit_code, b"no-such-program" in missing.stderr) == (127, True)
    Path(folder, "plain").write_text("text")
    assert (await session.exec(f"{folder}/plain", shell=False)).exit_code == 126
    os.rmdir(Path(folder, "gone")) if Path(folder, "gone").exists() else None
    os.unlink(Path(folder, "plain"))
    os.rmdir(folder)
    with pytest.raises(WorkspaceRootNotFoundError):
        await session.exec("true")


async def test_what_a_command_leaves_in_the_background_delays_nothing(session: SandboxSession) -> None:
    result = await session.exec("sleep 600 & echo $!")
    pid = int(result.stdout)
    assert alive(pid)
    update = await session.pty_exec_start("sleep 600 & echo $!", yield_time_s=30)
    other = int(update.output)
    assert (update.exit_code, update.process_id, alive(other)) == (0, None, True)
    await session.pty_terminate_all()
    assert alive(pid)
    os.kill(pid, 9)
    os.kill(other, 9)


async def test_a_time_out_kills_the_command(session: SandboxSession, folder: str) -> None:
    with pytest.raises(ExecTimeoutError) as raised:
        await session.exec("echo $$ >pid.new; mv pid.new pid; exec sleep 600", timeout=1)
    assert (raised.value.timeout_s, raised.value.retryable) == (1, False)
    if Path(folder, "pid").exists():  # otherwise it was killed before that
        pid = int(Path(folder, "pid").read_text())
        await until(lambda: not alive(pid))
    with pytest.raises(ExecTimeoutError):
        await session.exec("sleep 600", timeout=0)


async def test_a_call_that_is_cancelled_kills_the_command(session: SandboxSession, folder: str) -> None:
    call = asyncio.create_task(session.exec("echo $$ >pid.new; mv pid.new pid; exec sleep 600"))
    await until(lambda: Path(folder, "pid").exists())
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await until(lambda: not alive(int(Path(folder, "pid").read_text())))


async def test_output_without_end_is_an_error(session: SandboxSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_agents, "_MAX_OUTPUT", 10_000)
    with pytest.raises(ExecTransportError, match="more than 10000 bytes") as raised:
        await session.exec("yes")
    assert raised.value.context["retry_safe"] is False
    assert len((await session.exec("yes | head -c 10000")).stdout) == 10_000


@pytest.mark.skipif(os.geteuid() != 0, reason="only an agent of root starts commands of other users")
async def test_a_user_owns_what_its_commands_and_its_files_are(session: SandboxSession, folder: str) -> None:
    os.chmod(folder, 0o777)
    for each in Path(folder).parents:
        if Path(tempfile.gettempdir()) in each.parents:
            os.chmod(each, 0o755)
    assert (await session.exec("id -un", user="nobody")).stdout == b"nobody\n"
    update = await session.pty_exec_start("id -un", user="nobody")
    assert (update.output, update.exit_code) == (b"nobody\n", 0)
    await session.write(Path("sub/file"), io.BytesIO(b"text"), user="nobody")
    assert Path(folder, "sub/file").owner() == Path(folder, "sub").owner() == "nobody"
    assert (await session.read(Path("sub/file"), user="nobody")).read() == b"text"
    await session._write_new_file(Path("new/file"), io.BytesIO(b""), user="nobody")
    with pytest.raises(FileExistsError):
        await session._write_new_file(Path("new/file"), io.BytesIO(b"x"), user="nobody")
    assert [each.owner for each in await session.ls("sub", user="nobody")] == ["nobody"]
    await session.mv("sub/file", "sub/moved", user="nobody")
    await session.rm("sub", recursive=True, user="nobody")
    Path(folder, "hidden").write_text("secret")
    os.chmod(Path(folder, "hidden"), 0o600)
    with pytest.raises(WorkspaceArchiveReadError):
        await session.read(Path("hidden"), user="nobody")
    os.chmod(folder, 0o755)
    with pytest.raises(WorkspaceArchiveWriteError):
        await session.write(Path("file"), io.BytesIO(b""), user="nobody")
    with pytest.raises(ExecNonZeroError):
        await session.mkdir("sub", user="nobody")


# Commands that go on.


async def test_a_terminal_takes_input_until_its_command_ends(session: SandboxSession) -> None:
    begun = await session.pty_exec_start(
        "stty -echo; echo ready; read a; echo got $a; exit 4", tty=True, yield_time_s=0
    )
    assert begun.process_id is not None and 1000 <= begun.process_id < 100_000 and begun.exit_code is None
    output = begun.output
    while b"ready" not in output:
        output += (await session.pty_write_stdin(session_id=begun.process_id, chars="")).output
    done = await session.pty_write_stdin(session_id=begun.process_id, chars="it\n", yield_time_s=30)
    assert (done.process_id, done.exit_code, b"got it" in done.output) == (None, 4, True)
    with pytest.raises(PtySessionNotFoundError):
        await session.pty_write_stdin(session_id=begun.process_id, chars="")


async def test_an_interrupt_ends_a_terminal(session: SandboxSession) -> None:
    begun = await session.pty_exec_start("sleep 600", tty=True, yield_time_s=0)
    assert begun.process_id is not None
    update = await session.pty_write_stdin(session_id=begun.process_id, chars="\x03", yield_time_s=30)
    assert (update.process_id, update.exit_code) == (None, 130)


async def test_without_a_terminal_there_is_no_input(session: SandboxSession, quick: list[int]) -> None:
    begun = await session.pty_exec_start("sleep 600")
    assert begun.process_id is not None
    with pytest.raises(RuntimeError) as raised:
        await session.pty_write_stdin(session_id=begun.process_id, chars="x")
    assert str(raised.value) == "stdin is not available for this process"
    assert (await session.pty_write_stdin(session_id=begun.process_id, chars="")).exit_code is None


async def test_waits_are_clamped(session: SandboxSession, quick: list[int]) -> None:
    numbers = [
        (await session.pty_exec_start("exec sleep 600", tty=True, yield_time_s=seconds)).process_id
        for seconds in (None, 0, 1, 1000)
    ]
    for chars, seconds in (("", None), ("", 7), ("x", None), ("x", 0), ("x", 1000)):
        await session.pty_write_stdin(session_id=cast("int", numbers[0]), chars=chars, yield_time_s=seconds)
    assert quick == [10_000, 250, 1000, 30_000, 5000, 7000, 250, 250, 30_000]


async def test_the_command_that_was_used_longest_ago_gives_room(
    session: SandboxSession, quick: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_agents, "PTY_PROCESSES_MAX", 10)
    inner = cast("ExecagentSandboxSession", session._inner)
    begun = [(await session.pty_exec_start("exec sleep 600")).process_id for _ in range(10)]
    assert len({*begun}) == 10 and None not in begun
    first, second = cast("int", begun[0]), cast("int", begun[1])
    await session.pty_write_stdin(session_id=first, chars="")  # which is now the one that was used last
    await session.pty_exec_start("exec sleep 600")
    assert (first in inner._ptys, second in inner._ptys, len(inner._ptys)) == (True, False, 10)


async def test_output_that_nobody_takes_is_bounded(session: SandboxSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openai_agents, "_MAX_UNREAD", 2000)
    update = await session.pty_exec_start("echo first; seq 100000; echo last", yield_time_s=30)
    lines = update.output.decode().splitlines()
    assert (lines[0], lines[-1], update.exit_code) == ("first", "last", 0)
    (note,) = [line for line in lines if "left out" in line]
    assert note == f"[... {588895 + 6 + 5 - 2000} bytes left out ...]"


async def test_a_start_that_is_cancelled_leaves_no_command(session: SandboxSession, folder: str) -> None:
    inner = cast("ExecagentSandboxSession", session._inner)
    task = asyncio.create_task(session.pty_exec_start("echo $$ >pid; exec sleep 600", yield_time_s=30))
    pid = Path(folder, "pid")
    await until(lambda: pid.exists() and pid.read_text())
    await until(lambda: inner._ptys)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not alive(int(pid.read_text())) and not inner._ptys)


async def test_a_command_that_reads_nothing_holds_nobody(
    session: SandboxSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(openai_agents, "_TO_WRITE", 1)
    begun = await session.pty_exec_start("stty raw -echo; exec sleep 600", tty=True, yield_time_s=0)
    assert begun.process_id is not None
    with pytest.raises(ExecTransportError, match="does not read its input"):
        await session.pty_write_stdin(session_id=begun.process_id, chars="x" * (64 << 20))


async def test_an_update_is_cut_by_tokens_and_never_within_a_character(session: SandboxSession, folder: str) -> None:
    os.mkfifo(f"{folder}/go")
    begun = await session.pty_exec_start(r"printf '\303'; cat go; printf '\244'; seq 1000", yield_time_s=0)
    assert begun.process_id is not None
    held = begun.output
    Path(folder, "go").write_text("")
    update = await session.pty_write_stdin(session_id=begun.process_id, chars="", yield_time_s=30, max_output_tokens=20)
    assert held == b"" and update.output.decode().startswith("Total output lines: 1000") and update.exit_code == 0
    assert "ä1" in update.output.decode() and "truncated" in update.output.decode()
    assert update.original_token_count is not None and update.original_token_count > 20


async def test_the_end_of_a_session_ends_its_commands(server: Server, folder: str) -> None:
    async with opened(ExecagentSandboxClient(server.ws), folder) as session:
        await session.pty_exec_start("echo $$ >pid; exec sleep 600", yield_time_s=1)
        await until(lambda: Path(folder, "pid").exists() and Path(folder, "pid").read_text())
        pid = int(Path(folder, "pid").read_text())
        left = int((await session.exec("sleep 600 >/dev/null 2>&1 & echo $!")).stdout)
        await session.stop()
        await until(lambda: not alive(pid))
        assert alive(left)
    await until(lambda: not alive(left))
    assert not await session.running()
    with pytest.raises(ExecTransportError, match="not started"):
        await session.exec("true")


# Files.


async def test_files_are_written_and_read(
    session: SandboxSession, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytes(range(256)) * 12_000
    await session.write(Path("deep/er/file"), io.BytesIO(data))
    assert Path(folder, "deep/er/file").read_bytes() == data
    monkeypatch.setattr(openai_agents, "_MAX_WHOLE", 1 << 20)  # larger files pass in blocks
    with await session.read(Path(f"{folder}/deep/er/file")) as file:
        assert file.read() == data
    await session.write(Path("big"), io.BytesIO(data))
    assert Path(folder, "big").read_bytes() == data
    assert await session.read_bounded(Path("big"), max_bytes=300) == data[:300]
    await session.write(Path("big"), io.BytesIO(b""))
    assert (await session.read(Path("big"))).read() == b""


async def test_errors_of_files_are_those_of_the_harness(session: SandboxSession, folder: str) -> None:
    Path(folder, "file").write_text("text")
    os.mkdir(Path(folder, "dir"))
    os.mkfifo(Path(folder, "fifo"))
    with pytest.raises(WorkspaceReadNotFoundError):
        await session.read(Path("none"))
    with pytest.raises(WorkspaceReadNotFoundError):
        await session.read_bounded(Path("none"), max_bytes=1)
    for name in ("dir", "fifo", "file/below"):
        with pytest.raises(WorkspaceArchiveReadError) as raised:
            await session.read(Path(name))
        assert raised.value.retryable is False
    for name in ("dir", "file/below"):
        with pytest.raises(WorkspaceArchiveWriteError):
            await session.write(Path(name), io.BytesIO(b""))
    with pytest.raises(WorkspaceWriteTypeError):
        await session.write(Path("file"), cast("io.IOBase", io.StringIO("text")))
    for call in (session.ls("none"), session.rm("none"), session.mv("none", "other"), session.mv("dir", "other")):
        with pytest.raises(ExecNonZeroError):
            await call
    for write in (session.rm("dir"), session.mkdir("file"), session.mkdir("no/parent"), session.mkdir("dir")):
        with pytest.raises(WorkspaceArchiveWriteError):
            await write


async def test_directories_are_listed_with_links_and_owners(session: SandboxSession, folder: str) -> None:
    Path(folder, "file").write_text("text")
    os.chmod(Path(folder, "file"), 0o640)
    os.mkdir(Path(folder, "dir"))
    os.mkfifo(Path(folder, "fifo"))
    os.symlink("nowhere", Path(folder, "link"))
    found = {each.path.removeprefix(f"{folder}/"): each for each in await session.ls(".")}
    assert {name: each.kind for name, each in found.items()} == {
        "dir": EntryKind.DIRECTORY,
        "fifo": EntryKind.OTHER,
        "file": EntryKind.FILE,
        "link": EntryKind.SYMLINK,
    }
    file = found["file"]
    assert (str(file.permissions), file.size, file.owner) == ("-rw-r-----", 4, Path(folder, "file").owner())
    assert found["dir"].permissions.directory and not file.permissions.directory
    assert [each.path for each in await session.ls("file")] == [f"{folder}/file"]
    Path(folder, "dir", "of\ntwo lines").touch()
    Path(os.fsdecode(os.fsencode(f"{folder}/dir/") + b"no text \xff")).touch()
    assert [each.path for each in await session.ls("dir")] == [
        f"{folder}/dir/no text \ufffd",
        f"{folder}/dir/of\ntwo lines",
    ]


async def test_files_are_moved_compared_and_removed(session: SandboxSession, folder: str) -> None:
    await session.mkdir("a/b", parents=True)
    await session.mkdir("a/b", parents=True)
    await session.write(Path("a/file"), io.BytesIO(b"text"))
    os.link(Path(folder, "a/file"), Path(folder, "hard"))
    os.symlink("file", Path(folder, "a/link"))
    for other, same in (("hard", True), ("a/link", True), ("a/b", False), ("none", False)):
        assert await session.same_file("a/file", other) is same
    await session.mv("a/link", "moved")
    assert os.readlink(Path(folder, "moved")) == "file"
    await session.mv("a/file", "moved")
    assert Path(folder, "moved").read_text() == "text"
    with pytest.raises(ExecNonZeroError):
        await session.mv("moved", "a")
    await session.rm("a", recursive=True)
    await session.rm("a", recursive=True)
    await session.rm("hard")
    assert sorted(os.listdir(folder)) == ["moved"]


async def test_a_new_file_takes_no_name_that_exists(session: SandboxSession, folder: str) -> None:
    os.symlink("nowhere", Path(folder, "link"))
    for name in ("link", "link"):
        with pytest.raises(FileExistsError):
            await session._write_new_file(Path(name), io.BytesIO(b""))
    await session._write_new_file(Path("sub/new"), io.BytesIO(b"text"))
    assert Path(folder, "sub/new").read_text() == "text"


async def test_no_path_leads_out_of_the_workspace(server: Server, folder: str, tmp_path: Path) -> None:
    for name in ("outside", "open", "fixed"):
        Path(tmp_path, name).mkdir()
        Path(tmp_path, name, "file").write_text("text")
    os.symlink(tmp_path / "outside", Path(folder, "out"))
    os.symlink(tmp_path / "fixed", Path(folder, "in"))
    os.symlink("../outside/file", Path(folder, "leaf"))
    os.symlink("loop", Path(folder, "loop"))
    grants = (
        SandboxPathGrant(path=str(tmp_path / "open")),
        SandboxPathGrant(path=str(tmp_path / "fixed"), read_only=True),
        SandboxPathGrant(path=str(tmp_path / "open/kept"), read_only=True),
    )
    async with opened(ExecagentSandboxClient(server.ws), folder, extra_path_grants=grants) as session:
        for name in ("../outside/file", f"{tmp_path}/outside/file", "out/file", "leaf", "out/none"):
            with pytest.raises(InvalidManifestPathError):
                await session.read(Path(name))
            with pytest.raises(InvalidManifestPathError):
                await session.write(Path(name), io.BytesIO(b""))
            with pytest.raises(InvalidManifestPathError):
                await session.rm(name, recursive=True)
        with pytest.raises(ExecNonZeroError):
            await session.read(Path("loop"))
        assert (await session.read(tmp_path / "open/file")).read() == b"text"
        await session.write(tmp_path / "open/file", io.BytesIO(b"new"))
        for name in (f"{tmp_path}/fixed/file", "in/file"):
            assert (await session.read(Path(name))).read() == b"text"
            with pytest.raises(WorkspaceArchiveWriteError):
                await session.write(Path(name), io.BytesIO(b""))
            with pytest.raises(WorkspaceArchiveWriteError):
                await session.mkdir(f"{name}.d")
        Path(tmp_path, "open/kept").mkdir()
        with pytest.raises(WorkspaceArchiveWriteError):
            await session.rm(tmp_path / "open", recursive=True)
        assert sorted(os.listdir(tmp_path / "open")) == ["file", "kept"]
    os.symlink("/", tmp_path / "slash")
    manifest = Manifest(root=folder, extra_path_grants=(SandboxPathGrant(path=str(tmp_path / "slash")),))
    session = await ExecagentSandboxClient(server.ws).create(manifest=manifest)
    with pytest.raises(ValueError, match="root of the file system"):
        await session.start()
    await session.aclose()


# What is kept.


async def test_the_state_has_no_secret(server: Server) -> None:
    client = ExecagentSandboxClient(
        f"{server.ws}/?key={SECRET}", token=SECRET, env={"KEY": SECRET}, sandbox=Sandbox(workspace=".")
    )
    options = ExecagentSandboxClientOptions(exposed_ports=(8080,), pause_on_exit=True)
    assert BaseSandboxClientOptions.parse(options.model_dump(mode="json")) == options
    session = await client.create(options=options)
    payload = json.loads(json.dumps(client.serialize_session_state(session.state)))
    assert SECRET not in json.dumps(payload) + repr(session.state) + repr(vars(options))
    state = client.deserialize_session_state(payload)
    assert isinstance(state, ExecagentSandboxSessionState) and state == SandboxSessionState.parse(payload)
    assert state.exposed_ports == (8080,) and state.pause_on_exit
    assert state.ref.startswith("openai-agents-") and state.ref.endswith(f"@{server.ws}/")


async def test_a_state_leads_into_no_session_of_others(server: Server, folder: str) -> None:
    client = ExecagentSandboxClient(server.ws, cwd=folder)
    state = client.deserialize_session_state(client.serialize_session_state((await client.create()).state))
    state = state.model_copy(update={"ref": f"work@{server.ws}/"})
    with pytest.raises(ValueError, match="state.ref is 'work@"):
        await client.resume(state)


async def test_a_file_that_is_too_long_is_not_read(
    session: SandboxSession, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path(folder, "file").touch()
    os.truncate(f"{folder}/file", 40 << 20)
    with contextlib.closing(await session.read(Path("file"))) as content:
        assert len(content.read()) == 40 << 20
    monkeypatch.setattr(openai_agents, "_MAX_FILE", 39 << 20)
    with pytest.raises(WorkspaceArchiveReadError, match="too large|failed to read"):
        await session.read(Path("file"))


async def test_wrong_arguments_are_refused(server: Server, folder: str) -> None:
    for wrong in ({"session": "mine"}, {"existing": True}, {"context": "one"}, {"cwd": "relative"}):
        with pytest.raises(ValueError):
            client = ExecagentSandboxClient(server.ws, **cast("Any", wrong))
            await client.create()
    with pytest.raises(ValueError):
        ExecagentSandboxClientOptions(exposed_ports=(0,))
    client = ExecagentSandboxClient(server.ws)
    foreign = UnixLocalSandboxSessionState(manifest=Manifest(), snapshot=NoopSnapshot(id="x"))
    with pytest.raises(TypeError):
        await client.resume(foreign)
    local = UnixLocalSandboxClient()
    with pytest.raises(TypeError):
        await client.delete(await local.create(manifest=Manifest(root=folder)))
    state = cast("ExecagentSandboxSessionState", (await client.create()).state)
    with pytest.raises(ValueError, match="SESSION@WHERE"):
        await client.resume(state.model_copy(update={"ref": "../x"}))


async def test_a_workspace_of_its_own_is_private_and_ends_with_the_session(server: Server) -> None:
    async with opened(ExecagentSandboxClient(server.ws), None, entries={"dir/file": File(content=b"text")}) as session:
        root = Path(session.state.manifest.root)
        assert root.parent == Path("/tmp") and root.stat().st_mode & 0o777 == 0o700
        assert await text_of(session, "dir/file") == "text"
    assert not root.exists()


async def test_the_workspace_of_the_client_stays(server: Server, folder: str) -> None:
    async with opened(ExecagentSandboxClient(server.ws, cwd=folder), None) as session:
        assert session.state.manifest.root == folder
        await session.write(Path("file"), io.BytesIO(b"text"))
    assert Path(folder, "file").read_text() == "text"


async def test_sessions_beside_it_end_with_a_session(server: Server, folder: str) -> None:
    """A client whose old connection still has the session goes on in one beside it."""
    async with opened(ExecagentSandboxClient(server.ws), folder) as session:
        name = cast("Any", session.state).ref.partition("@")[0]
        async with server.connect("ws", session=f"{name}.{'0' * 16}") as beside:
            await beside.spawn(["sleep", "600"])
    async with server.connect("ws") as agent:
        assert [each for each in await agent.sessions.list() if each.name.startswith(name)] == []


async def test_a_session_is_resumed_while_the_agent_has_it(server: Server, folder: str) -> None:
    client = ExecagentSandboxClient(server.ws)
    manifest = Manifest(root=folder, entries={"file": File(content=b"old")})
    async with await client.create(manifest=manifest) as session:
        left = int((await session.exec("sleep 600 >/dev/null 2>&1 & echo $!")).stdout)
        await session.write(Path("file"), io.BytesIO(b"new"))
    saved = client.serialize_session_state(session.state)

    again = ExecagentSandboxClient(server.ws)
    async with await again.resume(again.deserialize_session_state(dict(saved))) as resumed:
        assert resumed.state == session.state and await resumed.running()
        assert (await text_of(resumed, "file"), alive(left)) == ("new", True)
    await again.delete(resumed)
    await until(lambda: not alive(left))

    async with await client.resume(client.deserialize_session_state(dict(saved))) as other:
        assert cast("Any", other.state).ref != cast("Any", session.state).ref
        assert await text_of(other, "file") == "old"
    await client.delete(other)


async def test_a_workspace_that_was_removed_is_made_again(server: Server, folder: str) -> None:
    client = ExecagentSandboxClient(server.ws)
    async with await client.create(manifest=Manifest(root=folder, entries={"file": File(content=b"old")})) as session:
        pass
    os.unlink(Path(folder, "file"))
    os.rmdir(folder)
    async with await client.resume(session.state) as resumed:
        assert await text_of(resumed, "file") == "old"
    await client.delete(resumed)


async def test_a_snapshot_is_restored_where_the_session_is_gone(server: Server, folder: str, tmp_path: Path) -> None:
    client = ExecagentSandboxClient(server.ws)
    spec = LocalSnapshotSpec(base_path=tmp_path / "snapshots")
    manifest = Manifest(
        root=folder, entries={"kept": File(content=b"old"), "temporary": File(content=b"x", ephemeral=True)}
    )
    async with await client.create(manifest=manifest, snapshot=spec) as session:
        await session.write(Path("kept"), io.BytesIO(b"new"))
        await session.write(Path("temporary"), io.BytesIO(b"y"))
    await client.delete(session)
    Path(folder, "kept").write_text("drifted")
    os.symlink("/etc", Path(folder, "stray"))
    async with await client.resume(session.state) as resumed:
        assert sorted(os.listdir(folder)) == ["kept", "temporary"]
        assert (await text_of(resumed, "kept"), await text_of(resumed, "temporary")) == ("new", "x")
        os.symlink("/etc", Path(folder, "out"))
    await client.delete(resumed)
    # The harness restores no link that leads out of the workspace. What is there stays.
    refused = await client.resume(resumed.state)
    with pytest.raises(WorkspaceArchiveWriteError):
        await refused.start()
    assert sorted(os.listdir(folder)) == ["kept", "out", "temporary"]
    await client.delete(refused)


async def test_an_archive_is_portable(server: Server, session: SandboxSession, folder: str, tmp_path: Path) -> None:
    await session.exec(
        "mkdir -p a/b skip; echo text >a/file; chmod 750 a/file; ln a/file a/b/hard; ln -s file a/link; echo x >skip/x;"
        f"ln -s {folder}/a/file a/b/absolute; mkfifo fifo; printf '%01000d' 0 >'$(touch no)'"
    )
    session.register_persist_workspace_skip_path("skip")
    archive = await session.persist_workspace()
    with tarfile.open(fileobj=cast("Any", archive)) as tar:
        found = {os.path.normpath(each.name): each for each in tar.getmembers()}
    assert sorted(found) == ["$(touch no)", ".", "a", "a/b", "a/b/absolute", "a/b/hard", "a/file", "a/link"]
    assert (found["a/b/absolute"].linkname, found["a/b/hard"].isreg()) == ("../../a/file", True)

    local = UnixLocalSandboxClient()
    for client in (ExecagentSandboxClient(server.ws), local):
        target = tmp_path / type(client).__name__
        other = await client.create(manifest=Manifest(root=str(target)))
        async with other:
            archive.seek(0)
            await other.hydrate_workspace(archive)
            assert (target / "a/b/absolute").read_text() == (target / "a/b/hard").read_text() == "text\n"
            assert (target / "a/file").stat().st_mode & 0o777 == 0o750
            back = await other.persist_workspace()
        with back:
            await session.hydrate_workspace(back)
    archive.close()
    assert Path(folder, "a/b/hard").stat().st_nlink == 1


@pytest.mark.parametrize("kind", ["plain", "gz", "xz"])
async def test_an_archive_may_be_compressed(session: SandboxSession, folder: str, kind: str) -> None:
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w" if kind == "plain" else cast("Any", f"w:{kind}")) as tar:
        member = tarfile.TarInfo("sub/file")
        member.size = 4
        tar.addfile(member, io.BytesIO(b"text"))
    archive.seek(0)
    await session.hydrate_workspace(archive)
    assert Path(folder, "sub/file").read_text() == "text"


@pytest.mark.parametrize("name,link", [("../x", None), ("/x", None), ("link", "/etc"), ("link", "../x"), (None, None)])
async def test_an_archive_that_leaves_the_workspace_is_refused(
    session: SandboxSession, folder: str, name: str | None, link: str | None
) -> None:
    archive = io.BytesIO(b"no archive" * 100)
    if name is not None:
        with tarfile.open(fileobj=archive, mode="w") as tar:
            member = tarfile.TarInfo(name)
            if link is not None:
                member.type, member.linkname = tarfile.SYMTYPE, link
            tar.addfile(member)
        archive.seek(0)
    with pytest.raises(WorkspaceArchiveWriteError):
        await session.hydrate_workspace(archive)
    assert os.listdir(folder) == []


# The network.


async def test_a_port_is_reached_from_here(server: Server, folder: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    script = (
        f"import socket; s = socket.create_server(('127.0.0.1', {port})); print('up', flush=True)\n"
        "while True: c, _ = s.accept(); c.sendall(b'hello'); c.close()"
    )
    options = ExecagentSandboxClientOptions(exposed_ports=(port,))
    async with opened(ExecagentSandboxClient(server.ws), folder, options=options) as session:
        with pytest.raises(ExposedPortUnavailableError):
            await session.resolve_exposed_port(port + 1)
        begun = await session.pty_exec_start(sys.executable, "-c", script, shell=False, yield_time_s=1)
        output = begun.output
        while b"up" not in output:
            output += (await session.pty_write_stdin(session_id=cast("int", begun.process_id), chars="")).output
        at = await session.resolve_exposed_port(port)
        assert (at.host, at.tls, await session.resolve_exposed_port(port)) == ("127.0.0.1", False, at)
        reader, writer = await asyncio.open_connection(at.host, at.port)
        assert await reader.read() == b"hello"
        writer.close()
    with pytest.raises(OSError):
        await asyncio.open_connection(at.host, at.port)


async def test_a_lost_connection_changes_no_result(cutting: CutProxy, folder: str) -> None:
    async with opened(ExecagentSandboxClient(cutting.url), folder) as session:
        os.mkfifo(f"{folder}/go")
        call = asyncio.create_task(session.exec("touch at; seq 50000; cat go; seq 50000; exit 5"))
        begun = await session.pty_exec_start("sh -c 'echo pty; read line; echo $line'", tty=True, yield_time_s=0)
        await until(lambda: Path(folder, "at").exists())
        cutting.cut()
        assert await session.running()
        Path(folder, "go").write_text("")
        cutting.cut()
        result = await call
        assert (result.exit_code, len(result.stdout)) == (5, 2 * 288894)
        update = await session.pty_write_stdin(
            session_id=cast("int", begun.process_id), chars="back\n", yield_time_s=30
        )
        assert (update.exit_code, b"back" in update.output) == (0, True)
        assert cutting.cuts > 0


async def test_a_lost_connection_loses_no_change_of_files(cutting: CutProxy, folder: str) -> None:
    async with opened(ExecagentSandboxClient(cutting.url), folder) as session:
        for number in range(12):
            path = Path(f"sub{number}/file")
            for call in (
                session.mkdir(path.parent, parents=True),
                session.write(path, io.BytesIO(b"text")),
                session.read(path),
                session.ls(path.parent),
                session.rm(path.parent, recursive=True),
            ):
                doing = asyncio.ensure_future(call)
                for _ in range(number):
                    await asyncio.sleep(0)
                cutting.cut()
                await doing
        with await session.persist_workspace() as archive:
            cutting.cut()
            await session.hydrate_workspace(archive)
    assert cutting.cuts > 20 and os.listdir(folder) == []


async def test_a_connection_that_does_not_come_back_is_an_error_and_then_a_new_start(
    cutting: CutProxy, folder: str
) -> None:
    way = functools.partial(execagent.connect, cutting.url, recovery_timeout=0.2)
    client = ExecagentSandboxClient(connect=way)
    async with opened(client, folder, entries={"file": File(content=b"old")}) as session:
        ref = cast("Any", session.state).ref
        begun = await session.pty_exec_start("sleep 600", yield_time_s=0)
        call = asyncio.create_task(session.exec("touch at; sleep 600"))
        await until(lambda: Path(folder, "at").exists())
        cutting.cut(for_good=True)
        with pytest.raises(ExecTransportError) as raised:
            await call
        assert (raised.value.context["retry_safe"], raised.value.retryable) == (False, False)
        with pytest.raises(ExecTransportError):
            await session.pty_write_stdin(session_id=cast("int", begun.process_id), chars="")
        assert not await session.running()
        with pytest.raises(WorkspaceStartError) as start:
            await session.start()
        assert start.value.retryable is True
        cutting.mend()
        await session.write(Path("file"), io.BytesIO(b"new"))
        assert await session.running()
        await session.start()
        assert (cast("Any", session.state).ref, await text_of(session, "file")) == (ref, "new")


async def test_what_was_not_begun_may_be_tried_again(server: Server, folder: str) -> None:
    async with opened(ExecagentSandboxClient(server.ws), folder) as session:
        inner = cast("ExecagentSandboxSession", session._inner)

        async def busy(*_: object) -> Any:
            raise execagent.BusyError("1,024 calls wait")

        inner._shared.call = busy  # type: ignore[method-assign, assignment]
        for call in (session.exec("true"), session.pty_exec_start("true")):
            with pytest.raises(ExecTransportError) as raised:
                await call
            assert (raised.value.context["retry_safe"], raised.value.retryable) == (True, True)
        with pytest.raises(SandboxError) as wrote:
            await session.write(Path("file"), io.BytesIO(b""))
        assert wrote.value.retryable is True
        del inner._shared.call


# The sandbox.


async def test_a_sandbox_confines_commands_and_files(server: Server, folder: str) -> None:
    Path(folder, "file").write_text("text")
    async with opened(ExecagentSandboxClient(server.ws, sandbox=Sandbox(read_only=True)), folder) as session:
        assert await text_of(session, "file") == "text"
        result = await session.exec("cat file; echo more >file")
        assert result.stdout == b"text" and result.exit_code != 0
        update = await session.pty_exec_start("echo more >file", yield_time_s=30)
        assert update.exit_code not in (0, None)
        for call in (
            session.write(Path("file"), io.BytesIO(b"")),
            session.mkdir("dir"),
            session.rm("file"),
            session._write_new_file(Path("new"), io.BytesIO(b"")),
        ):
            with pytest.raises(WorkspaceArchiveWriteError) as raised:
                await call
            assert isinstance(raised.value.cause, PermissionError | OSError) and raised.value.retryable is False
        with pytest.raises(ExecNonZeroError):
            await session.mv("file", "other")
        with await session.persist_workspace() as archive:
            assert archive.readable()
    assert os.listdir(folder) == ["file"]

    async with opened(ExecagentSandboxClient(server.ws, sandbox=Sandbox(workspace=".")), folder) as session:
        await session.write(Path("file"), io.BytesIO(b"new"))
        assert (await session.exec("echo more >>file; cat file; touch /usr/new")).stdout == b"newmore\n"


# The harness itself.


def patch(call_id: str, text: str) -> list[Any]:
    """A call of the tool apply_patch."""
    return [ResponseCustomToolCall(type="custom_tool_call", name="apply_patch", call_id=call_id, input=text)]


def command(call_id: str, cmd: str, **more: Any) -> list[Any]:
    """A call of the tool exec_command."""
    return [function_call("exec_command", {"cmd": cmd, "yield_time_ms": 30_000, **more}, call_id=call_id)]


def agent(steps: Sequence[Any], capabilities: Sequence[Any] | None = None) -> SandboxAgent[Any]:
    """An agent whose model says what it is told."""
    return SandboxAgent(
        name="mender",
        instructions="Mend the tests.",
        model=ScriptedModel(steps),
        capabilities=list(capabilities or [Shell(), Filesystem()]),
    )


def config(client: ExecagentSandboxClient, **more: Any) -> RunConfig:
    """A run in a sandbox, without tracing."""
    sandbox = SandboxRunConfig(client=client, snapshot=NoopSnapshotSpec(), **more)
    return RunConfig(sandbox=sandbox, tracing_disabled=True)


def tell(transcript: Transcript, items: Sequence[Any]) -> None:
    """Write what was said in a run. Numbers that differ between runs are left out."""
    for item in items:
        raw = item.raw_item
        if item.type == "tool_call_item":
            given = raw.input if raw.type == "custom_tool_call" else raw.arguments
            given = re.sub(r',"yield_time_ms":\d+', "", re.sub(r'"session_id":\d+', '"session_id":N', given))
            transcript.say("model", f"{raw.name} {given}")
        elif item.type == "tool_call_output_item":
            lines = [line for line in item.output.splitlines() if not line.startswith(("Chunk ID:", "Wall time:"))]
            transcript.say("tool", re.sub(r"(session ID|cannot read) \d+", r"\1 N", "\n".join(lines)))
        elif item.type == "message_output_item":
            transcript.say("model", raw.content[0].text)


async def test_the_runner_mends_a_program(
    cutting: CutProxy, project: str, transcript: Callable[[str], Transcript]
) -> None:
    told = transcript("openai_agents")
    client = ExecagentSandboxClient(cutting.url, cwd=project, sandbox=Sandbox(workspace="."), retain=60)
    number = re.compile(r"session ID (\d+)")

    def cut_before(output: list[Any]) -> Callable[[Any], list[Any]]:
        def respond(_: Any) -> list[Any]:
            cutting.cut()
            return output

        return respond

    def interrupt(call: Any) -> list[Any]:
        (running,) = number.findall(call.input[-1]["output"])
        given = {"session_id": int(running), "chars": "\x03", "yield_time_ms": 30_000}
        return [function_call("write_stdin", given, call_id="c4")]

    mend = '*** Begin Patch\n*** Update File: greet.sh\n@@\n-echo "Helo, $1"\n+echo "Hello, $1"\n*** End Patch'
    steps = [
        command("c1", "sh test.sh"),
        patch("c2", mend),
        command("c3", "sleep 600", tty=True, yield_time_ms=250),
        ModelStep.respond(interrupt),
        ModelStep.respond(cut_before(command("c5", "sh test.sh"))),
        [assistant_message("The greeting is mended.")],
    ]
    told.say("user", "Mend the program, so that sh test.sh passes.")
    result = await Runner.run(agent(steps), "Mend the program.", run_config=config(client))
    assert cutting.cuts > 0 and Path(project, "greet.sh").read_text() == 'echo "Hello, $1"\n'
    tell(told, result.new_items)

    told.say("user", "Now the sandbox is read-only. Spoil it again.")
    spoil = "*** Begin Patch\n*** Add File: new.sh\n+exit 1\n*** End Patch"
    steps = [command("c6", "cp greet.sh test.sh"), patch("c7", spoil), [assistant_message("I am not allowed to.")]]
    guarded = ExecagentSandboxClient(cutting.url, cwd=project, sandbox=Sandbox(read_only=True))
    result = await Runner.run(agent(steps), "Spoil it.", run_config=config(guarded))
    assert sorted(os.listdir(project)) == ["greet.sh", "test.sh"]
    tell(told, result.new_items)


async def test_the_runner_resumes_a_run_that_waits_for_an_answer(server: Server, folder: str) -> None:
    def ask(tools: Any) -> None:
        tools.exec_command.needs_approval = True

    def maker() -> ExecagentSandboxClient:
        return ExecagentSandboxClient(server.ws, cwd=folder, env={"KEY": SECRET}, retain=60)

    steps = [command("c1", "cat made; echo $KEY >key; echo done"), [assistant_message("Done.")]]
    worker = agent(steps, [Shell(configure_tools=ask)])
    options = ExecagentSandboxClientOptions(pause_on_exit=True)
    manifest = Manifest(entries={"made": File(content=b"by the manifest\n")})
    first = await Runner.run(worker, "Go.", run_config=config(maker(), options=options, manifest=manifest))
    assert len(first.interruptions) == 1
    Path(folder, "made").write_text("by hand\n")
    saved = json.dumps(first.to_state().to_json())
    assert SECRET not in saved and "openai-agents-" in saved

    state = await RunState.from_json(worker, json.loads(saved))
    state.approve(state.get_interruptions()[0])
    second = await Runner.run(worker, state, run_config=config(maker(), options=options))
    outputs = [item.output for item in second.new_items if item.type == "tool_call_output_item"]
    assert "by hand\ndone" in str(outputs[-1]) and second.final_output == "Done."
    assert Path(folder, "key").read_text() == SECRET + "\n"


async def test_the_runner_uses_a_session_of_the_caller(session: SandboxSession, folder: str) -> None:
    for call_id in ("c1", "c2"):
        steps = [command(call_id, "echo line >>log; wc -l <log"), [assistant_message("Done.")]]
        run = RunConfig(sandbox=SandboxRunConfig(session=session), tracing_disabled=True)
        await Runner.run(agent(steps), "Go.", run_config=run)
    assert await session.running() and Path(folder, "log").read_text() == "line\n" * 2


def test_the_page_of_the_documents_runs(server: Server, tmp_path: Path) -> None:
    page = (ROOT / "docs/integrations/openai-agents.md").read_text()
    found = re.findall(r"```python run\n(.*?)```\n\n```text output\n(.*?)```", page, re.DOTALL)
    assert found
    for number, (program, output) in enumerate(found):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "model.py").write_text(MODEL)
        env = {**os.environ, "AGENT_URL": server.ws, "PYTHONPATH": str(folder), "HOME": str(folder)}
        done = subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, text=True, cwd=folder)
        assert (done.returncode, done.stdout) == (0, output), done.stderr


MODEL = """
from agents import set_tracing_disabled
from agents.testing import ModelStep, ScriptedModel, assistant_message, function_call

set_tracing_disabled(True)


def answer(call):
    return [assistant_message(f"It is {call.input[-1]['output'].splitlines()[-1]}.")]


model = ScriptedModel([[function_call("exec_command", {"cmd": "uname -s"}, call_id="c1")], ModelStep.respond(answer)])
"""
