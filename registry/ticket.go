package registry

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"hash"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/execagent/execagent/protocol"
)

// ticketVersion is the version parameter of rendezvous URLs.
const ticketVersion = "1"

// RendezvousPath is where the rendezvous websockets are.
const RendezvousPath = "/rendezvous/"

// How long what the registry signs is good for. An executor takes its URL for
// every websocket until the rendezvous refuses it (remote.md 3.5), and registers
// again then; a harness gets a new one for each.
const (
	executorTicketLife = 24 * time.Hour
	harnessTicketLife  = time.Minute
	authorizationLife  = time.Minute
)

// Parameters of a rendezvous URL. Their values are the credential: the query is
// in no log.
const (
	paramRole         = "role"
	paramEnvironment  = "environment_id"
	paramRegistration = "executor_registration_id"
	paramPrincipal    = "principal"
	paramExpiry       = "expiry" // Unix seconds
	paramVersion      = "version"
	paramSignature    = "signature"
)

// Reasons of a refused upgrade, in the header of protocol.HeaderRejectionReason
// (remote.md 4).
const (
	rejectExpired             = "expired"
	rejectMissingRole         = "missing_role"
	rejectMissingExpiry       = "missing_expiry"
	rejectMissingSignature    = "missing_signature"
	rejectMissingVersion      = "missing_version"
	rejectMissingRegistration = "missing_executor_registration_id"
	rejectMalformedQuery      = "malformed_query"
	rejectInvalidRole         = "invalid_role"
	rejectInvalidExpiry       = "invalid_expiry"
	rejectInvalidSignature    = "invalid_signature"
	rejectExtraParam          = "extra_query_param"
	rejectDraining            = "pod_draining"
	rejectUnknownRoute        = "unknown_route"
	rejectRouteUnavailable    = "route_unavailable"
)

// role is what a principal may be, and what a websocket is used as.
type role string

const (
	roleExecutor role = "executor"
	roleHarness  role = "harness"
)

// param is what a rendezvous URL calls the role (remote.md 4).
func (r role) param() string {
	if r == roleExecutor {
		return "environment"
	}
	return string(r)
}

// ticket says what a rendezvous URL entitles to: one kind of websocket, of one
// registration, until it expires (whole seconds).
type ticket struct {
	role           role
	environmentID  string
	registrationID string
	principal      string // its id
	expires        time.Time
}

// signer makes and checks what the registry hands out: rendezvous URLs and
// harness authorizations. All processes on one store have the same key.
type signer struct {
	ticketKey        []byte
	authorizationKey []byte
}

// newSigner derives one key for each purpose; the shared one is not kept.
func newSigner(shared []byte) *signer {
	derive := func(purpose string) []byte {
		key, err := hkdf.Expand(sha256.New, shared, "execagent registry "+purpose+" v1", sha256.Size)
		if err != nil {
			panic(err) // only for lengths that HKDF cannot give
		}
		return key
	}
	return &signer{ticketKey: derive("ticket"), authorizationKey: derive("authorization")}
}

// sign is the HMAC of fields that cannot run into one another.
func sign(key []byte, fields ...[]byte) []byte {
	mac := hmac.New(sha256.New, key)
	for _, f := range fields {
		writeField(mac, f)
	}
	return mac.Sum(nil)
}

func writeField(mac hash.Hash, f []byte) {
	var length [8]byte
	binary.BigEndian.PutUint64(length[:], uint64(len(f)))
	mac.Write(length[:])
	mac.Write(f)
}

func (g *signer) signTicket(role, environmentID, registrationID, principal, expiry string) []byte {
	return sign(g.ticketKey, []byte(ticketVersion), []byte(role), []byte(environmentID), []byte(registrationID),
		[]byte(principal), []byte(expiry))
}

// ticketURL is the rendezvous URL below base (ws or wss, host and perhaps a
// path) that carries the ticket.
func (g *signer) ticketURL(base *url.URL, t ticket) string {
	expiry := strconv.FormatInt(t.expires.Unix(), 10)
	signature := g.signTicket(t.role.param(), t.environmentID, t.registrationID, t.principal, expiry)
	u := *base
	u.Path = strings.TrimRight(u.Path, "/") + RendezvousPath
	u.RawQuery = url.Values{
		paramRole:         {t.role.param()},
		paramEnvironment:  {t.environmentID},
		paramRegistration: {t.registrationID},
		paramPrincipal:    {t.principal},
		paramExpiry:       {expiry},
		paramVersion:      {ticketVersion},
		paramSignature:    {base64.RawURLEncoding.EncodeToString(signature)},
	}.Encode()
	return u.String()
}

