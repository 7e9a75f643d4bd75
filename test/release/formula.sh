#!/bin/sh
# formula.sh DIST reads the formula of Homebrew with Ruby: its syntax, and that each sum is the one of the file that its
# URL names. Homebrew itself runs neither as root nor without the internet, so its installation is not tried.
set -eu

dist=$(realpath "$1")
formula=$dist/execagent.rb
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
failed() {
	echo "formula.sh: $*" >&2
	exit 1
}
ruby -wc "$formula" >/dev/null || failed 'the formula is no Ruby'
awk '/^ *url /{ gsub(/"/, "", $2); n = split($2, part, "/"); file = part[n] } /^ *sha256 /{ gsub(/"/, "", $2); print $2 "  " file }' "$formula" >"$work/sums"
[ "$(wc -l <"$work/sums")" -ge 4 ] || failed 'the formula has fewer archives than architectures and programs'
(cd "$dist" && sha256sum --quiet -c "$work/sums") || failed 'a sum is another one'
# What it installs is in the archive.
archive=$(ls "$dist"/execagent_*_linux_amd64.tar.gz)
tar -tzf "$archive" >"$work/files"
for path in $(sed -n 's/.*install "\([^"]*\)".*/\1/p; s/.*Dir\["\([^"*]*\)\*"\].*/\1/p' "$formula" | grep -v agent-mcp); do
	grep -q "^[^/]*/$path" "$work/files" || failed "the archive has no $path"
done
echo 'formula: its syntax, its sums, its files'
