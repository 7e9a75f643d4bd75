// Package wire has the HTTP interface between a registry, executors and harnesses: the
// paths of the registry's API, its JSON, headers and error codes (remote.md 3, 4 and 9).
// It imports neither side, so each side can use it without the other.
package wire

import (
	"bytes"
	"time"

	"github.com/execagent/execagent/internal/strictjson"
)

// SecurityProfile names the protection of the data between a harness and an executor through
// a relay (remote.md 6.1). There is no other profile.
const SecurityProfile = "noise_hybrid_ik_v1"

// KeySuite names the algorithms of a [PublicKey] (remote.md 3). The name of the
// Noise protocol differs from it in one word.
const KeySuite = "Noise_hybridIK_X25519+MLKEM768_AESGCM_SHA256"

// Lengths of the two halves of a [PublicKey] in bytes (RFC 7748, FIPS 203).
const (
	X25519KeySize   = 32
	MLKEM768KeySize = 1184
)

// MaxAuthorization is the largest length of a harness's authorization, in bytes of
// UTF-8 (remote.md 6.3).
const MaxAuthorization = 4096

// Parts of the paths of the registry's HTTP API. A path consists of PathPrefix, the id of an
// environment, and one of the other parts.
const (
	PathPrefix   = "/cloud/environment/"
	PathRegister = "/register"
	PathValidate = "/validate"
	PathConnect  = "/connect"

	// The parts for the direct transport (remote.md 10). PathDirectConnect, for harnesses, is an
	// addition to the reference.
	PathDirectRegister = "/direct/register"
	PathDirectConnect  = "/direct/connect"
)

// TransportDirect names the direct transport: plain JSON-RPC on a websocket. Its only
// protection is the TLS of each websocket.
const TransportDirect = "direct_jsonrpc_v1"

// PathEnvironments is the path by which a harness asks for the environments that its key
// may use (remote.md 3.6). QueryAfter in the query is the id after which the answer begins.
const (
	PathEnvironments = "/cloud/environments"
	QueryAfter       = "after"
)

// ResetRevoked is the reason in the reset with which our rendezvous tells an executor that
// the harness of the stream has lost its right to the stream.
const ResetRevoked = "principal_revoked"

// PrincipalStream is the first part of the id of a stream that stands for a principal. The
// principal's pseudonym follows (ValidateResponse.Principal). No data goes through such a
// stream. With a heartbeat of the stream an executor says that it still has resources of the
// principal. With a reset whose reason is ResetRevoked the rendezvous tells the executor that
// the principal has lost its right (remote.md 8.2).
const PrincipalStream = "principal "

// Headers of remote mode.
const (
	// HeaderNoiseStreamID is on a validate request whose stream id is a UUID.
	HeaderNoiseStreamID = "X-Codex-Noise-Stream-Id"
	// HeaderRejectionReason is on the answer of a rendezvous that refuses to upgrade.
	HeaderRejectionReason = "X-Codex-Rendezvous-Rejection-Reason"
	// HeaderStreamOwners is on the upgrade request of an executor that has streams to
	// resume, see [StreamOwners]. It is an addition to the reference.
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

// First parts of the payloads of pings from our rendezvous to an executor of the direct
// transport. The pseudonym of the harness's principal follows, as in ValidateResponse.Principal.
// PingPrincipal names the principal before the first message of the harness. PingRevoked says
// that the principal has lost its right. Other executors only answer these pings.
const (
	PingPrincipal = "principal "
	PingRevoked   = "revoked "
)

// ValidEnvironmentID reports whether id may name an environment: 1 to 256 characters of
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

// Equal reports whether two keys are the same. It does not take constant time, because
// public keys do not need it.
func (k *PublicKey) Equal(other *PublicKey) bool {
	return k.Suite == other.Suite && bytes.Equal(k.X25519, other.X25519) && bytes.Equal(k.MLKEM768, other.MLKEM768)
}

func publicKey(o *strictjson.Object, name string) *PublicKey {
	k := new(PublicKey)
	o.In(name, k.UnmarshalObject)
	return k
}

// RegisterRequest registers the key of an executor (remote.md 3.1).
type RegisterRequest struct {
	SecurityProfile   string     `json:"security_profile"`
	ExecutorPublicKey *PublicKey `json:"executor_public_key"`
}

// UnmarshalObject requires both members and refuses other members.
func (r *RegisterRequest) UnmarshalObject(o *strictjson.Object) {
	o.Only("security_profile", "executor_public_key")
	r.SecurityProfile = o.String("security_profile")
	r.ExecutorPublicKey = publicKey(o, "executor_public_key")
}

// RegisterResponse has the URL of the executor's rendezvous. All members are
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
	// RegistrationID is the registration that the executor has already. An executor sends it
	// only to a registry whose answer had Websockets. It is an addition to the reference.
	RegistrationID string `json:"registration_id,omitempty"`
}

