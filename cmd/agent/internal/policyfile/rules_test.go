package policyfile

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/execpolicy"
	"github.com/execagent/execagent/internal/execpolicy/rule"
	"github.com/execagent/execagent/test/rig"
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
		{"a.rule", false, "level=WARN msg=\"there are no rules about commands: the names of rule files must end in .rules\" folder=" + folder},
		{"b.rule", true, "level=INFO msg=\"the rules about commands were read\" rules=0"},
		{"a.rules", false, "level=INFO msg=\"the rules about commands were read\" rules=1"},
	} {
		rig.Must(t, os.WriteFile(filepath.Join(folder, tt.file), []byte("prefix_rule(pattern = [\"a\"])"), 0o600))
		var said bytes.Buffer
		f := &RuleFlags{ExecPolicy: folder, ExecPolicyEnforce: "start", ExecPolicyAmend: tt.amend}
		rig.Must(t, rig.Err(f.ReadHere(slog.New(slog.NewTextHandler(&said, nil)))))
		rig.Is(t, strings.HasSuffix(said.String(), tt.want+"\n"), true, "%s is said: %s", tt.file, &said)
	}
}

// TestAmended: a rule that a client accepts a command with is added where the operator wants that,
// and nowhere else.
func TestAmended(t *testing.T) {
	t.Parallel()
	command := []string{"echo", "a"}
	judge := func(p *execpolicy.Policy) execpolicy.Verdict { return p.Start(command, nil) }
	for _, amend := range []bool{false, true} {
		folder := t.TempDir()
		f := &RuleFlags{ExecPolicy: folder, ExecPolicyEnforce: "start", ExecPolicyUnmatched: "prompt", ExecPolicyAmend: amend}
		o := rig.Value(f.ReadHere(slog.New(slog.DiscardHandler)))
		o.Current().Amend(command, command, judge)
		rig.Is(t, len(rig.Value(os.ReadDir(folder))) > 0, amend, "amend %v: there is a file", amend)
		rig.Is(t, judge(o.Current().Policy()).Decision == rule.Allow, amend, "amend %v: the command is allowed", amend)
	}
}
