"""The client against a real agent: what the scenarios do not say."""

from __future__ import annotations

import asyncio
import errno
import os
import pickle
import socket
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import execagent
from execagent import Sandbox, _process
from execagent._bounds import read_size

from .conftest import AGENT, ENOUGH, Server, start_agent, stop, until, until_async
from .proxy import Proxy

ENV = {**os.environ, "PYTHONPATH": str(Path(execagent.__file__).parent.parent)}


async def test_await_and_close(server: Server) -> None:
    agent = await server.connect("ws")
    assert agent.session is None and len(agent.session_id) == 36
    await agent.close()
    await agent.close()
    with pytest.raises(execagent.ClosedError):
        await agent.status()


def test_another_loop(server: Server) -> None:
    """A client of one loop says clearly that another one cannot use it."""
    agents: list[execagent.Agent] = []

    async def make() -> None:
        agents.append(await server.connect("ws"))

    async def use() -> None:
        with pytest.raises(RuntimeError, match="another event loop"):
            await agents[0].run(["true"])

    loop = asyncio.new_event_loop()
    loop.run_until_complete(make())
    asyncio.run(use())
    loop.run_until_complete(agents[0].close())
    loop.close()


async def test_events(agent: execagent.Agent) -> None:
    process = await agent.spawn(["sh", "-c", "echo a; echo b >&2; exit 5"])
    events = [event async for event in process]
    assert isinstance(events[-1], execagent.Closed) and isinstance(events[-2], execagent.Exited)
    assert [event.seq for event in events] == [1, 2, 3, 4]
    assert {(e.stream, e.data) for e in events if isinstance(e, execagent.Output)} == {
        ("stdout", b"a\n"),
        ("stderr", b"b\n"),
    }
    assert process.exit_code == 5 and process.exit is not None and await process.wait() == 5


async def test_attach_after(agent: execagent.Agent) -> None:
    process = await agent.spawn(["sh", "-c", "echo a; read x; echo b"], stdin=True, id="it")
    event = await process.next_event()
    assert isinstance(event, execagent.Output) and event.data == b"a\n"
    process.close()
    with pytest.raises(ValueError, match="has a handle"):
        again = await agent.attach("it", after=event.seq)
        await agent.attach("it")
    await again.stdin.write("\n")
    assert (await again.communicate()).stdout == b"b\n"
    # The agent keeps 1 MiB, so the first events of a large output are gone.
    process = await agent.spawn(["sh", "-c", "seq 400000; read x"], stdin=True, id="large")
    process.discard()
    await asyncio.sleep(1)
    process.close()
    with pytest.raises(execagent.GapError) as caught:
        await agent.attach("large", after=1)
    assert caught.value.after == 1
    late = await agent.attach("large")
    assert late.skipped > 0
    await late.stdin.close()
    assert (await late.communicate()).stdout.endswith(b"399999\n400000\n")


