#!/bin/sh
# stranger.sh DIST is the first minute of somebody with a machine that has Debian and curl: install.sh, agent doctor, a
# served agent, and a sandboxed command on it. It prints the transcript, and fails if that takes more than a minute of
# processor time. It needs root and mmdebstrap with a mirror of Debian; the machine's network is lo alone.
set -eu

dist=$(realpath "$1")
here=$(dirname "$(realpath "$0")")
version=$(cd "$dist" && ls execagent_*_linux_amd64.tar.gz | sed 's/^execagent_//; s/_linux.*//')
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM

failed() {
	echo "stranger.sh: $*" >&2
	exit 1
}

root=$work/root home=$work/root/home/you
mmdebstrap --quiet --variant=minbase --include=curl bookworm "$root"
for tool in wget python3 openssl gpg xz; do
	[ -z "$(find "$root/usr/bin" -name $tool)" ] || failed "the machine has more than curl: $tool"
done
chroot "$root" useradd --create-home --uid 1000 --shell /bin/bash you
mkdir "$root/old" "$work/site"
ln -s "$dist" "$work/site/v$version"

# What the stranger types. The first line is the published one, with the address of this test.
cat >"$home/lines" <<END
curl -fsSL \$SITE/v$version/install.sh | sh
export PATH="\$HOME/.local/bin:\$PATH"
agent doctor | head -n 12
mkdir -m 700 run work
agent --listen unix://\$HOME/run/agent.sock >log 2>&1 &
until agent health --url unix://\$HOME/run/agent.sock 2>/dev/null; do sleep 0.1; done
agent exec --url unix://\$HOME/run/agent.sock --workspace \$HOME/work -C \$HOME/work -- sh -c 'echo made >here; cat here; echo no >../outside'
ls work run
kill \$!; wait \$!
curl -fsSL \$SITE/v$version/install.sh | sh -s -- --uninstall
END
cat >"$home/session" <<'END'
cd
while IFS= read -r line <&3; do
	printf '$ %s\n' "$line"
	eval "$line"
done 3<lines
times >cost
END

# The server has the network of the machine, and not its files.
cat >"$work/machine" <<'END'
set -eu
here=$1 work=$2 root=$3
python3 -c 'import fcntl, socket, struct
fcntl.ioctl(socket.socket(), 0x8914, struct.pack("16sH", b"lo", 1))' # SIOCSIFFLAGS: up
python3 "$here/serve.py" "$work/site" >"$work/url" &
until [ -s "$work/url" ]; do sleep 0.05; done
SITE=$(cat "$work/url") exec unshare --mount --pid --fork --kill-child sh -euc '
	mount --bind "$1" "$1"
	mount -t proc proc "$1/proc"
	mount --rbind /sys "$1/sys"
	mount --rbind /dev "$1/dev"
	cd "$1"
	pivot_root . old
	umount -l /old
	exec setpriv --reuid=1000 --regid=1000 --clear-groups --bounding-set=-all --inh-caps=-all \
		env -i HOME=/home/you USER=you PATH=/usr/local/bin:/usr/bin:/bin "SITE=$SITE" "EXECAGENT_URL=$SITE" \
		bash /home/you/session' - "$root"
END
start=$(date +%s)
unshare --net --pid --fork --kill-child sh "$work/machine" "$here" "$work" "$root" >"$work/said" 2>&1 || failed "it ended early: $(cat "$work/said")"
seconds=$(($(date +%s) - start))
cat "$work/said"

says() { grep -q -- "$1" "$work/said" || failed "the transcript does not have: $1"; }
says "^installed agent $version in /home/you/.local/bin"
says "^made$"
[ ! -e "$home/outside" ] || failed "the command has written outside of its workspace"
says "outside: "
says "^removed agent from /home/you/.local/bin"
[ -z "$(find "$home/.local/bin" "$home/.local/share" -type f 2>/dev/null)" ] || failed "left: $(find "$home/.local")"

# The last line has the minutes and seconds of the session's processes, as user and as system.
cost=$(tail -n 1 "$home/cost" | tr 'ms' '  ' | awk '{ print $1 * 60 + $2 + $3 * 60 + $4 }')
echo "stranger.sh: $seconds s, of which processors have worked $cost s"
awk -v cost="$cost" 'BEGIN { exit !(cost > 0 && cost < 60) }' || failed "it is not within a minute"
