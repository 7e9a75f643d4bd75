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
	"maps"
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
	cases := &suite{differs: maps.Clone(ours), play: func(t *testing.T, line []byte, dir string) (steps []step, url string, _ *destinations) {
		var c script
		rig.Must(t, json.Unmarshal(bytes.ReplaceAll(line, []byte("@DIR@"), []byte(filepath.Join(dir, "w"))), &c))
		if c.Home {
			return c.Steps, homeAgent(t, filepath.Join(dir, "w"), c.Before), nil
		}
		return c.Steps, agentURL, nil
	}}
	maps.Copy(cases.differs, notYet)
	cases.replay(t, map[string]int{"cases.jsonl": 158, "capability-cases.jsonl": 130}, "")
}

// A suite replays cases. Some differ from what is recorded, for the reasons given.
type suite struct {
	differs map[string]string
	// play returns the steps of a case, the agent to replay them against, and the servers if it has any.
	play func(t *testing.T, line []byte, dir string) ([]step, string, *destinations)
}

// replay replays the cases of files, which have so many, whose names begin in one of these ways.
func (s *suite) replay(t *testing.T, files map[string]int, prefixes ...string) {
	names := map[string]bool{}
	for file, want := range files {
		lines, err := loadScripts(file)
		rig.Must(t, err)
		rig.Is(t, len(lines), want, "cases in %s", file)
		for _, line := range lines {
			var c struct{ Name string }
			if err := json.Unmarshal(line, &c); err != nil {
				t.Fatalf("%v in %s", err, line)
			}
			rig.Is(t, names[c.Name], false, "there is another case named %s", c.Name)
			names[c.Name] = true
			if !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(c.Name, p) }) {
				continue
			}
			t.Run(c.Name, func(t *testing.T) {
				t.Parallel()
				dir, err := filepath.EvalSymlinks(t.TempDir())
				rig.Must(t, err)
				steps, url, d := s.play(t, line, dir)
				err = play(t.Context(), url, steps, d)
				for tries := 1; d == nil && errors.Is(err, errSplit) && tries < 20; tries++ {
					err = play(t.Context(), url, steps, d)
				}
				if reason := s.differs[c.Name]; reason != "" && *flagURL == "" {
					if err == nil {
						t.Fatalf("passes now; take it out of the table, which says: %s", reason)
					}
					t.Skip(reason)
				}
				rig.Check(t, err)
			})
		}
	}
	for name := range s.differs {
		rig.Is(t, names[name], true, "there is a case %s, which the table names", name)
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
		"shell": wildcard, "executorVersion": "0.171.0+execagent.<any>", "providerId": wildcard, "cwd": wildcard,
		"userHomeDir": wildcard, "platformOs": "linux", "prependPathDirs": wildcard, "temporaryDirectories": wildcard,
		"tempDir": wildcard,
		"capabilities": map[string]any{
			"fsWatchMissing": true, "environmentConfigRead": true, "httpHeaderEnvVars": true, "fileWriteStreaming": true,

			"processResize": true, "processCloseStdin": true, "processList": true, "processSignals": true, "fsRename": true, "fsWatch": true, "fsApplyPatch": true, "namedSessions": true, "processBuiltins": true, "fsSearch": true, "ports": true, "socketForward": true,
			"subcommandApprovals": true, "networkRequestRules": true, "sandboxUnixSockets": true, "sandboxDevices": true, "refusals": true, "execApprovalEnforce": true,
			"errorData": true, "fsReadDirectoryLstat": true, "fsMetadata": true, "fsWriteOptions": true, "fsCanonicalizeMissing": true,
			"processTimeout": true, "processMaxOutput": true, "processLimits": true, "processRunAs": os.Geteuid() == 0,

			"networkProxyLaunch": true, "networkProxyReviewDomains": true, "networkProxyTransparentTcp": true, "credentialMasking": true,
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
	}, nil)
	if err != nil {
		t.Error(strings.ReplaceAll(err.Error(), `\u003c`, "<"))
	}
}
