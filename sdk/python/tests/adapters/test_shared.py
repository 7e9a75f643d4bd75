"""What the adapters share: one connection for all threads and loops, commands with bounds, archives."""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import functools
import gc
import io
import os
import pickle
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest

import execagent
from execagent._adapter import Options, Ref, SessionGoneError, Shared, Workspace, not_started
from execagent._files import File

from ..conftest import Server, until
from .conftest import PATIENCE, CutProxy, has_output


def shared(server: Server, folder: str, **options: object) -> Shared:
    merged: Options = {"cwd": folder, **options}  # type: ignore[typeddict-item]
    return Shared(server.ws, "test", merged)


def test_from_every_loop_and_thread(server: Server, folder: str) -> None:
    """Two event loops and a thread without one use the same session."""
    made = shared(server, folder)
    assert not made.opened

    async def identity(w: Workspace) -> str:
        return w.agent.session_id

    async def twice() -> set[str]:
        return {*await asyncio.gather(made.call(identity), made.call(identity))}

    seen = asyncio.run(twice()) | asyncio.run(twice()) | {made.wait(identity)}
    assert len(seen) == 1 and made.opened
    made.close()
    made.close()
    with pytest.raises(execagent.ClosedError):
        made.wait(identity)


def test_threads_share_their_first_call(server: Server, folder: str) -> None:
    made = shared(server, folder)
    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        names = set(threads.map(lambda _: made.wait(_session_of), range(16)))
    assert names == {made.ref.session}
    asyncio.run(made.end())


async def test_ends_with_its_last_holder(server: Server, folder: str) -> None:
    """Some harnesses close nothing: the connection and the thread end when nobody holds the adapter."""
    made, others = shared(server, folder, session="held"), set(threading.enumerate())
    await made.call(lambda w: w.run(["true"]))
    (thread,) = {each for each in threading.enumerate() if each.name == "execagent"} - others
    del made
    gc.collect()
    await until(lambda: not thread.is_alive())
    async with server.connect("ws", session="held", existing=True) as agent:
        await agent.sessions.end(agent.session_id)


async def test_changes_over_cuts(cutting: CutProxy, folder: str) -> None:
    """Changes that may be made twice are made, however often the connection is cut."""
    made = Shared(cutting.url, "test", {"cwd": folder})
    await made.call(lambda w: w.run(["true"]))
    done = asyncio.Event()

    async def change() -> None:
        for number in range(100):
            await made.call(lambda w, path=f"{number}/file": w.write(path, b"x" * 10_000))  # type: ignore[misc]
            await made.call(lambda w, path=str(number): w.remove(path))  # type: ignore[misc]
        done.set()

    task = asyncio.create_task(change())
    while not done.is_set() and not task.done():
        cutting.cut()
        await asyncio.sleep(0.02)
    await task
    assert cutting.cuts > 2 and os.listdir(folder) == []
    with pytest.raises(FileNotFoundError):
        await made.call(lambda w: w.remove("missing"))
    await made.end()


