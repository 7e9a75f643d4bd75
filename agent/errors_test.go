package agent

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/execagent/execagent/fsops"
	"github.com/execagent/execagent/internal/applypatch"
	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/protocol"
)

// TestWireError: each error has the code of its kind, but a start has one code for all errors of the
// system; no path is told.
func TestWireError(t *testing.T) {
	t.Parallel()
	_, foreign := protocol.ParsePathURI("file://host/f")
	if foreign == nil {
		uri, _ := protocol.ParsePathURI("file://host/f")
		_, foreign = uri.Native()
	}
	own := protocol.Errorf(protocol.CodeSessionAttached, "own text")
	path := func(errno syscall.Errno) error { return &fs.PathError{Op: "open", Path: "/secret", Err: errno} }
	type test struct {
		name string
		err  error
		code protocol.Code
		text string // "" is not compared
	}
	tests := []test{
		{"protocol error as it is", own, own.Code, own.Message},
		{"wrapped protocol error", fmt.Errorf("around: %w", own), own.Code, own.Message},
		{"foreign path", foreign, protocol.CodeInvalidRequest, ""},
		{"refused by fsops", fsops.InvalidError{Text: "no"}, protocol.CodeInvalidRequest, "no"},
		{"unknown handle", fsops.UnknownHandleError{ID: "h"}, protocol.CodeNotFound, `file handle "h" is not open`},
		{"ENOENT", path(syscall.ENOENT), protocol.CodeNotFound, "No such file or directory (os error 2)"},
		{"EINVAL", path(syscall.EINVAL), protocol.CodeInvalidRequest, "Invalid argument (os error 22)"},
		{"EACCES", path(syscall.EACCES), protocol.CodeInvalidRequest, "Permission denied (os error 13)"},
		{"EPERM", path(syscall.EPERM), protocol.CodeInvalidRequest, "Operation not permitted (os error 1)"},
		{"ENOTDIR", path(syscall.ENOTDIR), protocol.CodeInternal, "Not a directory (os error 20)"},
		{"ESRCH", syscall.ESRCH, protocol.CodeInternal, "No such process (os error 3)"},
		{"wrapped errno", fmt.Errorf("around: %w", os.NewSyscallError("fork", syscall.EAGAIN)), protocol.CodeInternal, "Resource temporarily unavailable (os error 11)"},
		{"errno without a text of ours", syscall.Errno(9999), protocol.CodeInternal, "errno 9999 (os error 9999)"},
		{"lost connection", context.Canceled, protocol.CodeInternal, "the connection has ended"},
		{"anything else", errors.New("anything else"), protocol.CodeInternal, "anything else"},
		{"start with a protocol error", startError(own), own.Code, own.Message},
	}
	for _, errno := range []syscall.Errno{syscall.ENOENT, syscall.EACCES, syscall.EPERM, syscall.EINVAL, syscall.ENOEXEC} {
		tests = append(tests, test{"start", startError(path(errno)), protocol.CodeInternal, linux.ErrnoText(errno)})
	}
	for _, tt := range tests {
		got := WireError(tt.err)
		if got.Code != tt.code || tt.text != "" && got.Message != tt.text {
			t.Errorf("%s: WireError(%v) = %d %q, want %d %q", tt.name, tt.err, got.Code, got.Message, tt.code, tt.text)
		}
	}
}

// TestPatchErrorIsCut: what a client reads of an error with all lines of a patch is bounded, and
// text.
func TestPatchErrorIsCut(t *testing.T) {
	t.Parallel()
	err := cut(&applypatch.MismatchError{Text: strings.Repeat("\u00e9", maxPatchError)})
	e, ok := errors.AsType[*protocol.Error](err)
	if !ok || e.Code != protocol.CodeInvalidRequest || len(e.Message) > maxPatchError+3 || !strings.HasSuffix(e.Message, "\u00e9...") {
		t.Errorf("%v of %d bytes, %T", e.Code, len(e.Message), err)
	}
}