async def test_cancel_kills(agent: execagent.Agent) -> None:
    task = asyncio.create_task(agent.run(["sleep", "60"]))
    await asyncio.sleep(0.3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    await until_async(lambda: _all_exited(agent))


async def test_output_limit(agent: execagent.Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    """Output without a given bound has one, and then the error says what to do, and has the output."""
    endless = ["sh", "-c", "echo first >&2; exec yes"]
    with pytest.raises(execagent.OutputLimitError, match="see max_output and overflow") as caught:
        await agent.run(endless, max_output=1000, overflow="error")
    assert (caught.value.limit, caught.value.stdout[:4]) == (1000, b"y\ny\n") and len(caught.value.stdout) == 1000
    # Also after the exit, as long as something has the output open. It holds nothing up.
    late = ["sh", "-c", "{ sleep 0.3; head -c 3000000 /dev/zero; } & exit 0"]
    with pytest.raises(execagent.OutputLimitError):
        await agent.run(late, max_output=1000, overflow="error")
    assert await agent.status() == "ready"
    monkeypatch.setattr(_process, "_MAX_OUTPUT", 100_000)
    with pytest.raises(execagent.OutputLimitError, match="more than 100000 bytes to one stream"):
        await agent.run(endless)
    process = await agent.spawn(endless)
    with pytest.raises(execagent.OutputLimitError):
        await process.communicate()
    await process.kill()
    await until_async(lambda: _all_exited(agent))
    assert (await agent.run(["head", "-c", "300000", "/dev/zero"], max_output=200_000)).stdout_truncated
    assert len((await agent.run(["head", "-c", "300000", "/dev/zero"], max_output=300_000)).stdout) == 300_000


async def test_kill_while_output_waits(agent: execagent.Agent) -> None:
    """A process is killed although nobody takes its output, which stops the connection."""
    process = await agent.spawn(["yes"])
    await until(lambda: process._queue._full(1 << 16))
    await process.kill()
    result = await process.communicate(max_output=10)
    assert (result.exit_code, result.stdout) == (137, b"y\n" * 5)


async def _all_exited(agent: execagent.Agent) -> bool:
    return all(process.closed for process in await agent.processes())


async def test_arguments(agent: execagent.Agent, tmp_path: Path) -> None:
    wrong: list[tuple[Any, str]] = [
        (lambda: agent.run("ls"), "argv is a list"),
        (lambda: agent.run(["a", 5]), r"argv\[1\] is int"),  # type: ignore[list-item]
        (lambda: agent.run(["a\0"]), r"argv\[0\] has a NUL"),
        (lambda: agent.run(["\udcff"]), r"argv\[0\] is not Unicode"),
        (lambda: agent.run(["true"], env={"A=B": ""}), "name of a variable"),
        (lambda: agent.run(["true"], cwd="x"), "cwd 'x' is not absolute"),
        (lambda: agent.run(["true"], max_output=-1), "max_output is -1"),
        (lambda: agent.run(["true"], overflow="drop"), "overflow is 'drop'"),  # type: ignore[arg-type]
        (lambda: agent.run(["true"], input="x", tty=True), "input needs a pipe"),
        (lambda: agent.spawn(["true"], tty=execagent.Tty(0, 1)), "rows and cols"),
        (lambda: agent.fs.open("/x", "a"), "mode is 'a'"),  # type: ignore[arg-type]
        (lambda: agent.fs.write("/x", 5), "data is int"),  # type: ignore[arg-type]
        (lambda: agent.dial(0), "port 0"),
        (lambda: agent.dial("localhost:5"), "is not tcp://"),
    ]
    for call, want in wrong:
        with pytest.raises((ValueError, TypeError), match=want):
            await call()
    path = tmp_path.resolve() / b"\xff \xc3".decode(errors="surrogateescape")
    path.write_bytes(b"any bytes")
    assert await agent.fs.read(path) == b"any bytes"
    assert [entry.path for entry in (await agent.fs.walk(tmp_path.resolve())).entries] == []


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({"url": "http://h:1"}, "write ws://h:1"),
        ({"url": "/run/x.sock"}, "write unix:///run/x.sock"),
        ({"url": "unix://x"}, "absolute path"),
        ({"url": "ws://u:p@h:1"}, "holds credentials"),
        ({"url": "ws://192.0.2.1:1", "token": "t"}, "plain text"),
        ({"url": "ws://h", "headers": {"Host": "x"}}, "belongs to the WebSocket"),
        ({"url": "ws://127.0.0.1:1", "tls_ca": "x"}, "need wss"),
        ({"url": "ws://127.0.0.1:1", "token": "a b"}, "characters that a token cannot have"),
        ({"url": "ws://h", "command": ["x"]}, "url and command cannot be used together"),
        ({"command": "agent"}, "command is a list"),
        ({"url": "ws://h", "session": "a", "session_id": "b"}, "cannot be used together"),
        ({"url": "ws://h", "recovery_timeout": 0}, "recovery_timeout is 0"),
        ({"url": "wss://h", "tls_cert": "x"}, "given together"),
    ],
)
async def test_options(options: dict[str, Any], want: str) -> None:
    with pytest.raises(ValueError, match=want):
        await execagent.connect(**options)


async def test_errors_are_of_the_system(agent: execagent.Agent, tmp_path: Path) -> None:
    missing = str(tmp_path.resolve() / "none")
    with pytest.raises(OSError) as caught:
        await agent.fs.read(missing)
    error = caught.value
    assert isinstance(error, execagent.NotFoundError)
    assert (error.errno, error.filename, error.code, error.retryable) == (errno.ENOENT, missing, -32004, False)
    assert error.strerror == os.strerror(errno.ENOENT) and missing in str(error)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error) and copy.errno == error.errno and str(copy) == str(error)
    with pytest.raises(execagent.NotFoundError) as caught2:
        await agent.run(["no-such-program"])
    error = caught2.value
    assert (error.filename, error.what, error.kind, error.errno) == ("no-such-program", "program", "spawnNotFound", 2)
    with pytest.raises(execagent.NotFoundError) as caught3:
        await agent.run(["true"], cwd=missing)
    assert (caught3.value.filename, caught3.value.what) == (missing, "cwd")
    fifo = tmp_path.resolve() / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(OSError):
        await asyncio.wait_for(agent.fs.read(fifo), ENOUGH)
    assert execagent.retryable(execagent.BusyError("x")) and not execagent.retryable(ValueError())


