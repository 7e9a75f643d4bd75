#!/usr/bin/env python3
"""A client of an agent in 150 lines of plain Python, to read and to begin with. README.md explains it.

    client.py ws://127.0.0.1:7000 sh -c 'read x; echo "$x"' <file    # its token is in $TOKEN, if it wants one
    client.py stdio ls                                               # starts an agent of its own
"""
import base64, itertools, json, os, socket, subprocess, sys, time, urllib.parse

def lost(why): raise ConnectionError(why)

class Refused(Exception):
    """The agent has answered with an error: a text and a code."""

class Stdio:  # a message is a line
    def __init__(self):
        self.agent = subprocess.Popen(["agent", "--listen", "stdio"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def send(self, text):
        self.agent.stdin.write(text + b"\n")
        self.agent.stdin.flush()

    def receive(self):
        return self.agent.stdout.readline() or lost("the agent has ended")

class WebSocket:  # a message is a frame; an agent sends no fragments
    def __init__(self, url):
        u = urllib.parse.urlsplit(url)
        self.sock = socket.create_connection((u.hostname, u.port))
        self.file = self.sock.makefile("rb")
        lines = ["GET / HTTP/1.1", "Host: " + u.netloc, "Connection: Upgrade", "Upgrade: websocket",
                 "Sec-WebSocket-Version: 13", "Sec-WebSocket-Key: " + base64.b64encode(os.urandom(16)).decode()]
        if "TOKEN" in os.environ:
            lines.append("Authorization: Bearer " + os.environ["TOKEN"])
        self.sock.sendall("\r\n".join(lines + ["", ""]).encode())
        if b" 101 " not in (status := self.file.readline() or lost("the connection has ended")):
            raise SystemExit(f"the agent refuses the connection: {status!r}")
        while self.file.readline().strip(): pass

    def send(self, text, opcode=1):
        n, mask = len(text), os.urandom(4)
        size = bytes([128 + n]) if n < 126 else b"\xfe" + n.to_bytes(2, "big") if n < 65536 else b"\xff" + n.to_bytes(8, "big")
        masked = bytes(a ^ b for a, b in zip(text, itertools.cycle(mask)))
        self.sock.sendall(bytes([128 + opcode]) + size + mask + masked)

    def receive(self):
        while True:
            opcode, n = self.exactly(2)
            n = int.from_bytes(self.exactly(2 if n == 126 else 8), "big") if n > 125 else n
            data = self.exactly(n)
            if opcode & 15 == 9:
                self.send(data, 10)  # a ping is answered
            elif opcode & 15 in (1, 2):
                return data

    def exactly(self, n):
        data = self.file.read(n)
        return data if len(data) == n else lost("the connection has ended")

class Client:
    """A session. It outlives its connections."""
    def __init__(self, dial):
        self.dial, self.session, self.last = dial, None, 0
        self.open()

    def open(self):
        """Connects within 45 s, and opens the session or resumes it."""
        late = time.monotonic() + 45
        while True:
            try:
                self.conn, self.events = self.dial(), [None]  # None: what was told before is lost, but the agent keeps it
                r = self.ask("initialize", {"clientName": "client.py", "resumeSessionId": self.session})
                self.send({"method": "initialized", "params": {}})
                break
            except (OSError, Refused) as e:
                if time.monotonic() > late or isinstance(e, Refused) and e.args[1] != -32010:  # the session has a connection
                    sys.exit(str(e.args[0]))  # there is no session, and never will be
                time.sleep(0.1)
        self.session, self.flags = r["sessionId"], r["environmentInfo"]["capabilities"]

    def send(self, message): self.conn.send(json.dumps(message).encode())

    def receive(self):
        """Returns an answer or a notification. A question of the agent is declined."""
        while True:
            m = json.loads(self.conn.receive())
            if "method" not in m or "id" not in m:
                return m
            self.send({"id": m["id"], "error": {"code": -32601, "message": "nobody answers here"}})

    def ask(self, method, params):
        """Makes a request on this connection and returns its result."""
        self.last += 1
        self.send({"id": self.last, "method": method, "params": params})
        while (m := self.receive()).get("id") != self.last:
            self.events += [m] if "method" in m else []
        if "error" in m:
            raise Refused(f"{method}: {m['error']['message']}", m["error"]["code"])
        return m["result"]

    def again(self, method, params):
        """Makes a request whose repeat is safe or same: on a new connection, if this one is lost."""
        while True:
            try:
                return self.ask(method, params)
            except OSError:
                self.open()

    def run(self, argv, data=b"", out=lambda stream, chunk: None):
        """Runs a command, gives it data as stdin, and returns its exit code."""
        p = {"processId": base64.b64encode(os.urandom(9)).decode()}
        self.ask("process/start", p | {"argv": argv, "cwd": "file:///", "env": {"PATH": "/usr/local/bin:/usr/bin:/bin"},
                                       "tty": False, "pipeStdin": True})
        seen, code = 0, None
        try:
            for i in range(0, len(data), 65536):
                self.again("process/write", p | {"writeId": str(i), "chunk": base64.b64encode(data[i:i + 65536]).decode()})
            if self.flags.get("processCloseStdin"):
                self.again("process/closeStdin", p)
        except Refused:
            pass  # it has exited
        while True:
            try:
                m = self.events.pop(0) if self.events else self.receive()
            except OSError:
                m = self.open()
            event = m.get("params", {}) if m else p | {"seq": seen + 2}
            if event.get("processId") != p["processId"] or event.get("seq", 0) <= seen:
                continue  # of another process, or read before
            if event["seq"] > seen + 1:  # after a gap
                r = self.again("process/read", p | {"afterSeq": seen})
                for c in r["chunks"]:
                    out(c["stream"], base64.b64decode(c["chunk"]))
                seen, code = r["nextSeq"] - 1, r["exitCode"]
                if r["closed"]:
                    return code
                continue
            seen, code = event["seq"], event.get("exitCode", code)
            if m["method"] == "process/output":
                out(event["stream"], base64.b64decode(event["chunk"]))
            elif m["method"] == "process/closed":
                return code

if __name__ == "__main__":
    where, *command = sys.argv[1:]
    try:
        client = Client(Stdio if where == "stdio" else lambda: WebSocket(where))
        sys.exit(client.run(command, b"" if sys.stdin.isatty() else sys.stdin.buffer.read(),
                            lambda stream, chunk: os.write(2 if stream == "stderr" else 1, chunk)))
    except (Refused, OSError) as e:
        sys.exit(e.args[0] if isinstance(e, Refused) else str(e))
