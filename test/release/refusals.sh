#!/bin/sh
# refusals.sh RELEASE tries what bin/release has to refuse, each with the reason that it gives: versions, trees
# and tags that are no release, and modules whose licence nobody has looked at.
set -eu

release=$(realpath "$1")
root=$(git rev-parse --show-toplevel)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@example.com GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@example.com

# refuses REASON OPTION... ends the test unless the program fails and gives the reason.
refuses() {
	reason=$1
	shift
	if "$release" "$@" >said 2>&1; then
		echo "refusals.sh: release $*: it was accepted" >&2
		exit 1
	fi
	grep -qe "$reason" said || { echo "refusals.sh: release $*: it does not say \"$reason\":" && cat said && exit 1; } >&2
}

git init -q -b main tree
printf 'module example.com/m\n\ngo 1.26.8\n' >tree/go.mod
printf '# Changelog\n\n## [1.0.0]\n' >tree/CHANGELOG.md
git -C tree add .
git -C tree commit -qm one
git -C tree tag v1.0.0
git -C tree -c tag.gpgSign=false tag -am two v1.0.1-rc.1
git -C tree commit -qm two --allow-empty
for version in 1.0.0 v1 v1.0 latest v1.0.0+build ''; do
	refuses 'version' -repository tree -dist dist -version "$version"
done
refuses 'the tag v1.0.0 names the commit' -repository tree -dist dist -version v1.0.0
refuses 'the tag v1.0.1-rc.1 names the commit' -repository tree -dist dist -version v1.0.1-rc.1
refuses 'CHANGELOG.md has no line that begins with "## \[1.0.1\]"' -repository tree -dist dist -version v1.0.1
touch tree/new
refuses 'the tree has changes' -repository tree -dist dist -version v1.0.1-rc.2
rm tree/new
mkdir dist && touch dist/old
refuses 'is not empty, it holds old' -repository tree -dist dist -version v1.0.1-rc.2
rm -r dist
refuses 'there is no step "cake"' -repository tree -work work -steps cake -version v1.0.1-rc.2
refuses '-steps needs -work' -repository tree -steps sums -version v1.0.1-rc.2
refuses 'no such file' -repository tree -dist dist -key nowhere -version v1.0.1-rc.2
openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out plain.key 2>/dev/null
refuses 'is not a private key of cosign' -repository tree -dist dist -key plain.key -version v1.0.1-rc.2
refuses 'is not a public key' -repository tree -dist dist -public-key plain.key -version v1.0.1-rc.2
refuses '-public-key is for those who have no -key' -repository tree -dist dist -public-key a -key b -version v1.0.1-rc.2
[ ! -e dist ] || { echo "refusals.sh: something was written" >&2 && exit 1; }

# The list of licences, in a clone whose list is changed.
git clone -q "$root" clone
list=clone/tools/release/licenses.txt
"$release" -repository clone -check-licenses
changed() {
	git -C clone checkout -q -- tools/release/licenses.txt
	sed -i "$1" "$list"
	refuses "$2" -repository clone -check-licenses
}
changed '/creack\/pty/d' 'github.com/creack/pty v[0-9.]* is linked, and is not in the list'
changed '/creack\/pty/s/^..../0000/' 'github.com/creack/pty v[0-9.]* has other licence texts'
changed '/creack\/pty/{p;s/pty/ptz/}' 'github.com/creack/ptz is no longer linked'
changed '/creack\/pty/s/MIT/GPL-3.0-only/' 'GPL-3.0-only is not among the licences'
changed '/creack\/pty/s/ MIT//' 'is not HASH MODULE EXPRESSION'
changed '/creack\/pty/{h;d};/flynn/G' 'github.com/creack/pty belongs before github.com/flynn/noise'
