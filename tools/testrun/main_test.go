package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestMain makes the test binary run as testrun if TESTRUN_ITSELF is set.
func TestMain(m *testing.M) {
	if os.Getenv("TESTRUN_ITSELF") != "" {
		main()
	}
	os.Exit(m.Run())
}

const passes = `package p

import "testing"

func TestFine(t *testing.T) { t.Log("nobody hears this") }

func TestLeftOut(t *testing.T) {
	t.Run("a part", func(t *testing.T) { t.Skip("no such thing here: really") })
}
`

const fails = `package p

import (
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"
)

func TestFine(t *testing.T) { t.Log("nobody hears this") }

func TestWrong(t *testing.T) {
	if _, err := os.MkdirTemp("", "left"); err != nil {
		t.Fatal(err)
	}
	t.Error("this is wrong")
}

func TestHangs(t *testing.T) {
	for _, command := range []string{"exec sleep 1234567", "setsid sleep 1234568 & wait"} {
		if err := exec.Command("sh", "-c", command).Start(); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Println("it hangs now")
	time.Sleep(time.Hour)
}
`

// TestRun runs testrun on small packages that it writes: tests that pass, fail, hang
// and leave processes behind, and some that do not compile.
func TestRun(t *testing.T) {
	t.Parallel()
	took := regexp.MustCompile(`\ntook \d+m?\d*s\n$`)
	for _, tt := range []struct {
		name, source string
		args         []string
		status       int
		want, not    []string
	}{
		{"passes", passes, nil, 0,
			[]string{"ok  \tp\t", "left out (1):\n  p TestLeftOut/a_part: no such thing here: really\n"},
			[]string{"FAIL", "failed", "nobody hears", "=== RUN", "left running"}},
		{"fails", fails, []string{"-run", "TestWrong|TestFine"}, 1,
			[]string{"--- FAIL: TestWrong", "this is wrong", "FAIL\tp\t", "\nfailed (1):\n  p TestWrong\n"},
			[]string{"ok  \t", "nobody hears", "=== RUN", "left out", "left running"}},
		{"hangs", fails, []string{"-run", "TestHangs|TestFine", "-timeout", "2s"}, 1,
			[]string{"it hangs now", "panic: test timed out after 2s", "FAIL\tp\t", "left running by the tests, and ended (3):\n", "sleep 1234567\n", "sleep 1234568\n",
				"\nfailed (1):\n  p TestHangs: has not ended\n"},
			[]string{"ok  \t", "nobody hears"}},
		{"does not compile", "package p\n\nvar x int = true\n", nil, 1,
			[]string{"cannot use true", "FAIL\tp [build failed]"}, []string{"ok  \t"}},
		{"no such flag", passes, []string{"-nonsense"}, 1, []string{"-nonsense"}, []string{"ok  \t"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir, tmp := t.TempDir(), t.TempDir()
			if err := errors.Join(
				os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module p\n\ngo 1.26\n"), 0o600),
				os.WriteFile(filepath.Join(dir, "p_test.go"), []byte(tt.source), 0o600),
			); err != nil {
				t.Fatal(err)
			}
			self, err := os.Executable()
			if err != nil {
				t.Fatal(err)
			}
			cmd := exec.CommandContext(t.Context(), self, append([]string{"go", "test", "-count=1"}, tt.args...)...)
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "TESTRUN_ITSELF=1", "TMPDIR="+tmp)
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			if _, wrong := errors.AsType[*exec.ExitError](cmd.Run()); wrong != (tt.status != 0) || cmd.ProcessState.ExitCode() != tt.status {
				t.Errorf("%v, want exit status %d", cmd.ProcessState, tt.status)
			}
			for _, text := range tt.want {
				if !strings.Contains(out.String(), text) {
					t.Errorf("it does not say %q", text)
				}
			}
			for _, text := range tt.not {
				if strings.Contains(out.String(), text) {
					t.Errorf("it says %q", text)
				}
			}
			if !took.Match(out.Bytes()) {
				t.Error("it does not say how long it took")
			}
			if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
				t.Errorf("it leaves %v, %v", left, err)
			}
			if t.Failed() {
				t.Logf("%s", &out)
			}
		})
	}
}
