package applypatch

import (
	"errors"
	"fmt"
	"syscall"
	"unicode/utf8"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/linux"
)

// SyntaxError describes an error in the text of a patch. Models read it, and know its wording.
type SyntaxError struct {
	// Line counts from 1, which is the line that begins the patch. It is 0 if the whole text is no
	// patch.
	Line int
	// Text says what is wrong.
	Text string
}

// Error returns the text of the tool.
func (e *SyntaxError) Error() string {
	if e.Line == 0 {
		return "Invalid patch: " + e.Text
	}
	return fmt.Sprintf("Invalid patch hunk on line %d: %s", e.Line, e.Text)
}

func invalid(line int, format string, args ...any) error {
	return &SyntaxError{Line: line, Text: fmt.Sprintf(format, args...)}
}

// ErrEmpty is the error of a patch without a hunk.
var ErrEmpty = errors.New("No files were modified.") //nolint:ST1005 // the words of the reference

// MismatchError says that a file does not have the lines that a patch expects.
type MismatchError struct {
	// Text is the whole message, with the path and the lines.
	Text string
}

func (e *MismatchError) Error() string { return e.Text }

// FileError says that a file could not be read or changed, because of the system or the
// policy of a request.
type FileError struct {
	// Text is the message of the reference, with the path. If that does not name the cause, the
	// cause is on a second line.
	Text string
	// Err is the cause.
	Err error
}

func (e *FileError) Error() string { return e.Text }

func (e *FileError) Unwrap() error { return e.Err }

func readError(path string, err error) error {
	text := reason(err)
	if _, ok := errors.AsType[fsops.InvalidError](err); ok {
		text = fmt.Sprintf("path `%s` is not a file", path)
	}
	return &FileError{Text: "Failed to read file to update " + path + ": " + text, Err: err}
}

func writeError(path string, err error) error {
	return &FileError{Text: "Failed to write file " + path + "\n" + reason(err), Err: err}
}

func parentsError(path string, err error) error {
	return &FileError{Text: "Failed to create parent directories for " + path + "\n" + reason(err), Err: err}
}

func deleteError(path string, err error) error {
	return &FileError{Text: "Failed to delete file " + path + "\n" + reason(err), Err: err}
}

// reason returns the text of a cause for a message.
func reason(err error) string {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return linux.ErrnoText(errno)
	}
	return err.Error()
}

// notUTF8 says where a text stops being UTF-8: at is the index of the first wrong byte, wrong the
// number of wrong bytes, 0 if the text ends within a character.
type notUTF8 struct{ at, wrong int }

func (e notUTF8) Error() string {
	if e.wrong == 0 {
		return fmt.Sprintf("incomplete utf-8 byte sequence from index %d", e.at)
	}
	return fmt.Sprintf("invalid utf-8 sequence of %d bytes from index %d", e.wrong, e.at)
}

// checkUTF8 returns a notUTF8 if data is not UTF-8.
func checkUTF8(data []byte) error {
	if utf8.Valid(data) {
		return nil
	}
	at := 0
	for {
		r, n := utf8.DecodeRune(data[at:])
		if r == utf8.RuneError && n == 1 {
			break
		}
		at += n
	}
	// The longest beginning of a character is one error (Unicode 3.9).
	wrong := 1
	for wrong < 3 && at+wrong < len(data) && !utf8.FullRune(data[at:at+wrong+1]) {
		wrong++
	}
	if at+wrong == len(data) && !utf8.FullRune(data[at:]) {
		wrong = 0
	}
	return notUTF8{at, wrong}
}
