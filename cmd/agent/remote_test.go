package main

import (
	"bytes"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/cmd/agent/internal/executor"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/test/rig"
)

// TestRemoteCommandLine goes through the table of remote.md 2, but for what package executor refuses by
// its flags alone and tests there. A wrong command line
// ends with 2, one that asks for what cannot be done with 1. None of them connects
// to the registry, and none prints a secret.
func TestRemoteCommandLine(t *testing.T) {
	t.Parallel()
	// Whoever connects to the registry fails the test.
	registry := rig.Listen(t, "tcp", "127.0.0.1:0", func(net.Conn) { t.Error("somebody has connected to the registry") }).String()
	const key = "CODEX_API_KEY=sk-secret-value"
	const noAWS = "AWS_EC2_METADATA_DISABLED=true"
	remote := func(more ...string) []string {
		return append([]string{"--remote", "http://" + registry, "--environment-id", "env-1"}, more...)
	}
	forward := func(more ...string) []string { return append([]string{"forward"}, more...) }
	for _, tt := range []struct {
		name  string
		args  []string
		env   string
		stdin string
		code  int
		want  string
	}{
		{"transport without remote", []string{"--remote-transport", "noise"}, "", "", 2, "--remote-transport needs --remote"},
		{"identity without remote", []string{"--use-agent-identity-auth"}, "", "", 2, "--use-agent-identity-auth needs --remote"},
		{"bearer without remote", []string{"--registration-bearer-stdin"}, "", "", 2, "--registration-bearer-stdin needs --remote"},
		{"frames without remote", []string{"--executor-credential-stdin"}, "", "", 2, "--executor-credential-stdin needs --remote"},
		{"token without remote", []string{"--chatgpt-token-stdin"}, "", "", 2, "--chatgpt-token-stdin needs --remote"},
		{"account without remote", []string{"--chatgpt-account-id", "a"}, "", "", 2, "--chatgpt-account-id needs --remote"},
		{"sigv4 without remote", []string{"--aws-sigv4"}, "", "", 2, "--aws-sigv4 needs --remote"},
		{"stdin close without remote", []string{"--exit-on-stdin-close"}, "", "", 2, "--exit-on-stdin-close needs --remote"},
		{"kept sessions without remote", []string{"--keep-revoked-sessions"}, "", "", 2, "--keep-revoked-sessions needs --remote"},
		{"the same by variable", nil, "CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE=true", "", 2, "--exit-on-stdin-close needs --remote"},
		{"stdin close is no word", remote(), "CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE=maybe", "", 2, "CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE"},
		{"listen, its default", remote("--listen", defaultListen), key, "", 2, "--remote and --listen"},
		{"listen by variable: the flag counts", remote(), "AGENT_LISTEN=stdio", "", 1, "no credential"},
		{"unknown transport", remote("--remote-transport", "carrier-pigeon"), key, "", 2, "--remote-transport"},
		{"no requests at once", remote("--concurrent-requests", "0"), key, "", 2, "--concurrent-requests 0"},
		{"identity and sigv4", remote("--use-agent-identity-auth", "--aws-sigv4"), key, "", 2, "cannot be used together"},
		{"bearer and sigv4", remote("--registration-bearer-stdin", "--aws-sigv4", "--remote-transport", "direct"), key, "", 2, "cannot be used together"},
		{"frames and sigv4", remote("--executor-credential-stdin", "--aws-sigv4", "--remote-transport", "direct"), key, "", 2, "cannot be used together"},
		{"token and sigv4", remote("--chatgpt-token-stdin", "--aws-sigv4", "--remote-transport", "direct"), key, "", 2, "cannot be used together"},
		{"profile without remote", []string{"--aws-profile", "p"}, "", "", 2, "--aws-profile needs --remote"},
		{"profile without sigv4", remote("--aws-profile", "p"), key, "", 2, "need --aws-sigv4"},
		{"identity and bearer", remote("--use-agent-identity-auth", "--registration-bearer-stdin"), key, "", 2, "cannot be used together"},
		{"identity and frames", remote("--use-agent-identity-auth", "--executor-credential-stdin"), key, "", 2, "cannot be used together"},
		{"identity and token", remote("--use-agent-identity-auth", "--chatgpt-token-stdin"), key, "", 2, "cannot be used together"},
		{"key file and bearer", remote("--api-key-file", "key", "--registration-bearer-stdin"), key, "", 2, "--api-key-file and --registration-bearer-stdin cannot be used together"},
		{"key file without remote", []string{"--api-key-file", "key"}, "", "", 2, "--api-key-file needs --remote"},
		{"no key file", remote("--api-key-file", "/nonexistent/key"), key, "", 1, "no such file"},
		{"bearer and frames", remote("--registration-bearer-stdin", "--executor-credential-stdin"), key, "", 2, "cannot be used together"},
		{"bearer and token", remote("--registration-bearer-stdin", "--chatgpt-token-stdin"), key, "", 2, "cannot be used together"},
		{"frames and token", remote("--executor-credential-stdin", "--chatgpt-token-stdin"), key, "", 2, "cannot be used together"},
		{"forward to nowhere", forward("--remote", "http://"+registry, "--environment-id", "e"), key, "", 2, "--connect"},
		{"forward without remote", forward("--connect", "ws://127.0.0.1:1"), key, "", 2, "forward needs --remote"},
		{"the same, the long way", []string{"exec-server", "forward", "--connect", "ws://127.0.0.1:1"}, key, "", 2, "forward needs --remote"},

		{"sigv4 without a region", remote("--remote-transport", "direct", "--aws-sigv4"), noAWS, "", 1, "AWS SDK config did not resolve a region"},
		{"sigv4 with a blank region", remote("--remote-transport", "direct", "--aws-sigv4", "--aws-region", ""), noAWS, "", 1, "AWS SDK config did not resolve a region"},
		{"sigv4 without keys", remote("--remote-transport", "direct", "--aws-sigv4", "--aws-region", "eu-west-1"), noAWS, "", 1, "no AWS credentials"},
		{"sigv4 and no such profile", remote("--remote-transport", "direct", "--aws-sigv4", "--aws-region", "eu-west-1", "--aws-profile", "p"), noAWS, "", 1, "no AWS credentials"},
		{"sigv4 over plain http", []string{"--remote", "http://192.0.2.1", "--environment-id", "e", "--remote-transport", "direct", "--aws-sigv4", "--aws-region", "r"}, noAWS, "", 1, "plain http"},
		{"direct with a key of ours, and none", remote("--transport", "direct"), "", "", 1, "no credential"},
		{"forward direct", forward(remote("--connect", "ws://127.0.0.1:1", "--remote-transport", "direct", "--aws-sigv4")...), key, "", 1, "forward cannot use the direct transport"},
		{"forward to http", forward(remote("--connect", "http://127.0.0.1:1")...), key, "", 1, "--connect is not of the form"},
		{"listener auth", remote("--ws-auth", "capability-token", "--ws-token-sha256", strings.Repeat("0", 64)), key, "", 1, "cannot be used in remote mode"},
		{"listener auth, half", remote("--ws-auth", "capability-token"), key, "", 2, "--ws-"},
		{"listener auth of forward", forward(remote("--connect", "ws://127.0.0.1:1", "--ws-auth", "capability-token", "--ws-token-sha256", strings.Repeat("0", 64))...), key, "", 1, "cannot be used in remote mode"},
		{"no credential", remote(), "", "", 1, "no credential"},
		{"OPENAI_API_KEY does not count", remote(), "OPENAI_API_KEY=sk-secret-value", "", 1, "no credential"},
		{"an access token does not count", remote(), "CODEX_ACCESS_TOKEN=sk-secret-value", "", 1, "no credential"},
		{"environment id is empty", []string{"--remote", "http://" + registry, "--environment-id", ""}, key, "", 1, "--environment-id must be"},
		{"environment id is blank", []string{"--remote", "http://" + registry, "--environment-id", " "}, key, "", 1, "--environment-id must be"},
		{"URL is not absolute", []string{"--remote", "registry", "--environment-id", "e"}, key, "", 1, "absolute"},
		{"URL is empty", []string{"--remote", "", "--environment-id", "e"}, key, "", 1, "absolute"},
		{"URL has another scheme", []string{"--remote", "ftp://127.0.0.1", "--environment-id", "e"}, key, "", 1, "absolute"},
		{"bearer over plain http elsewhere", []string{"--remote", "http://192.0.2.1", "--environment-id", "e", "--registration-bearer-stdin"}, "", "sk-secret-value\n", 1, "plain http"},
		{"no bearer", remote("--registration-bearer-stdin"), "", "", 1, ""},
		{"bearer without a newline", remote("--registration-bearer-stdin"), "", "sk-secret-value", 1, ""},
		{"bearer with blanks", remote("--registration-bearer-stdin"), "", "sk-secret-value and more\n", 1, ""},
		{"no frame", remote("--executor-credential-stdin"), "", "", 1, ""},
		{"a frame that is none", remote("--executor-credential-stdin"), "", `{"token":"sk-secret-value"}` + "\n", 1, ""},
		{"an opaque token", remote("--chatgpt-token-stdin"), "", "sk-secret-value\n", 1, ""},
		{"probes nowhere", remote("--health-listen", "256.0.0.1:1"), key, "", 1, "probes"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			cmd := agentCommand(t, tt.args...)
			cmd.Env = append(os.Environ(), "HOME="+t.TempDir(), tt.env)
			stdin := rig.Value(cmd.StdinPipe())
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			rig.Must(t, cmd.Start())
			// The program may have ended without reading its input.
			_, _ = stdin.Write([]byte(tt.stdin))
			stdin.Close()
			err := cmd.Wait()
			rig.Is(t, cmd.ProcessState.ExitCode(), tt.code, "exit code, of %v", err)
			rig.Is(t, strings.Contains(stderr.String(), tt.want), true, "%q is in\n%s", tt.want, &stderr)
			rig.Is(t, strings.Contains(stderr.String(), "sk-secret-value"), false, "the secret is in\n%s", &stderr)
			// One that fails only with its credentials has said before that it serves.
			if tt.code == program.ExitFailure && strings.Count(stderr.String(), "\n")-strings.Count(stderr.String(), "msg=serving") != 1 {
				t.Errorf("more than one line:\n%s", &stderr)
			}
			rig.Is(t, stdout.String(), "", "it prints")
		})
	}
}

