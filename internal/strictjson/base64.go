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

// base64Block is the number of symbols that are decoded at a time. It is a multiple of four.
const base64Block = 1024

// decodeBase64 decodes strictly: standard alphabet, padded, no white space, no stray bits in the
// last symbol. out may share the memory of encoded, because decoding writes only over symbols that
// it has already read.
func decodeBase64(out, encoded []byte) ([]byte, error) {
	if len(encoded)%4 != 0 {
		return nil, base64Error(encoded, 0)
	}
	var buf [base64Block / 4 * 3]byte
	out = out[:0]
	// The fast decoder is lenient at the end, so the strict decoder decodes the last group. If the
	// fast decoder skips white space, its result is too short, and the check of n finds the error.
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

// base64Error returns the error for a text that decodeBase64 refuses. from is the offset of the
// block in which decoding failed.
func base64Error(encoded []byte, from int) error {
	for i, c := range bytes.TrimRight(encoded[from:], "=") {
		if c != '+' && c != '/' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return fmt.Errorf("symbol %q at offset %d", c, from+i)
		}
	}
	return fmt.Errorf("padding or last symbol of %d bytes", len(encoded))
}

// Base64 decodes base64 of one alphabet and accepts only one spelling for each value, because such
// text is compared, signed or proves an identity. The decoder of the standard library skips line
// breaks. Unless it is strict, it also ignores the last bits of the last symbol, so that a changed
// text would decode to the same bytes.
type Base64 struct{ strict *base64.Encoding }

var (
	// StdBase64 uses the alphabet with "+" and "/", and padding (RFC 4648 4).
	StdBase64 = Base64{base64.StdEncoding.Strict()}
	// RawURLBase64 uses the alphabet with "-" and "_", and no padding (RFC 4648 5).
	RawURLBase64 = Base64{base64.RawURLEncoding.Strict()}
)

// Decode decodes the whole text. An empty text is valid. The error is a [base64.CorruptInputError].
func (e Base64) Decode(text string) ([]byte, error) { return e.AppendDecode(nil, []byte(text)) }

// AppendDecode decodes the whole text and appends the bytes to dst. If it fails, it returns dst
// unchanged and a [base64.CorruptInputError].
func (e Base64) AppendDecode(dst, text []byte) ([]byte, error) {
	if i := bytes.IndexAny(text, "\r\n"); i >= 0 {
		return dst, base64.CorruptInputError(i)
	}
	out, err := e.strict.AppendDecode(dst, text) //nolint:forbidden // other packages use Base64 instead
	if err != nil {
		return dst, err
	}
	return out, nil
}
