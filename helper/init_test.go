package helper

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/sandbox"
)

// full is the backend of a host that has everything.
func full() sandbox.Backend {
	return sandbox.Backend{UserNS: true, MountNS: true, PIDNS: true, IPCNS: true, NetNS: true, Landlock: sandbox.LandlockABI(), Seccomp: true}
}

// withoutPIDNS is that of a container that refuses a fresh procfs.
func withoutPIDNS() sandbox.Backend {
	l := full()
	l.PIDNS = false
	return l
}

// landlockOnly is that of a host without namespaces.
func landlockOnly() sandbox.Backend {
	return sandbox.Backend{Landlock: sandbox.LandlockABI(), Seccomp: true}
}

// workspaceWrite may read everything and write in root.
func workspaceWrite(t testing.TB, root string, network sandbox.Network) *sandbox.Policy {
	t.Helper()
	return policyOf(t, sandbox.Profile{
		Entries: []sandbox.Entry{
			{Place: sandbox.PlaceRoot, Access: sandbox.Read},
			{Place: sandbox.PlacePath, Path: root, Access: sandbox.Write},
		},
		Network: network,
	})
}

// readOnly may read everything.
func readOnly(t testing.TB) *sandbox.Policy {
	t.Helper()
	return policyOf(t, sandbox.Profile{Entries: []sandbox.Entry{{Place: sandbox.PlaceRoot, Access: sandbox.Read}}})
}

func policyOf(t testing.TB, profile sandbox.Profile) *sandbox.Policy {
	t.Helper()
	policy, err := profile.Compile()
	if err != nil {
		t.Fatal(err)
	}
	return policy
}

// confined is a command under test.
type confined struct {
	procs.Spec
	policy  *sandbox.Policy
	backend sandbox.Backend
	limits  Limits
	flags   uintptr // more of clone(2)
	held    bool    // the placeholders are there
}

// start starts it as the agent does. What it writes is kept.
func (c confined) start(t testing.TB) *run {
	t.Helper()
	r := &run{t: t}
	if !c.held {
		hold(t, c.policy)
	}
	if c.Dir == "" {
		c.Dir = "/"
	}
	if c.Env == nil {
		c.Env = []string{"PATH=/usr/bin:/bin"}
	}
	c.Sink = r.sink
	c.Stage = func(p procs.Program) (*procs.Stage, error) {
		prepared, err := Command{
			Policy: c.policy, Backend: c.backend,
			Argv: p.Argv, Arg0: p.Arg0, Env: p.Env, Dir: p.Dir, TTY: p.TTY,
			NewSession: true, Limits: c.limits, Argv0: os.Args[0],
		}.Prepare()
		if err != nil {
			return nil, err
		}
		// The race detector would wait for a second at the end of init.
		env := append(prepared.Env, "GORACE=atexit_sleep_ms=0")
		return &procs.Stage{
			Path: prepared.Path, Argv: prepared.Argv, Env: env, Files: prepared.Files,
			Cloneflags: prepared.Cloneflags | c.flags, AmbientCaps: prepared.AmbientCaps,
			Leash: prepared.Leash, Grace: prepared.Grace,
		}, nil
	}
	p, err := procs.Start(c.Spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	r.Process = p
	p.Begin()
	return r
}

// run is a command that runs.
type run struct {
	*procs.Process
	t testing.TB

	mu     sync.Mutex
	out    bytes.Buffer
	code   int
	output chan struct{} // closed at the next output
}

func (r *run) sink(ev procs.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.out.Write(ev.Data)
	if ev.Kind == procs.Exited {
		r.code = ev.ExitCode
	}
	if r.output != nil {
		close(r.output)
		r.output = nil
	}
}

// until waits for text in what was written.
func (r *run) until(text string) {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for {
		r.mu.Lock()
		out, next := r.out.String(), r.output
		if next == nil {
			next = make(chan struct{})
			r.output = next
		}
		r.mu.Unlock()
		if strings.Contains(out, text) {
			return
		}
		select {
		case <-next:
		case <-r.Done():
			r.t.Fatalf("it ended without %q: %q", text, out)
		case <-ctx.Done():
			r.t.Fatalf("no %q in %q", text, out)
		}
	}
}

// text is what was written so far.
func (r *run) text() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.out.String()
}

// end waits for the end and returns what was written, and the exit code.
func (r *run) end() (out string, code int) {
	r.t.Helper()
	select {
	case <-r.Done():
	case <-time.After(20 * time.Second):
		r.t.Fatalf("it does not end: %q", r.out.String())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.out.String(), r.code
}

// hold makes the placeholders that the view of policy needs, as the agent does.
func hold(t testing.TB, policy *sandbox.Policy) {
	t.Helper()
	resolved, err := policy.Resolve()
	if err != nil {
		t.Fatal(err)
	}
	defer resolved.Close()
	if len(resolved.Missing) == 0 {
		return
	}
	state := t.TempDir()
	if err := os.Chmod(state, 0o700); err != nil {
		t.Fatal(err)
	}
	placeholders, err := sandbox.OpenPlaceholders(state)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { placeholders.Close() })
	if _, err := placeholders.Hold(resolved.Missing); err != nil {
		t.Fatal(err)
	}
}

