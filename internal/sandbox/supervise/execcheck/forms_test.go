package execcheck

import (
	"bytes"
	"debug/elf"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/test/rig"
)

// formFiles makes the files that testdata/forms.txt names.
func formFiles(t testing.TB, program string) (dir string) {
	t.Helper()
	dir = rig.Public(t)
	at := func(name string) string { return filepath.Join(dir, name) }
	content := rig.Value(os.ReadFile(program))
	write(t, at("relative"), content)
	write(t, at("script"), []byte("#!"+program+"\n"))
	write(t, at("argument"), []byte("#! "+program+"  args and more \n"))
	write(t, at("itself"), []byte("#!"+at("itself")+"\n"))
	write(t, at("headless"), []byte("#!"+at("missing")+"\n"))
	write(t, at("near"), []byte("#!./relative\n"))
	write(t, at("text"), []byte("text\n"))
	write(t, at("empty"), nil)
	write(t, at("damaged"), content[:70])
	write(t, at("plain"), content)
	rig.Must(t, os.Chmod(at("plain"), 0o644))
	before := "script"
	for i := range 6 {
		name := fmt.Sprintf("nested%d", i)
		write(t, at(name), fmt.Appendf(nil, "#!%s argument %d\n", at(before), i))
		before = name
	}
	for name, to := range map[string]string{"link": program, "script-link": "script", "loop": "loop"} {
		rig.Must(t, os.Symlink(to, at(name)))
	}
	return dir
}

// TestForms: a program sees no difference between an execve that is checked and one
// that is not, and nothing is taken for something else. In each push every second form is executed by
// root, and the others by an ordinary user.
func TestForms(t *testing.T) {
	t.Parallel()
	program := programs(t)
	dir := formFiles(t, program)
	forms := rig.Rows(t, "testdata/forms.txt", "forms", 2)
	words := strings.NewReplacer("$P", program, "$D", dir, "$L", strings.Repeat("x/", 2100), `""`, "")
	for _, unprivileged := range []bool{false, true} {
		for i, form := range forms {
			name, args := form[0], form[1]
			if unprivileged != (i%2 == 1) && !rig.Runs(rig.Merge) {
				continue
			}
			t.Run(fmt.Sprintf("%s, nobody %v", name, unprivileged), func(t *testing.T) {
				t.Parallel()
				argv := append([]string{program}, strings.Split(words.Replace(args), " ")...)
				s := setup{Mode: bare, Argv: argv, Dir: dir, nobody: unprivileged}
				want, wantOut := supervise(t, s, nil)
				s.Mode = checked
				got, out := supervise(t, s, nil)
				rig.Is(t, fmt.Sprint(short(out), got.Code), fmt.Sprint(short(wantOut), want.Code), "as without a supervisor")
				others := got.Refused + got.ReplacedFile + got.ReplacedArgv + got.Let
				rig.Is(t, [2]int64{got.First, others}, [2]int64{1, 0}, "%+v", got)
			})
		}
	}
}

func short(text string) string {
	if len(text) > 1000 {
		return text[:1000] + "..."
	}
	return text
}

// TestFlood: more calls than there may be windows wait for their turn.
func TestFlood(t *testing.T) {
	t.Parallel()
	program := programs(t)
	r, out := supervise(t, setup{Mode: checked, Argv: []string{program, "flood", "12", "12", "20", program}}, nil)
	rig.Is(t, fmt.Sprint(out, r.Code, r.ReplacedFile+r.ReplacedArgv+r.Let), "0 bad\n0 0", "%+v", r)
}

