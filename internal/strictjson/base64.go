package strictjson

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"slices"

	simd "github.com/segmentio/asm/base64"
)

// AppendBase64 appends b as a JSON string of base64: standard alphabet, padded.
func AppendBase64(dst, b []byte) []byte {
	n := base64.StdEncoding.EncodedLen(len(b))
	dst = slices.Grow(dst, n+2)
	dst = append(dst, '"')
	simd.StdEncoding.Encode(dst[len(dst):len(dst)+n], b)
	return append(dst[:len(dst)+n], '"')
}

// base64Block is how many symbols are decoded at a time: a multiple of four.
const base64Block = 1024

// decodeBase64 decodes strictly: standard alphabet, padded, no white space, no
// stray bits in the last symbol. The result lies in out, which may have the memory
// of encoded: reading stays ahead of writing.
func decodeBase64(out, encoded []byte) ([]byte, error) {
	if len(encoded)%4 != 0 {
		return nil, base64Error(encoded, 0)
	}
	var buf [base64Block / 4 * 3]byte
	out = out[:0]
	// The fast decoder is lenient at the end, so the strict one decodes the last
	// group. If the fast one skips white space, its result is shorter than it
	// should be, which shows.
	head := max(len(encoded)-4, 0)
	for i := 0; i < head; i += base64Block {
		block := encoded[i:min(i+base64Block, head)]
		n, err := simd.StdEncoding.Decode(buf[:len(block)/4*3], block)
		if err != nil || n != len(block)/4*3 {
			return nil, base64Error(encoded, i)
		}
		out = append(out, buf[:n]...)
	}
	tail := encoded[head:]
	end, err := StdBase64.AppendDecode(buf[:0], tail)
	if err != nil {
		return nil, base64Error(encoded, head)
	}
	return append(out, end...), nil
}

// base64Error says what is wrong with a text that decodeBase64 refuses. It looks
// from the block on in which decoding failed.
func base64Error(encoded []byte, from int) error {
	for i, c := range bytes.TrimRight(encoded[from:], "=") {
		if c != '+' && c != '/' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return fmt.Errorf("symbol %q at offset %d", c, from+i)
		}
	}
	return fmt.Errorf("padding or last symbol of %d bytes", len(encoded))
}

// Base64 decodes base64 of one alphabet and takes only one spelling for each value,
// because such text is compared, signed or proves an identity. The decoder of the
// standard library skips line breaks, and unless it is strict it ignores the last bits
// of the last symbol: a changed text would decode to the same bytes.
type Base64 struct{ strict *base64.Encoding }

var (
	// StdBase64 has the alphabet with "+" and "/", and padding (RFC 4648 4).
	StdBase64 = Base64{base64.StdEncoding.Strict()}
	// RawURLBase64 has the alphabet with "-" and "_", and no padding (RFC 4648 5).
	RawURLBase64 = Base64{base64.RawURLEncoding.Strict()}
)

// Decode decodes the whole of text, which may be empty. The error is a
// [base64.CorruptInputError].
func (e Base64) Decode(text string) ([]byte, error) { return e.AppendDecode(nil, []byte(text)) }

// AppendDecode decodes the whole of text and appends the bytes to dst. With an
// error, a [base64.CorruptInputError], it returns dst as it was.
func (e Base64) AppendDecode(dst, text []byte) ([]byte, error) {
	if i := bytes.IndexAny(text, "\r\n"); i >= 0 {
		return dst, base64.CorruptInputError(i)
	}
	out, err := e.strict.AppendDecode(dst, text) //nolint:forbidigo // other packages use Base64 instead
	if err != nil {
		return dst, err
	}
	return out, nil
}
