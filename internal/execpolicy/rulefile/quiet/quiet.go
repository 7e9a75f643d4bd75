// Package quiet silences the standard log from its own initialization until [Loud] is called.
//
// The library of Starlark reserves 4 GiB of addresses when it is initialized, which happens in
// every process of this program, and logs a line where a limit forbids that: among what the
// commands print that run under such a limit. It works without. Packages that are ready are
// initialized in the order of their paths, and so this one is before the library.
package quiet

import (
	"io"
	"log"
	"os"
)

func init() { log.SetOutput(io.Discard) }

// Loud has the log written to standard error again.
func Loud() { log.SetOutput(os.Stderr) }
