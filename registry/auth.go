package registry

import (
	"context"
	"net/http"
	"strings"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/registry/principal"
	"github.com/execagent/execagent/registry/store"
)

// authenticate finds out who makes a request. It returns store.ErrUnauthorized, or an
// error that wraps store.ErrUnavailable. A principal that comes with an assertion may
// still repeat somebody's request, which [store.Store.RefuseReplay] finds out.
func (s *Server) authenticate(ctx context.Context, r *http.Request) (*principal.Principal, *auth.Assertion, error) {
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
