package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestCommitted: the committed pictures are those that this program draws. `make pictures` draws
// them again.
func TestCommitted(t *testing.T) {
	t.Parallel()
	const limit = 40 << 10 // bytes: readers load the pictures with the page
	for _, p := range pictures {
		committed, err := os.ReadFile(filepath.Join(testRoot, "docs", "pictures", p.name))
		must(t, err)
		drawn, err := p.draw(testRoot)
		if err != nil {
			t.Errorf("%s: %v", p.name, err)
		} else if drawn != string(committed) {
			t.Errorf("%s is not what tools/pictures draws: run make pictures", p.name)
		}
		if len(committed) > limit {
			t.Errorf("%s has %d bytes, want %d at most", p.name, len(committed), limit)
		}
	}
}

// testRoot is the root of the repository, seen from this package.
const testRoot = "../.."

// must ends a test of which a step failed.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestModes: each hidden mode that processes.svg names is one of package helper.
func TestModes(t *testing.T) {
	t.Parallel()
	picture, err := drawProcesses(testRoot)
	must(t, err)
	doc, err := os.ReadFile(filepath.Join(testRoot, "helper", "doc.go"))
	must(t, err)
	modes := regexp.MustCompile(`class="h"[^>]*>([a-z]+-[a-z]+)`).FindAllStringSubmatch(picture, -1)
	if len(modes) < 5 {
		t.Errorf("processes.svg names %d modes, want at least 5", len(modes))
	}
	for _, mode := range modes {
		if !strings.Contains(string(doc), "//\t"+mode[1]+" ") {
			t.Errorf("processes.svg names the mode %s, which package helper does not have", mode[1])
		}
	}
}

// TestScript: the recording has the commands of the script, and no path of the machine that it was
// made on.
func TestScript(t *testing.T) {
	t.Parallel()
	var commands []string
	for _, line := range committedLines(t) {
		if command, ok := strings.CutPrefix(line, prompt); ok {
			commands = append(commands, command)
		}
		if regexp.MustCompile(`/(home|root|tmp|work|var)\b`).MatchString(line) {
			t.Errorf("%q has a path of some machine", line)
		}
	}
	if !slices.Equal(commands, script) {
		t.Errorf("%s has the commands %q\nthe script has %q", recording, commands, script)
	}
}

// TestRecording records the script again and compares what the programs say. A host that does not
// enforce what the host of the recording did says something else.
func TestRecording(t *testing.T) {
	if level := os.Getenv("TESTS"); level != "merge" && level != "nightly" {
		t.Skip("runs with TESTS=merge")
	}
	agent := filepath.Join(t.TempDir(), "agent")
	build := exec.Command("go", "build", "-o", agent, "./cmd/agent")
	build.Dir, build.Env = testRoot, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cast, err := record(agent, 0)
	must(t, err)
	got, want := linesOf(t, cast), committedLines(t)
	const doctor = 13 // lines: the first command, the names of the columns, and the layers
	if len(got) < doctor || !slices.Equal(got[1:doctor], want[1:doctor]) {
		t.Skipf("this host enforces other layers:\n%s", strings.Join(got, "\n"))
	}
	if !slices.Equal(got, want) {
		t.Errorf("the programs say now\n%s\n\nthe recording has\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func committedLines(t *testing.T) []string {
	t.Helper()
	cast, err := os.ReadFile(filepath.Join(testRoot, "docs", "pictures", recording))
	must(t, err)
	return linesOf(t, cast)
}

func linesOf(t *testing.T, cast []byte) (texts []string) {
	t.Helper()
	_, events, err := read(cast)
	must(t, err)
	lines, err := screen(events)
	must(t, err)
	for _, l := range lines {
		texts = append(texts, l.text)
	}
	return texts
}

func TestWrap(t *testing.T) {
	t.Parallel()
	got := wrap([]string{"one", "two", "three", "as long as it is", "end"}, 8)
	if want := []string{"one two", "three", "as long as it is", "end"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
