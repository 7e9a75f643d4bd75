package e2e

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestLearn: agent sandbox --learn prints a profile, with which the command does the same again, except for what no
// profile should allow.
func TestLearn(t *testing.T) {
	t.Parallel()
	script := rig.Value(filepath.Abs("testdata/learn.py"))
	home := rig.Value(os.MkdirTemp("/var/tmp", "learn")) // a profile allows all of /tmp
	t.Cleanup(func() { rig.Must(t, os.RemoveAll(home)) })
	work := filepath.Join(home, "work")
	for _, name := range []string{"work/x", ".cache/old/x", ".removed/file", ".moved/a", ".times/file", ".run/x", ".netrc"} {
		rig.Must(t, os.MkdirAll(filepath.Dir(filepath.Join(home, name)), 0o700), os.WriteFile(filepath.Join(home, name), []byte("a secret"), 0o600))
	}
	run := func(args ...string) (code int, stdout, stderr string) {
		cmd := rig.Command(t, rig.Agent(t), append([]string{"sandbox"}, args...)...)
		cmd.Dir, cmd.Env = work, append(os.Environ(), "HOME="+home, "TMPDIR=", "AGENT_SANDBOX_SHOW_SECRETS=false")
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
			t.Fatal(err)
		}
		return cmd.ProcessState.ExitCode(), out.String(), errs.String()
	}
	code, _, stderr := run("--", "python3", script)
	rig.Is(t, code, 1, "without the profile: %s", stderr)

	code, stdout, stderr := run("--learn", "--", "sh", "-c", `python3 "$0" && { cat ~/.netrc; mkdir .git; true; }`, script)
	rig.Is(t, code, 0, "while it learns: %s", stderr)
	rig.Is(t, stdout, "", "what it reads of a secret")
	profile := regexp.MustCompile(`(?s)write = \[.*?\n\]\n`).FindString(stderr)
	rig.Same(t, "the profile", `write = [
    "/tmp", # NAME
    "~/.cache/made",
    "~/.cache/old", # ~/.cache/old/file
    "~/.moved", # ~/.moved/a
    "~/.removed", # ~/.removed/file
    "~/.run", # ~/.run/pipe
    "~/.times", # ~/.times/file
]
`, regexp.MustCompile(`/tmp/tmp\w+`).ReplaceAllString(profile, "NAME"))
	for _, want := range []string{
		`"~/.toolrc" was changed, and no profile should let a command write all of "~"`,
		`files in "~/work" were changed: add --workspace for it`, "netrc: Permission denied", "work/.git is protected",
	} {
		has(t, stderr, want)
	}

	rig.Must(t, os.WriteFile(filepath.Join(work, "learned.toml"), []byte(profile), 0o600), os.Remove(filepath.Join(home, ".run/pipe")), os.RemoveAll(filepath.Join(home, ".cache/made")))
	code, _, stderr = run("--workspace", ".", "--profile", "./learned.toml", "--", "python3", script)
	rig.Is(t, code, 1, "with the profile")
	has(t, stderr, "Read-only file system: '"+home+"/.toolrc")
	rig.Must(t, rig.Err(os.Stat(filepath.Join(home, ".run/pipe"))), rig.Err(os.Stat(filepath.Join(home, ".cache/made/a/b/c"))))
	code, _, stderr = run("--learn", "--workspace", ".", "--profile", "./learned.toml", "--", "sh", "-c", "echo x >made; echo x >~/.cache/made/d")
	rig.Is(t, code, 0, "with the profile, while it learns")
	rig.Is(t, stderr[strings.IndexByte(stderr, '\n')+1:], "agent: sandbox: learned: the flags allow all that a profile can allow of what the command did\n", "what is left to learn")
}
