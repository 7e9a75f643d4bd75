// Package filecopy sends trees of files over a stream and receives them. The same code runs at both
// ends of agent cp: here, and as a tool of the agent ([ToolMain]), which gets a [Request].
//
// The stream is a tar archive (POSIX pax) with our records in global headers, which other programs
// skip. Between two of our own programs, the first record is begin and the last one is end, so a
// truncated stream is never taken for a whole one. Each file comes with the SHA-256 of its content,
// in its own header if the file is small, and otherwise after the content. The file takes its place
// only if the hash matches. A file with holes is an empty entry with its size, and pieces follow: each
// has the places of some extents, and then their bytes. A plain stream, for and from other programs,
// has none of these records, and zeros for holes.
//
// A [Sender] follows links only on the way to a source, even if files are replaced while it runs.
//
// Whatever the stream contains, a [Receiver] writes only inside its target, and writes only the
// requested names. A target that is a link is replaced or refused, and never followed, because an
// earlier stream may have made it. The receiver opens one name after the other, from the target on,
// and follows no link below the target. A file is written without a name or under a temporary name,
// and replaces the old file in one step, unless it can only be written in place. Linux only.
package filecopy

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Bounds of a stream. Contents and names that are too long for a file system fail there.
const (
	maxEntries = 50_000_000
	maxName    = 64 << 10 // bytes
	maxDepth   = 512      // directories in each other; each keeps a descriptor open
	maxFile    = 1 << 50  // bytes
	maxLinks   = 1 << 20  // files with several names that are recognized
	maxExtents = 1024     // of a file with holes, in one piece
)

// Our records, in global headers.
const (
	recordBegin = "EXECAGENT.begin" // the version of all this
	recordBytes = "EXECAGENT.bytes" // with begin: the approximate bytes of content to come
	recordSum   = "EXECAGENT.sha256"
	recordEnd   = "EXECAGENT.end" // how many entries there were

	recordSize    = "EXECAGENT.size"    // of a file with holes, whose pieces follow
	recordExtents = "EXECAGENT.extents" // how many extents a piece has

	version = "1"
	// changed replaces a sum if the sender could not read the file to its end. The receiver drops
	// its part of the file.
	changed = "changed"
)

const (
	// buffered is how many bytes are read and written at once. A smaller file is sent with the size
	// that was read, whatever its file system said before.
	buffered = 512 << 10
	// gathered is how many bytes of smaller writes are combined in a stream. Larger writes are not
	// copied.
	gathered = 64 << 10
	// extentSize is how many bytes the place of an extent has: two numbers, its offset and its length.
	extentSize = 16
)

// ErrCut says that a stream was truncated.
var ErrCut = errors.New("the stream ends too early")

var (
	errSpecial = errors.New("left out: neither a file nor a directory nor a link")
	errDeep    = fmt.Errorf("what is in it is left out: it would be more than %d directories deep", maxDepth)
	errShrunk  = errors.New("left out: it has become shorter while it was read")
)

// A Note is called for a file that is left out, while the copy continues.
type Note func(path string, err error)

// nameError is an error about one file.
type nameError struct {
	path string
	err  error
}

func (e *nameError) Error() string { return fmt.Sprintf("%s: %v", Quote(e.path), e.err) }
func (e *nameError) Unwrap() error { return e.err }

func about(path string, err error) error {
	if err == nil {
		return nil
	}
	return &nameError{path, err}
}

// Quote returns a path for people: unchanged, or in quotes if it could be mistaken for something
// else, or could control a terminal.
func Quote(path string) string {
	odd := func(r rune) bool { return !strconv.IsPrint(r) }
	if path == "" || !utf8.ValidString(path) || strings.ContainsFunc(path, odd) || strings.TrimSpace(path) != path {
		return strconv.Quote(path)
	}
	return path
}
