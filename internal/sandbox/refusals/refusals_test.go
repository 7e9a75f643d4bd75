package refusals

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

const cases = "testdata/refusals.txt"

func policyOf(name string) *sandbox.Policy {
	all := map[string]*sandbox.Policy{
		"all": {
			Confined: true, Globs: []sandbox.Glob{{Base: "/w", Pattern: "**/*.env"}},
			Rules: []sandbox.Rule{
				{Path: "/", Access: sandbox.Read}, {Path: "/run/agent", Access: sandbox.Denied, Origin: sandbox.Private},
				{Path: "/vault", Access: sandbox.Denied}, {Path: "/w", Access: sandbox.Write}, {Path: "/w/.git", Access: sandbox.Read, Origin: sandbox.Protected},
			},
		},
		"readonly": {Confined: true, Rules: []sandbox.Rule{{Path: "/", Access: sandbox.Read}}},
		"writes":   {Confined: true, Rules: []sandbox.Rule{{Path: "/", Access: sandbox.Write}}},
		"view":     {Confined: true},
		"free":     {},
	}
	for _, path := range []string{"/a", "/b", "/c", "/d", "/e"} {
		all["view"].Rules = append(all["view"].Rules, sandbox.Rule{Path: path, Access: sandbox.Write})
	}
	return all[name]
}

func TestLines(t *testing.T) {
	for _, row := range rig.Rows(t, cases, "files", 3) {
		op := Operation(row[0])
		r := OfFile(policyOf("all"), op, row[1])
		log := new(Log)
		log.Add(r)
		all, _ := log.All()
		rig.Is(t, all[0].Line(Flags), row[2], "%s", row[1])
	}
	for _, row := range rig.Rows(t, cases, "asked", 3) {
		rig.Is(t, Words(Need(row[0]), row[1]), row[2], "%s", row[0])
	}
	for _, row := range rig.Rows(t, cases, "failed", 3) {
		rig.Is(t, Limits(policyOf(row[1]), rig.Value(strconv.Atoi(row[0])), Flags), row[2], "%s", row)
	}
}

// TestFile: what one process notes, another reads, within the bounds, and a command that goes on and on
// changes only numbers.
func TestFile(t *testing.T) {
	fd := rig.Value(NewFile())
	defer unix.Close(fd)
	empty := new(Log)
	empty.ReadFile(fd)
	all, more := empty.All()
	rig.Is(t, len(all)+more, 0, "refusals of a new file")

	to := ToFile(fd)
	for i := range 100 {
		for range 3 {
			to.Add(Refusal{Layer: File, Operation: Read, Subject: fmt.Sprintf("/%d/%s", i, strings.Repeat("x", 2*maxSubject)), Reason: "no"})
		}
	}
	want, lost := to.All()
	var from Log
	from.ReadFile(fd)
	got, more := from.All()
	rig.Same(t, "the file", want, got)
	rig.Is(t, more, lost, "refusals that were not kept")
	rig.Is(t, len(got)*3+more, 300, "refusals")
	rig.Is(t, len(got) <= maxKept && len(got[0].Subject) < maxSubject+8, true, "the bounds: %d of %d bytes", len(got), len(got[0].Subject))

	rig.Is(t, len(Lines(got, more, true, Words)), maxLines, "lines of a command that failed")
	lines := Lines(got[:3], 0, false, Words)
	rig.Is(t, len(lines), 1, "lines of a command that did not fail")
	rig.Is(t, strings.HasSuffix(lines[0], "(3 times): no (and 6 more); the command did not fail"), true, "the end of %s", lines[0])
}

func TestUnderCeiling(t *testing.T) {
	asked := policyOf("all")
	all := []Refusal{{Layer: File, Operation: Write, Subject: "/w/x"}, {Layer: File, Operation: Write, Subject: "/etc/x"}, {Layer: Socket, Operation: Connect, Subject: "/w/s"}}
	UnderCeiling(all, asked)
	rig.Same(t, "layers", []Layer{Ceiling, File, Socket}, []Layer{all[0].Layer, all[1].Layer, all[2].Layer})
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
