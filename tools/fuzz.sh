#!/bin/sh
# fuzz.sh DURATION: run every fuzz target of the module for that long, one after the other.
set -eu
duration=$1
go=${GO:-go}
targets=0
for package in $($go list ./...); do
	for target in $($go test -list '^Fuzz' "$package" | grep '^Fuzz' || true); do
		echo "fuzz: $package $target"
		$go test -run '^$' -fuzz "^$target\$" -fuzztime "$duration" "$package"
		targets=$((targets + 1))
	done
done
if [ "$targets" -eq 0 ]; then
	echo "fuzz: no fuzz target found" >&2
	exit 1
fi
