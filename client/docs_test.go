package client_test

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// goBlock finds a Go program in a page. Its info string says "go run" or "go build".
var goBlock = regexp.MustCompile("(?ms)^```go (run|build)\n(.*?)^```$")

// TestPrograms builds the programs of README.md and the pages of docs, and runs those that
// say so against an agent whose connections are cut meanwhile.
func TestPrograms(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("%q, %v", pages, err)
	}
	for _, page := range append(pages, "../README.md") {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		blocks := goBlock.FindAllStringSubmatch(string(text), -1)
		if len(blocks) != strings.Count(string(text), "\n```go") && page != "../docs/api.md" { // test/embed builds that one
			t.Errorf("%s has %d programs that say go run or go build", page, len(blocks))
		}
		for i, block := range blocks {
			t.Run(filepath.Base(page)+"/"+strconv.Itoa(i+1), func(t *testing.T) {
				t.Parallel()
				dir := t.TempDir()
				source, program := filepath.Join(dir, "main.go"), filepath.Join(dir, "program")
				if err := os.WriteFile(source, []byte(block[2]), 0o600); err != nil {
					t.Fatal(err)
				}
				build := exec.CommandContext(t.Context(), "go", "build", "-o", program, source)
				build.Dir = ".."
				if out, err := build.CombinedOutput(); err != nil {
					t.Fatalf("%v\n%s", err, out)
				}
				if block[1] == "run" {
					runBesideCuts(t, program)
				}
			})
		}
	}
}

// runBesideCuts runs a program that prints 300 lines of an agent's, and cuts each of its
// connections after some bytes.
func runBesideCuts(t *testing.T, program string) {
	t.Helper()
	proxy := rig.NewProxy(t, strings.TrimPrefix(listen(t, ""), "ws://"))
	defer proxy.CutEach(4000)()
	cmd := exec.CommandContext(t.Context(), program)
	cmd.Env = append(os.Environ(), "AGENT_URL=ws://"+proxy.Address())
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var want strings.Builder
	for i := range 300 {
		fmt.Fprintf(&want, "line %d\n", i+1)
	}
	rest, ok := strings.CutPrefix(stdout.String(), want.String())
	if err != nil || !ok || !strings.HasPrefix(rest, "exit code 7 after ") || strings.HasSuffix(rest, " 1 connections\n") {
		t.Errorf("got %v, %s, %s", err, &stderr, stdout.String())
	}
	t.Log(rest)
}
