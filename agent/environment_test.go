package agent

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestEnvironmentInfo compares what initialize and environment/info report
// with rpc.md 3.4.
func TestEnvironmentInfo(t *testing.T) {
	t.Parallel()
	home, temp := t.TempDir(), t.TempDir()
	c := newHarness(t, Config{
		Version: "0.171.0+execagent.1",
		Environ: []string{"HOME=" + home, "TMPDIR=" + temp, "OPENAI_API_KEY=secret"},
	}).attach("")
	var text json.RawMessage
	c.must("environment/info", nil, &text)
	rig.Is(t, strings.Contains(string(text), "secret"), false, "a secret is in the answer %s", text)
	var got map[string]any
	rig.Must(t, json.Unmarshal(text, &got))
	cwd := rig.Value(os.Getwd())
	if id, _ := got["providerId"].(string); len(id) != len("sha256:")+64 || !strings.HasPrefix(id, "sha256:") {
		t.Errorf("providerId %q, want sha256: and 64 hex digits", id)
	}
	shell, _ := got["shell"].(object)
	rig.Is(t, shell["name"] != "" && filepath.IsAbs(shell["path"].(string)), true, "shell %v, want a name and a native path", shell)
	delete(got, "providerId")
	delete(got, "shell")
	delete(got, "capabilities") // conformance/testdata/ours.jsonl has them all
	want := object{
		"executorVersion": "0.171.0+execagent.1", "platformOs": "linux", "cwd": uri(cwd), "userHomeDir": uri(home),
		"prependPathDirs": []any{}, "temporaryDirectories": []any{uri(temp)}, "tempDir": uri(temp),
	}
	rig.Same(t, "environment/info", want, got)
}

// TestConfigRead reads parts of a configuration file (rpc.md 3.6).
func TestConfigRead(t *testing.T) {
	t.Parallel()
	home := t.TempDir()
	config := "model = \"m\"\nother = 1\n[table]\nkey = 2\n"
	rig.Must(t, os.WriteFile(filepath.Join(home, "config.toml"), []byte(config), 0o666))
	c := newHarness(t, Config{Environ: []string{"HOME=" + home, "CODEX_HOME=" + home}}).attach("")
	var got struct{ Config protocol.ConfigLayers }
	params := object{"cwd": uri(t.TempDir()), "configPaths": [][]string{{"model"}, {"table", "key"}, {"absent"}}, "requirementsPaths": [][]string{}}
	c.must("environmentConfig/read", params, &got)
	var layer string
	for _, l := range got.Config.Layers {
		if strings.Contains(l.Source, home) {
			layer = l.TOML
		}
	}
	for _, part := range []string{`model = "m"`, "key = 2"} {
		rig.Is(t, strings.Contains(layer, part), true, "the layer of %s, %q, has %q", home, layer, part)
	}
	rig.Is(t, strings.Contains(layer, "other"), false, "the layer of %s, %q, has a key that was not asked for", home, layer)
	for _, paths := range []string{`[]`, `[[]]`} {
		params := json.RawMessage(`{"cwd":"file:///","configPaths":` + paths + `,"requirementsPaths":[]}`)
		wantCode(t, "configPaths "+paths, c.call("environmentConfig/read", params, nil), protocol.CodeInvalidParams)
	}
}
