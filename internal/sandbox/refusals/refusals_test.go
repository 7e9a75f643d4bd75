package refusals

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/pack"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

const cases = "testdata/refusals.txt"

// policyOf returns a policy of testdata.
func policyOf(t *testing.T, name string) *sandbox.Policy {
	t.Helper()
	p := &sandbox.Policy{}
	switch name {
	case "free":
		return p
	case "online":
		name, p.Network = "readonly", sandbox.NetworkEnabled
	}
	kinds := map[string]sandbox.Rule{
		"read": {Access: sandbox.Read}, "write": {Access: sandbox.Write}, "denied": {Access: sandbox.Denied},
		"private": {Access: sandbox.Denied, Origin: sandbox.Private}, "protected": {Access: sandbox.Read, Origin: sandbox.Protected},
	}
	for _, row := range rig.Rows(t, cases, "policy "+name, 2) {
		r := kinds[row[0]]
		if r.Path, p.Confined = row[1], true; row[0] == "glob" {
			p.Globs = append(p.Globs, sandbox.Glob{Base: "/w", Pattern: row[1]})
		} else {
			p.Rules = append(p.Rules, r)
		}
	}
	return p
}

func TestLines(t *testing.T) {
	for _, row := range rig.Rows(t, cases, "files", 3) {
		op := Operation(row[0])
		r := OfFile(policyOf(t, "all"), op, row[1])
		log := new(Log)
		log.Add(r)
		all, _ := log.All()
		rig.Is(t, all[0].Line(Flags), row[2], "%s", row[1])
		UnderCeiling(all, policyOf(t, "ceiling"), policyOf(t, "readonly"))
		rig.Is(t, all[0].Layer == Ceiling, strings.HasPrefix(row[1], "/etc/"), "%s: the ceiling refuses", row[1])
	}
	for _, row := range rig.Rows(t, cases, "asked", 3) {
		rig.Is(t, Words(Need(row[0]), row[1]), row[2], "%s", row[0])
	}
	for _, row := range rig.Rows(t, cases, "failed", 3) {
		rig.Is(t, Limits(policyOf(t, row[1]), rig.Value(strconv.Atoi(row[0])), Flags), row[2], "%s", row)
	}
}

// TestFile: what one process notes, another reads, within the bounds, and a command that goes on and on
// changes only numbers.
func TestFile(t *testing.T) {
	fd := rig.Value(pack.SizedFile("refusals", FileSize))
	defer unix.Close(fd)
	empty := new(Log)
	empty.ReadFile(fd)
	all, more := empty.All()
	rig.Is(t, len(all)+more, 0, "refusals of a new file")

	to := ToFile(fd)
	for i := range 100 {
		for range 3 {
			to.Add(Refusal{Layer: File, Operation: Read, Subject: fmt.Sprintf("/%d/%s", i, strings.Repeat("x", 2*maxSubject)), Reason: "no"})
			to.Add(Refusal{Layer: File, Operation: Remove, Subject: fmt.Sprint("/logs/", i), Reason: "no", Need: ToWrite, At: "/logs"})
		}
	}
	want, lost := to.All()
	var from Log
	from.ReadFile(fd)
	got, more := from.All()
	rig.Same(t, "the file", want, got)
	rig.Is(t, more, lost, "refusals that were not kept")
	rig.Is(t, len(got)*3+more, 600, "refusals")
	rig.Is(t, slices.IndexFunc(got, func(r Refusal) bool { return strings.HasPrefix(r.Subject, "/20/") }) > 0, true, "one folder leaves room")
	rig.Is(t, len(got) <= maxKept && len(got[0].Subject) < maxSubject+8, true, "the bounds: %d of %d bytes", len(got), len(got[0].Subject))

	rig.Is(t, len(Lines(got, more, true, Words)), maxLines, "lines of a command that failed")
	lines := Lines(got[:3], 0, false, Words)
	rig.Is(t, len(lines), 1, "lines of a command that did not fail")
	rig.Is(t, strings.HasSuffix(lines[0], "(3 times): no (and 6 more); the command did not fail"), true, "the end of %s", lines[0])
}

// FuzzFile: a file that somebody else has written is read within the bounds.
func FuzzFile(f *testing.F) {
	r := Refusal{Layer: File, Operation: Write, Subject: "/x", Reason: "no", Need: ToWrite, At: "/"}
	rest := r.encode()
	f.Add(slices.Concat(counted(2), counted(1), counted(len(rest)), rest))
	f.Fuzz(func(t *testing.T, b []byte) {
		var l Log
		l.read(b)
		all, more := l.All()
		rig.Is(t, len(all) <= maxKept && more >= 0, true, "%d refusals and %d more", len(all), more)
		for _, line := range Lines(all, more, true, Flags) {
			rig.Is(t, strings.ContainsAny(line, "\x1b\n\r"), false, "control characters in %q", line)
		}
	})
}