async def test_time_is_up_without_a_client(server: Server) -> None:
    """The agent ends a process whose time is up, with TERM first, whether or not its client is there."""
    async with server.connect("unix", session="py-time") as first:
        await first.spawn(["sh", "-c", "trap 'exit 9' TERM; while :; do sleep 0.05; done"], id="job", kill_after=0.5)
    async with server.connect("unix", session="py-time", existing=True, take=True) as second:
        job = await second.attach("job")
        result = await job.communicate()
        assert (result.exit_code, result.timed_out, job.timed_out) == (9, True, True)
        in_time = await second.run(["sh", "-c", "exit 3"], kill_after=600)
        assert (in_time.exit_code, in_time.timed_out) == (3, False)
        assert second.session is not None
        await second.sessions.end(second.session_id)


async def test_bounds_of_a_command(agent: execagent.Agent, tmp_path: Path) -> None:
    here = tmp_path.resolve()
    process = await agent.spawn(["head", "-c", "9000", "/dev/zero"], file_size="4k", max_output=1001)
    assert process.started.limits == {"file_size": process.started.limits["file_size"]}
    process.stderr.close()
    assert len(await process.stdout.read()) == 1001 and process.stdout.omitted == 7999
    result = await agent.shell("head -c 9000 /dev/zero >f 2>/dev/null; wc -c <f", cwd=here, file_size="4k")
    assert result.text.strip() == "4096" and result.stdout_omitted == 0
    result = await agent.run(["seq", "100000"], max_output="1k")
    assert result.stdout.startswith(b"1\n2\n") and result.stdout.endswith(b"99999\n100000\n")
    assert (len(result.stdout), result.stdout_omitted, result.stdout_truncated) == (1024, 587871, True)
    events = [event async for event in await agent.spawn(["seq", "1000"], max_output=10)]
    outputs = [(e.data, e.omitted) for e in events if isinstance(e, execagent.Output)]
    assert outputs == [(b"1\n2\n3", 0), (b"1000\n", 3883)]
    try:
        result = await agent.run(["sh", "-c", "x=$(head -c 90000000 /dev/zero | tr '\\0' x)"], memory="16m", cpus=0.5)
        assert result.out_of_memory or result.exit_code != 0
    except execagent.RpcError as error:  # the host has no control groups for the agent
        assert error.kind == "limitUnavailable" and "limits." in error.message


@pytest.mark.parametrize(
    ("options", "want"),
    [
        ({"kill_after": 0}, "kill_after is 0"),
        ({"memory": "much"}, "memory is 'much', and must be a number of bytes"),
        ({"memory": 0}, "memory is 0, and must be 1 to"),
        ({"memory": "9223372036854775807t"}, "must be 1 to"),
        ({"memory": True}, "memory is True"),
        ({"file_size": "1.5g"}, "file_size is '1.5g'"),
        ({"file_size": "1b"}, "file_size is '1b'"),
        ({"cpus": 0}, "cpus is 0, and must be 0.01 to 1000 processors"),
        ({"cpus": float("nan")}, "cpus is nan"),
        ({"pids": 0}, "pids is 0, and must be 1 to 4194304"),
        ({"pids": 1.5}, "pids is 1.5"),
        ({"user": ":g"}, "user is ':g', and must be NAME or NAME:GROUP"),
        ({"user": "u:"}, "must be NAME"),
        ({"user": "a:b:c"}, "must be NAME"),
        ({"max_output": 0}, "max_output is 0, and must be 1 to 8388608"),
        ({"max_output": "9m"}, "max_output is '9m'"),
    ],
)
async def test_wrong_bounds(agent: execagent.Agent, options: dict[str, Any], want: str) -> None:
    with pytest.raises(ValueError, match=want):
        await agent.spawn(["true"], **options)


@pytest.mark.parametrize("text", ["1048576", "1024k", "1024K", "1m", "1M", "1MiB", "1mb"])
def test_sizes(text: str) -> None:
    assert read_size(text, "x") == 1 << 20


async def test_user(agent: execagent.Agent) -> None:
    if os.geteuid() != 0:
        with pytest.raises(execagent.RpcError) as caught:
            await agent.run(["id"], user="4321:4321")
        assert caught.value.kind == "userUnavailable"
        return
    result = await agent.run(["sh", "-c", "id -u; id -g"], user="4321:4322", cwd="/")
    assert result.text == "4321\n4322\n"
    with pytest.raises(execagent.RpcError) as caught:
        await agent.run(["id"], user="no-such-user")
    assert caught.value.kind == "userUnavailable"


