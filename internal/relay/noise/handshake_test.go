package noise

import (
	"bytes"
	"crypto/ecdh"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/relay/wire"
	"github.com/execagent/execagent/test/rig"
)

func newIdentity(t testing.TB) *Identity {
	t.Helper()
	return rig.Value(NewIdentity())
}

// shakeHands runs a whole handshake and returns both ends.
func shakeHands(t testing.TB) (harness, executor *Session) {
	t.Helper()
	h, e := newIdentity(t), newIdentity(t)
	i, m1, err := Initiate(h, e.PublicKey(), nil, []byte("authorization"))
	rig.Must(t, err)
	m2, executor := respond(t, e, nil, m1)
	return rig.Value(i.Finish(m2)), executor
}

// respond is what an executor does with message 1.
func respond(t testing.TB, e *Identity, p, m1 []byte) (m2 []byte, s *Session) {
	t.Helper()
	m2, s, err := rig.Value(ReadInitiation(e, p, m1)).Respond()
	rig.Must(t, err)
	return m2, s
}

// exchange sends one record each way.
func exchange(t testing.TB, a, b *Session) {
	t.Helper()
	for _, tt := range []struct {
		from, to *Session
		text     string
	}{{a, b, "there"}, {b, a, "and back"}, {a, b, ""}} {
		record := rig.Value(tt.from.Seal(nil, []byte(tt.text)))
		rig.Is(t, len(record), len(tt.text)+TagSize, "bytes of the record of %d", len(tt.text))
		equal(t, "plaintext", rig.Value(tt.to.Open(record)), []byte(tt.text))
	}
}

func TestHandshake(t *testing.T) {
	t.Parallel()
	h, e := newIdentity(t), newIdentity(t)
	p := Prologue("env-1", "", []byte(" s"))
	for _, authorization := range []string{"", "token", strings.Repeat("ä", wire.MaxAuthorization/2)} {
		h.Prepare() // the harness has prepared keys, the executor has none
		i, m1, err := Initiate(h, e.PublicKey(), p, []byte(authorization))
		rig.Must(t, err)
		rig.Is(t, len(m1), 3568+len(authorization), "bytes of message 1")
		sent := bytes.Clone(m1)
		r := rig.Value(ReadInitiation(e, p, m1))
		equal(t, "message 1 after it was read", m1, sent)
		clear(m1) // what was read may be reused
		rig.Is(t, r.Authorization, authorization, "the authorization of %d bytes arrives as", len(authorization))
		rig.Is(t, r.HarnessKey.Equal(h.PublicKey()), true, "the harness's key arrives")
		m2, executor, err := r.Respond()
		rig.Must(t, err)
		rig.Is(t, len(m2), 3424, "bytes of message 2")
		exchange(t, rig.Value(i.Finish(m2)), executor)

		_, _, err = r.Respond()
		rig.Is(t, err, errSpent, "responding again")
		rig.Is(t, rig.Err(i.Finish(m2)), errSpent, "finishing again")
		for _, hs := range []*handshakeState{i.hs, r.hs} {
			rig.Is(t, hs.e == nil && hs.symmetricState == symmetricState{}, true, "no secrets are left when the handshake is over")
		}
	}
}

// TestHandshakeKeysDiffer: no ciphertext and no ephemeral key of one handshake
// comes back in another.
func TestHandshakeKeysDiffer(t *testing.T) {
	t.Parallel()
	h, e := newIdentity(t), newIdentity(t)
	seen := map[string]bool{}
	for range 3 {
		_, m1, err := Initiate(h, e.PublicKey(), nil, nil)
		rig.Must(t, err)
		m2, _ := respond(t, e, nil, m1)
		for _, part := range [][]byte{
			m1[:ctSize], m1[ctSize:][:dhSize], m1[ctSize+dhSize:][:kemSize],
			m2[:ctSize], m2[ctSize:][:ctSize+TagSize], m2[2*ctSize+TagSize:][:dhSize], m2[2*ctSize+TagSize+dhSize:][:kemSize],
		} {
			rig.Is(t, seen[string(part)], false, "%d bytes of a message come a second time", len(part))
			seen[string(part)] = true
		}
	}
}

