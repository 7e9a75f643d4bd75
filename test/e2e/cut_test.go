package e2e

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// numbers prints the numbers up to 300, slowly, and then what it is given, and ends with 7.
const numbers = `for i in $(seq 300); do echo $i; sleep 0.002; done; cat; exit 7`

// TestExecThroughCuts: connections that are lost one after the other are no business of a command,
// nor of those who read its output and write its input.
func TestExecThroughCuts(t *testing.T) {
	t.Parallel()
	t.Run("url", func(t *testing.T) {
		t.Parallel()
		proxy, url := behindProxy(t)
		runThroughCuts(t, proxy, exec.Command(rig.Agent(t), "exec", "--url", url, "--", "sh", "-c", "echo ready; "+numbers))
	})
	t.Run("registry", func(t *testing.T) {
		rig.Tier(t, rig.Merge)
		t.Parallel()
		s := rig.NewSite(t)
		s.Serve(t, "ci-0")
		proxy := rig.NewProxy(t, s.Address)
		runThroughCuts(t, proxy, s.At(proxy.Address()).Exec(t, "ci-0", "sh", "-c", "echo ready; "+numbers))
	})
}

// behindProxy starts an agent behind a proxy.
func behindProxy(t *testing.T) (*rig.Proxy, string) {
	t.Helper()
	w := directly(t)
	return w.proxy, "ws://" + w.proxy.Address()
}

// runThroughCuts runs numbers while the connection is cut each time when it has carried more than
// the server retains of the output, which it sends in one message. Of the output less than that is under
// way at any time, because a cut loses what is under way and no longer retained (client.md 2.5).
func runThroughCuts(t *testing.T, proxy *rig.Proxy, cmd *exec.Cmd) {
	t.Helper()
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	p := connect(t, cmd)
	p.says(t, "ready")
	before, _ := proxy.Seen()
	stop := proxy.CutEach(2_000_000)
	for i := range 300 {
		p.says(t, strconv.Itoa(i+1))
	}
	piece := strings.Repeat("some input\n", 20_000)
	for i := range 25 {
		go func() { _, _ = io.WriteString(p.stdin, piece) }() // the output shows whether it arrived
		got := make([]byte, len(piece))
		if n, err := io.ReadFull(p.stdout, got); string(got) != piece {
			t.Fatalf("of piece %d the command has got %d bytes of input of %d, %v", i, n, len(piece), err)
		}
	}
	_ = p.stdin.Close()
	rig.Is(t, textOf(io.ReadAll(p.stdout)), "", "more output")
	stop()
	rig.Is(t, p.Exit(t), 7, "exit code")
	rig.Is(t, withoutWaits(stderr.String()), "", "agent writes into the command's standard error")
	after, _ := proxy.Seen()
	rig.Is(t, after-before < 3, false, "the connection was cut %d times", after-before)
	t.Logf("%d cuts", after-before)
}

const lostLine = "agent: the connection is lost, waiting for it to come back; Ctrl-C gives up"

// TestExecTellsOfLoss: while the connection stays lost a line says so, once, and then all goes on.
func TestExecTellsOfLoss(t *testing.T) {
	t.Parallel()
	proxy, url := behindProxy(t)
	var stderr rig.Transcript
	cmd := exec.Command(rig.Agent(t), "exec", "--url", url, "--", "sh", "-c", "echo ready; cat; exit 7")
	cmd.Stderr = &stderr
	p := connect(t, cmd)
	p.line(t)
	proxy.HoldUp()
	proxy.Cut()
	rig.Until(t, "the loss is told", func() bool { return strings.Contains(stderr.String(), lostLine) })
	rig.Must(t, rig.Err(io.WriteString(p.stdin, "typed meanwhile\n")))
	_ = p.stdin.Close()
	proxy.Pass()
	rig.Is(t, textOf(io.ReadAll(p.stdout)), "typed meanwhile\n", "the command")
	code, said := p.Exit(t), stderr.String()
	rig.Is(t, strings.Count(said, lostLine), 1, "%s: the loss is told", said)
	rig.Is(t, ending(withoutWaits(said), code), "exit 7\n", "agent exec")
}

