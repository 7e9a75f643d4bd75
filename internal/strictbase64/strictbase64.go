// Package strictbase64 decodes base64 in which a value has one spelling. It is
// for text that is compared or signed, or that proves who somebody is.
//
// The decoder of the standard library skips line breaks, and unless it is
// strict it ignores the last bits of the last symbol too: changed text would be
// taken for the same.
package strictbase64

import (
	"bytes"
	"encoding/base64"
)

// Encoding is an alphabet, with or without padding.
type Encoding struct{ strict *base64.Encoding }

// The encodings in use.
var (
	Std    = Encoding{base64.StdEncoding.Strict()}    // RFC 4648 4, padded
	RawURL = Encoding{base64.RawURLEncoding.Strict()} // RFC 4648 5, not padded
)

// Decode decodes the whole of text. The error is a [base64.CorruptInputError].
func (e Encoding) Decode(text string) ([]byte, error) { return e.AppendDecode(nil, []byte(text)) }

// AppendDecode appends what Decode returns to dst. With an error it returns dst
// as it was.
func (e Encoding) AppendDecode(dst, text []byte) ([]byte, error) {
	if i := bytes.IndexAny(text, "\r\n"); i >= 0 {
		return dst, base64.CorruptInputError(i)
	}
	out, err := e.strict.AppendDecode(dst, text) //nolint:forbidigo // other packages use this one instead
	if err != nil {
		return dst, err
	}
	return out, nil
}
