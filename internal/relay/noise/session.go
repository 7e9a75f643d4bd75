package noise

import (
	"errors"
	"sync"

	"github.com/flynn/noise"
)

// maxRecords is the number of records that may be sealed in one direction (remote.md 6.5).
const maxRecords = 1<<32 - 1

var (
	// ErrSessionOver is the error of a session after Wipe.
	ErrSessionOver = errors.New("the session's keys are gone")
	// ErrRecord is the error of Open for anything but the next record that the peer
	// has sealed.
	ErrRecord     = errors.New("opening a record: it is not what the peer sealed next")
	errMaxRecords = errors.New("the session has carried as many records as it may")
)

// A Session is the result of a handshake. The records that one end seals, the other end
// opens. Records must be opened in the same order and each once, because nonces are
// implicit (remote.md 6.5). The two directions share nothing, and all methods may be called
// concurrently. After a failure a direction cannot be used any more.
type Session struct {
	tx, rx direction
}

// A direction has the keys of the records in one direction.
type direction struct {
	mu    sync.Mutex
	state *noise.CipherState // nil once the direction is over
	err   error              // why the direction is over
}

func newSession(tx, rx *noise.CipherState) *Session {
	return &Session{tx: direction{state: tx}, rx: direction{state: rx}}
}

// Seal appends the record of plaintext to dst. The record is TagSize bytes longer than
// plaintext. Seal works in place if plaintext lies directly behind dst in the same array and
// the array has room for the tag: dst=b[:h], plaintext=b[h:h+n]. The caller must not pass
// slices that overlap in any other way.
func (s *Session) Seal(dst, plaintext []byte) ([]byte, error) {
	d := &s.tx
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.readyLocked(); err != nil {
		return nil, err
	}
	out, err := d.state.Encrypt(dst, nil, plaintext)
	if err != nil {
		return nil, d.failLocked(err)
	}
	return out, nil
}

// Open decrypts the next record in place and returns the plaintext. It overwrites the bytes of
// record even if it fails.
func (s *Session) Open(record []byte) ([]byte, error) {
	d := &s.rx
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.readyLocked(); err != nil {
		return nil, err
	}
	plaintext, err := d.state.Decrypt(record[:0], nil, record)
	if err != nil {
		return nil, d.failLocked(ErrRecord)
	}
	return plaintext, nil
}

// Wipe drops the keys of both directions. Seal and Open fail from then on.
func (s *Session) Wipe() {
	for _, d := range []*direction{&s.tx, &s.rx} {
		d.mu.Lock()
		if d.err == nil {
			_ = d.failLocked(ErrSessionOver)
		}
		d.mu.Unlock()
	}
}

// readyLocked returns the reason why no further record can be sealed or opened, or nil.
func (d *direction) readyLocked() error {
	if d.err == nil && d.state.Nonce() >= maxRecords {
		return d.failLocked(errMaxRecords)
	}
	return d.err
}

// failLocked ends the direction forever and wipes its key. It cannot wipe the key schedule
// of the cipher, which stays until its memory is reused.
func (d *direction) failLocked(err error) error {
	*d.state = noise.CipherState{}
	d.state, d.err = nil, err
	return err
}
