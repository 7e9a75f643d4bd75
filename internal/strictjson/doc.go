// Package strictjson reads JSON from senders that nobody trusts, and writes strings and
// base64. It checks a text against RFC 8259. It also refuses what two readers could
// understand in two ways: a name twice in an object, a lone surrogate, bytes that
// are not UTF-8, base64 with stray bits; and what could exhaust memory or stack:
// more than [MaxDepth] levels or [MaxValues] values.
//
// [Unmarshal] reads a text into an [Unmarshaler], and [Members] passes on each member of
// a checked object. An [Object] reads one member after the other, by exact names, and
// keeps the first error, which names the member. Nothing is built before it is asked
// for: values stay slices of the text until they are read. A [Map] holds members for a
// reader that judges each of them for itself, such as the claims of a token.
// [StdBase64] and [RawURLBase64] decode base64 that must have one spelling only.
//
//	func (p *ReadParams) UnmarshalObject(o *Object) {
//		p.ProcessID = o.String("processId")
//		p.WaitMs = o.OptUint64("waitMs")
//	}
//
// All functions may be called at once. An Object belongs to one goroutine.
package strictjson
