// Command pictures draws the pictures of the documents, as SVG files in docs/pictures:
//
//	overview.svg   who talks to whom
//	processes.svg  the processes on a host
//	packages.svg   the packages and the direction of their imports, from what go list says
//	network.svg    the way of a command to the network
//	exec.svg       a terminal, from the recording exec.cast
//
// `make pictures` draws them again. `make record` first records exec.cast again: a shell in a
// terminal runs the commands of record.go, with a real agent.
//
//	go run -C tools ./pictures [-record AGENT]
//
// A test compares the committed pictures with what this program draws, so no picture goes stale.
package main
