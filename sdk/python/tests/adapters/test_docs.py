"""Runs the blocks for Python of the pages of the integrations. The info string of a block says how:

python run        a program of its own; its model is a scripted one, and port 7000 that of an agent
text output       what the block before it prints
text transcript   what a test has said, of the file of the same name
sh by=adapters    make adapters-python has installed this
"""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from ..conftest import ROOT, start_agent, stop
from ..pages import Block, blocks
from .conftest import TRANSCRIPTS

PAGES = sorted((ROOT / "docs" / "integrations").glob("*.md"))
ALL = [(page, block) for page in PAGES for block in blocks(page) if block.info.split()[0] in ("python", "text", "sh")]

# What stands for the model of a page: it echoes hello by its shell, and says what came back.
MODELS = {
    "pydantic-ai": """
from pydantic_ai import ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

def respond(messages, info):
    for part in messages[-1].parts:
        if part.part_kind == "tool-return":
            return ModelResponse(parts=[TextPart(part.content.strip())])
    return ModelResponse(parts=[ToolCallPart(info.function_tools[0].name, {"command": "echo hello"})])

MODEL = FunctionModel(respond)
""",
    "deepagents": """
from langchain_core.language_models.fake_chat_models import GenericFakeChatModel
from langchain_core.messages import AIMessage

class Scripted(GenericFakeChatModel):
    def bind_tools(self, tools, **options):
        return self

call = {"name": "execute", "args": {"command": "echo hello"}, "id": "1", "type": "tool_call"}
MODEL = Scripted(messages=iter([AIMessage("", tool_calls=[call]), AIMessage("hello")]))
""",
}


@pytest.mark.parametrize(("page", "block"), ALL, ids=[block.where for _, block in ALL])
def test_block(page: Path, block: Block, tmp_path: Path) -> None:
    if block.info == "text transcript":
        assert block.text == (TRANSCRIPTS / f"{page.stem}.txt").read_text()
        return
    if block.info == "sh by=adapters":
        extras = tomllib.loads((ROOT / "sdk/python/pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert re.findall(r"execagent\[([^]]+)\]", block.text) == [page.stem] and page.stem in extras
        return
    assert block.info == "python run"
    process, url = start_agent("--listen", "ws://127.0.0.1:0", cwd=str(tmp_path))
    try:
        text = block.text.replace("ws://127.0.0.1:7000", url).replace("/var/project", str(tmp_path))
        text = MODELS[page.stem] + re.sub(r'"anthropic:[^"]*"', "MODEL", text)
        done = subprocess.run(
            [sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
        )
    finally:
        stop(process)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (block.output or "")
