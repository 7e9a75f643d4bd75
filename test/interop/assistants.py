#!/usr/bin/env python3
"""Assistants with `agent mcp`: the real Codex CLI and the real Claude Code, each with a scripted model; see README.md."""
import argparse
import base64
import fnmatch
import itertools
import json
import os
import queue
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import types
import zlib

import appserver
import messages
import mockmodel
import rig

AGENT = os.environ["AGENT"]
NINE = {"exec", "read_output", "write_stdin", "signal", "processes", "read_file", "write_file", "edit", "search"}
COUNT = itertools.count(1)


class Codex:
    """A thread of `codex app-server` with an MCP server called box."""

    def __init__(self, t, server):
        self.t = t
        home = os.path.join(t.home, f"codex-{next(COUNT)}")
        os.makedirs(home)
        with open(os.path.join(home, "config.toml"), "w") as f:
            f.write(CONFIG.format(url=t.model.url) + "\n[mcp_servers.box]\n")
            for key, value in server.items():
                f.write(f"{key} = {json.dumps(value)}\n")
            # Calls are not asked about, but the questions of a server are.
            f.write('default_tools_approval_mode = "approve"\n')
        env = {k: v for k, v in os.environ.items() if not k.startswith(("CODEX_", "OPENAI_", "RC_"))}
        self.app = appserver.AppServer(t, {**env, "HOME": home, "CODEX_HOME": home, **t.secret})
        t.cleanup(lambda: rig.stop(self.app.proc, signal.SIGKILL))
        self.open()

    def open(self):
        """Begin a thread, which starts its servers."""
        self.thread = self.app.ask("thread/start", cwd=self.t.dir, sandbox="danger-full-access", approvalPolicy="on-request")["thread"]["id"]
        self.app.note("mcpServer/startupStatus/updated", threadId=self.thread, name="box", status="ready")
        self.turn = self.app.turn(self.thread)

    @staticmethod
    def launch(command, args):
        return {"command": command, "args": args}

    @staticmethod
    def reach(url):
        return {"url": url, "bearer_token_env_var": "BOX_TOKEN"}

    def tools(self):
        """The tools that the model finds."""
        search = {"type": "tool_search_call", "call_id": f"search-{next(COUNT)}", "execution": "client", "arguments": {"query": "box", "limit": 20}}
        return {tool["name"] for space in self.app.step(search) for tool in space["tools"]}

    def begin(self, tool, **args):
        self.call = {**rig.call(tool, **args), "namespace": "mcp__box"}
        self.app.send(self.call)

    def answer(self, question, action, decision):
        """Answer a question of the server as its user, and return what was asked."""
        asked = self.app._await("a question", lambda: next((n for n in self.app.notes if n.get("id") == question), None))
        content = {"decision": decision} if action == "accept" else None
        self.app._say({"id": asked["id"], "result": {"action": action, "content": content, "_meta": None}})
        return asked["params"]["message"]

    def end(self):
        """The answer of the tool, as the model gets it."""
        (output,) = self.app.outputs(self.call)
        if isinstance(output, str):
            return rig.rest(output)
        parts = [image_of(*re.match("data:(.*);base64,(.*)", p["image_url"]).groups()) if p["type"] == "input_image" else p["text"] for p in output]
        self.t.check(parts[0].startswith("Wall time: "), f"the head of the answer is {parts[0]!r}")
        return "".join(parts[1:])

    def interrupt(self):
        """The user stops the turn, and begins another."""
        self.app.ask("turn/interrupt", threadId=self.thread, turnId=self.turn)
        status = self.app.ended(self.turn)["status"]
        self.t.check(status == "interrupted", f"the turn is {status}")
        self.turn = self.app.turn(self.thread)

    def server_lost(self):
        """Codex starts a server only with a thread, so the user begins a new one."""
        self.app.end(self.thread, self.turn)
        self.open()

    def quit(self):
        self.app.end(self.thread, self.turn)
        self.app.quit()

    def kill(self):
        self.app.proc.kill()
        self.app.proc.wait()


CONFIG = """model = "gpt-5.5"
model_provider = "mock"
check_for_update_on_startup = false
tool_output_token_limit = 50000  # by default it cuts answers of 48,000 bytes in their middle

[analytics]
enabled = false

[model_providers.mock]
name = "mock"
base_url = "{url}"
wire_api = "responses"
request_max_retries = 0
stream_max_retries = 0
stream_idle_timeout_ms = 120000
"""


