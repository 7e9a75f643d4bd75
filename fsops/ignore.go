package fsops

import (
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"

	"github.com/execagent/execagent/internal/braces"
)

// Bounds of the rules about paths of a search.
const (
	// MaxSearchGlob is the length of a glob, in bytes. A longer line of a .gitignore is no rule.
	MaxSearchGlob = 512
	// maxGlobChoices bounds the patterns without braces that all globs of a search stand for.
	maxGlobChoices = 1024
	// maxIgnoreBytes bounds the .gitignore files that apply to one directory, together.
	maxIgnoreBytes = 1 << 20
)

// pathRule is a line of a .gitignore, or a glob of a search, which has the same form; gitignore(5).
type pathRule struct {
	pattern   string
	negated   bool // it began with "!"
	directory bool // it is about directories only
	named     bool // it is about the name, at every depth, and not about the path
	plain     bool // the pattern has no wildcard
}

// doublestar has no "]" at the beginning of a class, and git has braces nowhere.
var (
	classes  = strings.NewReplacer(`\\`, `\\`, `\[`, `\[`, `[]`, `[\]`, `[!]`, `[!\]`, `[^]`, `[^\]`)
	noBraces = strings.NewReplacer(`\\`, `\\`, `\{`, `\{`, `\}`, `\}`, "{", `\{`, "}", `\}`)
)

// newPathRules reads a line. It returns a rule for each choice of the braces, at most most, and none if the line
// holds no rule. ok is false if there are more.
func newPathRules(line string, most int) (rules []pathRule, ok bool) {
	var r pathRule
	line, r.negated = strings.CutPrefix(line, "!")
	line, r.directory = strings.CutSuffix(line, "/")
	r.named = !strings.Contains(line, "/")
	line = classes.Replace(strings.TrimPrefix(line, "/"))
	if line == "" || len(line) > MaxSearchGlob || !doublestar.ValidatePattern(line) {
		return nil, true
	}
	choices, ok := braces.Expand(line, most)
	for _, pattern := range choices {
		// doublestar does not let three stars in a row match nothing, and has no other meaning for them.
		for strings.Contains(pattern, "***") {
			pattern = strings.ReplaceAll(pattern, "***", "**")
		}
		if strings.HasSuffix(pattern, "/**") {
			pattern += "/*" // what is in the directory, and not the directory
		}
		r.pattern, r.plain = pattern, !strings.ContainsAny(pattern, `*?[\`)
		rules = append(rules, r)
	}
	return rules, ok
}

// matches reports whether the rule is about a path.
func (r *pathRule) matches(path string, directory bool) bool {
	if r.directory && !directory {
		return false
	}
	if r.named {
		path = path[strings.LastIndexByte(path, '/')+1:]
	}
	if r.plain {
		return path == r.pattern
	}
	return doublestar.MatchUnvalidated(r.pattern, path)
}

// maxUnasked bounds the work between two questions whether a search is over. The unit is a byte of a path that a
// byte of a pattern is compared with; no pattern without braces needs more than the product of both lengths.
const maxUnasked = 1 << 16

// decide returns the last rule that is about path, or nil. It gives up when over says so.
func decide(rules []pathRule, path string, directory bool, over func() bool) *pathRule {
	work := 0
	for i := len(rules) - 1; i >= 0; i-- {
		if work += len(rules[i].pattern) * len(path); work > maxUnasked {
			if work = 0; over() {
				return nil
			}
		}
		if rules[i].matches(path, directory) {
			return &rules[i]
		}
	}
	return nil
}

// readIgnore returns the rules of a .gitignore. Braces mean nothing there.
func readIgnore(text string) (rules []pathRule) {
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\r\n")
		for strings.HasSuffix(line, " ") && !strings.HasSuffix(line, `\ `) {
			line = line[:len(line)-1]
		}
		if strings.HasPrefix(line, "#") {
			continue
		}
		r, _ := newPathRules(noBraces.Replace(line), 1)
		rules = append(rules, r...)
	}
	return rules
}

// globs are the globs of a search. The last one that is about a path decides, as in a .gitignore, but a
// path is taken by a glob, and left out by one with "!".
type globs struct {
	rules []pathRule
	takes bool // some glob takes paths: others are left out
}

func newGlobs(patterns []string) (g globs, err error) {
	for i, pattern := range patterns {
		r, ok := newPathRules(pattern, maxGlobChoices-len(g.rules))
		if !ok {
			return globs{}, invalidf("globs: the braces stand for more than %d patterns", maxGlobChoices)
		}
		if len(r) == 0 {
			return globs{}, invalidf("globs: glob %d, %.64q, is malformed, or longer than %d bytes", i, pattern, MaxSearchGlob)
		}
		g.rules, g.takes = append(g.rules, r...), g.takes || !r[0].negated
	}
	return g, nil
}

// take reports whether a path is looked at.
func (g *globs) take(path string, directory bool, over func() bool) bool {
	if r := decide(g.rules, path, directory, over); r != nil {
		return !r.negated
	}
	return !g.takes
}

// enter reports whether a directory is entered.
func (g *globs) enter(path string, over func() bool) bool {
	r := decide(g.rules, path, true, over)
	return r == nil || !r.negated
}

// ignoreFile is a .gitignore: its rules, and how long the path of its directory is, with a slash.
type ignoreFile struct {
	rules []pathRule
	below int
}

// ignored reports whether the innermost of files that has a rule about path ignores it.
func ignored(files []ignoreFile, path string, directory bool, over func() bool) bool {
	for _, file := range slices.Backward(files) {
		if r := decide(file.rules, path[file.below:], directory, over); r != nil {
			return !r.negated
		}
	}
	return false
}
