#!/bin/sh
# fuzz.sh DURATION [PACKAGES]: run every fuzz target of the module for that long, one after the other, also after one has failed, and say at
# the end how many there were.
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
		# Making one long input shorter would take a minute otherwise, in which nothing new is tried.
		$go test -run '^$' -fuzz "^$target\$" -fuzztime "$duration" -fuzzminimizetime 2s "$package" || failed="$failed $package:$target"
	done
done
echo "fuzz: $targets targets, $duration each"
if [ "$targets" -eq 0 ] || [ -n "$failed" ]; then
	echo "fuzz: failed:${failed:- there is no target}" >&2
	exit 1
fi
