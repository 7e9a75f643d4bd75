package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"
)

// event is a line that go test -json prints; go doc test2json describes it.
type event struct {
	Time    time.Time
	Action  string
	Package string
	Test    string
	Output  string
	Elapsed float64 // seconds
}

// test names a test. With an empty name it stands for the package itself.
type test struct{ pkg, name string }

// report turns the events of go test -json into the output of go test without -v.
type report struct {
	out     io.Writer
	held    map[test][]string   // output of tests that have not ended yet, or have failed
	running map[test]bool       // without those that wait for their turn
	skipped map[string][]string // tests by reason
	wrong   []string
	ended   []ended
	left    []string // processes that the tests have left running
	speed   *pace
}

// ended is a test, or the tests of a package, that passed or failed.
type ended struct {
	test
	at   time.Time
	took time.Duration
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

// line reads one line. It keeps the output of a test until the result of its package, because the
// output of passing tests is never printed.
func (r *report) line(line string) {
	var e event
	if json.Unmarshal([]byte(line), &e) != nil {
		r.print(line) // no event, but a message of the go command itself
		return
	}
	t := test{e.Package, e.Test}
	switch e.Action {
	case "run", "cont":
		r.running[t] = true
	case "pause", "skip", "pass", "fail":
		delete(r.running, t)
	}
	if e.Action == "pass" || e.Action == "fail" {
		r.ended = append(r.ended, ended{t, e.Time, time.Duration(e.Elapsed * float64(time.Second))})
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
			why := reason(r.held[t])
			r.skipped[why] = append(r.skipped[why], e.Package+" "+e.Test)
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

// failed prints the output of the tests of a package, except tests that passed or were skipped.
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

// narrates reports whether a line only says that a test begins, waits or goes on,
// which go test prints with -v alone.
func narrates(line string) bool {
	for _, prefix := range []string{"=== RUN ", "=== PAUSE ", "=== CONT ", "=== NAME "} {
		if strings.HasPrefix(line, prefix) {
			return true
		}
	}
	return false
}

// reason returns why a test was skipped: the last line that names its place in a test, without that
// place, or else the last line that the test printed.
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
		_, _ = io.WriteString(r.out, line) // an error cannot be reported elsewhere
	}
}

// summary prints which tests were skipped, which processes the tests have left running, which tests
// took too long or failed, and how long everything took. Failures come late, because often only the
// end of a long output is kept.
func (r *report) summary(over []slow, took time.Duration) {
	r.leftOut()
	slices.Sort(r.wrong)
	r.list("left running by the tests, and ended", r.left)
	var lines []string
	for _, s := range over {
		lines = append(lines, s.line)
	}
	r.list("too slow", lines)
	r.list("failed", r.wrong)
	r.print(fmt.Sprintf("\ntook %v\n", took.Round(time.Second)))
}

// leftOut prints the tests that were skipped, those with one reason together.
func (r *report) leftOut() {
	total := 0
	for _, tests := range r.skipped {
		total += len(tests)
	}
	if total == 0 {
		return
	}
	r.print(fmt.Sprintf("\nleft out (%d):\n", total))
	for _, why := range slices.Sorted(maps.Keys(r.skipped)) {
		tests := r.skipped[why]
		slices.Sort(tests)
		if len(tests) == 1 {
			r.print(fmt.Sprintf("  %.300s: %.300s\n", tests[0], why))
			continue
		}
		r.print(fmt.Sprintf("  %.300s (%d):\n", why, len(tests)))
		for _, name := range tests {
			r.print(fmt.Sprintf("    %.300s\n", name))
		}
	}
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
