package relay

import (
	"encoding/binary"
	"errors"
	"sync/atomic"

	"github.com/execagent/execagent/relay/frame"
	"github.com/execagent/execagent/relay/socket"
	"github.com/execagent/execagent/rpc"
)

// Sizes of remote.md section 7, in bytes.
const (
	maxMessage = 64 << 20 // JSON text of one message
	maxRecord  = 61440    // plaintext of one record
	prefixSize = 4        // length of the message that follows, big endian
)

var (
	errLongRecord = errors.New("reading a record: it is too long")
	errNoLength   = errors.New("reading a record: the length of a message is 0")
	errLength     = errors.New("reading a record: the length of a message is above 64 MiB")
)

// sealRecord makes the data frame of one record. With a length, that prefix
// stands before data. The payload is encrypted where it stands.
func sealRecord(keys *session, id []byte, a acknowledgement, seq uint32, length int, data []byte) (*socket.Message, error) {
	size := len(data)
	if length > 0 {
		size += prefixSize
	}
	m := socket.NewMessage(frame.MaxDataHeader + len(id) + size + tagSize)
	b := frame.AppendDataHeader(m.Bytes, id, a.ack, a.bits, seq, size+tagSize)
	header := len(b)
	if length > 0 {
		b = binary.BigEndian.AppendUint32(b, uint32(length))
	}
	b = append(b, data...)
	b, err := keys.seal(b[:header], b[header:])
	if err != nil {
		m.Release()
		return nil, err
	}
	m.Bytes = b
	return m, nil
}

// openRecord decrypts a record in place and checks its size.
func openRecord(keys *session, record []byte) ([]byte, error) {
	if len(record) > maxRecord+tagSize {
		return nil, errLongRecord
	}
	return keys.open(record)
}

// assembler makes messages of the byte stream that records carry: each message
// has its length in front; neither cares where a record ends. The zero value is
// at the beginning of a message.
type assembler struct {
	prefix  [prefixSize]byte
	got     int // bytes of the prefix
	size    int // of the message; 0 while the prefix is incomplete
	message []byte
	budget  *budget // what message takes of it is the reader's to give back; may be nil
}

// maxLinkUnread bounds what the messages take that the streams of one link are
// assembling or have not read, in bytes of memory.
const maxLinkUnread = 512 << 20

var errBudget = errors.New("receiving data: the streams of this link hold too much that is unread")

// budget is a bound that streams share.
type budget struct{ used atomic.Int64 }

// take tells whether there were n more bytes to be had.
func (b *budget) take(n int) bool {
	if b == nil {
		return true
	}
	if b.used.Add(int64(n)) > maxLinkUnread {
		b.give(n)
		return false
	}
	return true
}

func (b *budget) give(n int) {
	if b != nil {
		b.used.Add(-int64(n))
	}
}

// next reads from plaintext up to the end of a message. It returns the message,
// nil if there is more to come, in a buffer of its own that the caller may
// recycle, and what it has not read. An error is for good.
func (a *assembler) next(plaintext []byte) (message, rest []byte, err error) {
	if a.size == 0 {
		n := copy(a.prefix[a.got:], plaintext)
		a.got += n
		plaintext = plaintext[n:]
		if a.got < prefixSize {
			return nil, nil, nil
		}
		size := binary.BigEndian.Uint32(a.prefix[:])
		switch {
		case size == 0:
			return nil, nil, errNoLength
		case size > maxMessage:
			return nil, nil, errLength
		}
		a.size = int(size)
	}
	n := min(a.size-len(a.message), len(plaintext))
	if !a.grow(n) {
		return nil, nil, errBudget
	}
	a.message = append(a.message, plaintext[:n]...)
	plaintext = plaintext[n:]
	if len(a.message) < a.size {
		return nil, nil, nil
	}
	message = a.message
	*a = assembler{budget: a.budget}
	return message, plaintext, nil
}

// grow makes room for n more bytes. Room is never more than a few times what
// has arrived, whatever length the peer has claimed. It tells whether there was
// as much to be had.
func (a *assembler) grow(n int) bool {
	need := len(a.message) + n
	if n == 0 || need <= cap(a.message) {
		return true
	}
	grown := rpc.Buffer(min(a.size, 4*need))
	if !a.budget.take(cap(grown)) {
		rpc.Recycle(grown)
		return false
	}
	grown = append(grown, a.message...)
	if a.message != nil {
		a.budget.give(cap(a.message))
		rpc.Recycle(a.message)
	}
	a.message = grown
	return true
}

// held is how much memory the message takes that is being assembled, in bytes.
func (a *assembler) held() int { return cap(a.message) }

// drop forgets the message that is being assembled.
func (a *assembler) drop() {
	a.budget.give(cap(a.message))
	rpc.Recycle(a.message)
	*a = assembler{budget: a.budget}
}
