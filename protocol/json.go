package protocol

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"unicode/utf8"

	simd "github.com/segmentio/asm/base64"

	"github.com/execagent/execagent/internal/strictbase64"
)

// Appender is a value that writes its own JSON. Messages that are large or
// frequent implement it; the others go through encoding/json.
type Appender interface {
	AppendJSON(dst []byte) []byte
}

// AppendValue appends v as JSON: by its own method, else by encoding/json.
func AppendValue(dst []byte, v any) ([]byte, error) {
	switch v := v.(type) {
	case Appender:
		return v.AppendJSON(dst), nil
	case json.RawMessage:
		if len(v) > 0 {
			return append(dst, v...), nil
		}
	}
	buf := bytes.NewBuffer(dst)
	enc := json.NewEncoder(buf)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return dst, err
	}
	return bytes.TrimSuffix(buf.Bytes(), []byte{'\n'}), nil
}

// AppendResult appends the answer to request id.
func AppendResult(dst []byte, id ID, result any) ([]byte, error) {
	dst = append(dst, `{"id":`...)
	dst = id.appendJSON(dst)
	dst = append(dst, `,"result":`...)
	dst, err := AppendValue(dst, result)
	return append(dst, '}'), err
}

// AppendError appends the answer to request id that failed with e.
func AppendError(dst []byte, id ID, e *Error) []byte {
	dst = append(dst, `{"error":{"code":`...)
	dst = strconv.AppendInt(dst, int64(e.Code), 10)
	dst = append(dst, `,"message":`...)
	dst = appendString(dst, e.Message)
	dst = append(dst, `},"id":`...)
	dst = id.appendJSON(dst)
	return append(dst, '}')
}

// AppendRequest appends a request; params nil are sent as an empty object.
func AppendRequest(dst []byte, id ID, method string, params any) ([]byte, error) {
	dst = append(dst, `{"id":`...)
	dst = id.appendJSON(dst)
	dst = append(dst, ',')
	return appendCall(dst, method, params)
}

// AppendNotification appends a notification; params nil are sent as an empty
// object.
func AppendNotification(dst []byte, method string, params any) ([]byte, error) {
	return appendCall(append(dst, '{'), method, params)
}

func appendCall(dst []byte, method string, params any) ([]byte, error) {
	dst = append(dst, `"method":`...)
	dst = appendString(dst, method)
	dst = append(dst, `,"params":`...)
	if params == nil {
		return append(dst, "{}}"...), nil
	}
	dst, err := AppendValue(dst, params)
	return append(dst, '}'), err
}

// appendString appends s as a JSON string. Bytes that are not UTF-8 become
// U+FFFD.
func appendString(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	start := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= utf8.RuneSelf {
			r, size := utf8.DecodeRuneInString(s[i:])
			if r == utf8.RuneError && size == 1 {
				dst = append(dst, s[start:i]...)
				dst = append(dst, "\uFFFD"...)
				start = i + 1
			}
			i += size
			continue
		}
		if c >= 0x20 && c != '"' && c != '\\' {
			i++
			continue
		}
		dst = append(dst, s[start:i]...)
		switch c {
		case '"', '\\':
			dst = append(dst, '\\', c)
		case '\n':
			dst = append(dst, '\\', 'n')
		case '\r':
			dst = append(dst, '\\', 'r')
		case '\t':
			dst = append(dst, '\\', 't')
		default:
			dst = append(dst, '\\', 'u', '0', '0', hex[c>>4], hex[c&15])
		}
		i++
		start = i
	}
	dst = append(dst, s[start:]...)
	return append(dst, '"')
}

// appendBase64 appends b in quotes: standard alphabet, padded.
func appendBase64(dst, b []byte) []byte {
	n := base64.StdEncoding.EncodedLen(len(b))
	dst = slices.Grow(dst, n+2)
	dst = append(dst, '"')
	simd.StdEncoding.Encode(dst[len(dst):len(dst)+n], b)
	return append(dst[:len(dst)+n], '"')
}

// base64Block is how many symbols are decoded at a time: a multiple of four.
const base64Block = 1024

// decodeBase64 decodes text strictly: standard alphabet, padded, no white
// space, no stray bits in the last symbol. The result lies in out, which may
// be the text itself: it stays ahead of what is written.
func decodeBase64(out, encoded []byte) ([]byte, error) {
	if len(encoded)%4 != 0 {
		return nil, base64Error(encoded, 0)
	}
	var buf [base64Block / 4 * 3]byte
	out = out[:0]
	// The fast decoder is lenient at the end, so the last group goes to the
	// strict one. White space it would skip cannot hide: the lengths differ.
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
	end, err := strictbase64.Std.AppendDecode(buf[:0], tail)
	if err != nil {
		return nil, base64Error(encoded, head)
	}
	return append(out, end...), nil
}

// base64Error says what is wrong with text that decodeBase64 refuses, from
// the block on that it did not like.
func base64Error(encoded []byte, from int) error {
	for i, c := range bytes.TrimRight(encoded[from:], "=") {
		if c != '+' && c != '/' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return fmt.Errorf("symbol %q at offset %d", c, from+i)
		}
	}
	return fmt.Errorf("padding or last symbol of %d bytes", len(encoded))
}

func appendStrings(dst []byte, list []string) []byte {
	dst = append(dst, '[')
	for i, s := range list {
		if i > 0 {
			dst = append(dst, ',')
		}
		dst = appendString(dst, s)
	}
	return append(dst, ']')
}
