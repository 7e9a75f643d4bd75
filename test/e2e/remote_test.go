package e2e

import (
	"bytes"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// TestRemoteExecWaits: exec waits for the executor, and says so.
func TestRemoteExecWaits(t *testing.T) {
	t.Parallel()
	s := rig.NewSite(t)
	var stderr rig.Transcript
	cmd := s.ExecWith(t, "ci-1", []string{"--wait", "5m"}, "echo", "here")
	cmd.Stderr = &stderr
	p := rig.Start(t, cmd)
	// First that the registry has not answered yet, where that takes long.
	rig.Until(t, "it says what it waits for", func() bool {
		return strings.HasSuffix(stderr.String(), "agent: waiting for environment ci-1: no executor is connected\n")
	})
	s.Serve(t, "ci-1")
	rig.Is(t, p.Line(t), "here", "the command says")
	rig.Is(t, p.Exit(t), 0, "exit code")
}

// TestRemoteExec runs commands on an agent behind a registry. All are real programs.
func TestRemoteExec(t *testing.T) {
	t.Parallel()
	s := rig.NewSite(t)
	executor := s.Serve(t, "ci-1", "--health-listen", "127.0.0.1:0")

	matches(t, s.Run(t, "ci-1", "sh", "-c", "echo out; id -u"), "^out\n")
	rig.Is(t, says(t, s.Exec(t, "ci-1", "sh", "-c", "exit 3")), "exit 3\n", "the command")

	sent := make([]byte, 16<<20)
	_, _ = rand.Read(sent) // it has no error
	cmd := s.Exec(t, "ci-1", "cat")
	cmd.Stdin = bytes.NewReader(sent)
	if out, err := cmd.Output(); err != nil || !bytes.Equal(out, sent) {
		t.Errorf("%d of %d bytes come back, or others: %v", len(out), len(sent), err)
	}

	// An agent prints no URL, and its environment shows no key.
	lacks(t, executor.Printed.String(), "ws://")
	environ, _ := os.ReadFile(fmt.Sprintf("/proc/%d/environ", executor.Process.Pid))
	lacks(t, string(environ), s.Executor)
	executor.Terminate(t)

	// The executor is gone.
	has(t, says(t, s.ExecWith(t, "ci-1", []string{"--wait", "0"}, "true")), "exit 125\n")
}

// TestRemoteSessionSurvives: a command goes on while its registry is killed and started again on its
// data, and none of its output is lost. The executor comes back by itself, and probes of the executor
// see both.
func TestRemoteSessionSurvives(t *testing.T) {
	t.Parallel()
	s := rig.NewSite(t)
	probes := rig.FreeAddress(t)
	executor := s.Serve(t, "ci-1", "--health-listen", probes)
	ready := func(what string, want int) {
		t.Helper()
		executor.Until(t, what, func() bool { return rig.Status("http://"+probes+"/readyz") == want })
		rig.Is(t, rig.Status("http://"+probes+"/healthz"), http.StatusOK, "%s: /healthz is answered with", what)
	}
	ready("it is ready", http.StatusOK)
	p := connect(t, s.Exec(t, "ci-1", "sh", "-c", "seq 1000; read go; seq 1001 2000"))
	for n := range 2000 {
		if n == 1000 {
			s.Registry.Kill(t)
			ready("it is not ready", http.StatusServiceUnavailable)
			rig.Must(t, rig.Err(io.WriteString(p.stdin, "go\n")))
			s.StartRegistry(t)
		}
		p.says(t, fmt.Sprint(n+1))
	}
	rig.Is(t, textOf(io.ReadAll(p.stdout)), "", "more output")
	rig.Is(t, p.Exit(t), 0, "exit code")
	ready("it is ready again", http.StatusOK)
	executor.Terminate(t)
}

// TestRemoteAgentRestarts: when an agent that was killed is started again, a client is told in a
// plain sentence that its command is gone. The next command runs on the new agent.
func TestRemoteAgentRestarts(t *testing.T) {
	t.Parallel()
	s := rig.NewSite(t)
	executor := s.Serve(t, "ci-1")
	var stderr rig.Transcript
	cmd := s.Exec(t, "ci-1", "sh", "-c", "echo up; exec sleep 1000")
	cmd.Stderr = &stderr
	p := rig.Start(t, cmd)
	rig.Is(t, p.Line(t), "up", "the command says")
	executor.Kill(t)
	s.Serve(t, "ci-1")
	rig.Is(t, p.Exit(t), 125, "exit code")
	rig.Is(t, withoutWaits(stderr.String()), "agent: the agent was restarted or has given up the session, so the commands of the session are gone\n", "it says")
	rig.Is(t, s.Run(t, "ci-1", "echo", "again"), "again\n", "the next command")
}

// TestRemoteStdin: an agent takes credentials from standard input, and ends or stays when the
// input ends, as its flags say.
func TestRemoteStdin(t *testing.T) {
	t.Parallel()
	s := rig.NewSite(t)
	frame := func(token string, life time.Duration) string {
		return fmt.Sprintf(`{"version":1,"environment_id":"ci-1","token":%q,"expires_at":%d}`+"\n", token, time.Now().Add(life).Unix())
	}
	for i, tt := range []struct {
		name    string
		flags   []string
		environ []string
		first   string // before it is connected
		then    string // what ends it, which nobody is told; empty: the end of the input
		code    int
		stays   bool // through the end of the input
	}{
		{name: "bearer", flags: []string{"--registration-bearer-stdin"}, first: s.Executor + "\nignored\n", stays: true},
		{name: "bearer, until the end", flags: []string{"--registration-bearer-stdin", "--exit-on-stdin-close"}, first: s.Executor + "\n"},
		{name: "frames, a bad one", flags: []string{"--executor-credential-stdin"}, first: frame(s.Executor, time.Hour),
			then: frame("not-a-secret-but-expired", -time.Hour), code: 1},
		{name: "key, until the end", flags: []string{"--exit-on-stdin-close"}, environ: []string{"CODEX_API_KEY=" + s.Executor}},
		{name: "key, until the end by variable", environ: []string{"CODEX_API_KEY=" + s.Executor, "CODEX_EXEC_SERVER_EXIT_ON_STDIN_CLOSE=true"}},
		{name: "older variable", environ: []string{"CODEX_EXEC_SERVER_REMOTE_BEARER_TOKEN=" + s.Executor}, stays: true},
		{name: "frames", flags: []string{"--executor-credential-stdin"}, first: frame(s.Executor, time.Hour) + frame(s.Executor, time.Hour)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if i > 0 {
				rig.Tier(t, rig.Merge)
			}
			input, feed, err := os.Pipe()
			rig.Must(t, err)
			defer feed.Close()
			defer input.Close()
			rig.Must(t, rig.Err(io.WriteString(feed, tt.first)))
			p := s.Start(t, rig.Agent(t), tt.environ, input, append([]string{"--remote", s.URL(), "--environment-id", "ci-1"}, tt.flags...)...)
			input.Close()
			p.Says(t, "connected to the rendezvous", 1)
			s.Run(t, "ci-1", "true")
			rig.Must(t, rig.Err(io.WriteString(feed, tt.then)))
			if tt.then == "" {
				feed.Close()
			}
			if tt.stays {
				s.Run(t, "ci-1", "true")
				p.Terminate(t)
			} else {
				rig.Is(t, p.Exit(t), tt.code, "exit code")
			}
			lacks(t, p.Printed.String(), "not-a-secret-but-expired")
		})
	}
}

