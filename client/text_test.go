package client_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestText: a path may have any bytes. Every other string that is not UTF-8 is refused before a
// request is sent, and its value stays out of the error.
func TestText(t *testing.T) {
	t.Parallel()
	c := rig.Value(client.DialURL(t.Context(), listen(t, "")))
	defer c.Close()
	bytes, text := filepath.Join(t.TempDir(), "x\xff"), "x\ufffd"
	rig.Must(t, c.FS(nil).WriteFile(t.Context(), bytes, []byte("bytes")))
	rig.Is(t, string(rig.Value(os.ReadFile(bytes))), "bytes", "the file has")
	dir := filepath.Dir(bytes)
	rig.Must(t, os.WriteFile(filepath.Join(dir, text), []byte("text"), 0o600))
	_, err := c.FS(nil).Tree(t.Context(), dir).Open(text)
	rig.Says(t, err, "invalid argument", "opening a name with U+FFFD")

	for want, spec := range map[string]client.Spec{
		"argv[1] is not UTF-8":              {Argv: []string{"rm", bytes}},
		"env.A is not UTF-8":                {Argv: []string{"true"}, Env: []string{"A=\xff"}},
		"env: a name is not UTF-8":          {Argv: []string{"true"}, Env: []string{"A\xff=1"}},
		"processId is not UTF-8":            {Argv: []string{"true"}, ID: "\xff"},
		"envPolicy.exclude[0] is not UTF-8": {Argv: []string{"true"}, EnvPolicy: &protocol.EnvPolicy{Inherit: protocol.InheritCore, Exclude: []string{"\xff"}}},
	} {
		_, err := c.Spawn(t.Context(), spec)
		rig.Says(t, err, "calling process/start: "+want+": a request can have only text", "starting")
	}
	_, err = c.FS(nil).ApplyPatch(t.Context(), dir, "\xff", false)
	rig.Says(t, err, "patch is not UTF-8", "a patch")
	rig.Is(t, string(rig.Value(os.ReadFile(bytes))), "bytes", "the file has")
}
