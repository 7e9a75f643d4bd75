"""Connections that are cut hundreds of times: nothing is lost, nothing comes twice, nothing is left over.

EXECAGENT_CUTS is the number of cuts of each kind.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import execagent

from .conftest import ENOUGH, Server, until
from .proxy import Proxy
from .scenario import Web

CUTS = int(os.environ.get("EXECAGENT_CUTS", "150"))
# Bytes that are under way. What is missed comes in one answer, for which a connection needs the budget.
_WINDOW = 30_000


def _numbers(begin: int, size: int) -> bytes:
    """Return bytes that differ from place to place."""
    first = begin // 8
    data = b"".join(b"%07d\n" % (i % 10_000_000) for i in range(first, (begin + size) // 8 + 1))
    return data[begin - 8 * first : begin - 8 * first + size]


class Exchange:
    """Sends bytes, and checks that they come back."""

    def __init__(
        self,
        write: Callable[[bytes], Awaitable[None]],
        read: Callable[[int], Awaitable[bytes]],
        end: Callable[[], Awaitable[None]],
    ) -> None:
        self._write, self._read, self._end = write, read, end
        self.sent = self.received = 0
        self._room = asyncio.Event()

    async def send(self, enough: Callable[[], bool]) -> None:
        while not enough():
            if self.sent - self.received > _WINDOW:
                self._room.clear()
                await self._room.wait()
                continue
            size = random.choice((1, 7, 100, 5_000, 20_000))
            data = _numbers(self.sent, size)
            self.sent += size
            await self._write(data)
        await self._end()

    async def receive(self) -> None:
        while data := await self._read(100_000):
            assert data == _numbers(self.received, len(data)), f"at {self.received}"
            self.received += len(data)
            self._room.set()


@pytest.mark.parametrize("whole_frames", [True, False], ids=["between messages", "anywhere"])
async def test_cuts(whole_frames: bool, server: Server, tmp_path: Path) -> None:
    async with Web() as web, Proxy(server.ws) as proxy:
        proxy.whole_frames = whole_frames
        async with execagent.connect(proxy.url) as agent:
            proxy.budget = lambda: random.choice((random.randrange(2_500), random.randrange(2_000, 150_000)))
            proxy.cut()

            def enough() -> bool:
                return proxy.cuts >= CUTS

            cat = await agent.spawn(["cat"], stdin=True)
            ticks = await agent.spawn(["sh", "-c", "i=0; while :; do echo $i; i=$((i+1)); sleep 0.003; done"])
            socket = await agent.dial(web.port)
            await socket.write(b"\n")  # the server echoes what does not begin with a capital letter
            assert await socket.read(1) == b"\n"
            echo = Exchange(cat.stdin.write, cat.stdout.read, cat.stdin.close)
            echo2 = Exchange(socket.write, socket.read, socket.write_eof)

            async def count() -> int:
                seen = 0
                async for line in ticks.stdout:
                    assert line == b"%d\n" % seen
                    seen += 1
                    if enough():
                        ticks.stdout.close()  # output that nobody takes would stop the connection
                        return seen
                raise AssertionError("the ticks have ended")

            async def run() -> int:
                runs = 0
                ran = tmp_path / "ran"
                while not enough():
                    result = await agent.run(["sh", "-c", f"echo {runs} >> {ran}; echo {runs}; exit 3"])
                    assert (result.exit_code, result.stdout) == (3, b"%d\n" % runs)
                    runs += 1
                assert ran.read_text() == "".join(f"{i}\n" for i in range(runs))  # each once
                return runs

            async def look() -> int:
                looks = 0
                while not enough():
                    assert (await agent.fs.stat("/")).is_dir
                    looks += 1
                    await asyncio.sleep(0.005)
                return looks

            async with asyncio.timeout(60 + CUTS), asyncio.TaskGroup() as all_of_them:
                for exchange in (echo, echo2):
                    all_of_them.create_task(exchange.send(enough))
                    all_of_them.create_task(exchange.receive())
                ticking, looking = all_of_them.create_task(count()), all_of_them.create_task(look())
                running = all_of_them.create_task(run())
            proxy.budget = lambda: None
            assert await cat.wait() == 0
            assert echo.received == echo.sent and echo2.received == echo2.sent
            assert min(ticking.result(), looking.result(), running.result(), echo.sent, echo2.sent) > 0
            assert agent.generation > CUTS // 4
            ticks.close()
            await socket.close()
            assert {p.id for p in await agent.processes() if not p.exited} <= {ticks.id}
    await _nothing_is_left()


async def _nothing_is_left() -> None:
    for _ in range(6000):
        left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        if not left:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(left)


async def test_gone_for_good(server: Server, tmp_path: Path) -> None:
    """Whoever waits gets an error when the connection does not come back."""
    async with Proxy(server.ws) as proxy, execagent.connect(proxy.url, recovery_timeout=0.5) as agent:
        process = await agent.spawn(["sh", "-c", "read x; sleep 60"], stdin=True)
        watch = await agent.fs.watch(str(tmp_path))
        waits = [
            asyncio.create_task(each)
            for each in (process.wait(), process.stdout.read(), watch.next(), agent.run(["sleep", "60"]))
        ]
        await asyncio.sleep(0.2)
        proxy.refusing = True
        proxy.cut()
        outcomes = await asyncio.wait_for(asyncio.gather(*waits, return_exceptions=True), ENOUGH)
        for outcome in outcomes:
            assert isinstance(outcome, execagent.DisconnectedError), outcome
        with pytest.raises(execagent.DisconnectedError, match="could not be resumed"):
            await agent.fs.stat("/")
        assert agent.state is execagent.State.FAILED
        assert isinstance(await agent.wait_failed(), execagent.DisconnectedError)
    await _nothing_is_left()


async def test_fail_fast(server: Server) -> None:
    async with Proxy(server.ws) as proxy, execagent.connect(proxy.url) as agent:
        proxy.refusing = True
        proxy.cut()
        await until(lambda: agent.state is execagent.State.RECOVERING)
        with execagent.fail_fast(), pytest.raises(execagent.RecoveringError) as caught:
            await agent.fs.stat("/")
        assert caught.value.retryable
        waiting = asyncio.create_task(agent.fs.stat("/"))
        proxy.refusing = False
        assert (await waiting).is_dir


async def test_status_waits_for_nothing(server: Server) -> None:
    async with Proxy(server.ws) as proxy, execagent.connect(proxy.url) as agent:
        assert await agent.status() == "ready"
        proxy.refusing = True
        proxy.cut()
        await until(lambda: agent.state is execagent.State.RECOVERING)
        with pytest.raises(execagent.RecoveringError):
            await agent.status()
        proxy.refusing = False
        await until(lambda: agent.state is execagent.State.CONNECTED)
        assert await agent.status() == "ready"
        await agent.close()
        with pytest.raises(execagent.ClosedError):
            await agent.status()


async def test_cancel_during_recovery(server: Server) -> None:
    """A caller that gives up while there is no connection leaves nothing behind."""
    async with Proxy(server.ws) as proxy, execagent.connect(proxy.url) as agent:
        process = await agent.spawn(["cat"], stdin=True)
        proxy.refusing = True
        proxy.cut()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await process.stdin.write(b"lost or not, but not twice\n")
        proxy.refusing = False
        await process.stdin.write(b"last\n")
        await process.stdin.close()
        result = await process.communicate()
        assert result.stdout in (b"last\n", b"lost or not, but not twice\nlast\n")


async def test_unread_output_is_kept(server: Server, tmp_path: Path) -> None:
    """A process whose output nobody takes stops, and goes on when somebody does, also over a cut."""
    async with Proxy(server.ws) as proxy, execagent.connect(proxy.url) as agent:
        process = await agent.spawn(["sh", "-c", "seq 300000"])
        await asyncio.sleep(0.3)
        proxy.cut()
        await asyncio.sleep(0.1)
        result = await process.communicate()
        assert result.stdout == "".join(f"{i}\n" for i in range(1, 300_001)).encode()
