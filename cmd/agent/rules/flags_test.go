package rules

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestTold: the log says how many rules were read, and warns of none.
func TestTold(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	for _, tt := range []struct {
		file  string // that is added to the folder
		amend bool
		want  string
	}{
		{"a.rule", false, "level=WARN msg=\"there are no rules about commands: names of their files end in .rules\" folder=" + folder},
		{"b.rule", true, "level=INFO msg=\"the rules about commands were read\" rules=0"},
		{"a.rules", false, "level=INFO msg=\"the rules about commands were read\" rules=1"},
	} {
		if err := os.WriteFile(filepath.Join(folder, tt.file), []byte("prefix_rule(pattern = [\"a\"])"), 0o600); err != nil {
			t.Fatal(err)
		}
		var said bytes.Buffer
		f := &PolicyFlags{ExecPolicy: folder, ExecPolicyEnforce: "start", ExecPolicyAmend: tt.amend}
		if _, err := f.ReadPolicy(slog.New(slog.NewTextHandler(&said, nil))); err != nil {
			t.Fatal(err)
		}
		if !strings.HasSuffix(said.String(), tt.want+"\n") {
			t.Errorf("%s: %s", tt.file, &said)
		}
	}
}
