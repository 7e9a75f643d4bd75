package protocol

import (
	"bytes"
	"encoding/json"
	"strconv"

	"github.com/execagent/execagent/internal/strictjson"
)

// Appender is a value that writes its own JSON. Messages that are large or
// frequent implement it; the others go through encoding/json.
type Appender interface {
	AppendJSON(dst []byte) []byte
}

// appendValue appends v as JSON: by its own method, else by encoding/json.
func appendValue(dst []byte, v any) ([]byte, error) {
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
	dst, err := appendValue(dst, result)
	return append(dst, '}'), err
}

// AppendError appends the answer to request id that failed with e.
func AppendError(dst []byte, id ID, e *Error) []byte {
	dst = appendInt(dst, `{"error":{"code":`, int64(e.Code))
	dst = appendText(dst, `,"message":`, e.Message)
	if e.Data != nil {
		dst = append(dst, `,"data":`...)
		dst = append(dst, e.Data...)
	}
	dst = append(dst, `},"id":`...)
	dst = id.appendJSON(dst)
	return append(dst, '}')
}

// AppendRequest appends a request. Nil params are sent as an empty object.
func AppendRequest(dst []byte, id ID, method string, params any) ([]byte, error) {
	dst = append(dst, `{"id":`...)
	dst = id.appendJSON(dst)
	dst = append(dst, ',')
	return appendCall(dst, method, params)
}

// AppendNotification appends a notification. Nil params are sent as an empty
// object.
func AppendNotification(dst []byte, method string, params any) ([]byte, error) {
	return appendCall(append(dst, '{'), method, params)
}

// The functions below append before, which ends with a member's name, and the member's value.

func appendText(dst []byte, before, s string) []byte {
	return strictjson.AppendString(append(dst, before...), s)
}

func appendBytes(dst []byte, before string, b []byte) []byte {
	return strictjson.AppendBase64(append(dst, before...), b)
}

func appendBool(dst []byte, before string, b bool) []byte {
	return strconv.AppendBool(append(dst, before...), b)
}

func appendInt(dst []byte, before string, n int64) []byte {
	return strconv.AppendInt(append(dst, before...), n, 10)
}

func appendUint(dst []byte, before string, n uint64) []byte {
	return strconv.AppendUint(append(dst, before...), n, 10)
}

func appendCall(dst []byte, method string, params any) ([]byte, error) {
	dst = appendText(dst, `"method":`, method)
	dst = append(dst, `,"params":`...)
	if params == nil {
		return append(dst, "{}}"...), nil
	}
	dst, err := appendValue(dst, params)
	return append(dst, '}'), err
}
