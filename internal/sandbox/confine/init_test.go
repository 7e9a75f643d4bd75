package confine

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// TestExitCodes: init ends with the code of the command, and of no other
// process.
func TestExitCodes(t *testing.T) {
	t.Parallel()
	for i, tt := range []struct {
		script string
		want   int
	}{
		{"exit 0", 0},
		{"exit 7", 7},
		{"exit 255", 255},
		{"kill -TERM $$", 143},
		{"kill -KILL $$", 137},
		{"kill -SEGV $$", 139},
		{"ulimit -c 0; kill -ABRT $$", 134},
		{"(exit 3) & wait; exit 4", 4}, // an orphan or a child is not the command
	} {
		for j, row := range rows() {
			if !tried(j, i) {
				continue
			}
			c := row.command(t, t.TempDir(), "sh", "-c", tt.script)
			wantEnd(t, row.name+": "+tt.script, c.start(t), "", tt.want)
		}
		wantEnd(t, "network only: "+tt.script, networkOnly("sh", "-c", tt.script).start(t), "", tt.want)
	}
}

// TestCommand: the command has the arguments, the environment, the directory
// and the descriptors that it was given, and nothing of init.
func TestCommand(t *testing.T) {
	t.Parallel()
	arg0 := "renamed"
	for j, row := range rows() {
		root := t.TempDir()
		for i, tt := range []struct {
			name string
			spec procs.Spec
			want string
		}{
			{"output", procs.Spec{Argv: []string{"sh", "-c", "echo out; echo err >&2"}}, "err\nout\n"},
			{"arguments", procs.Spec{Argv: []string{"printf", "%s|", "a b", "", "\xff"}}, "a b||\xff|"},
			{"arg0", procs.Spec{Argv: []string{"sh", "-c", "echo $0"}, Arg0: &arg0}, "renamed\n"},
			{"directory", procs.Spec{Argv: []string{"pwd"}}, root + "\n"},
			{"program in the directory", procs.Spec{Argv: []string{"./prog"}}, "prog\n"},
			{"program in a relative element of PATH", procs.Spec{Argv: []string{"prog"}, Env: []string{"PATH=/none:."}}, "prog\n"},
			{
				"environment", procs.Spec{Argv: []string{"/usr/bin/env"}, Env: []string{"B=1", "PWD=/stale", "A=\xff=", "=x"}},
				"=x\nA=\xff=\nB=1\nPWD=" + root + "\n",
			},
			{"descriptors", procs.Spec{Argv: []string{"ls", "/proc/self/fd"}}, "0\n1\n2\n3\n"}, // 3 is the directory
			{"stdin is empty", procs.Spec{Argv: []string{"cat"}}, ""},
			{"ids", procs.Spec{Argv: []string{"sh", "-c", "id -u; id -g"}}, fmt.Sprintf("%d\n%d\n", os.Getuid(), os.Getgid())},
			{"umask", procs.Spec{Argv: []string{"sh", "-c", "umask"}}, fmt.Sprintf("%04o\n", umask())},
			{"open files", procs.Spec{Argv: []string{"sh", "-c", "ulimit -S -n; ulimit -H -n"}},
				unconfined(t, "sh", "-c", "s=$(ulimit -S -n) h=$(ulimit -H -n); m=$((h > 2048 ? h - 1024 : h - h / 2)); echo $((s < m ? s : m)); echo $m")},
			{"signals", procs.Spec{Argv: []string{"grep", "-h", "-E", "Sig(Blk|Ign)", "/proc/self/status"}}, unconfined(t, "grep", "-h", "-E", "Sig(Blk|Ign)", "/proc/self/status")},
		} {
			if !tried(j, i) {
				continue
			}
			c := row.command(t, root)
			c.Argv, c.Arg0, c.Env = tt.spec.Argv, tt.spec.Arg0, tt.spec.Env
			rig.Must(t, rig.WriteProgram(filepath.Join(root, "prog"), []byte("#!/bin/sh\necho prog\n")))
			out, code := c.start(t).end()
			got := fmt.Sprintf("%q, code %d", sorted(out), code)
			rig.Is(t, got, fmt.Sprintf("%q, code 0", sorted(tt.want)), "%s: %s", row.name, tt.name)
		}
	}
}

