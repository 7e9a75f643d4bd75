package approval

import (
	"bytes"
	"slices"

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
	return has(output, denials) || code == exitSIGSYS
}

// LooksOffline guesses whether a process has missed a network, from the kept output.
func LooksOffline(output []procs.Chunk) bool { return has(output, offline) }

// offline are phrases of resolvers and of programs that found no network, in lower case.
var offline = [][]byte{
	[]byte("could not resolve"), []byte("name resolution"), []byte("eai_again"), []byte("enotfound"), []byte("no such host"),
	[]byte("unknownhostexception"), []byte("network is unreachable"), []byte("operation not permitted"),
}

// has reports whether the output has one of some phrases in lower case.
func has(output []procs.Chunk, phrases [][]byte) bool {
	var text []byte
	for _, c := range output {
		text = append(text, c.Data...)
	}
	text = bytes.ToLower(text)
	return slices.ContainsFunc(phrases, func(phrase []byte) bool { return bytes.Contains(text, phrase) })
}
