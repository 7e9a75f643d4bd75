#!/bin/sh
# install.sh [DIST] tries deploy/install.sh with releases that it makes up, without a network: good ones, and those that
# have to be refused. With DIST it does so in each of several shells, and then installs what is in there.
set -eu

root=$(git rev-parse --show-toplevel)
here=$root/test/release
dist=${1:+$(realpath "$1")}
work=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server"; chmod -R u+w "$work"; rm -rf "$work"' EXIT
chmod 755 "$work"
cd "$work"

failed() {
	echo "install.sh: $shell: $*" >&2
	[ ! -f said ] || sed 's/^/  /' said >&2
	exit 1
}

shell=static
if command -v shellcheck >/dev/null; then
	shellcheck -s sh "$root/deploy/install.sh"
elif [ -n "${CI:-}" ]; then
	failed "shellcheck is not here"
fi

# --- releases that are made up

# release VERSION PROGRAM makes a release whose programs are shell scripts: VERSION is its folder, and PROGRAM what
# agent version prints.
release() {
	folder=site/v$1
	mkdir -p "$folder"
	for product in execagent:agent execagent-mcp:agent-mcp execagent-registry:registry; do
		program=${product#*:} product=${product%:*}
		name=${product}_$1_linux_amd64
		mkdir -p "$name/bin" "$name/share/doc/$product" "$name/share/man/man1"
		printf '#!/bin/sh\necho "%s %s"\necho more\n' "$program" "$2" >"$name/bin/$program"
		chmod 700 "$name/bin/$program"
		echo license >"$name/share/doc/$product/LICENSE"
		echo page >"$name/share/man/man1/$program.1"
		echo "$1" >"$name/share/man/man1/$program-only-$1.1"
		if [ "$program" = agent ]; then
			mkdir -p "$name/lib/systemd/system"
			echo unit >"$name/lib/systemd/system/agent.service"
		fi
		tar -cf "$name.tar" "$name"
		rm -r "$name"
		if [ "$program" = registry ]; then xz "$name.tar" && mv "$name.tar.xz" "$folder"; else gzip "$name.tar" && mv "$name.tar.gz" "$folder"; fi
	done
	# The same for another architecture, which is only listed.
	cp "$folder/execagent_$1_linux_amd64.tar.gz" "$folder/execagent_$1_linux_arm64.tar.gz"
	sign "$1"
}

# sign lists the files of a release, and signs the list.
sign() (
	cd "site/v$1"
	rm -f SHA256SUMS*
	sha256sum -- * >../sums
	mv ../sums SHA256SUMS
	openssl dgst -sha256 -sign "$work/key.pem" SHA256SUMS | base64 -w 0 >SHA256SUMS.sig
	echo '{}' >SHA256SUMS.bundle
)

# hostile VERSION makes a release with an archive that Python writes: it gets the archive and the folder's name.
hostile() {
	mkdir "site/v$1"
	python3 - "site/v$1/execagent_$1_linux_amd64.tar.gz" "execagent_$1_linux_amd64" "$2" <<'END'
import io, sys, tarfile
path, root, code = sys.argv[1:]
with tarfile.open(path, "w:gz") as archive:
    def add(name, kind=tarfile.REGTYPE, link="", data=b"x\n"):
        member = tarfile.TarInfo(name)
        member.type, member.linkname, member.size = kind, link, len(data) if kind == tarfile.REGTYPE else 0
        archive.addfile(member, io.BytesIO(data))
    add(root + "/bin/agent", data=b"#!/bin/sh\necho agent " + root.split("_")[1].encode() + b"\n")
    exec(code)
END
	sign "$1"
}

for name in key other; do
	openssl ecparam -name prime256v1 -genkey -noout -out $name.pem
	openssl ec -in $name.pem -pubout -out $name.pub 2>/dev/null
done
release 1.0.0 1.0.0
release 1.1.0 1.1.0
release 1.2.0 1.1.0 # its programs say another version
hostile 2.0.1 'add(root + "/../../outside")'
hostile 2.0.2 'add("/outside")'
hostile 2.0.3 'add(root + "/bin/link", tarfile.SYMTYPE, "/etc/passwd")'
hostile 2.0.4 'add(root + "/bin/hard", tarfile.LNKTYPE, root + "/bin/agent")'
hostile 2.0.5 'add(root + "/share/a\n" + root + "/b")'
hostile 2.0.6 'add("elsewhere/bin/agent-mcp")'
hostile 2.0.7 'add(root + "/share/$(id)")'
hostile 2.0.8 'add(root + "/bin/device", tarfile.CHRTYPE)'
hostile 2.0.9 'add(root + "/bin/agent", data=b"\x7fELF no program")'
cp -r site/v1.1.0 site/v3.0.0 # all its files are of another release
cp -r site/v1.1.0 site/v3.1.0 && printf x >>site/v3.1.0/execagent_1.1.0_linux_amd64.tar.gz
cp -r site/v1.1.0 site/v3.2.0 && sed -i 's/execagent_/other_/' site/v3.2.0/SHA256SUMS # the signature is of other sums
cp -r site/v1.1.0 site/v3.3.0 && rm site/v3.3.0/SHA256SUMS.sig
for version in 3.1.0 3.2.0 3.3.0; do
	for file in site/v$version/*_1.1.0_*; do mv "$file" "$(echo "$file" | sed "s/_1\.1\.0_/_${version}_/")"; done
done
sed -i 's/_1\.1\.0_/_3.1.0_/' site/v3.1.0/SHA256SUMS
(cd site/v3.1.0 && openssl dgst -sha256 -sign "$work/key.pem" SHA256SUMS | base64 -w 0 >SHA256SUMS.sig)

# installer VERSION KEY writes install.sh as a release does.
installer() {
	awk -v version="$1" -v quote="'" -v key="$(cat "$2")" '
		$0 == "version=" { $0 = "version=" quote version quote }
		$0 == "key=" { $0 = "key=" quote key quote }
		{ print }' "$root/deploy/install.sh"
}
installer 1.0.0 key.pub >signed.sh
installer 1.0.0 other.pub >wrong-key.sh
cp "$root/deploy/install.sh" plain.sh

python3 "$here/serve.py" "$work" >url &
server=$!
until [ -s url ]; do sleep 0.05; done
EXECAGENT_URL=$(cat url)/site
cut=$(cat url)/cut/site
export EXECAGENT_URL

# --- machines that are made up

# tools FOLDER TOOL... makes a folder of the programs that an installer finds: the usual ones, and TOOLs.
tools() {
	folder=$1
	shift
	mkdir "$folder"
	for tool in sh env id uname tr awk sed grep cut sort head tail cat printf dirname basename mktemp mkdir rmdir rm mv cp ln chmod find tar gzip xz "$@"; do
		ln -s "$(command -v "$tool")" "$folder/$tool"
	done
}
tools usual curl sha256sum openssl
tools no-curl wget sha256sum openssl
tools no-download sha256sum openssl
tools only-shasum curl shasum perl
tools only-openssl curl openssl
tools no-sum curl
tools no-tar curl sha256sum && rm no-tar/tar
tools no-openssl curl sha256sum
tools with-cosign curl sha256sum
printf '#!/bin/sh\nwhile [ $# -gt 1 ]; do [ "$1" != --bundle ] || bundle=$2; shift; done\n[ "$(cat "$bundle")" = "{}" ] && [ -f "$1" ] && [ -z "${REFUSE:-}" ]\n' >with-cosign/cosign
chmod 755 with-cosign/cosign
tools riscv curl sha256sum openssl && rm riscv/uname
printf '#!/bin/sh\n[ "$1" = -s ] && echo Linux || echo riscv64\n' >riscv/uname
tools arm curl sha256sum openssl && rm arm/uname
printf '#!/bin/sh\n[ "$1" = -s ] && echo Linux || echo aarch64\n' >arm/uname

# breaking FOLDER TOOL CALL makes a machine on which a call of a tool ends in an error: cp with a full disk.
breaking() {
	tools "$1" curl sha256sum openssl
	rm "$1/$2"
	cat >"$1/$2" <<END
#!/bin/sh
n=\$(cat $work/$1.calls 2>/dev/null || echo 0)
echo \$((n + 1)) >$work/$1.calls
[ \$n != $3 ] || { ${4:-exit 1;} }
exec $(command -v "$2") "\$@"
END
	chmod 755 "$1/$2" riscv/uname arm/uname
}
breaking full-disk cp 3
breaking no-rename mv 2
breaking interrupted cp 3 "kill -TERM \$PPID; sleep 0.2;"
mkdir busybox-only
if command -v busybox >/dev/null; then
	for applet in $(busybox --list); do ln -s "$(command -v busybox)" "busybox-only/$applet"; done
fi

# --- what is tried

home=$work/home
export HOME="$home"

# install MACHINE ARGUMENT... runs an installer in the shell, and keeps what it says in the file said.
script=signed.sh
install() {
	machine=$1
	shift
	# shellcheck disable=SC2086 # the shell may have an option
	(cd "$home" && PATH=$work/$machine exec env -u CDPATH $shell "$work/$script" "$@") >said 2>&1
}

state() { (cd "$home" && find . -type f -exec sha256sum {} + -o -type d -print -o -type l -print | sort); }

says() { grep -Fq -- "$1" said || failed "it does not say \"$1\""; }

# refuses TEXT MACHINE ARGUMENT... has to end in an error, to say TEXT, and to leave everything as it was.
refuses() {
	text=$1
	shift
	state >before
	! install "$@" || failed "it was accepted: $*"
	says "$text"
	state | diff before - || failed "it left something behind: $*"
	[ -z "$(find "$tmp" -mindepth 1)" ] || failed "it left something in its temporary folder: $*"
}

# has FILE TEXT
has() { grep -Fq -- "$2" "$home/$1" || failed "$1 is not of $2"; }

everything() {
	rm -rf "$home" tmp && mkdir home tmp
	tmp=$work/tmp && export TMPDIR="$tmp"
	bin=.local/bin share=.local/share

	# What a dry run does.
	refuses "there is no option --now" usual --now
	refuses "--to needs a value" usual --to
	refuses "no program relay here" usual relay
	refuses "is of no release" usual --version ''
	refuses "is not a version" usual --version '../1.0.0'
	state >before
	install usual --to "$home/$bin" --dry-run || failed "a dry run"
	says "$home/$share/man/man1/agent-mcp.1"
	says "signature: verified by openssl"
	state | diff before - || failed "a dry run has changed something"

	# It is installed, found, and replaced by a newer one.
	install usual --to "$home/$bin" || failed "an installation"
	says "installed agent 1.0.0 in $home/$bin"
	says "export PATH=\"$home/$bin:\$PATH\""
	says "sums: verified by sha256sum"
	[ "$("$home/$bin/agent" version | head -n 1)" = "agent 1.0.0" ] || failed "agent does not run"
	[ "$(stat -c %a "$home/$bin/agent" "$home/$bin/agent-mcp" "$home/$share/man/man1/agent.1" "$home/$share/man" | tr '\n' ' ')" = "755 755 644 755 " ] || failed "the modes"
	has $share/doc/execagent-mcp/LICENSE license
	state >one
	install usual --to "$home/$bin" --version v1.1.0 || failed "an upgrade"
	says "installed agent 1.1.0 in $home/$bin, in place of 1.0.0"
	has $share/man/man1/agent-only-1.1.0.1 1.1.0
	[ ! -e "$home/$share/man/man1/agent-only-1.0.0.1" ] || failed "the old version's page is left"
	install usual --to "$home/$bin" --version=1.0.0 || failed "a downgrade"
	state | diff one - || failed "a downgrade has left something"

	# What has to be refused leaves the old version.
	refuses "is damaged" usual --to "$home/$bin" --version 3.1.0
	refuses "is not of the key" usual --to "$home/$bin" --version 3.2.0
	refuses "cannot download" usual --to "$home/$bin" --version 3.3.0
	refuses "has no agent for linux on amd64" usual --to "$home/$bin" --version 3.0.0
	refuses "cannot download" usual --to "$home/$bin" --version 9.9.9
	refuses 'says that it is "agent 1.1.0", and not 1.2.0' usual --to "$home/$bin" --version 1.2.0
	for version in 2.0.1 2.0.2 2.0.3 2.0.4 2.0.5 2.0.6 2.0.7 2.0.8; do
		refuses "_linux_amd64.tar.gz holds what no archive of execagent has" usual --to "$home/$bin" --version $version
	done
	[ -z "$(find "$work" -name outside)" ] || failed "an archive has written elsewhere"
	refuses "does not run here" usual --to "$home/$bin" --version 2.0.9
	script=wrong-key.sh
	refuses "is not of the key of this install.sh" usual --to "$home/$bin" --version 1.1.0
	script=signed.sh
	for machine in usual no-curl; do
		(EXECAGENT_URL=$cut && refuses "" $machine --to "$home/$bin" --version 1.1.0)
		grep -Eq 'cannot download|is damaged' said || failed "a download that was cut off"
	done
	[ -z "$complete" ] || for machine in full-disk no-rename interrupted; do
		rm -f $machine.calls
		refuses "" $machine --to "$home/$bin" --version 1.1.0
		[ "$(cat $machine.calls)" -gt 2 ] || failed "$machine: it ended too early"
	done
	refuses "is not a folder" usual --to "$home/$bin/agent/bin"
	refuses "belongs to the system" usual --to /bin
	refuses "has .. in it" usual --to ../elsewhere

	# Another machine, another tool.
	install no-curl --to "$home/$bin" --version 1.1.0 || failed "wget"
	says "wget -qO- $EXECAGENT_URL/v1.1.0/install.sh | sh -s -- --to '$home/$bin' --uninstall"
	install no-openssl --to "$home/$bin" || failed "without openssl"
	says "not verified, because neither openssl nor cosign is here"
	if [ -n "$complete" ]; then
		install only-shasum --to "$home/$bin" || failed "shasum"
		says "sums: verified by shasum"
		install only-openssl --to "$home/$bin" || failed "openssl"
		says "sums: verified by openssl"
		refuses "neither curl nor wget is here" no-download --to "$home/$bin" --version 1.1.0
		refuses "nothing is here to verify" no-sum --to "$home/$bin" --version 1.1.0
		refuses "tar is not here" no-tar --to "$home/$bin" --version 1.1.0
		refuses "has no agent for linux on riscv64. It has: linux_amd64 linux_arm64" riscv --to "$home/$bin" --version 1.1.0
		# It is a copy of the other architecture's.
		refuses "execagent_1.0.0_linux_arm64.tar.gz holds what no archive" arm --to "$home/$bin"
	fi
	install with-cosign --to "$home/$bin" || failed "cosign"
	says "signature: verified by cosign"
	(export REFUSE=1 && refuses "cosign said" with-cosign --to "$home/$bin")
	if [ -e busybox-only/sh ]; then
		install busybox-only --to "$home/$bin" --version 1.1.0 || failed "busybox alone"
		says "in place of 1.0.0"
	fi

	# Whose key?
	script=plain.sh
	refuses "so it has no version" usual --to "$home/$bin"
	install usual --to "$home/$bin" --version 1.0.0 || failed "without a key"
	says "this install.sh has no key"
	(export EXECAGENT_COSIGN_KEY="$work/key.pub" && install usual --to "$home/$bin" --version 1.0.0) || failed "with a key of the user's"
	says "verified by openssl"
	(export EXECAGENT_COSIGN_KEY="$work/other.pub" && refuses "is not of the key $work/other.pub" usual --to "$home/$bin" --version 1.1.0)
	(export EXECAGENT_COSIGN_KEY="$work/none.pub" && refuses "cannot read" usual --to "$home/$bin" --version 1.1.0)
	(export EXECAGENT_COSIGN_KEY="$work/key.pub" && refuses "neither openssl nor cosign" no-openssl --to "$home/$bin" --version 1.1.0)
	script=signed.sh

	# Two programs, and nothing is left in the end.
	install usual --to "$home/$bin" registry agent --version 1.1.0 || failed "both"
	says "installed registry 1.1.0 in $home/$bin"
	install usual --to "$home/$bin" --uninstall agent || failed "agent is removed"
	says "removed agent from"
	[ ! -e "$home/$bin/agent-mcp" ] && has $bin/registry "registry 1.1.0" || failed "the wrong one was removed"
	install usual --to "$home/$bin" --uninstall --dry-run || failed "a dry run of a removal"
	says "  $home/$bin/registry"
	install usual --to "$home/$bin" --uninstall || failed "a removal"
	[ -z "$(find "$home" -mindepth 1)" ] || failed "left: $(find "$home")"
	refuses "nothing of this installer's is in" usual --to "$home/$bin" --uninstall

	# What others have put there.
	mkdir -p "$home/$bin" && echo theirs >"$home/$bin/agent"
	refuses "this installer has not installed it" usual --to "$home/$bin"
	install usual --to "$home/$bin" --force || failed "--force"
	has $bin/agent "agent 1.0.0"
	printf 'file\t/etc/hostname\nfile\t%s/../x\n' "$home/$bin" >>"$home/$share/execagent/agent.files"
	! install usual --to "$home/$bin" --uninstall || failed "a list was believed"
	says "which no installer has written"
	rm -rf "${home:?}/.local" && mkdir -p "$home/$bin/agent"
	refuses "is a folder" usual --to "$home/$bin"
	rm -rf "${home:?}/.local"

	# Folders of the user's choice get programs alone.
	for folder in "$home/my programs" bin tools/; do
		install usual --to "$folder" || failed "$folder"
		[ "$(cd "$home" && find . -type f | wc -l)" = 3 ] || failed "$folder: $(find "$home")"
		install usual --to "$folder" --uninstall || failed "$folder is removed"
		[ -z "$(find "$home" -mindepth 1)" ] || failed "left: $(find "$home")"
	done
	(export EXECAGENT_TO="$home/opt/bin" EXECAGENT_VERSION=1.1.0 && install usual) || failed "variables"
	has opt/share/man/man1/agent-only-1.1.0.1 1.1.0
	rm -r "$home/opt"

	# The defaults of a user, and what a user may not do.
	state >before
	user install "$home/.local/bin" || failed "a user"
	says "installed agent 1.0.0 in $home/.local/bin"
	! grep -q 'export PATH' said || failed "the folder is in PATH"
	! user install "$home/.local/bin" --to "$work/roots/bin" || failed "a user may not write there"
	says "you may not write to $work/roots"
	user install "$home/.local/bin" --uninstall || failed "a user removes it"
	state | diff before - || failed "a user has left something"

	# Root's default is /usr/local, here of a namespace of its own.
	[ "$(id -u)" != 0 ] || unshare --mount sh -eu -c '
		mount -t tmpfs none /usr/local
		mkdir /usr/local/bin
		PATH=$1:/usr/local/bin $2 "$3"
		/usr/local/bin/agent version
		[ -f /usr/local/share/man/man1/agent.1 ] && [ -f /usr/local/lib/systemd/system/agent.service ]
		PATH=$1:/usr/local/bin $2 "$3" --uninstall
		cd /usr/local && [ "$(find . | sort | tr "\n" " ")" = ". ./bin " ]' - "$work/usual" "$shell" "$work/signed.sh" >said 2>&1 || failed "root"
	[ "$(id -u)" != 0 ] || says "agent 1.0.0"

	# A download that was cut off anywhere does nothing.
	for percent in 10 50 90 99; do
		head -c $(($(wc -c <signed.sh) * percent / 100)) signed.sh >script-cut.sh
		script=script-cut.sh
		install usual --to "$home/$bin" || true
		[ -z "$(find "$home" -mindepth 1)" ] || failed "$percent % of the script have done something"
		script=signed.sh
	done
}

# user install PATH ARGUMENT... is install by a user who is not root.
user() {
	path=$2
	shift 2
	as=''
	if [ "$(id -u)" = 0 ]; then
		chown -R nobody "$home" "$tmp"
		as='setpriv --reuid=nobody --clear-groups'
	fi
	# shellcheck disable=SC2086 # words of commands
	(cd "$home" && exec $as env HOME="$home" PATH="$work/usual:$path" $shell "$work/signed.sh" "$@") >said 2>&1
}
mkdir -m 555 roots

for shell in dash ${dist:+'busybox ash' 'bash --posix' 'zsh --emulate sh'}; do
	found=$(command -v "${shell%% *}") || continue
	shell=$found${shell#"${shell%% *}"}
	# BusyBox's shell has the other tools in it, so nothing is missing there.
	complete=1
	[ "${shell##* }" != ash ] || complete=''
	everything
	echo "install.sh: $shell: every case is right"
done

# --- what is released

[ -n "$dist" ] || exit 0
mkdir -p real
version=$(cd "$dist" && ls execagent_*_linux_amd64.tar.gz | sed 's/^execagent_//; s/_linux_amd64.tar.gz$//')
ln -s "$dist" "real/v$version"
EXECAGENT_URL=${EXECAGENT_URL%/site}/real
shell=/bin/sh script=released.sh
curl -fsS "$EXECAGENT_URL/v$version/install.sh" >released.sh
rm -rf "$home" tmp && mkdir home tmp
install usual --to "$home/.local/bin" agent registry || failed "the release"
cat said
says "signature: verified by openssl"
[ "$("$home/.local/bin/agent" version | head -n 1)" = "agent $version" ] || failed "agent version"
[ "$("$home/.local/bin/registry" version | head -n 1)" = "registry $version" ] || failed "registry version"
[ "$("$home/.local/bin/agent" exec -- echo fine)" = fine ] || failed "agent exec"
"$home/.local/bin/agent" mcp --local </dev/null || failed "agent mcp"
for file in man/man1/agent.1 bash-completion/completions/agent zsh/site-functions/_agent doc/execagent/LICENSE; do
	[ -s "$home/.local/share/$file" ] || failed "no $file"
done
[ ! -e "$home/.local/share/fish" ] || failed "there are completions of fish without fish"
tools with-fish curl sha256sum openssl && ln -s "$(command -v cat)" with-fish/fish
install with-fish --to "$home/.local/bin" || failed "with fish"
[ -s "$home/.local/share/fish/vendor_completions.d/agent.fish" ] || failed "there are no completions of fish"
if command -v cosign >/dev/null; then
	tools cosign-only curl sha256sum cosign
	install cosign-only --to "$home/.local/bin" || failed "cosign"
	says "signature: verified by cosign"
fi
install usual --to "$home/.local/bin" --uninstall || failed "the release is removed"
rm -rf "$home/.config" "$home/.local/state" "$home/.cache" # what the programs themselves have written
[ -z "$(find "$home" -type f)" ] || failed "left: $(find "$home")"
echo "install.sh: the release $version is installed and removed"
