// Package wire has the HTTP interface between a registry, executors and harnesses: the
// paths of the registry's API, its JSON, headers and error codes (remote.md 3, 4 and 9).
// It imports neither side, so each side can use it without the other.
package wire

import (
	"bytes"
	"time"

	"github.com/execagent/execagent/internal/strictjson"
)

// SecurityProfile names the only way in which a harness and an executor protect what they
// send each other through a relay (remote.md 6.1).
const SecurityProfile = "noise_hybrid_ik_v1"

// KeySuite names the algorithms of a [PublicKey] (remote.md 3). The name of the
// Noise protocol differs from it in one word.
const KeySuite = "Noise_hybridIK_X25519+MLKEM768_AESGCM_SHA256"

// Lengths of the two halves of a [PublicKey] in bytes (RFC 7748, FIPS 203).
const (
	X25519KeySize   = 32
	MLKEM768KeySize = 1184
)

// MaxAuthorization is how long a harness's authorization may be, in bytes of
// UTF-8 (remote.md 6.3).
const MaxAuthorization = 4096

// Parts of the paths of the registry's HTTP API. A path is PathPrefix, the id of an
// environment, and one of the others.
const (
	PathPrefix   = "/cloud/environment/"
	PathRegister = "/register"
	PathValidate = "/validate"
	PathConnect  = "/connect"

	// Those of the direct transport (remote.md 10). That of the harness is an addition.
	PathDirectRegister = "/direct/register"
	PathDirectConnect  = "/direct/connect"
)

// TransportDirect names the direct transport: JSON-RPC as it is on a websocket, protected by TLS
// on each leg and by nothing else.
const TransportDirect = "direct_jsonrpc_v1"

// PathEnvironments is the path by which a harness asks which environments its key is for
// (remote.md 3.6). QueryAfter in its query is the id after which the answer begins.
const (
	PathEnvironments = "/cloud/environments"
	QueryAfter       = "after"
)

// ResetRevoked is the reason in the reset by which our rendezvous tells an executor that
// the harness of the stream has lost the right to it.
const ResetRevoked = "principal_revoked"

// PrincipalStream begins the id of a stream that stands for a principal; its pseudonym
// follows (ValidateResponse.Principal). No data goes through such a stream: by a
// heartbeat of it an executor says that it still has something of that principal, and by a
// reset with ResetRevoked it hears that the principal has lost its right (remote.md 8.2).
const PrincipalStream = "principal "

// Headers of remote mode.
const (
	// HeaderNoiseStreamID is on a validate request whose stream id is a UUID.
	HeaderNoiseStreamID = "X-Codex-Noise-Stream-Id"
	// HeaderRejectionReason is on the answer of a rendezvous that refuses to upgrade.
	HeaderRejectionReason = "X-Codex-Rendezvous-Rejection-Reason"
	// HeaderStreamOwners is on the upgrade request of an executor that has streams to
	// resume, see [StreamOwners]. It is an addition.
	HeaderStreamOwners = "X-Execagent-Stream-Owners"
	// HeaderAccountID and HeaderFedRAMP go with a ChatGPT sign-in.
	HeaderAccountID = "ChatGPT-Account-ID"
	HeaderFedRAMP   = "X-OpenAI-Fedramp"
	// HeaderRequestID is on an executor's upgrade request.
	HeaderRequestID = "X-Request-Id"
)

// Codes of [Error] that executors or harnesses act on (remote.md 3.4 and 9).
const (
	CodeConflict           = "registration_conflict"
	CodeAuthUnavailable    = "authentication_service_unavailable"
	CodeEnvironmentOffline = "environment_offline"
)

// Payloads of pings by which our rendezvous tells an executor of the direct transport who the
// harness at the other end is, before the first message of it, and that this one has lost the right
// to be there. A pseudonym follows, as in ValidateResponse.Principal. To others these are pings.
const (
	PingPrincipal = "principal "
	PingRevoked   = "revoked "
)

// ValidEnvironmentID reports whether id may name an environment: 1 to 256 of
// [A-Za-z0-9_-] (remote.md 2).
func ValidEnvironmentID(id string) bool {
	for _, c := range []byte(id) {
		switch {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '-':
		default:
			return false
		}
	}
	return 0 < len(id) && len(id) <= 256
}

// PublicKey is the static public key of an executor or a harness in the relay's
// handshake: one key of X25519 and one of ML-KEM-768. In JSON both are standard base64
// with padding.
type PublicKey struct {
	Suite    string `json:"suite"`
	X25519   []byte `json:"x25519_public_key"`
	MLKEM768 []byte `json:"mlkem768_public_key"`
}

// UnmarshalObject refuses members that are unknown, missing or of a wrong length,
// and every suite but [KeySuite].
func (k *PublicKey) UnmarshalObject(o *strictjson.Object) {
	o.Only("suite", "x25519_public_key", "mlkem768_public_key")
	k.Suite = o.OneOf("suite", KeySuite)
	k.X25519 = keyHalf(o, "x25519_public_key", X25519KeySize)
	k.MLKEM768 = keyHalf(o, "mlkem768_public_key", MLKEM768KeySize)
}

func keyHalf(o *strictjson.Object, name string, size int) []byte {
	b := o.Base64(name)
	if len(b) != size {
		o.Fail(name, "%d bytes, not %d", len(b), size)
	}
	return b
}

