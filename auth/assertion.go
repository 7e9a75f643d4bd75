package auth

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/execagent/execagent/internal/strictjson"
)

// What an assertion looks like (remote.md 12.6).
const (
	assertionScheme = "AgentAssertion "
	assertionTime   = "2006-01-02T15:04:05Z" // UTC, whole seconds

	maxAssertion = 4 << 10 // bytes of the header
	maxRuntimeID = 256     // bytes
	maxTaskID    = 1 << 10 // bytes
)

// Assertion is the content of the Authorization header that an agent identity sends
// with each request: the agent, the task it works on, and the time. An Assertion
// holds no secret, but its holder can use it as a credential for as long as its
// time is accepted.
type Assertion struct {
	RuntimeID string
	TaskID    string
	Time      time.Time // UTC, whole seconds; the caller decides how old it may be

	signature []byte
}

// assertionJSON has its members in the order of the wire.
type assertionJSON struct {
	RuntimeID string `json:"agent_runtime_id"`
	Signature string `json:"signature"`
	TaskID    string `json:"task_id"`
	Timestamp string `json:"timestamp"`
}

// UnmarshalObject reads the four members, and refuses others.
func (w *assertionJSON) UnmarshalObject(o *strictjson.Object) {
	o.Only("agent_runtime_id", "signature", "task_id", "timestamp")
	w.RuntimeID, w.Signature = o.String("agent_runtime_id"), o.String("signature")
	w.TaskID, w.Timestamp = o.String("task_id"), o.String("timestamp")
}

// ParseAssertion reads an Authorization header. It is strict, so that no part of an
// assertion can be spelled in two ways, and bounded. The result proves nothing
// until [Assertion.Verify] has returned nil.
func ParseAssertion(header string) (*Assertion, error) {
	encoded, ok := strings.CutPrefix(header, assertionScheme)
	if !ok || len(header) > maxAssertion {
		return nil, errors.New("authorization is no agent assertion")
	}
	data, err := strictjson.RawURLBase64.Decode(encoded)
	if err != nil {
		return nil, errors.New("agent assertion is not base64url without padding")
	}
	var w assertionJSON
	if strictjson.Unmarshal(data, &w) != nil {
		return nil, errors.New("agent assertion is not a JSON object of its four members")
	}
	a := &Assertion{RuntimeID: w.RuntimeID, TaskID: w.TaskID}
	a.Time, err = time.Parse(assertionTime, w.Timestamp)
	switch {
	case !validRuntimeID(a.RuntimeID):
		return nil, errors.New("agent_runtime_id of the agent assertion is not valid")
	case !validID(a.TaskID, maxTaskID):
		return nil, errors.New("task_id of the agent assertion is not valid")
	case err != nil || a.Time.Format(assertionTime) != w.Timestamp:
		return nil, errors.New("timestamp of the agent assertion is not UTC in whole seconds")
	}
	a.signature, err = strictjson.StdBase64.Decode(w.Signature)
	if err != nil || len(a.signature) != ed25519.SignatureSize {
		return nil, errors.New("signature of the agent assertion is not base64 of 64 bytes")
	}
	return a, nil
}

// Verify checks the signature with the public key of the runtime that the assertion names.
func (a *Assertion) Verify(key ed25519.PublicKey) error {
	if len(key) != ed25519.PublicKeySize {
		return errors.New("public key of the agent runtime is not 32 bytes")
	}
	if !ed25519.Verify(key, a.text(), a.signature) {
		return errors.New("agent assertion is not signed by its runtime")
	}
	return nil
}

// text returns the bytes that are signed. A runtime id has no colon, so no two
// assertions have the same bytes.
func (a *Assertion) text() []byte {
	return []byte(a.RuntimeID + ":" + a.TaskID + ":" + a.Time.Format(assertionTime))
}

// header signs the assertion and returns the value of its Authorization header.
func (a *Assertion) header(key ed25519.PrivateKey) (string, error) {
	a.signature = ed25519.Sign(key, a.text())
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false) // as the reference writes it
	err := e.Encode(assertionJSON{
		RuntimeID: a.RuntimeID,
		Signature: base64.StdEncoding.EncodeToString(a.signature),
		TaskID:    a.TaskID,
		Timestamp: a.Time.Format(assertionTime),
	})
	if err != nil {
		return "", err
	}
	return assertionScheme + base64.RawURLEncoding.EncodeToString(bytes.TrimSuffix(b.Bytes(), []byte("\n"))), nil
}

// validRuntimeID reports whether id can be a segment of a path, and can stand
// before a colon in the bytes that are signed.
func validRuntimeID(id string) bool {
	return validID(id, maxRuntimeID) && !strings.ContainsAny(id, ":/?#%") && id != "." && id != ".."
}

// validID reports whether id is one word of printable ASCII that JSON need not escape.
func validID(id string, limit int) bool {
	if id == "" || len(id) > limit {
		return false
	}
	for _, c := range []byte(id) {
		if c <= ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}