async def test_large_files_over_a_cut(cutting: CutProxy, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An open file ends with its connection. Then a large file is read, or written, from its beginning."""
    made, data = Shared(cutting.url, "test", {"cwd": folder}), os.urandom(33 << 20)

    def cut_after(name: str) -> None:
        call, done = getattr(File, name), list[bool]()

        async def cut(file: File, *args: Any) -> Any:
            if not done:
                done.append(True)
                await call(file, *args)
                cutting.cut()
                await until(lambda: file._link.end is not None)
            return await call(file, *args)

        monkeypatch.setattr(File, name, cut)

    cut_after("write_at")
    cut_after("read_at")
    await made.call(lambda w: w.write("file", data))
    read = await made.call(lambda w: w.read("file"))
    right = (Path(folder, "file").read_bytes() == data, read == data)  # their difference is not of use
    assert right == (True, True) and cutting.cuts > 1
    await made.end()


async def test_commands(server: Server, folder: str) -> None:
    made = shared(server, folder, env={"A": "1", "B": "1"})
    shell = functools.partial(made.call)
    done = await shell(lambda w: w.shell('cat; echo "$A$B" >&2; pwd; exit 3', input=b"in\n", env={"B": "2"}))
    assert (done.exit_code, done.stdout, done.stderr) == (3, f"in\n{folder}\n".encode(), b"12\n")
    assert (await shell(lambda w: w.shell('echo "$A$B"'))).stdout == b"11\n"
    for timeout in PATIENCE:
        late = await shell(lambda w, timeout=timeout: w.shell("echo begun; sleep 1000", timeout=timeout))  # type: ignore[misc]
        if late.stdout:
            break
    assert late.timed_out and (late.exit_code, late.stdout) == (137, b"begun\n")
    left = await shell(lambda w: w.shell("sleep 1000 & echo $!"))
    os.kill(int(left.stdout), 9)  # it holds the output, and nobody has waited for it
    much = await shell(lambda w: w.run(["seq", "100000"], max_output=20))
    assert much.stdout.startswith(b"1\n2\n") and much.stdout.endswith(b"100000\n") and much.stdout_truncated
    with pytest.raises(execagent.OutputLimitError):
        await shell(lambda w: w.run(["seq", "100000"], max_output=20, overflow="error"))
    for argv, code in ((["no-such-program"], 127), (["/etc/passwd"], 126)):
        with pytest.raises(execagent.RpcError) as caught:
            await shell(lambda w, argv=argv: w.run(argv))  # type: ignore[misc]
        assert not_started("it", caught.value).exit_code == code
    with pytest.raises(FileNotFoundError) as missing:
        await shell(lambda w: w.run(["true"], cwd="nowhere"))
    assert isinstance(missing.value, execagent.RpcError)
    with pytest.raises(FileNotFoundError):
        not_started("true", missing.value)
    await made.end()


async def test_a_cancelled_call_kills_its_command(server: Server, folder: str) -> None:
    made = shared(server, folder)
    task = asyncio.create_task(made.call(lambda w: w.shell("echo $$ > pid; exec sleep 1000")))
    pid = Path(folder, "pid")
    await until(lambda: pid.exists() and pid.read_text().endswith("\n"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await until(lambda: not Path(f"/proc/{pid.read_text().strip()}").exists())
    await made.end()


async def test_cut(cutting: CutProxy, folder: str) -> None:
    """A command goes on while the connection is cut, and its result comes over the next one."""
    made = Shared(cutting.url, "test", {"cwd": folder})
    task = asyncio.create_task(
        made.call(lambda w: w.shell("echo one; until test -e go; do sleep 0.05; done; echo two"))
    )
    await until(lambda: has_output(made))
    cutting.cut()
    Path(folder, "go").touch()
    assert (await task).stdout == b"one\ntwo\n"
    assert cutting.cuts > 0
    await made.end()


async def test_a_lost_session_is_opened_again_but_never_made_again(
    server: Server, cutting: CutProxy, folder: str
) -> None:
    way = functools.partial(execagent.connect, cutting.url, recovery_timeout=0.2)
    made = Shared(None, "test", {"connect": way, "cwd": folder})
    await made.call(lambda w: w.run(["true"]))
    cutting.cut(for_good=True)
    with pytest.raises(execagent.DisconnectedError):
        await made.call(lambda w: w.run(["true"]))
    cutting.mend()
    assert (await made.call(lambda w: w.run(["true"]))).ok
    beside = Shared(server.ws, "test", {"session": made.ref.session, "existing": True, "cwd": folder})
    waiting = asyncio.create_task(made.call(lambda w: w.shell("touch begun; sleep 1000")))
    await until(Path(folder, "begun").exists)
    await beside.end()
    with pytest.raises(SessionGoneError) as gone:
        await waiting
    assert isinstance(gone.value.__cause__, execagent.DisconnectedError)
    for each in (made, beside):
        with pytest.raises(SessionGoneError):
            await each.call(lambda w: w.run(["true"]))
        await each.aclose()


async def test_two_clients_of_a_session(server: Server, folder: str) -> None:
    """While one has the session, the other works beside it, and both end with it."""
    made = shared(server, folder)
    beside = shared(server, folder, session=made.ref.session)
    first, second = [await each.call(lambda w: _session_of(w)) for each in (made, beside)]
    assert second.startswith(f"{first}.") and made.ref == beside.ref
    await made.end()
    with pytest.raises(SessionGoneError):
        await beside.call(lambda w: w.shell("sleep 1000"))
    async with server.connect("ws") as agent:
        assert not [each for each in await agent.sessions.list() if each.name.startswith(first)]


async def test_the_end_of_a_session_ends_no_other(server: Server, folder: str) -> None:
    """The name of a session may be the beginning of another one's."""
    one, other = shared(server, folder, session="work"), shared(server, folder, session="work.v2")
    await one.connect()
    await other.connect()
    await one.end()
    assert (await other.call(lambda w: w.run(["true"]))).ok
    await other.end()


async def test_a_first_call_that_fails_leaves_nothing(server: Server, folder: str) -> None:
    made = shared(server, f"{folder}/new", sandbox=execagent.Sandbox(profile="/no/such/profile"))
    for _ in range(2):
        with pytest.raises(FileNotFoundError, match="profile"):
            await made.connect()
    async with server.connect("ws") as agent:
        assert made.ref.session not in {each.name for each in await agent.sessions.list()}
    assert not made.opened and os.listdir(folder) == []
    await made.aclose()


async def test_what_may_not_be_removed(server: Server, folder: str) -> None:
    Path(folder, "work").mkdir()
    Path(folder, "to here").symlink_to(folder)
    made = shared(server, f"{folder}/work")
    for path in ("", ".", "..", "/", folder, f"{folder}/to here/work"):
        with pytest.raises(ValueError, match="cannot be removed"):
            await made.call(lambda w, path=path: w.remove(path))  # type: ignore[misc]
    await made.call(lambda w: w.remove("../to here"))
    assert os.listdir(folder) == ["work"]
    await made.end()


async def test_files_are_bounded(server: Server, folder: str) -> None:
    Path(folder, "huge").touch()
    os.truncate(f"{folder}/huge", 1 << 40)
    made = shared(server, folder)
    with pytest.raises(OSError, match="too large: more than") as caught:
        await made.call(lambda w: w.read("huge"))
    assert caught.value.errno == errno.EFBIG
    await made.end()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_fork_is_told_to_connect_itself(server: Server, folder: str) -> None:
    """Nobody gives back what another thread holds while the process forks."""
    made = shared(server, folder)
    made.wait(_session_of)
    with made._lock:
        child = os.fork()
        if child == 0:
            try:
                made.wait(_session_of)
            except RuntimeError as error:
                os._exit(3 if "forked" in str(error) else 4)
            os._exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    asyncio.run(made.end())


async def _session_of(w: Workspace) -> str:
    assert w.agent.session is not None
    return w.agent.session.name


async def test_archives(server: Server, folder: str) -> None:
    made = shared(server, folder)
    Path(folder, "a").mkdir()
    Path(folder, "a", "program").write_text("#!/bin/sh\n")
    Path(folder, "a", "program").chmod(0o755)
    Path(folder, "big").write_bytes(os.urandom(9 << 20))
    with pytest.raises(execagent.OutputLimitError):
        await made.call(lambda w: w.pack(".", io.BytesIO(), most=1 << 20))
    archive = io.BytesIO()
    await made.call(lambda w: w.pack(".", archive))
    archive.seek(0)
    with tarfile.open(fileobj=archive) as tar:
        assert {name.removeprefix("./") for name in tar.getnames()} >= {"a", "a/program", "big"}
    archive.seek(0)
    await made.call(lambda w: w.fs.mkdir(w.at("copy")))
    await made.call(lambda w: w.unpack(archive, "copy"))
    assert Path(folder, "copy", "big").read_bytes() == Path(folder, "big").read_bytes()
    assert Path(folder, "copy", "a", "program").stat().st_mode & 0o777 == 0o755
    evil = io.BytesIO()
    with tarfile.open(fileobj=evil, mode="w") as tar:
        tar.addfile(tarfile.TarInfo("../outside"))
    evil.seek(0)
    with pytest.raises(execagent.AgentError):
        await made.call(lambda w: w.unpack(evil, "copy"))
    assert not Path(folder, "outside").exists()
    await made.end()


def test_references() -> None:
    made = Shared("wss://host:7000/?key=secret", "test", {"token": "secret"})
    assert made.ref.where == "wss://host:7000/" and Ref.parse(str(made.ref)) == made.ref
    assert b"secret" not in pickle.dumps(made.ref)
    assert Shared(None, "test", {"session": "s", "context": "box"}).ref == ("s", "context:box")
    assert str(Shared(None, "test", {"session": "s"}).ref) == "s"
    for text in ("", "-x", "a b@where", "s" * 101, "s@" + "x" * 5000):
        with pytest.raises(ValueError, match="ref is"):
            Ref.parse(text)


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("ws://h:1", {"context": "c"}, "cannot be used together"),
        (None, {"connect": execagent.connect, "token": "t"}, "belongs to the function"),
        (None, {"existing": True}, "needs session"),
        (None, {"session": "a b"}, "session is 'a b'"),
        ("http://h:1", {}, "is not ws://"),
    ],
)
def test_wrong_options(url: str | None, options: Options, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Shared(url, "test", options)


async def test_options_are_serialized_without_secrets(server: Server, folder: str) -> None:
    copied = pickle.loads(pickle.dumps(shared(server, folder)))
    assert (await copied.call(lambda w: w.run(["pwd"]))).stdout == f"{folder}\n".encode()
    await copied.finish()
    secrets: list[Options] = [
        {"token": "s"},
        {"env": {"KEY": "s"}},
        {"env_policy": execagent.EnvPolicy(set={"A": "s"})},
    ]
    for options in secrets:
        with pytest.raises(TypeError, match="may hold a secret"):
            pickle.dumps(Shared("wss://host:7000", "test", options))
    with pytest.raises(TypeError, match="may hold a secret"):
        pickle.dumps(Shared(None, "test", {"connect": execagent.connect}))
    with pytest.raises(TypeError, match="may hold a secret"):
        pickle.dumps(Shared("wss://host:7000/?key=s", "test", {}))
