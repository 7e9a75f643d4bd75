package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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

// TestDocs runs the commands of README.md and of the pages of docs and deploy. The info string of a
// block of commands says how:
//
//	sh tested         run here, in an empty folder, with the agent on the PATH; port 7000
//	                  becomes a free one
//	sh tested root    the same in the repository's root
//	text output       must be what the tested block before it prints to stdout
//	sh by=ci          make targets, run by .ci/run, and what puts bin on the PATH; here only
//	                  that the targets exist
//	sh by=container   run by TestDocsContainer or TestOperatorsImage in containers of the image
//	                  that they build of the block dockerfile tested
//	sh by=operation   run by TestOperation..., as far as it needs neither root nor systemd
//	sh by=recipes     run by TestRecipes
//	sh by=interop     needs the Codex CLI; the rig in test/interop/ runs the same
//	sh by=release     run by test/release/*.sh, on the artefacts of a release
//	sh untested: WHY  run by nobody
//
// A block of commands that says nothing of this kind is an error.
func TestDocs(t *testing.T) {
	t.Parallel()
	pages, err := filepath.Glob("../../docs/*.md")
	if err != nil || len(pages) < 10 {
		t.Fatalf("%q, %v", pages, err)
	}
	mark := regexp.MustCompile(`^(sh|console) (tested( root)?|by=(ci|container|operation|recipes|interop|release)( needs=.*)?|untested: .+)$`)
	for _, page := range append(pages, "../../README.md", "../../deploy/README.md") {
		blocks := fenced(t, page)
		for i, b := range blocks {
			name := fmt.Sprintf("%s:%d", strings.TrimPrefix(page, "../../"), b.line)
			switch language, how, _ := strings.Cut(b.info, " "); {
			case !slices.Contains([]string{"sh", "bash", "shell", "console"}, language):
			case !mark.MatchString(b.info):
				t.Errorf("%s: block %q must say who tests it, or untested: and why", name, b.info)
			case strings.HasPrefix(how, "tested"):
				var want *string
				if i+1 < len(blocks) && blocks[i+1].info == "text output" {
					want = &blocks[i+1].text
				}
				t.Run(name, func(t *testing.T) {
					if how == "tested root" {
						rig.Tier(t, rig.Merge) // it builds a program
					}
					t.Parallel()
					runBlock(t, b, want)
				})
			case how == "by=ci":
				checkTargets(t, b.text)
			}
		}
	}
}

// fenced returns the blocks of a page.
func fenced(t *testing.T, page string) []block {
	t.Helper()
	text := rig.Value(os.ReadFile(page))
	var blocks []block
	open := false
	line := 0
	for text := range strings.Lines(string(text)) {
		line++
		info, isFence := strings.CutPrefix(strings.TrimSpace(text), "```")
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
	environ := append(slices.DeleteFunc(os.Environ(), func(entry string) bool { return strings.HasPrefix(entry, "AGENT_SANDBOX_") }), "HOME="+home, "PATH="+filepath.Dir(rig.Agent(t))+":"+os.Getenv("PATH"))
	r := shell(t, dir, environ, text)
	if !strings.HasSuffix(b.info, " root") {
		isEmpty(t, dir)
	}
	rig.Is(t, r.code, 0, "%s: %+v: exit code", text, r)
	if want != nil {
		rig.Is(t, r.stdout, *want, "%s: the block prints", r.stderr)
	}
}

// shell runs a block of commands, and ends what it leaves running.
func shell(t *testing.T, dir string, environ []string, text string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), blockTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "sh", "-eu", "-c", text)
	cmd.Dir, cmd.Env = dir, environ
	// A block that fails may leave something running in the background, with its pipes open.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = patience
	r := finish(t, cmd)
	syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	return r
}

func checkTargets(t *testing.T, text string) {
	t.Helper()
	makefile := rig.Value(os.ReadFile("../../Makefile"))
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
		has(t, "\n"+string(makefile), "\n"+words[1]+":")
	}
}

// TestFlags: docs/flags.md has the flags of the programs as their help has them.
func TestFlags(t *testing.T) {
	t.Parallel()
	want, err := rig.Command(t, "sh", "../../tools/flags.sh", rig.Agent(t), rig.Registry(t)).Output()
	rig.Must(t, err)
	got := rig.Value(os.ReadFile("../../docs/flags.md"))
	rig.Same(t, "docs/flags.md is not what the help of the programs says (make flags)", string(want), string(got))
}
