// Command testrun runs go test and prints what go test prints without -v. Then it
// prints which tests were skipped and why, which failed or did not end, and how long
// everything took. However the tests end, it kills the processes that they have left
// behind and removes their temporary folder.
//
//	testrun go test ./...
//
// The exit status is that of go test, or 128 plus the number of a signal that has
// killed it. Linux only.
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	status, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
		status = cmp.Or(status, 1)
	}
	os.Exit(status)
}

// run runs the command and cleans up behind it. An error is about running it; the
// failure of a test is only in the status.
func run(command []string) (status int, err error) {
	if len(command) < 2 || command[1] != "test" {
		return 2, errors.New("usage: testrun go test ARGUMENT...")
	}
	// Below a subreaper, a process whose parent has ended becomes a child of the
	// subreaper. So children finds also what tests leave running.
	const setChildSubreaper = 36 // PR_SET_CHILD_SUBREAPER of prctl(2)
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, setChildSubreaper, 1, 0); errno != 0 {
		return 0, fmt.Errorf("becoming a subreaper: %w", errno)
	}
	folder, err := os.MkdirTemp("", "t") // short: the path of a socket may have 107 bytes
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	if err := os.Chmod(folder, 0o777|os.ModeSticky); err != nil { // as /tmp: some tests run as other users
		return 0, err
	}
	path, err := exec.LookPath(command[0])
	if err != nil {
		return 0, err
	}
	output, theirs, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	// This process passes signals on and waits for the tests to end by them, since
	// it has to clean up behind them. (A Ctrl-C reaches the tests also directly.)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)

	environ := slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "TMPDIR=") })
	environ = append(environ, "TMPDIR="+folder)
	began := time.Now()
	tests, err := syscall.ForkExec(path, slices.Insert(slices.Clone(command), 2, "-json"), &syscall.ProcAttr{
		Env: environ, Files: []uintptr{0, theirs.Fd(), 2},
	})
	if err != nil {
		return 0, fmt.Errorf("starting %s: %w", path, err)
	}
	_ = theirs.Close() // so that output ends when the last process that writes to it does
	go func() {
		for s := range signals {
			_ = syscall.Kill(tests, s.(syscall.Signal)) // go test may have ended
		}
	}()
	r := report{out: os.Stdout, held: map[test][]string{}, running: map[test]bool{}}
	read := make(chan error, 1)
	go func() { read <- r.read(output) }()
	status, err = reap(tests)
	left := endChildren()
	if err := errors.Join(err, <-read); err != nil {
		return status, err
	}
	r.summary(left, time.Since(began))
	return status, nil
}

// reap waits for the end of a child and returns its exit status. It also reaps the
// orphans that end meanwhile.
func reap(child int) (status int, err error) {
	for {
		var ws syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &ws, 0, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil:
			return 1, fmt.Errorf("waiting: %w", err)
		case pid == child && ws.Signaled():
			return 128 + int(ws.Signal()), nil
		case pid == child:
			return ws.ExitStatus(), nil
		}
	}
}

