#!/bin/sh
# Installs execagent from a release. Any POSIX shell runs it. install.sh --help lists its options, and
# docs/install.md has the rest.
#
# It downloads and verifies in a folder of its own. Then it copies each file to a temporary name beside its
# place, and tries the programs. Only then it renames. After an error at any time all is as before.
set -eu

# A release writes its version and its public key here.
version=
key=

releases=https://github.com/execagent/execagent/releases/download
tab=$(printf '\t')
newline='
'

usage() {
	cat <<END
Usage: install.sh [OPTION...] [agent|registry...]

Downloads, verifies and installs programs of execagent: the agent, if none is named. Man pages and completions
go to the folder share beside the programs' folder bin.

  --version VERSION  the version to install${version:+. Default: $version}
  --to DIR           the folder of the programs. Default: /usr/local/bin for root, ~/.local/bin for others.
                     A folder that is not named bin, or is ~/bin, gets the programs alone
  --dry-run          download and verify, print which files would be installed, and install nothing
  --force            also replace files that this installer has not installed
  --uninstall        remove what this installer has installed: the named programs, or all
  --help             print this text

Variables:

  EXECAGENT_VERSION, EXECAGENT_TO  the same as --version and --to
  EXECAGENT_URL                    where the folders of the releases are, such as v0.1.0
                                   Default: $releases
  EXECAGENT_COSIGN_KEY             a file with the public key that has to have signed the release
                                   Default: the key that a signed release writes into its install.sh
END
}

die() {
	printf 'install.sh: %s\n' "$*" >&2
	exit 1
}

wrong_line() {
	printf 'install.sh: %s; see install.sh --help\n' "$*" >&2
	exit 2
}

have() { command -v "$1" >/dev/null 2>&1; }

# exists reports whether a name is taken, be it by a link to nothing.
exists() { [ -e "$1" ] || [ -L "$1" ]; }

parse() {
	version=${EXECAGENT_VERSION:-$version}
	to=${EXECAGENT_TO:-}
	dry_run='' force='' uninstall='' programs=''
	while [ $# -gt 0 ]; do
		case $1 in
		--version | --to) [ $# -ge 2 ] || wrong_line "$1 needs a value" ;;
		esac
		case $1 in
		--version) version=$2 && shift ;;
		--version=*) version=${1#*=} ;;
		--to) to=$2 && shift ;;
		--to=*) to=${1#*=} ;;
		--dry-run) dry_run=1 ;;
		--force) force=1 ;;
		--uninstall) uninstall=1 ;;
		--help | -h) usage && exit 0 ;;
		agent | registry)
			case " $programs " in *" $1 "*) ;; *) programs="$programs $1" ;; esac
			;;
		-*) wrong_line "there is no option $1" ;;
		*) wrong_line "there is no program $1 here: the programs are agent and registry" ;;
		esac
		shift
	done
}

# settle decides where files go. layout is tree if man pages and completions have a place beside the programs'
# folder, and flat if the programs go alone.
settle() {
	if [ -z "$to" ]; then
		if [ "$(id -u)" = 0 ]; then
			to=/usr/local/bin
		elif [ -n "${HOME:-}" ]; then
			to=$HOME/.local/bin
		else
			die "HOME is not set, so there is no folder to install to: name one with --to"
		fi
	fi
	case $to in
	*"$tab"* | *"$newline"*) die "--to: the name of the folder has a tab or a newline" ;;
	/*) ;;
	*) to=$PWD/$to ;;
	esac
	case $to/ in
	*/../*) die "--to: $to has .. in it: name the folder without" ;;
	esac
	while [ "$to" != / ] && [ "${to%/}" != "$to" ]; do to=${to%/}; done
	layout=flat lists=$to/.execagent-
	case $to in
	"${HOME:-/}/bin") ;;
	/bin) die "--to: /bin belongs to the system: take /usr/local/bin" ;;
	*/bin) layout=tree lists=${to%/bin}/share/execagent/ ;;
	esac
}

# list is the file that lists what is installed of a program. A line is a word, a tab and a value: the version, a
# file, or a folder that an installer has made.
list() { printf '%s%s.files' "$lists" "$1"; }

