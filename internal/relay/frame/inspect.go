package frame

// MaxStreamID is the length, in bytes, of the longest stream id that a rendezvous
// passes on. An id is usually a UUID, but the reference accepts any id (remote.md 5).
const MaxStreamID = 1024

// Inspect is Decode for a rendezvous, which passes the message on unchanged. It
// accepts only messages that both ends decode as a frame of the same stream.
// The slices of the frame alias message.
func Inspect(message []byte) (f Frame, ok bool) {
	if len(message) > MaxMessage {
		return f, false
	}
	if err := Decode(message, &f); err != nil {
		return f, false
	}
	return f, len(f.StreamID) <= MaxStreamID
}
