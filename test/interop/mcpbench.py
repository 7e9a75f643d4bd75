#!/usr/bin/env python3
"""How long agent mcp takes: from its start to the first answer of exec, and for 100 small commands.

mcpbench.py [PROGRAM [ARG...]], where PROGRAM is the agent (bin/agent), and ARG is what follows agent mcp (--local).
"""
import json
import os
import statistics
import subprocess
import sys
import time

here = os.path.dirname(os.path.abspath(__file__))
program = sys.argv[1] if sys.argv[1:] else os.path.join(here, "../../bin/agent")
args = sys.argv[2:] or ["--local"]


class Client:
    def __init__(self, version):
        self.version, self.last = version, 0
        self.proc = subprocess.Popen([program, "mcp", *args], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        if version < "2026":
            self.ask("initialize", protocolVersion=version, capabilities={}, clientInfo={"name": "bench", "version": "1"})
            self.say({"method": "notifications/initialized"})

    def say(self, message):
        self.proc.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
        self.proc.stdin.flush()

    def ask(self, method, **params):
        self.last += 1
        if self.version > "2026":
            name = "io.modelcontextprotocol/"
            params["_meta"] = {name + "protocolVersion": self.version, name + "clientInfo": {"name": "bench", "version": "1"}, name + "clientCapabilities": {}}
        self.say({"id": self.last, "method": method, "params": params})
        return json.loads(self.proc.stdout.readline())

    def exec(self):
        answer = self.ask("tools/call", name="exec", arguments={"command": "echo hi"})
        assert "hi" in answer["result"]["content"][0]["text"], answer

    def end(self):
        self.proc.stdin.close()
        self.proc.wait()


def timed(fn):
    begun = time.perf_counter()
    fn()
    return (time.perf_counter() - begun) * 1000


def show(what, times):
    print(f"{what:40} min {min(times):6.1f}  median {statistics.median(times):6.1f} ms")


for version in ("2025-11-25", "2026-07-28"):
    cold, each = [], []
    for _ in range(11):
        begun = time.perf_counter()
        client = Client(version)
        client.exec()
        cold.append((time.perf_counter() - begun) * 1000)
        each += [timed(client.exec) for _ in range(100)]
        client.end()
    show(f"{version}: start to first answer", cold)
    show(f"{version}: a small command", each)
show("subprocess.run: a small command", [timed(lambda: subprocess.run(["sh", "-c", "echo hi"], capture_output=True, check=True)) for _ in range(300)])