// rows are the kinds of confinement that a command can be started with. Their
// policies let read everything; the writable root is not there for all.
type row struct {
	name    string
	backend sandbox.Backend
	writes  bool // to the root
	network sandbox.Network
}

func rows() []row {
	return []row{
		{"full", full(), true, sandbox.NetworkRestricted},
		{"network", full(), true, sandbox.NetworkEnabled},
		{"no pid namespace", withoutPIDNS(), true, sandbox.NetworkRestricted},
		{"landlock only", landlockOnly(), false, sandbox.NetworkRestricted},
	}
}

// command is argv under the confinement of the row.
func (r row) command(t testing.TB, root string, argv ...string) confined {
	t.Helper()
	c := confined{policy: readOnly(t), backend: r.backend, Spec: procs.Spec{Argv: argv, Dir: root}}
	if r.writes {
		c.policy = workspaceWrite(t, root, r.network)
	}
	return c
}

// networkOnly is a command that only the network is taken from.
func networkOnly(argv ...string) confined {
	return confined{policy: &sandbox.Policy{}, backend: sandbox.Backend{Seccomp: true}, Spec: procs.Spec{Argv: argv}}
}

func TestExitCodes(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
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
		for _, row := range rows() {
			c := row.command(t, t.TempDir(), "sh", "-c", tt.script)
			if out, code := c.start(t).end(); code != tt.want || out != "" {
				t.Errorf("%s: %q: code %d, want %d; %q", row.name, tt.script, code, tt.want, out)
			}
		}
		if out, code := networkOnly("sh", "-c", tt.script).start(t).end(); code != tt.want || out != "" {
			t.Errorf("network only: %q: code %d, want %d; %q", tt.script, code, tt.want, out)
		}
	}
}

// What the command is given, and what it is not.
func TestCommand(t *testing.T) {
	t.Parallel()
	arg0 := "renamed"
	for _, row := range rows() {
		root := t.TempDir()
		for _, tt := range []struct {
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
			{"signals", procs.Spec{Argv: []string{"grep", "-h", "-E", "Sig(Blk|Ign)", "/proc/self/status"}}, signals(t)},
		} {
			c := row.command(t, root)
			c.Argv, c.Arg0, c.Env = tt.spec.Argv, tt.spec.Arg0, tt.spec.Env
			if err := os.WriteFile(filepath.Join(root, "prog"), []byte("#!/bin/sh\necho prog\n"), 0o700); err != nil {
				t.Fatal(err)
			}
			out, code := c.start(t).end()
			if sorted(out) != sorted(tt.want) || code != 0 {
				t.Errorf("%s: %s: %q, code %d, want %q", row.name, tt.name, out, code, tt.want)
			}
		}
	}
}

func sorted(text string) string { return strings.Join(slices.Sorted(strings.Lines(text)), "") }

func umask() int {
	status, _ := os.ReadFile("/proc/self/status")
	_, rest, _ := strings.Cut(string(status), "Umask:")
	mask, _ := strconv.ParseInt(strings.Fields(rest)[0], 8, 32)
	return int(mask)
}

// signals is what a command that is started without a sandbox says.
func signals(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("grep", "-h", "-E", "Sig(Blk|Ign)", "/proc/self/status").Output()
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

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
		if !slices.Equal(got, want) {
			t.Errorf("%s: %q", row.name, got)
		}
	}
}

// A command whose files are not confined keeps everything but the network.
func TestNetworkOnly(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	own, err := os.Readlink("/proc/self/ns/mnt")
	if err != nil {
		t.Fatal(err)
	}
	c := networkOnly("sh", "-c", "readlink /proc/self/ns/mnt; echo $$; echo x > new; env; grep -E 'NoNew|Seccomp:' /proc/self/status")
	c.Dir, c.Env = root, []string{"PATH=/usr/bin:/bin"}
	r := c.start(t)
	out, code := r.end()
	want := fmt.Sprintf("%s\n%d\nPATH=/usr/bin:/bin\nPWD=%s\nNoNewPrivs:\t1\nSeccomp:\t2\n", own, r.PID(), root)
	if out != want || code != 0 { // PWD is the shell's
		t.Errorf("%q, code %d, want %q", out, code, want)
	}
	if _, err := os.Stat(filepath.Join(root, "new")); err != nil {
		t.Error(err)
	}
}

