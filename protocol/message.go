package protocol

import (
	"bytes"
	"encoding/json"
	"strconv"

	"github.com/execagent/execagent/internal/strictjson"
)

// ID is the id of a request: a string or a signed 64-bit integer, echoed with
// its type. The zero value is the integer 0. IDs can be compared and used as
// map keys.
type ID struct {
	text   string
	number int64
	isText bool
}

// NumberID returns the integer id n.
func NumberID(n int64) ID { return ID{number: n} }

// stringID returns the string id s.
func stringID(s string) ID { return ID{text: s, isText: true} }

// NoID is the id of an answer to a message that could not be read (rpc.md 2.4).
var NoID = NumberID(-1)

// String returns the id as JSON.
func (id ID) String() string { return string(id.appendJSON(nil)) }

func (id ID) appendJSON(dst []byte) []byte {
	if id.isText {
		return strictjson.AppendString(dst, id.text)
	}
	return strconv.AppendInt(dst, id.number, 10)
}

// Kind is one of the four kinds of message.
type Kind int

// The kinds of message, by their members: id and method; method alone; id and
// result; id and error.
const (
	KindRequest Kind = iota
	KindNotification
	KindResult
	KindError
)

// Message is one decoded message. Kind says which members are set. Params and
// Result are checked raw JSON, nil when absent; they are slices of the decoded
// message.
type Message struct {
	Kind   Kind
	ID     ID
	Method string
	Params json.RawMessage
	Result json.RawMessage
	Error  *Error
}

// Decode reads one message. It accepts exactly the messages that rpc.md 2.1 and 2.4
// describe; the error says what is wrong and where. Unknown members are ignored,
// but their JSON is checked.
func Decode(data []byte) (Message, error) {
	var id, method, params, result, failure, trace []byte
	isObject, err := strictjson.Members(data, func(name, value []byte) {
		switch string(name) {
		case "id":
			id = value
		case "method":
			method = value
		case "params":
			params = value
		case "result":
			result = value
		case "error":
			failure = value
		case "trace":
			trace = value
		}
	})
	if err != nil {
		return Message{}, err
	}
	if !isObject {
		return Message{}, Errorf(CodeInvalidRequest, "expected a JSON-RPC object")
	}

	m := Message{Params: params, Result: result}
	if id != nil {
		var ok bool
		if m.ID, ok = parseID(id); !ok {
			return Message{}, InvalidRequest("id is neither a string nor a signed 64-bit integer")
		}
	}
	switch {
	case method != nil:
		if method[0] != '"' {
			return Message{}, InvalidRequest("method: invalid type: %s, expected a string", strictjson.TypeOf(method))
		}
		m.Method = strictjson.Text(method)
		if id == nil {
			m.Kind = KindNotification
			return m, nil
		}
		m.Kind = KindRequest
		if err := checkTrace(trace); err != nil {
			return Message{}, err
		}
		return m, nil
	case id == nil:
		return Message{}, InvalidRequest("missing field `method`, or `id` with `result` or `error`")
	case result != nil:
		m.Kind = KindResult
		return m, nil
	case failure != nil:
		m.Kind = KindError
		m.Error, err = parseError(failure)
		return m, err
	default:
		return Message{}, InvalidRequest("missing field `result` or `error`")
	}
}

func parseID(raw []byte) (ID, bool) {
	if raw[0] == '"' {
		return stringID(strictjson.Text(raw)), true
	}
	n, err := strconv.ParseInt(string(raw), 10, 64)
	return NumberID(n), err == nil
}

// checkTrace checks the unused member trace of a request: it must be absent, null
// or an object with two optional strings. The trace of a notification is not
// checked.
func checkTrace(raw []byte) error {
	if raw == nil || raw[0] == 'n' {
		return nil
	}
	o, err := strictjson.ParseObject(raw)
	if err != nil {
		return InvalidRequest("trace: %s", err.Message)
	}
	o.OptString("traceparent")
	o.OptString("tracestate")
	if err := o.Err(); err != nil {
		return InvalidRequest("trace: %s", err.Message)
	}
	return nil
}

func parseError(raw []byte) (*Error, error) {
	o, err := strictjson.ParseObject(raw)
	if err != nil {
		return nil, InvalidRequest("error: %s", err.Message)
	}
	e := &Error{Code: Code(o.Int64("code")), Message: o.String("message")}
	if o.Has("data") {
		e.Data = bytes.Clone(o.Require("data"))
	}
	if err := o.Err(); err != nil {
		return nil, InvalidRequest("error: %s", err.Message)
	}
	return e, nil
}

// Number returns the id as an integer; ok is false for a string.
func (id ID) Number() (n int64, ok bool) { return id.number, !id.isText }
