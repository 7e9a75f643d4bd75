package rule

import (
	"fmt"
	"slices"
	"strings"
)

// Decision is the decision of a rule about a command. A stricter decision is greater, so that the
// decision of several rules is their maximum.
type Decision uint8

// The decisions, from the mildest to the strictest.
const (
	Allow Decision = iota
	Prompt
	Forbidden
)

var decisions = [...]string{Allow: "allow", Prompt: "prompt", Forbidden: "forbidden"}

func (d Decision) String() string { return decisions[d] }

// ParseDecision returns the decision with this name. Names are case-sensitive.
func ParseDecision(name string) (Decision, error) {
	if i := slices.Index(decisions[:], name); i >= 0 {
		return Decision(i), nil
	}
	return Forbidden, fmt.Errorf("invalid decision: %s (allow, prompt or forbidden)", name)
}

// A Rule decides about the commands that begin with its pattern. It must not be changed once its
// [Set] is in use.
type Rule struct {
	// Pattern has, for each position, the words that match there. The first position has exactly one
	// word.
	Pattern  [][]string
	Decision Decision
	// Justification is the reason for the rule, in the words of its author; "" if the author gave
	// none.
	Justification string
	// Origin is the position of the rule, as FILE:LINE:COLUMN; "" if the rule comes from no file.
	Origin string

	// folded is Pattern without differences of case; nil for a case-sensitive rule.
	folded [][]string
}

// Caseless makes the words of the pattern match every spelling that differs only in case or
// canonical form: "git" matches "GIT", and a composed "é" matches an e with a combining accent.
func (r *Rule) Caseless() {
	r.folded = make([][]string, len(r.Pattern))
	for i, words := range r.Pattern {
		for _, word := range words {
			r.folded[i] = append(r.folded[i], fold(word))
		}
	}
}

// matches reports whether a command begins with the pattern. The caller has compared the first
// word, because rules are looked up by it.
func (r *Rule) matches(c *command) bool {
	if len(c.argv) < len(r.Pattern) {
		return false
	}
	for i := 1; i < len(r.Pattern); i++ {
		if r.folded != nil {
			if !slices.Contains(r.folded[i], c.fold(i)) {
				return false
			}
		} else if !slices.Contains(r.Pattern[i], c.argv[i]) {
			return false
		}
	}
	return true
}

// command is a command that is compared with many rules.
type command struct {
	argv   []string
	folded []string // the first words of argv, folded when needed
}

// fold returns a word without differences of case.
func (c *command) fold(i int) string {
	for len(c.folded) <= i {
		c.folded = append(c.folded, fold(c.argv[len(c.folded)]))
	}
	return c.folded[i]
}

// A Match is a rule that matches a command.
type Match struct {
	*Rule
	// Prefix are the words of the command that were compared. If the rule names the program and the
	// command has its path, the first word is the name.
	Prefix []string
	// Program is the absolute path of the program if Prefix has its name instead of its path; ""
	// otherwise.
	Program string
}

// Strictest returns the strictest decision of the matches, and reports whether there is a match.
func Strictest(matches []Match) (d Decision, ok bool) {
	for _, m := range matches {
		d = max(d, m.Decision)
	}
	return d, len(matches) > 0
}

// quoteSafe are the characters, besides letters and digits, that have no special meaning in a
// shell.
const quoteSafe = "_@%+=:,./-"

// Quote formats a command so that a shell reads the same words.
func Quote(argv []string) string {
	var b strings.Builder
	for i, word := range argv {
		if i > 0 {
			b.WriteByte(' ')
		}
		plain := word != "" && strings.IndexFunc(word, func(r rune) bool {
			return !('a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune(quoteSafe, r))
		}) < 0
		if plain {
			b.WriteString(word)
		} else {
			b.WriteString("'" + strings.ReplaceAll(word, "'", `'\''`) + "'")
		}
	}
	return b.String()
}

// IsCaseless reports whether the rule ignores case.
func (r *Rule) IsCaseless() bool { return r.folded != nil }
