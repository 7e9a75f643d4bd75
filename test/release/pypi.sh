#!/bin/sh
# pypi.sh DIST installs the packages for PyPI from an index on loopback, in a network namespace that has nothing else,
# uses them by pip, pipx and uv, and removes them. It needs root. $PYTHON is of a venv that has pipx, uv and twine, and
# $WHEELS a folder with what the packages and these tools depend on.
set -eu

[ -n "${ALONE:-}" ] || ALONE=1 exec unshare --net sh "$0" "$@"
python3 -c 'import fcntl, socket, struct
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH", b"lo", 1))' # SIOCSIFFLAGS: up

dist=$(realpath "$1")
here=$(dirname "$(realpath "$0")")
tools=$(dirname "$PYTHON")
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$work"' EXIT
cd "$work"

failed() {
	echo "pypi.sh: $*" >&2
	[ ! -f said ] || sed 's/^/  /' said >&2
	exit 1
}
# is WANT GOT WHAT
is() { [ "$1" = "$2" ] || failed "$3: \"$2\", want \"$1\""; }

mkdir -p site/pypi home
ln -s "$dist"/pypi/* "$WHEELS"/*.whl site/pypi/
python3 "$here/serve.py" "$work/site" >url &
server=$!
until [ -s url ]; do sleep 0.05; done
index=$(cat url)/simple/
export HOME="$work/home" PIP_CONFIG_FILE=/dev/null PIP_INDEX_URL="$index" UV_DEFAULT_INDEX="$index" UV_PYTHON_DOWNLOADS=never
export PIP_DISABLE_PIP_VERSION_CHECK=1
unset PIP_FIND_LINKS || :
wheel=$(ls "$dist/pypi"/execagent_agent-*_"$(uname -m)".whl)
version=$(basename "$wheel" | cut -d - -f 2)                                                  # as PyPI writes it
release=$(cd "$dist" && ls execagent_*_linux_amd64.tar.gz | sed 's/^execagent_//; s/_linux.*//') # as we do

