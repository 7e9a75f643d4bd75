#!/bin/sh
# registry.sh [option of run.sh]...: the real Codex CLI as harness, bin/registry between, bin/agent --remote behind it.
#
# Called by interop.sh, which has checked what the machine needs and found the CLI. With RC_ALL=1 every scenario that can run
# so, which takes four minutes more.
set -eu
cd "$(dirname "$0")"

bin=$(cd ../.. && pwd)/bin
work=$(mktemp -d)
port=${RC_REGISTRY_PORT:-7790}
registry=
trap '[ -z "$registry" ] || { kill "$registry"; wait "$registry" || :; }; rm -rf "$work"' EXIT

executor_key=$("$bin/registry" keys create --data "$work/data" --role executor --environment 'interop')
RC_REGISTRY_TOKEN=$("$bin/registry" keys create --data "$work/data" --role harness --environment 'interop')
"$bin/registry" serve --listen "127.0.0.1:$port" --data "$work/data" --log-level warn &
registry=$!
for _ in $(seq 100); do
	curl -fs "http://127.0.0.1:$port/readyz" >/dev/null && break
	sleep 0.1
done

export RC_REGISTRY="127.0.0.1:$port" RC_REGISTRY_ENVIRONMENT=interop RC_REGISTRY_TOKEN
# The port of the health check tells the rig that the executor is there.
export EXECUTOR_CMD="env CODEX_API_KEY=$executor_key $bin/agent --remote http://127.0.0.1:$port --environment-id interop --health-listen 127.0.0.1:{port}"
# Left out are the scenarios that start an executor of their own, or name one in a file.
wanted='^(simple|patch_|tty_session|network_drop_(while|within|idle)|big_output|parallel_calls|sandbox_|skills|remote_mcp|managed_network|credential_masking|capability_discovery|selected_root_denied|selected_roots_v1|installed_v2|executor_config|shell_snapshot)'
if [ "${RC_ALL:-}" = 1 ]; then
	set -- "$@" --slow
	wanted=.
fi
only=
for name in $(./run.sh --list "$@" | awk -v wanted="$wanted" '$1 ~ wanted && $1 !~ /^(executor_(restart|absent)|environments_toml_|skills_required|exec_policy)/ { print $1 }'); do
	only="$only -k $name"
done
# shellcheck disable=SC2086 # names hold no blanks
./run.sh self "$@" $only
# Once more with an executor that has rules about commands.
EXECUTOR_CMD="$EXECUTOR_CMD --exec-policy $PWD/rules --exec-policy-enforce tree --provide-apply-patch" ./run.sh self -k exec_policy
