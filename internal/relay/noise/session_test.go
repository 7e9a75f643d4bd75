package noise

import (
	"bytes"
	"errors"
	"fmt"
	"sync"
	"testing"

	"github.com/flynn/noise"

	"github.com/execagent/execagent/test/rig"
)

// pairOfSessions returns both ends of a session with known keys.
func pairOfSessions() (a, b *Session) {
	state := func(key byte) *noise.CipherState {
		suite := noise.NewCipherSuite(noise.DH25519, noise.CipherAESGCM, noise.HashSHA256)
		return noise.UnsafeNewCipherState(suite, [32]byte(bytes.Repeat([]byte{key}, 32)), 0)
	}
	return newSession(state(1), state(2)), newSession(state(2), state(1))
}

func TestSession(t *testing.T) {
	t.Parallel()
	harness, executor := shakeHands(t)
	for range 3 {
		exchange(t, harness, executor)
	}
}

// TestSealInPlace: a record is sealed behind a header without being copied, and
// opened where it lies.
func TestSealInPlace(t *testing.T) {
	t.Parallel()
	tx, rx := pairOfSessions()
	text := bytes.Repeat([]byte("0123456789"), 100)
	b := make([]byte, 7, 7+len(text)+TagSize)
	copy(b, "header:")
	plaintext := append(b[7:], text...)
	out := rig.Value(tx.Seal(b, plaintext))
	if &out[0] != &b[0] || len(out) != cap(b) || string(out[:7]) != "header:" {
		t.Fatalf("sealed somewhere else: %d bytes", len(out))
	}
	got := rig.Value(rx.Open(out[7:]))
	equal(t, "plaintext", got, text)
	rig.Is(t, &got[0], &out[7], "opened somewhere else")
}

// TestSessionFailure: a record that cannot be opened ends its direction, and not
// the other one.
func TestSessionFailure(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(first, second []byte) []byte{
		"empty":            func(_, _ []byte) []byte { return nil },
		"shorter than tag": func(first, _ []byte) []byte { return first[:TagSize-1] },
		"cut":              func(first, _ []byte) []byte { return first[:len(first)-1] },
		"cut at the front": func(first, _ []byte) []byte { return first[1:] },
		"extended":         func(first, _ []byte) []byte { return append(first, 0) },
		"out of order":     func(_, second []byte) []byte { return second },
		"only a tag":       func(first, _ []byte) []byte { return first[len(first)-TagSize:] },
	} {
		tx, rx := pairOfSessions()
		first := rig.Value(tx.Seal(nil, []byte("first")))
		second := rig.Value(tx.Seal(nil, []byte("second")))
		rig.Is(t, rig.Err(rx.Open(spoil(bytes.Clone(first), bytes.Clone(second)))), ErrRecord, "%s", name)
		rig.Is(t, rig.Err(rx.Open(bytes.Clone(first))), ErrRecord, "%s: the direction lives on", name)
		record, err := rx.Seal(nil, []byte("other way"))
		rig.Must(t, err, rig.Err(tx.Open(record)))
	}
}

// TestReplay: a record is good once.
func TestReplay(t *testing.T) {
	t.Parallel()
	tx, rx := pairOfSessions()
	record := rig.Value(tx.Seal(nil, []byte("once")))
	rig.Must(t, rig.Err(rx.Open(bytes.Clone(record))))
	rig.Is(t, rig.Err(rx.Open(record)), ErrRecord, "a record that is opened twice")
}

// TestMaxRecords: the last record that may be sealed is number 2^32-2, counted
// from 0, in both directions.
func TestMaxRecords(t *testing.T) {
	t.Parallel()
	tx, rx := pairOfSessions()
	tx.tx.state.SetNonce(maxRecords - 1)
	rx.rx.state.SetNonce(maxRecords - 1)
	record := rig.Value(tx.Seal(nil, []byte("last")))
	rig.Must(t, rig.Err(rx.Open(record)))
	rig.Is(t, rig.Err(tx.Seal(nil, []byte("one more"))), errMaxRecords, "sealing one more")
	rig.Is(t, rig.Err(rx.Open(record)), errMaxRecords, "opening one more")
}

// TestSessionWipe: keys are gone after wipe and after a failure, and what failed
// first stays the reason.
func TestSessionWipe(t *testing.T) {
	t.Parallel()
	a, b := pairOfSessions()
	tx, rx, failed := a.tx.state, a.rx.state, b.rx.state
	rig.Is(t, rig.Err(b.Open([]byte("no record at all"))), ErrRecord, "a record that is none")
	a.Wipe()
	a.Wipe()
	b.Wipe()
	for n, state := range []*noise.CipherState{tx, rx, failed} {
		rig.Is(t, state.UnsafeKey(), [32]byte{}, "key %d is still there", n)
	}
	rig.Is(t, rig.Err(a.Seal(nil, nil)), ErrSessionOver, "sealing")
	rig.Is(t, rig.Err(a.Open(make([]byte, 20))), ErrSessionOver, "opening")
	rig.Is(t, rig.Err(b.Open(make([]byte, 20))), ErrRecord, "opening after a failure")
}

// TestSessionAtOnce: both directions run at once, and wipe may come at any time.
func TestSessionAtOnce(t *testing.T) {
	t.Parallel()
	a, b := pairOfSessions()
	var wg sync.WaitGroup
	started := make(chan struct{}, 2)
	for _, way := range []struct{ from, to *Session }{{a, b}, {b, a}} {
		wg.Go(func() {
			for n := 0; ; n++ {
				if n == 10 {
					started <- struct{}{}
				}
				record, err := way.from.Seal(nil, fmt.Append(nil, n))
				if err == nil {
					_, err = way.to.Open(record)
				}
				if errors.Is(err, ErrSessionOver) {
					return
				}
				if err != nil {
					t.Errorf("record %d: %v", n, err)
					return
				}
			}
		})
	}
	<-started
	<-started
	a.Wipe()
	wg.Wait()
}

// FuzzOpen: of all that may come first, only the first record is opened.
func FuzzOpen(f *testing.F) {
	tx, _ := pairOfSessions()
	first := rig.Value(tx.Seal(nil, []byte("first")))
	second := rig.Value(tx.Seal(nil, []byte("second")))
	f.Add(first)
	f.Add(second)
	f.Add([]byte{})
	f.Add(make([]byte, TagSize))
	f.Fuzz(func(t *testing.T, record []byte) {
		_, rx := pairOfSessions()
		want := bytes.Equal(record, first)
		plaintext, err := rx.Open(bytes.Clone(record))
		switch {
		case want && (err != nil || string(plaintext) != "first"):
			t.Errorf("the record is refused: %v", err)
		case !want && !errors.Is(err, ErrRecord):
			t.Errorf("%x is opened: %v", record, err)
		}
	})
}

// The largest record of remote.md section 7.
func BenchmarkSession(b *testing.B) {
	const size = 61440
	for _, open := range []bool{false, true} {
		b.Run(fmt.Sprint("open ", open), func(b *testing.B) {
			tx, rx := pairOfSessions()
			buf := make([]byte, 50+size+TagSize)
			b.ReportAllocs()
			b.SetBytes(size)
			for b.Loop() {
				if out := rig.Value(tx.Seal(buf[:50], buf[50:50+size])); open {
					rig.Value(rx.Open(out[50:]))
				}
			}
		})
	}
}
