package rule

import (
	"fmt"
	"slices"
	"strings"
)

// Decision is what a rule says about a command. A stricter one is greater, so that the decision of
// several rules is their maximum.
type Decision uint8

// The decisions, from the mildest on.
const (
	Allow Decision = iota
	Prompt
	Forbidden
)

var decisions = [...]string{Allow: "allow", Prompt: "prompt", Forbidden: "forbidden"}

func (d Decision) String() string { return decisions[d] }

// ParseDecision returns the decision with this name. The case counts.
func ParseDecision(name string) (Decision, error) {
	if i := slices.Index(decisions[:], name); i >= 0 {
		return Decision(i), nil
	}
	return Forbidden, fmt.Errorf("invalid decision: %s (allow, prompt or forbidden)", name)
}

// A Rule decides about the commands that begin as its pattern does. It is not changed once its
// [Set] is asked.
type Rule struct {
	// Pattern has for each place the words that may stand there. The first place has one.
	Pattern  [][]string
	Decision Decision
	// Justification is why, in the words of who wrote the rule; "" if they said nothing.
	Justification string
	// Origin is where the rule was written, as FILE:LINE:COLUMN; "" for nowhere.
	Origin string

	// folded is Pattern without differences of case, for a rule to which these do not matter.
	folded [][]string
}

// Caseless makes the words of the pattern match every spelling that is canonically and but for case
// the same: "git" matches "GIT", "é" an e with an accent of its own.
func (r *Rule) Caseless() {
	r.folded = make([][]string, len(r.Pattern))
	for i, words := range r.Pattern {
		for _, word := range words {
			r.folded[i] = append(r.folded[i], fold(word))
		}
	}
}

// matches reports whether a command begins as the pattern does. Its first word is compared by
// whoever has looked the rule up.
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
	folded []string // of argv, as far as it was needed
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
	// Prefix are the words of the command that were compared. The first is the name of the program
	// if the rule names it, and the command its path.
	Prefix []string
	// Program is that path, made absolute; "" if the rule has the program as the command has it.
	Program string
}

// Strictest returns the decision of all matches, and whether there is one.
func Strictest(matches []Match) (d Decision, ok bool) {
	for _, m := range matches {
		d = max(d, m.Decision)
	}
	return d, len(matches) > 0
}

// quoteSafe are the characters, besides letters and digits, that mean nothing to a shell.
const quoteSafe = "_@%+=:,./-"

// Quote renders a command as a shell would read it.
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

// IsCaseless reports whether case does not matter to the rule.
func (r *Rule) IsCaseless() bool { return r.folded != nil }
