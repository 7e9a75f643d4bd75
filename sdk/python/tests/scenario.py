"""Runs the scenarios of sdk/scenarios with the client for asyncio."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any, cast

import execagent
from execagent import Process

from .proxy import Proxy

KINDS: dict[str, tuple[type[BaseException], ...]] = {
    "notFound": (execagent.NotFoundError, FileNotFoundError),
    "permissionDenied": (execagent.PermissionDeniedError,),
    "alreadyExists": (execagent.AlreadyExistsError,),
    "notADirectory": (execagent.NotADirectoryError,),
    "isADirectory": (execagent.IsADirectoryError,),
    "refused": (execagent.RpcError,),
    "command": (execagent.CommandError,),
    "timeout": (execagent.TimeoutError,),
    "disconnected": (execagent.DisconnectedError,),
    "closed": (execagent.ClosedError,),
    "unsupported": (execagent.UnsupportedError,),
    "stdin": (execagent.StdinError,),
    "gap": (execagent.GapError,),
    "outputLimit": (execagent.OutputLimitError,),
    "usage": (ValueError, TypeError),
}


def bytes_of(value: Any) -> bytes:
    """Return bytes in the form of a scenario."""
    match value:
        case str():
            return value.encode()
        case bytes():
            return value
        case {"base64": str(text)}:
            return base64.b64decode(text)
        case {"repeat": str(text), "times": int(times)}:
            return text.encode() * times
        case _:
            raise AssertionError(f"{value!r} are no bytes")


def snake(name: str) -> str:
    """Return a member in the spelling of Python."""
    return re.sub(r"[A-Z]", lambda m: "_" + m[0].lower(), name)


def text_of(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


def differs(want: Any, got: Any, at: str = "") -> str | None:
    """Say how a result differs from what must be seen; None: it does not."""
    match want:
        case {"any": True} if len(want) == 1:
            return None
        case {"absent": True} if len(want) == 1:
            return None if got is None else f"{at}: {got!r} is not absent"
        case {"matches": str(expression)} if len(want) == 1:
            return None if re.search(expression, text_of(got)) else f"{at}: {got!r} does not match {expression}"
        case {"contains": part} if len(want) == 1:
            if isinstance(got, (bytes, str)):
                held = got if isinstance(got, bytes) else got.encode()
                return None if bytes_of(part) in held else f"{at}: {got!r} does not contain {part!r}"
            return (
                None if any(differs(part, each) is None for each in got) else f"{at}: {got!r} does not contain {part!r}"
            )
        case {"unordered": list(parts)} if len(want) == 1:
            left = list(got)
            for part in parts:
                place = next((i for i, each in enumerate(left) if differs(part, each) is None), None)
                if place is None:
                    return f"{at}: {part!r} is not in {left!r}"
                left.pop(place)
            return f"{at}: {left!r} is left" if left else None
        case {"length": int(length)} if len(want) == 1:
            return None if len(got) == length else f"{at}: has {len(got)}, and not {length}"
        case {"sha256": str(digest)} if len(want) == 1:
            return None if hashlib.sha256(got).hexdigest() == digest else f"{at}: another sum"
        case {"atLeast": least} if len(want) == 1:
            return None if got >= least else f"{at}: {got!r} < {least!r}"
        case dict() if isinstance(got, (bytes, bytearray)):
            return None if bytes_of(want) == got else f"{at}: {got[:100]!r}… of {len(got)} bytes differs"
        case dict():
            for name, value in cast("dict[str, Any]", want).items():
                key = name if isinstance(got, dict) else snake(name)
                member = got.get(key) if isinstance(got, dict) else getattr(got, key, None)
                if (found := differs(value, member, f"{at}.{name}")) is not None:
                    return found
            return None
        case list():
            items = list(got)
            if len(items) != len(want):
                return f"{at}: {items!r} has {len(items)} members, and not {len(want)}"
            for i, (value, each) in enumerate(zip(want, items, strict=True)):
                if (found := differs(value, each, f"{at}[{i}]")) is not None:
                    return found
            return None
        case str() if isinstance(got, (bytes, bytearray)):
            if want.encode() == got:
                return None
            return f"{at}: {bytes(got[:200])!r} ({len(got)} bytes) is not {want[:200]!r} ({len(want)} characters)"
        case _:
            return None if want == got and type(want) is type(got) else f"{at}: {got!r} is not {want!r}"


class Web:
    """The small web server of the scenarios, at the agent's side."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self.port = 0

    async def __aenter__(self) -> Web:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            first = await reader.read(1)
            if first and not first.isupper():
                writer.write(first)
                while data := await reader.read(65536):
                    writer.write(data)
                    await writer.drain()
                writer.write_eof()
            elif first:
                await self._answer(first + await reader.readuntil(b"\r\n\r\n"), reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    @staticmethod
    async def _answer(head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        method, path, _ = head.split(b"\r\n", 1)[0].decode().split()
        size = re.search(rb"(?i)content-length: *(\d+)", head)
        body = await reader.readexactly(int(size[1])) if size else b""
        answers = {
            ("GET", "/hello"): ("200 OK", b"hello\n", "content-type: text/plain\r\nx-test: 1\r\n"),
            ("POST", "/echo"): ("200 OK", body, ""),
            ("GET", "/redirect"): ("302 Found", b"", "location: /hello\r\n"),
            ("GET", "/large"): ("200 OK", b"x" * 3_000_000, ""),
        }
        status, content, more = answers.get((method, path), ("404 Not Found", b"nothing here\n", ""))
        writer.write(f"HTTP/1.1 {status}\r\ncontent-length: {len(content)}\r\nconnection: close\r\n{more}\r\n".encode())
        writer.write(content)
        await writer.drain()


def load(folder: Path) -> list[dict[str, Any]]:
    """Return all scenarios."""
    scenarios: list[dict[str, Any]] = []
    for path in sorted(folder.glob("*.json")):
        scenarios += json.loads(path.read_text())["scenarios"]
    return scenarios


class Runner:
    """Runs one scenario."""

    def __init__(self, agent: execagent.Agent, here: str, there: str, web: Web, proxy: Proxy | None) -> None:
        self._agent = agent
        self._proxy = proxy
        self._values: dict[str, Any] = {
            "dir": there,
            "here": here,
            "http": f"http://127.0.0.1:{web.port}",
            "port": web.port,
        }
        self._tasks: list[asyncio.Task[Any]] = []

    def _fill(self, value: Any) -> Any:
        if isinstance(value, str):
            return re.sub(r"\$\{([^}]+)\}", lambda m: self._text(m[1]), value)
        if isinstance(value, list):
            return [self._fill(each) for each in value]
        if isinstance(value, dict):
            return {key: self._fill(each) for key, each in cast("dict[str, Any]", value).items()}
        return value

    def _text(self, name: str) -> str:
        head, _, tail = name.partition(".")
        value = self._values[head]
        if tail:
            value = getattr(value, snake(tail))
        return text_of(value)

    async def run(self, steps: list[dict[str, Any]]) -> None:
        """Run all steps."""
        try:
            for number, step in enumerate(steps, 1):
                await self._step(number, step)
            assert self._proxy is None or self._proxy.at is None, "no message came at which to cut"
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _step(self, number: int, step: dict[str, Any]) -> None:
        where = f"step {number} ({step['do']})"
        arguments = self._fill(step.get("with", {}))
        target = self._values[step["on"]] if "on" in step else self._agent
        name = snake(step["do"])
        verb = getattr(self, f"_on_{name}" if "on" in step else f"_do_{name}")
        work = verb(target, **{_argument(key): value for key, value in arguments.items()})
        if step.get("background"):
            task = asyncio.create_task(work)
            self._tasks.append(task)
            if "as" in step:
                self._values[step["as"]] = task
            await asyncio.sleep(0)
            return
        try:
            async with asyncio.timeout(60):
                result = await work
        except Exception as error:
            if "fails" not in step:
                raise AssertionError(f"{where} failed: {type(error).__name__}: {error}") from error
            self._check_error(where, self._fill(step["fails"]), error)
            return
        assert "fails" not in step, f"{where} did not fail, and gave {result!r}"
        if "as" in step:
            self._values[step["as"]] = result
        if "see" in step:
            found = differs(self._fill(step["see"]), result)
            assert found is None, f"{where}: {found}"

    @staticmethod
    def _check_error(where: str, want: dict[str, Any], error: Exception) -> None:
        for member, value in want.items():
            if member == "kind":
                assert isinstance(error, KINDS[value]), f"{where}: {error!r} is no {value}"
            elif member == "message":
                found = differs(value, str(error))
                assert found is None, f"{where}: {found}"
            else:
                found = differs(value, getattr(error, snake(member), None), f".{member}")
                assert found is None, f"{where}: {error!r}: {found}"

    # The client.

    async def _do_run(self, agent: execagent.Agent, argv: list[str], **options: Any) -> Any:
        return await agent.run(argv, **_options(options))

    async def _do_shell(self, agent: execagent.Agent, script: str, **options: Any) -> Any:
        return await agent.shell(script, **cast("Any", _options(options)))

    async def _do_spawn(self, agent: execagent.Agent, argv: list[str], **options: Any) -> Any:
        return await agent.spawn(argv, **_options(options))

    async def _do_attach(self, agent: execagent.Agent, id: str, after: int | None = None) -> Any:
        return await agent.attach(id, after=after)

    async def _do_processes(self, agent: execagent.Agent) -> Any:
        return await agent.processes()

    async def _do_read_file(self, agent: execagent.Agent, path: str) -> Any:
        return await agent.fs.read(path)

    async def _do_write_file(self, agent: execagent.Agent, path: str, data: Any, **options: Any) -> None:
        await agent.fs.write(path, bytes_of(data), **options)

    async def _do_list(self, agent: execagent.Agent, path: str, follow: bool = True) -> Any:
        return [_file(entry) for entry in await agent.fs.list(path, follow=follow)]

    async def _do_stat(self, agent: execagent.Agent, path: str, follow: bool = True) -> Any:
        return _file(await agent.fs.stat(path, follow=follow))

    async def _do_stat_many(self, agent: execagent.Agent, paths: list[str], follow: bool = True) -> Any:
        found = await agent.fs.stat_many(paths, follow=follow)
        return [each if isinstance(each, execagent.RpcError) else _file(each) for each in found]

    async def _do_search(self, agent: execagent.Agent, path: str, **options: Any) -> Any:
        return await agent.fs.search(path, **options)

    async def _do_ports(self, agent: execagent.Agent) -> Any:
        return (await agent.ports()).ports

    async def _do_watch_ports(self, agent: execagent.Agent) -> Any:
        return await agent.watch_ports()

    async def _do_exists(self, agent: execagent.Agent, path: str) -> Any:
        return await agent.fs.exists(path)

    async def _do_make_directory(self, agent: execagent.Agent, path: str, parents: bool = True) -> None:
        await agent.fs.mkdir(path, parents=parents)

    async def _do_remove(
        self, agent: execagent.Agent, path: str, recursive: bool = False, missing_ok: bool = False
    ) -> None:
        await agent.fs.remove(path, recursive=recursive, missing_ok=missing_ok)

    async def _do_rename(self, agent: execagent.Agent, from_: str, to: str, replace: bool = True) -> None:
        await agent.fs.rename(from_, to, replace=replace)

    async def _do_copy(self, agent: execagent.Agent, from_: str, to: str) -> None:
        await agent.fs.copy(from_, to)

    async def _do_realpath(self, agent: execagent.Agent, path: str, missing_ok: bool = False) -> Any:
        return await agent.fs.realpath(path, missing_ok=missing_ok)

    async def _do_walk(self, agent: execagent.Agent, path: str, max_depth: int = 64) -> Any:
        found = await agent.fs.walk(path, max_depth=max_depth)
        return [{"path": e.path, "isDirectory": e.is_dir} for e in found.entries]

    async def _do_open_file(self, agent: execagent.Agent, path: str, mode: Any) -> Any:
        return await agent.fs.open(path, mode)

    async def _do_watch(self, agent: execagent.Agent, path: str, recursive: bool = False) -> Any:
        return await agent.fs.watch(path, recursive=recursive)

    async def _do_apply_patch(self, agent: execagent.Agent, patch: str, cwd: str, dry_run: bool = False) -> Any:
        return await agent.fs.apply_patch(patch, cwd=cwd, dry_run=dry_run)

    async def _do_upload(self, agent: execagent.Agent, from_: str, to: str) -> None:
        await agent.upload(from_, to)

    async def _do_download(self, agent: execagent.Agent, from_: str, to: str) -> None:
        await agent.download(from_, to)

    async def _do_http(
        self,
        agent: execagent.Agent,
        method: str,
        url: str,
        headers: Any = None,
        content: Any = None,
        redirects: bool = True,
    ) -> Any:
        answer = await agent.http.request(
            method,
            url,
            headers=headers,
            content=None if content is None else bytes_of(content),
            follow_redirects=redirects,
        )
        return {"status": answer.status_code, "headers": dict(answer.headers), "content": answer.content}

    async def _do_forward(self, agent: execagent.Agent, to: str) -> Any:
        forward = agent.forward(to)
        await forward.open()
        return forward

    async def _do_connect_to(self, agent: execagent.Agent, to: str) -> Any:
        return await agent.dial(to)

    async def _do_info(self, agent: execagent.Agent) -> Any:
        return await agent.info()

    async def _do_cut(
        self, agent: execagent.Agent, for_: int = 0, at: str | None = None, until: str | None = None
    ) -> None:
        assert self._proxy is not None
        if at is not None:
            self._proxy.at, self._proxy.until = at, until
            return
        if for_:
            await self._proxy.cut_for(for_ / 1000)
        else:
            self._proxy.cut()

    async def _do_close(self, agent: execagent.Agent) -> None:
        await agent.close()

    async def _do_sleep(self, agent: execagent.Agent, ms: int) -> None:
        await asyncio.sleep(ms / 1000)

    async def _do_local_write(self, agent: execagent.Agent, path: str, data: Any) -> None:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        Path(path).write_bytes(bytes_of(data))

    async def _do_local_read(self, agent: execagent.Agent, path: str) -> Any:
        return Path(path).read_bytes()

    async def _do_sequence(self, agent: execagent.Agent, from_: int, to: int) -> Any:
        return "".join(f"{i}\n" for i in range(from_, to + 1)).encode()

    # Handles.

    async def _on_await(self, task: asyncio.Task[Any]) -> Any:
        return await task

    async def _on_write(self, target: Any, data: Any) -> None:
        if isinstance(target, Process):
            await target.stdin.write(bytes_of(data))
        else:
            await target.write(bytes_of(data))

    async def _on_close_stdin(self, p: Process) -> None:
        await p.stdin.close()

    async def _on_signal(self, p: Process, name: Any) -> None:
        await p.signal(name)

    async def _on_resize(self, p: Process, rows: int, cols: int) -> None:
        await p.resize(rows, cols)

    async def _on_kill(self, p: Process) -> None:
        await p.kill()

    async def _on_wait(self, p: Process, timeout: int | None = None) -> Any:
        code = await p.wait(timeout=None if timeout is None else timeout / 1000)
        return {"exitCode": code, "timedOut": p.timed_out, "outOfMemory": p.out_of_memory}

    async def _on_output(self, p: Process) -> Any:
        if p._readers is not None:  # pyright: ignore[reportPrivateUsage]
            stdout, stderr = await asyncio.gather(p.stdout.read(), p.stderr.read())
            return execagent.Result(await p.wait(), stdout, stderr)
        return await p.communicate()

    async def _on_read_until(self, p: Process, stream: str, text: str) -> Any:
        return await (p.stdout if stream == "stdout" else p.stderr).read_until(text.encode())

    async def _on_close(self, target: Any) -> None:
        closing = target.close()
        if closing is not None:
            await closing

    async def _on_read_at(self, f: execagent.File, offset: int, length: int) -> Any:
        return await f.read_at(offset, length)

    async def _on_write_at(self, f: execagent.File, offset: int, data: Any) -> None:
        await f.write_at(bytes_of(data), offset)

    async def _on_next(self, w: execagent.Watch | execagent.PortWatch) -> Any:
        if isinstance(w, execagent.PortWatch):
            return await w.next()
        changes: list[execagent.Change] = []
        overflow = False
        while True:
            try:
                async with asyncio.timeout(0.3 if changes or overflow else 30):
                    more = await w.next()
            except TimeoutError:
                break
            changes += more.changes
            overflow = overflow or more.overflow
        return {
            "overflow": overflow,
            "changes": [{"kind": c.kind, "path": c.path, "from": c.source} for c in changes],
        }

    async def _on_close_write(self, s: execagent.Socket) -> None:
        await s.write_eof()

    async def _on_read_all(self, s: execagent.Socket) -> Any:
        return await s.read()

    async def _on_exchange(self, f: execagent.Forward, data: Any) -> Any:
        reader, writer = await asyncio.open_connection("127.0.0.1", f.port)

        async def send() -> None:
            writer.write(bytes_of(data))
            await writer.drain()
            writer.write_eof()

        sending = asyncio.create_task(send())
        try:
            return await reader.read()
        finally:
            await sending
            writer.close()


def _file(found: execagent.Stat | execagent.DirEntry) -> dict[str, Any]:
    """Spell what is known of a file as the scenarios do."""
    members = found._asdict()
    more = {re.sub("_(.)", lambda m: m[1].upper(), name): value for name, value in members.items()}
    return {**more, "isDirectory": found.is_dir}


def _argument(name: str) -> str:
    spelled = snake(name)
    return spelled + "_" if spelled in ("from", "for") else spelled


def _options(options: dict[str, Any]) -> dict[str, Any]:
    for name in ("timeout", "kill_after"):
        if name in options:
            options[name] = options[name] / 1000
    if "input" in options:
        options["input"] = bytes_of(options["input"])
    if isinstance(options.get("tty"), dict):
        options["tty"] = execagent.Tty(**options["tty"])
    if "sandbox" in options:
        options["sandbox"] = execagent.Sandbox(**{snake(k): v for k, v in options["sandbox"].items()})
    return options
