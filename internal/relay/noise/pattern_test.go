package noise

import (
	"bytes"
	"crypto/rand"
	"io"
	"testing"

	"github.com/flynn/noise"

	"github.com/execagent/execagent/test/rig"
)

// plainIK turns a state into one of Noise's own IK, with the same code but for
// the KEM tokens.
func plainIK(id *Identity, e *ephemeral) *handshakeState {
	h := newHandshakeState(id)
	h.name, h.kem = "Noise_IK_25519_AESGCM_SHA256", false
	h.ephemeral = func() (*ephemeral, error) { return e, nil }
	return h
}

// otherIK returns a state of the noise library with the keys of one of ours. Its
// ephemeral key is the one that random gives.
func otherIK(t *testing.T, id *Identity, e *ephemeral, prologue, peer []byte) *noise.HandshakeState {
	t.Helper()
	hs, err := noise.NewHandshakeState(noise.Config{
		CipherSuite:   noise.NewCipherSuite(noise.DH25519, noise.CipherAESGCM, noise.HashSHA256),
		Random:        io.MultiReader(bytes.NewReader(e.x25519.Bytes()), rand.Reader),
		Pattern:       noise.HandshakeIK,
		Initiator:     peer != nil,
		Prologue:      prologue,
		StaticKeypair: noise.DHKey{Private: id.x25519.Bytes(), Public: id.public.X25519},
		PeerStatic:    peer,
	})
	rig.Must(t, err)
	return hs
}

// TestPlainIK compares our symmetric and handshake state, KEM tokens left out,
// with those of the noise library: each of our roles talks to the other
// role of the library, while the library in our own role and with our keys
// writes the same bytes.
func TestPlainIK(t *testing.T) {
	t.Parallel()
	prologue := Prologue("env-1", "reg-1", []byte("stream-1"))
	for _, payload := range []string{"", "authorization", string(bytes.Repeat([]byte("x"), 4096))} {
		harness, executor := newIdentity(t), newIdentity(t)
		e := make([]*ephemeral, 2)
		for n := range e {
			e[n] = rig.Value(newEphemeral())
		}
		i, r := plainIK(harness, e[0]), plainIK(executor, e[1])
		otherI := otherIK(t, harness, e[0], prologue, executor.public.X25519)
		otherR := otherIK(t, executor, e[1], prologue, nil)

		m1 := rig.Value(i.writeInitiation(executor.public, prologue, []byte(payload)))
		want, _, _, err := otherI.WriteMessage(nil, []byte(payload))
		rig.Must(t, err)
		equal(t, "message 1", m1, want)
		equal(t, "hash after message 1", i.h[:], otherI.ChannelBinding())

		got := rig.Value(r.readInitiation(prologue, want))
		equal(t, "payload that we read", got, []byte(payload))
		got, _, _, err = otherR.ReadMessage(nil, m1)
		rig.Must(t, err)
		equal(t, "payload that the library reads", got, []byte(payload))

		m2 := rig.Value(r.writeResponse())
		want, r1, r2, err := otherR.WriteMessage(nil, nil)
		rig.Must(t, err)
		equal(t, "message 2", m2, want)

		rig.Must(t, i.readResponse(want))
		_, i1, i2, err := otherI.ReadMessage(nil, m2)
		rig.Must(t, err)
		equal(t, "initiator's hash", i.h[:], otherI.ChannelBinding())
		equal(t, "responder's hash", r.h[:], otherR.ChannelBinding())

		// All four agree on the keys, and records pass between ours and the library's.
		ourI1, ourI2 := i.split()
		ourR1, ourR2 := r.split()
		for _, state := range [][2]*noise.CipherState{{ourI1, i1}, {ourI1, r1}, {ourR1, r1}, {ourI2, i2}, {ourI2, r2}, {ourR2, r2}} {
			rig.Is(t, state[0].UnsafeKey(), state[1].UnsafeKey(), "the keys differ")
		}
		exchange(t, newSession(ourI1, ourI2), newSession(r2, r1))
		exchange(t, newSession(i1, i2), newSession(ourR2, ourR1))
	}
}
