package registry

import (
	"context"
	"net/http"
	"strings"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/internal/registry/store"
)

// authenticate finds the principal of a request. The error is store.ErrUnauthorized or
// wraps store.ErrUnavailable. If there is an assertion, the request may still be a
// replay: [store.Store.RefuseReplay] finds that out.
func (s *Server) authenticate(ctx context.Context, r *http.Request) (*store.Principal, *auth.Assertion, error) {
	values := r.Header.Values("Authorization")
	if len(values) != 1 {
		return nil, nil, store.ErrUnauthorized
	}
	scheme, credential, _ := strings.Cut(values[0], " ")
	switch {
	case strings.EqualFold(scheme, "Bearer"):
		p, err := s.store.AuthenticateKey(ctx, strings.TrimLeft(credential, " "))
		return p, nil, err
	case strings.EqualFold(scheme, "AgentAssertion"):
		assertion, err := auth.ParseAssertion(values[0])
		if err != nil {
			return nil, nil, store.ErrUnauthorized
		}
		p, err := s.store.AuthenticateAgent(ctx, assertion, s.clockSkew)
		return p, assertion, err
	}
	return nil, nil, store.ErrUnauthorized
}