// endChildren kills all processes below this one and returns their command lines.
// Killing a process makes its children children of this one, so endChildren looks
// again until there are none.
func endChildren() (left []string) {
	seen := map[int]bool{}
	for {
		for _, pid := range children() {
			line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // empty for a zombie
			if err == nil && len(line) > 0 && !seen[pid] {
				left = append(left, strings.TrimSpace(strings.ReplaceAll(string(line), "\x00", " ")))
			}
			seen[pid] = true
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		for {
			pid, err := syscall.Wait4(-1, nil, 0, nil)
			if err == syscall.ECHILD {
				return left
			}
			if err == nil && pid > 0 {
				break // its children may have become ours
			}
		}
	}
}

// children returns the processes that this one has started or, as a subreaper, been
// given.
func children() (pids []int) {
	lists, _ := filepath.Glob("/proc/self/task/*/children") // an error means a bad pattern
	for _, list := range lists {
		text, _ := os.ReadFile(list) // the thread may have ended
		for field := range strings.FieldsSeq(string(text)) {
			if child, err := strconv.Atoi(field); err == nil {
				pids = append(pids, child)
			}
		}
	}
	return pids
}

// event is a line that go test -json prints; go doc test2json describes it.
type event struct {
	Action  string
	Package string
	Test    string
	Output  string
}

// test names a test. With an empty name it stands for the package itself.
type test struct{ pkg, name string }

// report turns the events of go test -json into what go test prints without -v.
type report struct {
	out     io.Writer
	held    map[test][]string // output of tests that have not ended yet, or have failed
	running map[test]bool     // without those that wait for their turn
	skipped []string
	wrong   []string
}

// read reads events until the end of output.
func (r *report) read(output io.Reader) error {
	lines := bufio.NewReader(output)
	for {
		line, err := lines.ReadString('\n')
		if line != "" {
			r.line(line)
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading what go test says: %w", err)
		}
	}
}

// line reads one line. It holds the output of a test back until the verdict on its
// package: what passing tests have said is never printed.
func (r *report) line(line string) {
	var e event
	if json.Unmarshal([]byte(line), &e) != nil {
		r.print(line) // no event: the go command itself says something
		return
	}
	t := test{e.Package, e.Test}
	switch e.Action {
	case "run", "cont":
		r.running[t] = true
	case "pause", "skip", "pass", "fail":
		delete(r.running, t)
	}
	switch e.Action {
	case "output":
		if !narrates(e.Output) {
			r.held[t] = append(r.held[t], e.Output)
		}
	case "build-output":
		r.print(e.Output)
	case "skip":
		if e.Test != "" {
			r.skipped = append(r.skipped, fmt.Sprintf("%s %s: %s", e.Package, e.Test, reason(r.held[t])))
		} else {
			r.print(r.held[t]...)
		}
		delete(r.held, t)
	case "pass":
		if e.Test == "" {
			last := r.held[t] // "PASS" and the line with the time
			r.print(last[max(0, len(last)-1):]...)
		}
		delete(r.held, t)
	case "fail":
		if e.Test != "" {
			r.wrong = append(r.wrong, e.Package+" "+e.Test)
		} else {
			r.failed(e.Package)
		}
	}
}

// failed prints what the tests of a package have said, except those that passed or
// were skipped.
func (r *report) failed(pkg string) {
	var tests []test
	for t := range r.held {
		if t.pkg == pkg && t.name != "" {
			tests = append(tests, t)
		}
	}
	slices.SortFunc(tests, func(a, b test) int { return cmp.Compare(a.name, b.name) })
	for _, t := range append(tests, test{pkg, ""}) { // the package's own output last: it ends with FAIL
		r.print(r.held[t]...)
		delete(r.held, t)
	}
	for t := range r.running {
		if t.pkg == pkg {
			r.wrong = append(r.wrong, pkg+" "+t.name+": has not ended")
			delete(r.running, t)
		}
	}
}

// narrates tells whether a line only says that a test begins, waits or goes on, which
// go test prints with -v alone.
func narrates(line string) bool {
	for _, prefix := range []string{"=== RUN ", "=== PAUSE ", "=== CONT ", "=== NAME "} {
		if strings.HasPrefix(line, prefix) {
			return true
		}
	}
	return false
}

// reason returns why a test was skipped: the last line that names its place in a test,
// without that place, or else the last line that the test said.
func reason(said []string) string {
	last := "no reason given"
	for _, line := range said {
		if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "--- SKIP") {
			last = line
		}
	}
	for _, line := range slices.Backward(said) {
		if place, text, ok := strings.Cut(line, ": "); ok && strings.Contains(place, "_test.go:") {
			return strings.TrimSpace(text)
		}
	}
	return last
}

// print writes lines, which end with their newline.
func (r *report) print(lines ...string) {
	for _, line := range lines {
		_, _ = io.WriteString(r.out, line) // an error could be told nowhere else
	}
}

// summary prints which tests were skipped, which processes the tests have left
// running, which tests failed, and how long everything took. What failed comes late:
// often only the end of a long output is kept.
func (r *report) summary(left []string, took time.Duration) {
	slices.Sort(r.skipped)
	slices.Sort(r.wrong)
	r.list("left out", r.skipped)
	r.list("left running by the tests, and ended", left)
	r.list("failed", r.wrong)
	r.print(fmt.Sprintf("\ntook %v\n", took.Round(time.Second)))
}

// list prints the start of each item below a title, and nothing if there are none.
func (r *report) list(title string, items []string) {
	if len(items) == 0 {
		return
	}
	r.print(fmt.Sprintf("\n%s (%d):\n", title, len(items)))
	for _, item := range items {
		r.print("  ", fmt.Sprintf("%.300s", item), "\n")
	}
}