// TestEnvironmentIDAlone: without --remote, --environment-id and --name are ignored.
func TestEnvironmentIDAlone(t *testing.T) {
	t.Parallel()
	cmd := agentCommand(t, "--environment-id", "", "--name", "", "--listen", "stdio")
	rig.Check(t, cmd.Run())
}

// TestEmptyPaths: a variable for a file that is empty is not given, also where the whole parser
// reads the line, as it does when a flag is there twice.
func TestEmptyPaths(t *testing.T) {
	t.Parallel()
	for _, line := range [][]string{{"--listen", "stdio"}, {"--listen", "stdio", "--log-level", "warn", "--log-level", "warn"}} {
		cmd := agentCommand(t, line...)
		cmd.Stderr = nil
		cmd.Env = append(os.Environ(), "AGENT_WS_TOKEN_FILE=", "AGENT_WS_SHARED_SECRET_FILE=", "AGENT_TLS_CERT=", "AGENT_API_KEY_FILE=", "AGENT_TLS_CA=")
		out, err := cmd.CombinedOutput()
		rig.Is(t, err == nil, true, "%q: %v\n%s", line, err, out)
	}
	cmd := agentCommand(t, "--ws-token-file", "")
	cmd.Stderr = nil
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "authentication options need --ws-auth") {
		t.Errorf("one on the command line: %v\n%s", err, out)
	}
}

