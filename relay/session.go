package relay

import (
	"errors"
	"sync"

	"github.com/flynn/noise"
)

// maxRecords is how many records may be sealed in one direction (remote.md 6.5).
const maxRecords = 1<<32 - 1

var (
	errSessionOver = errors.New("the session's keys are gone")
	errMaxRecords  = errors.New("the session has carried as many records as it may")
	errRecord      = errors.New("opening a record: it is not what the peer sealed next")
)

// A session is the transport phase of a handshake: records sealed here are
// opened there, in the same order and each once, since nonces are implicit
// (remote.md 6.5). The directions share nothing, and all methods may run at
// once. After a failure a direction is dead.
type session struct {
	tx, rx direction
}

// A direction is the keys of one way.
type direction struct {
	mu    sync.Mutex
	state *noise.CipherState // nil when over
	err   error              // why
}

func newSession(tx, rx *noise.CipherState) *session {
	return &session{tx: direction{state: tx}, rx: direction{state: rx}}
}

// seal appends the record of plaintext to dst, tagSize bytes longer. It works in
// place when plaintext is what lies behind dst in the same array and the array
// has room for the tag: dst=b[:h], plaintext=b[h:h+n]. Any other overlap is
// a bug of the caller's.
func (s *session) seal(dst, plaintext []byte) ([]byte, error) {
	d := &s.tx
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.ready(); err != nil {
		return nil, err
	}
	out, err := d.state.Encrypt(dst, nil, plaintext)
	if err != nil {
		return nil, d.fail(err)
	}
	return out, nil
}

// open returns the plaintext of the next record, in the place of record, whose
// bytes are lost even if that fails.
func (s *session) open(record []byte) ([]byte, error) {
	d := &s.rx
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.ready(); err != nil {
		return nil, err
	}
	plaintext, err := d.state.Decrypt(record[:0], nil, record)
	if err != nil {
		return nil, d.fail(errRecord)
	}
	return plaintext, nil
}

// wipe forgets the keys of both directions; seal and open fail from then on.
func (s *session) wipe() {
	for _, d := range []*direction{&s.tx, &s.rx} {
		d.mu.Lock()
		if d.err == nil {
			_ = d.fail(errSessionOver)
		}
		d.mu.Unlock()
	}
}

// ready tells why there is no further record. The caller holds the lock.
func (d *direction) ready() error {
	if d.err == nil && d.state.Nonce() >= maxRecords {
		return d.fail(errMaxRecords)
	}
	return d.err
}

// fail ends the direction for good and wipes its key. The schedule that the
// cipher made of the key is out of reach and stays until its memory is reused.
// The caller holds the lock.
func (d *direction) fail(err error) error {
	*d.state = noise.CipherState{}
	d.state, d.err = nil, err
	return err
}
