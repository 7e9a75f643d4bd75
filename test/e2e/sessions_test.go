package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/creack/pty"

	"github.com/execagent/execagent/test/rig"
)

// way is how an agent is reached, through a proxy that cuts.
type way struct {
	proxy   *rig.Proxy
	environ []string // names the agent
	there   string   // its working directory
}

// directly is how an agent is reached by its URL.
func directly(t *testing.T, flags ...string) *way {
	t.Helper()
	there := t.TempDir()
	cmd := exec.Command(rig.Agent(t), append([]string{"--listen", "ws://127.0.0.1:0"}, flags...)...)
	cmd.Dir = there
	proxy := rig.NewProxy(t, strings.TrimPrefix(rig.Start(t, cmd).Line(t), "ws://"))
	return &way{proxy, []string{"AGENT_URL=" + proxy.Address()}, there}
}

// eachWay runs a test over a WebSocket and, for a merge, through the relay.
func eachWay(t *testing.T, test func(t *testing.T, w *way)) {
	t.Helper()
	t.Run("url", func(t *testing.T) {
		t.Parallel()
		test(t, directly(t))
	})
	t.Run("registry", func(t *testing.T) {
		rig.Tier(t, rig.Merge)
		t.Parallel()
		s, there := rig.NewSite(t), t.TempDir()
		s.Start(t, "/bin/sh", []string{"CODEX_API_KEY=" + s.Executor}, nil, "-c", `cd "$1" && shift && exec "$@"`, "sh", there,
			rig.Agent(t), "--remote", s.URL(), "--environment-id", "ci-0").Says(t, "connected to the rendezvous", 1)
		proxy := rig.NewProxy(t, s.Address)
		environ := []string{"AGENT_REGISTRY=" + s.At(proxy.Address()).URL(), "AGENT_ENVIRONMENT_ID=ci-0", "AGENT_REGISTRY_TOKEN=" + s.Harness}
		test(t, &way{proxy, environ, there})
	})
}

// command is a command of agent, not yet started.
func (w *way) command(t *testing.T, command string, args ...string) *exec.Cmd {
	t.Helper()
	cmd := rig.Command(t, rig.Agent(t), append([]string{command}, args...)...)
	cmd.Env = append(os.Environ(), w.environ...)
	return cmd
}

// must runs a command that has to succeed. Over a cut on a slow machine it may say that it waits.
func (w *way) must(t *testing.T, command string, args ...string) string {
	t.Helper()
	r := finish(t, w.command(t, command, args...))
	if r.code != 0 {
		t.Fatalf("agent %s %q: %+v", command, args, r)
	}
	return r.stdout
}

// gate makes a file that a command waits at by reading a line of it, until it is opened.
func gate(t *testing.T) (path string, open func()) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "gate")
	rig.Must(t, syscall.Mkfifo(path, 0o600))
	// Who can read, too, waits for nobody to come to the other end; and what was written stays
	// there for who comes later.
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	rig.Must(t, err)
	t.Cleanup(func() { _ = file.Close() })
	return path, func() {
		rig.Check(t, rig.Err(file.WriteString("go\n")))
	}
}

// TestSessionsThroughCuts: a command that was started and left is followed, waited for, listed and
// ended over connections that are cut.
func TestSessionsThroughCuts(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *way) {
		step := int64(1500)
		if rig.Runs(rig.Merge) {
			step = 500
		}
		path, open := gate(t)
		script := fmt.Sprintf("for i in 0 1 2; do echo line $i; echo err $i >&2; read x <%s; done; exit 3", path)
		rig.Is(t, w.must(t, "exec", "-d", "--name", "job", "--", "sh", "-c", script), "job\n", "the name")
		head := rig.Command(t, "sh", "-c", "agent logs -f job 2>/dev/null | head -1") // ends with its reader, while the job waits
		head.Env = w.files(t)
		rig.Is(t, says(t, head), "line 0\n", "head")
		var complaints rig.Transcript
		logs := w.command(t, "logs", "-f", "job")
		logs.Stderr = &complaints
		followed, waited := connect(t, logs), connect(t, w.command(t, "wait", "job"))
		for i := range 3 {
			followed.says(t, fmt.Sprint("line ", i))
			if i == 1 {
				// Both wait for the agent, and now for the connection.
				rig.Until(t, "both are connected", func() bool { n, _ := w.proxy.Seen(); return n >= 3 })
				w.proxy.Cut()
			}
			open()
		}
		rig.Is(t, waited.Exit(t), 3, "wait ends with")
		rig.Is(t, followed.Exit(t), 0, "logs -f ends with")
		rig.Is(t, withoutWaits(complaints.String()), "err 0\nerr 1\nerr 2\n", "logs -f has written on standard error")
		for _, command := range [][]string{{"ps"}, {"logs", "job"}, {"ps", "-o", "json"}, {"ps", "-q"}} {
			want := w.must(t, command[0], command[1:]...)
			for n := int64(400); n < 2400; n += step {
				w.proxy.CutAfter(n, nil)
				r := finish(t, w.command(t, command[0], command[1:]...))
				if r.code != 0 || command[0] == "logs" && r.stdout != want || !strings.Contains(r.stdout, "job") && command[0] == "ps" {
					t.Errorf("%q with a cut after %d bytes: %+v", command, n, r)
				}
			}
		}
		w.must(t, "exec", "-d", "--name", "long", "--", "sleep", "600")
		w.proxy.CutAfter(2000, nil)
		w.must(t, "kill", "-s", "INT", "long")
		rig.Is(t, finish(t, w.command(t, "wait", "long")).code, 128+2, "wait ends with")
		// A relay keeps the stream of a client that vanished for a while.
		rig.Until(t, "nobody is attached", func() bool { return !strings.Contains(w.must(t, "ps", "-o", "json"), `"attached": true`) })
		w.proxy.CutAfter(2000, nil)
		rig.Is(t, w.must(t, "end", "job", "long"), "job\nlong\n", "ended")
		rig.Is(t, w.must(t, "ps", "-q"), "", "there is still")
	})
}

