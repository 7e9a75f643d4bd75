#!/bin/sh
# demo.sh AGENT REGISTRY shows remote mode at work on this machine: a registry with its rendezvous,
# an agent and a command that runs on it through the encrypted relay, all on loopback. Nothing is
# left behind.
set -eu

# No variable of the user is about what runs here.
[ "${DEMO:-}" ] || exec env -i PATH="$PATH" TMPDIR="${TMPDIR:-/tmp}" DEMO=1 sh "$0" "$@"

[ $# = 2 ] || { echo "usage: demo.sh AGENT REGISTRY" >&2 && exit 2; }
for program; do
	command -v "$program" >/dev/null || { echo "demo: there is no program $program (a path, as bin/agent; make build makes both)" >&2 && exit 1; }
done
agent=$1 registry=$2
dir=$(mktemp -d)
steps=0 processes=

finish() {
	code=$?
	trap - EXIT
	for process in $processes; do
		kill "$process" 2>/dev/null || true
		wait "$process" || code=$?
	done
	[ "$code" = 0 ] || tail -n 1 "$dir"/*.log >&2
	rm -r "$dir"
	[ "$code" != 0 ] || step 'all of it has ended, and the folder is removed'
	exit "$code"
}
trap finish EXIT
trap 'exit 130' INT TERM HUP

step() {
	steps=$((steps + 1))
	printf '%2d  %s\n' "$steps" "$*"
}

# await FILE PATTERN waits until a line of a file has the pattern, and prints it.
await() {
	tries=0
	until grep -m 1 "$2" "$1"; do
		tries=$((tries + 1))
		[ "$tries" -lt 300 ] || { echo "demo: $(basename "$1") has no $2" >&2 && exit 1; }
		sleep 0.1
	done
}

echo 'Remote mode on this machine: a registry with its rendezvous, an agent, and somebody who runs a command on it.'
export REGISTRY_DATA="$dir/data" HOME="$dir"
"$registry" --listen 127.0.0.1:0 >"$dir/url" 2>"$dir/registry.log" &
processes=$!
url=$(await "$dir/url" http)
step "registry with an embedded NATS on $url, its data in a temporary folder"

for role in executor harness; do
	"$registry" keys create --role "$role" --environment demo --label demo --out "$dir/$role.key" 2>"$dir/keys.log"
	step "API key: may be $role of the environment demo"
done

"$agent" --remote "$url" --environment-id demo --api-key-file "$dir/executor.key" --log-format json 2>"$dir/agent.log" &
processes="$! $processes"
step "started: agent --remote $url --environment-id demo --api-key-file FILE"
registered=$(await "$dir/agent.log" '"msg":"registered"')
step "the agent has registered its public key: registration $(echo "$registered" | sed 's/.*"registration":"\([^"]*\)".*/\1/')"
await "$dir/agent.log" '"msg":"connected to the rendezvous"' >/dev/null
step 'its websocket to the rendezvous is up'

command='echo "hello from $(uname -n), as user $(id -u)"'
step "started: agent exec --registry $url --environment-id demo --registry-token-file FILE -- sh -c '$command'"
output=$("$agent" exec --registry "$url" --environment-id demo --registry-token-file "$dir/harness.key" -- sh -c "$command")
step 'the command has ended with exit code 0; its output, which the rendezvous has passed on encrypted:'
echo "      $output"
