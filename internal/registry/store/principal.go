package store

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/execagent/execagent/internal/registry/ticket"
)

// A Principal is a client whose credential a registry knows: the holder of an API key, or an
// agent with an identity. The store makes principals from keys and identities. They are plain
// values and must not be changed.
type Principal struct {
	ID           string // a prefix and the id of the key or the agent; no secret
	Role         ticket.Role
	Environments string // pattern, in which * stands for any characters or none
	Limits       Limits // its own limits; a zero member stands for the server's limit
}

// KeyPrefix begins the ids of principals that have an API key, and AgentPrefix the ids of
// principals that have an agent identity.
const (
	KeyPrefix   = "key:"
	AgentPrefix = "agent:"
)

// May reports whether the principal has the role, and may use it for the environment.
func (p *Principal) May(r ticket.Role, environmentID string) bool {
	return p.Role == r && Matches(p.Environments, environmentID)
}

// Matches reports whether a pattern covers an environment id. In it * stands
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
		// The first place where a literal fits is never worse than a later place. Only the
		// last literal has to fit at the end.
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
// has a character other than * that no environment id has.
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

// ErrUnauthorized refuses a credential. It does not tell the reason.
var ErrUnauthorized = errors.New("the credential is missing or not valid")

// Principal returns the principal with the id that tickets and presences have. found is
// false if the principal is unknown, revoked or expired.
func (st *Store) Principal(ctx context.Context, id string) (p *Principal, found bool, err error) {
	if key, ok := strings.CutPrefix(id, KeyPrefix); ok {
		if !validKeyID(key) {
			return nil, false, nil
		}
		record, _, found, err := get[keyRecord](ctx, st.keys, key)
		if err != nil || !found || record.Of != "" || !record.valid(time.Now()) {
			return nil, false, err
		}
		return record.principal(key), true, nil
	}
	if runtimeID, ok := strings.CutPrefix(id, AgentPrefix); ok {
		record, _, found, err := get[identityRecord](ctx, st.identities, identityKey(runtimeID))
		if err != nil || !found {
			return nil, false, err
		}
		return record.principal(), true, nil
	}
	return nil, false, nil
}
