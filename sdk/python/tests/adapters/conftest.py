"""Agents, proxies and transcripts for the tests of the adapters.

The variable EXECAGENT_UPDATE makes the tests write their transcripts again.
"""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest

from execagent._adapter import Shared

from ..conftest import Server, server
from ..proxy import Proxy

__all__ = [
    "PATIENCE",
    "CutProxy",
    "Server",
    "Transcript",
    "cutting",
    "folder",
    "has_output",
    "project",
    "server",
    "transcript",
]

T = TypeVar("T")
PATIENCE = (0.5, 5.0, 60.0)
"""Seconds that a command gets, until it has printed something before they are up."""
TRANSCRIPTS = Path(__file__).parent / "transcripts"


class CutProxy:
    """A proxy to an agent that cuts connections. It has a thread of its own, so that tests may block."""

    def __init__(self, target: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._proxy = Proxy(target)
        self._do(self._proxy.__aenter__())
        self.url = self._proxy.url

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def cut(self, *, for_good: bool = False) -> None:
        """Cut all connections; for good also all later ones, until :meth:`mend`."""

        async def cut() -> None:
            self._proxy.refusing = for_good
            self._proxy.cut()

        self._do(cut())

    def mend(self) -> None:
        """Let connections pass again."""
        self._proxy.refusing = False

    @property
    def cuts(self) -> int:
        """How many connections were cut."""
        return self._proxy.cuts

    def close(self) -> None:
        """End the proxy."""
        self._do(self._proxy.__aexit__())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture
def cutting(server: Server) -> Iterator[CutProxy]:
    """A proxy that cuts connections, before an agent over TCP."""
    proxy = CutProxy(server.ws)
    yield proxy
    proxy.close()


def has_output(shared: Shared) -> bool:
    """Report whether a command of an adapter runs whose output has begun to come here."""
    workspace = shared._held.workspace
    return workspace is not None and any(each.last_seq for each in list(workspace.agent._core.processes.values()))


@pytest.fixture
def folder(tmp_path: Path) -> str:
    """An empty folder of the agent, without links in its path."""
    path = tmp_path.resolve() / "workspace"
    path.mkdir()
    return str(path)


@pytest.fixture
def project(folder: str) -> str:
    """A folder with a program that has a fault, and its test: ``sh test.sh``."""
    Path(folder, "greet.sh").write_text('echo "Helo, $1"\n')
    Path(folder, "test.sh").write_text(
        'test "$(sh greet.sh you)" = "Hello, you" || { echo "FAIL: $(sh greet.sh you)"; exit 1; }\necho PASS\n'
    )
    return folder


class Transcript:
    """What was said in a session, as a text that the documents can show.

    A test adds lines; at its end they must be those of the file ``transcripts/NAME.txt``. Paths of the test's folder
    become /workspace.
    """

    def __init__(self, name: str, folder: str) -> None:
        self._path = TRANSCRIPTS / f"{name}.txt"
        self._folder = folder
        self._lines: list[str] = []
        self._hidden: list[tuple[str, str]] = []

    def hide(self, text: str, word: str) -> None:
        """Write a word in the place of a text that differs between runs, such as a name of a session."""
        self._hidden.append((text, word))

    def say(self, who: str, text: str) -> None:
        """Add what somebody has said. The lines of a longer text are indented."""
        for old, new in (*self._hidden, (self._folder, "/workspace")):
            text = text.replace(old, new)
        text = re.sub(r"\n(?=.)", "\n    ", text.rstrip("\n"))
        self._lines.append(f"{who}: {text}\n")

    def check(self) -> None:
        """Compare the lines with the file."""
        text = "".join(self._lines)
        if os.environ.get("EXECAGENT_UPDATE"):
            TRANSCRIPTS.mkdir(exist_ok=True)
            self._path.write_text(text)
        assert self._path.exists(), f"{self._path.name} is missing: run the test with EXECAGENT_UPDATE=1"
        assert text == self._path.read_text()


@pytest.fixture
def transcript(folder: str, request: pytest.FixtureRequest) -> Callable[[str], Transcript]:
    """Make a transcript by its name. It is checked when the test has passed."""
    made: list[Transcript] = []

    def make(name: str) -> Transcript:
        made.append(Transcript(name, folder))
        return made[-1]

    def check() -> None:
        for each in made:
            each.check()

    request.addfinalizer(check)
    return make