// sorted sorts the lines of text.
func sorted(text string) string { return strings.Join(slices.Sorted(strings.Lines(text)), "") }

// umask returns the umask of this process, without changing it.
func umask() int {
	status, _ := os.ReadFile("/proc/self/status")
	_, rest, _ := strings.Cut(string(status), "Umask:")
	mask, _ := strconv.ParseInt(strings.Fields(rest)[0], 8, 32)
	return int(mask)
}

// unconfined returns what a command writes that is started without a sandbox.
func unconfined(t *testing.T, name string, args ...string) string {
	t.Helper()
	out := rig.Value(exec.Command(name, args...).Output())
	return string(out)
}

// TestPrivileges: the command has no capabilities, cannot get any, and has one
// filter.
func TestPrivileges(t *testing.T) {
	t.Parallel()
	want := []string{
		"CapAmb: 0000000000000000", "CapBnd: 0000000000000000", "CapEff: 0000000000000000", "CapInh: 0000000000000000",
		"CapPrm: 0000000000000000", "NoNewPrivs: 1", "Seccomp: 2", "Seccomp_filters: 1",
	}
	for _, row := range rows() {
		out, _ := row.command(t, t.TempDir(), "sh", "-c", "grep -E 'Cap|NoNew|Secc' /proc/self/status").start(t).end()
		var got []string
		for line := range strings.Lines(out) {
			got = append(got, strings.Join(strings.Fields(line), " "))
		}
		slices.Sort(got)
		rig.Same(t, row.name, want, got)
	}
}

// TestManyPaths: the policy needs more descriptors in init than the soft limit
// of its agent allows. The command has that soft limit all the same, and a hard
// limit that is lower by what is reserved.
func TestManyPaths(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	profile := sandbox.Profile{Entries: []sandbox.Entry{{Place: sandbox.PlaceMinimal, Access: sandbox.Read}}}
	for i := range 900 {
		path := filepath.Join(root, strconv.Itoa(i))
		rig.Must(t, os.Mkdir(path, 0o755))
		profile.Entries = append(profile.Entries, sandbox.Entry{Place: sandbox.PlacePath, Path: path, Access: sandbox.Read})
	}
	text := rig.Value(policyOf(t, profile).MarshalText())
	prlimit := rig.Value(exec.LookPath("prlimit"))
	self := rig.Value(os.Executable())
	for _, limits := range []string{"", "limited"} {
		cmd := exec.Command(prlimit, "--nofile=1024:8192", "--", self, manyPathsChild, string(text), limits)
		cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0")
		rig.Is(t, string(rig.Value(cmd.CombinedOutput())), "1024\n7168\n", "%q", limits)
	}
}

const manyPathsChild = "many-paths-child"

// manyPathsChildMain plays an agent that was started with a limit of open files.
func manyPathsChildMain() int {
	t := &sandboxtest.TB{}
	defer t.End()
	policy := new(sandbox.Policy)
	rig.Must(t, policy.UnmarshalText([]byte(os.Args[2])))
	c := confined{policy: policy, backend: full(), Spec: procs.Spec{Argv: []string{"sh", "-c", "ulimit -S -n; ulimit -H -n"}}}
	if os.Args[3] != "" {
		c.limits = Limits{CPUSeconds: 3600}
	}
	r := c.start(t)
	<-r.Done()
	_, code, _, _ := r.State()
	fmt.Print(r.text())
	return code
}