// UnmarshalObject requires the transport and refuses members other than these two.
func (r *DirectRequest) UnmarshalObject(o *strictjson.Object) {
	o.Only("transport", "registration_id")
	r.Transport = o.String("transport")
	if o.Has("registration_id") {
		r.RegistrationID = o.String("registration_id")
	}
}

// DirectResponse has the URL of a websocket of the direct transport. All members except the
// last are required.
type DirectResponse struct {
	EnvironmentID  string `json:"environment_id"`
	Transport      string `json:"transport"`
	RegistrationID string `json:"registration_id"`
	URL            string `json:"url"`
	// Websockets is the number of websockets that an executor may have open at once: one for
	// each harness, and one that waits for a harness. 0 stands for 1. It is an addition to the
	// reference.
	Websockets int `json:"websockets,omitempty"`
}

// ValidateRequest asks whether a harness may connect (remote.md 3.2).
type ValidateRequest struct {
	ExecutorRegistrationID  string     `json:"executor_registration_id"`
	HarnessPublicKey        *PublicKey `json:"harness_public_key"`
	HarnessKeyAuthorization string     `json:"harness_key_authorization"`
}

// UnmarshalObject requires all members and refuses other members.
func (r *ValidateRequest) UnmarshalObject(o *strictjson.Object) {
	o.Only("executor_registration_id", "harness_public_key", "harness_key_authorization")
	r.ExecutorRegistrationID = o.String("executor_registration_id")
	r.HarnessPublicKey = publicKey(o, "harness_public_key")
	r.HarnessKeyAuthorization = o.String("harness_key_authorization")
}

// ValidateResponse answers a ValidateRequest. A missing member counts as false.
type ValidateResponse struct {
	Valid bool `json:"valid"`
	// Principal is a pseudonym of the harness's principal. It differs between principals and
	// reveals nothing else about them. It is an addition to the reference, and is set only if
	// Valid is true.
	Principal string `json:"principal,omitempty"`
}

// ConnectRequest asks a registry for an executor (remote.md 9).
type ConnectRequest struct {
	HarnessPublicKey *PublicKey `json:"harness_public_key"`
}

// UnmarshalObject requires the member and refuses other members.
func (r *ConnectRequest) UnmarshalObject(o *strictjson.Object) {
	o.Only("harness_public_key")
	r.HarnessPublicKey = publicKey(o, "harness_public_key")
}

// ConnectResponse has the data that a harness needs for one websocket. All members are
// required.
type ConnectResponse struct {
	EnvironmentID           string     `json:"environment_id"`
	URL                     string     `json:"url"`
	SecurityProfile         string     `json:"security_profile"`
	ExecutorRegistrationID  string     `json:"executor_registration_id"`
	ExecutorPublicKey       *PublicKey `json:"executor_public_key"`
	HarnessKeyAuthorization string     `json:"harness_key_authorization"`
}

// Environment describes an environment to a harness.
type Environment struct {
	ID       string    `json:"environment_id"`
	Online   bool      `json:"online"`
	Since    time.Time `json:"online_since,omitzero"` // when its executor's websocket was opened
	Executor string    `json:"executor,omitempty"`    // the operator's name for the executor
}

// EnvironmentsResponse lists environments, sorted by their ids. If Next is not empty, there
// are more environments after the id Next.
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
