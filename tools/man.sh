#!/bin/sh
# man.sh FOLDER PROGRAM... writes the man pages of programs to a folder, one for each command, out
# of the texts of --help. It needs help2man.
set -eu

[ $# -ge 2 ] || { echo "usage: man.sh FOLDER PROGRAM..." >&2 && exit 2; }
command -v help2man >/dev/null || { echo "man.sh: install the package help2man, which makes the pages" >&2 && exit 1; }
folder=$1
shift
# troff fills the lines, and a page is read on other machines too: it has nothing of this user.
export COLUMNS=1000 HOME=/home/you XDG_STATE_HOME=

# finish is a page as help2man makes it with the name of its command, and with each example on a line
# of its own.
finish() {
	awk -v page="$1" '
	/^\.TH / { sub(/^\.TH .* "1" /, ".TH " toupper(page) " \"1\" "); print; print ".ad l"; next }
	/^\.SH NAME/ { print; getline; sub(/^.* \\- /, page " \\- "); print; next }
	/^\./ && plain { print ".fi"; plain = 0 }
	{ print }
	/^\.SH / { examples = /EXAMPLES/ }
	/^\.IP/ && examples { print ".nf"; plain = 1 }'
}

# commands are those of the help of a program, whose lines are "  context list (ls)    Summary", and
# those above them.
commands() {
	"$1" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z -]*[a-z]\) .*$/\1/p' | awk 'NF > 1 && !above[$1]++ { print $1 } { print }'
}

mkdir -p "$folder"
for program; do
	name=$(basename "$program")
	version=$("$program" version | sed -n 1p)
	{ echo && commands "$program"; } | while read -r command; do
		page=$(echo "$name $command" | sed 's/ *$//; s/ /-/g')
		# The third line is what it does, in a sentence.
		summary=$("$program" $command --help | sed -n '3s/\.\( .*\)\{0,1\}$//p')
		text=$(help2man --no-info --section 1 --name "$summary" --version-string "$version" "$program $command")
		printf '%s\n' "$text" | finish "$page" >"$folder/$page.1"
	done
done