// TestNetworkOnly: a command whose files are not confined keeps everything but
// the network.
func TestNetworkOnly(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	own := rig.Value(os.Readlink("/proc/self/ns/mnt"))
	c := networkOnly("sh", "-c", "readlink /proc/self/ns/mnt; echo $$; echo x > new; env; grep -E 'NoNew|Seccomp:' /proc/self/status")
	c.Dir, c.Env = root, []string{"PATH=/usr/bin:/bin"}
	r := c.start(t)
	out, code := r.end()
	want := fmt.Sprintf("%s\n%d\nPATH=/usr/bin:/bin\nPWD=%s\nNoNewPrivs:\t1\nSeccomp:\t2\n", own, r.PID(), root)
	if out != want || code != 0 { // PWD is the shell's
		t.Errorf("%q, code %d, want %q", out, code, want)
	}
	rig.Check(t, rig.Err(os.Stat(filepath.Join(root, "new"))))
}

// TestRefused: whatever goes wrong, init says so in one line and does not run
// the command.
func TestRefused(t *testing.T) {
	t.Parallel()
	hidden := t.TempDir()
	rig.Must(t, os.Mkdir(filepath.Join(hidden, "in"), 0o755))
	for i, tt := range []struct {
		name string
		spec procs.Spec
		want string
	}{
		{"missing program", procs.Spec{Argv: []string{"no-such-program"}}, "exec no-such-program: no such file or directory"},
		{"missing path", procs.Spec{Argv: []string{"/no/such"}}, "exec /no/such: no such file or directory"},
		{"empty program", procs.Spec{Argv: []string{""}}, "exec : no such file or directory"},
		{"not a program", procs.Spec{Argv: []string{"/etc/passwd"}}, "exec /etc/passwd: permission denied"},
		{"missing directory", procs.Spec{Argv: []string{"true"}, Dir: "/no/such"}, "chdir /no/such: no such file or directory"},
		{"directory is a file", procs.Spec{Argv: []string{"true"}, Dir: "/etc/passwd"}, "chdir /etc/passwd: not a directory"},
	} {
		for j, row := range rows() {
			if !tried(j, i) {
				continue
			}
			c := row.command(t, t.TempDir())
			c.Spec = tt.spec
			wantRefused(t, row.name+": "+tt.name, c, tt.want)
		}
		c := networkOnly()
		c.Spec = tt.spec
		wantRefused(t, "network only: "+tt.name, c, tt.want)
	}
	for _, row := range rows() { // a path leads elsewhere by the time that init looks it up
		c := row.command(t, t.TempDir(), "true")
		c.granted = []string{"/", "/elsewhere"}
		if row.writes {
			c.granted = append(c.granted, c.Dir)
		}
		wantRefused(t, row.name+": led elsewhere", c, "resolving the policy: /elsewhere is not what it was when the command was asked for")
	}
	for _, tt := range []struct {
		name   string
		access sandbox.Access
		dir    string
		want   string
	}{
		{"denied directory", sandbox.Denied, hidden, "permission denied"},
		{"below a denied directory", sandbox.Denied, hidden + "/in", "permission denied"},
	} {
		policy := policyOf(t, sandbox.Profile{Entries: []sandbox.Entry{
			{Place: sandbox.PlaceRoot, Access: sandbox.Read},
			{Place: sandbox.PlacePath, Path: hidden, Access: tt.access},
		}})
		wantRefused(t, tt.name, confined{policy: policy, backend: full(), Spec: procs.Spec{Argv: []string{"true"}, Dir: tt.dir}}, "chdir "+tt.dir+": "+tt.want)
	}
	minimal := policyOf(t, sandbox.Profile{Entries: []sandbox.Entry{{Place: sandbox.PlaceMinimal, Access: sandbox.Read}}})
	for name, backend := range map[string]sandbox.Backend{"": full(), ", landlock only": landlockOnly()} {
		c := confined{policy: minimal, backend: backend, Spec: procs.Spec{Argv: []string{"true"}, Dir: hidden}}
		wantRefused(t, "hidden directory"+name, c, "chdir "+hidden+": no such file or directory")
	}
	nothing := policyOf(t, sandbox.Profile{})
	wantRefused(t, "empty view", confined{policy: nothing, backend: full(), Spec: procs.Spec{Argv: []string{"true"}}}, "exec true: no such file or directory")
	none := full()
	none.Landlock = 0
	c := confined{policy: readOnly(t), backend: none, Spec: procs.Spec{Argv: []string{"true"}}}
	wantEnd(t, "without Landlock", c.start(t), "", 0)
}

