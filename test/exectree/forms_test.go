package exectree

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/internal/execpolicy/rule"
	"github.com/execagent/execagent/internal/sandbox/judge"
	"github.com/execagent/execagent/test/rig"
)

// formsFile has the scripts of forms and of opaque.
const formsFile = "testdata/forms.txt"

// TestForms: whoever executes a program, and in whichever way, the rules are asked: one that is
// forbidden does not run, and one that is not runs as ever.
func TestForms(t *testing.T) {
	t.Parallel()
	p, needs := programs(t), map[string]string{}
	for _, row := range rig.Rows(t, formsFile, "needs", 2) {
		needs[row[0]] = row[1]
	}
	eachWay(t, func(t *testing.T, w way, dir string) {
		policy := rules(t, rule.Allow, `prefix_rule(pattern=["victim"], decision="forbidden")`)
		for _, name := range []string{"victim", "fine"} {
			place(t, "/bin/echo", filepath.Join(dir, name))
			d := filepath.Join(dir, "of-"+name)
			rig.Must(t, os.Mkdir(d, 0o777))
			place(t, "/bin/echo", filepath.Join(d, name))
			var script strings.Builder
			script.WriteString("exec 2>&1\n")
			tried := 0
			for _, form := range rig.Rows(t, formsFile, "forms", 2) {
				if _, err := exec.LookPath(needs[form[0]]); needs[form[0]] != "" && err != nil {
					continue
				}
				tried++
				script.WriteString("echo '=" + form[0] + "'\n(" + form[1] + "\n) </dev/null\n")
			}
			replaced := strings.NewReplacer("$V", filepath.Join(d, name), "$D", d, "$N", name, "$P", p, "${D##*/}", filepath.Base(d)).Replace(script.String())
			r := w.run(t, dir, policy, nil, "bash", "-c", replaced)
			parts := strings.Split("\n"+r.out, "\n=")[1:]
			for _, part := range parts {
				form, out, _ := strings.Cut(part, "\n")
				out = strings.TrimSuffix(out, "\n") + "\n"
				ran := out
				switch form {
				case "script": // prints the name of the script
					ran = strings.ReplaceAll(out, filepath.Join(d, "script")+"\n", "ran\n")
				case "scripts": // with all names
					ran = strings.ReplaceAll(out, " ", "\n")
				}
				has := strings.Contains("\n"+ran, "\nran\n")
				if has != (name == "fine") {
					t.Errorf("%s, %s: %q", name, form, out)
				}
			}
			if len(parts) != tried {
				t.Errorf("%d forms of %d, code %d: %s", len(parts), tried, r.code, r.out)
			}
		}
	})
}

// TestTools: the tool of a program that is many is judged, and not only that program.
func TestTools(t *testing.T) {
	t.Parallel()
	if _, err := exec.LookPath("busybox"); err != nil {
		missing(t, "no busybox")
	}
	eachWay(t, func(t *testing.T, w way, dir string) {
		r := w.run(t, dir, rules(t, rule.Allow, `prefix_rule(pattern=["uname"], decision="forbidden")`), nil, "sh", "-c",
			`busybox uname; echo $?; busybox true; echo $?; ln -s $(command -v busybox) uname; ./uname; echo $?
ln -s $(command -v busybox) x; ./x uname; echo $?; busybox busybox uname; echo $?; bash -c "exec -a -uname busybox"; echo $?; busybox env uname; echo $?`)
		if strings.Contains(r.out, "Linux") || strings.Count(r.out, "126\n") != 5 || !strings.Contains(r.out, "0\n") {
			t.Errorf("%q, code %d", r.out, r.code)
		}
	})
}

