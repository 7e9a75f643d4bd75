package approval

import (
	"bytes"

	"github.com/execagent/execagent/procs"
)

// denials are what programs print when a sandbox stops them, and what sandboxes
// print themselves, in lower case (sandbox.md 9.1).
var denials = [][]byte{
	[]byte("operation not permitted"), []byte("permission denied"), []byte("read-only file system"),
	[]byte("seccomp"), []byte("sandbox"), []byte("landlock"), []byte("failed to write file"),
}

// exitSIGSYS is the exit code of a program that a filter killed for a system
// call.
const exitSIGSYS = 128 + 31

// LooksDenied guesses whether a process failed because of its sandbox, from its
// exit code and the kept output, by the rule of the reference, which clients
// know (sandbox.md 9.1).
func LooksDenied(code int, output []procs.Chunk) bool {
	if code == 0 {
		return false
	}
	var text []byte
	for _, c := range output {
		text = append(text, c.Data...)
	}
	text = bytes.ToLower(text)
	for _, d := range denials {
		if bytes.Contains(text, d) {
			return true
		}
	}
	return code == exitSIGSYS
}