// wantRefused starts c and makes sure that init ends with code 101 and one line
// that ends with want.
func wantRefused(t *testing.T, name string, c confined, want string) {
	t.Helper()
	out, code := c.start(t).end()
	if code != setupFailed || !strings.HasPrefix(out, "sandbox: ") || !strings.HasSuffix(out, want+"\n") || strings.Count(out, "\n") != 1 {
		t.Errorf("%s: %q, code %d, want %q", name, out, code, want)
	}
}

// TestNamespacesRefused: if the kernel refuses to make the namespaces, that is
// said on the stderr of the command.
func TestNamespacesRefused(t *testing.T) {
	t.Parallel()
	c := confined{policy: readOnly(t), backend: full(), Spec: procs.Spec{Argv: []string{"true"}, Dir: "/"}}
	c.flags = unix.CLONE_SIGHAND // the kernel refuses this flag without CLONE_VM
	wantEnd(t, "namespaces", c.start(t), "sandbox: creating namespaces: invalid argument\n", setupFailed)
}

// TestTerminal: a shell that was given a terminal can use it and control its
// jobs.
func TestTerminal(t *testing.T) {
	t.Parallel()
	for _, row := range append(rows(), row{name: "network only"}) {
		c := networkOnly()
		if row.backend.Has(sandbox.Seccomp) {
			c = row.command(t, t.TempDir())
		}
		c.TTY, c.Size = true, procs.Winsize{Rows: 30, Cols: 100}
		c.Argv = []string{"sh", "-c", "set -m; ulimit -c 0; stty size; echo hello > /dev/tty; sh -c 'echo up; exec sleep 1000'; echo code $?; (read x; echo $x); echo end"}
		r := c.start(t)
		r.until("hello")
		rig.Is(t, strings.HasPrefix(r.text(), "30 100\r\n"), true, "%s: size: %q", row.name, r.text())
		r.until("hello\r\nup\r\n")
		rig.Must(t, rig.Err(r.Write(t.Context(), "0", []byte("\x1c"))))
		r.until("code 131")
		rig.Must(t, rig.Err(r.Write(t.Context(), "1", []byte("line\n"))))
		if out, code := r.end(); code != 0 || !strings.HasSuffix(out, "line\r\nend\r\n") || strings.Contains(out, "job control") {
			t.Errorf("%s: %q, code %d", row.name, out, code)
		}
	}
}

// TestOrdinaryUser: an agent of an ordinary user can confine commands in all
// these ways too.
func TestOrdinaryUser(t *testing.T) {
	t.Parallel()
	const nobody = 65534
	if os.Getuid() != 0 {
		t.Skip("becoming another user takes root, and this is one already")
	}
	root := rig.Value(os.MkdirTemp("", "execagent-helper"))
	t.Cleanup(func() { os.RemoveAll(root) })
	rig.Must(t, os.Chown(root, nobody, nobody))
	for _, row := range rows() {
		cmd := agentCommand(row.name, root, "id -u; id -g; echo $PWD; ls -ld .; exit 5")
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		cmd.Dir = root
		out, err := cmd.CombinedOutput()
		if !strings.HasPrefix(string(out), "65534\n65534\n"+root+"\n") || !strings.Contains(string(out), " nobody nogroup ") || cmd.ProcessState.ExitCode() != 5 {
			t.Errorf("%s: %q, %v", row.name, out, err)
		}
	}
}