// TestExecGivesUp: who does not want to wait for the connection ends exec as any program. A signal does
// so too, see TestForward and TestListenEndsOnSignals.
func TestExecGivesUp(t *testing.T) {
	t.Parallel()
	proxy, url := behindProxy(t)
	u := atTerminal(t, wide, "exec", "-t", "--url", url, "--", "sh", "-c", "stty -echo; echo ready; cat")
	u.sees(t, "ready")
	proxy.HoldUp()
	proxy.Cut()
	u.enters(t, "nobody can be told of this\r", lostLine+"\r\n")
	u.types(t, "\x03")
	u.ends(t, 128+int(syscall.SIGINT))
}

// TestExecTellsOfSilence: a user who types learns that the agent does not answer, long before the
// connection counts as lost, and can leave it in both ways.
func TestExecTellsOfSilence(t *testing.T) {
	t.Parallel()
	for keys, code := range map[string]int{"\x03": 128 + int(syscall.SIGINT), "~.": 125} {
		t.Run(fmt.Sprint(code), func(t *testing.T) {
			t.Parallel()
			proxy, url := behindProxy(t)
			u := atTerminal(t, wide, "exec", "-t", "--url", url, "--", "sh", "-c", "stty -echo; echo ready; cat")
			u.sees(t, "ready")
			proxy.HoldDown()
			const silent = "agent: the agent does not answer, waiting for it; Ctrl-C gives up\r\n"
			u.enters(t, "one\r", silent)
			if rig.Runs(rig.Merge) { // it takes three seconds
				proxy.Pass()
				u.sees(t, "one")
				proxy.HoldDown()
				u.enters(t, "two\r", silent)
			}
			u.types(t, keys)
			u.ends(t, code)
		})
	}
}

// TestExecAgentGone: an agent that was started again does not know the session.
func TestExecAgentGone(t *testing.T) {
	t.Parallel()
	address := rig.FreeAddress(t)
	listen := func() *running {
		a := startAgent(t, "none", "--listen", "ws://"+address)
		a.line(t)
		return a
	}
	first := listen()
	p := connect(t, exec.Command(rig.Agent(t), "exec", "--url", "ws://"+address, "--", "sh", "-c", "echo ready; sleep 300"))
	p.line(t)
	first.Kill(t)
	rig.Silent(t, "tcp", address)
	listen()
	rig.Is(t, p.Exit(t), 125, "exit code")
	has(t, p.Printed.String(), "agent: the agent was restarted or has given up the session, so the commands of the session are gone\n")
}

// TestExecCutStart: where the connection is lost while a command starts, the command runs once and
// all is well. Where it is lost before there is a session, exec says so and nothing runs.
func TestExecCutStart(t *testing.T) {
	t.Parallel()
	proxy, url := behindProxy(t)
	unconnected, step := 0, int64(900)
	if rig.Runs(rig.Merge) {
		step = 150
	}
	for n := int64(300); n < 3000; n += step {
		ran := t.TempDir() + "/ran"
		proxy.CutAfter(n, nil)
		cmd := rig.Command(t, rig.Agent(t), "exec", "-n", "-e", "RAN="+ran, "--url", url, "--",
			"sh", "-c", `echo once >>"$RAN"; seq 100; exit 7`)
		r := finish(t, cmd)
		text, _ := os.ReadFile(ran) // it may be missing
		switch {
		case r.code == 7 && string(text) == "once\n" && strings.Count(r.stdout, "\n") == 100 && r.stderr == "":
		case r.code == 125 && len(text) == 0 && strings.HasPrefix(r.stderr, "agent: "):
			unconnected++
		default:
			t.Errorf("cut after %d bytes: it ran %q, %+v", n, text, r)
		}
	}
	t.Log(fmt.Sprint(unconnected, " times it was lost before"))
}

