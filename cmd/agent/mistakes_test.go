package main

import (
	"bufio"
	"bytes"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestMistakes: what users get wrong, with the exact first line that says so and the exit code.
// A wrong command line is 2, and the second line points to the help of that command.
func TestMistakes(t *testing.T) {
	t.Parallel()
	const (
		server  = "see agent --help, or agent exec-server --help for the server's options"
		exec    = "see agent exec --help"
		sandbox = "see agent sandbox --help"
		connect = "see agent connect --help"
	)
	long := strings.Repeat("x", 100)
	dir := t.TempDir()
	for name, text := range map[string]string{"empty": "", "space": "to ken\n", "env": "A=1\n=2\n", "bundle": "none", "typo": "[exec]\ntiemout = \"1s\"\n", "token": "right", "wrong": "wrong",
		"broken": "[contexts.a]\nurl = 'x'\ntokn = 'topsecret'\n",
		"right":  "[contexts.a]\nurl = '127.0.0.1:1'\n[contexts.r]\nregistry = 'http://127.0.0.1:1'\ntoken_command = ['false']\n"} {
		rig.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	url := tokenAgent(t, dir+"/token")
	rig.Must(t, os.WriteFile(dir+"/open", []byte("[contexts.open]\nurl = '"+url+"'\ntoken_file = 'token'\n"), 0o600))
	place := strings.NewReplacer("$DIR", dir, "$URL", url, "$ADDRESS", strings.TrimPrefix(url, "ws://"),
		"$LENGTH", strconv.Itoa(len(dir+"/"+long)))
	mistakes := []struct {
		line string // $DIR is the folder of the test, $EMPTY nothing, $URL an agent with a token
		env  string // variables, with blanks between them
		code int
		want string
		help string // the second line, "" for none
	}{
		// Commands.
		{"exex", "", 2, "unknown command exex; did you mean exec?", server},
		{"exec-sever", "", 2, "unknown command exec-sever; did you mean exec-server?", server},
		{"ssh", "", 2, "unknown command ssh; did you mean exec -t?", server},
		{"serve", "", 2, "unknown command serve; did you mean exec-server?", server},
		{"Exec", "", 2, "unknown command Exec; did you mean exec?", server},
		{"version x", "", 2, "unexpected argument x", "see agent version --help"},
		{"version --jsn", "", 2, "unknown flag --jsn; did you mean --json?", "see agent version --help"},
		{"doctor --jsn", "", 2, "unknown flag --jsn; did you mean --json?", "see agent doctor --help"},
		{"completion", "", 2, "<shell> is missing", "see agent completion --help"},
		{"completion tcsh", "", 2, "<shell> must be one of \"bash\",\"zsh\",\"fish\" but got \"tcsh\"", "see agent completion --help"},
		{"help exex", "", 2, "unknown command exex; did you mean exec?", server},
		{"proxy-command", "", 2, "<address> is missing", "see agent proxy-command --help"},
		{"-- exex", "", 2, "unexpected argument exex", server},
		{"-- version --jsn", "", 2, "unexpected argument --jsn", "see agent version --help"},
		{"-v", "", 2, "unknown flag -v; did you mean --version?", server},
		{"--nonsense", "", 2, "unknown flag --nonsense", server},

		{"--tls-cert a", "", 2, "--tls-cert and --tls-key must be given together", server},
		{"--tls-client-ca a", "", 2, "--tls-client-ca needs --tls-cert and --tls-key", server},
		{"--listen wss://127.0.0.1:0", "", 2, "--listen wss:// needs --tls-cert and --tls-key", server},
		{"--listen ws://127.0.0.1:0 --tls-cert a --tls-key b", "", 2, "--listen ws:// has no TLS: with --tls-cert write wss://IP:PORT or IP:PORT", server},
		{"--listen stdio --tls-cert a --tls-key b", "", 2, "--tls-cert needs a port to listen on", server},
		{"--remote http://127.0.0.1:1 --environment-id e --tls-cert a --tls-key b", "", 2, "--tls-cert cannot be used in remote mode, because its streams are encrypted end to end", server},
		{"--tls-cert $DIR/nothing --tls-key $DIR/nothing", "", 1, "open $DIR/nothing: no such file or directory", ""},
		{"--listen 0.0.0.0:0", "", 1, "listen URL \"ws://0.0.0.0:0\" is not a loopback address and no authentication is configured (see --ws-auth, --tls-client-ca and --allow-unauthenticated)", ""},
		{"exec --local --tls-ca a -- true", "", 2, "--tls-ca needs --url or --registry; --tls-cert, --tls-key and --tls-server-name need --url", exec},
		{"exec --url ws://x:1 --tls-ca a -- true", "", 2, "--tls-ca, --tls-cert, --tls-key and --tls-server-name need a URL with wss://, or HOST:PORT: ws://x:1 has no TLS", exec},
		{"exec --registry http://127.0.0.1:1 --environment-id e --tls-ca a -- true", "", 2, "--tls-ca needs a registry with https://: http://127.0.0.1:1 has no TLS", exec},
		{"exec --registry https://r --environment-id e --tls-cert a --tls-key b -- true", "", 2, "--tls-cert, --tls-key and --tls-server-name need --url; a registry takes only --tls-ca", exec},
		{"exec --url x:1 --tls-cert a -- true", "", 2, "--tls-cert and --tls-key must be given together", exec},
		{"exec --url 127.0.0.1:1 --tls-ca $DIR/bundle -- true", "", 125, "$DIR/bundle holds no certificate", ""},

		{"run -- make", "", 2, "unknown command run; did you mean exec?", server},
		{"status", "", 2, "unknown command status; did you mean health?", server},
		{"info", "", 2, "unknown command info; did you mean doctor?", server},
		{"kubectl", "", 2, "unknown command kubectl", server},
		{"-V", "", 2, "unknown flag -V; did you mean --version?", server},
		{"--versin", "", 2, "unknown flag --versin; did you mean --version?", server},
		{"-p 7000", "", 2, "unknown flag -p; did you mean --listen 127.0.0.1:PORT?", server},
		{"--port 7000", "", 2, "unknown flag --port; did you mean --listen 127.0.0.1:PORT?", server},
		{"--host 0.0.0.0", "", 2, "unknown flag --host; did you mean --listen IP:PORT?", server},
		{"--bind 0.0.0.0", "", 2, "unknown flag --bind; did you mean --listen IP:PORT?", server},
		{"--socket /run/a", "", 2, "unknown flag --socket; did you mean --listen unix:///PATH?", server},
		{"--token x", "", 2, "unknown flag --token; did you mean --ws-token-file?", server},
		{"--remote https://r --registry-token-file x", "", 2, "unknown flag --registry-token-file; did you mean --api-key-file?", server},
		{"--debug", "", 2, "unknown flag --debug; did you mean --log-level debug?", server},
		{"--lisen :0", "", 2, "unknown flag --lisen; did you mean --listen?", server},
		{"-d", "", 2, "unknown flag -d", server},
		{"doctor -o yaml", "", 2, "--output must be one of \"text\",\"json\" but got \"yaml\"", "see agent doctor --help"},
		{"health --host :1", "", 2, "unknown flag --host; did you mean --url?", "see agent health --help"},

		// Flags of docker, kubectl and ssh.
		{"exec -H tcp://127.0.0.1:1 true", "", 2, "unknown flag -H; did you mean --url? (write -- before a command that begins with -)", exec},
		{"exec --host 127.0.0.1 true", "", 2, "unknown flag --host; did you mean --url? (write -- before a command that begins with -)", exec},
		{"exec --rm -it ubuntu bash", "", 2, "unknown flag --rm (write -- before a command that begins with -)", exec},
		{"exec -c app -- true", "", 2, "unknown flag -c (write -- before a command that begins with -)", exec},
		{"exec --cwd /tmp true", "", 2, "unknown flag --cwd; did you mean -C? (write -- before a command that begins with -)", exec},
		{"exec --environment ci-1 true", "", 2, "unknown flag --environment; did you mean --environment-id? (write -- before a command that begins with -)", exec},
		{"exec -v true", "", 2, "unknown flag -v (write -- before a command that begins with -)", exec},
		{"exec --env=A=1 --rgistry https://r true", "", 2, "unknown flag --rgistry; did you mean --registry? (write -- before a command that begins with -)", exec},
		{"exec -u nobody -- id", "", 2, "-u, --user is not supported, because a command runs as the user of its agent: start an agent as that user", exec},
		{"exec --user nobody id", "", 2, "-u, --user is not supported, because a command runs as the user of its agent: start an agent as that user", exec},
		{"exec --ulr ws://x -- true", "", 2, "unknown flag --ulr; did you mean --url? (write -- before a command that begins with -)", exec},
		{"exec --token tok -- true", "", 2, "unknown flag --token; did you mean --token-file? (write -- before a command that begins with -)", exec},
		{"exec -p 22 true", "", 2, "unknown flag -p (write -- before a command that begins with -)", exec},
		{"exec --privileged true", "", 2, "unknown flag --privileged (write -- before a command that begins with -)", exec},
		{"exec -d -- true", "", 2, "--detach needs an agent that keeps running: name one with --context, --url or --registry", exec},
		{"--url :1 ps", "", 1, "ws://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused", ""},
		{"--url=:1 exec ls", "", 125, "ws://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused", ""},
		{"--context b exec true", "AGENT_CONFIG=$DIR/right", 125, "context \"b\" is not in $DIR/right, which has a, r", ""},
		{"--config $DIR/right context use b", "", 1, "context \"b\" is not in $DIR/right, which has a, r", ""},
		{"--context a pss", "", 2, "unknown command pss; did you mean ps?", server},
		{"--context a sandbox true", "", 2, "unknown flag --context (write -- before a command that begins with -)", sandbox},
		{"-H tcp://127.0.0.1:1 ps", "", 2, "unknown flag -H; write it after the command, as --url or --context", server},
		{"exec --token-command x true", "", 2, "unknown flag --token-command; did you mean --token-file <(COMMAND)? (write -- before a command that begins with -)", exec},
		{"logs --context open no-such", "AGENT_CONFIG=$DIR/open", 1, "there is no session named no-such: agent ps --context open lists the sessions", ""},
		{"logs --url $URL --token-file $DIR/token no-such", "", 1, "there is no session named no-such: agent ps --url $URL lists the sessions", ""},
		{"logs no-such", "AGENT_CONTEXT=open AGENT_CONFIG=$DIR/open", 1, "there is no session named no-such: agent ps lists the sessions", ""},
		{"ps --url :1", "AGENT_CONFIG=$DIR/typo", 2, "$DIR/typo:2: unknown key \"tiemout\": agent exec has no option of that name; did you mean timeout?", "see agent config --help"},
		{"exec --local a -l", "AGENT_CONFIG=$DIR/right", 127, "a: command not found; a is a context: agent exec --context a -- -l", ""},
		{"sandbox --network -- curl", "", 2, "--network needs a value", sandbox},
		{"ls --url :1 -lR", "", 2, "unknown flag -R; agent exec -- ls -R lists whole trees", "see agent ls --help"},
		{"ls --url :1 -1lha", "", 1, "ws://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused", ""},
		{"rm --url :1 -rfh x", "", 2, "unknown flag -h; write -h alone for help", "see agent rm --help"},
		{"exec -ith true", "", 2, "unknown flag -h; write -h alone for help", exec},
		{"ps --url :1 --format x", "", 2, "unknown flag --format; did you mean -o json?", "see agent ps --help"},
		{"kill --url :1 -TERM n", "", 2, "unknown flag -T; did you mean --signal TERM?", "see agent kill --help"},
		{"execpolicy", "", 2, "expected \"check\"", "see agent execpolicy --help"},
		{"execpolicy chek", "", 2, "unknown command execpolicy chek; did you mean execpolicy check?", "see agent execpolicy --help"},
		{"execpolicy check ls", "", 2, "missing flags: --rules=FILE", "see agent execpolicy check --help"},
		{"execpolicy check --rule x ls", "", 2, "unknown flag --rule; did you mean --rules? (write -- before a command that begins with -)", "see agent execpolicy check --help"},
		{"config show exec --tiemout 3", "", 2, "unknown flag --tiemout; did you mean --timeout? (write the flags of config show before the command)", ""},
		{"config show exec -o json", "", 2, "unknown flag -o (write the flags of config show before the command)", ""},
		{"config show exce", "", 2, "no options of \"exce\" can be set in files; did you mean exec?", ""},
		{"execpolicy check --rules /dev/null", "", 2, "the command is empty", "see agent execpolicy check --help"},
		{"execpolicy check --rules /dev/null --pretty --pretty ls", "", 2, "--pretty is given twice", ""},
		{"execpolicy check --rules /dev/null --exec-policy-opaque allow ls", "", 2, "--exec-policy-unmatched, -opaque and -forced-rm need --tree or --exec-policy-enforce", "see agent execpolicy check --help"},
		{"execpolicy check --rules /dev/null --tree --exec-policy-enforce start ls", "", 2, "--tree and --exec-policy-enforce start contradict each other", "see agent execpolicy check --help"},
		{"context current", "", 2, "unknown command context current; did you mean context show?", "see agent context --help"},
		{"context create", "", 2, "unknown command context create; did you mean context add?", "see agent context --help"},
		{"logout", "", 2, "unknown command logout; did you mean context remove?", server},
		{"exec --workdr /tmp true", "", 2, "unknown flag --workdr; did you mean --workdir? (write -- before a command that begins with -)", exec},
		{"exec --timout=1s true", "", 2, "unknown flag --timout; did you mean --timeout? (write -- before a command that begins with -)", exec},
		{"sandbox -it -- sh", "", 2, "unknown flag -i (write -- before a command that begins with -)", "see agent sandbox --help"},
		{"sandbox --worksapce . -- sh", "", 2, "unknown flag --worksapce; did you mean --workspace? (write -- before a command that begins with -)", "see agent sandbox --help"},

		// exec.
		{"exec", "", 2, "the command is empty; for a shell run: agent exec -t -- bash", exec},
		{"exec -t", "", 2, "the command is empty; for a shell run: agent exec -t -- bash", exec},
		{"exec -e =x true", "", 2, "-e \"=x\" has no name", exec},
		{"exec -w / -C / true", "", 2, "-C and --workdir are the same: give one of them", exec},
		{"exec --url ws://127.0.0.1:1 --registry http://127.0.0.1:1 true", "", 2, "--url and --registry cannot be used together", exec},
		{"exec --token-file x true", "", 2, "--token-file needs --url", exec},
		{"exec --registry-token-file x true", "", 2, "--registry-token-file needs --registry", exec},
		{"exec --registry http://127.0.0.1:1 true", "", 2, "--registry needs --environment-id", exec},
		{"exec --wait -1s true", "", 2, "--wait needs a value; write a value that begins with - as --wait=-1s", exec},
		{"exec --wait=-1s true", "", 2, "--wait -1s is negative", exec},
		{"exec --timeout=-1s true", "", 2, "--timeout -1s is negative", exec},
		{"exec --log-level loud true", "", 2, "--log-level must be one of \"debug\",\"info\",\"warn\",\"error\" but got \"loud\"", exec},
		{"exec --local -- rm x\xff", "", 2, `"x\xff" in the command is not UTF-8: an agent takes only text, so let a shell make the bytes, as in sh -c 'rm "$(printf "x\377")"'`, exec},
		{"exec --local -e A=secret\xff -- true", "", 2, "-e A is not UTF-8: an agent takes only text", exec},
		{"exec --local -e A -- true", "A=secret\xff", 125, "the variable A is not UTF-8: an agent takes only text", ""},
		{"exec --url :1 --name x\xff -- true", "", 2, `--name: "x\xff" is not UTF-8`, exec},
		{"kill --url :1 x\xff", "", 2, `<name> ...: "x\xff" is not UTF-8`, "see agent kill --help"},
		{"exec --url wss://box.invalid:1 -- true", "HTTPS_PROXY=http://me:secret@127.0.0.1:1", 125, "wss://box.invalid:1: connecting through proxy 127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused", ""},
		{"ls --url ws://box.invalid:1", "ALL_PROXY=socks5h://127.0.0.1:1", 1, "ws://box.invalid:1: connecting through proxy 127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused", ""},
		{"ls --url ws://127.0.0.1:1", "ALL_PROXY=socks5h://127.0.0.1:2", 1, "ws://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused", ""},
		{"exec --env-file $DIR/missing true", "", 125, "open $DIR/missing: no such file or directory", ""},
		{"exec --env-file $DIR/env true", "", 2, "$DIR/env:2: \"\" is not the name of a variable", ""},
		{"exec -- no-such-program", "", 127, "no-such-program: command not found", ""},
		{"exec -- /etc/passwd", "", 126, "/etc/passwd: cannot execute: Permission denied (os error 13)", ""},
		{"exec -C /no/such true", "", 125, "/no/such: the directory for the command does not exist", ""},
		{"exec -C /etc/passwd true", "", 125, "/etc/passwd: not a directory", ""},
		{"exec --timeout 1ms -- sleep 100", "", 124, "timed out after 1ms", ""},

		// Files.
		{"cp", "", 2, "copy what, and where? give at least two paths; write those on the agent as :PATH", "see agent cp --help"},
		{"cp a", "", 2, "copy what, and where? give at least two paths; write those on the agent as :PATH", "see agent cp --help"},
		{"cp a b", "", 2, "both sides are here: write a path on the agent as :PATH, as in :b", "see agent cp --help"},
		{"cp box:a b", "", 2, "both sides are here: write a path on the agent as :PATH, as in :b", "see agent cp --help"},
		{"cp a box:/b", "", 2, "write a path on the agent as :PATH, as in: agent cp --context box a :/b", "see agent cp --help"},
		{"cp r:b ./c a", "AGENT_CONFIG=$DIR/right", 2, "both sides are here: write a path on the agent as :PATH, as in :a", "see agent cp --help"},
		{"cp r:b c", "AGENT_CONFIG=$DIR/right", 2, "write a path on the agent as :PATH, as in: agent cp --context r :b c", "see agent cp --help"},
		{"cp --url :1 box:/b c", "", 2, "write a path on the agent as :PATH, as in: agent cp :/b c", "see agent cp --help"},
		{"cp box:/b sec:/c", "", 2, "both sides are here: write a path on the agent as :PATH, as in :sec:/c", "see agent cp --help"},
		{"cp :a :b", "", 2, "both sides are on the agent: use agent exec -- cp", "see agent cp --help"},
		{"cp :a b c", "", 2, "all sources must be on the same side: here, or on the agent as :PATH", "see agent cp --help"},
		{"cp a - :c", "", 2, "- is a whole tar archive, so it must be the only source", "see agent cp --help"},
		{"cp a :b", "", 2, "which agent? name it with --context, --url or --registry", "see agent cp --help"},
		{"cp -R a :b", "", 2, "unknown flag -R; did you mean -r?", "see agent cp --help"},
		{"cp a :b --url :1", "", 1, "ws://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused", ""},
		{"cp a :b --url :1", "AGENT_REGISTRY=http://127.0.0.1:2", 1, "ws://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused", ""},
		{"ls /", "", 2, "which agent? name it with --context, --url or --registry", "see agent ls --help"},
		{"ls --url :1", "", 1, "ws://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused", ""},
		{"cat --url :1", "", 2, "<path> is missing", "see agent cat --help"},
		{"rm -r --url :1", "", 2, "<path> is missing", "see agent rm --help"},
		{"mkdir --url :1", "", 2, "<path> is missing", "see agent mkdir --help"},
		{"apply-patch nowhere", "", 1, "reading the patch: open nowhere: no such file or directory", ""},
		{"apply-patch --local --url :1", "", 2, "--local cannot be used with --context, --url or --registry", "see agent apply-patch --help"},
		{"apply-patch -", "", 1, "Invalid patch: The last line of the patch must be '*** End Patch'", ""},

		// Sessions with a name.
		{"exec --name n -- true", "", 2, "--name needs an agent that keeps running: name one with --context, --url or --registry", exec},
		{"exec --url :1 --name -- true", "", 2, "--name needs a value", exec},
		{"exec --url :1 -d --name a/b -- true", "", 2, "--name: \"a/b\" is not a valid name for a session: use up to 128 letters, digits and . _ - and begin with a letter or digit", exec},
		{"exec --url :1 --retain 1h -- true", "", 2, "--retain needs --name or -d", exec},
		{"exec --url :1 -d --retain=-1h -- true", "", 2, "--retain -1h0m0s is negative", exec},
		{"exec --url :1 -d --on-disconnect kill -- true", "", 2, "--on-disconnect kill cannot be used with --name or -d, because their command outlives its client", exec},
		{"exec --url :1 --name n --detach-keys ctrl-P -- true", "", 2, "--detach-keys: \"ctrl-P\" is not a key such as ctrl-p or a", exec},
		{"ps", "", 2, "which agent? name it with --context, --url or --registry", "see agent ps --help"},
		{"ps --url :1", "", 1, "ws://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused", ""},
		{"ps -l --url :1", "", 2, "unknown flag -l", "see agent ps --help"},
		{"skills", "", 2, "which agent? name it with --context, --url or --registry", "see agent skills --help"},
		{"logs --url :1", "", 2, "which session? agent ps lists them", "see agent logs --help"},
		{"logs --url :1 --since yesterday n", "", 2, "--since: \"yesterday\" is not a duration such as 10m or a time such as 2026-01-31T15:04:05Z", "see agent logs --help"},
		{"logs --url :1 --tail some n", "", 2, "--tail: \"some\" is neither a number nor all", "see agent logs --help"},
		{"logs --url :1 --tail all n", "", 1, "ws://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused", ""},
		{"logs --url :1 --tail -1 n", "", 2, "--tail needs a value; write a value that begins with - as --tail=-1", "see agent logs --help"},
		{"logs -f n", "", 2, "which agent? name it with --context, --url or --registry", "see agent logs --help"},
		{"attach --url :1", "", 2, "which session? agent ps lists them", "see agent attach --help"},
		{"attach --url :1 n", "", 125, "ws://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused", ""},
		{"attach --url :1 --detach-keys x, n", "", 2, "--detach-keys: \"\" is not a key such as ctrl-p or a", "see agent attach --help"},
		{"wait --url :1", "", 2, "which session? agent ps lists them", "see agent wait --help"},
		{"wait --url :1 n", "", 125, "ws://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused", ""},
		{"kill --url :1 -9 n", "", 2, "unknown flag -9; did you mean --signal KILL?", "see agent kill --help"},
		{"kill --url :1 -s TSTP n", "", 2, "--signal: \"TSTP\" is not a signal that an agent can send: use HUP, INT, QUIT, KILL, USR1, USR2, TERM, STOP, CONT, WINCH", "see agent kill --help"},
		{"end --url :1 a/b", "", 2, "\"a/b\" is not a valid name for a session: use up to 128 letters, digits and . _ - and begin with a letter or digit", "see agent end --help"},
		{"stop --url :1 n", "", 2, "unknown command stop; did you mean kill?", server},
		{"exec --url= true", "", 2, "--url is empty", exec},
		{"exec --registry $EMPTY --environment-id e true", "", 2, "--registry is empty", exec},
		{"exec --environment-id ci-1 -- true", "", 2, "--environment-id needs --registry", exec},
		{"exec --timeout 5 true", "", 2, "--timeout: \"5\" is not a duration such as 30s, 5m or 1h30m", exec},
		{"exec --tty=maybe true", "", 2, "--tty: bool value must be true, 1, yes, false, 0 or no but got \"maybe\"", exec},
		{"exec true", "AGENT_TIMEOUT=5", 2, "--timeout: \"5\" is not a duration such as 30s, 5m or 1h30m (from the variable AGENT_TIMEOUT=\"5\")", exec},
		{"exec --url https://x --tls-ca a -- true", "", 2, "--url https://x is not ws://HOST:PORT, HOST:PORT, wss:// or unix:///PATH: write wss://x", exec},
		{"exec -- $DIR/empty", "", 126, "$DIR/empty: cannot execute: Permission denied (os error 13)", ""},

		// sandbox and doctor.
		{"sandbox", "", 2, "the command is empty", sandbox},
		{"sandbox --read-only --workspace . -- true", "", 2, "--read-only and --workspace cannot be used together", sandbox},
		{"sandbox --policy p --network on -- true", "", 2, "--policy cannot be used with --network on or off, because the policy says whether there is a network", sandbox},
		{"sandbox --network maybe -- true", "", 2, `--network "maybe" is not one of on, off, ask, or allow=HOST,… deny=HOST,… ask=HOST,… local`, sandbox},
		{"sandbox --network on --network allow=a.org -- true", "", 2, "--network on, off and values that name hosts cannot be used together", sandbox},
		{"sandbox --network allow= -- true", "", 2, "--network allow= names no host", sandbox},
		{"sandbox --network allow=http://a.org -- true", "", 2, "--network: invalid network proxy config: unsupported domain pattern syntax: http://a.org", sandbox},
		{"sandbox --workspace /no/such -- true", "", 101, "sandbox: --workspace: stat /no/such: no such file or directory", ""},
		{"sandbox --policy $DIR/missing -- true", "", 101, "sandbox: reading the policy $DIR/missing: open $DIR/missing: no such file or directory (for the policies that agent doctor names, use --read-only and --workspace)", ""},
		{"sandbox --policy $DIR/bundle -- true", "", 101, "sandbox: reading the policy $DIR/bundle: not a JSON value", ""},

		// Where the agent is.
		{"exec --url tcp://127.0.0.1:1 true", "", 2, "--url tcp://127.0.0.1:1 is not ws://HOST:PORT, HOST:PORT, wss:// or unix:///PATH", exec},
		{"exec --url ssh://host true", "", 2, "--url ssh://host is not ws://HOST:PORT, HOST:PORT, wss:// or unix:///PATH", exec},
		{"exec --url /run/agent.sock true", "", 2, "--url /run/agent.sock is not a URL: for a UNIX socket write unix:///run/agent.sock", exec},
		{"exec --url ssh://root@host true", "", 2, "--url ssh://root@host is not ws://HOST:PORT, HOST:PORT, wss:// or unix:///PATH", exec},
		{"exec --url 127.0.0.1 true", "", 2, "--url 127.0.0.1 is not ws://HOST:PORT, HOST:PORT, wss:// or unix:///PATH", exec},
		{"exec --url unix:/run/agent.sock true", "", 125, "unix:/run/agent.sock: exec-server url must use ws://, wss:// or unix://", ""},
		{"exec --url unix://agent.sock true", "", 2, "--url unix://agent.sock is not ws://HOST:PORT, HOST:PORT, wss:// or unix:///PATH", exec},
		{"exec --url unix://@agent true", "", 2, "--url unix://@agent is not ws://HOST:PORT, HOST:PORT, wss:// or unix:///PATH", exec},
		{"exec --url unix://$DIR/missing true", "", 125, "unix://$DIR/missing: dial unix $DIR/missing: connect: no such file or directory", ""},
		{"exec --url unix://$DIR/empty true", "", 125, "unix://$DIR/empty: dial unix $DIR/empty: connect: connection refused", ""},
		{"exec --url $URL true", "", 125, "$URL: upgrade answered with status 401, \"missing websocket bearer token\" (see --token-file)", ""},
		{"exec --url $URL true", "AGENT_TOKEN=right", 125, "$URL: upgrade answered with status 401, \"missing websocket bearer token\" (AGENT_TOKEN is never used; put the token into a file, see --token-file)", ""},
		{"exec --url $URL true", "AGENT_URL=:1 AGENT_TOKEN_FILE=$DIR/token", 125, "$URL: upgrade answered with status 401, \"missing websocket bearer token\" (AGENT_TOKEN_FILE was not used, because it is only for the agent of AGENT_URL; see --token-file)", ""},
		{"exec --url $URL --token-file - true", "", 125, "- is not a token file: for standard input write /dev/stdin", ""},
		{"exec --url $URL --token-file $DIR/wrong true", "", 125, "$URL: upgrade answered with status 401, \"invalid websocket bearer token\"", ""},
		{"exec --url $URL/v1 --token-file $DIR/token true", "", 125, "$URL/v1: no agent, but something else answers there (a registry is named by --registry)", ""},
		{"exec --url wss://$ADDRESS --token-file $DIR/token true", "", 125, "wss://$ADDRESS: tls: first record does not look like a TLS handshake (for a server without TLS write ws://)", ""},
		{"exec --url $URL --token-file $DIR true", "", 125, "read $DIR: is a directory", ""},
		{"health --url $URL", "", 1, "$URL: upgrade answered with status 401, \"missing websocket bearer token\" (see --token-file)", ""},
		{"health --url $URL --token-file $DIR/wrong", "", 1, "$URL: upgrade answered with status 401, \"invalid websocket bearer token\"", ""},
		{"exec --registry 127.0.0.1:1 --environment-id e true", "CODEX_API_KEY=k", 2, "--registry 127.0.0.1:1 is not a URL: write https://HOST, or http:// for this machine", exec},
		{"exec --registry $URL --environment-id e true", "CODEX_API_KEY=k", 125, "registry URL is not an absolute http or https URL", ""},
		{"exec --registry http://$ADDRESS --environment-id e true", "CODEX_API_KEY=k", 125, "environment e: asking the registry for the executor: registry answered 404", ""},
		{"exec --registry http://127.0.0.1:1 --environment-id e --registry-token-file $DIR/empty true", "", 125, "token file $DIR/empty is empty", ""},
		{"exec --registry http://127.0.0.1:1 --environment-id e --registry-token-file $DIR/missing true", "", 125, "open $DIR/missing: no such file or directory", ""},
		{"connect", "", 2, "which agent? name it with --context, --url or --registry", connect},
		{"connect --url $URL", "", 1, "$URL: upgrade answered with status 401, \"missing websocket bearer token\" (see --token-file)", ""},
		{"connect --url :1 --listen 7000", "", 1, "listen URL \"7000\" is not supported, want ws://IP:PORT, wss://IP:PORT or unix:///PATH", ""},
		{"connect --url :1 --listen stdio --ws-auth capability-token", "", 2, "--ws-auth cannot be used with --listen stdio", connect},
		{"connect --url :1 --listen :0 --allow-uid 5", "", 2, "--allow-uid needs --listen unix:///PATH", connect},
		{"forward", "", 2, "forward needs --remote", "see agent forward --help"},
		{"forward --remote http://127.0.0.1:1 --environment-id e", "CODEX_API_KEY=k", 2, "missing flags: --connect=URL", "see agent forward --help"},
		{"forward --connect http://127.0.0.1:1 --remote http://127.0.0.1:1 --environment-id e", "CODEX_API_KEY=k", 1, "--connect is not of the form ws://HOST:PORT, wss://HOST:PORT or unix:///PATH", ""},
		{"exec --url :1 true", "", 125, "ws://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused", ""},
		{"exec --url ws://127.0.0.1:1 --wait 0 true", "", 125, "ws://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused", ""},
		{"exec --url http://127.0.0.1:1 true", "", 2, "--url http://127.0.0.1:1 is not ws://HOST:PORT, HOST:PORT, wss:// or unix:///PATH: write ws://127.0.0.1:1", exec},
		{"exec --url ws://u:topsecret@127.0.0.1:1 true", "", 2, "--url holds credentials: put them into a token file", exec},
		{"exec --url nonsense true", "", 2, "--url nonsense is not ws://HOST:PORT, HOST:PORT, wss:// or unix:///PATH", exec},
		{"exec --url ws://127.0.0.1:80000 true", "", 125, "ws://127.0.0.1:80000: dial tcp: address 80000: invalid port", ""},
		{"exec --url ws://127.0.0.1:1 --token-file $DIR/missing true", "", 125, "open $DIR/missing: no such file or directory", ""},
		{"exec --url ws://127.0.0.1:1 --token-file $DIR/empty true", "", 125, "token file $DIR/empty is empty", ""},
		{"exec --url ws://127.0.0.1:1 --token-file $DIR/space true", "", 125, "token file $DIR/space holds characters that a token cannot have", ""},
		{"exec --registry http://127.0.0.1:1 --environment-id e true", "", 125, "--registry needs a token: set AGENT_REGISTRY_TOKEN or CODEX_API_KEY, or name a file with --registry-token-file", ""},
		{"exec --registry http://127.0.0.1:1 --environment-id e true", "CODEX_API_KEY=k", 125, "environment e: asking the registry for the executor: calling the registry: dial tcp 127.0.0.1:1: connect: connection refused", ""},
		{"exec --registry http://192.0.2.1 --environment-id e true", "CODEX_API_KEY=k", 125, "registry URL is plain http to another host; only https is allowed there", ""},
		{"exec --registry http://127.0.0.1:1 --environment-id a/b true", "CODEX_API_KEY=k", 125, "environment id is not 1 to 256 of A-Z, a-z, 0-9, _ and -", ""},
		{"health", "", 2, "which agent? name it with --context, --url or --registry", "see agent health --help"},
		{"health --url :1", "", 1, "ws://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused", ""},

		// Contexts.
		{"context", "", 2, "expected one of \"add\", \"list\", \"use\", \"show\", \"remove\"", "see agent context --help"},
		{"context lst", "", 2, "unknown command context lst; did you mean context list?", "see agent context --help"},
		{"contexts", "", 2, "unknown command contexts; did you mean context?", server},
		{"context add", "", 2, "give the context a name", "see agent context add --help"},
		{"context add x", "", 2, "which agent? name it with --url or --registry", "see agent context add --help"},
		{"context add .. --url :1", "", 2, "\"..\" is not a valid name for a context: use 1 to 128 of A-Z a-z 0-9 . _ - and begin with a letter or a digit", "see agent context add --help"},
		{"context add x --url http://h", "", 2, "--url http://h is not ws://HOST:PORT, HOST:PORT, wss:// or unix:///PATH: write ws://h", "see agent context add --help"},
		{"context add x --url ws://u:topsecret@h", "", 2, "--url holds credentials: put them into a token file", "see agent context add --help"},
		{"context add x --registry http://192.0.2.1", "", 2, "--registry is plain http to another host; only https is allowed there", "see agent context add --help"},
		{"context add x --registry https://r --environment-id a/b", "", 2, "--environment-id \"a/b\" is not 1 to 256 of A-Z, a-z, 0-9, _ and -", "see agent context add --help"},
		{"context add x --url :1 --transport direct", "", 2, "--transport cannot be used with --url", "see agent context add --help"},
		{"context use", "", 2, "which context? name it, or give --none", "see agent context use --help"},
		{"context use prod", "", 1, "context \"prod\": $DIR/.config/execagent/config.toml has no contexts (see agent context add)", ""},
		{"context show", "", 1, "there is no current context: name a context, or choose one with agent context use", ""},
		{"exec --context prod true", "", 125, "context \"prod\": $DIR/.config/execagent/config.toml has no contexts (see agent context add)", ""},
		{"exec true", "AGENT_CONFIG=$DIR/broken", 125, "$DIR/broken:3: unknown key \"tokn\": use url, registry, environment_id, transport, token, token_file, token_command, tls_ca, tls_cert, tls_key or tls_server_name", ""},
		{"health", "AGENT_CONFIG=$DIR/broken", 1, "$DIR/broken:3: unknown key \"tokn\": use url, registry, environment_id, transport, token, token_file, token_command, tls_ca, tls_cert, tls_key or tls_server_name", ""},
		{"exec --context=a --url ws://127.0.0.1:1 true", "AGENT_CONFIG=$DIR/right", 2, "--context cannot be used with --url or --registry", exec},
		{"exec --context=a --local true", "AGENT_CONFIG=$DIR/right", 2, "--local cannot be used with --context, --url or --registry", exec},
		{"exec --context=b true", "AGENT_CONFIG=$DIR/right", 125, "context \"b\" is not in $DIR/right, which has a, r", ""},
		{"exec --context=r true", "AGENT_CONFIG=$DIR/right", 2, "context r names a registry but no environment: name one with --environment-id", exec},
		{"exec --context=r --environment-id e true", "AGENT_CONFIG=$DIR/right", 125, "token_command of context r: false: exit status 1", ""},
		{"exec true", "AGENT_CONFIG=$DIR/right", 2, "which agent? name it with --context, --url or --registry; the contexts are a, r; --local runs the command here", exec},
		{"exec -d -- true", "AGENT_CONFIG=$DIR/right", 2, "--detach needs an agent that keeps running: name one with --context, --url or --registry", exec},
		{"ps", "AGENT_CONFIG=$DIR/right", 2, "which agent? name it with --context, --url or --registry; the contexts are a, r", "see agent ps --help"},
		{"environments", "", 2, "which registry? name it with --registry or --context", ""},
		{"environments --context a", "AGENT_CONFIG=$DIR/right", 1, "context a names an agent, not a registry", ""},
		{"login", "", 2, "which registry? give its URL", "see agent login --help"},
		{"login registry.example.com", "", 1, "the key is empty", ""},
		{"login ftp://registry.example.com", "", 2, "registry is not an absolute http or https URL", "see agent login --help"},
		{"login -u me registry.example.com", "", 2, "unknown flag -u", "see agent login --help"},
		{"login http://127.0.0.1:1", "", 1, "the key is empty", ""},
		{"login http://[::1]:1", "", 2, "\"::1\" is not a valid name for a context: give one with --name", "see agent login --help"},

		// Ports.
		{"port-forward 80", "", 2, "which agent? name it with --context, --url or --registry", "see agent port-forward --help"},
		{"port-forward --url :1", "", 2, "<forward> is missing", "see agent port-forward --help"},
		{"port-forward --url :1 http", "", 2, "\"http\" is not PORT, LOCAL:PORT, LOCAL:HOST:PORT or LOCAL:/PATH: \"http\" is not a port", "see agent port-forward --help"},
		{"port-forward --url :1 -L 1:localhost:2", "", 2, "unknown flag -L; leave -L out and write LOCAL:HOST:PORT", "see agent port-forward --help"},
		{"port-forward --url :1 0.0.0.0:7452:localhost:7450", "", 2, "\"0.0.0.0:7452:localhost:7450\" begins with an address of this machine: write --address 0.0.0.0 and 7452:localhost:7450", "see agent port-forward --help"},
		{"port-forward --url :1 8080:", "", 2, "\"8080:\" is not PORT, LOCAL:PORT, LOCAL:HOST:PORT or LOCAL:/PATH: \"\" is not a port", "see agent port-forward --help"},
		{"port-forward --url :1 80 99999:80", "", 2, "\"99999:80\" is not PORT, LOCAL:PORT, LOCAL:HOST:PORT or LOCAL:/PATH: \"99999\" is not a port", "see agent port-forward --help"},
		{"port-forward --url :1 --address example.com 80", "", 2, "--address \"example.com\" is not an IP address", "see agent port-forward --help"},
		{"port-forward --url :1 80", "", 1, "ws://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused", ""},
		{"port-forwrd 80", "", 2, "unknown command port-forwrd; did you mean port-forward?", server},
		{"proxy-command --url :1 localhost", "", 2, "want HOST PORT, or the path of a UNIX socket", "see agent proxy-command --help"},
		{"proxy-command --url :1 localhost ssh", "", 2, "\"localhost ssh\": \"ssh\" is not a port", "see agent proxy-command --help"},
		{"proxy-command --url :1 localhost:22", "", 1, "ws://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused", ""},
		{"proxy-command --url :1 localhost 22 x", "", 2, "want HOST PORT, or the path of a UNIX socket", "see agent proxy-command --help"},
		{"proxy-command localhost 22", "", 2, "which agent? name it with --context, --url or --registry", "see agent proxy-command --help"},

		// The server.
		{"--listen ws://127.0.0.1:80000", "", 2, "listen URL \"ws://127.0.0.1:80000\" is invalid, the port is not between 0 and 65535", server},
		{"--listen $URL", "", 1, "listening on $URL: listen tcp4 $ADDRESS: bind: address already in use", ""},
		{"--listen tcp://127.0.0.1:0", "", 2, "listen URL \"tcp://127.0.0.1:0\" is not supported, want ws://IP:PORT, wss://IP:PORT or unix:///PATH", server},
		{"--listen localhost", "", 2, "listen URL \"localhost\" is not supported, want ws://IP:PORT, wss://IP:PORT or unix:///PATH", server},
		{"--listen unix://@agent", "", 2, "listen URL \"unix://@agent\" is invalid: want unix:///PATH, with an absolute path (abstract names are not supported)", server},
		{"--listen unix:$DIR/s", "", 2, "listen URL \"unix:$DIR/s\" is not supported, want ws://IP:PORT, wss://IP:PORT or unix:///PATH", server},
		{"--listen unix:///no/such/folder/s", "", 1, "listening on unix:///no/such/folder/s: the folder of the socket: open /no/such/folder: no such file or directory", ""},
		{"--listen unix://$DIR/empty", "", 1, "listening on unix://$DIR/empty: $DIR/empty already exists and is not a socket", ""},
		{"--listen unix://$DIR/" + long, "", 2, "listen URL \"unix://$DIR/" + long + "\" is invalid: the path has $LENGTH bytes, but the path of a socket can have at most 107: choose a shorter path", server},
		{"--listen unix://$DIR/s --allow-uid bob", "", 2, "--allow-uid: \"bob\" is not a number", server},
		{"--allow-uid 1000", "", 2, "--allow-uid needs --listen unix:///PATH", server},
		{"--listen stdio --ws-auth capability-token --ws-token-file $DIR/token", "", 1, "--ws-auth cannot be used with --listen stdio", ""},
		{"--cgroup-pids many", "", 2, "--cgroup-pids: \"many\" is not a number", server},
		{"--health-listen 7000", "", 2, "--health-listen 7000: want HOST:PORT or unix:///PATH", server},
		{"--remote example.com --environment-id e", "CODEX_API_KEY=k", 1, "--remote is not an absolute http or https URL: want https://HOST, or http:// for this machine", ""},
		{"--listen 127.0.0.1:80000", "", 2, "listen URL \"ws://127.0.0.1:80000\" is invalid, the port is not between 0 and 65535", server},
		{"--listen 7000", "", 2, "listen URL \"7000\" is not supported, want ws://IP:PORT, wss://IP:PORT or unix:///PATH", server},
		{"--listen example.com:0", "", 2, "listen URL \"ws://example.com:0\" is invalid, want ws://IP:PORT with a numeric address", server},
		{"--listen :0", "", 1, "listen URL \"ws://0.0.0.0:0\" is not a loopback address and no authentication is configured (see --ws-auth, --tls-client-ca and --allow-unauthenticated)", ""},
		{"--listen 192.0.2.1:0 --allow-unauthenticated", "", 1, "listening on ws://192.0.2.1:0: listen tcp4 192.0.2.1:0: bind: cannot assign requested address", ""},
		{"--listen", "", 2, "--listen needs a value", server},
		{"--ws-auth capability-token", "", 2, "--ws-auth capability-token needs one of --ws-token-file and --ws-token-sha256", server},
		{"--ws-token-file x", "", 2, "authentication options need --ws-auth", server},
		{"--ws-auth capability-token --ws-token-file $DIR/missing", "", 1, "open $DIR/missing: no such file or directory", ""},
		{"--concurrent-requests 0", "", 2, "--concurrent-requests 0 is less than 1", server},
		{"--retain-bytes 1Q", "", 2, "--retain-bytes: \"1Q\" is not a number of bytes such as 1048576, 64K or 2G", server},
		{"--retain-bytes 0", "", 2, "--retain-bytes 0 is less than 1", server},
		{"--named-session-ttl 0s", "", 2, "--named-session-ttl 0s is not positive", server},
		{"--remote https://r --listen stdio --environment-id e", "", 2, "--remote and --listen (AGENT_LISTEN) cannot be used together", server},
		{"--remote https://r", "CODEX_API_KEY=k", 2, "--remote needs --environment-id", server},
		{"", "AGENT_CONCURRENT_REQUESTS=0", 2, "--concurrent-requests 0 is less than 1", server},
	}
	rig.Is(t, len(mistakes) < 75, false, "only %d mistakes", len(mistakes))
	for _, tt := range mistakes {
		t.Run(strings.ReplaceAll(tt.line, "/", "|")+" "+tt.env, func(t *testing.T) {
			t.Parallel()
			words := strings.Fields(place.Replace(tt.line))
			for i, word := range words {
				words[i] = strings.Replace(word, "$EMPTY", "", 1)
			}
			cmd := agentCommand(t, words...)
			cmd.Env = append(strings.Fields(place.Replace(tt.env)), "HOME="+dir, "PATH="+os.Getenv("PATH"), "GOCOVERDIR="+os.Getenv("GOCOVERDIR")) // go test -cover
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			_ = cmd.Run() // the exit code says it
			rig.Is(t, cmd.ProcessState.ExitCode(), tt.code, "exit code")
			want := "agent: " + place.Replace(tt.want) + "\n"
			if tt.help != "" {
				want += "agent: " + tt.help + "\n"
			}
			// So it says after a second, which a busy machine may need for nothing.
			said := strings.TrimPrefix(stderr.String(), "agent: waiting for environment e: no answer yet\n")
			rig.Is(t, said, want, "it says")
			rig.Is(t, stdout.String(), "", "it prints")
		})
	}
}

// tokenAgent starts an agent that wants the token in a file, and returns its URL.
func tokenAgent(t *testing.T, file string) string {
	t.Helper()
	cmd := agentCommand(t, "--listen", "127.0.0.1:0", "--ws-auth", "capability-token", "--ws-token-file", file)
	stdout, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	rig.Must(t, err)
	t.Cleanup(func() { _ = cmd.Wait() }) // the context of the test ends it
	return strings.TrimSpace(rig.Value(bufio.NewReader(stdout).ReadString('\n')))
}
