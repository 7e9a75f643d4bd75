// Package programs runs everyday programs in the sandbox and unconfined, in equal directories,
// and compares what they print, how they end and what they leave.
//
// The programs are the scripts of testdata. Each begins with a line that names what it needs. It
// runs in an empty workspace that has only the folders home and tmp, which are its HOME and its
// TMPDIR, and must print and leave the same whenever it runs. Where that cannot be, the table of
// allow_test.go says so.
//
// go test runs the quickest of them with what the machine has. make programs makes a root of
// Debian's packages, in which all of them are there, and runs all of them, also as an ordinary
// user (root_test.go).
package programs

import (
	"embed"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

//go:embed testdata/*.sh
var testdata embed.FS

var (
	all     = flag.Bool("all", false, "run all programs, not only the quickest")
	twice   = flag.Bool("twice", false, "run each unconfined twice: does it always print and leave the same?")
	uids    = flag.String("uids", strconv.Itoa(os.Getuid()), "users to run the programs as, by number")
	workDir = flag.String("dir", "", "where the workspaces are made; default: where temporary files are")
)

// quickest are the programs that go test runs without -all. Each push runs only the first two.
var quickest = []string{"bash", "cp", "git", "ln", "procfs", "tar"}

// TestPrograms: a program in the sandbox does what it does unconfined.
func TestPrograms(t *testing.T) {
	t.Parallel()
	scripts, err := testdata.ReadDir("testdata")
	rig.Must(t, err)
	for _, name := range quickest { // which are there
		rig.Check(t, rig.Err(testdata.Open("testdata/"+name+".sh")))
	}
	tools, chosen := programsOfOurs(t), 2
	if rig.Runs(rig.Merge) {
		chosen = len(quickest)
	}
	for uid := range strings.SplitSeq(*uids, ",") {
		id := rig.Value(strconv.Atoi(uid))
		t.Run("uid "+uid, func(t *testing.T) {
			u := &user{id: id, tools: tools}
			ways := u.ways(t)
			for _, script := range scripts {
				name := strings.TrimSuffix(script.Name(), ".sh")
				if !*all && !slices.Contains(quickest[:chosen], name) {
					continue
				}
				t.Run(name, func(t *testing.T) {
					t.Parallel()
					u.compare(t, name, ways)
				})
			}
		})
	}
}

// compare runs a program in every way, and holds each run against the first.
func (u *user) compare(t *testing.T, name string, ways []way) {
	script, err := testdata.ReadFile("testdata/" + name + ".sh")
	rig.Must(t, err)
	first, _, _ := strings.Cut(string(script), "\n")
	needs, ok := strings.CutPrefix(first, "# needs: ")
	if !ok {
		t.Fatalf("the first line names no programs: %s", first)
	}
	if lacks := rig.Lacking(strings.Fields(needs)...); lacks != nil && *inRoot != "" {
		t.Fatal(lacks)
	} else if lacks != nil {
		t.Skip(lacks)
	}
	base := u.folder(t)
	began := time.Now()
	unconfined := u.run(t, base, ways[0], name, string(script))
	if !unconfined.state.Success() {
		t.Fatalf("unconfined it ends with %v\n%s%s", unconfined.state, unconfined.stdout.printed, unconfined.stderr.printed)
	}
	want := unconfined.seen(t, name, began)
	for _, w := range ways[1:] {
		t.Run(w.name, func(t *testing.T) {
			r := u.run(t, base, w, name, string(script))
			rig.Same(t, "what differs from unconfined", want, r.seen(t, name, began))
			if t.Failed() {
				t.Logf("unconfined it printed\n%s%s", unconfined.stdout.printed, unconfined.stderr.printed)
				t.Logf("and here\n%s%s", r.stdout.printed, r.stderr.printed)
			}
			t.Logf("%v, unconfined %v", r.took.Round(time.Millisecond), unconfined.took.Round(time.Millisecond))
		})
	}
}

// A ran is how a program ended, and what it left.
type ran struct {
	state          *os.ProcessState
	stdout, stderr *output
	work           string
	left           map[string]entry
	took           time.Duration
}

// run runs a program in a new workspace, which has the same path in every run of a base folder.
func (u *user) run(t *testing.T, base string, w way, name, script string) *ran {
	t.Helper()
	r := &ran{work: filepath.Join(base, "work"), stdout: u.output(t), stderr: u.output(t)}
	for _, dir := range []string{r.work, r.work + "/home", r.work + "/tmp"} {
		rig.Must(t, os.Mkdir(dir, 0o755), os.Chown(dir, u.id, u.id))
	}
	argv := append(w.command(base), "bash", "-euo", "pipefail", "-c", script, name)
	cmd := rig.Leash(exec.CommandContext(t.Context(), argv[0], argv[1:]...))
	cmd.Dir, cmd.Stdout, cmd.Stderr = r.work, r.stdout.end, r.stderr.end
	cmd.Env = []string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + r.work + "/home", "TMPDIR=" + r.work + "/tmp",
		"LC_ALL=C.UTF-8", "TZ=UTC", "SHELL=/bin/bash", "TERM=dumb", "USER=someone", "LOGNAME=someone",
	}
	u.become(cmd)
	began := time.Now()
	rig.Must(t, cmd.Start())
	_ = cmd.Wait() // the state says how it ended
	r.state, r.took = cmd.ProcessState, time.Since(began)
	r.stdout.finish(t)
	r.stderr.finish(t)
	r.left = tree(t, r.work)
	rig.Must(t, os.RemoveAll(r.work))
	return r
}

// An output is a pipe that a program prints to, and what it has printed once it is finished.
type output struct {
	printed string
	end     *os.File // the program's
	all     chan string
}

// output returns a new one, which is the user's own: a program may open it again as /dev/stderr.
func (u *user) output(t *testing.T) *output {
	t.Helper()
	ours, theirs, err := os.Pipe()
	rig.Must(t, err, theirs.Chown(u.id, u.id))
	o := &output{end: theirs, all: make(chan string, 1)}
	go func() {
		defer ours.Close()
		text, err := io.ReadAll(ours)
		if err != nil {
			text = append(text, err.Error()...)
		}
		o.all <- string(text)
	}()
	return o
}

// finish waits until nobody can print any more.
func (o *output) finish(t *testing.T) {
	t.Helper()
	rig.Must(t, o.end.Close())
	o.printed = <-o.all
}

// become has a command, which is on a leash, run as the user.
func (u *user) become(cmd *exec.Cmd) {
	if u.id != os.Getuid() {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(u.id), Gid: uint32(u.id)}
	}
}

// folder returns a new folder for workspaces.
func (u *user) folder(t *testing.T) string {
	t.Helper()
	dir := rig.Value(os.MkdirTemp(*workDir, "programs"))
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	dir = rig.Value(filepath.EvalSymlinks(dir))
	rig.Must(t, os.Chmod(dir, 0o755))
	return dir
}