// TestOpaque: a script that cannot be taken apart is no way around a rule.
func TestOpaque(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w way, dir string) {
		place(t, "/bin/echo", filepath.Join(dir, "probe"))
		place(t, "/bin/echo", filepath.Join(dir, "fine"))
		policy := rules(t, rule.Allow, `prefix_rule(pattern=["probe"], decision="forbidden")`)
		for name, runs := range map[string]bool{"probe": false, "fine": true} {
			var script strings.Builder
			opaque := rig.Rows(t, formsFile, "opaque", 1)
			for _, row := range opaque {
				script.WriteString("echo =; bash -c '" + strings.ReplaceAll(strings.ReplaceAll(row[0], "'", `'\''`), "$V", filepath.Join(dir, name)) + "' 2>/dev/null </dev/null\n")
			}
			r := w.run(t, dir, policy, nil, "bash", "-c", script.String())
			parts := strings.Split(r.out, "=\n")[1:]
			if len(parts) != len(opaque) {
				t.Fatalf("%d of %d: %s", len(parts), len(opaque), r.out)
			}
			ran := 0
			for i, out := range parts {
				if strings.Contains(out, "ran") {
					ran++
					if !runs {
						t.Errorf("%s: %q", opaque[i][0], out)
					}
				}
			}
			if runs && ran < len(opaque)*3/4 { // not all make sense with a path
				t.Errorf("only %d of %d scripts have run the program", ran, len(opaque))
			}
		}
	})
}

// TestChecks: each command of a script is decided about, once.
func TestChecks(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w way, dir string) {
		r := w.run(t, dir, rules(t, rule.Prompt, ""), func(judge.Question) bool { return true }, "sh", "-c", "env && env | cat >/dev/null")
		if got := strings.Join(r.asked, ";"); r.code != 0 || got != "env;env;cat" && got != "env;cat;env" {
			t.Errorf("code %d, asked %q: %s", r.code, r.asked, r.out)
		}
		// A shell that is refused says so, and does not look on along PATH.
		r = w.run(t, dir, rules(t, rule.Prompt, ""), nil, "sh", "-c", "env; echo $?")
		if len(r.asked) != 1 || !strings.Contains(r.out, "126") {
			t.Errorf("asked %q: %s", r.asked, r.out)
		}
	})
}

// TestUnnamed: what only exists in memory, or was deleted, is allowed by no rule.
func TestUnnamed(t *testing.T) {
	t.Parallel()
	p := programs(t)
	eachWay(t, func(t *testing.T, w way, dir string) {
		place(t, "/bin/echo", filepath.Join(dir, "fine"))
		policy := rules(t, rule.Forbidden, `prefix_rule(pattern=["`+dir+`/fine"])
prefix_rule(pattern=["`+p+`"])
prefix_rule(pattern=["rm"])
prefix_rule(pattern=["cat"])
prefix_rule(pattern=["memfd:form"])
`)
		for _, tt := range []struct {
			script string
			want   bool
		}{
			{dir + "/fine ran", true},
			{p + " form descriptor " + dir + "/fine ran", true},
			{p + " form memfd " + dir + "/fine ran", false},
			{"exec 5<" + dir + "/fine; rm " + dir + "/fine; /proc/self/fd/5 ran", false},
		} {
			r := w.run(t, dir, policy, nil, "bash", "-c", tt.script)
			rig.Is(t, strings.Contains(r.out, "ran\n"), tt.want, "%s: %s, told %q: it ran", tt.script, r.end(), r.told)
		}
	})
}

// TestAllowList: a program that a rule allows runs as it is called, whatever files the kernel needs for
// that; rules about these files count. A refusal says on the command's standard error why, and which
// rule is missing.
func TestAllowList(t *testing.T) {
	t.Parallel()
	eachWay(t, func(t *testing.T, w way, dir string) {
		w.tells = true
		for _, name := range []string{"real", "evil"} {
			place(t, "/bin/echo", filepath.Join(dir, name))
		}
		for link, to := range map[string]string{"tool": "link", "link": "real", "good": "evil", "other": "tool"} {
			rig.Must(t, os.Symlink(to, filepath.Join(dir, link)))
		}
		write(t, filepath.Join(dir, "script"), []byte("#!/bin/sh\necho \"$@\"; "+dir+"/real below\n"))
		write(t, filepath.Join(dir, "nested"), []byte("#!"+dir+"/script\n"))
		write(t, filepath.Join(dir, "worse"), []byte("#!"+dir+"/evil\n"))
		policy := rules(t, rule.Forbidden, `prefix_rule(["bash", "-c"])
prefix_rule([["tool", "good", "script", "nested", "worse"]])
prefix_rule(["evil"], "forbidden", justification = "use good")
`)
		missing := func(name string) string {
			return "rules: refused " + dir + "/" + name + ": no rule allows it; this one would: prefix_rule(pattern=[\"" + name + "\"], decision=\"allow\")\n"
		}
		for name, want := range map[string]string{
			"tool": "ran\n", "script": "ran\n" + missing("real"), "nested": dir + "/nested ran\n" + missing("real"), "real": missing("real"), "other": missing("other"),
			"good": "rules: refused " + dir + "/good: use good\n", "worse": "rules: refused " + dir + "/worse: use good\n",
		} {
			r := w.run(t, dir, policy, nil, "bash", "-c", strings.Repeat(dir+"/"+name+" ran 2>/dev/null; ", 2)+"true")
			lines := slices.Sorted(strings.Lines(r.out)) // those of two streams have no order
			rig.Is(t, strings.Join(slices.Compact(lines), ""), want, "%s", name)
			rig.Is(t, strings.Count(r.out, "rules:") < 2, true, "%s is told once: %q", name, r.out)
		}
	})
}

