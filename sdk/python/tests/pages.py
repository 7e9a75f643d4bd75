"""The fenced blocks of the pages of the documents."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass
class Block:
    """A block, with the output that follows it."""

    info: str
    text: str
    where: str
    output: str | None = None


def blocks(page: Path) -> list[Block]:
    """Return the fenced blocks of a page, each with the output that follows it."""
    found: list[Block] = []
    open_block: Block | None = None
    for number, line in enumerate(page.read_text().splitlines(keepends=True), 1):
        if line.startswith("```") and open_block is None:
            open_block = Block(line[3:].strip(), "", f"{page.name} line {number}")
        elif line.startswith("```") and open_block is not None:
            if open_block.info == "text output":
                found[-1].output = open_block.text
            else:
                found.append(open_block)
            open_block = None
        elif open_block is not None:
            open_block.text += line
    return found
