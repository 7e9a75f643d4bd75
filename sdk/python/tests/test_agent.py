"""The client against a real agent: what the scenarios do not say."""

from __future__ import annotations

import asyncio
import errno
import os
import pickle
import ssl
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import execagent
from execagent import Sandbox, _process

from .conftest import AGENT, ENOUGH, Server, start_agent, stop, until, until_async

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
    assert caught2.value.filename == "no-such-program" and caught2.value.data == {"kind": "spawnNotFound"}
    fifo = tmp_path.resolve() / "fifo"
    os.mkfifo(fifo)
    with pytest.raises(OSError):
        await asyncio.wait_for(agent.fs.read(fifo), ENOUGH)
    assert execagent.retryable(execagent.BusyError("x")) and not execagent.retryable(ValueError())


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
    env = {**os.environ, "HOME": str(home)}
    async with execagent.connect(command=[AGENT, "--listen", "stdio"], command_env=env) as agent:
        plan = await agent.plan(Sandbox())
        assert plan.hidden == ("~/.ssh", "~/.aws")
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
        socket = await agent.dial(f"tcp://127.0.0.1:{port}")
        await socket.write("x\n")
        await interrupted(socket.read, lambda: socket._consumed > 0)
        taken.set()
        assert await response.aread() == b"first second"
        assert await socket.read(3) == b"fir" and await socket.read() == b"st second"
        await socket.close()


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
            "-out", "ca.pem", "-subj", "/CN=ca", "-days", "2")  # fmt: skip
    for name in ("server", "client"):
        openssl("req", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{name}.key",
                "-out", f"{name}.csr", "-subj", f"/CN={name}")  # fmt: skip
        (tmp_path / "ext").write_text("subjectAltName=IP:127.0.0.1,DNS:agent.test")
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
