"""Runs the blocks for Python of the pages of the integrations. The info string of a block says how:

python run        a program of its own; its model is a scripted one, and port 7000 that of an agent
python untested:  why nothing runs it
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

OWN = "openai-agents"  # test_openai_agents.py runs the program of this page
PAGES = sorted((ROOT / "docs" / "integrations").glob("*.md"))
# Blocks of other words belong to make adapters-typescript, which reads the same pages.
ALL = [
    (page, block)
    for page in PAGES
    for block in blocks(page)
    if block.info in ("text transcript", "sh by=adapters")
    or (block.info.startswith("python") and not block.info.startswith("python untested: ") and page.stem != OWN)
]

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
    "strands": """
import json
from strands.models import Model

class Scripted(Model):
    def update_config(self, **config): pass
    def get_config(self): return {}
    def structured_output(self, *arguments, **options): raise NotImplementedError

    async def stream(self, messages, *arguments, **options):
        start, delta, reason = {"toolUse": {"name": "sandbox_shell", "toolUseId": "1"}}, None, "tool_use"
        for block in messages[-1]["content"]:
            if "toolResult" in block:
                output = json.loads(block["toolResult"]["content"][0]["text"])["output"]
                start, delta, reason = {}, {"text": output.strip()}, "end_turn"
        yield {"messageStart": {"role": "assistant"}}
        yield {"contentBlockStart": {"start": start}}
        yield {"contentBlockDelta": {"delta": delta or {"toolUse": {"input": '{"command": "echo hello"}'}}}}
        yield {"contentBlockStop": {}}
        yield {"messageStop": {"stopReason": reason}}

MODEL = Scripted()
""",
    "google-adk": """
from google.adk.models.base_llm import BaseLlm
from google.adk.models.llm_response import LlmResponse
from google.genai import types

class Scripted(BaseLlm):
    async def generate_content_async(self, llm_request, stream=False):
        part = llm_request.contents[-1].parts[0]
        if part.function_response is not None:
            said = types.Part.from_text(text=part.function_response.response["stdout"].strip())
        else:
            said = types.Part.from_function_call(name="Execute", args={"command": "echo hello"})
        yield LlmResponse(content=types.Content(role="model", parts=[said]))

MODEL = Scripted(model="scripted")
""",
    "inspect-ai": """
from inspect_ai.model import ModelOutput, ModelUsage, get_model

def respond(messages, *_):
    if messages[-1].role == "tool":
        output = ModelOutput.from_content("mockllm/model", messages[-1].text.strip())
    else:
        output = ModelOutput.for_tool_call("mockllm/model", "bash", {"command": "sh greet.sh"})
    output.usage = ModelUsage()
    return output

MODEL = get_model("mockllm/model", custom_outputs=respond)
""",
}
EXTRAS = {"google-adk": "adk"}
"""The extras of pages that have another name."""


@pytest.mark.parametrize(("page", "block"), ALL, ids=[block.where for _, block in ALL])
def test_block(page: Path, block: Block, tmp_path: Path) -> None:
    if block.info == "text transcript":
        assert block.text == (TRANSCRIPTS / f"{page.stem}.txt").read_text()
        return
    if block.info == "sh by=adapters":
        extras = tomllib.loads((ROOT / "sdk/python/pyproject.toml").read_text())["project"]["optional-dependencies"]
        extra = EXTRAS.get(page.stem, page.stem)
        assert re.findall(r"execagent\[([^]]+)\]", block.text) == [extra] and extra in extras
        return
    assert block.info == "python run"
    process, url = start_agent("--listen", "ws://127.0.0.1:0", cwd=str(tmp_path))
    try:
        text = block.text.replace("ws://127.0.0.1:7000", url).replace("/var/project", str(tmp_path))
        text = MODELS[page.stem] + re.sub(r'"(?:anthropic|gemini|global)[^"]*"', "MODEL", text)
        done = subprocess.run(
            [sys.executable, "-c", text], cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False
        )
    finally:
        stop(process)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (block.output or "")
