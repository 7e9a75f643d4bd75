// Package ticket signs three things that a registry hands out, and checks them when they come back.
// These are the URLs of rendezvous websockets, the authorizations that prove to an executor that
// the registry let a harness connect, and the pseudonyms of harnesses. The package does not use the
// store. Its callers must ask the store whether the principal still has its rights and the
// registration is still the newest.
package ticket

import (
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/internal/strictjson"
)

// RendezvousPath is the path of rendezvous websockets. DirectPath is the path of websockets of the
// direct transport.
const (
	RendezvousPath = "/rendezvous/"
	DirectPath     = "/direct/"
)

// version is the version parameter of rendezvous URLs, and the first part of
// authorizations. URLs of the direct transport have other versions, so that no URL is valid for both.
const (
	version             = "1"
	versionDirect       = "direct-1"
	versionDirectSigned = "direct-signed-1" // the request for the websocket is signed, too
)

// Parameters of a rendezvous URL. Their values together are a credential, so no log may contain
// the query.
const (
	paramRole         = "role"
	paramEnvironment  = "environment_id"
	paramRegistration = "executor_registration_id"
	paramPrincipal    = "principal"
	paramExpiry       = "expiry" // Unix seconds
	paramVersion      = "version"
	paramSignature    = "signature"
)

// Reasons for which [Signer.Open] rejects a URL, as they stand in the header
// wire.HeaderRejectionReason (remote.md 4).
const (
	RejectExpired             = "expired"
	RejectMissingRole         = "missing_role"
	RejectMissingExpiry       = "missing_expiry"
	RejectMissingSignature    = "missing_signature"
	RejectMissingVersion      = "missing_version"
	RejectMissingRegistration = "missing_executor_registration_id"
	RejectMalformedQuery      = "malformed_query"
	RejectInvalidRole         = "invalid_role"
	RejectInvalidExpiry       = "invalid_expiry"
	RejectInvalidSignature    = "invalid_signature"
	RejectExtraParam          = "extra_query_param"
)

// Role is the role of a principal, and of a websocket.
type Role string

// The roles, in the words with which keys are created.
const (
	Executor Role = "executor"
	Harness  Role = "harness"
)

// param returns the value of paramRole in a rendezvous URL (remote.md 4).
func (r Role) param() string {
	if r == Executor {
		return "environment"
	}
	return string(r)
}

// Ticket has the rights that a rendezvous URL gives its bearer: any number of websockets of one
// role, for one registration, until the URL expires. Expires counts in whole seconds.
type Ticket struct {
	Role           Role
	EnvironmentID  string
	RegistrationID string
	Principal      string // its id
	Expires        time.Time

	Direct bool // only for the direct transport
	Signed bool // the principal has to sign the request: the URL alone is not enough
}

// version returns the version parameter of the ticket's URL.
func (t *Ticket) version() string {
	switch {
	case t.Direct && t.Signed:
		return versionDirectSigned
	case t.Direct:
		return versionDirect
	}
	return version
}

// Signer makes and checks the things that the registry hands out, such as rendezvous URLs and
// harness authorizations. All processes on one store make their signer from the same shared key.
// So each process accepts the signatures of the others. All methods may be called concurrently.
type Signer struct {
	ticketKey        []byte
	authorizationKey []byte
	pseudonymKey     []byte
	accessKey        []byte
	maskKey          []byte
}

// NewSigner derives one key for each purpose from the shared key. It does not keep the shared
// key.
func NewSigner(shared []byte) *Signer {
	derive := func(purpose string) []byte {
		key, err := hkdf.Expand(sha256.New, shared, "execagent registry "+purpose+" v1", sha256.Size)
		if err != nil {
			panic(err) // only for lengths that HKDF cannot give
		}
		return key
	}
	return &Signer{
		ticketKey: derive("ticket"), authorizationKey: derive("authorization"),
		accessKey:    derive("access key"),
		pseudonymKey: derive("pseudonym"), maskKey: derive("pseudonym mask"),
	}
}

// sign returns the HMAC of fields. The length of each field is signed before the field, so that
// no part of one field can pass for a part of the next.
func sign(key []byte, fields ...[]byte) []byte {
	mac := hmac.New(sha256.New, key)
	for _, f := range fields {
		mac.Write(binary.BigEndian.AppendUint64(nil, uint64(len(f))))
		mac.Write(f)
	}
	return mac.Sum(nil)
}

func (g *Signer) signTicket(version, role, environmentID, registrationID, principal, expiry string) []byte {
	return sign(g.ticketKey, []byte(version), []byte(role), []byte(environmentID), []byte(registrationID),
		[]byte(principal), []byte(expiry))
}

// URL returns the URL of the ticket below base. base has the scheme ws or wss, a host and perhaps
// a path.
func (g *Signer) URL(base *url.URL, t Ticket) string {
	expiry := strconv.FormatInt(t.Expires.Unix(), 10)
	signature := g.signTicket(t.version(), t.Role.param(), t.EnvironmentID, t.RegistrationID, t.Principal, expiry)
	u := *base
	path := RendezvousPath
	if t.Direct {
		path = DirectPath
	}
	u.Path = strings.TrimRight(u.Path, "/") + path
	u.RawQuery = url.Values{
		paramRole:         {t.Role.param()},
		paramEnvironment:  {t.EnvironmentID},
		paramRegistration: {t.RegistrationID},
		paramPrincipal:    {t.Principal},
		paramExpiry:       {expiry},
		paramVersion:      {t.version()},
		paramSignature:    {base64.RawURLEncoding.EncodeToString(signature)},
	}.Encode()
	return u.String()
}

