package protocol

import (
	"encoding/base64"
	"iter"
	"slices"

	simd "github.com/segmentio/asm/base64"

	"github.com/execagent/execagent/internal/strictjson"
)

// Streamed is a result that is mostly bytes, which its JSON carries as base64.
// It can be sent piece by piece while it is encoded, so that the message, which
// is a third larger than the bytes, never exists as a whole.
type Streamed interface {
	Appender
	encode(*encoder)
}

// encoder writes JSON: all of it to dst, or in parts, or nowhere.
type encoder struct {
	dst []byte // the written JSON; with yield, only since the last part

	yield func(part []byte) bool // takes a part whenever limit is reached; false: no more
	limit int                    // size in bytes from which on a part goes to yield
	over  bool                   // yield takes no more

	counting bool // only the size is needed: bytes are counted and not encoded
	skipped  int  // the size of the bytes that were not encoded
}

// bytes writes b as base64 in quotes.
func (e *encoder) bytes(b []byte) {
	switch {
	case e.counting:
		e.skipped += len(e.dst) + base64Size(b) + len(`""`)
		e.dst = e.dst[:0]
		return
	case e.yield == nil:
		e.dst = strictjson.AppendBase64(e.dst, b)
		return
	}
	const bytes, symbols = 3, 4 // base64
	e.dst = append(e.dst, '"')
	for !e.over {
		if e.limit-len(e.dst) < symbols {
			e.flush()
			continue
		}
		n := min((e.limit-len(e.dst))/symbols*bytes, len(b))
		end := len(e.dst) + base64.StdEncoding.EncodedLen(n)
		simd.StdEncoding.Encode(e.dst[len(e.dst):end], b[:n])
		e.dst = e.dst[:end]
		if b = b[n:]; len(b) == 0 {
			break
		}
	}
	e.dst = append(e.dst, '"')
}

// flush ends a part.
func (e *encoder) flush() {
	e.over = e.over || !e.yield(e.dst)
	e.dst = e.dst[:0]
}

// minPart is the least buffer for parts, in bytes.
const minPart = 256

// AppendResultParts is [AppendResult] in parts. It returns the size of the message,
// in bytes, and an iterator that makes the message, once. The parts lie in buf, one
// after the other, and are about as long as its capacity; each is valid until the
// next one is requested.
func AppendResultParts(buf []byte, id ID, result Streamed) (size int, parts iter.Seq[[]byte]) {
	write := func(e *encoder) {
		e.dst = append(e.dst, `{"id":`...)
		e.dst = id.appendJSON(e.dst)
		e.dst = append(e.dst, `,"result":`...)
		result.encode(e)
		e.dst = append(e.dst, '}')
	}
	limit := max(cap(buf), minPart)
	buf = slices.Grow(buf[:0], limit)
	count := encoder{dst: buf, counting: true}
	write(&count)
	return count.skipped + len(count.dst), func(yield func([]byte) bool) {
		e := encoder{dst: buf, yield: yield, limit: limit}
		if write(&e); !e.over {
			e.flush()
		}
	}
}
