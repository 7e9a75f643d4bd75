package relay

import (
	"encoding/binary"
	"errors"

	"github.com/execagent/execagent/internal/relay/frame"
	"github.com/execagent/execagent/internal/relay/noise"
	"github.com/execagent/execagent/internal/relay/socket"
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

// sealRecord makes the data frame of one record. It adds the size of the payload to
// the header. A length above 0 is put in front of data. The payload is encrypted in
// place.
func sealRecord(keys *noise.Session, h frame.DataHeader, length int, data []byte) (*socket.Message, error) {
	h.PayloadSize = len(data) + noise.TagSize
	if length > 0 {
		h.PayloadSize += prefixSize
	}
	m := socket.NewMessage(frame.MaxDataHeader + len(h.StreamID) + h.PayloadSize)
	b := h.Append(m.Bytes)
	header := len(b)
	if length > 0 {
		b = binary.BigEndian.AppendUint32(b, uint32(length))
	}
	b = append(b, data...)
	b, err := keys.Seal(b[:header], b[header:])
	if err != nil {
		m.Release()
		return nil, err
	}
	m.Bytes = b
	return m, nil
}

// openRecord decrypts a record in place and checks its size.
func openRecord(keys *noise.Session, record []byte) ([]byte, error) {
	if len(record) > maxRecord+noise.TagSize {
		return nil, errLongRecord
	}
	return keys.Open(record)
}

// assembler makes messages from the byte stream in the records. Each message has
// its length in front. Lengths and messages may begin and end anywhere in a record.
type assembler struct {
	prefix [prefixSize]byte
	got    int // bytes of the prefix
	size   int // of the message; 0 while the prefix is incomplete
	intake *rpc.Intake
	// starved is nil while there is memory; else a channel that is closed once
	// there is.
	starved <-chan struct{}
}

// next reads from plaintext up to the end of a message. It returns the message, nil
// if it is incomplete, in a buffer that the caller returns to the budget; and the
// unread rest of plaintext. A rest without a message means that there is no memory
// for the rest; a.starved is closed once there is. After an error nothing can be
// read any more.
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
	for len(plaintext) > 0 && a.intake.Len() < a.size {
		n := min(a.size-a.intake.Len(), len(plaintext))
		var space []byte
		if space, a.starved = a.intake.TrySpace(n, a.size); a.starved != nil {
			return nil, plaintext, nil
		}
		n = copy(space, plaintext[:n])
		a.intake.Filled(n)
		plaintext = plaintext[n:]
	}
	if a.intake.Len() < a.size {
		return nil, nil, nil
	}
	a.got, a.size = 0, 0
	return a.intake.Message(), plaintext, nil
}

// drop forgets the message that is being assembled.
func (a *assembler) drop() {
	a.intake.Drop()
	a.got, a.size, a.starved = 0, 0, nil
}
