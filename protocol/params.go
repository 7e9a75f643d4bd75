package protocol

import "github.com/execagent/execagent/internal/strictjson"

// EmptyParams are the params of a method that has none: absent, null or {}
// (rpc.md 2.1).
type EmptyParams struct{}

// UnmarshalObject refuses every member.
func (*EmptyParams) UnmarshalObject(o *Object) {
	if name, ok := o.First(); ok {
		o.Fail("params", "unexpected member %.128q, they must be empty", name)
	}
}

// Empty is the result {} of a method without a result.
type Empty struct{}

func (Empty) AppendJSON(dst []byte) []byte { return append(dst, "{}"...) }

// Object is a JSON object, checked as strictly as the protocol requires (rpc.md 2.4), whose members
// are read by name. The error of the first wrong member becomes the error of the whole object.
type Object = strictjson.Object

// Unmarshaler is a record that reads itself from an [Object]. The params of all methods implement
// it, and so must the params of methods that a program adds to an rpc.Table.
type Unmarshaler = strictjson.Unmarshaler

// UnmarshalParams reads a request's params into p. Except for [EmptyParams],
// they must be an object: absent, null and positional params are refused. The
// error is an [Error] with [CodeInvalidParams].
func UnmarshalParams(raw []byte, p Unmarshaler) error {
	if _, ok := p.(*EmptyParams); ok && (len(raw) == 0 || raw[0] == 'n') {
		return nil
	}
	if err := strictjson.UnmarshalPooled(raw, p); err != nil {
		return &Error{Code: CodeInvalidParams, Message: err.Message}
	}
	return nil
}
