package noise

import (
	"crypto/ecdh"
	"crypto/mlkem"
	"errors"
	"fmt"

	"github.com/execagent/execagent/internal/relay/wire"
)

// The handshake of remote.md section 6: the Noise pattern IK with two kinds of
// keys. An attacker who records it today has to break both X25519 and ML-KEM-768.
//
//	hybridIK:
//	  <- s
//	  ...
//	  -> skem, e, es, s, ss
//	  <- ekem, skem, e, ee, se
//
// The initiator is the harness, the responder is the executor. Every e and s
// is two keys, the X25519 key before the ML-KEM key.
const protocolName = "Noise_hybridIK_25519+MLKEM768_AESGCM_SHA256"

// errShort says that a message is too short. The error that wraps errShort names the
// message and the part of it.
var errShort = errors.New("it ends in the middle")

// A handshakeState is the state of either side between the two messages.
type handshakeState struct {
	symmetricState
	over bool

	s *Identity
	e *ephemeral

	// The peer's keys, static and ephemeral.
	rs    *ecdh.PublicKey
	rsKEM *mlkem.EncapsulationKey768
	re    *ecdh.PublicKey
	reKEM *mlkem.EncapsulationKey768

	variant
}

// A variant has the fields that tests change. Tests with vectors fix the random values.
// Another test leaves out the KEM tokens, to compare the state with another implementation
// of Noise, which has no KEM.
type variant struct {
	name        string
	kem         bool // with the KEM tokens and the ML-KEM key of e and s
	ephemeral   func() (*ephemeral, error)
	encapsulate func(*mlkem.EncapsulationKey768) (secret, ciphertext []byte)
}

func newHandshakeState(id *Identity) *handshakeState {
	return &handshakeState{s: id, variant: variant{
		name:        protocolName,
		kem:         true,
		ephemeral:   id.ephemeral,
		encapsulate: (*mlkem.EncapsulationKey768).Encapsulate,
	}}
}

// writeInitiation makes message 1.
func (h *handshakeState) writeInitiation(executor *wire.PublicKey, prologue, payload []byte) ([]byte, error) {
	h.start(prologue, executor)
	if err := h.setStatic(executor.X25519, executor.MLKEM768); err != nil {
		return nil, fmt.Errorf("executor's key: %w", err)
	}
	m := make([]byte, 0, InitiationSize+len(payload))

	// -> skem
	if h.kem {
		m = h.writeSKEM(m)
	}
	// -> e
	m, err := h.writeE(m)
	if err != nil {
		return nil, fmt.Errorf("e: %w", err)
	}
	// -> es
	if err := h.mixDH(h.e.x25519, h.rs); err != nil {
		return nil, fmt.Errorf("es: %w", err)
	}
	// -> s
	m = h.writeS(m)
	// -> ss
	if err := h.mixDH(h.s.x25519, h.rs); err != nil {
		return nil, fmt.Errorf("ss: %w", err)
	}
	return h.encryptAndHash(m, payload), nil
}

// readInitiation reads message 1 and returns its payload.
func (h *handshakeState) readInitiation(prologue, m []byte) (payload []byte, err error) {
	h.start(prologue, h.s.public)

	// -> skem
	if h.kem {
		if m, err = h.readSKEM(m); err != nil {
			return nil, fmt.Errorf("skem: %w", err)
		}
	}
	// -> e
	m, eKEM, err := h.readE(m)
	if err != nil {
		return nil, fmt.Errorf("e: %w", err)
	}
	if h.kem {
		if h.reKEM, err = mlkem.NewEncapsulationKey768(eKEM); err != nil {
			return nil, fmt.Errorf("e: %w", err)
		}
	}
	// -> es
	if err := h.mixDH(h.s.x25519, h.re); err != nil {
		return nil, fmt.Errorf("es: %w", err)
	}
	// -> s
	if m, err = h.readS(m); err != nil {
		return nil, fmt.Errorf("s: %w", err)
	}
	// -> ss
	if err := h.mixDH(h.s.x25519, h.rs); err != nil {
		return nil, fmt.Errorf("ss: %w", err)
	}
	if payload, err = h.decryptAndHash(m); err != nil {
		return nil, fmt.Errorf("payload: %w", err)
	}
	return payload, nil
}

// writeResponse makes message 2, which has no payload.
func (h *handshakeState) writeResponse() ([]byte, error) {
	m := make([]byte, 0, ResponseSize)

	// <- ekem, skem
	if h.kem {
		m = h.writeEKEM(m)
		m = h.writeSKEM(m)
	}
	// <- e
	m, err := h.writeE(m)
	if err != nil {
		return nil, fmt.Errorf("e: %w", err)
	}
	// <- ee
	if err := h.mixDH(h.e.x25519, h.re); err != nil {
		return nil, fmt.Errorf("ee: %w", err)
	}
	// <- se
	if err := h.mixDH(h.e.x25519, h.rs); err != nil {
		return nil, fmt.Errorf("se: %w", err)
	}
	return h.encryptAndHash(m, nil), nil
}

// readResponse reads message 2.
func (h *handshakeState) readResponse(m []byte) (err error) {
	// <- ekem, skem
	if h.kem {
		if m, err = h.readEKEM(m); err != nil {
			return fmt.Errorf("ekem: %w", err)
		}
		if m, err = h.readSKEM(m); err != nil {
			return fmt.Errorf("skem: %w", err)
		}
	}
	// <- e, whose ML-KEM key is only mixed into the hash
	if m, _, err = h.readE(m); err != nil {
		return fmt.Errorf("e: %w", err)
	}
	// <- ee
	if err := h.mixDH(h.e.x25519, h.re); err != nil {
		return fmt.Errorf("ee: %w", err)
	}
	// <- se
	if err := h.mixDH(h.s.x25519, h.re); err != nil {
		return fmt.Errorf("se: %w", err)
	}
	if _, err = h.decryptAndHash(m); err != nil {
		return fmt.Errorf("payload: %w", err)
	}
	return nil
}

