package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/nats-io/nats-server/v2/server"

	"github.com/execagent/execagent/test/rig"
)

// TestUpgrade: a registry of an older version and one of this tree are one registry, on one NATS:
// a command goes on while its executor is at the older and its harness at the newer, and while the
// older ends and comes back.
func TestUpgrade(t *testing.T) {
	commit := os.Getenv("E2E_OLD") // make upgrade
	if commit == "" {
		rig.Tier(t, rig.Nightly)
		const last = "git -C ../.. describe --tags --abbrev=0 2>/dev/null || git -C ../.. rev-parse HEAD~40"
		out, err := rig.Command(t, "sh", "-c", last).Output()
		if commit = strings.TrimSpace(string(out)); err != nil {
			t.Skipf("there is no older commit: %v", err)
		}
	}
	t.Parallel()
	nats := startNATS(t, server.Options{JetStream: true})
	older := &rig.Site{Pattern: "ci-*", Log: &rig.Transcript{}, Program: oldRegistry(t, commit), Environ: []string{"REGISTRY_NATS_URL=" + nats.ClientURL()}}
	older.Open(t)
	newer := older.At(rig.FreeAddress(t))
	newer.Program = ""
	newer.StartRegistry(t)
	executors, harnesses := rig.NewProxy(t, older.Address, newer.Address), rig.NewProxy(t, older.Address, newer.Address)
	executor := older.At(executors.Address()).Serve(t, "ci-1")

	const lines = 400
	run := func() (next, end func()) {
		t.Helper()
		p := connect(t, newer.At(harnesses.Address()).Exec(t, "ci-1", "sh", "-c", fmt.Sprintf("i=0; while [ $i -lt %d ]; do echo $i; i=$((i+1)); sleep 0.02; done; exit 7", lines)))
		n := 0
		next = func() {
			t.Helper()
			p.says(t, fmt.Sprint(n))
			n++
		}
		return next, func() {
			t.Helper()
			for n < lines {
				next()
			}
			rig.Is(t, p.Exit(t), 7, "exit code")
		}
	}
	next, end := run()
	for step, do := range []func(){
		func() { executors.Move(t, 0); harnesses.Move(t, 1) }, // old and new side by side
		func() { executors.Move(t, 1); harnesses.Move(t, 0) },
		func() { older.Registry.Terminate(t) }, // the upgrade
		func() { older.StartRegistry(t) },      // and the way back
		func() { executors.Move(t, 0); harnesses.Move(t, 1) },
	} {
		for range 20 {
			next()
		}
		t.Logf("step %d", step)
		do()
	}
	end()

	// A key that either has made is valid at both.
	for maker, user := range map[*rig.Site]*rig.Site{older: newer, newer: older} {
		key, _ := maker.CreateKey(t, "harness")
		with := *user.At(harnesses.Address())
		with.Harness = key
		rig.Is(t, with.Run(t, "ci-1", "echo", "hello"), "hello\n", "it prints")
	}
	executor.Terminate(t)
}

// oldRegistry builds the registry of a commit.
func oldRegistry(t *testing.T, commit string) string {
	t.Helper()
	dir := t.TempDir()
	script := `git -C ../.. archive "$1" | tar -x -C "$2" && cd "$2" && CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o old-registry ./cmd/registry`
	built := finish(t, rig.Command(t, "sh", "-c", script, "sh", commit, dir))
	rig.Is(t, built.code, 0, "%+v: building the registry of %s ends with", built, commit)
	return filepath.Join(dir, "old-registry")
}
