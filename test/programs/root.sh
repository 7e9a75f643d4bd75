#!/bin/sh
# Makes a root directory of Debian's packages with all that the programs need:
#
#	sh test/programs/root.sh DIR
#
# It needs mmdebstrap, root and a mirror of Debian. A directory that it has made
# before is left as it is.
set -eu
root=$1
if [ -e "$root/made" ]; then
	exit
fi
command -v mmdebstrap >/dev/null || { echo 'mmdebstrap is needed: apt-get install mmdebstrap' >&2; exit 1; }
packages=git,gcc,make,libc6-dev,golang-go,python3,sqlite3,nodejs,npm,vim,perl,patch,xz-utils,openssh-client,default-jdk-headless,bsdutils,util-linux,ca-certificates
rm -rf "$root"
mmdebstrap --quiet --variant=apt --include="$packages" bookworm "$root"
echo 'someone:x:1000:1000::/home/someone:/bin/bash' >>"$root/etc/passwd"
touch "$root/made"