// TestForward: agent exec-server forward makes a server that only listens reachable through the
// registry. When the server ends, the streams to it end.
func TestForward(t *testing.T) {
	rig.Tier(t, rig.Merge)
	t.Parallel()
	s := rig.NewSite(t)
	target := rig.FreeAddress(t)
	listening := s.Start(t, rig.Agent(t), nil, nil, "--listen", "ws://"+target)
	listening.Says(t, "ws://", 1)
	forwarder := s.Start(t, rig.Agent(t), []string{"CODEX_API_KEY=" + s.Executor}, nil,
		"exec-server", "forward", "--connect", "ws://"+target, "--remote", s.URL(), "--environment-id", "ci-1")
	forwarder.Says(t, "connected to the rendezvous", 1)

	rig.Is(t, s.Run(t, "ci-1", "echo", "forwarded"), "forwarded\n", "the output")
	cmd := s.Exec(t, "ci-1", "cat")
	sent := bytes.Repeat([]byte("0123456789abcdef"), 1<<18)
	cmd.Stdin = bytes.NewReader(sent)
	if out, err := cmd.Output(); err != nil || !bytes.Equal(out, sent) {
		t.Errorf("%d of %d bytes come back, or others: %v", len(out), len(sent), err)
	}

	// The server ends under a command.
	cmd = s.Exec(t, "ci-1", "sh", "-c", "echo up; sleep 60")
	stdout := &rig.Transcript{}
	cmd.Stdout = stdout
	rig.Must(t, cmd.Start())
	forwarder.Until(t, "the command runs", func() bool { return stdout.String() == "up\n" })
	listening.Terminate(t)
	// It would try to come back for 45 s.
	forwarder.Until(t, "the client misses the server", func() bool {
		return strings.Contains(s.Log.String(), "the connection is lost, waiting for it to come back")
	})
	rig.Must(t, cmd.Process.Signal(syscall.SIGTERM))
	_ = cmd.Wait() // the state says how
	rig.Is(t, cmd.ProcessState.ExitCode(), 128+15, "after the end of the server: exit code")
	// A new stream cannot reach the server either: the handshake succeeds, then the stream ends.
	has(t, says(t, s.ExecWith(t, "ci-1", []string{"--wait", "0"}, "true")), "exit 125\n")
	forwarder.Says(t, "the exec-server cannot be reached", 1)
	forwarder.Terminate(t)
}