async def test_details_of_files(agent: execagent.Agent, tmp_path: Path) -> None:
    here = tmp_path.resolve()
    await agent.fs.write(here / "a" / "f", b"xyz", parents=True, mode=0o640)
    (here / "link").symlink_to("a/f")
    (here / "broken").symlink_to("nowhere")
    os.mkfifo(here / "pipe")
    known = await agent.fs.stat(here / "link")
    assert (known.type, known.mode, known.uid, known.size) == ("file", 0o640, os.getuid(), 3)
    assert known.is_symlink and known.link_target is None and known.owner is not None
    link = await agent.fs.stat(here / "link", follow=False)
    assert (link.type, link.link_target, link.is_file) == ("symlink", "a/f", False)
    many = await agent.fs.stat_many([here / "link", here / "none", *[here / "a"] * 1200])
    assert isinstance(many[0], execagent.Stat) and many[0] == known
    missing = many[1]
    assert isinstance(missing, execagent.NotFoundError) and missing.filename == str(here / "none")
    assert len(many) == 1202 and isinstance(many[-1], execagent.Stat) and many[-1].type == "directory"
    listed = {entry.name: entry for entry in await agent.fs.list(here, follow=False)}
    assert {name: entry.type for name, entry in listed.items()} == {
        "a": "directory", "broken": "symlink", "link": "symlink", "pipe": "fifo",
    }  # fmt: skip
    assert listed["link"].size == 3 and listed["pipe"].mode is not None and listed["a"].is_dir
    assert [entry.name for entry in await agent.fs.list(here)] == ["a", "link", "pipe"]
    assert await agent.fs.realpath(here / "broken" / "x", missing_ok=True) == str(here / "nowhere" / "x")
    with pytest.raises(execagent.AlreadyExistsError):
        await agent.fs.write_text(here / "a" / "f", "new", exclusive=True)
    await agent.fs.write_text(here / "a" / "f", "new", atomic=True)
    assert (here / "a" / "f").read_text() == "new" and (here / "a" / "f").stat().st_mode & 0o777 == 0o640
    for mode in (0o1000, -1):
        with pytest.raises(ValueError, match="mode is"):
            await agent.fs.write(here / "g", b"", mode=mode)
    with pytest.raises(ValueError, match="atomic: 33554433 bytes are more than 32 MiB"):
        await agent.fs.write(here / "g", bytes((32 << 20) + 1), atomic=True)


async def test_search(agent: execagent.Agent, tmp_path: Path) -> None:
    here = tmp_path.resolve()
    (here / "src").mkdir()
    (here / "src" / "a.py").write_text("one\ntwo (2)\nthree\n")
    (here / "src" / "b.txt").write_text("TWO\n")
    (here / "out.py").write_bytes(b"\0two\n")
    (here / ".hidden.py").write_text("two")
    (here / ".gitignore").write_text("*.log\n")
    (here / "x.log").write_text("two")

    async def names(**options: Any) -> list[str]:
        return [os.path.relpath(file.path, here) for file in (await agent.fs.search(here, **options)).files]

    assert await names() == ["out.py", "src", "src/a.py", "src/b.txt"]
    assert await names(globs="*.py") == ["out.py", "src/a.py"]
    assert await names(globs=["*.py", "!src/"], hidden=True) == [".hidden.py", "out.py"]
    assert await names(no_ignore=True, globs="*.log") == ["x.log"]
    assert await names(kind="directory") == ["src"]
    assert await names(max_depth=0) == ["out.py", "src"]
    found = await agent.fs.search(here, "^T.o", ignore_case=True, before=1, after=1)
    assert [os.path.basename(file.path) for file in found.files] == ["a.py", "b.txt"]
    match = found.files[0].matches[0]
    assert (match.line, match.column, match.length, match.text) == (2, 1, 3, "two (2)")
    assert (match.before, match.after, match.cut) == (("one",), ("three",), False)
    assert (found.binary_files, found.truncated, found.errors) == (1, None, ())
    assert (await agent.fs.search(here / "src" / "a.py", "(2)", literal=True)).files[0].matches[0].column == 5
    assert (await agent.fs.search(here, max_matches=1)).truncated == "matches"
    with pytest.raises(execagent.RpcError, match="maxMatches"):
        await agent.fs.search(here, max_matches=0)


async def test_ports(server: Server) -> None:
    """Ports that open and close are told, also over a lost connection."""
    async with Proxy(server.ws) as proxy, execagent.connect(proxy.url) as agent, await agent.watch_ports() as watch:
        first = await watch.next()  # the agent itself listens
        assert first.opened and not first.closed

        async def until_told(port: int, opened: bool) -> execagent.Port:
            while True:
                changes = await asyncio.wait_for(watch.next(), ENOUGH)
                for each in changes.opened if opened else changes.closed:
                    if each.port == port:
                        return each

        with socket.create_server(("127.0.0.1", 0)) as listening:
            number = listening.getsockname()[1]
            told = await until_told(number, True)
            assert (told.address, told.uid, told.pid) == ("127.0.0.1", os.getuid(), os.getpid())
            assert told in (await agent.ports()).ports
            proxy.cut()
        await until_told(number, False)
        assert agent.generation >= 1


