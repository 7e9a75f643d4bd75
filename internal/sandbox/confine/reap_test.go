package confine

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// TestSignals: a signal reaches the command and its process group, also one
// that is sent right after the start.
func TestSignals(t *testing.T) {
	t.Parallel()
	for j, row := range rows() {
		for i, sig := range []syscall.Signal{unix.SIGHUP, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGUSR1, unix.SIGUSR2, unix.SIGKILL} {
			if signal.Ignored(sig) || !tried(j, i) {
				continue // the commands ignore it too, as under nohup(1)
			}
			c := row.command(t, t.TempDir(), "sh", "-c", "ulimit -c 0; echo up; exec sleep 1000")
			r := c.start(t)
			r.until("up")
			r.Signal(sig)
			wantEnd(t, fmt.Sprintf("%s: %v", row.name, sig), r, "up\n", 128+int(sig))
			r = row.command(t, t.TempDir(), "sleep", "1000").start(t)
			r.Signal(sig) // as soon as it was started
			wantEnd(t, fmt.Sprintf("%s: %v at once", row.name, sig), r, "", 128+int(sig))
		}
		r := row.command(t, t.TempDir(), "sh", "-c", "trap 'echo shell' USR1; (trap 'echo member; exit' USR1; echo up; while :; do sleep 0.01; done); echo end").start(t)
		r.until("up")
		r.Signal(unix.SIGUSR1)
		out, code := r.end()
		if code != 0 || !strings.Contains(out, "member\n") || !strings.Contains(out, "shell\n") || !strings.Contains(out, "end\n") {
			t.Errorf("%s: the group got %q, code %d", row.name, out, code)
		}
	}
	for i, c := range []confined{networkOnly("sleep", "1077"), rows()[0].command(t, t.TempDir(), "sleep", "1078")} {
		r := c.start(t)
		r.Signal(unix.SIGSTOP)
		rig.Until(t, "the command stops", func() bool { return stateOf("sleep\x00"+strconv.Itoa(1077+i)+"\x00") == 'T' })
		r.Signal(unix.SIGCONT)
		r.Signal(unix.SIGTERM)
		wantEnd(t, "stopped and continued", r, "", 128+int(unix.SIGTERM))
	}
	for range 5 {
		r := networkOnly("sleep", "1000").start(t)
		r.Signal(unix.SIGUSR2)
		wantEnd(t, "network only", r, "", 128+int(unix.SIGUSR2))
	}
}

// stateOf returns the state of the process with a command line.
func stateOf(argv string) byte {
	for _, pid := range rig.Value(linux.PIDs()) {
		if line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil && string(line) == argv {
			status, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			_, state, _ := strings.Cut(string(status), "State:\t")
			return (state + " ")[0]
		}
	}
	return 0
}

// What the command leaves behind holds the command's output open. So when the
// output ends all these processes are gone.
const (
	daemons = "(setsid sh -c 'trap \"\" HUP TERM INT; sleep 1000; sleep 1000' &); (setsid sleep 1001 & setsid sleep 1002 &); "
	waits   = daemons + "echo up; sleep 1003"
)

// TestNobodyIsLeft: however the command ends, nothing that it has started
// outlives it.
func TestNobodyIsLeft(t *testing.T) {
	t.Parallel()
	for j, row := range rows() {
		for i, tt := range []struct {
			name   string
			script string
			end    func(*run)
			code   int
		}{
			{"the command ends", daemons + "echo up; exit 3", func(*run) {}, 3},
			{"the command is killed", daemons + "echo up; kill -9 $$", func(*run) {}, 137},
			{"terminate", waits, func(r *run) { rig.Is(t, r.Terminate(), true, "it was running") }, 137},
			{"kill", waits, func(r *run) { r.Signal(unix.SIGKILL) }, 137},
			{"kill the group", waits, func(r *run) { r.KillGroup() }, 137},
			{"close", waits, func(r *run) { r.Close() }, 0},
		} {
			if !tried(j, i) {
				continue
			}
			r := row.command(t, t.TempDir(), "sh", "-c", tt.script).start(t)
			r.until("up")
			tt.end(r)
			if _, code := r.end(); code != tt.code { // end waits for the end of the output too
				t.Errorf("%s: %s: code %d, want %d", row.name, tt.name, code, tt.code)
			}
		}
	}
}

