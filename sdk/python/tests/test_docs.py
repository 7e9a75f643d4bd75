"""Runs every block of the page of the client for Python, and of the README of the package.

The info string of a block says how:

    python          in an async function, where agent is a client of an agent that runs in an empty folder
    python run      a program of its own
    text output     what the block before it prints
    sh tested       in an empty folder, with the agent on the PATH
    sh by=package   run by test_package
"""

from __future__ import annotations

import importlib
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

import execagent

from .conftest import AGENT, ROOT, start_agent, stop
from .pages import Block, blocks
from .reference import build

PAGES = [ROOT / "docs/sdk/python.md", ROOT / "sdk" / "python" / "README.md"]
SRC = Path(execagent.__file__).parent.parent
FRAME = """
import ast
import asyncio
import sys
import execagent

async def main():
    async with execagent.connect("ws://127.0.0.1:7000") as agent:
        names = {**vars(execagent), "agent": agent, "asyncio": asyncio, "execagent": execagent}
        code = compile(sys.argv[1], "block", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        await eval(code, names)

asyncio.run(main())
"""


ALL = [block for page in PAGES for block in blocks(page) if block.info != "sh by=package"]


def test_blocks_are_known() -> None:
    assert {block.info for block in ALL} == {"python", "python run", "sh tested"}


@pytest.mark.parametrize("block", ALL, ids=[block.where for block in ALL])
def test_block(block: Block, tmp_path: Path) -> None:
    folder, programs = tmp_path / "empty", tmp_path / "bin"
    folder.mkdir()
    programs.mkdir()
    (programs / "agent").symlink_to(AGENT)
    env = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(SRC), "PYTHONWARNINGS": "error"}
    if block.info == "sh tested":
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            address = "127.0.0.1:%d" % free.getsockname()[1]  # noqa: UP031
        script = block.text.replace("127.0.0.1:7000", address)
        subprocess.run(["sh", "-eu", "-c", script], cwd=folder, env=env, check=True, timeout=60)
        return
    code = block.text.replace("/var/project", f"/var/project{os.getpid()}")  # other runs have theirs
    text = code if block.info == "python run" else FRAME
    process, url = start_agent("--listen", "ws://127.0.0.1:0", cwd=str(folder), env=env)
    try:
        text = re.sub(r"ws://127\.0\.0\.1:7000", url, text)
        done = subprocess.run(
            [sys.executable, "-c", text, code],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    finally:
        stop(process)
    assert done.stderr == "" and done.returncode == 0, done.stderr
    assert done.stdout == (block.output or "")


def test_reference(tmp_path: Path) -> None:
    """Every name of the package is in the reference, which is written without a warning."""
    build(tmp_path)
    pages = {"execagent": tmp_path / "execagent.html", "execagent.sync": tmp_path / "execagent" / "sync.html"}
    for module, page in pages.items():
        text = page.read_text()
        names: list[str] = importlib.import_module(module).__all__
        assert [name for name in names if name != "__version__" and f'id="{name}"' not in text] == []
