// Command testrun runs go test, and says at its end which tests were skipped and how
// long all took. However the tests end, it kills the processes that they have left
// behind and removes their temporary folder.
//
//	testrun go test ./...
//
// What it prints is what go test prints, and its exit status is that of go test.
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

func run(command []string) (status int, err error) {
	if len(command) < 2 || command[1] != "test" {
		return 2, errors.New("usage: testrun go test ARGUMENT...")
	}
	// Processes whose parent has ended become children of this one, which can then
	// find and end them.
	const setChildSubreaper = 36 // prctl(2)
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, setChildSubreaper, 1, 0); errno != 0 {
		return 0, fmt.Errorf("becoming a subreaper: %w", errno)
	}
	folder, err := os.MkdirTemp("", "t") // short: the path of a socket has 107 bytes
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	if err := os.Chmod(folder, 0o777|os.ModeSticky); err != nil { // as /tmp: tests do things as other users
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
	// A terminal sends its signals to the tests, too. This process outlives them,
	// because it has to clean up behind them.
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
	_ = theirs.Close() // they have it
	go func() {
		for s := range signals {
			_ = syscall.Kill(tests, s.(syscall.Signal)) // it may have ended
		}
	}()
	r := report{out: os.Stdout, held: map[test][]string{}}
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

// reap waits for the end of a child. It also reaps the orphans that end meanwhile.
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

// endChildren kills what is left below this process and tells what that was.
func endChildren() (left []string) {
	seen := map[int]bool{}
	for {
		for _, pid := range children() {
			line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)) // of a zombie it is empty
			if err == nil && len(line) > 0 && !seen[pid] {
				left = append(left, strings.TrimSpace(strings.ReplaceAll(string(line), "\x00", " ")))
			}
			seen[pid] = true
			_ = syscall.Kill(pid, syscall.SIGKILL) // its children come to this process
		}
		for {
			pid, err := syscall.Wait4(-1, nil, 0, nil)
			if err == syscall.ECHILD {
				return left
			}
			if err == nil && pid > 0 {
				break // look again: its children may have become ours
			}
		}
	}
}

// children are the processes that this one has started or inherited.
func children() (pids []int) {
	lists, _ := filepath.Glob("/proc/self/task/*/children") // the pattern is right
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

// test names a test, or without a name its package.
type test struct{ pkg, name string }

// report prints what go test prints without -v.
type report struct {
	out     io.Writer
	held    map[test][]string // what tests have said so far
	skipped []string
}

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

func (r *report) line(line string) {
	var e event
	if json.Unmarshal([]byte(line), &e) != nil {
		r.print(line) // of go itself
		return
	}
	t := test{e.Package, e.Test}
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
		if e.Test == "" {
			r.failed(e.Package)
		}
	}
}

// failed prints the output of those tests of a package that have not passed.
func (r *report) failed(pkg string) {
	var tests []test
	for t := range r.held {
		if t.pkg == pkg && t.name != "" {
			tests = append(tests, t)
		}
	}
	slices.SortFunc(tests, func(a, b test) int { return cmp.Compare(a.name, b.name) })
	for _, t := range append(tests, test{pkg, ""}) { // the package last: it has the verdict
		r.print(r.held[t]...)
		delete(r.held, t)
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

// reason is why a test was skipped: the last line that it said, without file and line
// number.
func reason(said []string) string {
	for _, line := range slices.Backward(said) {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "--- SKIP") {
			continue
		}
		if _, text, ok := strings.Cut(line, ": "); ok && strings.Contains(line[:len(line)-len(text)], "_test.go:") {
			return text
		}
		return line
	}
	return "no reason given"
}

func (r *report) print(lines ...string) {
	for _, line := range lines {
		_, _ = io.WriteString(r.out, line) // if this cannot be written, nothing else can say so
	}
}

// summary says what was left out, which processes the tests have left, and how long all of it took.
func (r *report) summary(left []string, took time.Duration) {
	if len(r.skipped) > 0 {
		r.print(fmt.Sprintf("\nleft out (%d):\n", len(r.skipped)))
		slices.Sort(r.skipped)
		for _, s := range r.skipped {
			r.print("  ", s, "\n")
		}
	}
	if len(left) > 0 {
		r.print(fmt.Sprintf("\nleft running by the tests, and ended (%d):\n", len(left)))
		for _, command := range left {
			r.print("  ", fmt.Sprintf("%.200s", command), "\n")
		}
	}
	r.print(fmt.Sprintf("\ntook %v\n", took.Round(time.Second)))
}
