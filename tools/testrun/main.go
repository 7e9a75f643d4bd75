// Command testrun runs go test and prints what go test prints without -v. Then it prints the
// slowest tests, the skipped tests with the reasons, the tests that failed or did not end, and the
// total time. However the tests end, it kills the processes that they left behind and removes their
// temporary folder.
//
//	testrun [-durations FILE] [-test 5s] [-package 30s] go test ./...
//
// With limits the run fails if a test or the tests of a package take longer. A limit is meant for
// a quiet machine: while the tests run, testrun measures how much slower this machine is, and
// multiplies the limit by that. What takes longer runs once more, alone, and has to take longer again.
//
// With a file, testrun writes the durations there as JSON, and prints the tests that take much
// longer than in the previous run. Durations of tests that this run left out stay in the file.
//
// The exit status is that of go test, or 128 plus the number of the signal that
// killed it, or 1 if a limit was exceeded. Linux only.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

func main() {
	var l limits
	flag.StringVar(&l.file, "durations", "", "`FILE` to write the durations to, and to compare them with")
	flag.DurationVar(&l.test, "test", 0, "how long one test may take; 0 is no limit")
	flag.DurationVar(&l.pkg, "package", 0, "how long the tests of one package may take; 0 is no limit")
	flag.Parse()
	status, err := run(flag.Args(), l)
	if err != nil {
		fmt.Fprintln(os.Stderr, "testrun:", err)
		status = cmp.Or(status, 1)
	}
	os.Exit(status)
}

// run runs the command and cleans up after it. An error means that running it failed; the failure
// of a test is only in the status.
func run(command []string, l limits) (status int, err error) {
	if len(command) < 2 || command[1] != "test" {
		return 2, errors.New("usage: testrun [-durations FILE] [-test 5s] [-package 30s] go test ARGUMENT...")
	}
	// Below a subreaper, a process whose parent has ended becomes a child of the subreaper. So
	// children also finds processes that tests leave running.
	const setChildSubreaper = 36 // PR_SET_CHILD_SUBREAPER of prctl(2)
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, setChildSubreaper, 1, 0); errno != 0 {
		return 0, fmt.Errorf("becoming a subreaper: %w", errno)
	}
	folder, err := os.MkdirTemp(temporary(), "t")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder)) }()
	if err := os.Chmod(folder, 0o777|os.ModeSticky); err != nil { // like /tmp, because some tests run as other users
		return 0, err
	}
	// This process passes signals on and waits until they end the tests, because it must clean up
	// after the tests. (A Ctrl-C also reaches the tests directly.)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)

	a := attempt{signals: signals, environ: slices.DeleteFunc(os.Environ(), func(v string) bool { return strings.HasPrefix(v, "TMPDIR=") })}
	a.environ = append(a.environ, "TMPDIR="+folder)
	began := time.Now()
	r, status, err := a.run(command)
	if err != nil {
		return status, err
	}
	over, err := r.durations(l)
	if err != nil {
		return status, err
	}
	if status == 0 && len(over) > 0 {
		r.print("\ntoo slow, and run once more:\n")
		if over, status, err = a.again(command, over, l); err != nil {
			return status, err
		}
	}
	r.summary(over, time.Since(began))
	if status == 0 && len(over) > 0 {
		status = 1
	}
	return status, nil
}

// attempt is how commands are run.
type attempt struct {
	environ []string
	signals <-chan os.Signal
	alone   bool // the command runs the tests of one package
}

// run runs the command, and returns what was reported until all its processes have ended.
func (a *attempt) run(command []string) (r *report, status int, err error) {
	path, err := exec.LookPath(command[0])
	if err != nil {
		return nil, 0, err
	}
	output, theirs, err := os.Pipe()
	if err != nil {
		return nil, 0, err
	}
	speed := startPace(a.alone)
	tests, err := syscall.ForkExec(path, slices.Insert(slices.Clone(command), 2, "-json"), &syscall.ProcAttr{
		Env: a.environ, Files: []uintptr{0, theirs.Fd(), 2},
	})
	if err != nil {
		speed.Close()
		return nil, 0, fmt.Errorf("starting %s: %w", path, err)
	}
	_ = theirs.Close() // so that output ends when the last process that writes to it has ended
	ended := make(chan struct{})
	defer close(ended)
	go func() {
		for {
			select {
			case s := <-a.signals:
				_ = syscall.Kill(tests, s.(syscall.Signal)) // go test may have ended
			case <-ended:
				return
			}
		}
	}()
	r = &report{out: os.Stdout, speed: speed, held: map[test][]string{}, running: map[test]bool{}, skipped: map[string][]string{}}
	read := make(chan error, 1)
	go func() { read <- r.read(output) }()
	status, err = reap(tests)
	r.left = endChildren()
	err = errors.Join(err, <-read)
	speed.Close()
	return r, status, err
}

// again runs what took too long once more, without other packages beside it. It returns what took too long again.
func (a *attempt) again(command []string, over []slow, l limits) (again []slow, status int, err error) {
	a.alone = true
	l.file = "" // it has the durations of the whole run
	command = slices.DeleteFunc(slices.Clone(command), func(word string) bool { return strings.HasPrefix(word, "./") })
	names := map[string][]string{}
	for _, s := range over {
		name, _, _ := strings.Cut(s.name, "/")
		names[s.pkg] = append(names[s.pkg], regexp.QuoteMeta(name))
	}
	for _, pkg := range slices.Sorted(maps.Keys(names)) {
		alone := append(slices.Clone(command), pkg)
		if !slices.Contains(names[pkg], "") { // else the package itself took too long
			alone = append(alone, "-run", "^("+strings.Join(names[pkg], "|")+")$")
		}
		r, failed, err := a.run(alone)
		if err != nil {
			return again, failed, err
		}
		found, err := r.durations(l)
		if err != nil {
			return again, failed, err
		}
		r.list("failed", r.wrong)
		status = cmp.Or(status, failed)
		for _, s := range found {
			if slices.ContainsFunc(over, func(first slow) bool { return first.test == s.test }) {
				again = append(again, s)
			}
		}
	}
	return again, status, nil
}

// temporary returns the folder for temporary files: TMPDIR, or /tmp if that does not do. The path
// must be short, because the path of a socket may have only 107 bytes (unix(7)). All users must be
// able to enter the folder, because some tests run programs in it as other users.
func temporary() string {
	dir := os.TempDir()
	if len(dir) > 16 || !filepath.IsAbs(dir) {
		return "/tmp"
	}
	for parent := dir; ; parent = filepath.Dir(parent) {
		if info, err := os.Stat(parent); err != nil || !info.IsDir() || info.Mode()&0o001 == 0 {
			return "/tmp"
		}
		if parent == "/" {
			return dir
		}
	}
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

// children returns the children of this process: those that it has started, and the orphans that it
// has got as a subreaper.
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
