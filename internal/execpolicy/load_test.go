package execpolicy

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/execagent/execagent/internal/execpolicy/rule"
	"github.com/execagent/execagent/test/rig"
)

func write(t testing.TB, folder string, files map[string]string) string {
	t.Helper()
	for name, text := range files {
		rig.Must(t, os.WriteFile(filepath.Join(folder, name), []byte(text), 0o644))
	}
	return folder
}

// TestLoadLinks: what has the name of a file with rules and is none is not passed over.
func TestLoadLinks(t *testing.T) {
	t.Parallel()
	folder := write(t, t.TempDir(), map[string]string{"target": `prefix_rule(pattern=["x"])`})
	name := filepath.Join(folder, "a.rules")
	for what, make := range map[string]func() error{
		"folder":        func() error { return os.Mkdir(name, 0o755) },
		"link":          func() error { return os.Symlink("target", name) },
		"dangling link": func() error { return os.Symlink("none", name) },
	} {
		rig.Must(t, make())
		_, err := Load(folder)
		rig.Is(t, strings.HasPrefix(fmt.Sprint(err), name+" is not a regular file"), true, "%s: %v: it is refused", what, err)
		rig.Must(t, os.Remove(name))
	}
	rig.Check(t, rig.Err(Load(folder)))
}

// TestLoad: the folders add up, in the order of folders and names.
func TestLoad(t *testing.T) {
	t.Parallel()
	low := write(t, t.TempDir(), map[string]string{
		"b.rules": `prefix_rule(pattern=["x"], justification="b")`, "a.rules": `prefix_rule(pattern=["x"], justification="a")`,
		".c.rules": `prefix_rule(pattern=["x"], justification="hidden")`, "d.RULES": "wrong", "e.rule": "wrong", "rules": "wrong",
	})
	high := write(t, t.TempDir(), map[string]string{"a.rules": `prefix_rule(pattern=["x"], decision="forbidden", justification="high")`})
	rules, err := Load(low, high)
	rig.Must(t, err)
	var got []string
	for _, m := range rules.Match([]string{"x"}) {
		got = append(got, m.Justification)
	}
	rig.Is(t, strings.Join(got, " "), "hidden a b high", "text")
	rig.Is(t, rules.Match([]string{"x"})[3].Origin, filepath.Join(high, "a.rules")+":1:12", "the origin")
}

// TestLoadRefuses: one file that cannot be used is enough, and the error names it, and the line if
// there is one.
func TestLoadRefuses(t *testing.T) {
	t.Parallel()
	refused := func(folder, want string) {
		t.Helper()
		rules, err := Load(folder)
		rig.Is(t, rules == nil && err != nil && strings.Contains(err.Error(), want), true, "%v, %v: refused with %q", rules, err, want)
	}
	for _, tt := range []struct {
		text string
		mode os.FileMode
		want string
	}{
		{"x = 1\ny = z", 0o644, "m.rules:2:5: undefined: z"},
		{"\xff", 0o644, "m.rules: stream did not contain valid UTF-8"},
		{"", 0o646, "m.rules is refused: it has mode 0646"},
		{strings.Repeat("#", maxFileBytes+1), 0o644, "m.rules is longer than 1048576 bytes"},
	} {
		folder := write(t, t.TempDir(), map[string]string{"a.rules": "", "m.rules": tt.text, "z.rules": ""})
		rig.Must(t, os.Chmod(filepath.Join(folder, "m.rules"), tt.mode))
		refused(folder, folder+"/"+tt.want)
	}
	folder := t.TempDir()
	refused(filepath.Join(folder, "none"), "")
	rig.Must(t, os.Chmod(folder, 0o777))
	refused(folder, "everybody can change it")
	for i := range maxFiles + 1 {
		write(t, folder, map[string]string{strconv.Itoa(i) + ".rules": ""})
	}
	rig.Must(t, os.Chmod(folder, 0o755))
	refused(folder, "more than 256 files")
}

