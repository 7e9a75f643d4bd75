package execpolicy

import (
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/execagent/execagent/internal/execpolicy/rule"
)

// Current is the policy of an operator, which can be replaced while it is asked. Nil is none. Its
// methods may be called at once.
type Current struct {
	add func(prefix []string) // nil: only the operator adds rules

	mu       sync.Mutex // guards what follows
	policy   *Policy
	watching map[*func()]struct{}
}

// NewCurrent returns a Current with a policy in force. Add adds a rule to the files of the operator
// that allows the commands with a beginning, and has it put into force; nil where what clients
// accept is not to be added.
func NewCurrent(p *Policy, add func(prefix []string)) *Current {
	return &Current{policy: p, add: add, watching: map[*func()]struct{}{}}
}

// Set puts another policy into force.
func (c *Current) Set(p *Policy) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.policy = p
	for f := range c.watching {
		(*f)()
	}
	clear(c.watching)
}

// Policy returns the policy in force, nil for none.
func (c *Current) Policy() *Policy {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.policy
}

// Replaced has f called once, as soon as p is not in force any more, or at once if it is not now.
// f must return at once, and not call c. Stop ends that.
func (c *Current) Replaced(p *Policy, f func()) (stop func()) {
	if c == nil {
		return func() {}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.policy != p {
		f()
		return func() {}
	}
	c.watching[&f] = struct{}{}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.watching, &f)
	}
}

// Amend adds a rule that allows the commands with a beginning, since a client has accepted one of
// them with that; verdict judges this command. It does nothing where that is not wanted, where the
// operator's policy would not have asked about this command, and where the rule could lift what
// another one says.
func (c *Current) Amend(command, prefix []string, verdict func(*Policy) Verdict) {
	if c == nil || c.add == nil {
		return
	}
	p := c.Policy()
	if v := verdict(p); v.Decision != rule.Prompt || !slices.Equal(v.Proposed(), command) {
		return
	}
	if len(prefix) > len(command) || !slices.Equal(prefix, command[:len(prefix)]) || TooWide(prefix) {
		return
	}
	// A rule for the path of a program hides those for its name.
	if strings.Contains(prefix[0], "/") && p.Rules != nil && p.Rules.Restricts(path.Base(prefix[0])) {
		return
	}
	c.add(prefix)
}
