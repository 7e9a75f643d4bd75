// Package conformance replays the scripted conversations of the contract (rpc.md 10) against a
// real agent process.
package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

var (
	flagURL  = flag.String("url", "", "replay against the agent that listens there, on this host, instead of one built from this tree")
	agentURL string // set by TestMain
	program  string // that agent's, if it was built from this tree
)

// notYet names the cases whose feature this version does not have, and why. The agent's
// capability flags say the same.
var notYet = map[string]string{
	"environment-info":       "expects the capability flags of the reference; TestEnvironmentInfo asserts ours",
	"capability-roots-empty": "capability discovery is not built yet",
	"capabilities-v2-empty":  "capability discovery is not built yet (capabilityDiscoveryV2 is false)",
}

func TestMain(m *testing.M) {
	flag.Parse()
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	if *flagURL != "" {
		agentURL = *flagURL
		return m.Run(), nil
	}
	err = rig.Outside(context.Background(), func(t rig.T) {
		// Not rig.Agent: with -race it is an agent of another kind.
		program = filepath.Join(t.TempDir(), "agent")
		build := exec.Command("go", "build", "-o", program)
		if raceEnabled() {
			build.Args = append(build.Args, "-race") // a race then ends the agent with status 66
		}
		build.Args = append(build.Args, "./cmd/agent")
		build.Dir = "../.."
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("building the agent: %w\n%s", err, out)
		}
		cmd := exec.Command(program, "--listen", "ws://127.0.0.1:0")
		cmd.Stderr = os.Stderr
		agent := rig.Start(t, cmd)
		agentURL = agent.Line(t)
		code = m.Run()
		agent.Terminate(t)
	})
	return code, err
}

// raceEnabled reports whether this test binary was built with -race.
func raceEnabled() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

func TestCases(t *testing.T) {
	lines, err := loadScripts("cases.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	if want := 158; len(lines) != want {
		t.Errorf("%d cases, want %d", len(lines), want)
	}
	names := map[string]bool{}
	for _, line := range lines {
		var c script
		if err := json.Unmarshal(line, &c); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		if names[c.Name] {
			t.Errorf("two cases named %s", c.Name)
		}
		names[c.Name] = true
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			dir, err := filepath.EvalSymlinks(t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			var c script
			line := bytes.ReplaceAll(line, []byte("@DIR@"), []byte(filepath.Join(dir, "w")))
			if err := json.Unmarshal(line, &c); err != nil {
				t.Fatal(err)
			}
			err = play(t.Context(), agentURL, c.Steps)
			if reason := notYet[c.Name]; reason != "" && *flagURL == "" {
				if err == nil {
					t.Fatalf("passes now; take it out of notYet, which says: %s", reason)
				}
				t.Skip(reason)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	for name := range notYet {
		if !names[name] {
			t.Errorf("notYet names %s, which is no case", name)
		}
	}
}

// TestEnvironmentInfo is the case environment-info with our own flags: the members are those of
// the reference, its capabilities are true only where the feature works, and our additions
// (rpc.md 8) are announced.
func TestEnvironmentInfo(t *testing.T) {
	t.Parallel()
	if *flagURL != "" {
		t.Skip("an agent named by -url need not be ours")
	}
	want := map[string]any{
		"shell": wildcard, "executorVersion": "0.169.0+execagent.<any>", "providerId": wildcard, "cwd": wildcard,
		"userHomeDir": wildcard, "platformOs": "linux", "prependPathDirs": wildcard, "temporaryDirectories": wildcard,
		"tempDir": wildcard,
		"capabilities": map[string]any{
			"fsWatchMissing": true, "environmentConfigRead": true, "httpHeaderEnvVars": true, "fileWriteStreaming": true,

			"processResize": true, "processCloseStdin": true, "processList": true, "processSignals": true, "fsRename": true, "fsWatch": true, "fsApplyPatch": true, "namedSessions": true, "processBuiltins": true, "socketForward": true,

			"networkProxyLaunch": true, "networkProxyReviewDomains": true, "credentialMasking": true,
			"credentialMaskingCustomProviders": true, "capabilityDiscoverySandbox": false, "capabilityDiscoveryV2": false,
			"sandboxedFileStreaming": true, "shellSnapshotV2": false, "windowsMxc": false,
			"linuxRootWritePreservesDevices": false, "linuxApprovedRootWritePreservesRestrictions": false,
		},
	}
	expect := func(id int, result any) json.RawMessage {
		data, err := json.Marshal(map[string]any{"id": id, "result": result})
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	// initialize reports the same object as environment/info.
	err := play(t.Context(), agentURL, []step{
		{Send: json.RawMessage(`{"id":1,"method":"initialize","params":{"clientName":"case"}}`)},
		{Expect: expect(1, map[string]any{"sessionId": wildcard, "environmentInfo": want})},
		{Send: json.RawMessage(`{"method":"initialized","params":{}}`)},
		{Send: json.RawMessage(`{"id":2,"method":"environment/info","params":{}}`)},
		{Expect: expect(2, want)},
	})
	if err != nil {
		t.Error(strings.ReplaceAll(err.Error(), `\u003c`, "<"))
	}
}