class Claude:
    """A session of `claude -p` with an MCP server called box. A hook answers questions in the place of the user."""

    def __init__(self, t, server):
        self.t, self.pending, self.heard = t, None, []
        self.asked, self.decision = (os.path.join(t.home, f"{name}-{next(COUNT)}") for name in ("asked", "decision"))
        hook = f"cat >{self.asked}.new; mv {self.asked}.new {self.asked}; until cat {self.decision} 2>/dev/null; do sleep 0.05; done; rm {self.decision}"
        settings = {"hooks": {"Elicitation": [{"hooks": [{"type": "command", "command": hook}]}]}}
        argv = [os.environ["CLAUDE_BIN"], "-p", "--input-format", "stream-json", "--output-format", "stream-json", "--verbose", "--strict-mcp-config"]
        argv += ["--tools", "", "--allowedTools", "mcp__box", "--settings", json.dumps(settings), "--mcp-config", json.dumps({"mcpServers": {"box": server}})]
        env = {k: v for k, v in os.environ.items() if not k.startswith(("CLAUDE", "ANTHROPIC"))}
        # No account, and nothing else than the model on this machine.
        env.update(ANTHROPIC_BASE_URL=t.model.url.removesuffix("/v1"), ANTHROPIC_API_KEY="none", HOME=t.home, CLAUDE_CONFIG_DIR=t.home)
        env.update(CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1", DISABLE_AUTOUPDATER="1", **t.secret)
        self.said = os.path.join(t.dir, f"claude-{next(COUNT)}")
        with open(self.said, "wb") as said:
            self.proc = subprocess.Popen(argv, cwd=t.dir, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said)
        t.cleanup(lambda: rig.stop(self.proc, signal.SIGKILL))
        self.changed = threading.Condition()
        rig.in_thread(self._listen)
        self._say({"type": "user", "message": {"role": "user", "content": "go"}})

    @staticmethod
    def launch(command, args):
        return {"command": command, "args": args}

    @staticmethod
    def reach(url):
        return {"type": "http", "url": url, "headers": {"Authorization": "Bearer ${BOX_TOKEN}"}}

    def _say(self, message):
        self.proc.stdin.write(json.dumps(message).encode() + b"\n")
        self.proc.stdin.flush()

    def _listen(self):
        for line in self.proc.stdout:
            with open(self.said, "ab") as said:
                said.write(line)
            with self.changed:
                self.heard.append(json.loads(line))
                self.changed.notify_all()

    def _hear(self, what, found, after=0):
        """The place after the first message of a kind."""

        def place():
            return next((n + 1 for n, message in enumerate(self.heard) if n >= after and found(message)), None)

        with self.changed:
            if not self.changed.wait_for(place, rig.TIMEOUT):
                raise rig.Fail(f"Claude Code has not sent {what}: {self.tail()}")
            return place()

    def tail(self):
        with open(self.said, errors="replace") as f:
            return f.read()[-800:]

    def _request(self):
        """The request with tools that waits for an answer."""
        end = time.monotonic() + rig.TIMEOUT
        while self.pending is None:
            try:
                request = self.t.model.requests.get(timeout=0.1)
            except queue.Empty:
                if self.proc.poll() is not None or time.monotonic() > end:
                    raise rig.Fail(f"no request to the model: {self.tail()}")
                continue
            self.pending = request if request.tools() else None
        return self.pending

    def _reply(self, item):
        self._request().reply([item])
        self.pending = None

    def tools(self):
        return {name.removeprefix("mcp__box__") for name in self._request().tools() if name.startswith("mcp__box__")}

    def begin(self, tool, **args):
        self.call = {"type": "tool_use", "id": f"call-{next(COUNT)}", "name": f"mcp__box__{tool}", "input": args}
        self._reply(self.call)

    def answer(self, question, action, decision):
        self.t.until("a question", lambda: os.path.exists(self.asked))
        with open(self.asked) as f:
            asked = json.load(f)
        os.remove(self.asked)
        told = {"hookEventName": "Elicitation", "action": action}
        if action == "accept":
            told["content"] = {"decision": decision}
        with open(self.decision + ".new", "w") as f:
            json.dump({"hookSpecificOutput": told}, f)
        os.rename(self.decision + ".new", self.decision)
        return asked["message"]

    def end(self):
        output = self._request().output(self.call["id"])
        self.t.check(output is not None, "the model got no answer of the tool")
        if isinstance(output, str):
            return output
        texts = [image_of(p["source"]["media_type"], p["source"]["data"]) if p["type"] == "image" else p["text"] for p in output]
        return "".join(texts)

    def interrupt(self):
        here = len(self.heard)
        self._say({"type": "control_request", "request_id": f"r{next(COUNT)}", "request": {"subtype": "interrupt"}})
        self._hear("the end of the turn", lambda m: m["type"] == "result", here)
        self._say({"type": "user", "message": {"role": "user", "content": "go on"}})

    def server_lost(self):
        """Claude Code starts a server again at the next call."""

    def quit(self):
        here = len(self.heard)
        self._reply({"type": "text", "text": "all done"})
        self._hear("the end of the turn", lambda m: m["type"] == "result" and m["subtype"] == "success", here)
        self.proc.stdin.close()
        self.proc.wait(rig.TIMEOUT)

    def kill(self):
        self.proc.kill()
        self.proc.wait()


def image_of(kind, data):
    return f"{kind} of {len(base64.b64decode(data))} bytes"


class Stage:
    """What one scenario works with: an assistant, and the folder of its server."""

    def __init__(self, kind, work):
        self.kind = kind
        self.home, self.dir = (tempfile.mkdtemp(prefix=p, dir=work) for p in ("home-", "work-"))
        self.model = messages.Messages(0) if kind is Claude else mockmodel.MockModel(0)
        self.secret, self.cleanups, self.runs = {}, [self.model.close], []
        self.rig = types.SimpleNamespace(codex=os.environ.get("CODEX_BIN"))

    def note(self, *_):
        pass

    def cleanup(self, fn):
        self.cleanups.append(fn)

    def check(self, ok, what):
        if not ok:
            raise rig.Fail(what)

    def has(self, text, *patterns):
        for pattern in patterns:
            self.check(re.search(pattern, text, re.M), f"{pattern!r} is not in {text[:600]!r}")
        return text

    def until(self, what, found):
        end = time.monotonic() + rig.TIMEOUT
        while not found():
            self.check(time.monotonic() < end, f"{what}: not within {rig.TIMEOUT} s")
            time.sleep(0.05)

    def path(self, name):
        return os.path.join(self.dir, name)

    def put(self, name, data=b""):
        with open(self.path(name), "wb") as f:
            f.write(data)

    def serve(self, *args):
        """Start what serves, and return the URL that it prints, and its process."""
        with open(os.path.join(self.home, f"served-{next(COUNT)}"), "wb") as err:
            proc = subprocess.Popen([AGENT, *args], cwd=self.dir, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=err)
        self.cleanup(lambda: rig.stop(proc))
        return proc.stdout.readline().decode().strip(), proc

    def start(self, *args):
        """An assistant that starts agent mcp."""
        self.pid = os.path.join(self.home, f"pid-{next(COUNT)}")
        return self.kind(self, self.kind.launch("sh", ["-c", 'echo $$ >"$0"; exec "$@"', self.pid, AGENT, "mcp", "-C", self.dir, *args]))

    def use(self, assistant, tool, **args):
        assistant.begin(tool, **args)
        return assistant.end()

    def server(self):
        with open(self.pid) as f:
            return int(f.read())

    def close(self):
        for fn in reversed(self.cleanups):
            fn()


SCENARIOS = []


def scenario(fn):
    SCENARIOS.append(fn)
    return fn


WAITS = "echo begun; : >begun; until test -e gate; do sleep 0.05; done; echo over"


def picture():
    """A small image in the form PNG."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    pixels = zlib.compress((b"\0" + b"\xff\0\0" * 8) * 8)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", 8, 8, 8, 2, 0, 0, 0)) + chunk(b"IDAT", pixels) + chunk(b"IEND", b"")


@scenario
def tools(t):
    """The model finds nine tools. What it gets is the text that was written for it."""
    a = t.start("--local")
    found = a.tools()
    t.check(found == NINE, f"the tools are {sorted(found)}")
    t.has(t.use(a, "exec", command="echo out; exit 3"), r"\Aout\n\[p1 ended with exit code 3 after .*\]\n\Z")
    t.has(t.use(a, "exec", argv=["printf", "%s", 'a "quote"']), r'\Aa "quote"\n\[p2 ended')
    t.has(t.use(a, "write_file", path="d/f.txt", content='one\n\t"two"\n'), "^created .*/d/f.txt, 11 bytes")
    t.has(t.use(a, "read_file", path="d/f.txt"), r'\Aone\n\t"two"\n')
    t.has(t.use(a, "edit", path="d/f.txt", old='"two"', new="2"), r'^-\t"two"\n\+\t2$')
    t.has(t.use(a, "search", pattern="^\t2"), r"^d/f.txt:2:\t2$")
    t.put("i.png", picture())
    t.has(t.use(a, "read_file", path="i.png"), rf"^image/png of {len(picture())} bytes")
    t.has(t.use(a, "read_file", path="none"), "/none does not exist")
    a.quit()


@scenario
def large(t):
    """The model gets the largest answers whole, not as a file of the assistant's: 64 KiB, also of what has many tokens."""
    a = t.start("--local")
    for program in ("yes the quick brown fox", "seq 1000000"):
        t.use(a, "exec", command=f"{program} | head -c 65535 >large; echo >>large")
        got = t.use(a, "read_file", path="large", limit=100000)
        t.check(got.startswith(open(t.path("large")).read()), f"read_file: {len(got)} bytes came: {got[:300]!r}")
        got = t.use(a, "exec", command="cat large", max_bytes=65536)
        t.check(got.startswith(open(t.path("large")).read()), f"exec: {len(got)} bytes came: {got[:300]!r}")
    a.quit()


@scenario
def running(t):
    """A command that runs on has an id: it is listed, read, typed into and ended."""
    a = t.start("--local")
    t.has(t.use(a, "exec", command='while read x; do echo "<$x>"; done', keep_stdin=True, yield_ms=0), "p1 still runs")
    t.has(t.use(a, "processes"), "^p1 runs")
    t.has(t.use(a, "write_stdin", process_id="p1", text="one\n", close=True, wait_ms=45000), r"^<one>\n\[p1 ended with exit code 0")
    t.has(t.use(a, "exec", command='read -p "name? " n; echo "hi <$n>"', tty=True, yield_ms=0), "p2 still runs")
    t.has(t.use(a, "write_stdin", process_id="p2", text="bob\r", wait_ms=45000), r"hi <bob>\s+\[p2 ended")
    t.has(t.use(a, "exec", command="exec sleep 1000", yield_ms=0), "p3 still runs")
    t.has(t.use(a, "signal", process_id="p3", signal="kill", wait_ms=45000), "p3 ended with exit code 137 .SIGKILL")
    t.has(t.use(a, "exec", command="seq 100000", max_bytes=1024), r"^1\n2\n", "bytes left out", r"^100000\n", "read_output with after_seq")
    t.has(t.use(a, "exec", command="echo begun; exec sleep 1000", timeout_ms=500), "because its timeout_ms was over")
    a.quit()


@scenario
def cancel(t):
    """A turn that the user stops ends no command, and the server goes on."""
    a = t.start("--local")
    a.begin("exec", command=WAITS, yield_ms=45000)
    t.until("the command runs", lambda: os.path.exists(t.path("begun")))
    a.interrupt()
    t.has(t.use(a, "processes"), "^p1 runs")
    t.put("gate")
    t.has(t.use(a, "read_output", process_id="p1", wait_ms=45000), r"^begun\nover\n\[p1 ended with exit code 0")
    a.quit()


@scenario
def restart(t):
    """Commands on an agent that was named outlive an assistant that dies. The next one finds them by the name of the session."""
    url, _ = t.serve("--listen", "ws://127.0.0.1:0")
    a = t.start("--url", url, "--session", "work")
    t.has(t.use(a, "exec", command=WAITS, yield_ms=0), "p1 still runs")
    a.kill()
    b = t.start("--url", url, "--session", "work")
    t.has(t.use(b, "processes"), "^p1 runs")
    t.put("gate")
    t.has(t.use(b, "read_output", process_id="p1", wait_ms=45000), r"^begun\nover\n\[p1 ended with exit code 0")
    b.quit()


@scenario
def server_killed(t):
    """If agent mcp is killed, a call that waits fails. Nothing is lost for the next agent mcp of the assistant."""
    url, _ = t.serve("--listen", "ws://127.0.0.1:0")
    a = t.start("--url", url, "--session", "work")
    a.begin("exec", command=WAITS, yield_ms=45000)
    t.until("the command runs", lambda: os.path.exists(t.path("begun")))
    os.kill(t.server(), signal.SIGKILL)
    t.has(a.end(), "closed")
    a.server_lost()
    t.has(t.use(a, "processes"), "^p1 runs")
    t.put("gate")
    t.has(t.use(a, "read_output", process_id="p1", wait_ms=45000), r"^begun\nover\n\[p1 ended with exit code 0")
    a.quit()


@scenario
def agent_lost(t):
    """A call while the agent is away says so. The next one works again when the agent is there."""
    at = f"unix://{t.dir}/agent.sock"
    a = t.start("--url", at)
    t.has(t.use(a, "exec", command="true"), "the agent cannot be reached")
    t.serve("--listen", at)
    t.has(t.use(a, "exec", command="echo here"), r"^here\n")
    a.quit()


@scenario
def questions(t):
    """What rules leave to the user is asked through the assistant: once, for the session, or no."""
    os.mkdir(t.path("rules"))
    t.put("rules/default.rules", b'prefix_rule(pattern=["touch"], decision="prompt")\n')
    a = t.start("--local", "--exec-policy", t.path("rules"))
    for n, (action, decision, expected) in enumerate(
        (("accept", "once", "p1 ended with exit code 0"), ("accept", "deny", "the user has refused"), ("decline", "", "the user has declined"), ("accept", "session", "p4 ended with exit code 0"))
    ):
        a.begin("exec", argv=["touch", "made"], yield_ms=45000)
        t.has(a.answer(n, action, decision), "touch made")
        t.has(a.end(), expected)
    t.has(t.use(a, "exec", argv=["touch", "made"]), "p5 ended with exit code 0")
    a.quit()


@scenario
def http(t):
    """The same over HTTP, with a token. A server that is started again goes on, and its assistant notices nothing."""
    t.secret = {"BOX_TOKEN": "a-token-of-this-test"}
    with open(os.open(t.path("token"), os.O_CREAT | os.O_WRONLY, 0o600), "w") as f:
        f.write(t.secret["BOX_TOKEN"])
    agent, _ = t.serve("--listen", "ws://127.0.0.1:0")
    words = ["--url", agent, "--session", "work", "--ws-auth", "capability-token", "--ws-token-file", t.path("token")]
    url, server = t.serve("mcp", "--listen", "http://127.0.0.1:0", *words)
    a = t.kind(t, t.kind.reach(url))
    t.has(t.use(a, "exec", command=WAITS, yield_ms=0), "p1 still runs")
    rig.stop(server)
    t.serve("mcp", "--listen", url.removesuffix("/mcp"), *words)
    t.put("gate")
    t.has(t.use(a, "read_output", process_id="p1", wait_ms=45000), r"^begun\nover\n\[p1 ended with exit code 0")
    a.quit()


def main():
    ap = argparse.ArgumentParser(prog="assistants.sh", description="Drive agent mcp with the real assistants.")
    ap.add_argument("-k", "--only", action="append", default=[], metavar="PATTERN", help="scenarios to run, e.g. 'cancel-*' or '*-claude'; may be repeated")
    ap.add_argument("--keep", action="store_true", help="keep the work folder")
    opt = ap.parse_args()
    kinds = [kind for kind, name in ((Codex, "CODEX_BIN"), (Claude, "CLAUDE_BIN")) if os.environ.get(name)]
    work = tempfile.mkdtemp(prefix="assistants-")
    counts = {"PASS": 0, "FAIL": 0}
    for kind, fn in itertools.product(kinds, SCENARIOS):
        name = f"{fn.__name__}-{kind.__name__.lower()}"
        if opt.only and not any(fnmatch.fnmatch(name, p) for p in opt.only):
            continue
        status, why, begun = "PASS", "", time.monotonic()
        t = Stage(kind, work)
        try:
            fn(t)
        except rig.Fail as err:
            status, why = "FAIL", f": {err}"
        except Exception as err:
            status, why = "FAIL", f": {type(err).__name__}: {err} at {traceback.extract_tb(err.__traceback__)[-1].name}"
        finally:
            t.close()
        counts[status] += 1
        print(f"{status} {name} ({time.monotonic() - begun:.1f} s){why}", flush=True)
    if opt.keep or counts["FAIL"]:
        print(f"kept {work}")
    else:
        shutil.rmtree(work, ignore_errors=True)
    print(f"{counts['PASS']} passed, {counts['FAIL']} failed")
    return 1 if counts["FAIL"] or not counts["PASS"] else 0


if __name__ == "__main__":
    sys.exit(main())
