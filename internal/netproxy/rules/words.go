package rules

// An Action is the effect of a pattern on its hosts, and the decision of a verdict.
type Action string

// The actions, in the words of the wire.
const (
	Allow Action = "allow"
	Deny  Action = "deny"
	Ask   Action = "ask" // the client decides; a denial if there is no client to ask
)

// The protocols of a request.
const (
	HTTP      = "http"
	Connect   = "https_connect"
	SOCKS5TCP = "socks5_tcp"
	SOCKS5UDP = "socks5_udp"
)

// The scope of a verdict: the name, or another part of the request.
const (
	ScopeDomain    = "domain"
	ScopeNonDomain = "non_domain"
)

// The source of a verdict.
const (
	SourceBaseline = "baseline_policy"
	SourceDecider  = "decider"
	SourceMode     = "mode_guard"
	SourceProxy    = "proxy_state"
)

// The reason of a verdict. A client that decides may give other reasons.
const (
	ReasonAllow            = "allow"
	ReasonDenied           = "denied"
	ReasonNotAllowed       = "not_allowed"
	ReasonNotAllowedLocal  = "not_allowed_local"
	ReasonPolicyDenied     = "policy_denied"
	ReasonMethodNotAllowed = "method_not_allowed"
	ReasonMITMRequired     = "mitm_required"
	// Of request rules, which the reference does not have.
	ReasonRequestDenied     = "request_denied"
	ReasonRequestNotAllowed = "request_not_allowed"
	ReasonUnixSocket        = "unix_socket_unsupported"
)

// A Verdict is the answer to one question about a request (network.md 3.4).
type Verdict struct {
	Decision              Action
	Scope, Source, Reason string
}

// rank orders verdicts: a higher rank is stricter.
func (v Verdict) rank() int {
	switch v.Decision {
	case Allow:
		return 0
	case Ask:
		return 1
	default:
		return 2
	}
}

// stricter returns the verdict that allows less, and a if both allow the same.
func stricter(a, b Verdict) Verdict {
	if b.rank() > a.rank() {
		return b
	}
	return a
}