// TestTampering changes bytes of every message, a quarter of them in each run, and
// every byte of a record.
func TestTampering(t *testing.T) {
	t.Parallel()
	v := readVector(t, vectorBoth)
	const stride = 4 // each is a handshake, which takes its time

	t.Run("message 1", func(t *testing.T) {
		t.Parallel()
		id := identityOf(v.ExecutorStatic.ephemeral(t))
		rig.Must(t, rig.Err(ReadInitiation(id, v.Prologue, v.Message1)))
		for n := rand.N(stride); n < len(v.Message1); n += stride {
			m := bytes.Clone(v.Message1)
			m[n] ^= 1 << (n % 8)
			r, err := ReadInitiation(id, v.Prologue, m)
			rig.Is(t, err != nil && r == nil, true, "changing byte %d of message 1 is found out", n)
		}
	})
	t.Run("message 2", func(t *testing.T) {
		t.Parallel()
		harness := waiting(t, v)
		for n := rand.N(stride); n < len(v.Message2); n += stride {
			m := bytes.Clone(v.Message2)
			m[n] ^= 1 << (n % 8)
			s, err := harness().Finish(m)
			rig.Is(t, err != nil && s == nil, true, "changing byte %d of message 2 is found out", n)
		}
		rig.Must(t, rig.Err(harness().Finish(v.Message2)))
	})
	t.Run("record", func(t *testing.T) {
		t.Parallel()
		tx, rx := pairOfSessions()
		record := rig.Value(tx.Seal(nil, []byte("what it says")))
		for n := range record {
			_, rx := pairOfSessions()
			r := bytes.Clone(record)
			r[n] ^= 1 << (n % 8)
			rig.Is(t, rig.Err(rx.Open(r)), ErrRecord, "byte %d of a record may be changed", n)
		}
		rig.Must(t, rig.Err(rx.Open(record)))
	})
}

// waiting returns a function that returns a copy of the vector's harness in the
// state in which it waits for message 2.
func waiting(t testing.TB, v *vector) func() *Initiator {
	t.Helper()
	hs := v.harnessState(t)
	rig.Must(t, rig.Err(hs.writeInitiation(v.executor(), v.Prologue, []byte(v.Authorization))))
	return func() *Initiator { return &Initiator{new(*hs)} }
}

// lengthClasses returns m cut and extended at, before and behind each border
// between the parts of a message, and by much.
func lengthClasses(m []byte, borders []int) [][]byte {
	var lengths []int
	end := 0
	for _, part := range append(borders, 0) {
		end += part
		lengths = append(lengths, end-1, end, end+1)
	}
	lengths = append(lengths, 0, len(m)-1, len(m)+1, len(m)+TagSize, len(m)+5000, 65535, 65536, 1<<20)
	slices.Sort(lengths)
	var out [][]byte
	for _, n := range slices.Compact(lengths) {
		if n < 0 || n == len(m) {
			continue
		}
		out = append(out, append(bytes.Clone(m[:min(n, len(m))]), make([]byte, max(0, n-len(m)))...))
	}
	return out
}

func TestWrongLengths(t *testing.T) {
	t.Parallel()
	v := readVector(t, vectorBoth)
	id := identityOf(v.ExecutorStatic.ephemeral(t))
	for _, m := range lengthClasses(v.Message1, []int{ctSize, dhSize, kemSize, dhSize + TagSize, kemSize + TagSize, TagSize}) {
		rig.Is(t, rig.Err(ReadInitiation(id, v.Prologue, m)) == nil, false, "message 1 may be %d bytes", len(m))
		// The parts are checked too, where nobody has checked the length of the
		// whole.
		rig.Is(t, rig.Err(newHandshakeState(id).readInitiation(v.Prologue, m)) == nil, false, "the parts of message 1 may be %d bytes", len(m))
	}
	harness := waiting(t, v)
	for _, m := range lengthClasses(v.Message2, []int{ctSize, ctSize + TagSize, dhSize, kemSize, TagSize}) {
		rig.Is(t, rig.Err(harness().Finish(m)), errMessage2, "message 2 may be %d instead of %d bytes", len(m), len(v.Message2))
		rig.Is(t, harness().hs.readResponse(m) == nil, false, "the parts of message 2 may be %d bytes", len(m))
	}
}

// TestPayloadOfMessage2: an executor that sends a payload in message 2 is refused,
// although the message is sealed as it should be.
func TestPayloadOfMessage2(t *testing.T) {
	t.Parallel()
	v := readVector(t, vectorBoth)
	r := v.executorState(t)
	rig.Must(t, rig.Err(r.readInitiation(v.Prologue, v.Message1)))
	m := rig.Value(r.writeE(r.writeSKEM(r.writeEKEM(nil))))
	rig.Must(t, errors.Join(r.mixDH(r.e.x25519, r.re), r.mixDH(r.e.x25519, r.rs)))
	m = r.encryptAndHash(m, []byte("x"))
	harness := waiting(t, v)
	rig.Is(t, rig.Err(harness().Finish(m)), errMessage2, "message 2 with a payload")
	rig.Check(t, harness().hs.readResponse(m))
}