// start does the steps of both sides before message 1.
func (h *handshakeState) start(prologue []byte, executor *wire.PublicKey) {
	h.initialize(h.name)
	h.mixHash(prologue)

	// <- s
	h.mixHash(executor.X25519)
	if h.kem {
		h.mixHash(executor.MLKEM768)
	}
}

// setStatic parses and sets the peer's static keys.
func (h *handshakeState) setStatic(x25519, kem []byte) (err error) {
	if h.rs, err = ecdh.X25519().NewPublicKey(x25519); err != nil {
		return err
	}
	if h.kem {
		h.rsKEM, err = h.s.encapsulationKey(kem)
	}
	return err
}

// mixDH does the tokens es, ss, ee and se. A shared secret of zeros only is an error; a
// peer's key of low order gives such a secret.
//
// It calls X25519 of the standard library directly, with a private key that was parsed
// once. The DH of the noise library calls the same function, but parses the private key
// each time. That doubles the work and leaves a copy of the key in memory.
func (h *handshakeState) mixDH(private *ecdh.PrivateKey, public *ecdh.PublicKey) error {
	secret, err := private.ECDH(public)
	if err != nil {
		return err
	}
	h.mixKey(secret)
	clear(secret)
	return nil
}

func (h *handshakeState) writeE(m []byte) (_ []byte, err error) {
	if h.e, err = h.ephemeral(); err != nil {
		return nil, err
	}
	m = append(m, h.e.x25519Public...)
	h.mixHash(h.e.x25519Public)
	if h.kem {
		m = append(m, h.e.mlkemPublic...)
		h.mixHash(h.e.mlkemPublic)
	}
	return m, nil
}

// readE also returns the bytes of the ML-KEM key, which it does not parse.
func (h *handshakeState) readE(m []byte) (rest, kem []byte, err error) {
	x25519, m, err := take(m, dhSize)
	if err != nil {
		return nil, nil, err
	}
	h.mixHash(x25519)
	if h.re, err = ecdh.X25519().NewPublicKey(x25519); err != nil {
		return nil, nil, err
	}
	if h.kem {
		if kem, m, err = take(m, kemSize); err != nil {
			return nil, nil, err
		}
		h.mixHash(kem)
	}
	return m, kem, nil
}

func (h *handshakeState) writeS(m []byte) []byte {
	m = h.encryptAndHash(m, h.s.public.X25519)
	if h.kem {
		m = h.encryptAndHash(m, h.s.public.MLKEM768)
	}
	return m
}

func (h *handshakeState) readS(m []byte) (rest []byte, err error) {
	text, m, err := take(m, dhSize+TagSize)
	if err != nil {
		return nil, err
	}
	x25519, err := h.decryptAndHash(text)
	if err != nil {
		return nil, err
	}
	var kem []byte
	if h.kem {
		if text, m, err = take(m, kemSize+TagSize); err != nil {
			return nil, err
		}
		if kem, err = h.decryptAndHash(text); err != nil {
			return nil, err
		}
	}
	return m, h.setStatic(x25519, kem)
}

func (h *handshakeState) writeEKEM(m []byte) []byte {
	secret, ciphertext := h.encapsulate(h.reKEM)
	m = append(m, ciphertext...)
	h.mixHash(ciphertext)
	h.mixKey(secret)
	clear(secret)
	return m
}

// readEKEM does not detect a wrong ciphertext. ML-KEM then returns another secret, and the
// next decryption fails.
func (h *handshakeState) readEKEM(m []byte) (rest []byte, err error) {
	ciphertext, m, err := take(m, ctSize)
	if err != nil {
		return nil, err
	}
	secret, err := h.e.mlkem.Decapsulate(ciphertext)
	if err != nil {
		return nil, err
	}
	h.mixHash(ciphertext)
	h.mixKey(secret)
	clear(secret)
	return m, nil
}

func (h *handshakeState) writeSKEM(m []byte) []byte {
	secret, ciphertext := h.encapsulate(h.rsKEM)
	m = h.encryptAndHash(m, ciphertext)
	h.mixKeyAndHash(secret)
	clear(secret)
	return m
}

// readSKEM detects a wrong ciphertext only if the ciphertext was encrypted; see readEKEM.
func (h *handshakeState) readSKEM(m []byte) (rest []byte, err error) {
	size := ctSize
	if h.cipher != nil {
		size += TagSize
	}
	text, m, err := take(m, size)
	if err != nil {
		return nil, err
	}
	ciphertext, err := h.decryptAndHash(text)
	if err != nil {
		return nil, err
	}
	secret, err := h.s.mlkem.Decapsulate(ciphertext)
	if err != nil {
		return nil, err
	}
	h.mixKeyAndHash(secret)
	clear(secret)
	return m, nil
}

// wipe erases the secrets of the handshake.
func (h *handshakeState) wipe() {
	h.symmetricState.wipe()
	h.e = nil
	h.over = true
}

// take cuts n bytes off the front of m.
func take(m []byte, n int) (head, rest []byte, err error) {
	if len(m) < n {
		return nil, nil, errShort
	}
	return m[:n], m[n:], nil
}
