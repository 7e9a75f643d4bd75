package procs

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/test/rig"
)

// script writes a file with the given mode below dir.
func script(t *testing.T, dir, name, text string, mode fs.FileMode) string {
	t.Helper()
	path := filepath.Join(dir, name)
	rig.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	rig.Must(t, os.WriteFile(path, []byte(text), mode))
	return path
}

func TestStartErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	plain := script(t, dir, "plain", "text", 0o644)
	unknown := script(t, dir, "unknown", "text", 0o755)
	nul := "a\x00b"
	for _, tt := range []struct {
		name string
		spec Spec
		want error
		text string
	}{
		{"no argv", Spec{}, ErrNoProgram, ""},
		{"empty program", Spec{Argv: []string{""}}, syscall.ENOENT, "exec"},
		{"missing by path", Spec{Argv: []string{"/no/such"}}, syscall.ENOENT, "exec /no/such"},
		{"not executable", Spec{Argv: []string{plain}}, syscall.EACCES, "exec"},
		{"a folder", Spec{Argv: []string{dir}}, syscall.EACCES, "exec"},
		{"below a file", Spec{Argv: []string{plain + "/x"}}, syscall.ENOTDIR, "exec"},
		{"unknown format", Spec{Argv: []string{unknown}}, syscall.ENOEXEC, "exec"},
		{"too large", Spec{Argv: []string{"true", strings.Repeat("x", 4<<20)}}, syscall.E2BIG, "exec"},
		{"too large, before the lookup", Spec{Argv: []string{"no-such"}, Env: []string{"PATH=" + strings.Repeat(":", 1<<17)}}, syscall.E2BIG, "exec no-such"},
		{"too much, before the lookup", Spec{Argv: []string{"no-such"}, Env: slices.Repeat([]string{strings.Repeat("x", 1<<16)}, 100)}, syscall.E2BIG, "exec no-such"},
		{"missing folder", Spec{Argv: []string{"true"}, Dir: dir + "/none"}, syscall.ENOENT, "chdir " + dir},
		{"folder is a file", Spec{Argv: []string{"true"}, Dir: plain}, syscall.ENOTDIR, "chdir " + plain},
		{"folder before program", Spec{Argv: []string{"no-such"}, Dir: plain}, syscall.ENOTDIR, "chdir " + plain},
		{"relative folder", Spec{Argv: []string{"true"}, Dir: "tmp"}, nil, `"tmp" is not absolute`},
		{"NUL in program", Spec{Argv: []string{nul}}, ErrNUL, "argv[0]"},
		{"NUL in arg0", Spec{Argv: []string{"true"}, Arg0: &nul}, ErrNUL, "argv[0]"},
		{"NUL in env", Spec{Argv: []string{"true"}, Env: []string{"A=b\x00"}}, ErrNUL, `variable "A"`},
		{"NUL in folder", Spec{Argv: []string{"true"}, Dir: "/" + nul}, ErrNUL, "directory"},
	} {
		for _, tty := range []bool{false, true} {
			spec := tt.spec
			spec.TTY = tty
			if spec.Dir == "" {
				spec.Dir = dir
			}
			p, err := Start(spec)
			if err == nil {
				p.Close()
				t.Errorf("%s (tty %v): started", tt.name, tty)
				continue
			}
			if tt.want != nil {
				rig.Is(t, err, tt.want, "%s (tty %v)", tt.name, tty)
			}
			if !strings.Contains(err.Error(), tt.text) || strings.Contains(err.Error(), "b\x00") {
				t.Errorf("%s (tty %v): text %q, want %q in it", tt.name, tty, err, tt.text)
			}
		}
	}
}

func TestLookPath(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	script(t, dir, "a/tool", "", 0o644)
	tool := script(t, dir, "b/tool", "", 0o755)
	script(t, dir, "here", "", 0o755)
	script(t, dir, "c/only/x", "", 0o755) // so c/only is a folder
	for _, tt := range []struct {
		name, program string
		path          []string
		want          string
		err           error
	}{
		{"first that can be executed", "tool", []string{"PATH=" + dir + "/a:" + dir + "/b"}, tool, nil},
		{"permission over missing", "tool", []string{"PATH=" + dir + "/a:/none"}, "", syscall.EACCES},
		{"folder is no program", "only", []string{"PATH=" + dir + "/c"}, "", syscall.EACCES},
		{"relative element", "tool", []string{"PATH=none:b"}, tool, nil},
		{"empty element", "here", []string{"PATH=/none:"}, dir + "//here", nil},
		{"element is a file", "tool", []string{"PATH=" + tool + ":" + dir + "/b"}, tool, nil},
		{"first PATH counts", "tool", []string{"PATH=/none", "PATH=" + dir + "/b"}, "", syscall.ENOENT},
		{"default path", "sh", []string{"A=b"}, "/bin/sh", nil},
		{"slash is not searched", "b/tool", []string{"PATH=" + dir}, "b/tool", nil},
	} {
		got, err := LookPath(tt.program, dir, tt.path)
		if tt.name == "default path" && err == nil && strings.HasSuffix(got, "/sh") {
			got = tt.want // some have it in /usr/local/bin
		}
		rig.Is(t, got, tt.want, "%s: LookPath(%q)", tt.name, tt.program)
		rig.Is(t, err, tt.err, "%s: LookPath(%q)", tt.name, tt.program)
	}
}

