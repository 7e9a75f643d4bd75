package protocol

import "github.com/execagent/execagent/protocol/strict"

// EmptyParams are the params of a method that has none: absent, null or {}
// (rpc.md 2.1).
type EmptyParams struct{}

// UnmarshalObject refuses every member.
func (*EmptyParams) UnmarshalObject(o *strict.Object) {
	if name, ok := o.First(); ok {
		o.Fail("params", "unexpected member %.128q, they must be empty", name)
	}
}

// Empty is the result {} of a method that has nothing to say.
type Empty struct{}

// AppendJSON appends the result.
func (Empty) AppendJSON(dst []byte) []byte { return append(dst, "{}"...) }

// UnmarshalParams reads a request's params into p. Except for [EmptyParams],
// they must be an object: absent, null and positional params are refused. The
// error is an [Error] with [CodeInvalidParams].
func UnmarshalParams(raw []byte, p strict.Unmarshaler) error {
	if _, ok := p.(*EmptyParams); ok && (len(raw) == 0 || raw[0] == 'n') {
		return nil
	}
	if err := strict.UnmarshalPooled(raw, p); err != nil {
		return &Error{Code: CodeInvalidParams, Message: err.Message}
	}
	return nil
}