// TestWrongContext: both sides must mean the same, and the initiator the right
// executor.
func TestWrongContext(t *testing.T) {
	t.Parallel()
	h, e := newIdentity(t), newIdentity(t)
	p := Prologue("env-1", "reg-1", []byte("stream-1"))
	_, m1, err := Initiate(h, e.PublicKey(), p, nil)
	rig.Must(t, err)
	for _, tt := range []struct {
		name string
		id   *Identity
		p    []byte
	}{
		{"environment", e, Prologue("env-2", "reg-1", []byte("stream-1"))},
		{"registration", e, Prologue("env-1", "reg-2", []byte("stream-1"))},
		{"stream", e, Prologue("env-1", "reg-1", []byte("stream-2"))},
		{"border between the parts", e, Prologue("env-1r", "eg-1", []byte("stream-1"))},
		{"no prologue", e, nil},
		{"executor", newIdentity(t), p},
		{"X25519 key", withKeys(e.x25519, newIdentity(t)), p},
		{"ML-KEM key", withKeys(newIdentity(t).x25519, e), p},
		{"harness itself", h, p},
	} {
		rig.Is(t, rig.Err(ReadInitiation(tt.id, tt.p, m1)) == nil, false, "message 1 is accepted in spite of another %s", tt.name)
	}
	rig.Must(t, rig.Err(ReadInitiation(e, p, m1)))

	// The answer to another harness's message 1, or to another one of this harness's.
	i, _, err := Initiate(h, e.PublicKey(), p, nil)
	rig.Must(t, err)
	m2, _ := respond(t, e, p, m1)
	rig.Is(t, rig.Err(i.Finish(m2)) == nil, false, "the answer to another message 1 is accepted")
}

// withKeys returns an identity with one key of each origin.
func withKeys(x *ecdh.PrivateKey, kem *Identity) *Identity {
	return identityOf(ephemeralOf(x, kem.mlkem))
}

// lowOrder are keys with which every X25519 secret is zero (RFC 7748, section 6.1).
var lowOrder = [][]byte{
	make([]byte, 32),
	append([]byte{1}, make([]byte, 31)...),
	append(append([]byte{0xed}, bytes.Repeat([]byte{0xff}, 30)...), 0x7f),
}

func TestBadKeys(t *testing.T) {
	t.Parallel()
	h, e := newIdentity(t), newIdentity(t)
	good := e.PublicKey()
	tooLarge := bytes.Repeat([]byte{0xff}, kemSize) // coefficients that are not below the modulus

	for name, key := range map[string]*wire.PublicKey{
		"short X25519":       {X25519: good.X25519[:31], MLKEM768: good.MLKEM768},
		"short ML-KEM":       {X25519: good.X25519, MLKEM768: good.MLKEM768[:kemSize-1]},
		"unreduced ML-KEM":   {X25519: good.X25519, MLKEM768: tooLarge},
		"X25519 of order 1":  {X25519: lowOrder[0], MLKEM768: good.MLKEM768},
		"X25519 of order 4":  {X25519: lowOrder[1], MLKEM768: good.MLKEM768},
		"X25519 not reduced": {X25519: lowOrder[2], MLKEM768: good.MLKEM768},
	} {
		_, _, err := Initiate(h, key, nil, nil)
		rig.Is(t, err == nil, false, "an executor's key with %s is accepted", name)
	}

	refused := func(m []byte, err error, at string) {
		t.Helper()
		rig.Must(t, err)
		err = rig.Err(ReadInitiation(e, nil, m))
		rig.Is(t, err != nil && strings.Contains(err.Error(), at), true, "%v is at %q", err, at)
	}
	// A harness that sends such keys and is honest otherwise.
	sends := func(spoil func(e *ephemeral), at string) {
		t.Helper()
		hs := newHandshakeState(h)
		hs.ephemeral = func() (*ephemeral, error) {
			e, err := newEphemeral()
			spoil(e)
			return e, err
		}
		m, err := hs.writeInitiation(good, nil, nil)
		refused(m, err, at)
	}
	for _, x25519 := range lowOrder {
		sends(func(e *ephemeral) { e.x25519Public = x25519 }, "es: ")
	}
	sends(func(e *ephemeral) { e.mlkemPublic = tooLarge }, "message 1: e: ")
	for name, public := range map[string]*wire.PublicKey{
		"s: ":  {X25519: h.public.X25519, MLKEM768: tooLarge},
		"ss: ": {X25519: lowOrder[1], MLKEM768: h.public.MLKEM768},
	} {
		liar := identityOf(&ephemeral{x25519: h.x25519, mlkem: h.mlkem, x25519Public: public.X25519, mlkemPublic: public.MLKEM768})
		_, m, err := Initiate(liar, good, nil, nil)
		refused(m, err, "message 1: "+name)
	}
}

