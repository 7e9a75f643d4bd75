#!/usr/bin/env python3
"""sboms.py DIST checks the SBOMs of a release against their schemas, and against each other and the programs.

It needs spdx-tools and cyclonedx-python-lib with its validator, and go, which reads the modules of a program.
"""

import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

PRODUCTS = {"agent": "execagent", "agent-mcp": "execagent-mcp", "registry": "execagent-registry"}


def modules(dist, name):
    """The modules that a program has been linked with, by its own word."""
    program, rest = name.split("_", 1)
    (archive,) = (path for path in dist.glob(f"{PRODUCTS[program]}_{rest}.*") if ".json" not in path.name)
    with tempfile.TemporaryDirectory() as folder:
        shutil.unpack_archive(archive, folder)
        (binary,) = pathlib.Path(folder).glob(f"*/bin/{program}*")
        said = subprocess.run(["go", "version", "-m", binary], capture_output=True, text=True, check=True).stdout
    return {tuple(line.split()[1:3]) for line in said.splitlines() if line.startswith("\tdep\t")}


def main():
    dist = pathlib.Path(sys.argv[1])
    files = sorted(dist.glob("*.spdx.json"))
    if not files:
        sys.exit(f"sboms.py: {dist} has no SBOMs")
    for file in files:
        name = file.name.removesuffix(".spdx.json")
        wrong = validate_full_spdx_document(parse_file(str(file)))
        if wrong:
            sys.exit(f"{file.name}: {[message.validation_message for message in wrong]}")
        other = file.with_name(name + ".cdx.json")
        wrong = JsonStrictValidator(SchemaVersion.V1_6).validate_str(other.read_text())
        if wrong:
            sys.exit(f"{other.name}: {wrong}")
        want = modules(dist, name)
        packages = [package for package in json.loads(file.read_text())["packages"] if package["SPDXID"].startswith("SPDXRef-Module")]
        components = json.loads(other.read_text())["components"]
        for what, have in (
            (file.name, {(package["name"], package["versionInfo"]) for package in packages}),
            (other.name, {(component["name"], component["version"]) for component in components}),
        ):
            library = {part for part in have if part[0] == "stdlib"}
            if len(library) != 1 or have - library != want:
                sys.exit(f"{what}: it lists {sorted(have ^ want)} otherwise than the program")
        print(f"{name}: {len(want)} modules, {file.stat().st_size:,} and {other.stat().st_size:,} bytes")


main()