// Open checks the parameters of a rendezvous URL: each must be there exactly once, signed by a
// registry on the same store, and not expired. The rejection is "" for a valid ticket, and one
// of the constants Reject... otherwise.
func (g *Signer) Open(q url.Values, now time.Time) (t Ticket, rejection string) {
	return g.open(q, now, false)
}

// OpenDirect is Open for URLs of the direct transport.
func (g *Signer) OpenDirect(q url.Values, now time.Time) (t Ticket, rejection string) {
	return g.open(q, now, true)
}

func (g *Signer) open(q url.Values, now time.Time, direct bool) (t Ticket, rejection string) {
	for _, required := range []struct{ name, rejection string }{
		{paramRole, RejectMissingRole},
		{paramExpiry, RejectMissingExpiry},
		{paramSignature, RejectMissingSignature},
		{paramVersion, RejectMissingVersion},
		{paramRegistration, RejectMissingRegistration},
		{paramEnvironment, RejectMalformedQuery},
		{paramPrincipal, RejectMalformedQuery},
	} {
		switch values := q[required.name]; {
		case len(values) == 0 || values[0] == "":
			return Ticket{}, required.rejection
		case len(values) > 1:
			return Ticket{}, RejectMalformedQuery
		}
	}
	if len(q) != 7 {
		return Ticket{}, RejectExtraParam
	}
	t.Direct, t.Signed = direct, q.Get(paramVersion) == versionDirectSigned
	if q.Get(paramVersion) != t.version() {
		return Ticket{}, RejectMalformedQuery
	}
	switch q.Get(paramRole) {
	case Executor.param():
		t.Role = Executor
	case Harness.param():
		t.Role = Harness
	default:
		return Ticket{}, RejectInvalidRole
	}
	expiry, err := strconv.ParseInt(q.Get(paramExpiry), 10, 64)
	if err != nil {
		return Ticket{}, RejectInvalidExpiry
	}
	signature, err := strictjson.RawURLBase64.Decode(q.Get(paramSignature))
	if err != nil {
		return Ticket{}, RejectInvalidSignature
	}
	want := g.signTicket(t.version(), q.Get(paramRole), q.Get(paramEnvironment), q.Get(paramRegistration), q.Get(paramPrincipal), q.Get(paramExpiry))
	if !hmac.Equal(signature, want) {
		return Ticket{}, RejectInvalidSignature
	}
	// After the signature, so that nobody learns whether a forged ticket would have
	// expired.
	t.Expires = time.Unix(expiry, 0)
	if !now.Before(t.Expires) {
		return Ticket{}, RejectExpired
	}
	t.EnvironmentID = q.Get(paramEnvironment)
	t.RegistrationID = q.Get(paramRegistration)
	t.Principal = q.Get(paramPrincipal)
	return t, ""
}

// AccessSecret returns the secret with which the holder of an API key signs requests as AWS does.
// The secret is derived from the key's id and the hash of its text. So it needs no place in the
// store, and it is valid as long as the text.
func (g *Signer) AccessSecret(keyID string, hash []byte) string {
	return base64.RawURLEncoding.EncodeToString(sign(g.accessKey, []byte(keyID), hash))
}

// Authorization returns a proof that the registry has just let this harness key connect
// to this registration. The harness gives the proof to the executor, whose validate request
// brings it back (remote.md 9). The proof has the expiry and the principal in clear, and a MAC
// that also covers the environment, the registration and the key.
func (g *Signer) Authorization(environmentID, registrationID string, key *wire.PublicKey, principal string, expires time.Time) string {
	expiry := strconv.FormatInt(expires.Unix(), 10)
	mac := g.signAuthorization(environmentID, registrationID, key, principal, expiry)
	return version + "." + expiry + "." + base64.RawURLEncoding.EncodeToString([]byte(principal)) + "." +
		base64.RawURLEncoding.EncodeToString(mac)
}

func (g *Signer) signAuthorization(environmentID, registrationID string, key *wire.PublicKey, principal, expiry string) []byte {
	return sign(g.authorizationKey, []byte(version), []byte(environmentID), []byte(registrationID),
		[]byte(key.Suite), key.X25519, key.MLKEM768, []byte(principal), []byte(expiry))
}

// OpenAuthorization returns the principal that an authorization was given to. ok is
// false unless the authorization is for exactly this environment, registration and key, and
// has not expired.
func (g *Signer) OpenAuthorization(text, environmentID, registrationID string, key *wire.PublicKey, now time.Time) (principal string, ok bool) {
	if len(text) > wire.MaxAuthorization {
		return "", false
	}
	parts := strings.Split(text, ".")
	if len(parts) != 4 || parts[0] != version {
		return "", false
	}
	expiry, err := strconv.ParseInt(parts[1], 10, 64)
	if err != nil {
		return "", false
	}
	name, err := strictjson.RawURLBase64.Decode(parts[2])
	if err != nil {
		return "", false
	}
	mac, err := strictjson.RawURLBase64.Decode(parts[3])
	if err != nil {
		return "", false
	}
	want := g.signAuthorization(environmentID, registrationID, key, string(name), parts[1])
	if !hmac.Equal(mac, want) || !now.Before(time.Unix(expiry, 0)) {
		return "", false
	}
	return string(name), true
}
