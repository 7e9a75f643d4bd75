package e2e

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// running is an agent with pipes for its standard input and output. Its output is a pipe of its
// own, since tests want to see how that ends while the program lives.
type running struct {
	*rig.Program
	stdin  patient
	stdout *bufio.Reader
}

// patient is a pipe or a terminal that a test uses: no read and no write takes longer than
// patience.
type patient struct{ file *os.File }

func (p patient) Read(to []byte) (int, error) {
	if err := p.file.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return 0, err
	}
	return p.file.Read(to)
}

func (p patient) Write(from []byte) (int, error) {
	if err := p.file.SetWriteDeadline(time.Now().Add(patience)); err != nil {
		return 0, err
	}
	return p.file.Write(from)
}

func (p patient) Close() error { return p.file.Close() }

// heedDeadlines is for a file whose descriptor a package has used as a number: then it has none.
func (p patient) heedDeadlines(t *testing.T) {
	t.Helper()
	rig.Must(t, syscall.SetNonblock(int(p.file.Fd()), true))
}

// startAgent starts the agent, which is killed at the end of the test if it still runs. The mark
// is in the environment of the agent and of everything that inherits it.
func startAgent(t *testing.T, mark string, args ...string) *running {
	t.Helper()
	return startProgram(t, mark, append([]string{rig.Agent(t)}, args...)...)
}

// startProgram is startAgent for an agent that another program starts.
func startProgram(t *testing.T, mark string, argv ...string) *running {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "E2E_MARK="+mark)
	return connect(t, cmd)
}

// connect starts a program and takes its standard input and output.
func connect(t *testing.T, cmd *exec.Cmd) *running {
	t.Helper()
	pipe := func() (r, w *os.File) {
		r, w, err := os.Pipe()
		rig.Must(t, err)
		t.Cleanup(func() { _ = errors.Join(r.Close(), w.Close()) }) // most are closed already
		return r, w
	}
	in, stdin := pipe()
	stdout, out := pipe()
	defer in.Close()
	defer out.Close()
	cmd.Stdin, cmd.Stdout = in, out
	return &running{rig.Start(t, cmd), patient{stdin}, bufio.NewReader(patient{stdout})}
}

// line reads a line of the agent's standard output.
func (a *running) line(t *testing.T) string {
	t.Helper()
	line, err := a.stdout.ReadString('\n')
	if err != nil {
		t.Fatalf("waiting for a line: %v\n%s", err, a.Printed)
	}
	return strings.TrimSuffix(line, "\n")
}

// says reads a line, which has to be this one.
func (a *running) says(t *testing.T, want string) {
	t.Helper()
	if line := a.line(t); line != want {
		t.Fatalf("it says %q, want %q", line, want)
	}
}

// ask sends a line and returns the next one that comes.
func (a *running) ask(t *testing.T, request string) string {
	t.Helper()
	rig.Must(t, rig.Err(io.WriteString(a.stdin, request+"\n")))
	return a.line(t)
}

// ended waits for the agent's end and returns it in words: "exit status 0".
func (a *running) ended(t *testing.T) string {
	t.Helper()
	a.Exit(t)
	return a.ProcessState.String()
}

// marked returns the processes with this mark. A zombie has no environment and is not among them.
func marked(mark string) []string {
	var found []string
	environs, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil {
		panic(err) // the pattern is malformed
	}
	for _, path := range environs {
		// A process that ends meanwhile cannot be read, nor can one of another user: neither is
		// ours.
		if env, err := os.ReadFile(path); err == nil && bytes.Contains(env, []byte("E2E_MARK="+mark+"\x00")) {
			found = append(found, filepath.Dir(path))
		}
	}
	return found
}

// noneLeft waits until no process has this mark.
func noneLeft(t *testing.T, mark string) {
	t.Helper()
	rig.Until(t, "what has the mark "+mark+" has ended", func() bool { return len(marked(mark)) == 0 })
}

// occupy has an agent on stdio run three commands: one with a child, one that ignores every
// signal that can be ignored, and one that leaves an orphan.
func (a *running) occupy(t *testing.T) {
	t.Helper()
	a.initialize(t)
	for i, script := range []string{
		"sleep 300 & echo ready; wait",
		"trap '' HUP INT TERM QUIT; echo ready; sleep 300 & while :; do wait; done",
		"sleep 300 & echo ready", // an orphan
	} {
		answer := a.ask(t, fmt.Sprintf(`{"id":%d,"method":"process/start","params":{"processId":"%d","argv":["sh","-c",%q],`+
			`"cwd":"file:///","env":{},"tty":false,"envPolicy":{"inherit":"all","ignoreDefaultExcludes":false,"exclude":[],"set":{},"includeOnly":[]}}}`,
			i+2, i, script))
		if !strings.Contains(answer, "sandboxType") {
			t.Fatal(answer)
		}
		for !strings.Contains(a.line(t), "cmVhZHkK") { // ready, in base64
		}
	}
}

// TestSignals: each signal ends the agent in its own way, and always also everything that the
// agent has started. So does the end of its input.
func TestSignals(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		signal syscall.Signal
		want   string
	}{
		{0, "exit status 0"}, // the end of the input
		{syscall.SIGTERM, "exit status 0"},
		{syscall.SIGINT, "exit status 0"},
		{syscall.SIGHUP, "signal: hangup"},
		{syscall.SIGKILL, "signal: killed"},
		{syscall.SIGQUIT, "exit status 2"}, // the runtime's stack trace
		{syscall.SIGSEGV, "exit status 2"},
	} {
		t.Run(tt.signal.String(), func(t *testing.T) {
			if !slices.Contains([]syscall.Signal{0, syscall.SIGTERM, syscall.SIGKILL}, tt.signal) {
				rig.Tier(t, rig.Merge)
			}
			t.Parallel()
			mark := fmt.Sprintf("signal-%d-%d", tt.signal, os.Getpid())
			a := startAgent(t, mark, "--listen", "stdio")
			a.occupy(t)
			// A process between fork and exec has no environment to find it by.
			rig.Until(t, "six processes are marked", func() bool { return len(marked(mark)) >= 6 })
			if tt.signal == 0 {
				rig.Must(t, a.stdin.Close())
			} else {
				rig.Must(t, a.Process.Signal(tt.signal))
			}
			// The agent ends although its standard input is still open (rpc.md 1.5).
			rig.Is(t, a.ended(t), tt.want, "the agent ends with")
			noneLeft(t, mark)
		})
	}
}

