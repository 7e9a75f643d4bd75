package auth

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// TestKeyFile: a new key counts from the next request on, and where the registry says no; a file
// that cannot be used changes nothing, and is in the log once.
func TestKeyFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "key")
	old := time.Now().Add(-time.Hour) // what is newer is read again each time
	put := func(text string) {
		t.Helper()
		rig.Must(t, errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Chtimes(path+".new", old, old), os.Rename(path+".new", path)))
	}
	put(" sk-first\n")
	var log bytes.Buffer
	var refused error
	source := rig.Value(OpenKeyFile(path, KeyFileConfig{Check: func(string) error { return refused }, Logger: slog.New(slog.NewTextHandler(&log, nil))}))
	sends := func(want string) { t.Helper(); wantAuthorization(t, "it", source, "Bearer "+want) }
	again := func(want string) {
		t.Helper()
		rig.Is(t, fmt.Sprint(source.Unauthorized(t.Context())), want, "after a 401")
	}
	sends("sk-first")
	again("false <nil>")
	put("sk-other")
	sends("sk-other")
	again("true <nil>") // the answer may be to a request with the former key

	// The same length, file and time as before.
	rig.Must(t, errors.Join(os.WriteFile(path, []byte("sk-third"), 0o600), os.Chtimes(path, old, old)))
	sends("sk-other")
	again("true <nil>")
	sends("sk-third")

	put("two words")
	sends("sk-third")
	sends("sk-third")
	refused = errors.New("others can change it")
	sends("sk-third")
	refused = nil
	rig.Must(t, os.Remove(path))
	sends("sk-third")
	put("sk-last")
	sends("sk-last")
	text := log.String()
	rig.Is(t, strings.Count(text, "was read again"), 3, "times it was read in %s", text)
	rig.Is(t, strings.Count(text, "cannot be read again"), 3, "times it was not in %s", text)
	shown := text + fmt.Sprintf("%v %+v %#v", source, source, source)
	rig.Is(t, strings.Contains(shown, "sk-"), false, "a key is in %s", shown)
}

func TestKeyFileIsNone(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, text := range map[string]string{"empty": " \n", "words": "sk-secret two", "long": strings.Repeat("x", maxToken+1)} {
		rig.Must(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	for name, want := range map[string]string{
		"missing": "no such file", "empty": "is empty", "words": "has blanks", "long": "longer than", ".": "is not a regular file",
	} {
		_, err := OpenKeyFile(filepath.Join(dir, name), KeyFileConfig{})
		failed(t, name, err, want)
	}
}