// TestRemoteEarlyCuts: when a websocket is lost while agent exec connects, or before the first
// acknowledgement, that is a delay and nothing else. It does not matter whose websocket it was:
// the command runs once, and all of its input and output comes through.
func TestRemoteEarlyCuts(t *testing.T) {
	t.Parallel()
	s := rig.NewSite(t)
	s.Serve(t, "ci-0")
	// The handshake ends at about 8 KB, and the command is started within three more.
	const most = 14_000
	// Four at once, however many subtests there are: agent exec gives up after ten seconds, which
	// many at once would exceed.
	turns := make(chan struct{}, 4)
	turn := func() (end func()) {
		turns <- struct{}{}
		return func() { <-turns }
	}
	harness, executor := int64(5000), int64(14000) // the steps
	if rig.Runs(rig.Merge) {
		harness, executor = 400, 800
	}
	for n := int64(100); n < most; n += harness {
		t.Run(fmt.Sprintf("harness after %d", n), func(t *testing.T) {
			t.Parallel()
			defer turn()()
			execThroughCut(t, s, "ci-0", n, nil)
		})
	}
	for n := int64(300); n < most; n += executor {
		t.Run(fmt.Sprintf("executor after %d", n), func(t *testing.T) {
			t.Parallel()
			defer turn()()
			executors := rig.NewProxy(t, s.Address)
			environment := fmt.Sprintf("ci-%d", n)
			s.At(executors.Address()).Serve(t, environment)
			execThroughCut(t, s, environment, n, executors.Cut)
		})
	}
}

// execThroughCut runs a command whose websocket, the harness's, is cut when it has carried n
// bytes; or something else is done then.
func execThroughCut(t *testing.T, s *rig.Site, environment string, n int64, instead func()) {
	t.Helper()
	harnesses := rig.NewProxy(t, s.Address)
	harnesses.CutAfter(n, instead)
	ran := filepath.Join(t.TempDir(), "ran")
	cmd := s.At(harnesses.Address()).ExecWith(t, environment, []string{"-e", "RAN=" + ran},
		"sh", "-c", `echo once >>"$RAN"; seq 2000; cat; exit 7`)
	cmd.Stdin = strings.NewReader("input\n")
	var want strings.Builder
	for i := range 2000 {
		fmt.Fprintln(&want, i+1)
	}
	want.WriteString("input\n")
	rig.Is(t, finish(t, cmd), result{want.String(), "", 7}, "the command")
	rig.Is(t, textOf(os.ReadFile(ran)), "once\n", "the command ran")
	rig.Is(t, harnesses.Struck(), true, "the websocket was cut after %d bytes", n)
}

// TestExecLogs: agent exec writes about its connection only when a log level asks for it.
func TestExecLogs(t *testing.T) {
	t.Parallel()
	s := rig.NewSite(t)
	s.Serve(t, "ci-1")
	for level, want := range map[string]string{"": "", "warn": "level=WARN msg=\"connecting is repeated\""} {
		t.Run("level "+level, func(t *testing.T) {
			t.Parallel()
			harnesses := rig.NewProxy(t, s.Address)
			harnesses.CutAfter(5000, nil) // in the handshake
			cmd := s.At(harnesses.Address()).ExecWith(t, "ci-1", []string{"--log-level", level}, "sh", "-c", "echo of the command >&2")
			cmd.Env = append(cmd.Env, "AGENT_LOG_LEVEL=debug")
			r := finish(t, cmd)
			log, found := strings.CutSuffix(r.stderr, "of the command\n")
			if r.code != 0 || !found || (log == "") != (want == "") || !strings.Contains(log, want) {
				t.Errorf("%+v, want %q before what is of the command", r, want)
			}
			lacks(t, log, s.Harness, "signature")
		})
	}
}