func TestBadAuthorization(t *testing.T) {
	t.Parallel()
	h, e := newIdentity(t), newIdentity(t)
	for _, authorization := range []string{"\xff", strings.Repeat("x", wire.MaxAuthorization+1)} {
		_, _, err := Initiate(h, e.PublicKey(), nil, []byte(authorization))
		rig.Is(t, err, errAuth, "we send an authorization of %d bytes", len(authorization))
		m := rig.Value(newHandshakeState(h).writeInitiation(e.PublicKey(), nil, []byte(authorization)))
		rig.Is(t, rig.Err(ReadInitiation(e, nil, m)) == nil, false, "we take an authorization of %d bytes", len(authorization))
	}
}

// FuzzReadInitiation: whatever comes as message 1, only the one from the vector
// is accepted.
func FuzzReadInitiation(f *testing.F) {
	v := readVector(f, vectorBoth)
	id := identityOf(v.ExecutorStatic.ephemeral(f))
	for _, m := range lengthClasses(v.Message1, []int{ctSize, dhSize, kemSize}) {
		if len(m) < 1<<13 {
			f.Add(m)
		}
	}
	f.Add([]byte(v.Message1))
	f.Fuzz(func(t *testing.T, m []byte) {
		r, err := ReadInitiation(id, v.Prologue, m)
		rig.Is(t, err == nil, bytes.Equal(m, v.Message1), "a message of %d bytes is taken: %v", len(m), err)
		rig.Is(t, r == nil, err != nil, "neither a responder nor an error, or both")
	})
}

// FuzzFinish: whatever comes as message 2, only the one from the vector is accepted.
func FuzzFinish(f *testing.F) {
	v := readVector(f, vectorBoth)
	for _, m := range lengthClasses(v.Message2, []int{ctSize, ctSize + TagSize, dhSize}) {
		if len(m) < 1<<13 {
			f.Add(m)
		}
	}
	f.Add([]byte(v.Message2))
	harness := waiting(f, v)
	f.Fuzz(func(t *testing.T, m []byte) {
		s, err := harness().Finish(m)
		rig.Is(t, err == nil, bytes.Equal(m, v.Message2), "a message of %d bytes is taken: %v", len(m), err)
		rig.Is(t, s == nil, err != nil, "neither a session nor an error, or both")
	})
}

// The benchmarks are the CPU time of either side for one handshake, with
// ephemeral keys made beforehand and, in the total, without.
func BenchmarkHandshake(b *testing.B) {
	h, e := newIdentity(b), newIdentity(b)
	p := Prologue("env-1", "reg-1", []byte("stream-1"))
	authorization := bytes.Repeat([]byte("a"), 200)

	var i *Initiator
	var r *Responder
	var m1, m2 []byte
	initiate := func() {
		var err error
		i, m1, err = Initiate(h, e.PublicKey(), p, authorization)
		rig.Check(b, err)
	}
	read := func() { r = rig.Value(ReadInitiation(e, p, m1)) }
	initiate()
	for _, tt := range []struct {
		name        string
		prepare, do func()
	}{
		{"executor/total", nil, func() { respond(b, e, p, m1) }},
		{"executor/read", nil, read},
		{"executor/respond prepared", func() { e.Prepare(); read() }, func() { _, _, err := r.Respond(); rig.Check(b, err) }},
		{"harness/initiate", nil, initiate},
		{"harness/finish", func() { initiate(); m2, _ = respond(b, e, p, m1) }, func() { rig.Value(i.Finish(m2)) }},
		{"identity", nil, func() { newIdentity(b) }},
	} {
		b.Run(tt.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if tt.prepare != nil {
					b.StopTimer()
					tt.prepare()
					b.StartTimer()
				}
				tt.do()
			}
		})
	}
}