// UnmarshalJSON lets encoding/json read a key as strictly as UnmarshalObject does.
func (k *PublicKey) UnmarshalJSON(data []byte) error { return strictjson.Unmarshal(data, k) }

// Equal reports whether two keys are the same. It does not take constant time, which
// public keys do not need.
func (k *PublicKey) Equal(other *PublicKey) bool {
	return k.Suite == other.Suite && bytes.Equal(k.X25519, other.X25519) && bytes.Equal(k.MLKEM768, other.MLKEM768)
}

func publicKey(o *strictjson.Object, name string) *PublicKey {
	k := new(PublicKey)
	o.In(name, k.UnmarshalObject)
	return k
}

// RegisterRequest says which key an executor has (remote.md 3.1).
type RegisterRequest struct {
	SecurityProfile   string     `json:"security_profile"`
	ExecutorPublicKey *PublicKey `json:"executor_public_key"`
}

// UnmarshalObject requires both members and takes no others.
func (r *RegisterRequest) UnmarshalObject(o *strictjson.Object) {
	o.Only("security_profile", "executor_public_key")
	r.SecurityProfile = o.String("security_profile")
	r.ExecutorPublicKey = publicKey(o, "executor_public_key")
}

// RegisterResponse says where the executor's rendezvous is. All members are
// required; the registration id may be empty.
type RegisterResponse struct {
	EnvironmentID          *string `json:"environment_id"`
	URL                    *string `json:"url"`
	SecurityProfile        *string `json:"security_profile"`
	ExecutorRegistrationID *string `json:"executor_registration_id"`
}

// DirectRequest asks for a websocket of the direct transport, as an executor or as a harness.
type DirectRequest struct {
	Transport string `json:"transport"`
	// RegistrationID is the one that the executor has already, from a registry that has said
	// how many websockets it takes. It is an addition.
	RegistrationID string `json:"registration_id,omitempty"`
}

// UnmarshalObject requires the transport and takes no members but these.
func (r *DirectRequest) UnmarshalObject(o *strictjson.Object) {
	o.Only("transport", "registration_id")
	r.Transport = o.String("transport")
	if o.Has("registration_id") {
		r.RegistrationID = o.String("registration_id")
	}
}

// DirectResponse says where to open a websocket of the direct transport. All members are
// required but the last.
type DirectResponse struct {
	EnvironmentID  string `json:"environment_id"`
	Transport      string `json:"transport"`
	RegistrationID string `json:"registration_id"`
	URL            string `json:"url"`
	// Websockets is how many of them an executor may have open at once, one for each harness,
	// and one that waits; 0 stands for 1. It is an addition.
	Websockets int `json:"websockets,omitempty"`
}

// ValidateRequest asks whether a harness may connect (remote.md 3.2).
type ValidateRequest struct {
	ExecutorRegistrationID  string     `json:"executor_registration_id"`
	HarnessPublicKey        *PublicKey `json:"harness_public_key"`
	HarnessKeyAuthorization string     `json:"harness_key_authorization"`
}

// UnmarshalObject requires all members and takes no others.
func (r *ValidateRequest) UnmarshalObject(o *strictjson.Object) {
	o.Only("executor_registration_id", "harness_public_key", "harness_key_authorization")
	r.ExecutorRegistrationID = o.String("executor_registration_id")
	r.HarnessPublicKey = publicKey(o, "harness_public_key")
	r.HarnessKeyAuthorization = o.String("harness_key_authorization")
}

// ValidateResponse answers a ValidateRequest. A missing member counts as false.
type ValidateResponse struct {
	Valid bool `json:"valid"`
	// Principal tells harnesses apart whose key is another one, and nothing else of them. It
	// is an addition, and there only if Valid is true.
	Principal string `json:"principal,omitempty"`
}

// ConnectRequest asks a registry for an executor (remote.md 9).
type ConnectRequest struct {
	HarnessPublicKey *PublicKey `json:"harness_public_key"`
}

// UnmarshalObject requires the member and takes no others.
func (r *ConnectRequest) UnmarshalObject(o *strictjson.Object) {
	o.Only("harness_public_key")
	r.HarnessPublicKey = publicKey(o, "harness_public_key")
}

// ConnectResponse is what a harness needs for one websocket. All members are
// required.
type ConnectResponse struct {
	EnvironmentID           string     `json:"environment_id"`
	URL                     string     `json:"url"`
	SecurityProfile         string     `json:"security_profile"`
	ExecutorRegistrationID  string     `json:"executor_registration_id"`
	ExecutorPublicKey       *PublicKey `json:"executor_public_key"`
	HarnessKeyAuthorization string     `json:"harness_key_authorization"`
}

// Environment is what a harness is told of an environment.
type Environment struct {
	ID       string    `json:"environment_id"`
	Online   bool      `json:"online"`
	Since    time.Time `json:"online_since,omitzero"` // when its executor's websocket was opened
	Executor string    `json:"executor,omitempty"`    // what the operator calls the executor
}

// EnvironmentsResponse lists environments, sorted by their ids. If Next is not empty there
// are more, after that id.
type EnvironmentsResponse struct {
	Environments []Environment `json:"environments"`
	Next         string        `json:"next,omitempty"`
}

// Error is the body of an answer that is not 2xx. Both members are
// optional (remote.md 3.4).
type Error struct {
	Error struct {
		Code    string `json:"code,omitempty"`
		Message string `json:"message,omitempty"`
	} `json:"error"`
}
