// Package principal says who asks a registry, and for what: a role, a pattern of
// environments, and limits. Principals are values; the store makes them from keys
// and identities.
package principal

import (
	"errors"
	"strings"

	"github.com/execagent/execagent/registry/ticket"
)

// Principal is who makes a request or has a websocket open.
type Principal struct {
	ID           string // "key:..." or "agent:...", no secret
	Role         ticket.Role
	Environments string // pattern, see matchEnvironment
	Limits       Limits // its own; zero members are the server's
}

// Prefixes of principal ids.
const (
	KeyPrefix   = "key:"
	AgentPrefix = "agent:"
)

// May tells whether the principal has the role, and may use it for the environment.
func (p *Principal) May(r ticket.Role, environmentID string) bool {
	return p.Role == r && matchEnvironment(p.Environments, environmentID)
}

// matchEnvironment tells whether a pattern covers an environment id. In it * stands
// for any characters or none.
func matchEnvironment(pattern, id string) bool {
	for {
		literal, rest, wild := strings.Cut(pattern, "*")
		if !wild {
			return id == literal
		}
		if !strings.HasPrefix(id, literal) {
			return false
		}
		id = id[len(literal):]
		// The first place where a literal fits is as good as any later one, except for
		// the last literal, which has to fit the end.
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

// CheckPattern refuses patterns that no environment id could match.
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
