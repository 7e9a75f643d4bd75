package supervise

import (
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/execpolicy"
	"github.com/execagent/execagent/internal/sandbox/judge"
	"github.com/execagent/execagent/internal/sandbox/supervise/execcheck"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// TestDecideLoaded: rules are asked about a loader that the kernel has found in the place of the
// one that was judged.
func TestDecideLoaded(t *testing.T) {
	t.Parallel()
	const text = `prefix_rule([["kubectl", "ld-linux-x86-64.so.2"], "delete"], "forbidden")`
	rules := rig.Value(execpolicy.ParseClient([]execpolicy.ClientFile{{Name: "t", Text: text}}))
	j := rig.Value(judge.New(execpolicy.AppendPacked(nil, &execpolicy.Policy{Rules: rules}), nil, -1))
	n := &Notifier{config: Config{Level: sandbox.NoLevel, Judge: j}}
	for _, tt := range []struct {
		loader, word string
		want         error
	}{{"/usr/bin/kubectl", "delete", unix.EPERM}, {"/usr/bin/kubectl", "get", nil}, {"/lib64/ld-linux-x86-64.so.2", "delete", nil}} {
		rig.Is(t, n.decideProgram(execcheck.Image{Program: tt.loader, Loader: tt.loader, Argv: []string{"x", tt.word}, Thread: os.Getpid(), Real: true}), tt.want, "%s %s", tt.loader, tt.word)
	}
}
