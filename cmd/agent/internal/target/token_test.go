package target

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/test/rig"
)

func TestToken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{"good": "tok\n", "empty": " \n", "two": "a b", "long": strings.Repeat("x", maxToken+1)} {
		rig.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	f := &ContextFile{Path: filepath.Join(dir, "config.toml")}
	sys := program.System{Environ: append(os.Environ(), "FROM=variable"), Stderr: os.Stderr}
	for _, tt := range []struct {
		c    Context
		want string // or part of the error, after "!"
	}{
		{Context{}, ""},
		{Context{token: "abc"}, "abc"},
		{Context{TokenFile: filepath.Join(dir, "good")}, "tok"},
		{Context{TokenFile: "good"}, "tok"}, // beside the file of contexts
		{Context{TokenFile: "empty"}, "!is empty"},
		{Context{TokenFile: "two"}, "!holds characters that a token cannot have"},
		{Context{TokenFile: "long"}, "!exceeds 65536 bytes"},
		{Context{TokenFile: "missing"}, "!no such file"},
		{Context{TokenCommand: []string{"sh", "-c", "echo $FROM"}}, "variable"},
		{Context{TokenCommand: []string{"echo", "$FROM; exit 1"}}, "!holds characters"}, // no shell
		{Context{TokenCommand: []string{"cat"}}, "!the command's output is empty"},      // no standard input
		{Context{TokenCommand: []string{"false"}}, "!exit status 1"},
		{Context{TokenCommand: []string{"/no/such/program"}}, "!no such file"},
		{Context{TokenCommand: []string{"sh", "-c", "echo s3cret with blanks"}}, "!the command's output holds characters"},
		{Context{TokenCommand: []string{"sh", "-c", "echo s3cret; exit 4"}}, "!exit status 4"},
		{Context{TokenCommand: []string{"yes", "s3cret"}}, "!the command prints more than 65536 bytes"}, // without end
	} {
		token, err := f.Token(t.Context(), sys, &tt.c)
		if want, fails := strings.CutPrefix(tt.want, "!"); fails {
			if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "s3cret") || token != "" {
				t.Errorf("%+v: %q, %v, want %q", tt.c, token, err, want)
			}
		} else if token != tt.want || err != nil {
			t.Errorf("%+v: %q, %v", tt.c, token, err)
		}
	}
}

// TestTokenCommandHangs: a command that does not end is ended, after its time or with what
// asks for the token, also if something else has its output.
func TestTokenCommandHangs(t *testing.T) {
	t.Parallel()
	null := rig.Value(os.OpenFile(os.DevNull, os.O_WRONLY, 0))
	defer null.Close()
	sys := program.System{Environ: os.Environ(), Stderr: null}
	rig.Is(t, rig.Err(runCommand(t.Context(), sys, []string{"sleep", "1000"}, time.Millisecond)), errTooSlow, "a command that hangs")
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("a signal")
	cancel(why)
	rig.Is(t, rig.Err(runCommand(ctx, sys, []string{"sleep", "1000"}, commandPatience)), why, "a command of somebody who has gone")
	token, err := runCommand(t.Context(), sys, []string{"sh", "-c", "sleep 20 & echo tok"}, commandPatience)
	rig.Check(t, err)
	rig.Is(t, token, "tok", "of a command that leaves something behind")
}

func TestSaveKey(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "config.toml")
	for _, key := range []string{"first", "second"} {
		file, err := SaveKey(path, "prod", key)
		rig.Must(t, err)
		c := &Context{Name: "prod", Registry: "r", TokenFile: file}
		f := &ContextFile{Path: path}
		token, err := f.Token(t.Context(), program.System{Stderr: os.Stderr}, c)
		rig.Check(t, err)
		rig.Is(t, token, key, "the token")
		for name, want := range map[string]os.FileMode{file: 0o600, filepath.Dir(file): 0o700} {
			rig.Is(t, rig.Value(os.Stat(filepath.Join(filepath.Dir(path), name))).Mode().Perm(), want, "the mode of %s", name)
		}
		if key == "second" {
			rig.Check(t, errors.Join(ForgetKey(path, c), ForgetKey(path, c)))
			rig.Is(t, rig.Err(os.Stat(filepath.Join(filepath.Dir(path), file))), fs.ErrNotExist, "the key that was forgotten")
		}
	}
	rig.Is(t, rig.Err(SaveKey(path, "../x", "key")) != nil, true, "a key is not saved anywhere")
	elsewhere := filepath.Join(t.TempDir(), "mine")
	rig.Must(t, os.WriteFile(elsewhere, nil, 0o600))
	rig.Check(t, ForgetKey(path, &Context{Name: "prod", TokenFile: elsewhere}))
	rig.Check(t, rig.Err(os.Stat(elsewhere)))
}
