// Package strictbase64 decodes base64 and takes only one spelling for each
// value. It is for text that is compared or signed, or that proves who somebody
// is.
//
// The decoder of the standard library skips line breaks, and unless it is
// strict it ignores the last bits of the last symbol too: text that somebody has
// changed would decode to the same bytes.
//
// Everything here may be used at once.
package strictjson

import (
	"bytes"
	"encoding/base64"
)

// Base64 is an alphabet, with or without padding. The two that are in use are
// [Std] and [RawURL]; the zero value is none.
type Base64 struct{ strict *base64.Encoding }

var (
	// Std has the alphabet with "+" and "/", and padding (RFC 4648 4).
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
	out, err := e.strict.AppendDecode(dst, text) //nolint:forbidigo // other packages use this package instead
	if err != nil {
		return dst, err
	}
	return out, nil
}