// TestScriptHeads: the checker reads the first line of a script as the kernel does,
// whatever is in it.
func TestScriptHeads(t *testing.T) {
	t.Parallel()
	program := programs(t)
	dir := rig.Public(t)
	heads := []string{
		"#!", "#!\n", "#! \t \n", "#!\x00", "#! \x00\n", "#!$", "#!$ ", "#!$\t \t", "#!$ a", "#!$ a ", "#!$  a b \n", "#!$\x00\n", "#!$ \x00\n",
		"#!$ a\x00b\n", "#!$ a \x00\n", "#!$\ta\t\tb\n", "#!  \t$  \t\n", "#!$\r\n", "#!$ a\r\n", "##!$\n", " #!$\n", "#!$\n\n", "#!$ \n a", "#!missing", "#! ./missing",
		"#!" + strings.Repeat(" ", 252) + "$", "#!" + strings.Repeat(" ", 253) + "x", "#!" + strings.Repeat(" ", 253), "#!" + strings.Repeat(" ", 254), "#!" + strings.Repeat(" ", 300),
	}
	for _, n := range []int{252, 253, 254, 255, 256, 300} {
		heads = append(heads, "#!/"+strings.Repeat("x", n-3), "#!/"+strings.Repeat("x", n-3)+"\n", "#!$ "+strings.Repeat("a", n-4-len(program)),
			"#!$ "+strings.Repeat("a", n-4-len(program))+"\n", "#!$ "+strings.Repeat("a", n-5-len(program))+" ", "#!$"+strings.Repeat(" ", n-2-len(program)),
			"#!$"+strings.Repeat(" ", n-3-len(program))+"a")
	}
	r := rand.New(rand.NewPCG(1, 2))
	pieces := []string{" ", "\t", "\n", "\x00", "$", "a", "bb", strings.Repeat(" ", 120), strings.Repeat("c", 110)}
	for range 300 {
		var head strings.Builder
		head.WriteString("#!")
		for range r.IntN(9) {
			head.WriteString(pieces[r.IntN(len(pieces))])
		}
		heads = append(heads, head.String())
	}
	for i, head := range heads {
		write(t, filepath.Join(dir, strconv.Itoa(i)), []byte(strings.ReplaceAll(head, "$", program)))
	}
	s := setup{Mode: bare, Argv: []string{program, "heads", dir, strconv.Itoa(len(heads))}}
	_, want := supervise(t, s, nil)
	s.Mode = checked
	got, out := supervise(t, s, nil)
	rig.Is(t, got.ReplacedFile+got.ReplacedArgv+got.Let, 0, "%+v", got)
	wants, outs := strings.Split(want, "\n"), strings.Split(out, "\n")
	if len(wants) < 2*len(heads) || len(wants) != len(outs) {
		t.Fatalf("%d lines, without a supervisor %d, want %d", len(outs), len(wants), 2*len(heads))
	}
	for i := range wants {
		rig.Is(t, outs[i], wants[i], "head %q", heads[min(i/2, len(heads)-1)])
	}
}

// TestRefused: what may not be executed is not, whatever it is called, and also as
// an interpreter.
func TestRefused(t *testing.T) {
	t.Parallel()
	program := programs(t)
	dir := formFiles(t, program)
	denied := filepath.Join(dir, "relative")
	rig.Must(t, os.Symlink("relative", filepath.Join(dir, "other")))
	for _, tt := range []struct{ args, want string }{
		{"form path ./relative", "errno EACCES\nexit 1\n"},
		{"form path ./other", "errno EACCES\nexit 1\n"},
		{"form at " + dir + " relative", "errno EACCES\nexit 1\n"},
		{"form descriptor ./relative", "errno EACCES\nexit 1\n"},
		{"form path ./near", "errno EACCES\nexit 1\n"},
		{"form path " + program + " forbidden", "errno EPERM\nexit 1\n"},
		{"form path ./script forbidden", "errno EPERM\nexit 1\n"},
		{"spawn ./relative", "errno EACCES\n"},
		{"form path " + program + " args", fmt.Sprintf("%d CPUs: [args]\nexit 0\n", runtime.NumCPU())},
	} {
		s := setup{Mode: checked, Argv: append([]string{program}, strings.Fields(tt.args)...), Dir: dir, Denied: denied, DeniedWord: "forbidden"}
		r, out := supervise(t, s, nil)
		rig.Is(t, fmt.Sprint(out, r.ReplacedFile+r.ReplacedArgv+r.Let), tt.want+"0", "%s: %+v", tt.args, r)
	}
}

// TestAllows: what has come into the place of a program gets no arguments that the command
// may not know.
func TestAllows(t *testing.T) {
	t.Parallel()
	script := expected{name: "s", argv: []string{"/bin/sh", "-e", "s", "a", "b"}, passed: []string{"x", "a", "b"}}
	program := expected{name: "p", argv: []string{"x"}, passed: []string{"x"}}
	for _, tt := range []struct {
		of   *expected
		argv string
		want bool
	}{
		{&script, "/bin/sh -e s a b", true},         // another interpreter of the same name
		{&script, "x a b", true},                    // the script has become a program
		{&script, "/bin/sh s a b", false},           // the script has become one with another first line
		{&script, "/bin/sh -secret s a b", false},   // as before
		{&script, "/bin/sh -e secret s a b", false}, // as before
		{&script, "", false},                        // there is always one
		{&program, "x", true},                       // another program of the same name
		{&program, "/usr/bin/java p", true},         // a foreign format
		{&program, "/usr/bin/java p x", true},       // one whose interpreter gets the first argument too
		{&program, "/bin/sh p", true},               // a script without arguments of its own
		{&program, "/bin/sh -secret p", false},      // a script with one
		{&program, "/bin/sh p secret", false},       // arguments that nobody has passed
		{&program, "/bin/sh", false},                // as before
		{&program, "/bin/sh q", false},              // as before
	} {
		rig.Is(t, tt.of.allows(strings.Fields(tt.argv)), tt.want, "%q for %q", tt.argv, tt.of.argv)
	}
}