async def test_sandbox(agent: execagent.Agent, tmp_path: Path) -> None:
    w = tmp_path.resolve() / "w"
    w.mkdir()
    (w / ".env").write_text("secret")
    script = f"echo in >{w}/in && echo wrote; echo out >{tmp_path.resolve()}/out || echo refused; cat {w}/.env"
    result = await agent.shell(script, sandbox=Sandbox(workspace=str(w), deny="**/*.env"), cwd=w)
    assert result.stdout.startswith(b"wrote\n")
    if str(tmp_path.resolve()).startswith("/tmp/"):
        assert b"secret" not in result.stdout  # /tmp itself can be written in a workspace sandbox
    read_only = await agent.shell(f"echo x >{w}/in2", sandbox=Sandbox(), cwd=w)
    assert read_only.exit_code != 0 and not (w / "in2").exists()
    assert read_only.refusals is not None or read_only.sandbox_denied
    plan = await agent.plan(Sandbox(read_only=True), cwd=w)
    assert (await agent.run(["cat", str(w / "in")], sandbox=plan, cwd=w)).stdout == b"in\n"
    confined = agent.fs.confined(plan)
    assert await confined.read(w / "in") == b"in\n"
    with pytest.raises(OSError):
        await confined.write(w / "in", b"x")


async def test_sandbox_hides_secrets(tmp_path: Path) -> None:
    home = tmp_path.resolve() / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh" / "id").write_text("key")
    (home / "real").mkdir()
    (home / ".aws").symlink_to(home / "real")
    (home / ".bash_history").write_text("login key")
    env = {**os.environ, "HOME": str(home)}
    async with execagent.connect(command=[AGENT, "--listen", "stdio"], command_env=env) as agent:
        plan = await agent.plan(Sandbox())
        assert plan.hidden == ("~/.ssh", "~/.aws", "~/.bash_history")
        entries = plan.sandbox["permissions"]["file_system"]["entries"]
        assert [entry.get("replaceable") for entry in entries if entry["access"] == "deny"] == [None, None, True]
        assert (await agent.run(["cat", f"{home}/.ssh/id"], sandbox=plan)).exit_code != 0
        shown = await agent.run(["cat", f"{home}/.ssh/id"], sandbox=Sandbox(readable="~/.ssh"))
        assert shown.stdout == b"key"
        shown = await agent.run(["cat", f"{home}/.ssh/id"], sandbox=Sandbox(show_secrets=True))
        assert shown.stdout == b"key"
        with pytest.raises(FileNotFoundError):
            await agent.run(["true"], sandbox=Sandbox(workspace="/no/such/folder"))


async def test_network(server: Server) -> None:
    """A command of a managed network reaches what the callback allows."""
    asked: list[str] = []
    decided: list[execagent.NetworkDecision] = []

    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nhi")
        await writer.drain()
        writer.close()

    listening = await asyncio.start_server(web, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]

    def on_network(question: execagent.NetworkQuestion) -> bool:
        asked.append(question.host)
        return question.host == "127.0.0.1"

    sandbox = Sandbox(network=["ask", "local"], no_transparent=True)
    curl = ["curl", "-sS", "--noproxy", "", "--max-time", "20", f"http://127.0.0.1:{port}/"]
    async with (
        listening,
        server.connect("ws", on_network=on_network, on_network_decision=decided.append) as agent,
    ):
        result = await agent.run(curl, sandbox=sandbox)
        assert result.stdout == b"hi", result
        assert asked == ["127.0.0.1"]
        await until(lambda: decided)
        assert decided[0].decision == "allow"
    async with server.connect("ws") as agent:
        refused = await agent.run(curl, sandbox=sandbox)
        assert refused.stdout != b"hi"


def test_sandbox_words() -> None:
    for options, want in (
        ({"read_only": True, "workspace": "/w"}, "cannot be used together"),
        ({"network": "sometimes"}, "is not one of"),
        ({"network": ["on", "off"]}, "cannot be used together"),
        ({"network": "allow=a deny=a"}, "allows and denies a"),
        ({"network": "allow="}, "names no host"),
        ({"workspace": ""}, "workspace is empty"),
        ({"no_transparent": True}, "needs a network"),
    ):
        with pytest.raises(ValueError, match=want):
            Sandbox(**options)
    assert Sandbox(network="allow=GET a.b/c,d.e ask") == Sandbox(network=("allow=GET a.b/c,d.e ask",))


async def test_profile(agent: execagent.Agent) -> None:
    plan = await agent.plan(Sandbox(profile="git"))
    assert plan.sandbox["permissions"]["type"] == "managed"
    with pytest.raises(ValueError, match="is not one of"):
        await agent.plan(Sandbox(profile="nothing"))