// TestRemoteSecrets searches everything that is printed, shown in the process list or counted for
// what nobody may see: keys, bearers, authorizations and the signatures of URLs. Nothing of a command,
// its output or the protocol is readable in what a rendezvous passes on. What a server writes to a
// websocket is not masked.
func TestRemoteSecrets(t *testing.T) {
	t.Parallel()
	s := rig.NewSite(t, "--log-level", "debug")
	var passed rig.Transcript
	tap := rig.Listen(t, "tcp", "127.0.0.1:0", func(conn net.Conn) {
		registry, err := net.Dial("tcp", s.Address)
		if err != nil {
			return // the registry is being started again
		}
		defer registry.Close()
		go func() {
			_, _ = io.Copy(registry, conn)
			_ = registry.Close()
		}()
		_, _ = io.Copy(io.MultiWriter(conn, &passed), registry)
	})
	there := s.At(tap.String())
	executor := s.Start(t, rig.Agent(t), []string{"CODEX_API_KEY=" + s.Executor, "OPENAI_API_KEY=hidden-1", "CODEX_ACCESS_TOKEN=hidden-2", "STAYS=kept-0"}, nil,
		"--remote", there.URL(), "--environment-id", "ci-1", "--log-level", "debug", "--log-format", "json")
	executor.Says(t, "connected to the rendezvous", 1)
	rig.Is(t, there.Run(t, "ci-1", "sh", "-c", "echo a-word | tr a-z A-Z"), "A-WORD\n", "the output")
	seen := passed.String()
	lacks(t, seen, "process/start", "echo a-word", "A-WORD", base64.StdEncoding.EncodeToString([]byte("A-WORD\n")))
	// Both sides of the handshake have keys of ML-KEM-768, of more than 1 KB.
	if !strings.Contains(seen, "101 Switching Protocols") || len(seen) < 6000 {
		t.Errorf("only %d bytes were seen", len(seen))
	}
	keysLeave(t, executor.Process.Pid) // but the one that the agent needs
	cmd := s.Exec(t, "ci-1", "sleep", "60")
	cmd.Stdout = s.Log
	rig.Must(t, cmd.Start())
	executor.Says(t, "stream opened", 2)
	var shown bytes.Buffer
	for _, pid := range []int{s.Registry.Process.Pid, executor.Process.Pid, cmd.Process.Pid} {
		for _, file := range []string{"cmdline", "environ"} {
			text := rig.Value(os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, file)))
			shown.Write(text)
		}
	}
	// What is refused is told about too.
	refused := s.Start(t, rig.Agent(t), []string{"CODEX_API_KEY=" + s.Harness}, nil, "--remote", s.URL(), "--environment-id", "ci-1", "--log-level", "debug")
	refused.Exit(t)
	_ = s.ExecWith(t, "ci-2", []string{"--wait", "0"}, "true").Run() // offline
	s.Registry.Kill(t)
	s.StartRegistry(t)
	executor.Says(t, "connected to the rendezvous", 2)
	rig.Must(t, cmd.Process.Signal(syscall.SIGTERM))
	_ = cmd.Wait()
	response, err := http.Get(s.URL() + "/metrics")
	rig.Must(t, err)
	defer response.Body.Close()
	rig.Must(t, rig.Err(io.Copy(&shown, response.Body)))
	has(t, shown.String(), "registry_") // else the search is broken
	executor.Terminate(t)
	s.Registry.Terminate(t)

	shown.WriteString(s.Log.String())
	text := shown.String()
	for name, secret := range map[string]string{
		"executor's key": s.Executor, "harness's key": s.Harness, "executor's key in base64": base64.StdEncoding.EncodeToString([]byte(s.Executor)),
		"prefix of a key": s.Executor[:len(s.Executor)/2], "bearer": "Bearer ", "signature of a URL": "signature=", "expiry of a URL": "expiry=",
		"authorization": "harness_key_authorization", "role of a URL": "role=environment", "role of another URL": "role=harness",
	} {
		if at := strings.Index(text, secret); at >= 0 {
			t.Errorf("%s is shown: %.200q", name, text[max(0, at-100):])
		}
	}
}