// TestParseClient: the files of a client are bounded together.
func TestParseClient(t *testing.T) {
	t.Parallel()
	rules, err := ParseClient([]ClientFile{{"a", `prefix_rule(pattern=["x"])`}, {"b", `prefix_rule(pattern=["y"])`}})
	rig.Must(t, err)
	rig.Is(t, rules.Len(), 2, "rules")
	half := "#" + strings.Repeat("x", maxClientBytes/2)
	for name, files := range map[string][]ClientFile{
		"bytes": {{"a", half}, {"b", half}},
		"rules": {{"a", strings.Repeat("prefix_rule(pattern=['x'])\n", maxClientRules+1)}},
		"error": {{"a", ""}, {"b", "x = y"}},
		"files": make([]ClientFile, maxFiles+1),
	} {
		rig.Is(t, rig.Err(ParseClient(files)) != nil, true, "%s: an error", name)
	}
}

// TestAmend: a rule is added once, in the form of the reference, and what was there stays.
func TestAmend(t *testing.T) {
	t.Parallel()
	folder := filepath.Join(t.TempDir(), "rules")
	file := filepath.Join(folder, Amendments)
	amend := func(want bool, prefix ...string) {
		t.Helper()
		rig.Is(t, rig.Value(Amend(file, prefix)), want, "%q: added", prefix)
	}
	amend(true, "git", "a \"b\"\\\n\té\u2028</&>\x01")
	amend(false, "git", "a \"b\"\\\n\té\u2028</&>\x01")
	rig.Is(t, rig.Value(os.Stat(file+".lock")).Mode().Perm(), 0o600, "the mode of the lock, which who can read it can hold")
	want := `prefix_rule(pattern=["git", "a \"b\"\\\n\té` + "\u2028" + `</&>\u0001"], decision="allow")` + "\n"
	rig.Is(t, string(rig.Value(os.ReadFile(file))), want, "the file")
	rig.Must(t, os.WriteFile(file, []byte("# mine"), 0o600))
	amend(true, "ls")
	rig.Is(t, string(rig.Value(os.ReadFile(file))), "# mine\nprefix_rule(pattern=[\"ls\"], decision=\"allow\")\n", "the file")
	mode := rig.Value(os.Stat(file)).Mode().Perm()
	rig.Is(t, mode == 0o644 || mode == 0o600, true, "the mode %v is one of a file with rules", mode)
	rig.Is(t, rig.Value(Load(folder)).Len(), 1, "rules")
}

// TestAmendRefuses: a file that has an error stays as it is, and so does one that is a link.
func TestAmendRefuses(t *testing.T) {
	t.Parallel()
	folder := write(t, t.TempDir(), map[string]string{"wrong.rules": "x = ", "target": ""})
	rig.Must(t, os.Symlink("target", filepath.Join(folder, "link.rules")))
	for name, prefix := range map[string][]string{"wrong.rules": {"a"}, "link.rules": {"a"}, "none.rules": nil, "text.rules": {"\xff"}} {
		added, err := Amend(filepath.Join(folder, name), prefix)
		rig.Is(t, !added && err != nil, true, "%s: %v, %v: it is refused", name, added, err)
	}
	rig.Is(t, string(rig.Value(os.ReadFile(filepath.Join(folder, "wrong.rules")))), "x = ", "the file")
	rig.Is(t, len(rig.Value(filepath.Glob(filepath.Join(folder, ".*.new")))), 0, "files that are left behind")
}

// TestAmendAtOnce: nothing is lost when many amend a file at once.
func TestAmendAtOnce(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	var wg sync.WaitGroup
	var added atomic.Int64
	for i := range 8 {
		wg.Go(func() {
			for j := range 5 {
				ok, err := Amend(filepath.Join(folder, Amendments), []string{"program", strconv.Itoa(j), strconv.Itoa(i % 4)})
				rig.Check(t, err)
				if ok {
					added.Add(1)
				}
			}
		})
	}
	wg.Wait()
	rig.Is(t, added.Load(), 20, "amendments that have added a rule")
	rig.Is(t, rig.Value(Load(folder)).Len(), 20, "rules")
}

