// Package conformance replays the scripted conversations of the contract (rpc.md 10) against a
// real agent process.
package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
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
	"environment-info": "expects the capability flags of the reference; TestEnvironmentInfo asserts ours",
}

// ours names the cases in which we differ from the reference for good, and why.
var ours = map[string]string{
	"v2-cache-name-not-utf8-fails": "a name that is not UTF-8 is a warning of its location, and the others are still found",
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
	syscall.Umask(0o022) // the cases were recorded with it
	err = rig.Outside(context.Background(), func(t rig.T) {
		program = rig.Agent(t)
		if raceEnabled() {
			program = filepath.Join(t.TempDir(), "agent") // of another kind: a race ends it with status 66
			build := exec.Command("go", "build", "-race", "-o", program, "./cmd/agent")
			build.Dir = "../.."
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("building the agent: %w\n%s", err, out)
			}
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
	names := map[string]bool{}
	replay(t, "cases.jsonl", 158, names)
	replay(t, "capability-cases.jsonl", 130, names)
	for _, differs := range []map[string]string{notYet, ours} {
		for name := range differs {
			if !names[name] {
				t.Errorf("there is no case %s", name)
			}
		}
	}
}

// replay replays the cases of a file, and notes their names.
func replay(t *testing.T, file string, want int, names map[string]bool) {
	lines, err := loadScripts(file)
	rig.Must(t, err)
	if len(lines) != want {
		t.Errorf("%s has %d cases, want %d", file, len(lines), want)
	}
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
			rig.Must(t, err)
			var c script
			line := bytes.ReplaceAll(line, []byte("@DIR@"), []byte(filepath.Join(dir, "w")))
			rig.Must(t, json.Unmarshal(line, &c))
			url := agentURL
			if c.Home {
				url = homeAgent(t, filepath.Join(dir, "w"), c.Before)
			}
			err = play(t.Context(), url, c.Steps)
			for tries := 1; errors.Is(err, errSplit) && tries < 20; tries++ {
				err = play(t.Context(), url, c.Steps)
			}
			for _, differs := range []map[string]string{notYet, ours} {
				if reason := differs[c.Name]; reason != "" && *flagURL == "" {
					if err == nil {
						t.Fatalf("passes now; take it out of the table, which says: %s", reason)
					}
					t.Skip(reason)
				}
			}
			rig.Check(t, err)
		})
	}
}

// homeAgent starts an agent for one case, with folders below dir that the case has filled
// before: those of its user, and its working directory.
func homeAgent(t *testing.T, dir, before string) (url string) {
	t.Helper()
	if program == "" {
		t.Skip("needs an agent of its own")
	}
	for _, name := range []string{"home", "codex", "ws"} {
		rig.Must(t, os.MkdirAll(filepath.Join(dir, name), 0o755))
	}
	if before != "" {
		if out, err := exec.CommandContext(t.Context(), "sh", "-c", before).CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	cmd := exec.Command(program, "--listen", "ws://127.0.0.1:0")
	cmd.Dir = filepath.Join(dir, "ws")
	cmd.Env = slices.DeleteFunc(os.Environ(), func(kv string) bool {
		return strings.HasPrefix(kv, "CODEX_") || strings.HasPrefix(kv, "XDG_") || strings.HasPrefix(kv, "TMPDIR=")
	})
	cmd.Env = append(cmd.Env, "HOME="+filepath.Join(dir, "home"), "CODEX_HOME="+filepath.Join(dir, "codex"))
	return rig.Start(t, cmd).Line(t)
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
			"subcommandApprovals": true,

			"networkProxyLaunch": true, "networkProxyReviewDomains": true, "credentialMasking": true,
			"credentialMaskingCustomProviders": true, "capabilityDiscoverySandbox": true, "capabilityDiscoveryV2": true,
			"sandboxedFileStreaming": true, "shellSnapshotV2": true, "windowsMxc": false,
			"linuxRootWritePreservesDevices": false, "linuxApprovedRootWritePreservesRestrictions": false,
		},
	}
	expect := func(id int, result any) json.RawMessage {
		data, err := json.Marshal(map[string]any{"id": id, "result": result})
		rig.Must(t, err)
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