// TestLoader: a program does not bring in a file that may not be executed by naming it as
// its loader, neither before it is judged nor after.
func TestLoader(t *testing.T) {
	t.Parallel()
	dir := rig.Public(t)
	// The paths of the loaders have the same length, so one program is all that is compiled.
	denied, allowed := filepath.Join(dir, "refused"), filepath.Join(dir, "allowed")
	write(t, denied, smallest(t, 'x', 7))
	write(t, allowed, smallest(t, 'x', 7))
	write(t, filepath.Join(dir, "script"), []byte("#!"+dir+"/other forbidden\n"))
	source := filepath.Join(dir, "main.c")
	write(t, source, []byte("int main(void) { return 0; }"))
	if _, err := exec.LookPath("gcc"); err != nil {
		missing(t, "the program of this test is in C, and there is no gcc")
	}
	if out, err := exec.Command("gcc", "-o", filepath.Join(dir, "names"), "-Wl,--dynamic-linker="+denied, source).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	classless := rig.Value(os.ReadFile(filepath.Join(dir, "names")))
	write(t, filepath.Join(dir, "missing"), bytes.ReplaceAll(classless, []byte(denied), []byte(dir+"/nowhere")))
	write(t, filepath.Join(dir, "other"), bytes.ReplaceAll(classless, []byte(denied), []byte(allowed)))
	classless[elf.EI_CLASS] = byte(elf.ELFCLASSNONE)
	write(t, filepath.Join(dir, "classless"), classless)
	run := func(mode, program string) string {
		marks := rig.Value(os.CreateTemp(dir, "marks"))
		defer marks.Close()
		argv := []string{"/bin/sh", "-c", "./" + program + "; exit $?"}
		r, _ := supervise(t, setup{Mode: mode, Argv: argv, Dir: dir, Denied: denied, DeniedWord: "forbidden"}, marks)
		return fmt.Sprintf("%d %q %v", r.Code, rig.Value(os.ReadFile(marks.Name())), r.Refused > 0)
	}
	for _, program := range []string{"names", "classless"} {
		rig.Is(t, run(bare, program), `7 "x" false`, "%s without a supervisor: code, marks, refused", program)
		rig.Is(t, run(checked, program), `126 "" true`, "%s", program)
	}
	rig.Is(t, run(checked, "missing"), `127 "" false`, "a loader that is missing")
	rig.Is(t, run(checked, "other"), `7 "x" false`, "a loader that is allowed")
	// The loader of a script's interpreter finds what the line of the script says.
	rig.Is(t, run(checked, "script"), `126 "" true`, "a script")
}

// TestUnreadable: a program that may be executed and not read could not be compared,
// so it is refused.
func TestUnreadable(t *testing.T) {
	t.Parallel()
	program := programs(t)
	dir := formFiles(t, program)
	unreadable := filepath.Join(dir, "relative")
	rig.Must(t, os.Chmod(unreadable, 0o111))
	s := setup{Mode: bare, Argv: []string{program, "form", "path", unreadable, "args"}, nobody: true}
	if os.Getuid() != 0 {
		t.Skip("the file of this user's is readable to it")
	}
	_, out := supervise(t, s, nil)
	rig.Is(t, out, fmt.Sprintf("%d CPUs: [args]\nexit 0\n", runtime.NumCPU()), "without a supervisor")
	s.Mode = checked
	_, out = supervise(t, s, nil)
	rig.Is(t, out, "errno EACCES\nexit 1\n", "unreadable")
	// A process that has hidden its memory cannot be traced by an ordinary user.
	s.Argv = []string{program, "form", "unseen", program, "args"}
	if _, out := supervise(t, s, nil); out != "errno EPERM\nexit 1\n" && out != "errno EACCES\nexit 1\n" {
		t.Errorf("not dumpable: %s", out)
	}
}

