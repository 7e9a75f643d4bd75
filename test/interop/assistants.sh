#!/bin/sh
# assistants.sh [option of assistants.py]...: the real Codex CLI and the real Claude Code with agent mcp.  See README.md.
# assistants.sh --find names the Claude Code that would be used, installing it if need be.
#
# Claude Code has a licence of its own and 400 MB. It is fetched by npm, outside of the repository, and needs no account here:
# its model is a script on this machine. An assistant that cannot be had is left out.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
version=${CLAUDE_VERSION:-2.1.332}
cache=${CLAUDE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/realclient-claude-$version}

# The native executable of an installed @anthropic-ai/claude-code package, if any.
find_claude() {
	for f in "$cache"/node_modules/@anthropic-ai/claude-code-linux-*/claude; do
		if [ -x "$f" ] && [ "$(HOME=$cache DISABLE_AUTOUPDATER=1 "$f" --version 2>/dev/null)" = "$version (Claude Code)" ]; then
			echo "$f"
			return 0
		fi
	done
	return 1
}

if [ -z "${CLAUDE_BIN:-}" ]; then
	CLAUDE_BIN=$(find_claude) || {
		echo "installing @anthropic-ai/claude-code@$version into $cache" >&2
		npm install --silent --no-audit --no-fund --prefix "$cache" "@anthropic-ai/claude-code@$version" >&2 && CLAUDE_BIN=$(find_claude)
	} || CLAUDE_BIN=
fi
if [ "${1:-}" = --find ]; then
	echo "$CLAUDE_BIN"
	[ -n "$CLAUDE_BIN" ]
	exit
fi
CODEX_BIN=${CODEX_BIN:-$("$here/run.sh" --find)} || CODEX_BIN=
[ -n "$CLAUDE_BIN" ] || echo 'SKIP assistants: Claude Code is not installed and npm cannot fetch it'
[ -n "$CODEX_BIN" ] || echo 'SKIP assistants: the Codex CLI is not installed and npm cannot fetch it'
[ -n "$CLAUDE_BIN$CODEX_BIN" ] || exit 0
AGENT=${AGENT:-$(cd "$here/../.." && pwd)/bin/agent}
export AGENT CLAUDE_BIN CODEX_BIN
exec python3 -B "$here/assistants.py" "$@"
