// Package strictjson reads JSON from untrusted senders, and writes strings and base64. It checks a
// text against RFC 8259. It also refuses text that two readers could understand differently: a
// repeated name in an object, a lone surrogate, bytes that are not UTF-8, base64 with stray bits.
// And it refuses text that could exhaust memory or stack: more than [MaxDepth] levels or
// [MaxValues] values.
//
// [Unmarshal] reads a text into an [Unmarshaler], and [Members] visits each member of a checked
// object. An [Object] reads members by exact names, and keeps the first error, which names the
// member. Values stay slices of the text until they are read. A [Map] holds members for a reader
// that judges each member separately, such as the claims of a token. [StdBase64] and [RawURLBase64]
// decode base64 and accept only one spelling for each value.
//
//	func (p *ReadParams) UnmarshalObject(o *Object) {
//		p.ProcessID = o.String("processId")
//		p.WaitMs = o.OptUint64("waitMs")
//	}
//
// All functions may be called concurrently. An Object must be used by one goroutine at a time.
package strictjson
