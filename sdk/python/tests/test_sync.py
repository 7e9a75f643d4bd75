"""The client without asyncio: in scripts, in threads, beside a running loop, and at the end of Python."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import execagent
from execagent import sync

from .conftest import AGENT, ENOUGH, Server

SRC = Path(execagent.__file__).parent.parent


@pytest.fixture
def client(server: Server) -> Iterator[sync.Agent]:
    with sync.connect(server.ws) as agent:
        yield agent


def test_calls(client: sync.Agent, tmp_path: Path) -> None:
    assert client.run(["echo", "hi"]).text == "hi\n"
    assert client.shell("exit 3").exit_code == 3
    path = str(tmp_path.resolve() / "f")
    client.fs.write(path, b"12345")
    assert client.fs.read(path) == b"12345"
    with client.fs.open(path) as file:
        assert b"".join(file) == b"12345"
    with pytest.raises(FileNotFoundError):
        client.fs.read(path + "x")
    assert client.status() == "ready"
    with client.fs.watch(str(tmp_path.resolve())) as watch:
        client.fs.write(path + "2", b"")
        assert watch.next().changes
    client.upload(path, str(tmp_path.resolve() / "copy"))
    assert client.fs.read_text(str(tmp_path / "copy")) == "12345"


def test_process(client: sync.Agent) -> None:
    with client.spawn(["sh", "-c", "while read l; do echo got $l; done; echo end >&2"], stdin=True) as p:
        p.stdin.write("one\n")
        assert p.stdout.readline() == b"got one\n"
        p.stdin.write("two\n")
        p.stdin.close()
        assert list(p.stdout) == [b"got two\n"]
        assert p.stderr.read() == b"end\n"
        assert p.wait() == 0
    with client.spawn(["sh", "-c", "echo a; exit 2"]) as p:
        kinds = [type(event).__name__ for event in p]
        assert kinds == ["Output", "Exited", "Closed"]


def test_context_kills(client: sync.Agent) -> None:
    with client.spawn(["sleep", "60"]):
        pass
    (listed,) = client.processes()
    assert listed.exited


def test_from_many_threads(client: sync.Agent) -> None:
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda i: client.run(["echo", str(i)]).text, range(64)))
    assert results == [f"{i}\n" for i in range(64)]


async def test_beside_a_running_loop(server: Server) -> None:
    # As in a notebook, whose own loop runs.
    with sync.connect(server.ws) as agent:
        assert agent.run(["echo", "hi"]).text == "hi\n"


def test_close_ends_those_who_wait(server: Server) -> None:
    agent = sync.connect(server.ws)
    process = agent.spawn(["sleep", "60"])
    errors: list[BaseException] = []

    def wait() -> None:
        try:
            process.wait()
        except execagent.ClosedError as error:
            errors.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.1)
    agent.close()
    agent.close()
    thread.join(10)
    assert len(errors) == 1
    with pytest.raises(execagent.ClosedError):
        agent.run(["true"])


def test_no_thread_is_left(server: Server) -> None:
    before = threading.active_count()
    with sync.connect(server.ws) as agent:
        agent.run(["true"])
    assert threading.active_count() == before
    with pytest.raises(execagent.ConnectError):
        sync.connect("ws://127.0.0.1:1")
    assert threading.active_count() == before


def test_callbacks_may_block(server: Server) -> None:
    asked: list[str] = []

    def on_approval(question: execagent.ApprovalQuestion) -> bool:
        time.sleep(0.05)
        asked.append(" ".join(question.argv))
        return question.argv[-1] == "good"

    rules = execagent.ExecApproval({"r.rules": 'prefix_rule(pattern = ["echo"], decision = "prompt")'})
    with sync.connect(server.ws, on_approval=on_approval) as agent:
        assert agent.run(["echo", "good"], exec_approval=rules).text == "good\n"
        assert agent.run(["echo", "bad"], exec_approval=rules).exit_code == 126
    assert asked == ["echo good", "echo bad"]


RULES = execagent.ExecApproval(
    {"r.rules": 'prefix_rule(pattern = ["echo"], decision = "prompt")'}, unmatched="allow", report="all"
)


def test_callbacks_use_the_client(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    """A callback in a thread may use and close the client, and one in the event loop gets an error."""
    made: list[sync.Agent] = []

    def on_approval(question: execagent.ApprovalQuestion) -> bool:
        assert made[0].run(["printf", "%s", "inside"]).text == "inside"
        if question.argv[-1] == "close":
            made[0].close()
        return True

    def on_command_decision(decision: execagent.CommandDecision) -> None:
        made[0].close()

    with sync.connect(server.ws, on_approval=on_approval, on_command_decision=on_command_decision) as agent:
        made.append(agent)
        assert agent.run(["echo", "fine"], exec_approval=RULES).text == "fine\n"
        assert "must not close its client" in caplog.text
        with pytest.raises(execagent.ClosedError):
            agent.run(["echo", "close"], exec_approval=RULES)
    for thread in threading.enumerate():
        if thread.name == "execagent":
            thread.join(ENOUGH)
            assert not thread.is_alive()


def test_fork(tmp_path: Path) -> None:
    """The copy of a process has no thread for the client: its calls fail, and it ends without closing anything."""
    script = f"""
import os, sys
sys.path.insert(0, {str(SRC)!r})
from execagent.sync import connect
with connect(command=[{AGENT!r}, "--listen", "stdio"]) as agent:
    process = agent.spawn(["cat"], stdin=True)
    pid = os.fork()
    if pid == 0:
        try:
            agent.run(["true"])
        except RuntimeError as error:
            print(error, flush=True)
        agent.close()
        sys.exit(7)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
    process.stdin.write("goes on\\n")
    process.stdin.close()
    print(process.communicate().text, end="")
"""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script], capture_output=True, text=True, timeout=ENOUGH, check=False
    )
    assert done.stderr == ""
    assert done.stdout.splitlines()[1:] == ["7", "goes on"] and "make a client here" in done.stdout


@pytest.mark.parametrize("how", ["closed", "left open", "given up"])
def test_end_of_python(how: str, tmp_path: Path) -> None:
    script = f"""
import sys, warnings
sys.path.insert(0, {str(SRC)!r})
warnings.simplefilter("error")
from execagent.sync import connect
agent = connect(command=[{AGENT!r}, "--listen", "stdio"])
print(agent.run(["echo", "hi"]).text, end="")
"""
    script += {
        "closed": "agent.close()\n",
        "left open": "",
        "given up": "process = agent.spawn(['sleep', '60'])\nsys.exit(3)\n",
    }[how]
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=False)
    assert done.stdout == b"hi\n"
    assert done.stderr == b""
    assert done.returncode == (3 if how == "given up" else 0)


def test_interrupt(server: Server) -> None:
    script = f"""
import sys, threading, time, os, signal
sys.path.insert(0, {str(SRC)!r})
from execagent.sync import connect
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job of a shell ignores it
with connect({server.ws!r}) as agent:
    threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    try:
        agent.run(["sleep", "60"])
    except KeyboardInterrupt:
        print("interrupted")
    print(agent.run(["echo", "and on"]).text, end="")
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=60, check=False)
    assert (done.stdout, done.stderr, done.returncode) == (b"interrupted\nand on\n", b"", 0)
