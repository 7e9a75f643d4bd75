package relay

import (
	"crypto/mlkem"
	"encoding/binary"
	"errors"
	"fmt"
	"unicode/utf8"

	"github.com/execagent/execagent/registry/wire"
)

// Sizes in bytes of what the messages are made of.
const (
	dhSize  = wire.X25519KeySize
	kemSize = wire.MLKEM768KeySize
	ctSize  = mlkem.CiphertextSize768
)

// Sizes of the messages in bytes: the first one without its payload's text, the
// second one as a whole (remote.md 6.3).
const (
	initiationSize = ctSize + dhSize + kemSize + (dhSize + tagSize) + (kemSize + tagSize) + tagSize
	responseSize   = ctSize + (ctSize + tagSize) + dhSize + kemSize + tagSize
)

var (
	errMessage1 = errors.New("reading message 1: its length is wrong")
	errMessage2 = errors.New("reading message 2: its length is wrong")
	errAuth     = errors.New("the authorization is too long or not UTF-8")
	errSpent    = errors.New("the handshake is over")
)

// prologue is what both sides have to agree on beforehand: which environment,
// registration and stream this handshake is for (remote.md 6.4).
func prologue(environmentID, registrationID string, streamID []byte) []byte {
	var p []byte
	for _, part := range [][]byte{
		[]byte("codex-exec-server-relay-noise/v1"), []byte(environmentID), []byte(registrationID), streamID,
	} {
		p = binary.BigEndian.AppendUint64(p, uint64(len(part)))
		p = append(p, part...)
	}
	return p
}

// An initiator has sent message 1 and waits for message 2.
type initiator struct{ hs *handshakeState }

// initiate makes message 1 for the executor with the given static key. The
// authorization is its payload: at most [wire.MaxAuthorization] bytes of
// UTF-8.
func initiate(id *Identity, executor *wire.PublicKey, prologue, authorization []byte) (*initiator, []byte, error) {
	if !validAuthorization(authorization) {
		return nil, nil, fmt.Errorf("writing message 1: %w", errAuth)
	}
	hs := newHandshakeState(id)
	message, err := hs.writeInitiation(executor, prologue, authorization)
	if err != nil {
		hs.wipe()
		return nil, nil, fmt.Errorf("writing message 1: %w", err)
	}
	return &initiator{hs}, message, nil
}

// finish reads message 2 and keeps nothing of it. It may be called once; the
// handshake's secrets are gone afterwards.
func (i *initiator) finish(message2 []byte) (*session, error) {
	if i.hs.over {
		return nil, errSpent
	}
	defer i.wipe()
	if len(message2) != responseSize { // which leaves no room for a payload
		return nil, errMessage2
	}
	if err := i.hs.readResponse(message2); err != nil {
		return nil, fmt.Errorf("reading message 2: %w", err)
	}
	tx, rx := i.hs.split()
	return newSession(tx, rx), nil
}

// wipe gives up the handshake. It must not run while finish does.
func (i *initiator) wipe() { i.hs.wipe() }

// A responder has read message 1 and not yet answered.
type responder struct {
	harnessKey    *wire.PublicKey // proven by the handshake, but by whom it is for the registry to say
	authorization string          // at most wire.MaxAuthorization bytes of UTF-8, else unchecked

	hs *handshakeState
}

// readInitiation reads message 1. It keeps nothing of it.
func readInitiation(id *Identity, prologue, message1 []byte) (*responder, error) {
	if !fitsInitiation(message1) {
		return nil, errMessage1
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
	return &responder{harnessKey: harness, authorization: string(payload), hs: hs}, nil
}

// respond makes message 2. It may be called once, also while the registry is
// still being asked; the handshake's secrets are gone afterwards.
func (r *responder) respond() (message2 []byte, s *session, err error) {
	if r.hs.over {
		return nil, nil, errSpent
	}
	defer r.wipe()
	message2, err = r.hs.writeResponse()
	if err != nil {
		return nil, nil, fmt.Errorf("writing message 2: %w", err)
	}
	rx, tx := r.hs.split()
	return message2, newSession(tx, rx), nil
}

// wipe gives up the handshake. It must not run while respond does.
func (r *responder) wipe() { r.hs.wipe() }

// fitsInitiation tells whether message 1 is of a size that it can have.
func fitsInitiation(message1 []byte) bool {
	return len(message1) >= initiationSize && len(message1) <= initiationSize+wire.MaxAuthorization
}

func validAuthorization(authorization []byte) bool {
	return len(authorization) <= wire.MaxAuthorization && utf8.Valid(authorization)
}