async def test_sessions(server: Server) -> None:
    async with server.connect("unix", session="py-nightly") as first:
        assert first.session is not None and first.session.created and first.session.name == "py-nightly"
        process = await first.spawn(["sh", "-c", "echo begun; read x; echo end; exit 4"], stdin=True, id="job")
        await process.next_event()
    async with server.connect("unix") as other:
        (listed,) = [s for s in await other.sessions.list() if s.name == "py-nightly"]
        assert listed.running == 1 and not listed.attached
        observer = other.sessions.observe(listed.id)
        (job,) = await observer.processes()
        assert (job.id, job.exited) == ("job", False)
        chunks = [chunk async for chunk in observer.follow("job", wait=False)]
        assert b"".join(chunk.data for chunk in chunks) == b"begun\n" and chunks[0].at is not None
        async with server.connect("unix", session="py-nightly", existing=True) as second:
            with pytest.raises(execagent.SessionAttachedError) as caught:
                await server.connect("unix", session="py-nightly")
            assert caught.value.retryable
            handle = await second.attach("job")
            async with server.connect("unix", session="py-nightly", take=True) as third:
                assert isinstance(await asyncio.wait_for(second.wait_failed(), ENOUGH), execagent.TakenError)
                with pytest.raises(execagent.TakenError):
                    await handle.wait()
                again = await third.attach("job")
                await again.stdin.write("\n")
                result = await again.communicate()
                assert (result.stdout, result.exit_code) == (b"begun\nend\n", 4)
                assert await observer.wait("job") == 4
        await other.sessions.end(listed.id)
        assert [s for s in await other.sessions.list() if s.name == "py-nightly"] == []
        with pytest.raises(execagent.RpcError):
            await server.connect("unix", session="py-nightly", existing=True)


async def test_resume(server: Server) -> None:
    async with server.connect("ws") as first:
        await first.spawn(["sleep", "60"], id="s")
        session_id = first.session_id
    async with server.connect("ws", session_id=session_id) as second:
        assert second.session_id == session_id
        async with await second.attach("s"):
            pass
    with pytest.raises(execagent.RpcError, match="unknown session"):
        await server.connect("ws", session_id="no such session")


async def test_command_refused(server: Server) -> None:
    policy = execagent.ExecApproval({"x.rules": 'prefix_rule(pattern = ["rm"], decision = "forbidden")'})
    async with server.connect("ws") as agent:
        with pytest.raises(execagent.CommandRefusedError) as caught:
            await agent.run(["rm", "x"], exec_approval=policy)
        assert caught.value.matched_rules


def test_blocked_callback_at_the_end() -> None:
    """A function that blocks for ever does not keep the event loop, or Python, from ending."""
    script = f"""
import asyncio, threading, execagent

async def main():
    loop, asked = asyncio.get_running_loop(), asyncio.Event()

    def on_approval(question):
        loop.call_soon_threadsafe(asked.set)
        threading.Event().wait()

    rules = execagent.ExecApproval({{"r.rules": 'prefix_rule(pattern = ["echo"], decision = "prompt")'}})
    way = execagent.connect(command=[{AGENT!r}, "--listen", "stdio"], on_approval=on_approval)
    async with way as agent:
        run = asyncio.create_task(agent.run(["echo"], exec_approval=rules))
        await asked.wait()
        run.cancel()

asyncio.run(main())
print("over")
"""
    done = subprocess.run([sys.executable, "-c", script], env=ENV, capture_output=True, timeout=ENOUGH, check=False)
    assert (done.stdout, done.stderr, done.returncode) == (b"over\n", b"", 0)