// TestDebuggers: a debugger can attach to a process, and cannot start one.
func TestDebuggers(t *testing.T) {
	t.Parallel()
	dir := rig.Public(t)
	// A debugger that attaches while the checker traces the process would be refused.
	const sleeping = `sleep 1000 & s=$!
		until grep -q '^Name:.sleep' /proc/$s/status && grep -q '^TracerPid:.0$' /proc/$s/status; do :; done
		`
	for _, tt := range []struct {
		debugger, script string
		want             string // an expression
	}{
		{"strace", `strace -o /dev/null true; echo $?`, `(?s)Operation not permitted.*\n[1-9][0-9]*\n$`},
		{"strace", sleeping + `strace -o trace -p $s & t=$!
			until grep -q "^TracerPid:.$t\$" /proc/$s/status; do kill -0 $t || exit; done
			kill $s; wait $t; tail -n1 trace`, `killed by SIGTERM`},
		{"gdb", sleeping + `gdb -nx -batch -p $s -ex 'print 6*7' -ex detach 2>&1; kill $s`, `= 42`},
	} {
		if _, err := exec.LookPath(tt.debugger); err != nil {
			t.Run(tt.debugger, func(t *testing.T) { missing(t, "there is no "+tt.debugger) })
			continue
		}
		path := filepath.Join(dir, tt.debugger)
		write(t, path, []byte("#!/bin/bash\n"+tt.script+"\n"))
		_, out := supervise(t, setup{Mode: checked, Argv: []string{path}, Dir: dir}, nil)
		rig.Is(t, regexp.MustCompile(tt.want).MatchString(out), true, "%s: %s", tt.script, out)
	}
}

// TestKilledMeanwhile: when the command is killed while an execve of its is checked,
// the supervisor still learns of its end.
func TestKilledMeanwhile(t *testing.T) {
	t.Parallel()
	program := programs(t)
	r := rand.New(rand.NewPCG(3, 4))
	moments := 8
	if rig.Runs(rig.Merge) {
		moments = 40
	}
	for range moments {
		cmd, readReport := supervisorCommand(t, setup{Mode: checked, Argv: []string{program, "again", "1000000", program}}, nil)
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		rig.Must(t, cmd.Start())
		var child int
		sandboxtest.Eventually(t, "it has a child", func() bool {
			all := rig.Children(cmd.Process.Pid)
			if len(all) > 0 {
				child = all[0]
			}
			return child != 0
		})
		time.Sleep(time.Duration(r.IntN(3000)) * time.Microsecond) // any moment will do
		// The child's parent reaps it only when it has ended, so this is the child.
		rig.Must(t, unix.Kill(child, unix.SIGKILL))
		rig.Is(t, cmd.Wait(), nil, "%s", &out)
		report := readReport()
		passed := report.ReplacedFile + report.ReplacedArgv + report.Let
		rig.Is(t, [2]int{report.Code, int(passed)}, [2]int{137, 0}, "%+v %s", report, &out)
	}
}

// TestMapped: the files of a process are told as the kernel has them, whatever their names are.
func TestMapped(t *testing.T) {
	t.Parallel()
	dir := rig.Public(t)
	for _, name := range []string{"plain", "with blanks ", "line\nfeed", `line\012feed`, "gone (deleted)", "00:00 0 [heap]"} {
		program := filepath.Join(dir, name)
		rig.Must(t, exec.Command("cp", "/bin/cat", program).Run())
		cat := exec.CommandContext(t.Context(), program)
		in := rig.Value(cat.StdinPipe())
		out := rig.Value(cat.StdoutPipe())
		rig.Must(t, cat.Start())
		var b [1]byte
		rig.Must(t, rig.Err(in.Write(b[:])), rig.Err(out.Read(b[:]))) // all is loaded now
		got := rig.Value(mapped(cat.Process.Pid))
		rig.Same(t, name, rig.Value(mappedFiles(cat.Process.Pid)), got)
		rig.Is(t, slices.Contains(got, program), true, "%q is in %q", program, got)
		for _, path := range got {
			testMayMap(t, cat.Process.Pid, path, path == program)
		}
		in.Close()
		rig.Check(t, cat.Wait())
	}
}

// testMayMap tests that a process may have a file mapped into it that was judged as its loader, and
// that one which was not is decided about, with the arguments that it finds.
func testMayMap(t *testing.T, pid int, path string, isProgram bool) {
	t.Helper()
	argv := []string{"a", "b"}
	var decided []Image
	w := &window{Checker: New(Config{Decide: func(i Image) error {
		if i.Program != path || i.Loader != path {
			return nil
		}
		decided = append(decided, i)
		return unix.EPERM
	}})}
	if may := w.mayMap(pid, argv); may != isProgram || !isProgram && (len(decided) != 1 || !decided[0].Real || decided[0].Process != pid || !slices.Equal(decided[0].Argv, argv)) {
		t.Errorf("%q: %v, decided about %+v", path, may, decided)
	}
	decided, w.want.loader = nil, path
	rig.Is(t, w.mayMap(pid, argv) && decided == nil, true, "%q as the loader: decided about %+v", path, decided)
}

// TestReadUpTo: a file that cannot be read, such as that of a process that has just ended, is an error. It was a panic.
func TestReadUpTo(t *testing.T) {
	t.Parallel()
	_, err := readUpTo(-1, 8)
	rig.Is(t, err, error(unix.EBADF), "the error")
}