// TestDetachThroughCuts: wherever the connection is cut while a command is started and left, it
// runs once and its name is printed.
func TestDetachThroughCuts(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *way) {
		step := int64(1800)
		if rig.Runs(rig.Merge) {
			step = 300
		}
		for n := int64(200); n < 5000; n += step {
			ran := filepath.Join(t.TempDir(), "ran")
			name := fmt.Sprint("job-", n)
			w.proxy.CutAfter(n, nil)
			got := w.must(t, "exec", "-d", "--name", name, "-e", "RAN="+ran, "--", "sh", "-c", `echo once >>"$RAN"; exit 7`)
			rig.Is(t, got, name+"\n", "cut after %d bytes: the name", n)
			rig.Is(t, finish(t, w.command(t, "wait", name)).code, 7, "cut after %d bytes: it ends with", n)
			rig.Is(t, textOf(os.ReadFile(ran)), "once\n", "cut after %d bytes: it ran", n)
		}
	})
}

// user is a user at a terminal of a size who has started a command of agent.
func (w *way) user(t *testing.T, size pty.Winsize, command string, args ...string) *user {
	t.Helper()
	cmd := w.command(t, command, args...)
	// It may take the agent long to hear that the client before is gone.
	return at(t, exec.Command(cmd.Args[0], cmd.Args[1:]...), &size, append(w.environ, "AGENT_WAIT=5m")...)
}

// TestAttach: a user starts a shell, leaves it, comes back at another terminal over a cut, loses it
// to somebody else, and takes it back.
func TestAttach(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *way) {
		large, small := pty.Winsize{Rows: 40, Cols: 120}, pty.Winsize{Rows: 10, Cols: 90}
		const runsOn = "agent: shell runs on: agent attach shell returns to it, agent kill shell ends it\r\n"
		u := w.user(t, large, "exec", "-t", "--name", "shell", "--", "sh")
		u.enters(t, "stty -echo; PS1=; stty size\r", "40 120\r\n")
		u.types(t, "\x10x\x08\r") // a key too few
		u.enters(t, "\x10\x11", runsOn)
		u.ends(t, 0)

		u = w.user(t, small, "attach", "shell")
		u.enters(t, "echo back $((1+1)); stty size\r", "back 2\r\n10 90\r\n")
		w.proxy.Cut()
		u.enters(t, "echo over $((1+2))\r", "over 3\r\n")

		r := finish(t, w.command(t, "attach", "shell"))
		has(t, ending(r.stderr, r.code), "agent: session shell is in use by another client: --take takes it over\nexit 125\n")
		other := w.user(t, large, "attach", "--take", "--detach-keys", "ctrl-a,d", "shell")
		u.sees(t, "agent: another client has taken over session shell\r\n")
		u.ends(t, 125)
		other.enters(t, "stty size\r", "40 120\r\n")
		other.enters(t, "\x01d", runsOn)
		other.ends(t, 0)

		u = w.user(t, small, "attach", "--logs", "shell")
		u.sees(t, "back 2\r\n", "over 3\r\n")
		u.enters(t, "~?", "~. leaves and keeps the command running, ~~ sends a ~ to the command, ~? prints this help\r\n")
		u.enters(t, "~.", runsOn)
		u.ends(t, 0)
		u = w.user(t, small, "attach", "shell")
		u.types(t, "exit 7\r")
		u.ends(t, 7)
		rig.Is(t, finish(t, w.command(t, "wait", "shell")).code, 7, "wait ends with")
	})
}

