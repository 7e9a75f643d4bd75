#!/bin/sh
# versions.sh [option of run.sh]...: what changes with the version of the Codex CLI.
#
# The scenarios run against bin/agent with the version of run.sh, with the oldest that we support, and with the newest that npm
# has. Then the contract's cases are replayed against the exec-server of each. What differs from the version of run.sh is
# printed. The status is 1 if a scenario passes with the version of run.sh, and not with another.
set -eu
cd "$(dirname "$0")"

pinned=$(sed -n 's/^version=${CODEX_VERSION:-\(.*\)}$/\1/p' run.sh)
oldest=0.169.0
if [ "$(id -u)" -ne 0 ] || ! newest=$(npm view @openai/codex version); then
	[ "${CI:-}" != true ] || exit 1
	echo 'SKIP interop-versions: needs root, and npm with its registry'
	exit 0
fi
agent=$(cd ../.. && pwd)/bin/agent
suite=$(cd ../.. && pwd)/bin/conformance-suite
export EXECUTOR_CMD="$agent --listen {url}" EXECUTOR_STDIO_CMD="$agent --listen stdio"
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; rm -rf "$work"' EXIT

# outcomes VERSION [option]...: runs all, and sorts what came out into $work/VERSION.scenarios and .cases.
outcomes() {
	version=$1
	shift
	CODEX_BIN=$(CODEX_BIN='' CODEX_VERSION=$version ./run.sh --find)
	export CODEX_BIN
	echo "== $version"
	./run.sh self "$@" | tee "$work/log" || :
	awk '$1 == "PASS" || $1 == "FAIL" || $1 == "SKIP" { print $2, $1 }' "$work/log" | sort >"$work/$version.scenarios"
	mkdir -p "$work/home/$version"
	HOME=$work/home/$version CODEX_HOME=$work/home/$version "$CODEX_BIN" exec-server --listen ws://127.0.0.1:0 >"$work/url" 2>"$work/errors" &
	server=$!
	until grep -q '^ws://' "$work/url"; do
		kill -0 "$server" || { cat "$work/errors" >&2; exit 1; }
		sleep 0.1
	done
	url=$(grep -m 1 '^ws://' "$work/url")
	"$suite" --url "$url" --slow --markdown "$work/report" || [ $? -eq 1 ]
	sed -n '/^## Failures/,/^## Skipped/s/^- \*\*\(.*\)\*\* .*/\1 FAIL/p' "$work/report" | sort >"$work/$version.cases"
	kill "$server"
	wait "$server" || :
	server=
}

outcomes "$pinned" "$@"
status=0
for version in $(printf '%s\n' "$oldest" "$newest" | sort -u); do
	[ "$version" != "$pinned" ] || continue
	outcomes "$version" "$@"
	for kind in scenarios cases; do
		echo "== $kind: what differs between $pinned (-) and $version (+)"
		diff -U 0 "$work/$pinned.$kind" "$work/$version.$kind" | grep '^[-+][^-+]' || echo nothing
	done
	# A scenario that another version does not have at all counts too.
	if grep ' PASS$' "$work/$pinned.scenarios" | grep -vxFf "$work/$version.scenarios"; then
		status=1
	fi
done
exit $status
