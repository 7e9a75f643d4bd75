"""The packages that are built: the same twice, whole, and usable where nothing else is installed."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import execagent

from .conftest import AGENT, ROOT

PROJECT = ROOT / "sdk" / "python"


def build(to: Path) -> list[Path]:
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(to), str(PROJECT)],
        env={**os.environ, "SOURCE_DATE_EPOCH": "1700000000"},
        check=True,
        capture_output=True,
    )
    return sorted(to.iterdir())


def wheel_of(name: str, to: Path) -> None:
    """Make a wheel of an installed distribution, so that it can be installed again without a network."""
    distribution = importlib.metadata.distribution(name)
    tag = next(line[5:] for line in (distribution.read_text("WHEEL") or "").splitlines() if line.startswith("Tag: "))
    with zipfile.ZipFile(to / f"{name}-{distribution.version}-{tag}.whl", "w") as wheel:
        for file in distribution.files or ():
            text = str(file)
            if not text.startswith("..") and "__pycache__" not in text and file.name not in ("INSTALLER", "REQUESTED"):
                wheel.write(str(file.locate()), text)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    build(folder)
    return folder


def test_reproducible(built: Path, tmp_path: Path) -> None:
    again = build(tmp_path)
    first = sorted(path for path in built.iterdir() if path.name.startswith("execagent"))
    assert [path.name for path in first] == [path.name for path in again]
    for one, other in zip(first, again, strict=True):
        assert hashlib.sha256(one.read_bytes()).digest() == hashlib.sha256(other.read_bytes()).digest(), one.name


def test_contents(built: Path) -> None:
    version = execagent.__version__
    with zipfile.ZipFile(built / f"execagent-{version}-py3-none-any.whl") as wheel:
        names = set(wheel.namelist())
    assert {"execagent/py.typed", "execagent/sync.py", "execagent/_wire.py", "execagent/_profiles/node.toml"} <= names
    assert all(name.startswith(("execagent/", f"execagent-{version}.dist-info/")) for name in names)
    with tarfile.open(built / f"execagent-{version}.tar.gz") as sdist:
        files = set(sdist.getnames())
    assert f"execagent-{version}/tests/test_scenarios.py" in files


def test_install_offline(built: Path, tmp_path: Path) -> None:
    """What the page says: pip install execagent. Here the index is a folder, and there is no network."""
    wheel_of("websockets", built)
    venv.create(tmp_path / "venv", with_pip=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    env.update(PIP_NO_INDEX="1", PIP_FIND_LINKS=str(built), PIP_DISABLE_PIP_VERSION_CHECK="1")
    subprocess.run([python, "-m", "pip", "install", "-q", "execagent"], env=env, check=True, cwd=tmp_path)
    script = (
        "import asyncio, execagent\n"
        "async def main():\n"
        f"    async with execagent.connect(command=[{AGENT!r}, '--listen', 'stdio']) as agent:\n"
        "        print((await agent.run(['echo', 'hello'])).text, end='')\n"
        "        await agent.plan(execagent.Sandbox(profile='node'))\n"
        "asyncio.run(main())\n"
        "import sys; assert 'websockets' not in sys.modules, 'stdio needs no websockets'\n"
    )
    done = subprocess.run([python, "-c", script], env=env, check=False, cwd=tmp_path, capture_output=True, text=True)
    assert (done.stdout, done.stderr, done.returncode) == ("hello\n", "", 0)


def test_profiles_and_secrets_are_those_of_the_command_line() -> None:
    policy = ROOT / "cmd" / "agent" / "internal" / "policy"
    ours = Path(execagent.__file__).parent / "_profiles"
    for name in sorted(path.name for path in (policy / "profiles").iterdir()):
        assert (ours / name).read_text() == (policy / "profiles" / name).read_text(), name
    from execagent._sandbox import HISTORIES, SECRET_FILES

    text = (policy / "secrets.go").read_text()
    rows = text[text.index("var secretFiles") : text.index("var secretWords")].splitlines()
    assert tuple(row.split('"')[1] for row in rows if row.startswith('\t{"')) == SECRET_FILES + HISTORIES


def test_import_loads_little() -> None:
    """Importing the package loads nothing that it may not need, because short scripts pay for it."""
    script = (
        "import sys, execagent\n"
        "assert not {'websockets', 'cryptography', 'urllib.request', 'http.client', 'tomllib'} & set(sys.modules)\n"
        "ours = {name[11:] for name in sys.modules if name.startswith('execagent._')}\n"
        "assert not {'copy', 'frame', 'noise', 'relay', 'tar'} & ours"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(execagent.__file__).parent.parent)}
    subprocess.run([sys.executable, "-c", script], env=env, check=True)