// TestListenEndsOnSignals: a signal ends a listening agent at once, also with clients attached.
func TestListenEndsOnSignals(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGINT} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			mark := fmt.Sprintf("listen-%d-%d", sig, os.Getpid())
			a := startAgent(t, mark, "--listen", "ws://127.0.0.1:0")
			client := startAgent(t, mark, "exec", "--url", a.line(t), "-e", "E2E_MARK", "--", "sh", "-c", "echo ready; sleep 300")
			client.says(t, "ready")
			rig.Must(t, a.Process.Signal(sig))
			rig.Is(t, a.ended(t), "exit status 0", "the agent ends with")
			// It would try to come back for 45 s.
			rig.Must(t, client.Process.Signal(sig))
			rig.Is(t, client.ended(t), fmt.Sprintf("exit status %d", 128+sig), "the client ends with")
			noneLeft(t, mark)
		})
	}
}

// TestStdioBreach: a breach of the protocol ends the connection but not the program, whose input
// is still open (rpc.md 1.4, 2.5).
func TestStdioBreach(t *testing.T) {
	t.Parallel()
	a := startAgent(t, "none", "--listen", "stdio")
	has(t, a.ask(t, `{"id":1,"result":{}}`), `"code":-32600`, `"id":-1`)
	if rest, err := a.stdout.ReadString('\n'); err != io.EOF || rest != "" {
		t.Errorf("then there is %q, %v", rest, err)
	}
	// More than a pipe holds, which blocks unless the program still reads.
	rig.Check(t, rig.Err(a.stdin.Write(bytes.Repeat([]byte("x\n"), 1<<20))))
	rig.Check(t, a.Process.Signal(syscall.Signal(0)))
	rig.Must(t, a.stdin.Close())
	rig.Is(t, a.ended(t), "exit status 0", "the agent ends with")
}

// TestPassesSignals: agent exec and agent sandbox pass signals on to their command, and end as it
// does.
func TestPassesSignals(t *testing.T) {
	t.Parallel()
	for name, signal := range map[string]syscall.Signal{
		"TERM": syscall.SIGTERM, "INT": syscall.SIGINT, "HUP": syscall.SIGHUP, "QUIT": syscall.SIGQUIT, "USR1": syscall.SIGUSR1,
	} {
		for _, command := range []string{"exec", "sandbox"} {
			if command == "exec" && signal == syscall.SIGUSR1 {
				continue // it is no signal of an interrupted user
			}
			t.Run(command+" "+name, func(t *testing.T) {
				if name != "TERM" {
					rig.Tier(t, rig.Merge)
				}
				t.Parallel()
				for script, want := range map[string]string{
					"trap 'echo caught; exit 5' " + name + "; echo ready; while :; do sleep 0.05; done": "exit status 5",
					"echo ready; exec sleep 300": fmt.Sprintf("exit status %d", 128+int(signal)),
				} {
					a := withoutTerminal(t, "none", script, command)
					a.says(t, "ready")
					rig.Must(t, a.Process.Signal(signal))
					if strings.Contains(script, "caught") {
						a.says(t, "caught")
					}
					rig.Is(t, a.ended(t), want, "%s: it ends with", script)
				}
			})
		}
	}
}

// withoutTerminal runs a script by the agent as a service would.
func withoutTerminal(t *testing.T, mark, script string, flags ...string) *running {
	t.Helper()
	argv := append(append([]string{"setsid", rig.Agent(t)}, flags...), "--", "sh", "-c", script)
	return startProgram(t, mark, argv...)
}

func TestExecKilled(t *testing.T) {
	t.Parallel()
	mark := fmt.Sprintf("exec-%d", os.Getpid())
	a := startAgent(t, mark, "exec", "--", "sh", "-c", "trap '' HUP INT TERM; sleep 300 & echo ready; sleep 300; :")
	a.says(t, "ready")
	rig.Must(t, a.Process.Kill())
	rig.Is(t, a.ended(t), "signal: killed", "exec ends with")
	noneLeft(t, mark)
}

// TestNoLeaks: commands of many clients leave no descriptor behind.
func TestNoLeaks(t *testing.T) {
	t.Parallel()
	a := startAgent(t, "none", "--listen", "ws://127.0.0.1:0", "--session-ttl", "100ms", "--log-level", "debug")
	url := a.line(t)
	run := func() {
		t.Helper()
		rig.Is(t, says(t, rig.Command(t, rig.Agent(t), "exec", "--url", url, "--", "echo", "x")), "x\n", "exec")
	}
	run() // the first one also starts the guard
	a.Says(t, "session ended", 1)
	most := countFiles(t, a.Process.Pid)
	clients := 10
	if rig.Runs(rig.Merge) {
		clients = 50
	}
	for range clients {
		run()
	}
	a.Says(t, "session ended", 1+clients)
	rig.Until(t, "no more descriptors are open than before", func() bool { return countFiles(t, a.Process.Pid) <= most })
	a.Terminate(t)
}
