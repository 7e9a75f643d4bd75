package protocol

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
)

// SecurityProfile is the only way in which a harness and an executor protect
// what they say to each other through a relay (remote.md 6.1).
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

// Paths of the registry's HTTP API: "/cloud/environment/" + id + one of these.
const (
	RegistryPathPrefix   = "/cloud/environment/"
	RegistryPathRegister = "/register"
	RegistryPathValidate = "/validate"
	RegistryPathConnect  = "/connect"
)

// Headers of remote mode.
const (
	// HeaderNoiseStreamID is on a validate request whose stream id is a UUID.
	HeaderNoiseStreamID = "X-Codex-Noise-Stream-Id"
	// HeaderRejectionReason is on a rendezvous's refusal to upgrade.
	HeaderRejectionReason = "X-Codex-Rendezvous-Rejection-Reason"
	// HeaderAccountID and HeaderFedRAMP go with a ChatGPT sign-in.
	HeaderAccountID = "ChatGPT-Account-ID"
	HeaderFedRAMP   = "X-OpenAI-Fedramp"
	// HeaderRequestID is on an executor's upgrade request.
	HeaderRequestID = "X-Request-Id"
)

// Codes of [RegistryError] that somebody acts on (remote.md 3.4 and 9).
const (
	RegistryCodeConflict           = "registration_conflict"
	RegistryCodeAuthUnavailable    = "authentication_service_unavailable"
	RegistryCodeEnvironmentOffline = "environment_offline"
)

// ValidEnvironmentID tells whether id may name an environment: 1 to 256 of
// [A-Za-z0-9_-] (D16).
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

// PublicKey is a static public key of the relay's handshake, one of each kind.
// In JSON both halves are standard base64 with padding.
type PublicKey struct {
	Suite    string `json:"suite"`
	X25519   []byte `json:"x25519_public_key"`
	MLKEM768 []byte `json:"mlkem768_public_key"`
}

// UnmarshalJSON refuses members that are unknown, missing or of a wrong length,
// and every suite but [KeySuite].
func (k *PublicKey) UnmarshalJSON(data []byte) error {
	type plain PublicKey
	var p plain
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return err
	}
	switch {
	case p.Suite != KeySuite:
		return fmt.Errorf("suite %.64q is not %q", p.Suite, KeySuite)
	case len(p.X25519) != X25519KeySize:
		return fmt.Errorf("x25519_public_key is %d bytes, not %d", len(p.X25519), X25519KeySize)
	case len(p.MLKEM768) != MLKEM768KeySize:
		return fmt.Errorf("mlkem768_public_key is %d bytes, not %d", len(p.MLKEM768), MLKEM768KeySize)
	}
	*k = PublicKey(p)
	return nil
}

// Equal tells whether two keys are the same.
func (k *PublicKey) Equal(other *PublicKey) bool {
	return k.Suite == other.Suite && bytes.Equal(k.X25519, other.X25519) && bytes.Equal(k.MLKEM768, other.MLKEM768)
}

// RegisterRequest is what an executor asks a registry (remote.md 3.1).
type RegisterRequest struct {
	SecurityProfile   string     `json:"security_profile"`
	ExecutorPublicKey *PublicKey `json:"executor_public_key"`
}

// RegisterResponse says where the executor's rendezvous is. All members are
// required; the registration id may be empty.
type RegisterResponse struct {
	EnvironmentID          *string `json:"environment_id"`
	URL                    *string `json:"url"`
	SecurityProfile        *string `json:"security_profile"`
	ExecutorRegistrationID *string `json:"executor_registration_id"`
}

// ValidateRequest asks whether a harness may connect (remote.md 3.2).
type ValidateRequest struct {
	ExecutorRegistrationID  string     `json:"executor_registration_id"`
	HarnessPublicKey        *PublicKey `json:"harness_public_key"`
	HarnessKeyAuthorization string     `json:"harness_key_authorization"`
}

// ValidateResponse is the answer; a missing member is false.
type ValidateResponse struct {
	Valid bool `json:"valid"`
}

// ConnectRequest is what a harness asks a registry (remote.md 9).
type ConnectRequest struct {
	HarnessPublicKey *PublicKey `json:"harness_public_key"`
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

// RegistryError is the body of an answer that is not 2xx. Both members are
// optional (remote.md 3.4).
type RegistryError struct {
	Error struct {
		Code    string `json:"code,omitempty"`
		Message string `json:"message,omitempty"`
	} `json:"error"`
}

// DecodeStrict reads one JSON value with nothing after it, as a registry reads
// a request: members that v does not have are refused.
func DecodeStrict(r io.Reader, v any) error {
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("something follows the JSON value")
	}
	return nil
}
