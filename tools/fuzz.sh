#!/bin/sh
# fuzz.sh DURATION [PACKAGES]: run every fuzz target of the module for that long, one after the other. A target that fails
# does not keep the others from running. At the end it says how many there were.
set -eu
duration=$1
shift
go=${GO:-go}
[ $# -gt 0 ] || set -- ./...
targets=0
failed=
packages=$($go list "$@")
for package in $packages; do
	# A package that does not compile is an error here, and not one without targets.
	names=$($go test -list '^Fuzz' "$package")
	for target in $(printf '%s\n' "$names" | grep '^Fuzz' || true); do
		echo "fuzz: $package $target"
		targets=$((targets + 1))
		# Without the limit, go test takes a minute to shorten one long input, and tries nothing new meanwhile.
		$go test -run '^$' -fuzz "^$target\$" -fuzztime "$duration" -fuzzminimizetime 2s "$package" || failed="$failed $package:$target"
	done
done
echo "fuzz: $targets targets, $duration each"
if [ "$targets" -eq 0 ] || [ -n "$failed" ]; then
	echo "fuzz: failed:${failed:- there is no target}" >&2
	exit 1
fi
