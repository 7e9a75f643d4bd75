package e2e

import (
	_ "embed" // a virtual machine has no testdata
	"regexp"
	"slices"
	"strings"
)

//go:embed testdata/escape/ends
var endsText string

// escapes are the lines of testdata/escape/ends for everywhere, by the number of an attempt, and
// differences the others.
var escapes, differences = readEnds(endsText)

// difference says what some attempts end with in some modes or at some sites.
type difference struct {
	where, attempts []string
	ends            string
}

var endsLine = regexp.MustCompile(`^(?:\[(.+)\] )?(.+): (.+)\n$`)

func readEnds(text string) (map[string]string, []difference) {
	all, differ := map[string]string{}, []difference(nil)
	text = regexp.MustCompile(`(?m)^(#.*)?\n`).ReplaceAllString(text, "")
	for line := range strings.Lines(strings.ReplaceAll(text, "\n    ", " ")) {
		found := endsLine.FindStringSubmatch(line)
		if found == nil {
			panic("what is " + line)
		}
		d := difference{strings.Fields(found[1]), strings.Fields(found[3]), found[2]}
		if len(d.where) > 0 {
			differ = append(differ, d)
			continue
		}
		for _, number := range d.attempts {
			if all[number] != "" {
				panic("two ends of attempt " + number)
			}
			all[number] = d.ends
		}
	}
	return all, differ
}

// expected are the ends that an attempt may have.
func (s escapeSite) expected(n, mode string) string {
	expected, others, _ := strings.Cut(escapes[n], ", ")
	for other := range strings.SplitSeq(others, ", ") {
		if in, its, _ := strings.Cut(other, " "); in == mode || in == "ww" && writes(mode) {
			expected = its
		}
	}
	for _, d := range differences {
		if slices.Contains(d.attempts, n) && !slices.ContainsFunc(d.where, func(word string) bool { return !s.is(word, mode) }) {
			expected = d.ends
		}
	}
	return expected
}

// is reports whether a word of testdata/escape/ends is true of a mode at the site; with a ! before it,
// whether it is not.
func (s escapeSite) is(word, mode string) bool {
	if other, ok := strings.CutPrefix(word, "!"); ok {
		return !s.is(other, mode)
	}
	open := mode == "plain" || mode == "work"
	publicProc := slices.Contains([]means{sharedPIDs, sharedUnguarded, landlockOnly}, s.kind.means)
	unguarded := slices.Contains([]means{noLandlock, sharedUnguarded, nothing}, s.kind.means)
	is, known := map[string]bool{
		"plain": mode == "plain", "view": mode == "view", "work": mode == "work", "network": mode == "net", "writing": writes(mode), "open": open, "names": s.names(mode),
		"container":   s.containers != nil,
		"root":        s.uid == 0,
		"visible":     slices.Contains(s.flags, metadataVisible),
		"public-proc": publicProc,
		"unguarded":   unguarded,
		"own-pids":    !publicProc || unguarded,
		"no-mounts":   s.kind.means == landlockOnly,
		"supervised":  s.kind.means == supervisor || s.kind.means == oldSupervisor,
		"old":         s.kind.means == oldSupervisor,
		"direct":      s.kind.means == supervisor && open,
		"own-filter":  s.kind.name == "root without capabilities",
		"privileged":  s.kind.name == "privileged",
	}[word]
	if !known {
		panic("what is " + word)
	}
	return is
}
