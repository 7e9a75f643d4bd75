#!/bin/sh
# calm.sh KIND RUNS: runs make test so many times, and prints how many runs were red and which tests
# failed in them. KIND says what is odd about the runs:
#
#	plain  nothing
#	busy   four programs that never wait run beside the tests
#	one    GOMAXPROCS=1
#	race   the race detector
#	odd    HOME, TMPDIR, PATH, umask, locale and GOFLAGS are not what they use to be
#
# make calm runs all kinds. What the red runs print stays in bin/calm.
set -eu
kind=$1 runs=$2
out=bin/calm
mkdir -p $out
busy=
stop() { for pid in $busy; do kill "$pid" 2>/dev/null || :; done; }
trap stop EXIT
trap 'exit 130' INT TERM
case $kind in
plain) run() { make test; } ;;
busy)
	for _ in 1 2 3 4; do
		(while :; do :; done) &
		busy="$busy $!"
	done
	run() { make test; }
	;;
one) run() { GOMAXPROCS=1 make test; } ;;
race) run() { make test-race; } ;;
odd)
	# The Go command needs a home, or its folders by name.
	odd=$(mktemp -d /tmp/oXXXX)
	trap 'stop; rm -rf "$odd"' EXIT
	chmod 1777 "$odd" # as /tmp: some tests run as other users
	mkdir "$odd/.git" "$odd/.agents" "$odd/.aws" "$odd/.codex"
	: >"$odd/new"
	GOCACHE=$(go env GOCACHE) GOMODCACHE=$(go env GOMODCACHE) GOPATH=$(go env GOPATH)
	export GOCACHE GOMODCACHE GOPATH
	run() {
		(
			umask 077
			unset HOME
			TMPDIR=$odd LANG=tr_TR.UTF-8 LC_ALL=tr_TR.UTF-8 GOFLAGS=-mod=mod PATH=$PATH:/no/such/folder::. make test
		)
	}
	;;
*)
	sed -n '2,11s/^# \{0,1\}//p' "$0" >&2
	exit 2
	;;
esac
red=0 n=0
while [ $n -lt "$runs" ]; do
	n=$((n + 1))
	if run >$out/$kind.$n 2>&1; then
		result=green
	else
		result=red red=$((red + 1))
	fi
	echo "$kind $n of $runs: $result, $(sed -n 's/^took //p' $out/$kind.$n | tail -1)"
	if [ $result = green ]; then
		rm $out/$kind.$n
	else
		sed -n '/^too slow (/,/^$/p; /^failed (/,/^$/p' $out/$kind.$n
	fi
done
echo "$kind: $red of $runs runs were red"
[ $red -eq 0 ]
