package execpolicy

import (
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/execagent/execagent/internal/execpolicy/rule"
)

// A Current holds the policy of an operator, and can replace it at any time. A nil Current has no
// policy. Its methods may be called concurrently.
type Current struct {
	add func(prefix []string) // nil: clients cannot add rules

	mu       sync.Mutex // guards the fields below
	policy   *Policy
	watching map[*func()]struct{}
}

// NewCurrent returns a Current with a policy in force. add adds a rule to the operator's files that
// allows the commands that begin with prefix, and puts the rule into force. add is nil if commands
// that clients accept must not add rules.
func NewCurrent(p *Policy, add func(prefix []string)) *Current {
	return &Current{policy: p, add: add, watching: map[*func()]struct{}{}}
}

// Set puts another policy into force, and calls the functions of Replaced.
func (c *Current) Set(p *Policy) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.policy = p
	for f := range c.watching {
		(*f)()
	}
	clear(c.watching)
}

// Policy returns the policy in force, or nil if there is none.
func (c *Current) Policy() *Policy {
	if c == nil {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.policy
}

// Replaced calls f once when p is no longer in force, or immediately if p is not in force now. f
// must return quickly and must not call c. stop cancels the call.
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

// Amend adds a rule that allows the commands that begin with prefix, after a client has accepted
// command and proposed this rule. verdict judges command. Amend does nothing if no rules may be
// added, or if the operator's policy would not have asked about command. It also does nothing if
// the rule would be too wide or could override another rule.
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
	// A rule for the path of a program has priority over rules for its name.
	if strings.Contains(prefix[0], "/") && p.Rules != nil && p.Rules.Restricts(path.Base(prefix[0])) {
		return
	}
	c.add(prefix)
}
