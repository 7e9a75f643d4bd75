"""Writes the reference of the API, as pages of HTML: ``python -m tests.reference FOLDER``."""

from __future__ import annotations

import importlib
import pkgutil
import sys
import typing
from pathlib import Path

import pdoc

import execagent


def build(folder: Path) -> None:
    """Write the pages. What pdoc cannot read is a warning."""
    for info in pkgutil.iter_modules(execagent.__path__):
        if info.name != "sync" and not info.name.startswith("_"):
            continue  # an adapter, which needs its harness
        module = importlib.import_module(f"execagent.{info.name}")
        for value in list(vars(module).values()):
            if isinstance(value, type) and issubclass(value, tuple) and value.__module__ == module.__name__:
                # Python gives the constructor of a NamedTuple annotations that only its module can read.
                value.__new__.__annotations__ = typing.get_type_hints(value)
    pdoc.render.configure(docformat="restructuredtext", show_source=False)
    pdoc.pdoc("execagent", "execagent.sync", output_directory=folder)


if __name__ == "__main__":
    build(Path(sys.argv[1]))
