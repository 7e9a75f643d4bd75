#!/bin/sh
# packages.sh DIST installs, upgrades and removes the packages for Debian in a root of Debian's packages, those for
# rpm in an empty root, and reads those for Alpine. It needs root, mmdebstrap with a mirror of Debian, lintian and rpm.
set -eu

dist=$(realpath "$1")
work=$(mktemp -d)
clean() {
	umount "$work/root/proc" 2>/dev/null || :
	rm -rf "$work"
}
trap clean EXIT
trap 'exit 130' INT TERM
debian=$(dpkg --print-architecture)
machine=$(uname -m)

failed() {
	echo "packages.sh: $*" >&2
	exit 1
}
# is WANT GOT WHAT
is() { [ "$1" = "$2" ] || failed "$3 is $2, want $1"; }
package() { # package NAME FORMAT: the file of a package for this machine
	case $2 in
	deb) ls "$dist/$1"_[0-9]*_"$debian".deb ;;
	rpm) ls "$dist/$1"-[0-9]*."$machine".rpm ;;
	apk) ls "$dist/$1"_[0-9]*_"$machine".apk ;;
	esac
}
agent=$(package execagent deb) registry=$(package execagent-registry deb)
version=$(basename "$agent" "_$debian.deb") version=${version#execagent_}

# Debian's own rules.
lintian --fail-on error,warning --suppress-tags bad-distribution-in-changes-file "$dist"/*.deb || failed 'lintian found faults'

root=$work/root
mmdebstrap --quiet --variant=apt --include=systemd,man-db,procps bookworm "$root"
mount -t proc proc "$root/proc"
in_root() { chroot "$root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LC_ALL=C.UTF-8 "$@"; }
install_debs() { # install_debs FILE...
	cp "$@" "$root/tmp/"
	for file; do set -- "$@" "/tmp/$(basename "$file")" && shift; done
	in_root dpkg -i "$@" >"$work/said" 2>&1 || failed "dpkg -i $*: $(cat "$work/said")"
}

# The version before, made of this one: its number and its programs are others.
for file in "$agent" "$registry"; do
	rm -rf "$work/old"
	dpkg-deb -R "$file" "$work/old"
	sed -i 's/^Version: .*/Version: 0~old/' "$work/old/DEBIAN/control" # before every other version
	for program in "$work"/old/usr/bin/*; do printf '#!/bin/sh\necho old\n' >"$program"; done
	(cd "$work/old" && find usr -type f -exec md5sum {} + >DEBIAN/md5sums)
	dpkg-deb -b "$work/old" "$work/old-$(basename "$file")" >/dev/null
done

install_debs "$work"/old-*.deb
is old "$(in_root agent)" 'what the older agent prints'
user=$(in_root getent passwd agent)
install -m 600 /dev/null "$root/etc/execagent/token"

install_debs "$agent" "$registry"
is "agent $version" "$(in_root agent version | head -1)" 'the version after the upgrade'
is "registry $version" "$(in_root registry version | head -1)" 'the version after the upgrade'
is "$user" "$(in_root getent passwd agent)" 'the user after the upgrade'
is agent "$(in_root stat -c %U /srv/agent)" 'the owner of /srv/agent'
in_root man -w agent-exec >/dev/null || failed 'there is no man page agent-exec'
in_root test -e /usr/share/bash-completion/completions/agent || failed 'there is no completion for bash'
in_root dpkg --verify execagent execagent-registry >"$work/said" && [ ! -s "$work/said" ] || failed "installed files differ: $(cat "$work/said")"
for unit in agent agent-remote registry; do
	in_root systemd-analyze verify "/usr/lib/systemd/system/$unit.service" >"$work/said" 2>&1 || failed "$unit.service: $(cat "$work/said")"
	grep -q "^ExecStart=/usr/bin/" "$root/usr/lib/systemd/system/$unit.service" || failed "$unit.service starts another program"
	! in_root systemctl is-enabled --quiet "$unit" || failed "$unit.service is enabled, and has neither certificate nor key"
done
in_root agent exec -- echo works >"$work/said" || failed 'the agent runs no command'
is works "$(cat "$work/said")" 'what the agent prints'

in_root dpkg --purge execagent execagent-registry >"$work/said" 2>&1 || failed "dpkg --purge: $(cat "$work/said")"
left=$(find "$root/usr" "$root/lib" "$root/var/lib/dpkg/info" -name '*execagent*' -o -path '*/bin/agent*' -o -name 'agent*.service' -o -name registry.service)
is '' "$left" 'what is left after the purge'
[ -e "$root/etc/execagent/token" ] || failed "the purge took the user's token"
echo 'Debian: clean by lintian, installed, upgraded, removed'

# rpm installs without a distribution: the packages need nothing.
for name in execagent execagent-registry; do
	file=$(package "$name" rpm)
	mkdir -p "$work/rpm"
	rpm --root "$work/rpm" -i --noscripts "$file" || failed "rpm -i $file"
	rpm --root "$work/rpm" -V "$name" || failed "rpm -V $name"
	[ -e "$work/rpm/usr/share/doc/$name/LICENSE" ] || failed "$file has no licence"
	rpm -qp --scripts "$file" | grep -q systemd-sysusers || failed "$file has no scripts"
	is '' "$(rpm -qp --requires "$file" | grep -vE '^(rpmlib\(|/bin/sh$)' || :)" "what $file needs"
done
is "agent $version" "$("$work/rpm/usr/bin/agent" version | head -1)" 'the version of the rpm'
rpm --root "$work/rpm" -e --noscripts execagent execagent-registry || failed 'rpm -e'
is '' "$(find "$work/rpm/usr/bin" -type f 2>/dev/null)" 'what is left after rpm -e'
echo 'rpm: installed, verified, removed'

# An apk is two streams of gzip: the control data and the files.
for name in execagent execagent-registry; do
	file=$(package "$name" apk)
	mkdir -p "$work/apk"
	tar -xzf "$file" -C "$work/apk" 2>"$work/said" || failed "$file: $(cat "$work/said")"
	grep -qx "pkgname = $name" "$work/apk/.PKGINFO" || failed "$file has another name"
	grep -qx "arch = $machine" "$work/apk/.PKGINFO" || failed "$file is for another machine"
	# apk takes no other versions.
	grep -qxE 'pkgver = [0-9]+(\.[0-9]+)*(_(alpha|beta|pre|rc)[0-9]*)?' "$work/apk/.PKGINFO" || failed "$file has a version that apk refuses"
	[ -e "$work/apk/usr/share/doc/$name/LICENSE" ] || failed "$file has no licence"
	sum=$(sed -n 's/^datahash = //p' "$work/apk/.PKGINFO")
	# The files are the last stream.
	python3 - "$file" "$sum" <<'END' || failed "$file: datahash is another one"
import hashlib, sys, zlib
data, streams = open(sys.argv[1], "rb").read(), []
while data:
    d = zlib.decompressobj(31)
    d.decompress(data)
    streams.append(data[: len(data) - len(d.unused_data)])
    data = d.unused_data
sys.exit(hashlib.sha256(streams[-1]).hexdigest() != sys.argv[2])
END
done
is "agent $version" "$("$work/apk/usr/bin/agent" version | head -1)" 'the version of the apk'
[ ! -e "$work/apk/usr/lib/systemd" ] || failed 'the apk has units of systemd'
echo 'apk: read, and its files are those of its sum'
