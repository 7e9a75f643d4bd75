package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestRemoteEarlyCuts: when a websocket is lost while agent exec connects, or before the first
// acknowledgement, that is a delay and nothing else. It does not matter whose websocket it was:
// the command runs once, and all of its input and output comes through.
func TestRemoteEarlyCuts(t *testing.T) {
	t.Parallel()
	s := rig.NewSite(t)
	s.Serve(t, "ci-0")
	// The handshake ends at about 8 KB, and the command is started within three more.
	const most = 14_000
	// Four at once, however many subtests there are: agent exec gives up after ten seconds, which
	// many at once would exceed.
	turns := make(chan struct{}, 4)
	turn := func() (end func()) {
		turns <- struct{}{}
		return func() { <-turns }
	}
	harness, executor := int64(5000), int64(14000) // the steps
	if rig.Runs(rig.Merge) {
		harness, executor = 400, 800
	}
	for n := int64(100); n < most; n += harness {
		t.Run(fmt.Sprintf("harness after %d", n), func(t *testing.T) {
			t.Parallel()
			defer turn()()
			execThroughCut(t, s, "ci-0", n, nil)
		})
	}
	for n := int64(300); n < most; n += executor {
		t.Run(fmt.Sprintf("executor after %d", n), func(t *testing.T) {
			t.Parallel()
			defer turn()()
			executors := rig.NewProxy(t, s.Address)
			environment := fmt.Sprintf("ci-%d", n)
			s.At(executors.Address()).Serve(t, environment)
			execThroughCut(t, s, environment, n, executors.Cut)
		})
	}
}

// execThroughCut runs a command whose websocket, the harness's, is cut when it has carried n
// bytes; or something else is done then.
func execThroughCut(t *testing.T, s *rig.Site, environment string, n int64, instead func()) {
	t.Helper()
	harnesses := rig.NewProxy(t, s.Address)
	harnesses.CutAfter(n, instead)
	ran := filepath.Join(t.TempDir(), "ran")
	cmd := s.At(harnesses.Address()).ExecWith(t, environment, []string{"-e", "RAN=" + ran},
		"sh", "-c", `echo once >>"$RAN"; seq 2000; cat; exit 7`)
	cmd.Stdin = strings.NewReader("input\n")
	var want strings.Builder
	for i := range 2000 {
		fmt.Fprintln(&want, i+1)
	}
	want.WriteString("input\n")
	rig.Is(t, finish(t, cmd), result{want.String(), "", 7}, "the command")
	rig.Is(t, textOf(os.ReadFile(ran)), "once\n", "the command ran")
	rig.Is(t, harnesses.Struck(), true, "the websocket was cut after %d bytes", n)
}

// TestExecLogs: agent exec writes about its connection only when a log level asks for it.
func TestExecLogs(t *testing.T) {
	t.Parallel()
	s := rig.NewSite(t)
	s.Serve(t, "ci-1")
	for level, want := range map[string]string{"": "", "warn": "level=WARN msg=\"connecting is repeated\""} {
		t.Run("level "+level, func(t *testing.T) {
			t.Parallel()
			harnesses := rig.NewProxy(t, s.Address)
			harnesses.CutAfter(5000, nil) // in the handshake
			cmd := s.At(harnesses.Address()).ExecWith(t, "ci-1", []string{"--log-level", level}, "sh", "-c", "echo of the command >&2")
			cmd.Env = append(cmd.Env, "AGENT_LOG_LEVEL=debug")
			r := finish(t, cmd)
			log, found := strings.CutSuffix(r.stderr, "of the command\n")
			if r.code != 0 || !found || (log == "") != (want == "") || !strings.Contains(log, want) {
				t.Errorf("%+v, want %q before what is of the command", r, want)
			}
			lacks(t, log, s.Harness, "signature")
		})
	}
}