// TestHealthOfListener: an agent that listens for clients answers probes, and
// refuses any other request at the address of the probes.
func TestHealthOfListener(t *testing.T) {
	t.Parallel()
	address := rig.FreeAddress(t)
	cmd := agentCommand(t, "--health-listen", address)
	stdout := rig.Value(cmd.StdoutPipe())
	rig.Must(t, cmd.Start())
	defer func() {
		_ = cmd.Process.Signal(os.Interrupt)
		rig.Check(t, cmd.Wait())
	}()
	rig.Must(t, rig.Err(stdout.Read(make([]byte, 64)))) // the URL
	for _, tt := range []struct {
		method, path string
		want         string
	}{
		{"GET", "/healthz", "200"}, {"GET", "/readyz", "200"}, {"HEAD", "/readyz", "200"}, {"GET", "/", "404"},
		{"POST", "/readyz", "405"},
	} {
		rig.Is(t, askProbe(t, address, tt.method, tt.path), tt.want, "%s %s is answered with", tt.method, tt.path)
	}
}

// askProbe sends one request and returns the status of its answer.
func askProbe(t *testing.T, address, method, path string) string {
	t.Helper()
	conn := rig.Value(net.DialTimeout("tcp", address, 10*time.Second))
	defer conn.Close()
	rig.Must(t, rig.Err(conn.Write([]byte(method+" "+path+" HTTP/1.1\r\nHost: probe\r\n\r\n"))))
	answer := make([]byte, len("HTTP/1.1 200"))
	rig.Must(t, rig.Err(conn.Read(answer)))
	return string(answer[len("HTTP/1.1 "):])
}

// TestExposedSignIn: a remote agent warns of an auth.json that others can read, and refuses one
// that they can change, as it does with other files with secrets.
func TestExposedSignIn(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	rig.Must(t, os.WriteFile(filepath.Join(home, "auth.json"), []byte("{}"), 0o600))
	for _, mode := range []os.FileMode{0o600, 0o644, 0o666} {
		rig.Must(t, os.Chmod(filepath.Join(home, "auth.json"), mode))
		var log bytes.Buffer
		s := &server{sys: program.System{Environ: []string{"CODEX_HOME=" + home}}, flags: &serverFlags{}, logger: slog.New(slog.NewTextHandler(&log, nil))}
		s.flags.Remote = new("http://127.0.0.1:1")
		s.flags.EnvironmentID = new("env")
		if err := s.configure(); (err != nil) != (mode == 0o666) || err != nil && !strings.Contains(err.Error(), "auth.json is refused: it has mode 0666") {
			t.Fatal(err)
		}
		rig.Is(t, strings.Contains(log.String(), "auth.json has mode 0644"), mode == 0o644, "mode %04o: a warning is in %q", mode, &log)
	}
}

// TestSecretsAreAbsolute: secrets makes relative paths absolute. A sandbox takes no
// others and would refuse every command because of a single one.
func TestSecretsAreAbsolute(t *testing.T) {
	t.Parallel()
	s := &server{flags: &serverFlags{}, remote: &executor.Remote{Flags: &executor.Flags{APIKeyFile: "key"}, SignIn: &executor.SignIn{}}}
	s.flags.WSTokenFile = "token"
	dir := rig.Value(os.Getwd())
	want := []string{filepath.Join(dir, "token"), filepath.Join(dir, "key")}
	got, folders := s.secrets()
	rig.Is(t, slices.Equal(got, want) && folders == nil, true, "secrets %q and %q, want %q", got, folders, want)
}
