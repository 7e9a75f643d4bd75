#!/bin/sh
# interop.sh [option of run.sh]...: the real Codex CLI against bin/agent, in every mode, and under an operator's word; then its
# executor behind bin/registry, driven by our client; then the CLI against bin/agent by way of bin/registry; then the CLI and
# Claude Code with agent mcp.
#
# With NOUSERNS=1: the scenarios that ask for a sandbox, against an agent that bin/nouserns has launched, which can make no
# namespaces. There the agent confines by a supervisor.
#
# Where the client cannot be had this says SKIP and ends with status 0: the change under test is not at fault. What the
# rig needs of the machine may be missing on a developer's, but not in CI.
set -eu
cd "$(dirname "$0")"

lacks() {
	if [ "${CI:-}" = true ]; then
		echo "FAIL interop: needs $1"
		exit 1
	fi
	echo "SKIP interop: needs $1"
	exit 0
}

[ "$(id -u)" -eq 0 ] || lacks root
for program in python3 unshare nsenter curl; do
	command -v "$program" >/dev/null || lacks "$program"
done
python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' || lacks 'Python 3.11'
unshare -m -u true || lacks 'mount and UTS namespaces'

bin=$(cd ../.. && pwd)/bin
agent=$bin/agent
wanted=.
if [ "${NOUSERNS:-}" = 1 ]; then
	agent="$bin/nouserns $agent"
	wanted='-(workspace|readonly|profile)$'
fi
for program in $agent; do
	if [ ! -x "$program" ]; then
		echo "interop: $program is missing: make build nouserns" >&2
		exit 1
	fi
done
if ! CODEX_BIN=${CODEX_BIN:-$(./run.sh --find)}; then
	echo 'SKIP interop: the Codex CLI is not installed and npm cannot fetch it'
	exit 0
fi
export CODEX_BIN
export EXECUTOR_CMD="$agent --listen {url}"
export EXECUTOR_STDIO_CMD="$agent --listen stdio"
only=
for name in $(./run.sh --list | awk -v wanted="$wanted" '$1 ~ wanted { print $1 }'); do
	only="$only -k $name"
done
recorded=$bin/recorded
rm -rf "$recorded"
# shellcheck disable=SC2086 # names hold no blanks
./run.sh self --whole --transcripts "$recorded" "$@" $only
"$bin/conformance-suite" --recordings "$recorded"/*.jsonl
# An operator's word does not change what the client sees, as long as the client needs no more.
word='--sandbox-default workspace:/srv/ws,network --sandbox-ceiling workspace:/srv/ws,network --require-sandbox'
EXECUTOR_CMD="$EXECUTOR_CMD $word" ./run.sh self "$@" -k 'simple-*' -k 'patch_*' -k 'sandbox_*'
[ "${NOUSERNS:-}" != 1 ] || exit 0
(cd ../.. && go test -count=1 -run 'TestReference|TestClient' ./test/interop)
sh registry.sh "$@"
exec sh assistants.sh
