package relay

import (
	"errors"

	"github.com/execagent/execagent/internal/buffer"
)

// Bounds of the records that wait for an earlier frame (remote.md 8.1).
const (
	maxDistance   = 64      // of an early frame from the expected one
	maxEarlyBytes = 1 << 20 // of ciphertext
)

var (
	errDistance   = errors.New("receiving data: too far from the expected sequence number")
	errEarlyBytes = errors.New("receiving data: too many bytes wait for a frame before them")
)

// reorder holds records that came too early, still encrypted.
type reorder struct {
	records map[uint32][]byte // by sequence number; nil when there are none
	bytes   int
	share   *part // of the reserve, in which the records count
}

// hold keeps a copy of an early record; expected is the next number in order. Of
// two records with the same number it keeps the first. An error means that there is
// no room, and nothing has changed.
func (r *reorder) hold(expected, seq uint32, record []byte) error {
	if seq-expected > maxDistance {
		return errDistance
	}
	if r.has(seq) {
		return nil
	}
	if r.bytes+len(record) > maxEarlyBytes || !r.share.fits(len(record)) {
		return errEarlyBytes
	}
	if r.records == nil {
		r.records = make(map[uint32][]byte)
	}
	held := append(buffer.Get(len(record)), record...)
	r.records[seq] = held
	r.bytes += len(record)
	r.share.add(cap(held))
	return nil
}

func (r *reorder) has(seq uint32) bool {
	_, ok := r.records[seq]
	return ok
}

// take removes and returns a record, nil if it is not there. The caller may give it
// to buffer.Recycle.
func (r *reorder) take(seq uint32) []byte {
	record := r.records[seq]
	if record == nil {
		return nil
	}
	r.bytes -= len(record)
	r.share.add(-cap(record))
	delete(r.records, seq)
	if len(r.records) == 0 {
		r.records = nil // a map does not shrink
	}
	return record
}

// drop forgets all records.
func (r *reorder) drop() {
	for _, record := range r.records {
		r.share.add(-cap(record))
		buffer.Recycle(record)
	}
	*r = reorder{share: r.share}
}