// threadTime is the processor time of this thread so far, whatever else the
// machine does.
func threadTime(t *testing.T) time.Duration {
	t.Helper()
	var usage syscall.Rusage
	rig.Must(t, syscall.Getrusage(unix.RUSAGE_THREAD, &usage))
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// TestLookPathBound: a PATH costs no more than 4,096 lookups, and one for each
// different element.
func TestLookPathBound(t *testing.T) {
	t.Parallel()
	deep := t.TempDir()
	for len(deep) < 3900 {
		deep += "/d"
	}
	rig.Must(t, os.MkdirAll(deep, 0o755))
	runtime.LockOSThread()
	begin := threadTime(t)
	err := rig.Err(LookPath("no-such", deep, []string{"PATH=" + strings.Repeat(":", 1<<17)}))
	took := threadTime(t) - begin
	runtime.UnlockOSThread()
	rig.Is[error](t, err, syscall.ENOENT, "131,072 times the same element")
	rig.Is(t, took <= time.Second, true, "processor time for 131,072 times the same element: %v, at most %v", took, time.Second)

	dir := t.TempDir()
	tool := script(t, dir, "tool", "", 0o755)
	var elements strings.Builder
	for i := range maxPath - 1 {
		fmt.Fprintf(&elements, "/none/%d:", i)
	}
	path := "PATH=" + elements.String()
	rig.Is(t, rig.Value(LookPath("tool", "/", []string{path + "/none/1:" + dir})), tool, "in the last element that is searched")
	rig.Is[error](t, rig.Err(LookPath("tool", "/", []string{path + "/one-more:" + dir})), syscall.ENOENT, "in the first that is not")
}

// TestArg0: arg0 changes what the program sees, and not what is executed
// (rpc.md 4.1).
func TestArg0(t *testing.T) {
	t.Parallel()
	arg0 := "another name"
	for _, tty := range []bool{false, true} {
		p, rec := run(t, Spec{Argv: []string{"cat", "/proc/self/cmdline"}, Arg0: &arg0, TTY: tty})
		rig.Is(t, rec.text(0), "another name\x00/proc/self/cmdline\x00", "tty %v: command line", tty)
		rig.Is(t, p.Argv()[0], "cat", "tty %v: Argv()[0]", tty)
	}
}

func TestEnvironment(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, rec := run(t, Spec{Argv: []string{"/usr/bin/env"}, Dir: dir, Env: []string{"B=2", "A=1", "=x", "nothing"}})
	rig.Is(t, rec.text(Stdout), "B=2\nA=1\n=x\nnothing\n", "environment")
	script(t, dir, "tool", "#!/bin/sh\npwd\n", 0o755)
	_, rec = run(t, Spec{Argv: []string{"./tool"}, Dir: dir})
	rig.Is(t, strings.TrimSpace(rec.text(Stdout)), dir, "ran in")
}

// TestBusyProgram: a start waits, but not for ever, for a program that is open for
// writing. It may be so in a child that was forked while the program was written.
func TestBusyProgram(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	spec := Spec{Argv: []string{script(t, dir, "tool", "#!/bin/sh\n", 0o755)}, Dir: dir}
	busy := func() *os.File { return rig.Value(os.OpenFile(spec.Argv[0], os.O_WRONLY, 0)) }
	f := busy()
	rig.Is[error](t, rig.Err(Start(spec)), syscall.ETXTBSY, "a program that stays open for writing")
	f.Close()
	for range 20 { // on a busy machine it may be closed too late
		f := busy()
		closed := make(chan struct{})
		time.AfterFunc(10*time.Millisecond, func() {
			f.Close()
			close(closed)
		})
		p, err := Start(spec)
		if err == nil {
			p.Close()
		}
		select {
		case <-closed:
			if err == nil {
				return
			}
		default:
		}
		<-closed
	}
	t.Error("a program that was closed after a while was never started")
}