// TestAttachPipes: a command without a terminal gets the input of who is attached, over a cut, and
// that one its output and exit code.
func TestAttachPipes(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *way) {
		w.must(t, "exec", "-d", "-i", "--name", "job", "--", "sh", "-c", "echo before; cat; exit 7")
		first := connect(t, w.command(t, "attach", "--wait", "5m", "--logs", "job"))
		first.says(t, "before")
		rig.Must(t, rig.Err(fmt.Fprintln(first.stdin, "one")))
		first.says(t, "one")
		first.Kill(t)

		// Through a registry the agent does not know yet that the client is gone.
		p := connect(t, w.command(t, "attach", "--take", "job"))
		for i := range 3 {
			text := fmt.Sprint("line ", i)
			rig.Must(t, rig.Err(fmt.Fprintln(p.stdin, text)))
			p.says(t, text)
			w.proxy.Cut()
		}
		_ = p.stdin.Close()
		rig.Is(t, p.Exit(t), 7, "exit code")
	})
}

// TestAttachWithoutTerminal: at a terminal of their own, users leave a command that has none by the
// keys, by ~., by closing the window, and with --sig-proxy=false by Ctrl-C.
func TestAttachWithoutTerminal(t *testing.T) {
	t.Parallel()
	w := directly(t)
	size := pty.Winsize{Rows: 24, Cols: 200}
	const runsOn = "agent: job runs on: agent attach job returns to it, agent kill job ends it\r\n"
	w.must(t, "exec", "-d", "-i", "--name", "job", "--", "sh", "-c", "while read -r line; do echo got $line; done; echo over; exit 7")

	u := w.user(t, size, "attach", "job")
	u.sees(t, "agent: attached to job: type ctrl-p ctrl-q, or ~. and Enter, to leave it running; Ctrl-C interrupts it\r\n")
	u.enters(t, "one~.\r", "got one~.\r\n")
	u.enters(t, "\x10\x11", runsOn)
	u.ends(t, 0)

	u = w.user(t, size, "attach", "--sig-proxy=false", "job")
	u.sees(t, "Ctrl-C leaves it running\r\n")
	u.enters(t, "two\r", "got two\r\n")
	u.keepOutput(t)
	u.enters(t, "\x03", runsOn)
	u.ends(t, 128+2)

	u = w.user(t, size, "attach", "job")
	u.sees(t, "interrupts it\r\n")
	u.enters(t, "three\r", "got three\r\n")
	u.ptmx.Close()
	u.exits(t)
	rig.Is(t, u.ProcessState.ExitCode(), 128+1, "without its window it ends with")

	u = w.user(t, size, "attach", "job")
	u.enters(t, "four\r", "got four\r\n")
	u.enters(t, "~.\r", runsOn)
	u.ends(t, 0)

	u = w.user(t, size, "attach", "job")
	u.enters(t, "five\r", "got five\r\n")
	u.enters(t, "\x04", "over\r\n")
	u.ends(t, 7)
	rig.Is(t, finish(t, w.command(t, "wait", "job")).code, 7, "wait ends with")
}

// TestTailOfMuch: the last lines of more output than an agent keeps are there, also over
// connections that are cut.
func TestTailOfMuch(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w *way) {
		w.must(t, "exec", "--name", "job", "-n", "--", "sh", "-c", "seq 200000; echo END")
		w.proxy.CutAfter(3000, nil)
		rig.Is(t, w.must(t, "logs", "--tail", "1", "job"), "END\n", "the last line")
	})
}

// TestOnDisconnect: with kill a command ends soon after its client is gone for good, and with a
// connection that comes back it does not.
func TestOnDisconnect(t *testing.T) {
	t.Parallel()
	w := directly(t, "--session-ttl", "24h")
	begin := func() (client *running, command string) {
		client = connect(t, w.command(t, "exec", "--on-disconnect", "kill", "--", "sh", "-c", "echo $$; read x; echo end; exit 7"))
		return client, client.line(t)
	}
	p, _ := begin()
	w.proxy.Cut()
	rig.Must(t, rig.Err(fmt.Fprintln(p.stdin)))
	p.says(t, "end")
	rig.Is(t, p.Exit(t), 7, "exit code")
	if !rig.Runs(rig.Merge) {
		return // the rest takes five seconds
	}
	p, pid := begin()
	p.Kill(t)
	rig.Until(t, "the command is killed", func() bool { return os.IsNotExist(rig.Err(os.Stat("/proc/" + pid))) })
}
