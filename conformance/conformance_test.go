package main

import (
	"bytes"
	"context"
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

	"github.com/execagent/execagent/conformance/internal/suite"
	"github.com/execagent/execagent/test/rig"
)

var (
	agentURL string // set by TestMain
	program  string // of that agent
)

func TestMain(m *testing.M) {
	flag.Parse()
	syscall.Umask(0o022) // the cases expect it
	var code int
	err := rig.Outside(context.Background(), func(t rig.T) {
		program = rig.Agent(t)
		if raceEnabled() {
			program = filepath.Join(t.TempDir(), "agent") // of another kind: a race ends it with status 66
			build := exec.Command("go", "build", "-race", "-o", program, "./cmd/agent")
			build.Dir = ".."
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
	if err != nil {
		fmt.Fprintln(os.Stderr, "conformance:", err)
		code = 1
	}
	os.Exit(code)
}

// raceEnabled reports whether this test binary was built with -race.
func raceEnabled() bool {
	info, ok := debug.ReadBuildInfo()
	return ok && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

// TestCases has each case of the suite with the agent, and those of testdata, which only ours has to pass.
func TestCases(t *testing.T) {
	checkAll(t, suite.Suite{URL: agentURL, Command: program + " --listen stdio"},
		append(rig.Value(suite.LoadCases(sub("cases/executor"))), rig.Value(suite.LoadCases(os.DirFS("testdata")))...))
}

// TestSupervised has the cases with a sandbox and a proxy, with an agent that can make no namespaces, and so supervises.
func TestSupervised(t *testing.T) {
	launcher := rig.Launcher(t, t.TempDir())
	agent := rig.Start(t, exec.CommandContext(t.Context(), launcher, "--", program, "--listen", "ws://127.0.0.1:0"))
	s := suite.Suite{URL: agent.Line(t), Expected: rig.Value(suite.ReadExpected(rig.Value(data.ReadFile("expected/supervised.json"))))}
	cases := slices.DeleteFunc(rig.Value(suite.LoadCases(sub("cases/executor"))), func(c *suite.Case) bool {
		return c.Area != "sandbox" || !rig.Runs(rig.Merge) && !strings.Contains(c.Name, "-all-") && !strings.Contains(c.Name, "-mask-")
	})
	t.Run("cases", func(t *testing.T) { checkAll(t, s, cases) })
	agent.Terminate(t)
}

// TestClients has each case of the suite with the Go client, and on merges with the plain client of docs/protocol.
func TestClients(t *testing.T) {
	cases := rig.Value(suite.LoadClientCases(sub("cases/client")))
	check := func(name, command string) {
		s := thorough(suite.Suite{Client: command, Slow: rig.Runs(rig.Merge)})
		for _, c := range cases {
			t.Run(name+"/"+c.Name, func(t *testing.T) {
				t.Parallel()
				judge(t)(s.CheckClient(t.Context(), []*suite.ClientCase{c}))
			})
		}
	}
	check("go", program+" exec --url {url} --")
	if rig.Runs(rig.Merge) && rig.Lacking("python3") == nil {
		expected := rig.Value(suite.ReadExpected(rig.Value(data.ReadFile("expected/client-py.json"))))
		// A case that differs takes all its time.
		cases = slices.DeleteFunc(cases, func(c *suite.ClientCase) bool { return expected.Of(c.Name) != "" })
		check("python", "python3 "+rig.Value(filepath.Abs("../docs/protocol/client.py"))+" {url}")
	}
}

// thorough is a suite that a busy machine does not fail.
func thorough(s suite.Suite) suite.Suite {
	s.Exact, s.Scale = true, rig.Patience.Seconds()/20
	return s
}

// checkAll checks an agent of ours, a test for each case.
func checkAll(t *testing.T, s suite.Suite, cases []*suite.Case) {
	s = thorough(s)
	s.Slow = true
	for _, c := range cases {
		t.Run(c.Name, func(t *testing.T) {
			t.Parallel()
			judge(t)(s.CheckExecutor(t.Context(), []*suite.Case{c}))
		})
	}
}

// judge returns what fails a test for a report with failures, and skips it for one with nothing else.
func judge(t *testing.T) func(*suite.Report, error) {
	return func(report *suite.Report, err error) {
		t.Helper()
		rig.Must(t, err)
		for _, r := range report.Results {
			switch r.Outcome {
			case suite.Failed:
				t.Errorf("%s (%s): %s", r.Name, r.Section, r.Why)
			case suite.Skipped:
				t.Skip(r.Why)
			}
		}
	}
}

// TestWrong: executors and clients that are wrong in one place fail in the area of that place, and with what was wrong.
func TestWrong(t *testing.T) {
	t.Parallel()
	client := rig.Value(filepath.Abs("../docs/protocol/client.py"))
	for _, kind := range []string{"command", "client"} {
		for _, row := range rig.Rows(t, "testdata/wrong.txt", kind, 4) {
			command := strings.NewReplacer("AGENT", program+" --listen stdio", "CLIENT", client).Replace(row[0])
			t.Run(command, func(t *testing.T) {
				t.Parallel()
				if kind == "client" && rig.Lacking("python3") != nil {
					t.Skip("needs python3")
				}
				area, pattern, why := row[1], row[2], row[3]
				scale := "15"
				if why == "within" {
					scale = "0.05" // it has to run out of time
				}
				var out bytes.Buffer
				status, err := run(t.Context(), []string{"--" + kind, command, "--case", pattern, "--time-scale", scale}, &out)
				rig.Check(t, err)
				rig.Is(t, status, 1, "status")
				_, failures, _ := strings.Cut(out.String(), "## Failures")
				rig.Is(t, strings.Contains(failures, "("+area+", ") && strings.Contains(failures, why), true, "the failure in the area %s says %q: %s", area, why, failures)
			})
		}
	}
}

// TestRecordings: of recorded messages each one that the contract does not allow is told, of both sides.
func TestRecordings(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	status, err := run(t.Context(), []string{"--recordings", "testdata/recordings/right.jsonl", "testdata/recordings/wrong.jsonl"}, &out)
	rig.Check(t, err)
	rig.Is(t, status, 1, "status")
	rig.Is(t, out.String(), string(rig.Value(os.ReadFile("testdata/recordings/report.md"))), "the report")
}
