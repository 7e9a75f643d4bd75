#!/bin/sh
# check.sh [VERSION] makes a release of the commit twice, in two folders with empty caches, and compares the
# bytes of all artefacts. It looks into the artefacts for paths of this machine, and checks their sizes.
set -eu

version=${1:-v0.0.0-check}
cd "$(git rev-parse --show-toplevel)"
[ -z "$(git status --porcelain)" ] || { echo "check.sh: commit or remove your changes: a release is made of a commit" >&2 && exit 1; }

# Both are made of this commit, also if somebody commits meanwhile.
commit=$(git rev-parse HEAD)

# Go's packages are not below this folder, and /tmp may be memory.
work=$(mktemp -d /var/tmp/execagent-release-check.XXXXXX)
trap 'chmod -R u+w "$work" && rm -rf "$work"' EXIT
trap 'exit 1' INT TERM

# What a caller has set for go by go env -w is in a home that the builds do not see.
for name in GOPROXY GOSUMDB GONOSUMDB GOPRIVATE; do
	export "$name=$(go env "$name")"
done

# make_release FOLDER UMASK ZONE LANGUAGE makes a release in a folder, as somebody else on another day would.
make_release() (
	umask "$2"
	mkdir -p "$1/home" "$1/tmp"
	git clone -q . "$1/clone"
	git -C "$1/clone" checkout -q --detach "$commit"
	env -u GOFLAGS HOME="$1/home" TMPDIR="$1/tmp" GOENV=off GOCACHE="$1/cache" GOMODCACHE="$1/modules" TZ="$3" LANG="$4" LC_ALL="$4" \
		make -C "$1/clone" release VERSION="$version" DIST="$1/dist"
)

make_release "$work/one" 022 America/New_York C.UTF-8
make_release "$work/and/another" 077 Asia/Kolkata C

diff -r "$work/one/dist" "$work/and/another/dist" || { echo "check.sh: the same commit has made other bytes" >&2 && exit 1; }
echo "check.sh: $(find "$work/one/dist" -type f | wc -l) files are the same in both"
python3 test/release/artefacts.py "$work/one/dist" "$work" "$PWD" "$(go env GOROOT)" "$(go env GOMODCACHE)" "$(go env GOCACHE)"