# target names the system and the architecture as the archives do. Which there are is known from the sums.
target() {
	system=$(uname -s | tr '[:upper:]' '[:lower:]')
	architecture=$(uname -m)
	case $architecture in
	x86_64 | amd64) architecture=amd64 ;;
	aarch64 | arm64) architecture=arm64 ;;
	esac
}

# tools finds the programs that this one needs.
tools() {
	fetcher='' summer=''
	for tool in curl wget; do have "$tool" && fetcher=$tool && break; done
	[ -n "$fetcher" ] || die "neither curl nor wget is here to download with: install one of them"
	for tool in sha256sum shasum openssl; do have "$tool" && summer=$tool && break; done
	[ -n "$summer" ] || die "nothing is here to verify downloads with: install sha256sum (coreutils), shasum (perl) or openssl"
	have tar || die "tar is not here to unpack archives with: install it"
}

# fetch downloads URL to FILE. What begins as https stays https.
fetch() {
	case $1 in
	https:*) protocols='=https' ;;
	*) protocols='=http,https,file' ;;
	esac
	case $fetcher in
	curl) curl -fsSL --proto "$protocols" --retry 3 --connect-timeout 30 --speed-limit 1 --speed-time 60 -o "$2" "$1" ;;
	wget)
		# Only GNU's knows its version, and has these options.
		patience=''
		! wget --version >/dev/null 2>&1 || patience='-t 3 -T 60'
		# shellcheck disable=SC2086 # they are two options, or none
		wget -q $patience -O "$2" "$1"
		;;
	esac || die "cannot download $1"
}

# sum prints the SHA-256 of a file.
sum() {
	case $summer in
	sha256sum) sha256sum <"$1" ;;
	shasum) shasum -a 256 <"$1" ;;
	openssl) openssl dgst -sha256 -r <"$1" ;;
	esac | cut -d ' ' -f 1
}

# verify_signature checks who has made the sums. openssl comes first, because it is on more machines, and its
# options are the same in all versions.
verify_signature() {
	public=$work/cosign.pub
	if [ -n "${EXECAGENT_COSIGN_KEY:-}" ]; then
		public=$EXECAGENT_COSIGN_KEY
		[ -r "$public" ] || die "EXECAGENT_COSIGN_KEY: cannot read $public"
	elif [ -n "$key" ]; then
		printf '%s\n' "$key" >"$public"
	else
		signature="not verified, because this install.sh has no key: name one in EXECAGENT_COSIGN_KEY"
		return
	fi
	wrong="the signature of $url/SHA256SUMS is not of the key ${EXECAGENT_COSIGN_KEY:-of this install.sh}. Nothing was installed. Somebody may have changed the release"
	if have openssl; then
		fetch "$url/SHA256SUMS.sig" "$work/sig"
		if ! openssl base64 -d -A -in "$work/sig" -out "$work/signature" 2>/dev/null ||
			! openssl dgst -sha256 -verify "$public" -signature "$work/signature" "$work/SHA256SUMS" >/dev/null 2>&1; then
			die "$wrong"
		fi
		signature="verified by openssl"
	elif have cosign; then
		fetch "$url/SHA256SUMS.bundle" "$work/bundle"
		cosign verify-blob --key "$public" --bundle "$work/bundle" --insecure-ignore-tlog "$work/SHA256SUMS" >"$work/said" 2>&1 ||
			die "$wrong. cosign said: $(cat "$work/said")"
		signature="verified by cosign"
	elif [ -n "${EXECAGENT_COSIGN_KEY:-}" ]; then
		die "EXECAGENT_COSIGN_KEY names a key, and neither openssl nor cosign is here to verify a signature with: install one of them"
	else
		signature="not verified, because neither openssl nor cosign is here"
	fi
}

# archive_of prints the name of a product's archive for this machine, or nothing if the release has none.
archive_of() {
	awk -v name="$1_${version}_${system}_$architecture.tar." 'length($1) == 64 && index($2, name) == 1 && $2 !~ /\// { print $2; exit }' "$work/SHA256SUMS"
}