// TestOrdinaryUserConnects: init does connect(2) for an ordinary user too.
func TestOrdinaryUserConnects(t *testing.T) {
	t.Parallel()
	const nobody = 65534
	if os.Getuid() != 0 {
		t.Skip("becoming another user takes root, and this is one already")
	}
	root := rig.Value(os.MkdirTemp("", "execagent-helper"))
	t.Cleanup(func() { os.RemoveAll(root) })
	outside := filepath.Join(t.TempDir(), "sock")
	greeter(t, "unix", outside)
	inside := filepath.Join(root, "sock")
	greeter(t, "unix", inside)
	port := port(greeter(t, "tcp4", "127.0.0.1:0"))
	self := rig.Value(os.ReadFile("/proc/self/exe"))
	rig.Must(t, rig.WriteProgram(filepath.Join(root, "self"), self))
	for _, path := range []string{root, inside} {
		rig.Must(t, os.Chown(path, nobody, nobody))
	}
	cmd := agentCommand("network", root, fmt.Sprintf("printf '1 unix sock\\n2 unix /etc/passwd\\n3 tcp %d\\n' | GORACE=atexit_sleep_ms=0 ./self %s", port, connectChild))
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	cmd.Dir = root
	out, err := cmd.CombinedOutput()
	for _, want := range []string{"answer 1: ok\n", "answer 2: EPERM\n", "answer 3: ok hello\n"} {
		rig.Is(t, strings.Contains(string(out), want), true, "%q is in %q, %v", want, out, err)
	}
}

// TestSameSession: a command that does not get a new session, as on the command
// line, stays in the session and the process group of its caller. Signals that
// it gets from the terminal anyway are not passed on.
func TestSameSession(t *testing.T) {
	t.Parallel()
	for _, row := range rows() {
		root := t.TempDir()
		c := row.command(t, root)
		holdMissing(t, c.policy)
		p, err := Command{
			Policy: c.policy, Backend: c.backend, Limits: c.limits, Argv0: os.Args[0], Dir: root, Env: []string{"PATH=/usr/bin:/bin"},
			Argv: []string{"sh", "-c", "trap 'echo int' INT; trap 'echo term; exit 4' TERM; cut -d' ' -f5,6 /proc/self/stat; while :; do sleep 0.01; done"},
		}.Prepare()
		rig.Must(t, err)
		cmd := &exec.Cmd{Path: p.Path, Args: p.Argv, Env: append(p.Env, "GORACE=atexit_sleep_ms=0"), Dir: "/", ExtraFiles: p.Files}
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: p.Cloneflags, AmbientCaps: p.AmbientCaps, Setpgid: true}
		out := rig.Value(cmd.StdoutPipe())
		rig.Must(t, cmd.Start())
		lines := bufio.NewReader(out)
		line, err := lines.ReadString('\n')
		want := "1 0\n" // the group of init; the session is outside the pid namespace
		if !row.backend.Has(sandbox.Procfs) {
			session, _ := unix.Getsid(0)
			want = fmt.Sprintf("%d %d\n", cmd.Process.Pid, session)
		}
		rig.Is(t, line, want, "%s: group and session (%v)", row.name, err)
		// SIGINT comes from the terminal and is not passed on, but SIGTERM is.
		for _, sig := range []os.Signal{unix.SIGINT, unix.SIGTERM} {
			rig.Check(t, cmd.Process.Signal(sig))
		}
		rest, _ := io.ReadAll(lines)
		_ = cmd.Wait() // the exit code is looked at below
		rig.Is(t, string(rest), "term\n", "%s (%v)", row.name, cmd.ProcessState)
		rig.Is(t, cmd.ProcessState.ExitCode(), 4, "%s: code", row.name)
		p.Close()
	}
}

// BenchmarkTrue measures the time from the start to the end of a command that
// does nothing.
func BenchmarkTrue(b *testing.B) {
	root := b.TempDir()
	commands := map[string]confined{"network only": networkOnly()}
	for _, row := range rows() {
		commands[row.name] = row.command(b, root)
	}
	for name, c := range commands {
		b.Run(name, func(b *testing.B) {
			c.Argv, c.Dir, c.held = []string{"/bin/true"}, root, true
			holdMissing(b, c.policy)
			for b.Loop() {
				r := c.start(b)
				wantEnd(b, "/bin/true", r, "", 0)
				r.Close()
			}
		})
	}
}
