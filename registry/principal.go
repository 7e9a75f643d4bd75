package registry

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"time"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/registry/ticket"
)

// errUnauthorized says nothing about what is wrong with a credential.
var errUnauthorized = errors.New("the credential is missing or not valid")

// principal is who makes a request or has a websocket open.
type principal struct {
	ID           string // "key:..." or "agent:...", no secret
	Role         ticket.Role
	Environments string // pattern, see matchEnvironment
	Limits       Limits // its own; zero members are the server's
}

// Prefixes of principal ids.
const (
	keyPrincipal   = "key:"
	agentPrincipal = "agent:"
)

// may tells whether the principal has the role for the environment.
func (p *principal) may(r ticket.Role, environmentID string) bool {
	return p.Role == r && matchEnvironment(p.Environments, environmentID)
}

// principal finds one by its id, as tickets and presences name it. found is
// false when it is unknown, revoked or expired.
func (st *Store) principal(ctx context.Context, id string) (p *principal, found bool, err error) {
	if key, ok := strings.CutPrefix(id, keyPrincipal); ok {
		if !validKeyID(key) {
			return nil, false, nil
		}
		record, _, found, err := get[keyRecord](ctx, st.keys, key)
		if err != nil || !found || !record.valid(time.Now()) {
			return nil, false, err
		}
		return record.principal(key), true, nil
	}
	if runtimeID, ok := strings.CutPrefix(id, agentPrincipal); ok {
		record, _, found, err := get[identityRecord](ctx, st.identities, identityKey(runtimeID))
		if err != nil || !found {
			return nil, false, err
		}
		return record.principal(), true, nil
	}
	return nil, false, nil
}

// authenticate finds out who makes a request. An assertion that comes with the
// principal may still be one that was used before, see [Store.refuseReplay]. It
// returns errUnauthorized, or wraps errUnavailable.
func (s *Server) authenticate(ctx context.Context, r *http.Request) (*principal, *auth.Assertion, error) {
	values := r.Header.Values("Authorization")
	if len(values) != 1 {
		return nil, nil, errUnauthorized
	}
	scheme, credential, _ := strings.Cut(values[0], " ")
	switch {
	case strings.EqualFold(scheme, "Bearer"):
		p, err := s.store.authenticateKey(ctx, strings.TrimLeft(credential, " "))
		return p, nil, err
	case strings.EqualFold(scheme, "AgentAssertion"):
		assertion, err := auth.ParseAssertion(values[0])
		if err != nil {
			return nil, nil, errUnauthorized
		}
		p, err := s.store.authenticateAgent(ctx, assertion, s.clockSkew)
		return p, assertion, err
	}
	return nil, nil, errUnauthorized
}

// matchEnvironment tells whether a pattern, in which * stands for any
// characters or none, covers an environment id.
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
		// The first place where the next literal fits is as good as any other,
		// but for the last one, which has to fit the end.
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

// checkPattern refuses patterns that no environment id could match.
func checkPattern(pattern string) error {
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