// TestTooWide: a rule that would allow everything is no amendment.
func TestTooWide(t *testing.T) {
	t.Parallel()
	for line, want := range map[string]bool{
		"": true, "git": true, "git status": false, "bash -lc": true, "/bin/bash -lc": true, "bash x.sh": false, "python3 -c": true, "python3.11": true,
		"node -e": true, "ls": false, "sudo": true, "env": true, "env make": false, "npm": false, "7z": false, "xargs": true,
		"env A=1": true, "env -i A=1": true, "env -i A=1 make": false, "timeout 5": true, "timeout -k 1 5s": true, "timeout 5 make": false, "nice -n 5": true,
		"sudo -u root": true, "sudo -u root apt": false, "bash -euo pipefail -c": true, "bash -o pipefail -c": true, "bash -euc": true, "bash -euc ls": false, "bash -c a=b": false,
		"python3 -I -c": true, "python3 -u": true, "python3 -m pytest": false, "perl -we": true, "git -C /srv": true, "git -C /srv log": false, "git -c a.b=c": true,
		"setsid": true, "setsid -f": true, "nodejs -e": true, "pypy3": true, "rbash": true, "gdb -p": true, "script -c": true, "flock /l": true, "flock /l make": false,
		"busybox sh": true, "busybox ls": false, "sudo bash": true, "sudo -u root python3 -c": true, "timeout 5 sh -c": true, "env python3 x.py": false, "xargs rm": false,
		"find .": true, "find . -exec": true, "docker run": true, "docker run --rm": true, "docker run image": true, "docker run image make": false, "docker ps": false,
		"podman exec": true, "kubectl get": false, "systemd-run": true, "gosu root": true, "gosu root make": false, "bwrap --dev-bind / / bash": true, "agent exec --": true,
		"agent exec -- make": false, "agent sandbox sh": true, "agent ps": false, "npm exec": true, "npm test": false, "chroot /x": true, "nsenter -t 1": true, "ssh host": true,
		"ssh host uptime": false, "watch": true, "parallel": true, "taskset 1": true, "ionice -c 3": true, "unshare -r": true, "strace -f": true, "command": true, "builtin": true,
		"source": true, "source x": false, "ipython3": true, "irb": true, "runuser -u x": true, "setpriv": true, "chrt 1": true, "go build": false, "go run": true,
		"nawk": true, "i386": true, "linux64 -R": true, "uname26 ls": false, "tini -- sh": true, "runcon x_t": true, "ccache gcc x.c": true, "m4": true, "just build": false, "7zz x": false,
		"/lib64/ld-linux-x86-64.so.2 /bin/sh": true, "ld-musl-x86_64.so.1": true, "qemu-x86_64": true, "qemu-aarch64-static ls": false, "busybox.static sh": true, "gcc-12 -c": true,
		"tar xf a.tar": true, "rsync -a": true, "vim.basic x": true, "java": true, "pipx": true, "/w/-": false,
		"git --no-pager": true, "git --no-pager log": true, "git --git-dir=x log": false,
	} {
		rig.Is(t, TooWide(strings.Fields(line)), want, "%q", line)
	}
}

// FuzzAmendment: every line that is written is a rule with exactly these words.
func FuzzAmendment(f *testing.F) {
	f.Add("a", "b\"\\\n\x01\u2028")
	f.Add("{", "")
	f.Add("\x7f", "\r\t\b\f\v")
	f.Fuzz(func(t *testing.T, a, b string) {
		line, err := amendment([]string{a, b})
		if err != nil {
			return
		}
		rules, err := ParseClient([]ClientFile{{"f", line}})
		rig.Must(t, err)
		m := rules.Match([]string{a, b})
		rig.Is(t, len(m) == 1 && m[0].Decision == rule.Allow && !strings.Contains(line, "\n"), true, "%s matches", line)
	})
}