async def test_http_stream(agent: execagent.Agent) -> None:
    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"x-from: " in head.lower()
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\nset-cookie: a\r\nset-cookie: b\r\n\r\n")
        try:
            for i in range(3):
                writer.write(b"2\r\n%d\n\r\n" % i)
                await writer.drain()
                await asyncio.sleep(0.05)
            writer.write(b"0\r\n\r\n")
            await writer.drain()
        except ConnectionError:
            pass  # the client has seen enough
        finally:
            writer.close()

    listening = await asyncio.start_server(web, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"
    headers = {"x-from": execagent.EnvHeader("PATH", "it is ")}
    async with listening:
        async with await agent.http.stream("GET", url, headers=headers) as response:
            assert response.status_code == 200 and response.headers["Set-Cookie"] == "a, b"
            assert b"".join([part async for part in response.aiter_bytes()]) == b"0\n1\n2\n"
        with pytest.raises(execagent.OutputLimitError):
            await agent.http.request("GET", url, headers=headers, max_bytes=3)
        with pytest.raises(execagent.TimeoutError):
            await agent.http.request("GET", url, headers=headers, timeout=0.02)


async def test_limits_of_reading(agent: execagent.Agent, tmp_path: Path) -> None:
    path = tmp_path.resolve() / "f"
    path.write_bytes(b"x" * 100)
    assert len(await agent.fs.read(path, max_bytes=100)) == 100
    with pytest.raises(execagent.OutputLimitError) as caught:
        await agent.fs.read(path, max_bytes=99)
    assert caught.value.limit == 99


async def test_reader(agent: execagent.Agent) -> None:
    process = await agent.spawn(["sh", "-c", "printf 'one\\ntwo\\nthree'; printf 'e' >&2"])
    out = process.stdout
    assert await out.readline() == b"one\n"
    assert await out.read(2) == b"tw"
    assert [line async for line in out] == [b"o\n", b"three"]
    assert await out.read() == b"" and await process.stderr.read() == b"e"
    with pytest.raises(RuntimeError, match="readers"):
        await process.communicate()


async def test_an_answer_at_the_moment_of_a_cancellation(agent: execagent.Agent) -> None:
    """An answer that comes between the cancellation of a call and its end is no fault of the agent."""
    link = await agent._core.connected()
    call = asyncio.create_task(agent.request("environment/status", {}))
    for _ in range(100):  # turns of the loop: a wait for longer would let the answer come
        if link.pending:
            break
        await asyncio.sleep(0)
    call.cancel()
    await link._take(b'{"id":%d,"result":{}}' % next(iter(link.pending)))
    with pytest.raises(asyncio.CancelledError):
        await call
    assert await agent.status() == "ready"


async def test_cancelled_reads(agent: execagent.Agent) -> None:
    """A read that is cancelled loses nothing: the next one has what it took."""
    taken = asyncio.Event()

    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await reader.readline()
        if request.startswith(b"GET"):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n")
        writer.write(b"first ")
        await writer.drain()
        await taken.wait()
        writer.write(b"second")
        writer.close()

    async def interrupted(read: Callable[[], Awaitable[bytes]], waiting: Callable[[], bool]) -> None:
        task = asyncio.ensure_future(read())
        await until(waiting)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert task.cancelled()

    process = await agent.spawn(["sh", "-c", "printf 'first '; read x; printf second"], stdin=True)
    out = process.stdout
    await interrupted(out.read, lambda: process.last_seq >= 1 and not out._queue._items)
    await process.stdin.close()
    assert await out.read() == b"first second"
    listening = await asyncio.start_server(web, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    async with listening:
        response = await agent.http.stream("GET", f"http://127.0.0.1:{port}/")
        await interrupted(response.aread, lambda: response._seq > 0 and not response.unread)
        dialled = await agent.dial(f"tcp://127.0.0.1:{port}")
        await dialled.write("x\n")
        await interrupted(dialled.read, lambda: dialled._consumed > 0)
        taken.set()
        assert await response.aread() == b"first second"
        assert await dialled.read(3) == b"fir" and await dialled.read() == b"st second"
        await dialled.close()


async def test_lines(agent: execagent.Agent) -> None:
    """Lines come whole, wherever the pieces of the output end."""
    process = await agent.spawn(["seq", "200000"])
    process.stderr.close()
    lines = [line async for line in process.stdout]
    assert lines == [b"%d\n" % i for i in range(1, 200_001)]
    process = await agent.spawn(["sh", "-c", "printf aXXbXXc; sleep 0.1; printf cXcXXd"])
    out = process.stdout
    assert [await out.read_until(b"XX") for _ in range(5)] == [b"aXX", b"bXX", b"ccXcXX", b"d", b""]
    process = await agent.spawn(["printf", "12345X"])
    out = process.stdout
    assert [await out.read_until(b"X", 3) for _ in range(3)] == [b"123", b"45X", b""]


async def test_token(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("sesame\n")
    file.chmod(0o600)
    process, url = start_agent(
        "--listen", "ws://127.0.0.1:0", "--ws-auth", "capability-token", "--ws-token-file", str(file)
    )
    try:
        async with execagent.connect(url, token="sesame") as agent:
            assert (await agent.run(["true"])).ok
        async with execagent.connect(url, token_file=file) as agent:
            assert (await agent.run(["true"])).ok
        wrong: list[dict[str, Any]] = [{}, {"token": "wrong"}]
        for options in wrong:
            with pytest.raises(execagent.ConnectError, match="401") as caught:
                await execagent.connect(url, **options)
            assert caught.value.final and "wrong" not in str(caught.value)
        # A context of the command line.
        config = tmp_path / "config.toml"
        config.write_text(
            f'current = "a"\n[contexts.a]\nurl = "{url}"\ntoken_file = "token"\n'
            f'[contexts.b]\nurl = "{url}"\ntoken_command = ["cat", "{file}"]\n[exec]\ntimeout = "1m"\n'
        )
        config.chmod(0o600)
        for name in (None, "a", "b"):
            async with execagent.connect(context=name, config=config) as agent:
                assert (await agent.run(["true"])).ok
    finally:
        stop(process)


async def test_tls(tmp_path: Path) -> None:
    def openssl(*args: str) -> None:
        subprocess.run(["openssl", *args], cwd=tmp_path, check=True, capture_output=True)

    openssl("req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", "ca.key",
            "-out", "ca.pem", "-subj", "/CN=ca", "-days", "2", "-addext", "keyUsage=critical,keyCertSign")  # fmt: skip
    for name in ("server", "client"):
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{name}.key",
                "-out", f"{name}.csr", "-subj", f"/CN={name}")  # fmt: skip
        (tmp_path / "ext").write_text("subjectAltName=IP:127.0.0.1,DNS:agent.test\nauthorityKeyIdentifier=keyid")
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial",
                "-out", f"{name}.pem", "-days", "2", "-extfile", "ext")  # fmt: skip
        (tmp_path / f"{name}.key").chmod(0o600)
    process, url = start_agent(
        "--listen", "wss://127.0.0.1:0", "--tls-cert", str(tmp_path / "server.pem"), "--tls-key",
        str(tmp_path / "server.key"), "--tls-client-ca", str(tmp_path / "ca.pem"),
    )  # fmt: skip
    certificate: dict[str, Any] = {
        "tls_ca": tmp_path / "ca.pem",
        "tls_cert": tmp_path / "client.pem",
        "tls_key": tmp_path / "client.key",
    }
    try:
        async with execagent.connect(url, **certificate) as agent:
            assert (await agent.run(["echo", "hi"])).text == "hi\n"
        async with execagent.connect(url, tls_server_name="agent.test", **certificate) as agent:
            assert (await agent.run(["true"])).ok
        own = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
        own.load_cert_chain(tmp_path / "client.pem", tmp_path / "client.key")
        async with execagent.connect(url, tls=own) as agent:
            assert (await agent.run(["true"])).ok
        wrong: list[dict[str, Any]] = [
            {},
            {"tls_ca": tmp_path / "ca.pem"},
            {**certificate, "tls_server_name": "other.test"},
            {**certificate, "tls_ca": tmp_path / "client.key"},
        ]
        for options in wrong:
            with pytest.raises(execagent.ConnectError) as caught:
                await execagent.connect(url, **options)
            assert caught.value.final
    finally:
        stop(process)


async def test_foreign_socket(tmp_path: Path) -> None:
    """A server at a UNIX socket that runs as another user is not trusted."""
    if os.geteuid() != 0:
        pytest.skip("only root becomes another user")
    folder = Path("/tmp") / f"execagent-foreign-{os.getpid()}"
    folder.mkdir(mode=0o777)
    folder.chmod(0o777)
    path = folder / "s"
    code = (
        "import os, socket\nos.setgid(4321); os.setuid(4321)\n"
        f"s = socket.socket(socket.AF_UNIX); s.bind({str(path)!r}); s.listen()\n"
        f"os.chmod({str(path)!r}, 0o666); print('ready', flush=True)\nwhile True: s.accept()"
    )
    server = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)  # noqa: ASYNC220
    assert server.stdout is not None
    try:
        assert server.stdout.readline() == b"ready\n"
        with pytest.raises(execagent.ConnectError, match="uid 4321, which is not trusted"):
            await execagent.connect(f"unix://{path}")
        with pytest.raises(execagent.ConnectError, match="No such file"):
            await execagent.connect(f"unix://{path}x")
    finally:
        server.kill()
        server.wait()
        server.stdout.close()
        path.unlink()
        folder.rmdir()