// TestDemo runs what make demo runs.
func TestDemo(t *testing.T) {
	t.Parallel()
	temporary := t.TempDir()
	cmd := rig.Command(t, "sh", "../../deploy/demo.sh", rig.Agent(t), rig.Registry(t))
	cmd.Env = append(os.Environ(), "TMPDIR="+temporary)
	out := says(t, cmd)
	has(t, out, "registered its public key: registration reg_", "websocket to the rendezvous is up", "hello from", "exit code 0",
		"all of it has ended")
	lacks(t, out, "xa_", "\nexit ") // a key, or another exit code
	isEmpty(t, temporary)
}

// TestManPages: a page for every command, without a complaint of groff.
func TestManPages(t *testing.T) {
	rig.Tier(t, rig.Merge)
	t.Parallel()
	need(t, missing, "help2man", "groff")
	dir := t.TempDir()
	rig.Is(t, says(t, rig.Command(t, "sh", "../../tools/man.sh", dir, rig.Agent(t), rig.Registry(t))), "", "man.sh")
	pages, err := filepath.Glob(filepath.Join(dir, "*.1"))
	if err != nil || len(pages) < 50 {
		t.Fatalf("pages are %v, %v", pages, err)
	}
	rig.Is(t, rig.Err(os.Stat(filepath.Join(dir, "agent-complete.1"))), fs.ErrNotExist, "a page of a hidden command")
	rig.Is(t, says(t, rig.Command(t, "groff", append([]string{"-ww", "-z", "-man", "-Tutf8"}, pages...)...)), "", "groff")
	for page, wants := range map[string][]string{
		"agent-context-add": {"agent-context-add - Name an agent or a registry", "SYNOPSIS", "agent context add <name> [flags]", "--token-file=FILE", "($AGENT_CONFIG)",
			"agent context add box --url 127.0.0.1:7000 --token-file ~/box.token\n"},
		"registry":      {"registry - Runs the registry and rendezvous of remote mode", "keys create"},
		"registry-keys": {"registry-keys - API keys of executors and harnesses"},
	} {
		has(t, says(t, rig.Command(t, "groff", "-man", "-Tascii", "-P-cbou", "-rLL=200n", filepath.Join(dir, page+".1"))), wants...)
	}
}
