package execpolicy

import (
	"path"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/execpolicy/rule"
	"github.com/execagent/execagent/test/rig"
)

// disk is what look finds: at a path, the real path and the head, separated by a blank.
type disk map[string]string

func (d disk) look(p string) (File, bool) {
	text, ok := d[p]
	real, head, _ := strings.Cut(text, " ")
	real = strings.ReplaceAll(real, "~", " ")
	return File{Real: real, Head: []byte(head)}, ok
}

// TestCandidates: a program is taken for all that it may turn out to be.
func TestCandidates(t *testing.T) {
	t.Parallel()
	d := disk{
		"/bin/ls": "/bin/ls \x7fELF", "/usr/bin/vi": "/usr/bin/vim.basic \x7fELF", "/bin/sh": "/usr/bin/dash \x7fELF", "/bin/busybox": "/bin/busybox \x7fELF",
		"/bin/rm": "/bin/busybox \x7fELF", "/lib64/ld-linux-x86-64.so.2": "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2 \x7fELF", "/gone": "/tmp/x~(deleted) \x7fELF",
		"/proc/self/fd/3": "/memfd:x~(deleted) \x7fELF", "/w/a": "/w/a #! /bin/sh -e -u \nrm x", "/w/b": "/w/b #!./a", "/w/loop": "/w/loop #!/w/loop",
		"/w/env": "/w/env #!/usr/bin/env python3\n", "/usr/bin/env": "/usr/bin/env \x7fELF", "/w/none": "/w/none #!\n", "/usr/bin/coreutils": "/usr/bin/coreutils \x7fELF",
		"/lib/ld-musl-x86_64.so.1": "/usr/lib/musl/libc.so \x7fELF", "/bin/busybox.static": "/bin/busybox.static \x7fELF", "/opt/busybox": "/opt/bb \x7fELF", "/lib/ld.so": "/lib/ld.so \x7fELF", "/x (deleted)": "/x~(deleted) \x7fELF",
	}
	for _, tt := range []struct {
		program, argv string
		want          string // the commands, separated by commas; ? behind one that is nameless, ! behind an unsure one, + before one that is covered
	}{
		{"/bin/ls", "anything -l", "/bin/ls -l"},
		{"/bin/ls", "", "/bin/ls"},
		{"/usr/bin/vi", "vi x", "/usr/bin/vi x, +/usr/bin/vim.basic x"},
		{"/usr/bin/vi", "ex x", "/usr/bin/vi x, +/usr/bin/vim.basic x, ex x"},
		{"/usr/bin/vi", "-vi x", "/usr/bin/vi x, +/usr/bin/vim.basic x"},
		{"/w/a", "ex 1", "/w/a 1, +/bin/sh -e -u /w/a 1, +/usr/bin/dash -e -u /w/a 1"},
		{"/gone", "x", "/gone, +/tmp/x (deleted)?"},
		{"/proc/self/fd/3", "ls", "/proc/self/fd/3, +/memfd:x (deleted)?"},
		{"/nothing", "x y", "/nothing y?"},
		{"/w/a", "a 1", "/w/a 1, +/bin/sh -e -u /w/a 1, +/usr/bin/dash -e -u /w/a 1"},
		{"/w/b", "b 1", "/w/b 1, +/w/a /w/b 1, +/bin/sh -e -u /w/a /w/b 1, +/usr/bin/dash -e -u /w/a /w/b 1"},
		{"/w/env", "x", "/w/env, +/usr/bin/env python3 /w/env"},
		{"/w/none", "x", "/w/none"},
		{"/bin/busybox", "busybox rm -f x", "/bin/busybox rm -f x, rm -f x"},
		{"/bin/busybox", "busybox", "/bin/busybox"},
		{"/bin/busybox", "busybox busybox rm -f", "/bin/busybox busybox rm -f, rm -f"},
		{"/bin/busybox", "-rm -f", "/bin/busybox -f, rm -f"},
		{"/bin/busybox", "/x/rm -f", "/bin/busybox -f, rm -f"},
		{"/bin/rm", "rm -f", "/bin/rm -f, +/bin/busybox -f, +rm -f"},
		{"/usr/bin/coreutils", "coreutils --coreutils-prog=rm x", "/usr/bin/coreutils --coreutils-prog=rm x, rm x"},
		{"/lib64/ld-linux-x86-64.so.2", "ld --library-path /x --inhibit-cache ./ls -l",
			"/lib64/ld-linux-x86-64.so.2 --library-path /x --inhibit-cache ./ls -l, +/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2 --library-path /x --inhibit-cache ./ls -l, /w/ls -l"},
		{"/lib64/ld-linux-x86-64.so.2", "ld --new /bin/ls",
			"/lib64/ld-linux-x86-64.so.2 --new /bin/ls, +/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2 --new /bin/ls, --new /bin/ls?"},
		{"/lib/ld-musl-x86_64.so.1", "x --preload=y /bin/ls -l",
			"/lib/ld-musl-x86_64.so.1 --preload=y /bin/ls -l, +/usr/lib/musl/libc.so --preload=y /bin/ls -l, /bin/ls -l"},
		{"/lib/ld.so", "ld l/../ls", "/lib/ld.so l/../ls, l/../ls!"},
		{"/x (deleted)", "x", "/x (deleted)?"},
		{"/bin/rm", "ls -f", "/bin/rm -f, +/bin/busybox -f, ls -f"},
		{"/bin/busybox.static", "busybox rm x", "/bin/busybox.static rm x, rm x"},
		{"/opt/busybox", "busybox rm x", "/opt/busybox rm x, +/opt/bb rm x, rm x"},
		{"/w/loop", "x", "/w/loop, +/w/loop /w/loop, +/w/loop /w/loop /w/loop, +/w/loop /w/loop /w/loop /w/loop, +/w/loop /w/loop /w/loop /w/loop /w/loop"},
	} {
		var got []string
		for _, p := range Candidates(tt.program, strings.Fields(tt.argv), "/w", d.look) {
			text := strings.Join(p.Argv, " ")
			if p.Nameless {
				text += "?"
			}
			if p.Unsure {
				text += "!"
			}
			if p.Covered {
				text = "+" + text
			}
			rig.Is(t, p.Path == "" || p.Unsure || p.Path == p.Argv[0], true, "%s: the path of %s is %s", tt.program, text, p.Path)
			got = append(got, text)
		}
		rig.Is(t, strings.Join(got, ", "), tt.want, "%s %s", tt.program, tt.argv)
	}
}

