package noise

import (
	"crypto/mlkem"
	"encoding/binary"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/execagent/execagent/internal/relay/wire"
)

// Sizes of the parts of the messages, in bytes.
const (
	dhSize  = wire.X25519KeySize
	kemSize = wire.MLKEM768KeySize
	ctSize  = mlkem.CiphertextSize768
)

// Sizes of the messages in bytes (remote.md 6.3).
const (
	// InitiationSize is message 1 without the text of its payload.
	InitiationSize = ctSize + dhSize + kemSize + (dhSize + TagSize) + (kemSize + TagSize) + TagSize
	// ResponseSize is message 2 as a whole.
	ResponseSize = ctSize + (ctSize + TagSize) + dhSize + kemSize + TagSize
)

// ErrInitiationSize is the error for a message 1 that is too short or too long.
var ErrInitiationSize = errors.New("reading message 1: its length is wrong")

var (
	errMessage2 = errors.New("reading message 2: its length is wrong")
	errAuth     = errors.New("the authorization is too long or not UTF-8")
	errSpent    = errors.New("the handshake is over")
)

// Prologue returns the data that both sides have to agree on before the handshake: its
// environment, registration and stream (remote.md 6.4).
func Prologue(environmentID, registrationID string, streamID []byte) []byte {
	var p []byte
	for _, part := range [][]byte{
		[]byte("codex-exec-server-relay-noise/v1"), []byte(environmentID), []byte(registrationID), streamID,
	} {
		p = binary.BigEndian.AppendUint64(p, uint64(len(part)))
		p = append(p, part...)
	}
	return p
}

// An Initiator has sent message 1 and waits for message 2.
type Initiator struct{ hs *handshakeState }

// Initiate makes message 1 for the executor with the given static key. The
// authorization is its payload: at most [wire.MaxAuthorization] bytes of
// UTF-8.
func Initiate(id *Identity, executor *wire.PublicKey, prologue, authorization []byte) (*Initiator, []byte, error) {
	if !validAuthorization(authorization) {
		return nil, nil, fmt.Errorf("writing message 1: %w", errAuth)
	}
	hs := newHandshakeState(id)
	message, err := hs.writeInitiation(executor, prologue, authorization)
	if err != nil {
		hs.wipe()
		return nil, nil, fmt.Errorf("writing message 1: %w", err)
	}
	return &Initiator{hs}, message, nil
}

// Finish reads message 2 and keeps no part of it. Finish may be called once. It erases the
// handshake's secrets.
func (i *Initiator) Finish(message2 []byte) (*Session, error) {
	if i.hs.over {
		return nil, errSpent
	}
	defer i.Wipe()
	if len(message2) != ResponseSize { // the size without a payload
		return nil, errMessage2
	}
	if err := i.hs.readResponse(message2); err != nil {
		return nil, fmt.Errorf("reading message 2: %w", err)
	}
	tx, rx := i.hs.split()
	return newSession(tx, rx), nil
}

// Wipe gives up the handshake and erases its secrets. It must not run while Finish
// runs.
func (i *Initiator) Wipe() { i.hs.wipe() }

// A Responder has read message 1 and not yet answered.
type Responder struct {
	// HarnessKey is the peer's static public key. The handshake proves that the peer has
	// the secret keys. Only the registry knows whose key it is.
	HarnessKey *wire.PublicKey
	// Authorization is the payload of message 1. Only its length and encoding are
	// checked: at most wire.MaxAuthorization bytes of UTF-8.
	Authorization string

	hs *handshakeState
}

// ReadInitiation reads message 1 and keeps no part of it.
func ReadInitiation(id *Identity, prologue, message1 []byte) (*Responder, error) {
	if !FitsInitiation(message1) {
		return nil, ErrInitiationSize
	}
	hs := newHandshakeState(id)
	payload, err := hs.readInitiation(prologue, message1)
	if err == nil && !validAuthorization(payload) {
		err = errAuth
	}
	if err != nil {
		hs.wipe()
		return nil, fmt.Errorf("reading message 1: %w", err)
	}
	harness := &wire.PublicKey{Suite: wire.KeySuite, X25519: hs.rs.Bytes(), MLKEM768: hs.rsKEM.Bytes()}
	return &Responder{HarnessKey: harness, Authorization: string(payload), hs: hs}, nil
}

// Respond makes message 2. It may be called once, even before the registry has answered
// about the harness. It erases the handshake's secrets.
func (r *Responder) Respond() (message2 []byte, s *Session, err error) {
	if r.hs.over {
		return nil, nil, errSpent
	}
	defer r.Wipe()
	message2, err = r.hs.writeResponse()
	if err != nil {
		return nil, nil, fmt.Errorf("writing message 2: %w", err)
	}
	rx, tx := r.hs.split()
	return message2, newSession(tx, rx), nil
}

// Wipe gives up the handshake and erases its secrets. It must not run while
// Respond runs.
func (r *Responder) Wipe() { r.hs.wipe() }

// FitsInitiation reports whether message1 has a possible length of a message 1.
func FitsInitiation(message1 []byte) bool {
	return len(message1) >= InitiationSize && len(message1) <= InitiationSize+wire.MaxAuthorization
}

func validAuthorization(authorization []byte) bool {
	return len(authorization) <= wire.MaxAuthorization && utf8.Valid(authorization)
}
