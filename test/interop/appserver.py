"""The client's app server: threads and turns by JSON-RPC, where `codex exec` has no option for what a scenario asks."""
import itertools
import json
import os
import subprocess
import threading
import time

import rig


class AppServer(rig.Codex):
    """One run of `codex app-server`.  Its model requests are answered like those of `codex exec`."""

    def __init__(self, t, env, options=()):
        argv = [t.rig.codex, "app-server", *options]
        self.ids, self.answers, self.notes = itertools.count(1), {}, []
        self.heard = threading.Condition()
        self.errors = os.path.join(t.dir, f"codex-{len(t.runs)}.err")
        with open(self.errors, "wb") as err:
            super().__init__(t, argv, env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=err)
        rig.in_thread(self._listen)
        self.ask("initialize", clientInfo={"name": "interop", "version": "1"}, capabilities={"experimentalApi": True})
        self._say({"method": "initialized"})

    def _say(self, message):
        self.proc.stdin.write(json.dumps(message).encode() + b"\n")
        self.proc.stdin.flush()

    def _listen(self):
        with open(self.stdout_path, "ab") as record:
            for line in self.proc.stdout:
                record.write(line)
                record.flush()
                message = json.loads(line)
                with self.heard:
                    if "method" in message:
                        self.notes.append(message)
                    else:
                        self.answers[message["id"]] = message
                    self.heard.notify_all()

    def _await(self, what, found, timeout=rig.TIMEOUT):
        with self.heard:
            if not self.heard.wait_for(lambda: found() is not None or self.proc.poll() is not None, timeout) or found() is None:
                raise rig.Fail(f"the app server has not sent {what}: {self.tail()}")
            return found()

    def ask(self, method, **params):
        """The result of a request."""
        number = next(self.ids)
        self._say({"id": number, "method": method, "params": params})
        answer = self._await(f"an answer to {method}", lambda: self.answers.get(number))
        if "error" in answer:
            raise rig.Fail(f"{method}: {answer['error']}")
        return answer["result"]

    def note(self, method, **params):
        """The first notification of a method with these parameters."""
        wanted = params.items()
        return self._await(
            f"{method} {params}",
            lambda: next((n["params"] for n in self.notes if n["method"] == method and wanted <= {k: v for k, v in n["params"].items() if k in params}.items()), None),
        )

    def thread(self, roots, **params):
        """A new thread with capability roots of the executor by their ids; its own id."""
        modes = {"bypass": "danger-full-access", "workspace": "workspace-write", "readonly": "read-only"}
        selected = [{"id": k, "location": {"type": "environment", "environmentId": "remote", "path": p}} for k, p in roots.items()]
        got = self.ask("thread/start", cwd=self.t.ws, sandbox=modes.get(self.t.mode), approvalPolicy="never", selectedCapabilityRoots=selected, **params)
        return got["thread"]["id"]

    def turn(self, thread, text="go"):
        """Begin a turn: what follows are the requests to the model."""
        return self.ask("turn/start", threadId=thread, input=[{"type": "text", "text": text, "text_elements": []}])["turn"]["id"]

    def end(self, thread, turn, text="all done"):
        """End a turn by a message of the model."""
        self.send(rig.message(text))
        done = self.ended(turn)
        if done["status"] != "completed":
            raise rig.Fail(f"the turn has ended as {done}")

    def ended(self, turn):
        """A turn that has ended."""
        return self._await("the end of the turn", lambda: next((n["params"]["turn"] for n in self.notes if n["method"] == "turn/completed" and n["params"]["turn"]["id"] == turn), None))

    def tail(self):
        with open(self.errors, errors="replace") as f:
            return super().tail() + "\n" + f.read()[-800:]

    def quit(self):
        self.proc.stdin.close()
        try:
            self.proc.wait(15)
        except subprocess.TimeoutExpired:
            raise rig.Fail("the app server did not end with its input")