// openTicket checks the parameters of a rendezvous URL: each exactly once,
// signed by a registry on the same store, not expired. The rejection is "" for a
// good ticket, else one of the reject reasons.
func (g *signer) openTicket(q url.Values, now time.Time) (t ticket, rejection string) {
	for _, required := range []struct{ name, rejection string }{
		{paramRole, rejectMissingRole},
		{paramExpiry, rejectMissingExpiry},
		{paramSignature, rejectMissingSignature},
		{paramVersion, rejectMissingVersion},
		{paramRegistration, rejectMissingRegistration},
		{paramEnvironment, rejectMalformedQuery},
		{paramPrincipal, rejectMalformedQuery},
	} {
		switch values := q[required.name]; {
		case len(values) == 0 || values[0] == "":
			return ticket{}, required.rejection
		case len(values) > 1:
			return ticket{}, rejectMalformedQuery
		}
	}
	if len(q) != 7 {
		return ticket{}, rejectExtraParam
	}
	if q.Get(paramVersion) != ticketVersion {
		return ticket{}, rejectMalformedQuery
	}
	switch q.Get(paramRole) {
	case roleExecutor.param():
		t.role = roleExecutor
	case roleHarness.param():
		t.role = roleHarness
	default:
		return ticket{}, rejectInvalidRole
	}
	expiry, err := strconv.ParseInt(q.Get(paramExpiry), 10, 64)
	if err != nil {
		return ticket{}, rejectInvalidExpiry
	}
	signature, err := base64.RawURLEncoding.Strict().DecodeString(q.Get(paramSignature))
	if err != nil {
		return ticket{}, rejectInvalidSignature
	}
	want := g.signTicket(q.Get(paramRole), q.Get(paramEnvironment), q.Get(paramRegistration), q.Get(paramPrincipal), q.Get(paramExpiry))
	if !hmac.Equal(signature, want) {
		return ticket{}, rejectInvalidSignature
	}
	// Only now: when a forged ticket would have expired is nobody's business.
	t.expires = time.Unix(expiry, 0)
	if !now.Before(t.expires) {
		return ticket{}, rejectExpired
	}
	t.environmentID = q.Get(paramEnvironment)
	t.registrationID = q.Get(paramRegistration)
	t.principal = q.Get(paramPrincipal)
	return t, ""
}

// authorization proves to an executor's validate that the registry has just let
// this harness key connect to this registration (remote.md 9): expiry and
// principal in clear, and a MAC that covers the key as well.
func (g *signer) authorization(environmentID, registrationID string, key *protocol.PublicKey, principal string, expires time.Time) string {
	expiry := strconv.FormatInt(expires.Unix(), 10)
	mac := g.signAuthorization(environmentID, registrationID, key, principal, expiry)
	return ticketVersion + "." + expiry + "." + base64.RawURLEncoding.EncodeToString([]byte(principal)) + "." +
		base64.RawURLEncoding.EncodeToString(mac)
}

func (g *signer) signAuthorization(environmentID, registrationID string, key *protocol.PublicKey, principal, expiry string) []byte {
	return sign(g.authorizationKey, []byte(ticketVersion), []byte(environmentID), []byte(registrationID),
		[]byte(key.Suite), key.X25519, key.MLKEM768, []byte(principal), []byte(expiry))
}

// openAuthorization returns whom it was given to, if it is for exactly this
// environment, registration and key and has not expired.
func (g *signer) openAuthorization(text, environmentID, registrationID string, key *protocol.PublicKey, now time.Time) (principal string, ok bool) {
	if len(text) > protocol.MaxAuthorization {
		return "", false
	}
	parts := strings.Split(text, ".")
	if len(parts) != 4 || parts[0] != ticketVersion {
		return "", false
	}
	expiry, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil {
		return "", false
	}
	encoding := base64.RawURLEncoding.Strict()
	name, err := encoding.DecodeString(parts[2])
	if err != nil {
		return "", false
	}
	mac, err := encoding.DecodeString(parts[3])
	if err != nil {
		return "", false
	}
	want := g.signAuthorization(environmentID, registrationID, key, string(name), parts[1])
	if !hmac.Equal(mac, want) || !now.Before(time.Unix(expiry, 0)) {
		return "", false
	}
	return string(name), true
}