# unpack downloads an archive, verifies it, and unpacks it below the folder of its program.
unpack() {
	archive=$2 root=${2%.tar.*}
	fetch "$url/$archive" "$work/$archive"
	want=$(awk -v name="$archive" '$2 == name { print $1; exit }' "$work/SHA256SUMS")
	got=$(sum "$work/$archive")
	[ "$got" = "$want" ] || die "$url/$archive is damaged: its SHA-256 is ${got:-unknown}, and SHA256SUMS says $want. Nothing was installed. Try again; if it stays so, somebody may have changed it"
	case $archive in
	*.tar.gz) have gzip || die "gzip is not here to unpack $archive with: install it" ;;
	*.tar.xz) have xz || die "xz is not here to unpack $archive with: install it (in Debian it is in xz-utils)" ;;
	esac
	{
		case $archive in
		*.tar.gz) gzip -dc "$work/$archive" ;;
		*.tar.xz) xz -dc "$work/$archive" ;;
		esac >"$work/tar" && tar -tf "$work/tar" >"$work/names" && tar -tvf "$work/tar" >"$work/entries"
	} || die "$archive cannot be read. Nothing was installed"
	# Nothing but files and folders with plain names, all below the folder of the archive's name. BusyBox shows a
	# hard link as a file with an arrow.
	if grep -v '^[-d]' "$work/entries" >"$work/odd" || grep -e ' -> ' -e ' link to ' "$work/entries" >"$work/odd" ||
		grep -Ev "^$root(/[A-Za-z0-9_+][A-Za-z0-9._+-]*)*/?\$" "$work/names" >"$work/odd"; then
		die "$archive holds what no archive of execagent has: $(head -n 1 "$work/odd"). Nothing was installed"
	fi
	mkdir -p "$work/unpacked/$1"
	(cd "$work/unpacked/$1" && tar -xf "$work/tar") || die "$archive cannot be unpacked"
	# The next archive of this program has its files beside these.
	(cd "$work/unpacked/$1/$root" && find . -type f) | sed "s|^\./||; s|^|$root$tab|" >>"$work/unpacked/$1.files"
}