// TestInitTracesNobody: a process that makes init its tracer (PTRACE_TRACEME), and stops
// because of a signal, is killed. It does not look as if it had ended.
func TestInitTracesNobody(t *testing.T) {
	t.Parallel()
	if runtime.GOARCH != "amd64" {
		t.Skip("the script has the number of ptrace(2) on amd64")
	}
	const (
		traceMe = `perl -e 'exit 3 if syscall(101, 0, 0, 0, 0) != 0; kill "TRAP", $$; exit 4'`
		orphan  = `(setsid sh -c 'sleep 0.1; exec "$@"' sh ` + traceMe + ` &); sleep 0.3; exit 5`
	)
	for _, row := range someOf(rows()) {
		codes := []int{3} // without a network ptrace is refused
		if row.network == sandbox.NetworkEnabled {
			// If the thread that has forked it ends first, nobody traces it any more.
			codes = []int{128 + int(unix.SIGKILL), 128 + int(unix.SIGTRAP)}
		}
		for script, want := range map[string][]int{"exec " + traceMe: codes, orphan: {5}} {
			out, code := row.command(t, t.TempDir(), "sh", "-c", script).start(t).end()
			rig.Is(t, slices.Contains(want, code), true, "%s: %s: %q, code %d, one of %v", row.name, script, out, code, want)
		}
	}
}

// TestForkersAreKilled: processes that fork faster than init can list and kill
// them do not outlive the command either.
func TestForkersAreKilled(t *testing.T) {
	t.Parallel()
	const script = `for i in 1 2 3; do (sh -c 'while :; do (setsid sleep 1000 &); done' 2>/dev/null &); done; echo up; sleep 0.1; exit 3`
	for j, row := range rows() {
		if !tried(j, 3) { // the other one is Landlock alone
			continue
		}
		r := row.command(t, t.TempDir(), "sh", "-c", script).start(t)
		r.until("up")
		_, code := r.end()
		rig.Is(t, code, 3, "%s: code", row.name)
	}
}

// TestAgentDies: nothing that is confined outlives an agent that is killed.
func TestAgentDies(t *testing.T) {
	t.Parallel()
	for _, row := range rows() {
		if !row.writes { // the command could not open the FIFO
			continue
		}
		root := t.TempDir()
		fifo := filepath.Join(root, "fifo")
		rig.Must(t, unix.Mkfifo(fifo, 0o600))
		cmd := agentCommand(row.name, root, "exec > fifo; "+waits)
		rig.Must(t, cmd.Start())
		alive := rig.Value(os.Open(fifo)) // waits for the command
		lines := bufio.NewReader(alive)
		rig.Is(t, rig.Value(lines.ReadString('\n')), "up\n", "%s", row.name)
		rig.Must(t, cmd.Process.Kill())
		_ = cmd.Wait() // the error is that the agent was killed
		rig.Must(t, alive.SetReadDeadline(time.Now().Add(sandboxtest.Enough)))
		rig.Check(t, rig.Err(io.ReadAll(lines)))
		_ = alive.Close()
	}
}

// TestInitIsOutOfReach: the command can neither end its init, nor read its
// memory or follow its descriptors.
func TestInitIsOutOfReach(t *testing.T) {
	t.Parallel()
	for _, row := range someOf(rows()) {
		// The shell itself opens stat. What it reads there is init's number in
		// this procfs, which need not be the one that signals take.
		script := `
			read -r self name state init rest </proc/self/stat
			for s in $signals; do kill -$s $PPID 2>/dev/null && echo $s; done
			for p in /proc/$init /proc/$init/task/*; do
				for f in environ mem maps auxv fd/0 fd/3; do head -c1 $p/$f && echo read $p/$f; done
				for f in root cwd exe fd/0 fd/3; do readlink $p/$f; done
				for f in root cwd map_files; do ls $p/$f/; done
			done
			echo end $?`
		signals, sent := "TERM KILL STOP INT SEGV", ""
		if row.backend.Landlock == 0 {
			// Nothing keeps the command from signalling process 1 of its own
			// namespace, which passes some signals on to it. The kernel ignores
			// the two that no process can catch.
			signals, sent = "KILL STOP", "KILL\nSTOP\n"
		}
		out, code := row.command(t, t.TempDir(), "sh", "-c", "exec 2>/dev/null; signals='"+signals+"';"+script).start(t).end()
		if !strings.HasPrefix(out, sent+"end ") || code != 0 {
			t.Errorf("%s: %q, code %d", row.name, out, code)
		}
	}
}

