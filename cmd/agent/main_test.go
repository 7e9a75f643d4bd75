package main

import (
	"bufio"
	"bytes"
	"iter"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/execagent/execagent/helper"
	"github.com/execagent/execagent/test/rig"
)

// asAgent is the first argument that makes the test binary run as the agent.
const asAgent = "as-agent"

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == asAgent {
		os.Args = append(os.Args[:1], os.Args[2:]...)
		main()
		return
	}
	if code, ok := helper.Dispatch(os.Args); ok {
		os.Exit(code)
	}
	// Whoever runs the tests may have a current context, and a locale that shells complain of.
	for name, value := range map[string]string{"AGENT_CONFIG": "/nonexistent/config.toml", "LC_ALL": "C"} {
		if err := os.Setenv(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// agentCommand runs this test binary as the agent.
func agentCommand(t testing.TB, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), rig.Value(os.Executable()), append([]string{asAgent}, args...)...)
	cmd.Stderr = t.Output()
	return cmd
}

// lines are those of a file of testdata: what is typed and, behind " -> ", what comes of it. Lines with
// "# " are comments.
func lines(t *testing.T, file string) iter.Seq2[string, string] {
	t.Helper()
	text := string(rig.Value(os.ReadFile(filepath.Join("testdata", file))))
	return func(yield func(typed, want string) bool) {
		for line := range strings.Lines(text) {
			typed, want, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ->")
			if strings.HasPrefix(line, "# ") {
				continue
			}
			rig.Is(t, ok, true, "%q has an arrow", line)
			if !yield(typed, strings.TrimPrefix(want, " ")) {
				return
			}
		}
	}
}

// TestEnvironHidesKeys: the agent takes its own keys out of its /proc/PID/environ
// and leaves the rest there. A command of a client gets neither: it has the core
// variables alone.
func TestEnvironHidesKeys(t *testing.T) {
	t.Parallel()
	cmd := agentCommand(t)
	cmd.Env = append(os.Environ(), "BEFORE=stays", "OPENAI_API_KEY=hidden-1", "aws_Secret_Access_Key=hidden-2",
		"MY_API_KEY=stays too", "CODEX_API_KEY=", "AFTER=stays")
	stdout := rig.Value(cmd.StdoutPipe())
	rig.Must(t, cmd.Start())
	url := rig.Value(bufio.NewReader(stdout).ReadString('\n'))
	environ := rig.Value(os.ReadFile("/proc/" + strconv.Itoa(cmd.Process.Pid) + "/environ"))
	for _, want := range []string{"BEFORE=stays", "MY_API_KEY=stays too", "AFTER=stays"} {
		rig.Is(t, bytes.Contains(environ, []byte("\x00"+want+"\x00")), true, "%s is in environ", want)
	}
	for _, hidden := range []string{"hidden-1", "hidden-2", "OPENAI", "aws_Secret", "CODEX_API_KEY"} {
		rig.Is(t, bytes.Contains(environ, []byte(hidden)), false, "%s is in environ", hidden)
	}

	out, err := agentCommand(t, "exec", "--url", strings.TrimSpace(url), "--", "env").Output()
	rig.Must(t, err)
	if bytes.Contains(out, []byte("hidden")) || bytes.Contains(out, []byte("stays")) {
		t.Errorf("the environment of a command of a client is\n%s", out)
	}
	rig.Must(t, cmd.Process.Signal(syscall.SIGTERM))
	rig.Check(t, cmd.Wait())
}