# place prints where a file of an archive is installed, or nothing if it is not.
place() {
	case $layout:$1 in
	*:bin/*) printf '%s/%s' "$to" "${1#bin/}" ;;
	# A sandbox hides fish's folder in a home, if there is one, and would say so with each command.
	tree:share/fish/*) ! have fish || printf '%s/%s' "${to%/bin}" "$1" ;;
	tree:share/*) printf '%s/%s' "${to%/bin}" "$1" ;;
	tree:lib/systemd/*) [ "$to" != /usr/local/bin ] || printf '/usr/local/%s' "$1" ;;
	esac
}

# plan lists what will be installed of a program: a file, a tab, and its place. The last is the list of them.
plan() {
	printf 'version\t%s\n' "$version" >"$work/new.$1"
	while IFS=$tab read -r root file; do
		place=$(place "$file")
		[ -n "$place" ] || continue
		printf '%s\t%s\n' "$work/unpacked/$1/$root/$file" "$place" >>"$work/plan"
		printf 'file\t%s\n' "$place" >>"$work/new.$1"
		[ ! -d "$place" ] || die "$place is a folder: remove it, or choose another folder with --to"
		if exists "$place" && [ -z "$force" ] && ! listed "$1" "$place"; then
			die "$place exists, and this installer has not installed it. Remove it, choose another folder with --to, or replace it with --force"
		fi
	done <"$work/unpacked/$1.files"
	printf '%s\t%s\n' "$work/new.$1" "$(list "$1")" >>"$work/plan"
}

# listed reports whether a file was installed for a program.
listed() { [ -f "$(list "$1")" ] && grep -Fqx "file$tab$2" "$(list "$1")"; }

# writable refuses a folder that files cannot be made in.
writable() {
	folder=$1
	while ! exists "$folder"; do folder=$(dirname "$folder"); done
	[ -d "$folder" ] || die "$folder is not a folder, so nothing can be installed in $1"
	{ [ -w "$folder" ] && [ -x "$folder" ]; } || die "you may not write to $folder: choose another folder with --to, or run this as root"
}

# make_folder makes a folder and those above it, and notes which it has made.
make_folder() {
	[ ! -d "$1" ] || return 0
	make_folder "$(dirname "$1")"
	mkdir "$1" || die "cannot make the folder $1. Nothing was installed"
	printf '%s\n' "$1" >>"$work/folders"
}

# beside prints a temporary name in the folder of a file. The first word says of what: new or old.
beside() { printf '%s/.execagent-%s.%s.%s' "$(dirname "$2")" "$1" "$$" "$(basename "$2")"; }

# stage copies a file beside its place.
stage() {
	make_folder "$(dirname "$2")"
	copy=$(beside new "$2")
	printf '%s\n' "$copy" >>"$work/copies"
	mode=644
	[ "${1%/bin/*}" = "$1" ] || mode=755
	{ cp "$1" "$copy" && chmod "$mode" "$copy"; } || die "cannot write to $(dirname "$2"). Nothing was installed"
}

# copy puts every file of the plan beside its place, and tries the programs there.
copy() {
	: >"$work/folders"
	while IFS=$tab read -r file place; do
		[ "${file#"$work/new."}" != "$file" ] || stage "$file" "$place"
	done <"$work/plan"
	for program in $programs; do
		# Without variables, because some change what a program prints.
		said=$(env -i "$(beside new "$to/$program")" version 2>&1) || die "$program does not run here: ${said:-it said nothing}. Nothing was installed"
		said=${said%%"$newline"*}
		[ "$said" = "$program $version" ] || die "$program says that it is \"$said\", and not $version. Nothing was installed"
		make_folder "$(dirname "$(list "$program")")"
	done
	# A folder is removed by whoever is removed last, and may have been made for an earlier version or the other program.
	sed "s/^/folder$tab/" "$work/folders" >"$work/made"
	for program in agent registry; do
		[ ! -f "$(list "$program")" ] || grep "^folder$tab" "$(list "$program")" >>"$work/made" || :
	done
	for program in $programs; do
		sort -u "$work/made" >>"$work/new.$program"
		stage "$work/new.$program" "$(list "$program")"
		[ ! -f "$(list "$program")" ] || cp "$(list "$program")" "$work/before.$program"
	done
}

# commit renames the copies. Until the last of them is in its place, the old files are kept beside.
commit() {
	: >"$work/replaced"
	: >"$work/olds"
	while IFS=$tab read -r _ place; do
		old=
		if exists "$place"; then
			old=$(beside old "$place")
			printf '%s\n' "$old" >>"$work/olds"
			# A link costs no space. Not every file system has them.
			ln "$place" "$old" 2>/dev/null || cp -p "$place" "$old" || die "cannot keep the old $place. Nothing was installed"
		fi
		mv -f "$(beside new "$place")" "$place" || die "cannot replace $place. Nothing was installed"
		printf '%s\t%s\n' "$place" "$old" >>"$work/replaced"
	done <"$work/plan"
}

# undo brings everything back to what it was before copy.
undo() {
	set +e
	lost=''
	if [ -f "$work/replaced" ]; then
		while IFS=$tab read -r place old; do
			if [ -z "$old" ]; then
				rm -f "$place"
			elif ! mv -f "$old" "$place"; then
				lost=1
				printf 'install.sh: the old %s is %s now: rename it\n' "$place" "$old" >&2
			fi
		done <"$work/replaced"
	fi
	[ -n "$lost" ] || remove_files "$work/olds"
	remove_files "$work/copies"
	[ ! -f "$work/folders" ] || remove_folders <"$work/folders"
}

# finish removes the old files, and those that an earlier version had and this one has not.
finish() {
	remove_files "$work/olds"
	for program in $programs; do
		[ -f "$work/before.$program" ] || continue
		while IFS=$tab read -r word path; do
			[ "$word" != file ] || grep -Fqx "file$tab$path" "$work/new.$program" || remove_installed "$path"
		done <"$work/before.$program"
	done
}

# remove_files removes the files of a list, if there is one.
remove_files() {
	[ -f "$1" ] || return 0
	while IFS= read -r file; do rm -f "$file"; done <"$1"
}

# leave ends the program. It gets a program's exit code.
leave() {
	trap '' HUP INT TERM
	trap - EXIT
	[ -n "$committed" ] || undo
	rm -rf "$work"
	exit "$1"
}

# remove_folders removes the folders that are empty, those below others first.
remove_folders() {
	sort -r | while IFS= read -r folder; do rmdir "$folder" 2>/dev/null || :; done
}

# remove_installed removes a file that a list of installed files names. One that was changed removes nothing elsewhere.
remove_installed() {
	case $1 in
	*/../*) die "a list of installed files names $1, which no installer has written" ;;
	"$to"/* | "${to%/bin}"/share/* | /usr/local/lib/systemd/*) rm -f "$1" ;;
	*) die "a list of installed files names $1, which no installer has written" ;;
	esac
}

# remove removes what was installed of the named programs, or of all.
remove() {
	removed=
	for program in ${programs:-agent registry}; do
		list=$(list "$program")
		[ -f "$list" ] || continue
		removed=1
		if [ -n "$dry_run" ]; then
			printf '%s would be removed:\n' "$program"
			sed -n "s/^file$tab/  /p" "$list"
			continue
		fi
		writable "$to"
		writable "$(dirname "$list")"
		while IFS=$tab read -r word path; do
			[ "$word" != file ] || remove_installed "$path"
		done <"$list"
		sed -n "s/^folder$tab//p" "$list" >"$work/made"
		rm -f "$list"
		remove_folders <"$work/made"
		printf 'removed %s from %s\n' "$program" "$to"
	done
	[ -n "$removed" ] || die "nothing of this installer's is in $to. If it is in another folder, name that with --to"
}

# report says what was done, how it is undone, and whether the user's shell finds the programs.
report() {
	for program in $programs; do
		before=
		[ ! -f "$work/before.$program" ] || before=", in place of $(sed -n "s/^version$tab//p" "$work/before.$program")"
		printf 'installed %s %s in %s%s\n' "$program" "$version" "$to" "$before"
	done
	[ "$layout" = flat ] || printf '  man pages and completions: %s\n' "${to%/bin}/share"
	printf '  sums: verified by %s\n  signature: %s\n' "$summer" "$signature"
	download='curl -fsSL'
	[ "$fetcher" = curl ] || download='wget -qO-'
	printf "  to remove: %s %s/install.sh | sh -s -- --to '%s' --uninstall\n" "$download" "$url" "$to"
	case :$PATH: in
	*:"$to":*)
		for program in $programs; do
			found=$(command -v "$program" || :)
			[ "$found" = "$to/$program" ] || printf '\nYour shell finds another %s first, %s: put %s to the beginning of PATH.\n' "$program" "$found" "$to"
		done
		;;
	*)
		# shellcheck disable=SC2016 # the user's shell expands it
		printf '\n%s is not in PATH. Run this now, and write it into ~/.profile:\n\n  export PATH="%s:$PATH"\n' "$to" "$to"
		;;
	esac
}

main() {
	umask 022
	parse "$@"
	settle
	committed=''
	work=$(mktemp -d) || die "cannot make a temporary folder: is TMPDIR right?"
	trap 'leave $?' EXIT
	trap 'leave 129' HUP
	trap 'leave 130' INT
	trap 'leave 143' TERM
	if [ -n "$uninstall" ]; then
		remove
		return
	fi
	version=${version#v}
	case $version in
	'') die "this install.sh is of no release, so it has no version: name one with --version" ;;
	*[!0-9A-Za-z.-]*) die "--version: $version is not a version such as 0.1.0" ;;
	esac
	url=${EXECAGENT_URL:-$releases}
	url=${url%/}/v$version
	: "${programs:=agent}"
	target
	tools
	writable "$to"
	writable "$(dirname "$(list agent)")"
	fetch "$url/SHA256SUMS" "$work/SHA256SUMS"
	verify_signature
	for program in $programs; do
		products=execagent-registry
		[ "$program" = registry ] || products='execagent execagent-mcp'
		for product in $products; do
			archive=$(archive_of "$product")
			if [ -n "$archive" ]; then
				unpack "$program" "$archive"
			elif [ "$product" != execagent-mcp ]; then
				die "the release $version has no $program for $system on $architecture. It has: $(sed -n "s/.* ${product}_${version}_\([a-z0-9_]*\)\..*/\1/p" "$work/SHA256SUMS" | tr '\n' ' ')"
			fi
		done
		plan "$program"
	done
	if [ -n "$dry_run" ]; then
		printf '%s %s would be installed:\n' "$programs" "$version"
		cut -f 2 "$work/plan" | sed 's/^/  /'
		printf 'sums: verified by %s\nsignature: %s\n' "$summer" "$signature"
		return
	fi
	copy
	trap '' HUP INT TERM
	commit
	committed=1
	finish
	report
}

# A download that was cut off has no last line, and does nothing.
main "$@"