// TestElsewhere: a rule about a path, or host_executable, allows no other program that is called by a path
// whose text, or a working directory, seems to lead there.
func TestElsewhere(t *testing.T) {
	t.Parallel()
	p := programs(t)
	eachWay(t, func(t *testing.T, w way, dir string) {
		deep := filepath.Join(dir, strings.Repeat("d/", 20))
		for _, made := range []string{filepath.Join(dir, "usr/bin"), deep} {
			rig.Must(t, os.MkdirAll(made, 0o777))
		}
		for _, name := range []string{"usr/bin/true", "usr/bin/printenv", "real"} {
			place(t, "/bin/echo", filepath.Join(dir, name))
		}
		rig.Must(t, os.Symlink(deep, filepath.Join(dir, "link")))
		rig.Must(t, os.Symlink(filepath.Join(dir, "real"), filepath.Join(deep, "../tool")))
		policy := rules(t, rule.Forbidden, `host_executable(name = "true", paths = ["/usr/bin/true"])
prefix_rule([["bash", "true", "tool", "/usr/bin/printenv", "`+p+`"]])
`)
		up := strings.Repeat("/..", 20)
		for script, want := range map[string]bool{
			"$D/link" + up + "/usr/bin/true ran": false, "$D/link" + up + "/usr/bin/printenv ran": false, "cd $D; link" + up + "/usr/bin/true ran": false,
			"cd /usr/bin; $P form at $D/usr/bin true ran": false, "cd /usr/bin; $P form at $D usr/bin/printenv ran": false, "$D/real ran": false,
			"$D/link/../tool ran": true, "cd $D/link; ../tool ran": true, "cd $D; ./link/../tool ran": true, "$P form at $D/link ../tool ran": true,
			"cd /usr; bin/true && echo ran": true, "$P form at /usr bin/true && echo ran": true, "cd $D; /usr/../usr/bin/true && echo ran": true, "true && echo ran": true,
		} {
			r := w.run(t, dir, policy, nil, "bash", "-c", strings.NewReplacer("$D", dir, "$P", p).Replace(script))
			rig.Is(t, strings.Contains(r.out, "ran\n"), want, "%s: %s, told %q: it ran", script, r.end(), r.told)
		}
	})
}

// TestMany: a thousand programs that are executed at once are each decided about; in each push a
// hundred are.
func TestMany(t *testing.T) {
	t.Parallel()
	p := programs(t)
	n := 50
	if rig.Runs(rig.Merge) {
		n = 500
	}
	for _, w := range ways() {
		t.Run(w.name, func(t *testing.T) {
			dir := rig.Public(t)
			place(t, "/bin/true", filepath.Join(dir, "victim"))
			policy := rules(t, rule.Allow, `prefix_rule(pattern=["victim"], decision="forbidden")`)
			r := w.run(t, dir, policy, nil, "bash", "-c", fmt.Sprintf(`for i in {1..%d}; do ./victim || echo no & /bin/true || echo failed & done 2>/dev/null; wait; echo done`, n))
			rig.Is(t, r.end(), strings.Repeat("no\n", n)+"done\ncode 0\n", "the end")
			// Threads of one process that execute at once wait for each other.
			rig.Is(t, w.run(t, dir, policy, nil, p, "flood", "6", "6", "10", p).end(), "0 bad\ncode 0\n", "the flood's end")
		})
	}
}
