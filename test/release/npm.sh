#!/bin/sh
# npm.sh DIST installs the packages for npm from a registry on loopback, in a network namespace that has nothing else,
# uses them with every Node of $NODES, and removes them. It needs root, npm and python3.
set -eu

[ -n "${ALONE:-}" ] || ALONE=1 exec unshare --net sh "$0" "$@"
python3 -c 'import fcntl, socket, struct
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH", b"lo", 1))' # SIOCSIFFLAGS: up

dist=$(realpath "$1")
here=$(dirname "$(realpath "$0")")
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$work"' EXIT
cd "$work"

failed() {
	echo "npm.sh: $*" >&2
	[ ! -f said ] || sed 's/^/  /' said >&2
	exit 1
}
# is WANT GOT WHAT
is() { [ "$1" = "$2" ] || failed "$3: \"$2\", want \"$1\""; }

python3 "$here/serve.py" "$dist" >url &
server=$!
until [ -s url ]; do sleep 0.05; done
export HOME="$work/home" npm_config_registry="$(cat url)/npm/" npm_config_audit=false npm_config_fund=false npm_config_update_notifier=false
mkdir home
version=$(cd "$dist/npm" && ls execagent-client-*.tgz | sed 's/^execagent-client-//; s/\.tgz$//')
case $(uname -m) in
x86_64) here_is=linux-x64 other=arm64 ;;
*) here_is=linux-arm64 other=x64 ;;
esac

# --- npx, with nothing installed
is "agent $version" "$(npx --yes @execagent/agent version | head -n 1)" "npx"
socket=$work/agent.sock
npx --yes @execagent/agent exec-server --listen "unix://$socket" >served 2>&1 &
served=$!
for _ in $(seq 200); do [ -S "$socket" ] && break || sleep 0.05; done
is "hello from sh" "$(npx --yes @execagent/agent exec --url "unix://$socket" -- sh -c 'echo "hello from $0"')" "npx exec"
# npx passes no signal on, so all of its processes get one: those that have the socket in their lines.
pkill -TERM -f "unix://$socket"
wait "$served" || :
for _ in $(seq 200); do [ -S "$socket" ] || break; sleep 0.05; done
[ ! -e "$socket" ] || failed "the server has not ended with npx"

# --- a folder of a project
mkdir app
(cd app && npm init -y >/dev/null && npm install @execagent/agent >../said 2>&1) || failed "npm install"
is "agent agent-$here_is" "$(ls app/node_modules/@execagent | tr '\n' ' ' | sed 's/ $//')" "what is installed"
is "agent $version" "$(cd app && npx agent version | head -n 1)" "npx agent"
(cd app && npx agent mcp --local </dev/null) || failed "agent mcp, which needs agent-mcp beside agent"
shim=$work/app/node_modules/@execagent/agent/agent.js
platform=$work/app/node_modules/@execagent/agent-$here_is

# Another program in place of the agent says what it gets, and ends as it is told.
mv "$platform/bin/agent" real-agent
cat >"$platform/bin/agent" <<'END'
#!/usr/bin/env python3
import os, signal, sys, time
what, *rest = sys.argv[1:]
if what == "arguments":
    print(rest)
elif what == "exit":
    sys.exit(int(rest[0]))
elif what == "die":
    if rest[0] != "9":
        signal.signal(int(rest[0]), signal.SIG_DFL)
    os.kill(os.getpid(), int(rest[0]))
    signal.pause()
elif what == "wait":
    got = []
    for number in (1, 2, 3, 10, 12, 15):
        signal.signal(number, lambda n, _: got.append(n))
    print("ready", os.getpid(), flush=True)
    while not got:
        time.sleep(0.02)
    time.sleep(0.5)  # for a second one
    print("got", got, flush=True)
    sys.exit(len(got))
END
chmod 755 "$platform/bin/agent"
cat >terminal.py <<'END'
"""Runs a command at a terminal, presses Ctrl-C when it is ready, and prints the rest of what it says."""
import os, pty, sys
pid, fd = pty.fork()
if pid == 0:
    os.execvp(sys.argv[1], sys.argv[1:])
said = b""
while b"ready" not in said:
    said += os.read(fd, 1024)
os.write(fd, b"\x03")
try:
    while chunk := os.read(fd, 1024):
        said += chunk
except OSError:
    pass
print(said.decode().split("got ")[1].strip())
sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
END
ulimit -c 0
for node in node ${NODES:-}; do
	name="Node $($node --version)"
	is "['a b', '', '*', '\"quoted\"', '-x', '\$HOME', 'line\\nline', 'grün']" \
		"$($node "$shim" arguments 'a b' '' '*' '"quoted"' -x '$HOME' 'line
