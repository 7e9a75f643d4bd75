#!/bin/sh
# fuzz.sh DURATION [PACKAGES]: run every fuzz target of the packages for that long, one
# after the other; without packages, those of the whole module. A target that fails does
# not keep the others from running. At the end it prints how many targets there were,
# and which have failed.
set -eu
duration=$1
shift
go=${GO:-go}
[ $# -gt 0 ] || set -- ./...
targets=0
failed=
packages=$($go list "$@")
for package in $packages; do
	# Not in one pipe with grep: there a package that does not compile would look like
	# one without targets.
	names=$($go test -list '^Fuzz' "$package")
	for target in $(printf '%s\n' "$names" | grep '^Fuzz' || true); do
		echo "fuzz: $package $target"
		targets=$((targets + 1))
		# Without -fuzzminimizetime, go test may spend a minute on shortening one long
		# input and tries nothing new meanwhile.
		$go test -run '^$' -fuzz "^$target\$" -fuzztime "$duration" -fuzzminimizetime 2s "$package" || failed="$failed $package:$target"
	done
done
echo "fuzz: $targets targets, $duration each"
if [ "$targets" -eq 0 ] || [ -n "$failed" ]; then
	echo "fuzz: failed:${failed:- there is no target}" >&2
	exit 1
fi
