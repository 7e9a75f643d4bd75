#!/bin/sh
# run.sh [EXEC_SERVER_URL|self|reference] [-k PATTERN]... [--slow] [--list] [--keep]
# Runs the real Codex CLI against an exec-server.  See README.md.
# run.sh --find names the CLI that would be used, installing it if need be.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
version=${CODEX_VERSION:-0.171.0}

# The vendored executable of an installed @openai/codex package, if any.
find_in() {
  for f in "$1"/@openai/codex-linux-*/vendor/*/bin/codex \
           "$1"/@openai/codex/node_modules/@openai/codex-linux-*/vendor/*/bin/codex; do
    if [ -x "$f" ] && [ "$("$f" --version 2>/dev/null)" = "codex-cli $version" ]; then
      echo "$f"
      return 0
    fi
  done
  return 1
}

if [ -z "${CODEX_BIN:-}" ]; then
  cache=${RC_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/realclient-codex-$version}
  CODEX_BIN=$(find_in "$(npm root 2>/dev/null)" || find_in "$(npm root -g 2>/dev/null)" || find_in "$cache/node_modules") || {
    echo "installing @openai/codex@$version into $cache" >&2
    npm install --silent --no-audit --no-fund --prefix "$cache" "@openai/codex@$version" >&2
    CODEX_BIN=$(find_in "$cache/node_modules")
  }
fi
export CODEX_BIN
if [ "${1:-}" = --find ]; then
  echo "$CODEX_BIN"
  exit 0
fi
exec python3 -B "$here/run.py" "$@"