line' grün)" "$name: arguments"
	for code in 0 1 3 101 126 255; do
		got=0
		$node "$shim" exit $code || got=$?
		is $code $got "$name: the exit code"
	done
	for signal in 1 2 3 6 9 10 11 13 15; do
		got=0
		sh -c '"$@"' - $node "$shim" die $signal 2>said || got=$?
		is $((128 + signal)) $got "$name: the end by signal $signal"
	done
	for signal in 1 2 3 10 12 15; do
		: >said # the old one is not to be taken for the new one
		setsid $node "$shim" wait >>said 2>&1 &
		pid=$!
		until grep -q ready said; do sleep 0.02; done
		kill -$signal $pid
		got=0
		wait $pid || got=$?
		is "got [$signal] 1" "$(sed -n 2p said) $got" "$name: signal $signal"
	done
	is "[2]" "$(python3 terminal.py $node "$shim" wait || :)" "$name: Ctrl-C at a terminal"
	# Standard input and output are the program's own.
	mv "$platform/bin/agent" fake-agent
	cp real-agent "$platform/bin/agent"
	is "$(head -c 3000000 "$shim" real-agent | sha256sum)" "$(head -c 3000000 "$shim" real-agent | $node "$shim" exec -- cat | sha256sum)" "$name: a pipe"
	chmod 644 "$platform/bin/agent"
	! $node "$shim" version >said 2>&1 || failed "$name: a file that is no program was run"
	grep -q "^agent: cannot run $platform/bin/agent: .*EACCES" said || failed "$name: it does not say why"
	# What is missing.
	mv "$platform" aside
	! $node "$shim" version >said 2>&1 || failed "$name: nothing was missing"
	grep -q "^agent: the package @execagent/agent-$here_is, .* is not installed.*npm install @execagent/agent$" said || failed "$name: it does not say what to do"
	mv aside "$platform"
	mv fake-agent "$platform/bin/agent"
	! $node -e "Object.defineProperty(process, 'arch', { value: 'riscv64' }); require('$shim')" >said 2>&1 || failed "$name: there is a program for riscv64"
	grep -q "has no program for linux-riscv64; it has programs for linux-arm64, linux-x64" said || failed "$name: it does not say which there are"
	echo "npm.sh: $name: arguments, input, output, signals and exit codes are those of the program"
done

# --- without the platform's package, and for another machine
mkdir without other
(cd without && npm init -y >/dev/null && npm install --omit=optional @execagent/agent >../said 2>&1) || failed "npm install --omit=optional"
! (cd without && npx agent version) >said 2>&1 || failed "there is a program after --omit=optional"
grep -q -- "--omit=optional" said || failed "it does not name --omit=optional"
(cd other && npm init -y >/dev/null && npm install --cpu $other --os linux @execagent/agent >../said 2>&1) || failed "npm install --cpu"
is "agent agent-linux-$other" "$(ls other/node_modules/@execagent | tr '\n' ' ' | sed 's/ $//')" "what is installed for $other"

# --- for all of a user
npm install --global --prefix "$work/global" @execagent/agent >said 2>&1 || failed "npm install --global"
is "agent $version" "$("$work/global/bin/agent" version | head -n 1)" "the global agent"
npm uninstall --global --prefix "$work/global" @execagent/agent >said 2>&1 || failed "npm uninstall --global"
is "" "$(find global -type f -o -type l)" "what npm uninstall leaves"

# --- the client
(cd app && npm install @execagent/client >../said 2>&1) || failed "npm install @execagent/client"
mv real-agent "$platform/bin/agent"
chmod 755 "$platform/bin/agent"
"$platform/bin/agent" --listen ws://127.0.0.1:0 >served 2>/dev/null &
served=$!
until grep -q ws: served; do sleep 0.05; done
cat >app/first.mjs <<END
import { connect } from "@execagent/client/node";
const agent = await connect("$(grep -o 'ws:[^ ]*' served)");
console.log((await agent.run(["echo", "hello"])).text.trim());
await agent.close();
END
is hello "$(cd app && node first.mjs)" "the client"
kill $served
is "$version" "$(node -p 'require("./app/node_modules/@execagent/client/package.json").version')" "the version of the client"
[ -s app/node_modules/@execagent/client/LICENSE ] || failed "the client has no licence"
(cd app && npm uninstall @execagent/agent @execagent/client >../said 2>&1) || failed "npm uninstall"
is "" "$(find app/node_modules -type f ! -name .package-lock.json -o -type l)" "what npm uninstall leaves"
echo "npm.sh: the packages of $version are installed and removed"
