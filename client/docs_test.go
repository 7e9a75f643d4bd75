package client_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// goBlock finds a Go program in a page. Its info string says "go run" or "go build".
var goBlock = regexp.MustCompile("(?ms)^```go (run|build)\n(.*?)^```$")

// TestPrograms builds the programs of README.md and the pages of docs, and runs those that
// say so against an agent whose connections are cut meanwhile. All are linked at once, as packages
// of one program that is told which to be, because each link takes longer than all else here.
func TestPrograms(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	root := rig.Value(filepath.Abs(".."))
	replace := map[string]string{}
	write := func(name, text string) {
		copied := filepath.Join(dir, strings.ReplaceAll(name, "/", "_"))
		replace[filepath.Join(root, "client/programs", name)] = copied
		rig.Must(t, os.WriteFile(copied, []byte(text), 0o600))
	}
	imports, cases, run := "import \"os\"\n", "", []string(nil)
	pages, err := filepath.Glob("../docs/*.md")
	if err != nil || len(pages) == 0 {
		t.Fatalf("%q, %v", pages, err)
	}
	for _, page := range append(pages, "../README.md") {
		text := rig.Value(os.ReadFile(page))
		blocks := goBlock.FindAllStringSubmatch(string(text), -1)
		if len(blocks) != strings.Count(string(text), "\n```go") && page != "../docs/api.md" { // test/embed builds that one
			t.Errorf("%s has %d programs that say go run or go build", page, len(blocks))
		}
		for _, block := range blocks {
			name := fmt.Sprint("p", len(replace))
			write(name+"/main.go", strings.NewReplacer("package main\n", "package "+name+"\n", "func main() {", "func Main() {").Replace(block[2]))
			imports += fmt.Sprintf("import %q\n", "github.com/execagent/execagent/client/programs/"+name)
			cases += fmt.Sprintf("case %q:\n%s.Main()\n", name, name)
			if block[1] == "run" {
				run = append(run, name)
			}
		}
	}
	write("main.go", "package main\n"+imports+"func main() {\nswitch os.Args[1] {\n"+cases+"}\n}\n")
	rig.Must(t, os.WriteFile(filepath.Join(dir, "overlay.json"), rig.Value(json.Marshal(map[string]any{"Replace": replace})), 0o600))
	program := filepath.Join(dir, "program")
	build := exec.CommandContext(t.Context(), "go", "build", "-ldflags=-s -w", "-overlay", filepath.Join(dir, "overlay.json"), "-o", program, "./client/programs")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, name := range run {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			runBesideCuts(t, program, name)
		})
	}
}

// runBesideCuts runs a program that prints 100 lines of an agent's, and cuts each of its
// connections after some bytes.
func runBesideCuts(t *testing.T, program, name string) {
	t.Helper()
	proxy := rig.NewProxy(t, strings.TrimPrefix(listen(t, ""), "ws://"))
	defer proxy.CutEach(4000)()
	cmd := exec.CommandContext(t.Context(), program, name)
	cmd.Env = append(os.Environ(), "AGENT_URL=ws://"+proxy.Address())
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	var want strings.Builder
	for i := range 100 {
		fmt.Fprintf(&want, "line %d\n", i+1)
	}
	rest, ok := strings.CutPrefix(stdout.String(), want.String())
	if err != nil || !ok || !strings.HasPrefix(rest, "exit code 7 after ") || strings.HasSuffix(rest, " 1 connections\n") {
		t.Errorf("got %v, %s, %s", err, &stderr, stdout.String())
	}
	t.Log(rest)
}
