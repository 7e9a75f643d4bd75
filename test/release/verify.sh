#!/bin/sh
# verify.sh DIST does with the artefacts of a release what docs/verify.md says, without a network, and tries
# what has to fail. cosign is on the PATH, and $PYTHON has spdx-tools and cyclonedx-python-lib.
set -eu

dist=$(realpath "$1")
root=$(git rev-parse --show-toplevel)
page=docs/verify.md
version=$(basename "$dist"/execagent_*_linux_amd64.tar.gz | sed 's/^execagent_//; s/_linux_amd64.tar.gz$//')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
export HOME="$work"

failed() {
	echo "verify.sh: $*" >&2
	exit 1
}

# A new network namespace has no network at all.
offline() { unshare --net --map-root-user "$@"; }

# The page's blocks become one script, with files in place of downloads. After a block whose output the page
# shows, the script compares it. Errors end it.
awk -v quote="'" '
	/^```sh by=release$/ { print "block() {"; code = 1; blocks++; next }
	/^```text output$/ { text = 1; print "cat >want <<" quote "END" quote; next }
	/^```$/ && code { print "}\nblock >got"; code = 0; next }
	/^```$/ && text { print "END\ndiff want got"; text = 0; next }
	code || text
	END { if (blocks < 5) exit 1 }
' "$root/$page" >blocks || failed "$page has fewer blocks than expected"
sed "s|https://github.com/execagent/execagent/releases/download/v0.1.0|file://$dist|; s|0\.1\.0|$version|g" blocks >page.sh
case $(uname -m) in
x86_64) ;;
*) sed -i "s/linux_amd64/linux_$(uname -m | sed s/aarch64/arm64/)/g" page.sh ;;
esac
offline sh -eu page.sh 2>said || failed "$page: $(cat said)"

# Whoever changes something is found out.
refuses() {
	what=$1
	shift
	if "$@" >out 2>&1; then failed "$what: it was accepted"; fi
}
archive=$(ls execagent_*.tar.gz)
cp "$archive" whole
printf x >>"$archive"
refuses "an archive with a byte more" sha256sum --check --ignore-missing SHA256SUMS
refuses "the provenance of an archive with a byte more" offline cosign verify-blob-attestation --key cosign.pub \
	--bundle provenance.bundle --insecure-ignore-tlog --type slsaprovenance1 "$archive"
mv whole "$archive"
sed '1s/^./0/; 1s/^00/11/' SHA256SUMS >changed
cmp -s SHA256SUMS changed && failed "the sums were not changed"
refuses "changed sums" offline cosign verify-blob --key cosign.pub --bundle SHA256SUMS.bundle --insecure-ignore-tlog changed
refuses "changed sums, by openssl" openssl dgst -sha256 -verify cosign.pub -signature signature changed
(mkdir other && cd other && COSIGN_PASSWORD='' cosign generate-key-pair >/dev/null 2>&1)
refuses "another key" offline cosign verify-blob --key other/cosign.pub --bundle SHA256SUMS.bundle --insecure-ignore-tlog SHA256SUMS
refuses "another key, by openssl" openssl dgst -sha256 -verify other/cosign.pub -signature signature SHA256SUMS

# The sums list every file but those that are made out of them, and each file is as listed.
(cd "$dist" && sha256sum --quiet --check SHA256SUMS)
(cd "$dist" && find . -type f | sed 's|^\./||' | grep -v '^SHA256SUMS\|^provenance\.\|^cosign\.pub$' | LC_ALL=C sort) >files
sed 's/^[0-9a-f]*  //' "$dist/SHA256SUMS" | LC_ALL=C sort | diff - files || failed "the sums list other files than there are"

# The SBOMs keep to their schemas, and list the modules of the program itself.
"$PYTHON" "$root/test/release/sboms.py" "$dist"

# An archive has what is installed of its program.
for file in "$dist"/execagent*_linux_*.tar.*; do
	name=$(basename "$file" | sed 's/\.tar\..*//')
	product=${name%%_*}
	program=agent
	case $product in *-mcp) program=agent-mcp ;; *-registry) program=registry ;; esac
	tar xf "$file"
	for path in bin/$program share/doc/$product/LICENSE share/doc/$product/README.md share/doc/$product/CHANGELOG.md \
		share/doc/$product/THIRD-PARTY-LICENSES.txt; do
		[ -s "$name/$path" ] || failed "$file has no $path"
	done
	[ "$program" = agent-mcp ] || for path in share/man/man1/$program.1 share/man/man1/$program-version.1 lib/systemd/system/$program.service \
		share/bash-completion/completions/$program share/zsh/site-functions/_$program share/fish/vendor_completions.d/$program.fish; do
		[ -s "$name/$path" ] || failed "$file has no $path"
	done
	grep -q '^  github.com/[^ ]* v[^ ]*: [A-Z]' "$name/share/doc/$product/THIRD-PARTY-LICENSES.txt" || failed "$file: no licences of others"
	[ -z "$(find "$name" -newermt "@$(stat -c %Y "$name/bin/$program")" -o ! -perm -u+r)" ] || failed "$file: files of several times"
	rm -r "$name"
done
echo "verify.sh: $(wc -l <files) files of $version are verified"
