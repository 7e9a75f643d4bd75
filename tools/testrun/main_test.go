package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"
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
			dir, tmp := t.TempDir(), shortFolder(t)
			write(t, filepath.Join(dir, "go.mod"), "module p\n\ngo 1.26\n")
			write(t, filepath.Join(dir, "p_test.go"), tt.source)
			cmd, out := itself(t, dir, tmp, append([]string{"go", "test", "-count=1"}, tt.args...)...)
			if _, wrong := errors.AsType[*exec.ExitError](cmd.Run()); wrong != (tt.status != 0) || cmd.ProcessState.ExitCode() != tt.status {
				t.Errorf("%v, want exit status %d", cmd.ProcessState, tt.status)
			}
			says(t, out.String(), tt.want, tt.not)
			if !took.Match(out.Bytes()) {
				t.Error("it does not say how long it took")
			}
			if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
				t.Errorf("it leaves %v, %v", left, err)
			}
			if t.Failed() {
				t.Logf("%s", out)
			}
		})
	}
}

// write writes a file.
func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// says fails a test in which an output lacks a text that it must have, or has one that it must not.
func says(t *testing.T, out string, must, not []string) {
	t.Helper()
	for _, text := range must {
		if !strings.Contains(out, text) {
			t.Errorf("it does not say %q", text)
		}
	}
	for _, text := range not {
		if strings.Contains(out, text) {
			t.Errorf("it says %q", text)
		}
	}
}

// shortFolder returns a folder whose path is short enough for testrun to use it.
func shortFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "r")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestTemporary: a folder that sockets have too little room in is not used, nor one that is none, nor
// one that other users cannot enter.
func TestTemporary(t *testing.T) {
	short, private := shortFolder(t), shortFolder(t)
	if err := os.Chmod(private, 0o700); err != nil {
		t.Fatal(err)
	}
	for dir, want := range map[string]string{
		short: short, t.TempDir(): "/tmp", "": "/tmp", short + "/no": "/tmp", ".": "/tmp", private: "/tmp",
	} {
		t.Setenv("TMPDIR", dir)
		if got := temporary(); got != want {
			t.Errorf("TMPDIR=%s: %s, want %s", dir, got, want)
		}
	}
}

// itself returns the command that runs testrun in dir, and what it will print.
func itself(t *testing.T, dir, tmp string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Dir, cmd.Env = dir, append(os.Environ(), "TESTRUN_ITSELF=1", "TMPDIR="+tmp)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	return cmd, &out
}

const slowTests = `package p

import (
	"testing"
	"time"
)

func TestSlow(t *testing.T) { time.Sleep(wait) }

func TestQuick(t *testing.T) {}
`

// TestDurations: what takes longer than the limits fails the run. On a busy machine a limit is
// multiplied by a factor, so the waits are far above the limits.
func TestDurations(t *testing.T) {
	t.Parallel()
	dir, tmp := t.TempDir(), shortFolder(t)
	for name, text := range map[string]string{"go.mod": "module p\n\ngo 1.26\n", "p_test.go": slowTests} {
		write(t, filepath.Join(dir, name), text)
	}
	file := filepath.Join(dir, "durations.json")
	for _, run := range []struct {
		name, wait string
		limits     []string
		status     int
		want, not  []string
	}{
		{"no limits", "0", nil, 0, []string{"slowest tests (2):\n", " s p TestSlow\n"}, []string{"too slow", "slower than"}},
		{"a test", "time.Second / 2", []string{"-test", "1ms"}, 1, []string{"too slow (1):\n  p TestSlow: ", "1ms are allowed"}, nil},
		{"a package", "time.Second / 2", []string{"-package", "1ms"}, 1, []string{"too slow, and run once more:\n", "too slow (1):\n  p: "}, nil},
		{"only once", "map[bool]time.Duration{true: time.Second / 2}[os.Mkdir(\"seen\", 0o700) == nil]", []string{"-test", "1ms"}, 0, []string{"too slow, and run once more:\nok  \tp\t"}, []string{"too slow ("}},
	} {
		write(t, filepath.Join(dir, "wait_test.go"), "package p\n\nimport (\n\"os\"\n\"time\"\n)\n\nvar _, wait = os.Args, time.Duration("+run.wait+")\n")
		cmd, out := itself(t, dir, tmp, append(append([]string{"-durations", file}, run.limits...), "go", "test", "-count=1")...)
		if err := cmd.Run(); cmd.ProcessState.ExitCode() != run.status {
			t.Errorf("%s: %v, want exit status %d", run.name, err, run.status)
		}
		says(t, out.String(), run.want, run.not)
		if t.Failed() {
			t.Fatalf("%s: %s", run.name, out)
		}
	}
	kept, err := readDurations(file)
	if err != nil || kept.Tests["p TestSlow"] == 0 || kept.Packages["p"] == 0 {
		t.Errorf("the file has %v, %v", kept, err)
	}
}

// TestSlower: a test that takes more than twice as long as at the run before, and a second more,
// is named. The file keeps what the run left out.
func TestSlower(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "durations.json")
	before := durations{Packages: map[string]float64{}, Tests: map[string]float64{"p TestGone": 9, "q TestKept": 7}}
	if err := before.write(file, durations{Tests: map[string]float64{"p TestA": 1, "p TestB": 1, "p TestC": 0.2}}); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	speed := &pace{samples: []sample{{start, 2}}} // half as fast as a quiet machine
	var out bytes.Buffer
	r := report{out: &out, speed: speed}
	for name, seconds := range map[string]float64{"TestA": 4.2, "TestB": 3.9, "TestC": 2, "": 10} {
		r.ended = append(r.ended, ended{test{"p", name}, start, time.Duration(seconds * float64(time.Second))})
	}
	if over, err := r.durations(limits{file: file, test: 2 * time.Second}); err != nil || len(over) != 1 || !strings.HasPrefix(over[0].line, "p TestA: 4.2 s, ") {
		t.Errorf("too slow: %q, %v", over, err)
	}
	if want := "slower than at the run before, in seconds of a quiet machine (1):\n  p TestA: 2.1 s, 1.0 s at the run before\n"; !strings.HasSuffix(out.String(), want) {
		t.Errorf("it says %q", &out)
	}
	want := durations{Packages: map[string]float64{"p": 5}, Tests: map[string]float64{"p TestA": 2.1, "p TestB": 1.95, "p TestC": 1, "q TestKept": 7}}
	if kept, err := readDurations(file); err != nil || !reflect.DeepEqual(kept, want) {
		t.Errorf("the file has %v, %v; want %v", kept, err, want)
	}
}

// TestBetween: a duration is divided by the mean of the samples from just before it to just after it.
func TestBetween(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	p := pace{samples: []sample{{at(0), 1}, {at(10), 2}, {at(20), 4}, {at(30), 8}}}
	for _, tt := range []struct {
		from, to int
		want     float64
	}{{0, 30, 15. / 4}, {12, 18, 3}, {0, 0, 1.5}, {15, 25, 14. / 3}, {31, 40, 8}} {
		if got := p.between(at(tt.from), at(tt.to)); got != tt.want {
			t.Errorf("from %d to %d: %v, want %v", tt.from, tt.to, got, tt.want)
		}
	}
}
