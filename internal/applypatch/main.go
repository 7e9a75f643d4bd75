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

// toolArg is the first argument that makes this program the tool; the second one is the patch.
const toolArg = "--codex-run-as-apply-patch"

// toolName is the name of the tool as a program of its own, a link to this program.
const toolName = "apply_patch"

// Exit codes of the tool.
const (
	exitFailed = 1
	exitUsage  = 2
)

// IsTool reports whether a program with these arguments is the tool, by its own name or by its
// first argument. If the name is the tool's, it alone decides.
func IsTool(args []string) bool {
	return len(args) > 0 && isName(args[0]) || len(args) > 1 && args[1] == toolArg
}

func isName(arg0 string) bool {
	base := filepath.Base(arg0)
	return base == toolName || base == "applypatch"
}

// Main is the tool: it applies a patch to the files of this process, below its working directory,
// file by file. It reads the patch from its only argument, or else from stdin. There are no
// options.
func Main(args []string, stdin io.Reader, stdout, stderr io.Writer) (code int) {
	return runTool(os.Getwd, args, stdin, stdout, stderr)
}

// runTool is Main below the directory that getwd returns.
func runTool(getwd func() (string, error), args []string, stdin io.Reader, stdout, stderr io.Writer) (code int) {
	text, code, err := patchOf(args, stdin)
	if err == nil {
		code = exitFailed
		err = applyIn(getwd, text, stdout)
	}
	if err != nil {
		// If stderr cannot be written to, the error is lost.
		_, _ = fmt.Fprintln(stderr, err)
		return code
	}
	return 0
}

// misuse describes wrong arguments of the tool, in the words of the reference.
type misuse string

func (m misuse) Error() string { return string(m) }

// patchOf returns the patch, or an error about the arguments.
func patchOf(args []string, stdin io.Reader) (text string, code int, err error) {
	if !isName(args[0]) {
		if len(args) < 3 || !utf8.ValidString(args[2]) {
			return "", exitFailed, misuse("Error: " + toolArg + " requires a UTF-8 PATCH argument.")
		}
		return args[2], 0, nil
	}
	switch {
	case len(args) > 2:
		return "", exitUsage, misuse("Error: apply_patch accepts exactly one argument.")
	case len(args) == 2 && !utf8.ValidString(args[1]):
		return "", exitFailed, misuse("Error: apply_patch requires a UTF-8 PATCH argument.")
	case len(args) == 2:
		return args[1], 0, nil
	}
	switch text, err = ReadPatch(stdin); {
	case err != nil:
		return "", exitFailed, misuse("Error: Failed to read PATCH from stdin.\n" + err.Error())
	case text == "":
		return "", exitUsage, misuse("Usage: apply_patch 'PATCH'\n       echo 'PATCH' | apply_patch")
	}
	return text, 0, nil
}

// errNotUTF8 is the error for a patch that is not UTF-8.
var errNotUTF8 = errors.New("stream did not contain valid UTF-8")

// ReadPatch reads the text of a patch, at most [maxPatch] bytes, to its end.
func ReadPatch(r io.Reader) (string, error) {
	data, err := io.ReadAll(io.LimitReader(r, maxPatch+1))
	switch {
	case err != nil:
		return "", err
	case len(data) > maxPatch:
		return "", fmt.Errorf("the patch has more than %d bytes", maxPatch)
	case !utf8.Valid(data):
		return "", errNotUTF8
	}
	return string(data), nil
}

// applyIn applies the patch and prints what has changed.
func applyIn(getwd func() (string, error), text string, stdout io.Writer) error {
	p, err := Parse(text)
	if err != nil {
		return err
	}
	dir, err := getwd()
	if err != nil {
		return err
	}
	changes, err := (&Target{Files: fsops.Host{}, Dir: dir}).inOrder(context.Background(), p)
	if err == nil {
		_, err = io.WriteString(stdout, Summary(changes))
	}
	return err
}
