package applypatch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"unicode/utf8"

	"github.com/execagent/execagent/fsops"
)

// Arg is the first argument that makes this program the tool; the second one is the patch.
const Arg = "--codex-run-as-apply-patch"

// Name is what the tool is called as a program of its own: a link to this one.
const Name = "apply_patch"

// Exit codes of the tool.
const (
	exitFailed = 1
	exitUsage  = 2
)

// IsTool tells whether a program with these arguments is the tool, by its own name or by its first argument.
// The name alone decides, if it is one of the tool's.
func IsTool(args []string) bool {
	return len(args) > 0 && isName(args[0]) || len(args) > 1 && args[1] == Arg
}

func isName(arg0 string) bool {
	base := filepath.Base(arg0)
	return base == Name || base == "applypatch"
}

// Main is the tool: it applies a patch to the files of this process, below its working directory, file by
// file. It reads the patch from its one argument, or else from stdin. There are no options.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) (code int) {
	text, code, err := patchOf(args, stdin)
	if err == nil {
		var changes []Change
		if changes, err = applyHere(text); err == nil {
			_, err = io.WriteString(stdout, Summary(changes))
		}
		code = exitFailed
	}
	if err != nil {
		// If stderr cannot be written to, nobody can be told.
		_, _ = fmt.Fprintln(stderr, err)
		return code
	}
	return 0
}

// patchOf returns the patch, or what is wrong with the arguments.
func patchOf(args []string, stdin io.Reader) (text string, code int, err error) {
	if !isName(args[0]) {
		if len(args) < 3 || !utf8.ValidString(args[2]) {
			return "", exitFailed, errors.New("Error: " + Arg + " requires a UTF-8 PATCH argument.")
		}
		return args[2], 0, nil
	}
	switch {
	case len(args) > 2:
		return "", exitUsage, errors.New("Error: apply_patch accepts exactly one argument.")
	case len(args) == 2 && !utf8.ValidString(args[1]):
		return "", exitFailed, errors.New("Error: apply_patch requires a UTF-8 PATCH argument.")
	case len(args) == 2:
		return args[1], 0, nil
	}
	switch text, err = ReadPatch(stdin); {
	case err != nil:
		return "", exitFailed, fmt.Errorf("Error: Failed to read PATCH from stdin.\n%w", err)
	case text == "":
		return "", exitUsage, errors.New("Usage: apply_patch 'PATCH'\n       echo 'PATCH' | apply_patch")
	}
	return text, 0, nil
}

// errNotUTF8 is why a patch cannot be read that is none.
var errNotUTF8 = errors.New("stream did not contain valid UTF-8")

// ReadPatch reads the text of a patch, at most [MaxPatch] bytes, to its end.
func ReadPatch(r io.Reader) (string, error) {
	data, err := io.ReadAll(io.LimitReader(r, MaxPatch+1))
	switch {
	case err != nil:
		return "", err
	case len(data) > MaxPatch:
		return "", fmt.Errorf("the patch has more than %d bytes", MaxPatch)
	case !utf8.Valid(data):
		return "", errNotUTF8
	}
	return string(data), nil
}

func applyHere(text string) ([]Change, error) {
	p, err := Parse(text)
	if err != nil {
		return nil, err
	}
	dir, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	t := Target{Files: fsops.Host{}, Dir: dir}
	return t.InOrder(context.Background(), p)
}
