package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMistakes: what users get wrong, with the exact first line that says so and the exit code.
// A wrong command line is 2, and the second line points to the help of that command.
func TestMistakes(t *testing.T) {
	t.Parallel()
	const (
		server = "see agent --help, for the options of the server agent exec-server --help"
		exec   = "see agent exec --help"
	)
	dir := t.TempDir()
	for name, text := range map[string]string{"empty": "", "space": "to ken\n", "env": "A=1\n=2\n", "bundle": "none"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		line string // $DIR is the folder of the test
		env  string
		code int
		want string
		help string // the second line, "" for none
	}{
		// Commands.
		{"exex", "", 2, "unknown command exex; did you mean exec?", server},
		{"exec-sever", "", 2, "unknown command exec-sever; did you mean exec-server?", server},
		{"docter", "", 2, "unknown command docter; did you mean doctor?", server},
		{"sandbx", "", 2, "unknown command sandbx; did you mean sandbox?", server},
		{"ssh", "", 2, "unknown command ssh", server},
		{"serve", "", 2, "unknown command serve", server},
		{"Exec", "", 2, "unknown command Exec; did you mean exec?", server},
		{"version x", "", 2, "unexpected argument x", "see agent version --help"},
		{"version --jsn", "", 2, "unknown flag --jsn, did you mean \"--json\"?", "see agent version --help"},
		{"doctor --jsn", "", 2, "unknown flag --jsn, did you mean \"--json\"?", "see agent doctor --help"},
		{"completion", "", 2, "expected \"<shell>\"", "see agent completion --help"},
		{"completion tcsh", "", 2, "<shell> must be one of \"bash\",\"zsh\",\"fish\" but got \"tcsh\"", "see agent completion --help"},
		{"help exex", "", 2, "unknown command exex; did you mean exec?", server},
		{"-v", "", 2, "unknown flag -v, did you mean \"-h\"?", server},
		{"--nonsense", "", 2, "unknown flag --nonsense", server},

		// Flags of docker, kubectl and ssh.
		{"exec -u nobody -- id", "", 2, "-u, --user: a command runs as the user of its agent, who cannot become another one; start an agent as that user", exec},
		{"exec --user nobody id", "", 2, "-u, --user: a command runs as the user of its agent, who cannot become another one; start an agent as that user", exec},
		{"exec --ulr ws://x -- true", "", 2, "unknown flag --ulr; did you mean --url? (a command that begins with - comes after --)", exec},
		{"exec --token tok -- true", "", 2, "unknown flag --token (a command that begins with - comes after --)", exec},
		{"exec -p 22 true", "", 2, "unknown flag -p (a command that begins with - comes after --)", exec},
		{"exec --privileged true", "", 2, "unknown flag --privileged (a command that begins with - comes after --)", exec},
		{"exec -d -- true", "", 2, "unknown flag -d (a command that begins with - comes after --)", exec},
		{"exec --workdr /tmp true", "", 2, "unknown flag --workdr; did you mean --workdir? (a command that begins with - comes after --)", exec},
		{"exec --timout=1s true", "", 2, "unknown flag --timout; did you mean --timeout? (a command that begins with - comes after --)", exec},
		{"sandbox -it -- sh", "", 2, "unknown flag -i (a command that begins with - comes after --)", "see agent sandbox --help"},
		{"sandbox --worksapce . -- sh", "", 2, "unknown flag --worksapce; did you mean --workspace? (a command that begins with - comes after --)", "see agent sandbox --help"},

		// exec.
		{"exec", "", 2, "the command is empty", exec},
		{"exec --", "", 2, "the command is empty", exec},
		{"exec -t", "", 2, "the command is empty", exec},
		{"exec -e =x true", "", 2, "-e \"=x\" has no name", exec},
		{"exec -w / -C / true", "", 2, "-C and --workdir are the same: give one of them", exec},
		{"exec --url ws://127.0.0.1:1 --registry http://127.0.0.1:1 true", "", 2, "--url and --registry exclude each other", exec},
		{"exec --token-file x true", "", 2, "--token-file needs --url", exec},
		{"exec --registry-token-file x true", "", 2, "--registry-token-file needs --registry", exec},
		{"exec --registry http://127.0.0.1:1 true", "", 2, "--registry needs --environment-id", exec},
		{"exec --wait -1s true", "", 2, "--wait: expected duration value but got \"-1s\" (short flag); perhaps try --wait=\"-1s\"?", exec},
		{"exec --wait=-1s true", "", 2, "--wait -1s is negative", exec},
		{"exec --wait 5 true", "", 2, "--wait: expected duration but got \"5\": time: missing unit in duration \"5\"", exec},
		{"exec --timeout=-1s true", "", 2, "--timeout -1s is negative", exec},
		{"exec --log-level loud true", "", 2, "--log-level must be one of \"debug\",\"info\",\"warn\",\"error\" but got \"loud\"", exec},
		{"exec --env-file $DIR/missing true", "", 125, "open $DIR/missing: no such file or directory", ""},
		{"exec --env-file $DIR/env true", "", 125, "$DIR/env:2: \"\" is no name of a variable", ""},
		{"exec -- no-such-program", "", 127, "no-such-program: command not found", ""},
		{"exec -- /etc/passwd", "", 126, "/etc/passwd: cannot execute: Permission denied (os error 13)", ""},
		{"exec -C /no/such true", "", 125, "directory /no/such: stat /no/such: exec-server rejected request (-32004): No such file or directory (os error 2)", ""},
		{"exec -C /etc/passwd true", "", 125, "directory /etc/passwd: is not a directory", ""},
		{"exec --timeout 1ms -- sleep 100", "", 124, "timed out after 1ms", ""},

		// Where the agent is.
		{"exec --url 127.0.0.1:1 true", "", 125, "ws://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused", ""},
		{"exec --url :1 true", "", 125, "ws://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused", ""},
		{"exec --url ws://127.0.0.1:1 --wait 0 true", "", 125, "ws://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused", ""},
		{"exec --url ws://127.0.0.1:1 --wait 0s true", "", 125, "ws://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused", ""},
		{"exec --url http://127.0.0.1:1 true", "", 125, "http://127.0.0.1:1: exec-server url must use ws:// or wss://", ""},
		{"exec --url ws://u:topsecret@127.0.0.1:1 true", "", 125, "ws://127.0.0.1:1: URL holds credentials, which belong in a header", ""},
		{"exec --url nonsense true", "", 125, "nonsense: exec-server url must use ws:// or wss://", ""},
		{"exec --url ws://127.0.0.1:80000 true", "", 125, "ws://127.0.0.1:80000: dial tcp: address 80000: invalid port", ""},
		{"exec --url ws://127.0.0.1:1 --token-file $DIR/missing true", "", 125, "open $DIR/missing: no such file or directory", ""},
		{"exec --url ws://127.0.0.1:1 --token-file $DIR/empty true", "", 125, "token file $DIR/empty is empty", ""},
		{"exec --url ws://127.0.0.1:1 --token-file $DIR/space true", "", 125, "token file $DIR/space holds characters that no token has", ""},
		{"exec --registry http://127.0.0.1:1 --environment-id e true", "", 125, "--registry needs a token: set AGENT_REGISTRY_TOKEN or CODEX_API_KEY, or name a file with --registry-token-file", ""},
		{"exec --registry http://127.0.0.1:1 --environment-id e true", "CODEX_API_KEY=k", 125, "environment e: asking the registry for the executor: calling the registry: dial tcp 127.0.0.1:1: connect: connection refused", ""},
		{"exec --registry http://192.0.2.1 --environment-id e true", "CODEX_API_KEY=k", 125, "registry URL is plain http to another host; only https is allowed there", ""},
		{"exec --registry http://127.0.0.1:1 --environment-id a/b true", "CODEX_API_KEY=k", 125, "environment id is not 1 to 256 of A-Z, a-z, 0-9, _ and -", ""},
		{"health", "", 2, "which agent? --url or --registry says it", "see agent health --help"},
		{"health --url :1", "", 1, "ws://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused", ""},

		// Ports.
		{"port-forward 80", "", 2, "which agent? --url or --registry says it", "see agent port-forward --help"},
		{"port-forward --url :1", "", 2, "expected \"<forward> ...\"", "see agent port-forward --help"},
		{"port-forward --url :1 http", "", 2, "\"http\" is not PORT, LOCAL:PORT, LOCAL:HOST:PORT or LOCAL:/PATH: \"http\" is no port", "see agent port-forward --help"},
		{"port-forward --url :1 8080:", "", 2, "\"8080:\" is not PORT, LOCAL:PORT, LOCAL:HOST:PORT or LOCAL:/PATH: \"\" is no port", "see agent port-forward --help"},
		{"port-forward --url :1 80 99999:80", "", 2, "\"99999:80\" is not PORT, LOCAL:PORT, LOCAL:HOST:PORT or LOCAL:/PATH: \"99999\" is no port", "see agent port-forward --help"},
		{"port-forward --url :1 --address example.com 80", "", 2, "--address \"example.com\" is no IP address", "see agent port-forward --help"},
		{"port-forward --url :1 80", "", 1, "ws://127.0.0.1:1: dial tcp 127.0.0.1:1: connect: connection refused", ""},
		{"port-foward 80", "", 2, "unknown command port-foward; did you mean port-forward?", server},
		{"proxy-command --url :1 localhost", "", 2, "want HOST PORT, or the path of a UNIX socket", "see agent proxy-command --help"},
		{"proxy-command --url :1 localhost ssh", "", 2, "\"localhost ssh\": \"ssh\" is no port", "see agent proxy-command --help"},
		{"proxy-command --url :1 localhost 22 x", "", 2, "want HOST PORT, or the path of a UNIX socket", "see agent proxy-command --help"},
		{"proxy-command localhost 22", "", 2, "which agent? --url or --registry says it", "see agent proxy-command --help"},

		// The server.
		{"--listen ws://127.0.0.1:80000", "", 1, "listen URL \"ws://127.0.0.1:80000\" is invalid, the port is not between 0 and 65535", ""},
		{"--listen 127.0.0.1:80000", "", 1, "listen URL \"ws://127.0.0.1:80000\" is invalid, the port is not between 0 and 65535", ""},
		{"--listen 7000", "", 1, "listen URL \"7000\" is not supported, want ws://IP:PORT", ""},
		{"--listen wss://127.0.0.1:0", "", 1, "listen URL \"wss://127.0.0.1:0\" is not supported, want ws://IP:PORT", ""},
		{"--listen example.com:0", "", 1, "listen URL \"ws://example.com:0\" is invalid, want ws://IP:PORT with a numeric address", ""},
		{"--listen :0", "", 1, "listen URL \"ws://0.0.0.0:0\" is not a loopback address and no authentication is configured (see --ws-auth and --allow-unauthenticated)", ""},
		{"--listen 192.0.2.1:0 --allow-unauthenticated", "", 1, "listening on ws://192.0.2.1:0: listen tcp4 192.0.2.1:0: bind: cannot assign requested address", ""},
		{"--listen", "", 2, "--listen: expected string value but got \"EOL\" (<EOL>)", server},
		{"--ws-auth password", "", 2, "--ws-auth must be one of \"capability-token\",\"signed-bearer-token\" but got \"password\"", server},
		{"--ws-auth capability-token", "", 2, "--ws-auth capability-token needs one of --ws-token-file and --ws-token-sha256", server},
		{"--ws-token-file x", "", 2, "authentication options need --ws-auth", server},
		{"--ws-auth capability-token --ws-token-file $DIR/missing", "", 1, "open $DIR/missing: no such file or directory", ""},
		{"--concurrent-requests 0", "", 2, "--concurrent-requests 0 is not at least 1", server},
		{"--retain-bytes 1Q", "", 2, "--retain-bytes: \"1Q\" is no number of bytes such as 1048576, 64K or 2G", server},
		{"--retain-bytes 0", "", 2, "--retain-bytes 0 is not at least 1", server},
		{"--session-ttl 5", "", 2, "--session-ttl: expected duration but got \"5\": time: missing unit in duration \"5\"", server},
		{"--remote https://r --listen stdio --environment-id e", "", 2, "--remote and --listen (AGENT_LISTEN) exclude each other", server},
		{"--remote https://r", "CODEX_API_KEY=k", 2, "--remote needs --environment-id", server},
		{"", "AGENT_CONCURRENT_REQUESTS=0", 2, "--concurrent-requests 0 is not at least 1", server},
	} {
		t.Run(strings.ReplaceAll(tt.line, "/", "|")+" "+tt.env, func(t *testing.T) {
			t.Parallel()
			cmd := agentCommand(t, strings.Fields(strings.ReplaceAll(tt.line, "$DIR", dir))...)
			cmd.Env = []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH"), tt.env}
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			_ = cmd.Run() // the exit code says it
			if code := cmd.ProcessState.ExitCode(); code != tt.code {
				t.Errorf("exit code %d, want %d", code, tt.code)
			}
			want := "agent: " + strings.ReplaceAll(tt.want, "$DIR", dir) + "\n"
			if tt.help != "" {
				want += "agent: " + tt.help + "\n"
			}
			if stderr.String() != want || stdout.Len() > 0 {
				t.Errorf("it says\n%sand prints %q, want\n%s", &stderr, &stdout, want)
			}
		})
	}
}
