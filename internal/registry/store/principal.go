// Package principal says whom a registry deals with and what they may: each principal
// has a role, a pattern of environments, and limits. Principals are plain values, which
// nobody changes; the store makes them from keys and identities.
package store

import (
	"errors"
	"strings"

	"github.com/execagent/execagent/internal/registry/ticket"
)

// Principal is one whose credential a registry knows: the holder of an API key or an
// agent with an identity. It makes requests and has websockets open.
type Principal struct {
	ID           string // a prefix and the id of the key or the agent; no secret
	Role         ticket.Role
	Environments string // pattern, in which * stands for any characters or none
	Limits       Limits // of its own; for zero members those of the server count
}

// KeyPrefix and AgentPrefix begin the ids of principals that have an API key, or an
// agent identity.
const (
	KeyPrefix   = "key:"
	AgentPrefix = "agent:"
)

// May tells whether the principal has the role, and may use it for the environment.
func (p *Principal) May(r ticket.Role, environmentID string) bool {
	return p.Role == r && Matches(p.Environments, environmentID)
}

// Matches tells whether a pattern covers an environment id. In it * stands
// for any characters or none.
func Matches(pattern, id string) bool {
	for {
		literal, rest, wild := strings.Cut(pattern, "*")
		if !wild {
			return id == literal
		}
		if !strings.HasPrefix(id, literal) {
			return false
		}
		id = id[len(literal):]
		// To take the first place where a literal fits is never worse than to take a
		// later one. Only the last literal has to fit at the end.
		next, _, more := strings.Cut(rest, "*")
		if !more {
			return strings.HasSuffix(id, next)
		}
		i := strings.Index(id, next)
		if i < 0 {
			return false
		}
		pattern, id = rest, id[i:]
	}
}

// CheckPattern returns an error for a pattern that is empty, longer than 256 bytes, or
// holds a character that no environment id has.
func CheckPattern(pattern string) error {
	if pattern == "" || len(pattern) > 256 {
		return errors.New("environment pattern is empty or longer than 256 bytes")
	}
	for _, c := range []byte(pattern) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-', c == '*':
		default:
			return errors.New("environment pattern may hold only letters, digits, _, - and *")
		}
	}
	return nil
}
