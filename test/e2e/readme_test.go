package e2e

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// blockTime bounds the time of one block of commands.
const blockTime = 2 * patience

// A block is a fenced block of a Markdown page.
type block struct {
	info, text string
	line       int // of the opening fence
}

// TestReadme runs the commands of README.md. The info string of a block says how:
//
//	sh tested         run here, in an empty folder, with the agent on the PATH; port 7000
//	                  becomes a free one
//	sh tested root    the same in the repository's root
//	text output       must be what the tested block before it prints to stdout
//	sh by=ci          make targets, run by .ci/run, and what puts bin on the PATH; here only
//	                  that the targets exist
//	sh by=interop     needs the Codex CLI; the rig in test/interop/ runs the same
//	sh by=container   run by TestReadmeContainer in containers of the image that it builds of
//	                  the block
//	dockerfile tested
//
// A block of commands that says nothing of this kind is an error.
func TestReadme(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	tested := 0
	blocks := fenced(string(page))
	for i, b := range blocks {
		name := fmt.Sprintf("line_%d", b.line)
		switch b.info {
		case "sh tested", "sh tested root":
			tested++
			var want *string
			if i+1 < len(blocks) && blocks[i+1].info == "text output" {
				want = &blocks[i+1].text
			}
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				runBlock(t, b, want)
			})
		case "sh by=ci":
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				checkTargets(t, b.text)
			})
		case "sh", "bash", "shell", "console":
			t.Errorf("README.md:%d: block %q must say who tests it: sh tested, sh by=ci, sh by=interop or sh by=container", b.line, b.info)
		}
	}
	if tested == 0 {
		t.Error("README.md has no block marked as sh tested")
	}
}

func fenced(page string) []block {
	const fence = "```"
	var blocks []block
	open := false
	line := 0
	for text := range strings.Lines(page) {
		line++
		info, isFence := strings.CutPrefix(strings.TrimRight(text, "\n"), fence)
		switch {
		case isFence && !open:
			blocks = append(blocks, block{info: info, line: line})
			open = true
		case isFence:
			open = false
		case open:
			blocks[len(blocks)-1].text += text
		}
	}
	return blocks
}

func runBlock(t *testing.T, b block, want *string) {
	dir, home := t.TempDir(), t.TempDir()
	if strings.HasSuffix(b.info, " root") {
		dir, home = "../..", os.Getenv("HOME") // where Go keeps its caches
	}
	text := strings.ReplaceAll(b.text, "127.0.0.1:7000", rig.FreeAddress(t))
	ctx, cancel := context.WithTimeout(t.Context(), blockTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-eu", "-c", text)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "HOME="+home, "PATH="+filepath.Dir(rig.Agent(t))+":"+os.Getenv("PATH"))
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	// A block that fails may leave something running in the background, with its pipes open.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = patience
	err := cmd.Run()
	if left, readErr := os.ReadDir(dir); !strings.HasSuffix(b.info, " root") && (readErr != nil || len(left) > 0) {
		t.Errorf("the block leaves %v behind, %v", left, readErr)
	}
	syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	if err != nil {
		t.Errorf("%v\n%s\nstdout:\n%s\nstderr:\n%s", err, text, &stdout, &stderr)
	}
	if want != nil && stdout.String() != *want {
		t.Errorf("the block prints\n%s\nwant\n%s\nstderr:\n%s", &stdout, *want, &stderr)
	}
}

func checkTargets(t *testing.T, text string) {
	makefile, err := os.ReadFile("../../Makefile")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(text) {
		command, _, _ := strings.Cut(line, "#")
		if strings.TrimSpace(command) == "export PATH=$PWD/bin:$PATH" {
			continue
		}
		words := strings.Fields(command)
		if len(words) < 2 || words[0] != "make" {
			t.Errorf("%q is not a make command", line)
			continue
		}
		if !regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(words[1]) + `:`).Match(makefile) {
			t.Errorf("the Makefile has no target %s", words[1])
		}
	}
}
