package threadlog_test

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/harness/threadlog"
	"github.com/execagent/execagent/test/rig"
)

// child is the variable that makes the test binary one of the programs below. Its arguments are
// the folder of a store and the id of a thread.
const child = "THREADLOG_TEST_CHILD"

func TestMain(m *testing.M) {
	programs := map[string]func(dir, id string) error{"hold": hold, "write": write, "full": full}
	if run := programs[os.Getenv(child)]; run != nil {
		if err := run(os.Args[1], os.Args[2]); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// hold opens a thread and keeps it until the input ends.
func hold(dir, id string) error {
	s, err := threadlog.OpenStore(dir)
	if err != nil {
		return err
	}
	t, err := s.Open(id)
	if errors.Is(err, threadlog.ErrInUse) {
		fmt.Println("in use")
		return nil
	} else if err != nil {
		return err
	}
	fmt.Println("open")
	_, _ = io.Copy(io.Discard, os.Stdin)
	return t.Close()
}

// write appends turns until it is killed, and tells of each that has ended.
func write(dir, id string) error {
	s, err := threadlog.OpenStore(dir)
	if err != nil {
		return err
	}
	t, err := s.Open(id)
	if err != nil {
		return err
	}
	for {
		turn, err := t.StartTurn(nil)
		if err != nil {
			return err
		}
		p := threadlog.ProcessRef{ProcessID: "1", Status: threadlog.Exited, Output: strings.Repeat("x", 9000)}
		if err := t.AppendProcess(p); err != nil {
			return err
		}
		if err := t.EndTurn(threadlog.TurnCompleted); err != nil {
			return err
		}
		fmt.Println(turn)
	}
}

// A program is a test binary that runs as one of the programs above.
type program struct {
	*exec.Cmd
	in  io.Closer
	out *bufio.Scanner
}

// start starts a program. The test ends it.
func start(t *testing.T, name, dir, id string) *program {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], dir, id)
	cmd.Env = append(os.Environ(), child+"="+name, "GORACE=atexit_sleep_ms=0")
	cmd.Stderr = os.Stderr
	in := rig.Value(cmd.StdinPipe())
	out := rig.Value(cmd.StdoutPipe())
	rig.Must(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	return &program{cmd, in, bufio.NewScanner(out)}
}

// say waits for a line of the program and compares it.
func (p *program) say(t *testing.T, want string) {
	t.Helper()
	if p.out.Scan(); p.out.Text() != want {
		t.Fatalf("the program says %q, want %q", p.out.Text(), want)
	}
}

// open opens a store in a folder that does not exist yet.
func open(t *testing.T) (s *threadlog.Store, dir string) {
	t.Helper()
	dir = filepath.Join(t.TempDir(), "home", "threads")
	return openIn(t, dir), dir
}

func openIn(t *testing.T, dir string) *threadlog.Store {
	t.Helper()
	s := rig.Value(threadlog.OpenStore(dir))
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// must returns v, and ends the test if there is an error.
func must[T any](t *testing.T) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		rig.Must(t, err)
		return v
	}
}

// note appends a record of the tests' own.
func note(t *testing.T, th *threadlog.Thread, text string) {
	t.Helper()
	rig.Must(t, th.Append("note", text))
}

// turn appends a turn with one note.
func turn(t *testing.T, th *threadlog.Thread, text string) {
	t.Helper()
	must[string](t)(th.StartTurn(nil))
	note(t, th, text)
	rig.Must(t, th.EndTurn(threadlog.TurnCompleted))
}

// notes returns the notes of a history.
func notes(t *testing.T, s *threadlog.Store, id string) []string {
	t.Helper()
	var all []string
	for r, err := range s.History(id) {
		rig.Must(t, err)
		if r.Type == "note" {
			all = append(all, strings.Trim(string(r.Payload), `"`))
		}
	}
	return all
}

func wantNotes(t *testing.T, s *threadlog.Store, id string, want ...string) {
	t.Helper()
	rig.Is(t, slices.Equal(notes(t, s, id), want), true, "the history has the notes %q, of %q", notes(t, s, id), want)
}

// readAll returns the records of a history, and its error.
func readAll(s *threadlog.Store, id string) (all []threadlog.Record, failed error) {
	for r, err := range s.History(id) {
		if err != nil {
			return all, err
		}
		all = append(all, r)
	}
	return all, nil
}

// wantCorrupt checks that err names a line of a file and has the text.
func wantCorrupt(t *testing.T, err error, file string, line uint64, text string) {
	t.Helper()
	corrupt, ok := errors.AsType[*threadlog.CorruptError](err)
	if !ok {
		t.Errorf("the error is %v, want a CorruptError", err)
		return
	}
	if filepath.Base(corrupt.File) != file || corrupt.Line != line || !strings.Contains(corrupt.Err.Error(), text) {
		t.Errorf("the error is %v, want %s, line %d and %q", err, file, line, text)
	}
}
