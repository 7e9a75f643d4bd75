// Package quiet silences the standard log from its own initialization until [Loud] is called.
//
// The library of Starlark reserves 4 GiB of addresses when it is initialized, in every process of
// this program. Where a limit forbids that, it logs a line, which would mix with the output of a
// command under such a limit. It works without the reservation. Packages that are ready are
// initialized in the order of their paths, so this package comes before the library.
package quiet

import (
	"io"
	"log"
	"os"
)

func init() { log.SetOutput(io.Discard) }

// Loud has the log written to standard error again.
func Loud() { log.SetOutput(os.Stderr) }