// TestNameless: no rule allows what has no name, and rules that forbid still do.
func TestNameless(t *testing.T) {
	t.Parallel()
	p := &Policy{Rules: rulesOf("allow x", "allow /tmp/x", "forbidden y"), Unmatched: rule.Prompt}
	for name, want := range map[string]rule.Decision{"/tmp/x": rule.Prompt, "/tmp/y": rule.Forbidden} {
		rig.Is(t, p.Exec(Command{Argv: []string{name}, Path: name, Nameless: true}).Decision, want, "%s", name)
	}
}

// FuzzCandidates: whatever the head of a file and the arguments are, there are few candidates, and
// each has words.
func FuzzCandidates(f *testing.F) {
	f.Add("/bin/x", "#!/bin/sh -e\n", "a b c")
	f.Add("/lib/ld.so", "", "ld --argv0")
	f.Add("busybox", "#!", "")
	f.Fuzz(func(t *testing.T, program, head, argv string) {
		look := func(p string) (File, bool) { return File{Real: path.Clean(p), Head: []byte(head)}, true }
		all := Candidates(program, strings.Fields(argv), "/", look)
		rig.Is(t, len(all) > 0 && len(all) <= 3*(maxInterpreters+1)+1, true, "%d candidates are few", len(all))
		for _, p := range all {
			rig.Is(t, len(p.Argv) > 0, true, "%+v has words", p)
		}
	})
}
