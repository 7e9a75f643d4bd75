package target

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/secretfile"
)

const (
	// maxToken bounds a token and the white space around it, in bytes.
	maxToken = 64 << 10
	// commandPatience is how long a token_command may take. It may ask the user something.
	commandPatience = 60 * time.Second
	// commandEnd is how long the output of a token_command may stay open after its end.
	commandEnd = time.Second
	// keyFolder is the folder of the keys that [SaveKey] stores, beside the file of contexts.
	keyFolder = "keys"
)

// Token returns the token of a context of the file, or "" if the context has none. It may run a
// command, which ends with ctx. No error quotes a token.
func (f *ContextFile) Token(ctx context.Context, sys program.System, c *Context) (string, error) {
	switch {
	case c.token != "":
		return CheckToken("token of context "+c.Name, c.token)
	case c.TokenFile != "":
		path, err := f.Resolve(c.TokenFile)
		if err != nil {
			return "", err
		}
		return ReadToken(sys, path)
	case len(c.TokenCommand) > 0:
		token, err := runCommand(ctx, sys, c.TokenCommand, commandPatience)
		if err != nil {
			return "", fmt.Errorf("token_command of context %s: %s: %w", c.Name, c.TokenCommand[0], err)
		}
		return token, nil
	}
	return "", nil
}

// ReadToken reads a bearer token from a file, and complains if others can read it. A file that
// others can change is refused. Its errors never quote the content of the file.
func ReadToken(sys program.System, file string) (string, error) {
	if file == "-" {
		return "", errors.New("- is not a token file: for standard input write /dev/stdin")
	}
	if err := secretfile.Report(func(warning string) { program.Complain(sys.Stderr, warning) }, file); err != nil {
		return "", err
	}
	content, err := program.ReadFile(file, maxToken)
	if err != nil {
		return "", err
	}
	return CheckToken("token file "+file, string(content))
}

// CheckToken returns the token in a text, without the white space around it. what names the text in
// the error.
func CheckToken(what, text string) (string, error) {
	token := strings.TrimSpace(text)
	switch {
	case token == "":
		return "", fmt.Errorf("%s is empty", what)
	case strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", fmt.Errorf("%s holds characters that a token cannot have", what)
	}
	return token, nil
}

var (
	errTooLong = fmt.Errorf("the command prints more than %d bytes", maxToken)
	errTooSlow = errors.New("the command takes too long")
)

// runCommand runs a command and returns the token that it prints. Its standard error is this
// program's. It gets no standard input, because that belongs to another command.
func runCommand(ctx context.Context, sys program.System, argv []string, patience time.Duration) (string, error) {
	ctx, stop := context.WithTimeoutCause(ctx, patience, errTooSlow)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var out bounded
	out.full = func() { cancel(errTooLong) }
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Env = sys.Environ
	cmd.Stdout, cmd.Stderr = &out, sys.Stderr
	cmd.WaitDelay = commandEnd
	err := cmd.Run()
	switch cause := context.Cause(ctx); {
	case cause != nil:
		return "", cause
	case errors.Is(err, exec.ErrWaitDelay):
		// The command has ended, but a process that it left behind holds its output open.
	case err != nil:
		return "", err
	}
	return CheckToken("the command's output", out.text.String())
}

// bounded keeps the output of a command, and calls full when the output is too long.
type bounded struct {
	text bytes.Buffer
	full func()
}

func (b *bounded) Write(p []byte) (int, error) {
	if b.text.Len()+len(p) > maxToken {
		b.full()
		return 0, errTooLong
	}
	return b.text.Write(p)
}

// SaveKey stores a key for a context in a file that only the user can read, in the folder of the file
// of contexts at path. It returns the value for the context's TokenFile.
func SaveKey(path, name, key string) (tokenFile string, err error) {
	if !ValidContextName(name) {
		return "", fmt.Errorf("%.*q is not a valid name for a context", maxName, name)
	}
	if err := os.MkdirAll(filepath.Join(filepath.Dir(path), keyFolder), 0o700); err != nil {
		return "", err
	}
	tokenFile = filepath.Join(keyFolder, name)
	return tokenFile, write(filepath.Join(filepath.Dir(path), tokenFile), key+"\n")
}

// ForgetKey removes the key that SaveKey has stored for a context. It does not remove a key in
// another place.
func ForgetKey(path string, c *Context) error {
	if c.TokenFile != filepath.Join(keyFolder, c.Name) {
		return nil
	}
	err := os.Remove(filepath.Join(filepath.Dir(path), c.TokenFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
