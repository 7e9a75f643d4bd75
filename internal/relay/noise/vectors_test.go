package noise

import (
	"bytes"
	"crypto/ecdh"
	"crypto/mlkem"
	"crypto/mlkem/mlkemtest"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/flynn/noise"

	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/test/rig"
)

// hexBytes are bytes that a vector holds in hexadecimal.
type hexBytes []byte

func (h *hexBytes) UnmarshalText(text []byte) (err error) {
	*h, err = hex.DecodeString(string(text))
	return err
}

// A vectorKey is a key pair of a vector; the secrets of a live peer are missing.
type vectorKey struct {
	X25519Private hexBytes `json:"x25519_private_hex"`
	X25519Public  hexBytes `json:"x25519_public_hex"`
	MLKEMSeed     hexBytes `json:"mlkem768_seed_hex"`
	MLKEMPublic   hexBytes `json:"mlkem768_public_hex"`
}

// A vector is a handshake and the records after it, from remote.md section 15.
// Of the live ones one side's secrets are unknown, so that only the other can
// be replayed.
type vector struct {
	ProtocolName   string `json:"protocol_name"`
	EnvironmentID  string `json:"environment_id"`
	RegistrationID string `json:"executor_registration_id"`
	StreamID       string `json:"stream_id"`

	HarnessStatic    vectorKey  `json:"harness_static"`
	HarnessEphemeral *vectorKey `json:"harness_ephemeral"`
	HarnessSKEM      hexBytes   `json:"harness_skem_encapsulation_randomness_hex"`

	ExecutorStatic       *vectorKey `json:"executor_static"`
	ExecutorStaticPublic *vectorKey `json:"executor_static_public"`
	ExecutorEphemeral    *vectorKey `json:"executor_ephemeral"`
	ExecutorEKEM         hexBytes   `json:"executor_ekem_encapsulation_randomness_hex"`
	ExecutorSKEM         hexBytes   `json:"executor_skem_encapsulation_randomness_hex"`

	Prologue      hexBytes `json:"prologue_hex"`
	Authorization string   `json:"message1_payload_utf8"`
	Message1      hexBytes `json:"message1_hex"`
	Message2      hexBytes `json:"message2_hex"`
	HandshakeHash hexBytes `json:"handshake_hash_hex"`
	K1            hexBytes `json:"key_initiator_to_responder_hex"`
	K2            hexBytes `json:"key_responder_to_initiator_hex"`

	Frames []struct {
		From      string   `json:"from"`
		Kind      string   `json:"kind"`
		Seq       uint32   `json:"seq"`
		Frame     hexBytes `json:"frame_hex"`
		Plaintext hexBytes `json:"plaintext_hex"`
	} `json:"frames"`
}

// equal fails the test if two byte strings differ.
func equal(t testing.TB, what string, got, want []byte) {
	t.Helper()
	rig.Is(t, bytes.Equal(got, want), true, "%s is\n\t%x, want\n\t%x", what, got, want)
}

const (
	vectorBoth     = "noise-deterministic.json"
	vectorExecutor = "noise-executor-live.json"
	vectorHarness  = "noise-harness-live.json"
)

func readVector(t testing.TB, name string) *vector {
	t.Helper()
	text := rig.Value(os.ReadFile(filepath.Join("testdata", "vectors", name)))
	var v vector
	rig.Must(t, json.Unmarshal(text, &v))
	rig.Is(t, v.ProtocolName, protocolName, "the protocol of %s", name)
	return &v
}

// ephemeral returns the key pair, whose public halves must be those noted.
func (k *vectorKey) ephemeral(t testing.TB) *ephemeral {
	t.Helper()
	x := rig.Value(ecdh.X25519().NewPrivateKey(k.X25519Private))
	m := rig.Value(mlkem.NewDecapsulationKey768(k.MLKEMSeed))
	e := ephemeralOf(x, m)
	equal(t, "X25519 public key", e.x25519Public, k.X25519Public)
	equal(t, "ML-KEM public key", e.mlkemPublic, k.MLKEMPublic)
	return e
}

func (k *vectorKey) public() *wire.PublicKey {
	return &wire.PublicKey{Suite: wire.KeySuite, X25519: k.X25519Public, MLKEM768: k.MLKEMPublic}
}

// executor returns the executor's static public key, which is noted in one of
// two places.
func (v *vector) executor() *wire.PublicKey {
	if v.ExecutorStatic != nil {
		return v.ExecutorStatic.public()
	}
	return v.ExecutorStaticPublic.public()
}

// harnessState returns the state of the vector's harness before message 1.
func (v *vector) harnessState(t testing.TB) *handshakeState {
	t.Helper()
	return fixedState(t, &v.HarnessStatic, v.HarnessEphemeral, v.HarnessSKEM)
}

// executorState returns the state of the vector's executor before message 1.
func (v *vector) executorState(t testing.TB) *handshakeState {
	t.Helper()
	return fixedState(t, v.ExecutorStatic, v.ExecutorEphemeral, v.ExecutorEKEM, v.ExecutorSKEM)
}