"$PYTHON" -m twine check --strict "$dist"/pypi/* >said 2>&1 || failed "twine"

# The wheel lists its files with their sums, has only modes that pip keeps, and says of itself what its name says.
python3 - "$wheel" <<'END' || failed "the wheel"
import base64, csv, email, hashlib, io, pathlib, sys, zipfile
path = pathlib.Path(sys.argv[1])
name, version, *tags = path.stem.split("-")
with zipfile.ZipFile(path) as wheel:
    info = f"{name}-{version}.dist-info"
    listed = {row[0]: row[1:] for row in csv.reader(io.StringIO(wheel.read(f"{info}/RECORD").decode()))}
    assert set(listed) == set(wheel.namelist()), set(listed) ^ set(wheel.namelist())
    assert wheel.namelist()[-1] == f"{info}/RECORD"
    for file, (digest, size) in listed.items():
        data = wheel.read(file)
        want = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        assert file.endswith("/RECORD") or (digest, int(size)) == ("sha256=" + want, len(data)), file
        mode = wheel.getinfo(file).external_attr >> 16
        assert mode & 0o7777 == (0o755 if "/scripts/" in file else 0o644), (file, oct(mode))
    said = email.message_from_bytes(wheel.read(f"{info}/WHEEL"))
    python, abi, platforms = tags
    assert said.get_all("Tag") == [f"{python}-{abi}-{platform}" for platform in platforms.split(".")], said
    metadata = email.message_from_bytes(wheel.read(f"{info}/METADATA"))
    assert metadata["Version"] == version
    assert len(metadata.get_all("License-File")) == 3
    assert all(f"{info}/licenses/{file}" in listed for file in metadata.get_all("License-File"))
END

# --- pip
python3 -m venv venv
find venv -type f | sort >before
venv/bin/pip install -q execagent-agent >said 2>&1 || failed "pip install"
venv/bin/pip check >said || failed "pip check"
is "execagent-agent $version" "$(venv/bin/pip list --format freeze | grep execagent | tr = ' ' | tr -s ' ')" "pip list"
is "agent $release" "$(venv/bin/agent version | head -n 1)" "agent"
is "agent $release" "$(venv/bin/execagent-agent version | head -n 1)" "execagent-agent"
head -c 4 venv/bin/agent | grep -q ELF || failed "agent is not the program itself"
venv/bin/agent mcp --local </dev/null || failed "agent mcp, which needs agent-mcp beside agent"
got=0
venv/bin/execagent-agent exec -- sh -c 'exit 3' || got=$?
is 3 $got "the exit code"
venv/bin/pip uninstall -q -y execagent-agent >said 2>&1 || failed "pip uninstall"
find venv -type f ! -name '*.pyc' | sort >after
grep -v '\.pyc$' before | diff - after || failed "pip uninstall leaves something, or takes it"

# pip chooses the wheel for each machine that it is for, and for no other.
for platform in manylinux2014_x86_64 manylinux_2_17_aarch64 musllinux_1_1_x86_64 musllinux_1_1_aarch64; do
	machine=${platform##*_}
	[ "$machine" = aarch64 ] || machine=x86_64
	rm -rf chosen
	venv/bin/pip download -q --no-deps --only-binary :all: --platform "$platform" --dest chosen execagent-agent >said 2>&1 || failed "$platform"
	case $(ls chosen) in *_"$machine".whl) ;; *) failed "$platform got $(ls chosen)" ;; esac
done
! venv/bin/pip download -q --no-deps --only-binary :all: --platform manylinux2014_riscv64 --dest chosen execagent-agent >said 2>&1 || failed "there is a wheel for riscv64"

# --- pipx
export PIPX_HOME="$work/pipx" PIPX_BIN_DIR="$work/pipx-bin" PIPX_MAN_DIR="$work/pipx-man"
is "hello from pipx" "$("$tools/pipx" run --python python3 execagent-agent exec -- echo hello from pipx)" "pipx run"
is "agent $release" "$("$tools/pipx" run --python python3 --spec execagent-agent agent version | head -n 1)" "pipx run --spec"
"$tools/pipx" install --python python3 execagent-agent >said 2>&1 || failed "pipx install"
is "agent $release" "$(pipx-bin/agent version | head -n 1)" "the agent of pipx"
is "agent $release" "$(pipx-bin/execagent-agent version | head -n 1)" "the execagent-agent of pipx"
"$tools/pipx" uninstall execagent-agent >said 2>&1 || failed "pipx uninstall"
is "" "$(ls pipx-bin pipx/venvs | grep agent || :)" "what pipx leaves"

# --- uv
is "hello from uv" "$("$tools/uvx" --quiet --python python3 execagent-agent exec -- echo hello from uv)" "uvx"
"$tools/uv" tool install --quiet --python python3 execagent-agent >said 2>&1 || failed "uv tool install"
is "agent $release" "$(home/.local/bin/agent version | head -n 1)" "the agent of uv"
"$tools/uv" tool uninstall --quiet execagent-agent >said 2>&1 || failed "uv tool uninstall"
is "" "$(ls home/.local/bin)" "what uv leaves"

# --- the client, from its wheel and from its sources
venv/bin/pip install -q execagent-agent execagent >said 2>&1 || failed "pip install execagent"
venv/bin/pip check >said || failed "pip check"
venv/bin/agent --listen ws://127.0.0.1:0 >served 2>/dev/null &
served=$!
until grep -q ws: served; do sleep 0.05; done
cat >first.py <<'END'
import sys
import execagent.sync
with execagent.sync.connect(sys.argv[1]) as agent:
    print(execagent.__version__, agent.run(["echo", "hello"]).text.strip())
END
is "$version hello" "$(venv/bin/python first.py "$(grep -o 'ws:[^ ]*' served)")" "the client"
venv/bin/pip install -q --force-reinstall --no-deps --no-binary execagent execagent >said 2>&1 || failed "the client's sources"
is "$version hello" "$(venv/bin/python first.py "$(grep -o 'ws:[^ ]*' served)")" "the client of the sources"
kill $served
[ -s venv/lib/python3*/site-packages/execagent-"$version".dist-info/licenses/LICENSE ] || failed "the client has no licence"
venv/bin/pip uninstall -q -y execagent execagent-agent websockets >said 2>&1 || failed "pip uninstall"
find venv -type f ! -name '*.pyc' | sort >after
grep -v '\.pyc$' before | diff - after || failed "pip uninstall leaves something, or takes it"
echo "pypi.sh: the packages of $version are installed and removed"