// Everything that goes wrong is said in one line, and the command is not run.
func TestRefused(t *testing.T) {
	t.Parallel()
	hidden := t.TempDir()
	if err := os.Mkdir(filepath.Join(hidden, "in"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
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
		for _, row := range rows() {
			c := row.command(t, t.TempDir())
			c.Spec = tt.spec
			wantRefused(t, row.name+": "+tt.name, c, tt.want)
		}
		c := networkOnly()
		c.Spec = tt.spec
		wantRefused(t, "network only: "+tt.name, c, tt.want)
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
	wantRefused(t, "hidden directory", confined{policy: minimal, backend: full(), Spec: procs.Spec{Argv: []string{"true"}, Dir: hidden}}, "chdir "+hidden+": no such file or directory")
	nothing := policyOf(t, sandbox.Profile{})
	wantRefused(t, "empty view", confined{policy: nothing, backend: full(), Spec: procs.Spec{Argv: []string{"true"}}}, "exec true: no such file or directory")
	none := full()
	none.Landlock = 0
	c := confined{policy: readOnly(t), backend: none, Spec: procs.Spec{Argv: []string{"true"}}}
	if out, code := c.start(t).end(); code != 0 {
		t.Errorf("without Landlock: %q, code %d", out, code)
	}
}

func wantRefused(t *testing.T, name string, c confined, want string) {
	t.Helper()
	out, code := c.start(t).end()
	if code != setupFailed || !strings.HasPrefix(out, "sandbox: ") || !strings.HasSuffix(out, want+"\n") || strings.Count(out, "\n") != 1 {
		t.Errorf("%s: %q, code %d, want %q", name, out, code, want)
	}
}

// What the kernel does not make is said where the command would speak.
func TestNamespacesRefused(t *testing.T) {
	t.Parallel()
	c := confined{policy: readOnly(t), backend: full(), Spec: procs.Spec{Argv: []string{"true"}, Dir: "/"}}
	c.flags = unix.CLONE_SIGHAND // not without CLONE_VM
	out, code := c.start(t).end()
	if code != setupFailed || out != "sandbox: creating namespaces: invalid argument\n" {
		t.Errorf("%q, code %d", out, code)
	}
}

// A shell that was given a terminal has it, and the control of its jobs.
func TestTerminal(t *testing.T) {
	t.Parallel()
	for _, row := range append(rows(), row{name: "network only"}) {
		c := networkOnly()
		if row.backend.Seccomp {
			c = row.command(t, t.TempDir())
		}
		c.TTY, c.Size = true, procs.Winsize{Rows: 30, Cols: 100}
		c.Argv = []string{"sh", "-c", "set -m; ulimit -c 0; stty size; echo hello > /dev/tty; sh -c 'echo up; exec sleep 1000'; echo code $?; (read x; echo $x); echo end"}
		r := c.start(t)
		r.until("hello")
		if !strings.HasPrefix(r.text(), "30 100\r\n") {
			t.Errorf("%s: size: %q", row.name, r.text())
		}
		r.until("hello\r\nup\r\n")
		if _, err := r.Write(t.Context(), "0", []byte("\x1c")); err != nil {
			t.Fatal(err)
		}
		r.until("code 131")
		if _, err := r.Write(t.Context(), "1", []byte("line\n")); err != nil {
			t.Fatal(err)
		}
		if out, code := r.end(); code != 0 || !strings.HasSuffix(out, "line\r\nend\r\n") || strings.Contains(out, "job control") {
			t.Errorf("%s: %q, code %d", row.name, out, code)
		}
	}
}

// An ordinary user can do all of it too.
func TestOrdinaryUser(t *testing.T) {
	t.Parallel()
	const nobody = 65534
	if os.Getuid() != 0 {
		t.Skip("becoming another user takes root, and this is one already")
	}
	root, err := os.MkdirTemp("/tmp", "execagent-helper")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(root) })
	if err := os.Chown(root, nobody, nobody); err != nil {
		t.Fatal(err)
	}
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

// agentCommand is a process that starts script in a shell, as an agent that
// does nothing else. It ends with it.
func agentCommand(row, root, script string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe")
	cmd.Args = []string{os.Args[0], agentChild, row, root, script}
	return cmd
}

const agentChild = "agent-child"

// childTB is what the helpers of tests need in a process that is no test.
type childTB struct {
	testing.TB
	cleanups []func()
}

func (t *childTB) Helper()          {}
func (t *childTB) Cleanup(f func()) { t.cleanups = append(t.cleanups, f) }
func (t *childTB) Fatal(args ...any) {
	fmt.Println(args...)
	os.Exit(98)
}

func (t *childTB) TempDir() string {
	dir, err := os.MkdirTemp("/tmp", "execagent-helper")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (t *childTB) end() {
	for _, f := range slices.Backward(t.cleanups) {
		f()
	}
}

// agentChildMain is the process of agentCommand.
func agentChildMain() int {
	t := &childTB{}
	defer t.end()
	for _, row := range rows() {
		if row.name == os.Args[2] {
			r := row.command(t, os.Args[3], "sh", "-c", os.Args[4]).start(t)
			<-r.Done()
			_, code, _, _ := r.State()
			fmt.Print(r.text())
			return code
		}
	}
	return 99
}
// The time from start to the end of a command that does nothing.
func BenchmarkTrue(b *testing.B) {
	root := b.TempDir()
	commands := map[string]confined{"network only": networkOnly()}
	for _, row := range rows() {
		commands[row.name] = row.command(b, root)
	}
	for name, c := range commands {
		b.Run(name, func(b *testing.B) {
			c.Argv, c.Dir, c.held = []string{"/bin/true"}, root, true
			hold(b, c.policy)
			for b.Loop() {
				r := c.start(b)
				if out, code := r.end(); code != 0 {
					b.Fatal(code, out)
				}
				r.Close()
			}
		})
	}
}