// TestSharedPIDView: a command without a procfs of its own finds itself in it by
// its name alone, and other processes of the user by their numbers. It can read
// nothing but what everybody may, change nothing and signal nobody.
func TestSharedPIDView(t *testing.T) {
	t.Parallel()
	outside := exec.Command("sleep", "60")
	rig.Must(t, outside.Start())
	t.Cleanup(func() { _, _ = outside.Process.Kill(), outside.Wait() })
	const script = `exec 2>/dev/null
		read -r self rest </proc/self/stat; [ $self != $$ ] && head -c2 /proc/$self/cmdline && echo
		p=/proc/$OUTSIDE
		head -c5 $p/cmdline && echo
		for f in environ mem maps auxv fd/0 stack; do head -c1 $p/$f && echo read $p/$f; done
		for f in root cwd exe fd/0 ns/mnt; do readlink $p/$f; done
		for f in root cwd map_files; do ls $p/$f/; done
		for f in oom_score_adj comm clear_refs coredump_filter mem; do echo 0 >$p/$f && echo wrote $p/$f; done
		[ -d /proc/$OUTSIDE ] && kill -0 $OUTSIDE && echo reached
		echo end`
	row := row{backend: withoutLandlock(), writes: true}
	c := row.command(t, t.TempDir(), "sh", "-c", script)
	c.Env = []string{"PATH=/usr/bin:/bin", "OUTSIDE=" + strconv.Itoa(outside.Process.Pid)}
	wantEnd(t, "the command", c.start(t), "sh\nsleep\nend\n", 0)
}

// TestOwnProcfs: whatever confines a command, it may ask of itself the same under /proc/self and
// /proc/thread-self. test/programs compares that with an unconfined run. Under its number in a PID namespace, a
// process does not find itself in the procfs of another one.
func TestOwnProcfs(t *testing.T) {
	t.Parallel()
	script := rig.Value(os.ReadFile("../../../test/programs/testdata/procfs.sh"))
	var first string
	for _, row := range rows() {
		if !row.writes { // the script needs a file
			continue
		}
		out, _ := row.command(t, t.TempDir(), "bash", "-c", string(script)).start(t).end()
		out = regexp.MustCompile(`(?m)^/\S+$`).ReplaceAllString(out, "DIR")
		first = cmp.Or(first, out)
		want := first
		if !row.backend.Has(sandbox.Procfs) && row.backend.Has(sandbox.PIDNS) {
			byNumber := regexp.MustCompile(`(?m)^.*PID.*\n`)
			out, want = byNumber.ReplaceAllString(out, ""), byNumber.ReplaceAllString(want, "")
		}
		rig.Is(t, out, want, "%s", row.name)
	}
	rig.Is(t, strings.Contains(first, "/proc/thread-self/ns/net: "), true, "%s", first)
}

// TestInitHoldsNothing: when the command closes a pipe the other end sees that,
// since init has closed its own copy.
func TestInitHoldsNothing(t *testing.T) {
	t.Parallel()
	for _, row := range someOf(rows()) {
		c := row.command(t, t.TempDir(), "sh", "-c", "echo up; exec <&-; sleep 1000")
		c.Stdin = true
		r := c.start(t)
		r.until("up")
		// If a process still had the pipe open for reading, Write would block.
		data := make([]byte, 1<<20)
		for i := range 4 {
			rig.Must(t, rig.Err(r.Write(t.Context(), strconv.Itoa(i), data)))
		}
	}
}

// TestLimits: the command has its limits from the first moment on, and cannot
// raise them.
func TestLimits(t *testing.T) {
	t.Parallel()
	const (
		script = "grep -E 'Max (processes|address|cpu)' /proc/self/limits; ulimit -S -v unlimited 2>/dev/null || exit 7"
		want   = "Max cpu time 60 60 seconds\nMax processes 50 50 processes\nMax address space 1073741824 1073741824 bytes\n"
	)
	check := func(name string, c confined) {
		t.Helper()
		c.limits = Limits{Processes: 50, AddressSpace: 1 << 30, CPUSeconds: 60}
		out, code := c.start(t).end()
		var got strings.Builder
		for line := range strings.Lines(out) {
			got.WriteString(strings.Join(strings.Fields(line), " ") + "\n")
		}
		if got.String() != want || code == 0 {
			t.Errorf("%s: %q, code %d, want %q", name, got.String(), code, want)
		}
	}
	check("network only", networkOnly("sh", "-c", script))
	for _, row := range rows() {
		check(row.name, row.command(t, t.TempDir(), "sh", "-c", script))
	}
}
