package applypatch

import (
	"bytes"
	"fmt"
	"strings"
)

// Bounds of the search for the nearest lines, which is for a message only.
const (
	nearLines  = 1 << 20  // of the file that are looked at
	nearBytes  = 64 << 20 // of it
	nearWanted = 64       // expected lines that are looked for, and lines that are shown
	nearCommon = 8        // places of a line among those that are expected
	nearShown  = 400      // bytes of a line that are shown
)

// nearest returns the end of a message about expected lines that were not found: the lines of the
// file that are most like them, or "" if none are like them. The expected lines should have come at
// or after from.
func (s *search) nearest(want []string, from int) string {
	want = want[:min(len(want), nearWanted)]
	places := map[string][]int{} // of an expected line among the others
	for i, line := range want {
		key := strings.TrimSpace(line)
		if key != "" && len(places[key]) < nearCommon {
			places[key] = append(places[key], i)
		}
	}
	// Each line of the file that is expected says where the block would begin. The beginning that most
	// lines name is the nearest. Lines alone decide if no line is expected.
	type window struct{ line, votes, likeness int }
	var best, alike window
	votes := map[int]int{}
	starts := []int{}
	for at, n := s.first, 0; at < len(s.data) && n < nearLines && at < nearBytes; n++ {
		end, next := s.line(at)
		line := bytes.TrimSpace(s.data[at:end])
		starts = append(starts, at)
		for _, i := range places[string(line)] {
			start := n - i
			if votes[start]++; start >= 0 && votes[start] > best.votes {
				best = window{line: start, votes: votes[start]}
			}
		}
		if best.votes == 0 {
			for i, wanted := range want[:min(len(want), nearCommon)] {
				if l := likeness(line, strings.TrimSpace(wanted)); l > alike.likeness && n >= i {
					alike = window{line: n - i, likeness: l}
				}
			}
		}
		at = next
	}
	if best.votes == 0 {
		best = alike
	}
	if best == (window{}) {
		return ""
	}
	last := min(best.line+len(want), len(starts)) - 1
	var out strings.Builder
	if last == best.line {
		fmt.Fprintf(&out, "\nThe nearest line is %d", best.line+1)
	} else {
		fmt.Fprintf(&out, "\nThe nearest lines are %d to %d", best.line+1, last+1)
	}
	if starts[best.line] < from {
		out.WriteString(", before the place where the search began")
	}
	out.WriteString(":")
	for _, at := range starts[best.line : last+1] {
		end, _ := s.line(at)
		line := s.data[at:end]
		if len(line) > nearShown {
			line = append(bytes.ToValidUTF8(line[:nearShown:nearShown], nil), "..."...)
		}
		out.WriteByte('\n')
		out.Write(line)
	}
	return out.String()
}

// likeness is how much of two lines is the same at their beginnings and ends, in percent. Less than
// half is nothing.
func likeness(line []byte, want string) int {
	shorter, longer := min(len(line), len(want)), max(len(line), len(want))
	if 2*shorter < longer || shorter == 0 {
		return 0
	}
	same := 0
	for same < shorter && line[same] == want[same] {
		same++
	}
	for end := 1; same < shorter && line[len(line)-end] == want[len(want)-end]; end++ {
		same++
	}
	if 2*same < longer {
		return 0
	}
	return 100 * same / longer
}