async def test_many_copies(agent: execagent.Agent, tmp_path: Path) -> None:
    """Copies at the same time do not wait for each other's threads, while their output stops the connection."""
    (tmp_path / "large").write_bytes(os.urandom(3 << 20))
    copies = [agent.download(tmp_path.resolve() / "large", tmp_path / f"copy{i}") for i in range(12)]
    await asyncio.wait_for(asyncio.gather(*copies), ENOUGH)
    assert len({path.read_bytes() for path in tmp_path.iterdir()}) == 1


async def test_forward_unix(agent: execagent.Agent, tmp_path: Path) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.read())
        writer.close()

    there, here = tmp_path.resolve() / "there", tmp_path.resolve() / "here"
    listening = await asyncio.start_unix_server(echo, there)
    async with listening, agent.forward(f"unix://{there}", path=str(here)) as forward:
        assert forward.address == str(here) and forward.port == 0
        reader, writer = await asyncio.open_unix_connection(here)
        writer.write(b"hello")
        writer.write_eof()
        assert await reader.read() == b"hello"
        writer.close()
    assert not here.exists()
    async with agent.forward(1) as forward:  # nobody listens there
        reader, writer = await asyncio.open_connection("127.0.0.1", forward.port)
        with pytest.raises(ConnectionError):
            if await reader.read() == b"":
                raise ConnectionResetError
        writer.close()


async def test_long_lines_of_stdio() -> None:
    """Messages of many MiB pass over stdio, too."""
    async with execagent.connect(command=[AGENT, "--listen", "stdio"]) as agent:
        data = os.urandom(30 << 20)
        result = await agent.run(["cat"], input=data)
        assert result.stdout == data
