"""Through a registry: the handshake against vectors, and a real registry with a real agent."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

pytest.importorskip("cryptography")

import execagent
from execagent import _frame
from execagent._frame import FrameError
from execagent._noise import Identity, Initiator, NoiseError, prologue

from .conftest import AGENT, ROOT, stop
from .proxy import Proxy

REGISTRY = os.environ.get("EXECAGENT_REGISTRY") or str(ROOT / "bin" / "registry")
VECTORS = ROOT / "internal" / "relay" / "noise" / "testdata" / "vectors" / "noise-deterministic.json"
FRAMES = ROOT / "internal" / "relay" / "frame" / "testdata" / "relay-frames.json"


def test_noise_vectors() -> None:
    vectors = json.loads(VECTORS.read_text())

    def identity(name: str) -> Identity:
        keys = vectors[name]
        return Identity(bytes.fromhex(keys["x25519_private_hex"]), bytes.fromhex(keys["mlkem768_seed_hex"]))

    executor = identity("executor_static")
    first = bytes.fromhex(vectors["message1_hex"])
    # The library encapsulates at random, so the test gives it the outcome that the vectors have.
    ciphertext = first[:1088]
    secret = executor.kem.decapsulate(ciphertext)

    def initiator() -> Initiator:
        return Initiator(
            identity("harness_static"),
            executor.public,
            prologue(vectors["environment_id"], vectors["executor_registration_id"], vectors["stream_id"]),
            vectors["message1_payload_utf8"].encode(),
            ephemeral=identity("harness_ephemeral"),
            encapsulate=lambda _: (secret, ciphertext),
        )

    handshake = initiator()
    assert handshake.message == first
    second = bytes.fromhex(vectors["message2_hex"])
    keys = handshake.finish(second)
    assert [key.hex() for key in keys] == [
        vectors["key_initiator_to_responder_hex"],
        vectors["key_responder_to_initiator_hex"],
    ]
    assert handshake.hash.hex() == vectors["handshake_hash_hex"]
    for at in range(0, len(second), 97):
        broken = second[:at] + bytes([second[at] ^ 1]) + second[at + 1 :]
        with pytest.raises(NoiseError):
            initiator().finish(broken)
    for wrong in (b"", second[:-1], second + b"x"):
        with pytest.raises(NoiseError):
            initiator().finish(wrong)


def test_frame_vectors() -> None:
    for vector in json.loads(FRAMES.read_text())["frames"]:
        message = bytes.fromhex(vector["frame_hex"])
        frame = _frame.decode(message)
        if "trace" not in vector["name"]:
            assert _frame.encode(frame) == message, vector["name"]
        for at in range(len(message)):
            try:
                _frame.decode(message[:at])
            except FrameError:
                pass
            try:
                _frame.decode(message[:at] + bytes([message[at] ^ 0xFF]) + message[at + 1 :])
            except FrameError:
                pass
    for wrong in (b"", b"\x08\x02", b"\x08\x01\x12\x01 2\x00", b"\x08\x01\x12\x01a", b"\x0b" * 100, b"\xff" * 20):
        with pytest.raises(FrameError):
            _frame.decode(wrong)


@dataclass
class Site:
    """A registry with an agent."""

    url: str
    harness: str
    executor: str
    folder: Path

    def agent(self, environment: str) -> subprocess.Popen[bytes]:
        """Start an agent that registers."""
        return subprocess.Popen(
            [AGENT, "--remote", self.url, "--environment-id", environment],
            env={**os.environ, "CODEX_API_KEY": self.executor},
            cwd=self.folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    if not os.access(REGISTRY, os.X_OK):
        pytest.skip(f"there is no registry at {REGISTRY}: run make build, or set EXECAGENT_REGISTRY")
    folder = tmp_path_factory.mktemp("registry")
    data = str(folder / "data")

    def key(role: str) -> str:
        command = [REGISTRY, "keys", "create", "--data", data, "--role", role, "--environment", "py-*"]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    executor, harness = key("executor"), key("harness")
    registry = subprocess.Popen(
        [REGISTRY, "--data", data, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert registry.stdout is not None
    url = registry.stdout.readline().decode().strip()
    made = Site(url, harness, executor, folder)
    agent = made.agent("py-1")
    yield made
    agent.terminate()
    agent.wait()
    stop(registry)


def connect(site: Site, **options: object) -> execagent.Opening:
    chosen: dict[str, object] = {
        "registry": site.url,
        "environment_id": "py-1",
        "token": site.harness,
        "connect_timeout": 100.0,
        "handshake_timeout": 100.0,
        **options,
    }
    return execagent.connect(**chosen)  # type: ignore[arg-type]


async def test_through_the_relay(site: Site) -> None:
    async with connect(site) as agent:
        result = await agent.run(["sh", "-c", "echo through the relay; exit 3"])
        assert (result.stdout, result.exit_code) == (b"through the relay\n", 3)
        data = os.urandom(5_000_000)
        result = await agent.run(["cat"], input=data)
        assert result.stdout == data
        begun = time.perf_counter()
        result = await agent.run(["head", "-c", "40000000", "/dev/zero"])
        assert len(result.stdout) == 40_000_000
        print(f"{40 / (time.perf_counter() - begun):.0f} MB/s through the relay")
        process = await agent.spawn(["seq", "1000000"])
        await asyncio.sleep(0.5)  # nobody takes the output
        assert (await process.communicate()).stdout.endswith(b"\n999999\n1000000\n")
        assert agent.generation == 1
    left = [t for t in asyncio.all_tasks() if t is not asyncio.current_task() and not t.done()]
    if left:
        await asyncio.wait(left, timeout=2)
    assert [t for t in left if not t.done()] == []


async def test_lost_websocket(site: Site) -> None:
    """A stream goes on over the next websocket, and the client does not even notice."""
    host = urlsplit(site.url)
    async with Proxy(f"tcp://{host.hostname}:{host.port}") as proxy:
        through = Site(proxy.url.replace("ws://", "http://"), site.harness, site.executor, site.folder)
        async with connect(through) as agent:
            process = await agent.spawn(
                ["sh", "-c", "for i in $(seq 200); do echo $i; sleep 0.01; done; cat"], stdin=True
            )
            for i in range(5):
                await asyncio.sleep(0.2)
                proxy.cut()
                await process.stdin.write(b"%d\n" % i * 1000)
            await process.stdin.close()
            result = await process.communicate()
            want = b"".join(b"%d\n" % i for i in range(1, 201)) + b"".join(b"%d\n" % i * 1000 for i in range(5))
            assert result.stdout == want
            assert agent.generation == 1, "the stream has not outlived its websocket"


async def test_cuts(site: Site) -> None:
    """Websockets that are cut at random bytes, and so are the calls of the registry."""
    host = urlsplit(site.url)
    async with Proxy(f"tcp://{host.hostname}:{host.port}") as proxy:
        through = Site(proxy.url.replace("ws://", "http://"), site.harness, site.executor, site.folder)
        async with connect(through) as agent:
            proxy.budgets(2000, 300_000)
            proxy.cut()
            data = os.urandom(2_000_000)
            process = await agent.spawn(["cat"], stdin=True)

            async def feed() -> None:
                for at in range(0, len(data), 100_000):
                    await process.stdin.write(data[at : at + 100_000])
                await process.stdin.close()

            feeding = asyncio.create_task(feed())
            async with asyncio.timeout(120):
                result = await process.communicate()
                await feeding
            assert result.stdout == data
            assert proxy.cuts > 5
            proxy.budget = lambda: None


async def test_refusals(site: Site) -> None:
    refused: list[tuple[dict[str, object], str, bool]] = [
        ({"token": "sk-wrong"}, "401", True),
        ({"environment_id": "other-1"}, "403", True),
        ({"environment_id": "py-offline", "connect_timeout": 0.7}, "no executor is connected", False),
        ({"registry": "http://127.0.0.1:1", "connect_timeout": 0.7}, "cannot be reached", False),
    ]
    for options, want, final in refused:
        with pytest.raises(execagent.ConnectError, match=want) as caught:
            await connect(site, **options)
        assert caught.value.final is final
        assert site.harness not in str(caught.value)
    wrong: list[tuple[dict[str, object], str]] = [
        ({"registry": "http://registry.example"}, "needs https"),
        ({"registry": "registry.example"}, "is not a URL"),
        ({"environment_id": "a/b"}, "environment_id is 'a/b'"),
        ({"environment_id": None}, "environment_id is None"),
    ]
    for options, want in wrong:
        with pytest.raises(ValueError, match=want):
            await connect(site, **options)


async def test_another_executor(site: Site) -> None:
    """A session does not follow to another executor, because what ran is gone."""
    agent = site.agent("py-2")
    try:
        async with connect(site, environment_id="py-2") as client:
            await client.run(["true"])
            agent.kill()
            agent.wait()
            agent = site.agent("py-2")
            with pytest.raises(execagent.DisconnectedError):
                async with asyncio.timeout(60):
                    while True:
                        await client.fs.stat("/")
                        await asyncio.sleep(0.1)
    finally:
        agent.kill()
        agent.wait()


async def test_token_that_comes_back() -> None:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 403 Forbidden\r\nContent-Length: %d\r\n\r\n%s" % (len(head), head))
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(handler, "127.0.0.1", 0) as listening:
        url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
        with pytest.raises(execagent.ConnectError, match="refuses with 403") as caught:
            await execagent.connect(registry=url, environment_id="e", token="sk-secret")
    assert "redacted" in str(caught.value) and "secret" not in str(caught.value)
