package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/cmd/agent/internal/executor"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/test/rig"
)

// TestRemoteCommandLine: a wrong command line ends with 2, one that asks for what cannot be done with
// 1. None of them connects to the registry, and none prints a secret.
func TestRemoteCommandLine(t *testing.T) {
	t.Parallel()
	// Whoever connects to the registry fails the test.
	registry := rig.Listen(t, "tcp", "127.0.0.1:0", func(net.Conn) { t.Error("somebody has connected to the registry") }).String()
	const secret = "sk-secret-value"
	dir := t.TempDir()
	rig.Must(t, rig.WriteProgram(filepath.Join(dir, "agent"), []byte("#!/bin/sh\nexec "+rig.Value(os.Executable())+" "+asAgent+" \"$@\"\n")))
	environ := append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"), "AWS_EC2_METADATA_DISABLED=true", "SECRET="+secret, "LISTEN="+defaultListen,
		"ADDRESS="+registry, "REMOTE=--remote http://"+registry+" --environment-id env-1")
	for line, want := range lines(t, "remote") {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), "sh", "-c", line)
			cmd.Env = append(slices.Clip(environ), "HOME="+t.TempDir())
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			err := cmd.Run()
			code, want, _ := strings.Cut(want, " ")
			rig.Is(t, fmt.Sprint(cmd.ProcessState.ExitCode()), code, "exit code, of %v", err)
			rig.Is(t, strings.Contains(stderr.String(), want), true, "%q is in\n%s", want, &stderr)
			rig.Is(t, strings.Contains(stderr.String(), secret), false, "the secret is in\n%s", &stderr)
			// One that fails only with its credentials has said before that it serves.
			if code == "1" && strings.Count(stderr.String(), "\n")-strings.Count(stderr.String(), "msg=serving") != 1 {
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
