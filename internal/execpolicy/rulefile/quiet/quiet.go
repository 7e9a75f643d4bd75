// Package quiet silences the standard log from the package's initialization until [Loud] is called.
//
// The library of Starlark reserves 4 GiB of address space when it is initialized, in every process
// of this program. If a limit forbids the reservation, the library logs a line, which would mix
// with the output of a command under such a limit. The library works without the reservation. Go
// initializes packages that are ready in the order of their paths, so this package comes before the
// library.
package quiet

import (
	"io"
	"log"
	"os"
)

func init() { log.SetOutput(io.Discard) }

// Loud makes the standard log write to standard error again.
func Loud() { log.SetOutput(os.Stderr) }
