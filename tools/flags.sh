#!/bin/sh
# flags.sh PROGRAM... writes a page in Markdown with the flags of programs and of all their commands,
# out of the texts of --help.
set -eu

[ $# -ge 1 ] || { echo "usage: flags.sh PROGRAM..." >&2 && exit 2; }

# help prints the help of a command. Each flag is one line, because the lines may be long. The help says
# nothing about this user, because a variable or a file of theirs could change it.
help() {
	env -i COLUMNS=10000 HOME=/home/you AGENT_CONFIG=/dev/null "$@" --help
}

# commands are those of the help of a program, whose lines are "  context list (ls)    Summary".
commands() {
	help "$1" | sed -n '/^Commands:/,/^$/s/^  \([a-z -]*[a-z]\) .*$/\1/p'
}

# helps are the texts of all commands, each after a line with \001 and the name of the command.
helps() {
	for program; do
		commands "$program" | while read -r command; do
			printf '\001%s %s\n' "$(basename "$program")" "$command"
			help "$program" $command
		done
	done
}

helps "$@" | awk '
# cell escapes what Markdown would not print as it is.
function cell(text) {
	gsub(/[\\`*<|]/, "\\\\&", text)
	return text
}
function code(text) { gsub(/\|/, "\\|", text); return "`" text "`" }
# page is a link to a page beside this one.
function page(name, section) { name = name ".md"; return "[" name "](" name section ")" }
function anchor(text) { gsub(/ /, "-", text); return "#" text }

/^\001/ { name = substr($0, 2); names[++commands] = name; group = ""; next }
/^Usage: / { usage[name] = substr($0, 8); getline; getline; summary[name] = $0; next }
/^(Arguments|Flags):$/ { group = $0; next }
group && /^[^ ].*:$/ { group = $0; next }
group && /^ / {
	at = match($0, /[^ ]   +[^ ]/)
	flag = at ? substr($0, 1, at) : $0
	text = at ? substr($0, at + RLENGTH - 1) : ""
	sub(/^ +/, "", flag)
	if (flag ~ /--(help|version)$/) next
	variables = ""
	if (match(text, / \(\$[^)]*\)\.$/)) {
		variables = substr(text, RSTART + 2, RLENGTH - 4)
		text = substr(text, 1, RSTART - 1)
		gsub(/\$/, "", variables)
		gsub(/, /, "`, `", variables)
		variables = "`" variables "`"
	}
	gsub(/\/home\/you\//, "~/", text)
	sub(/\.$/, "", text)
	row = "| " code(flag) " | " cell(text) " | " variables " |"
	if (!seen[row]++) order[++all] = row
	long = flag
	sub(/^-., /, "", long)
	sub(/[=\[].*/, "", long)
	flagOf[row] = long
	n = ++rows[name]
	rowOf[name, n] = row
	groupOf[name, n] = group
}
END {
	print "# Flags\n"
	print "All flags of `agent` and `registry`. `make flags` writes this page from the texts of `--help`, so do not edit the page."
	print page("cli") " and " page("operation") " explain how to use the programs. The help of a command also has examples and exit codes.\n"
	print "- The last column names the variable that sets the same option. " page("cli", "#options-in-files") " explains files, which can set each option that has a variable."
	print "- `exec-server` and `serve` may be left out: `agent --listen ...` is `agent exec-server --listen ...`, and `registry --listen ...` is `registry serve --listen ...`."
	print "- Flags that [many commands](#many-commands) share stand at the end. Every command also has `--help`.\n"
	for (i = 1; i <= commands; i++) {
		name = names[i]
		print "- [" name "](" anchor(name) "): " summary[name]
	}
	for (i = 1; i <= commands; i++) {
		name = names[i]
		print "\n## " name "\n\n" summary[name] "\n\n    " usage[name]
		group = common = ""
		for (n = 1; n <= rows[name]; n++) {
			row = rowOf[name, n]
			if (seen[row] >= 8) {
				common = common (common ? ", " : "") "`" flagOf[row] "`"
				continue
			}
			if (groupOf[name, n] != group) {
				group = groupOf[name, n]
				if (group !~ /^(Arguments|Flags):$/) print "\n" group
				print "\n| " (group == "Arguments:" ? "argument" : "flag") " | what it does | variable |\n|---|---|---|"
			}
			print row
		}
		if (common) print "\nAlso these flags of [many commands](#many-commands): " common
	}
	print "\n## Many commands\n\nEach of these flags means the same in every command that has it.\n"
	print "| flag | what it does | variable |\n|---|---|---|"
	for (i = 1; i <= all; i++) if (seen[order[i]] >= 8) print order[i]
}'
