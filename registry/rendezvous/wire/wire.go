// Package wire is what reaches a process of the rendezvous, decoded and bounded:
// frames of executors and harnesses, of which it has to know little, and what
// other processes of the same registry have to say. What follows from any of it
// is decided elsewhere.
package wire

import "github.com/execagent/execagent/relay/frame"

// MaxStreamID is in bytes. A stream id is a UUID as a rule; the reference takes
// any (remote.md 5).
const MaxStreamID = 1024

// Inspect decodes what a rendezvous has to know of a frame; the rest is passed on
// as it is. Nothing else than what both ends would take as a frame of that stream
// gets through. The frame refers to message.
func Inspect(message []byte) (f frame.Frame, ok bool) {
	if len(message) > frame.MaxMessage {
		return f, false
	}
	if err := frame.Decode(message, &f); err != nil {
		return f, false
	}
	return f, len(f.StreamID) <= MaxStreamID
}