// fixedState returns a state whose keys and whose randomness, one for each
// encapsulation to come, are given.
func fixedState(t testing.TB, s, e *vectorKey, encapsulations ...hexBytes) *handshakeState {
	t.Helper()
	h := newHandshakeState(identityOf(s.ephemeral(t)))
	h.ephemeral = func() (*ephemeral, error) { return e.ephemeral(t), nil }
	h.encapsulate = func(key *mlkem.EncapsulationKey768) (secret, ciphertext []byte) {
		if len(encapsulations) == 0 {
			t.Fatal("there are more encapsulations than the vector has randomness for")
		}
		secret, ciphertext, err := mlkemtest.Encapsulate768(key, encapsulations[0])
		rig.Must(t, err)
		encapsulations = encapsulations[1:]
		return secret, ciphertext
	}
	return h
}

// TestVectorRuns replays whole runs, from the prologue to the last record, in
// every role whose secrets are known. A token that is mixed in another way gives other bytes.
func TestVectorRuns(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		role, vector string
		replay       func(*testing.T, *vector)
	}{
		{"harness", vectorBoth, replayHarness},
		{"executor", vectorBoth, replayExecutor},
		{"harness", vectorExecutor, replayHarness},
		{"executor", vectorHarness, replayExecutor},
	} {
		t.Run(tt.role+"/"+tt.vector, func(t *testing.T) {
			t.Parallel()
			tt.replay(t, readVector(t, tt.vector)) // its own copy: records are opened in place
		})
	}
}

func replayHarness(t *testing.T, v *vector) {
	hs := v.harnessState(t)
	message := rig.Value(hs.writeInitiation(v.executor(), Prologue(v.EnvironmentID, v.RegistrationID, []byte(v.StreamID)), []byte(v.Authorization)))
	equal(t, "message 1", message, v.Message1)

	rig.Must(t, hs.readResponse(v.Message2))
	equal(t, "handshake hash", hs.h[:], v.HandshakeHash)
	tx, rx := hs.split()
	checkKeys(t, v, tx, rx)
	replayFrames(t, v, "harness", newSession(tx, rx))
}

func replayExecutor(t *testing.T, v *vector) {
	hs := v.executorState(t)
	authorization := rig.Value(hs.readInitiation(Prologue(v.EnvironmentID, v.RegistrationID, []byte(v.StreamID)), v.Message1))
	equal(t, "authorization", authorization, []byte(v.Authorization))
	equal(t, "harness's X25519 key", hs.rs.Bytes(), v.HarnessStatic.X25519Public)
	equal(t, "harness's ML-KEM key", hs.rsKEM.Bytes(), v.HarnessStatic.MLKEMPublic)

	message := rig.Value(hs.writeResponse())
	equal(t, "message 2", message, v.Message2)
	equal(t, "handshake hash", hs.h[:], v.HandshakeHash)
	rx, tx := hs.split()
	checkKeys(t, v, rx, tx)
	replayFrames(t, v, "executor", newSession(tx, rx))
}

func checkKeys(t *testing.T, v *vector, fromInitiator, fromResponder *noise.CipherState) {
	t.Helper()
	k1, k2 := fromInitiator.UnsafeKey(), fromResponder.UnsafeKey()
	equal(t, "key from initiator to responder", k1[:], v.K1)
	equal(t, "key from responder to initiator", k2[:], v.K2)
}

// replayFrames makes what self sent, byte for byte, and opens what the peer sent.
func replayFrames(t *testing.T, v *vector, self string, s *Session) {
	t.Helper()
	records := 0
	for n, want := range v.Frames {
		var f frame.Frame
		rig.Must(t, frame.Decode(want.Frame, &f))
		equal(t, "stream id", f.StreamID, []byte(v.StreamID))
		equal(t, "frame as we encode it", f.Append(nil), want.Frame)
		switch want.Kind {
		case "resume":
			rig.Is(t, f.Body == frame.Resume && f.NextSeq == 0, true, "frame %d is a resume from the start: %+v", n, f)
		case "handshake":
			message := v.Message1
			if want.From == "executor" {
				message = v.Message2
			}
			equal(t, "handshake frame's payload", f.Payload, message)
		case "data":
			rig.Is(t, f.Seq, want.Seq, "frame %d has seq", n)
			records++
			if want.From == self {
				h := frame.DataHeader{StreamID: f.StreamID, Seq: f.Seq, PayloadSize: len(want.Plaintext) + TagSize}
				b := rig.Value(s.Seal(h.Append(nil), want.Plaintext))
				equal(t, "data frame", b, want.Frame)
				continue
			}
			equal(t, "plaintext", rig.Value(s.Open(f.Payload)), want.Plaintext)
		default:
			t.Fatalf("frame %d is of kind %q", n, want.Kind)
		}
	}
	rig.Is(t, records == 0, false, "the vector has no records")
}
