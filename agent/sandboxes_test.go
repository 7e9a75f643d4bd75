package agent

import (
	"bytes"
	"log/slog"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestStateDirUnseen: a grant on the host's /dev/shm does not show the agent's
// own directory there, neither to processes nor to requests for files.
func TestStateDirUnseen(t *testing.T) {
	t.Parallel()
	shm, err := os.MkdirTemp("/dev/shm", "state")
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(shm) })
	rig.Must(t, os.WriteFile(shm+"/beside", []byte("shown"), 0o644))
	state := shm + "/state"
	c := newHarness(t, Config{StateDir: state}).attach("")
	root := special("root", "read")
	for name, box := range map[string]object{
		"read":   managed("restricted", root, at(shm, "read")),
		"write":  managed("restricted", root, at(shm, "write")),
		"inside": managed("restricted", root, at(state, "write")),
		"tmpdir": managed("restricted", root, special("tmpdir", "write")),
		"alone":  managed("restricted", special("minimal", "read"), at(shm, "write")),
	} {
		script := "cd " + shm + "; cat beside; ls state | sed s/^/listed:/; echo x > state/placeholders-FORGED; mv state moved"
		c.must("process/start", object{
			"processId": name, "argv": []string{"/bin/sh", "-c", script}, "cwd": uri("/"), "tty": false, "arg0": nil,
			"env": object{"PATH": "/usr/bin:/bin", "TMPDIR": shm}, "sandbox": box,
		}, new(protocol.StartResult))
		c.awaitNote("process/closed", name)
		output := c.output(name)
		if strings.Contains(output, "listed:") || name != "inside" && !strings.Contains(output, "shown") {
			t.Errorf("%s: %s", name, output)
		}
		rig.Is(t, c.call("fs/readDirectory", object{"path": uri(state), "sandbox": box}, nil) != nil, true, "%s: listing it is refused", name)
		forged := object{"path": uri(state + "/placeholders-FORGED"), "dataBase64": "eA==", "sandbox": box}
		rig.Is(t, c.call("fs/writeFile", forged, nil) != nil, true, "%s: writing there is refused", name)
		rig.Is(t, len(rig.Value(os.ReadDir(state))), 1, "%s: entries of the directory now", name)
	}
}

// TestSecretWithTwoNames: rules are about paths, so the log names secret files
// that have other names.
func TestSecretWithTwoNames(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for _, name := range []string{"one", "two"} {
		rig.Must(t, os.WriteFile(dir+"/"+name, []byte("token"), 0o600))
	}
	rig.Must(t, os.Link(dir+"/two", dir+"/other"))
	var log bytes.Buffer
	a := New(Config{Logger: slog.New(slog.NewTextHandler(&log, nil)), Secrets: []string{dir + "/one", dir + "/two", dir + "/none"}, StateDir: t.TempDir() + "/state"})
	rig.Must(t, a.Close())
	said := log.String()
	rig.Is(t, strings.Count(said, "hard links") == 1 && strings.Contains(said, "file="+dir+"/two names=2"), true, "%s", said)
}

// TestUntilTrue: that something failed once does not hold for good, and that it worked does.
func TestUntilTrue(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		while time.Duration
		want  []bool
		tries int
	}{
		{0, []bool{false, false, true, true}, 3},
		{time.Hour, []bool{false, false, false, false}, 1},
	} {
		tries := 0
		can := untilTrue(tt.while, func() bool {
			tries++
			return tries == 3
		})
		for i, want := range tt.want {
			rig.Is(t, can(), want, "again after %v: call %d", tt.while, i)
		}
		rig.Is(t, tries, tt.tries, "again after %v: tries", tt.while)
	}
}
