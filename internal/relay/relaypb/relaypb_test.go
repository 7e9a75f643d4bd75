package relaypb_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestGenerated: relay.pb.go is what the tools make of relay.proto, but for the
// versions of the tools that it notes.
func TestGenerated(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("protoc"); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	dir := t.TempDir()
	plugin := filepath.Join(dir, "protoc-gen-go")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", plugin, "google.golang.org/protobuf/cmd/protoc-gen-go")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the plugin: %v\n%s", err, out)
	}
	cmd := exec.CommandContext(t.Context(), "protoc", "--plugin="+plugin, "--go_out="+dir, "--go_opt=paths=source_relative", "relay.proto")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	made, committed := read(t, filepath.Join(dir, "relay.pb.go")), read(t, "relay.pb.go")
	rig.Same(t, "relay.pb.go is out of date: run go generate", committed, made)
}

// read returns a generated file without the lines that name versions.
func read(t *testing.T, path string) []byte {
	t.Helper()
	text := rig.Value(os.ReadFile(path))
	var out []byte
	for line := range bytes.Lines(text) {
		if !bytes.HasPrefix(line, []byte("// \tproto")) {
			out = append(out, line...)
		}
	}
	return out
}
