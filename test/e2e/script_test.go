package e2e

import (
	"bufio"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/execagent/execagent/test/rig"
)

// TestScripts runs the scripts of testdata against the agent as it is built for release. Besides
// testscript's own commands they have:
//
//	serve ARG...             start an agent with --listen ws://127.0.0.1:0; its URL is $URL, its
//	                         log is in the file log. When the script ends it gets SIGTERM and
//	                         must exit with code 0
//	code N COMMAND ARG...    as exec, for a command that must exit with code N
//	jwt FILE SECRET CLAIMS   write a token signed with HS256
func TestScripts(t *testing.T) {
	bin := filepath.Dir(rig.Agent(t))
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata",
		Deadline:            time.Now().Add(blockTime),
		RequireExplicitExec: true,
		Setup: func(env *testscript.Env) error {
			env.Setenv("PATH", bin+string(os.PathListSeparator)+env.Getenv("PATH"))
			env.Setenv("HOME", env.WorkDir)
			env.Setenv("REPOSITORY", rig.Value(filepath.Abs("../..")))
			return nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"serve": serveCommand, "code": codeCommand, "jwt": jwtCommand,
		},
	})
}

func refuseNegation(ts *testscript.TestScript, neg bool) {
	if neg {
		ts.Fatalf("! has no meaning here")
	}
}

func serveCommand(ts *testscript.TestScript, neg bool, args []string) {
	refuseNegation(ts, neg)
	log, err := os.OpenFile(ts.MkAbs("log"), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	ts.Check(err)
	defer log.Close()
	bin, err := rig.Build()
	ts.Check(err)
	cmd := rig.Leash(exec.Command(filepath.Join(bin, "agent"), append([]string{"--listen", "ws://127.0.0.1:0"}, args...)...))
	cmd.Dir = ts.MkAbs(".")
	cmd.Env = []string{"PATH=" + ts.Getenv("PATH"), "HOME=" + ts.Getenv("HOME")}
	for _, name := range []string{"OPENAI_API_KEY", "SERVER_VARIABLE", "PWD"} {
		if value := ts.Getenv(name); value != "" {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
	}
	cmd.Stderr = log
	stdout, err := cmd.StdoutPipe()
	ts.Check(err)
	ts.Check(cmd.Start())
	bound := func() (end func() bool) {
		return time.AfterFunc(patience, func() { _ = cmd.Process.Kill() }).Stop
	}
	ts.Defer(func() {
		defer bound()()
		ts.Check(cmd.Process.Signal(syscall.SIGTERM))
		ts.Check(cmd.Wait())
	})
	end := bound()
	line, err := bufio.NewReader(stdout).ReadString('\n')
	end()
	ts.Check(err)
	ts.Setenv("URL", strings.TrimSuffix(line, "\n"))
	ts.Setenv("PID", fmt.Sprint(cmd.Process.Pid))
}

func codeCommand(ts *testscript.TestScript, neg bool, args []string) {
	refuseNegation(ts, neg)
	if len(args) < 2 {
		ts.Fatalf("usage: code N COMMAND ARG...")
	}
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode() // -1 after a signal
	}
	if fmt.Sprint(got) != args[0] {
		ts.Fatalf("exit code %d, want %s", got, args[0])
	}
}

func jwtCommand(ts *testscript.TestScript, neg bool, args []string) {
	refuseNegation(ts, neg)
	if len(args) != 3 {
		ts.Fatalf("usage: jwt FILE SECRET CLAIMS")
	}
	encode := base64.RawURLEncoding.EncodeToString
	text := encode([]byte(`{"alg":"HS256"}`)) + "." + encode([]byte(args[2]))
	mac := hmac.New(sha256.New, []byte(args[1]))
	mac.Write([]byte(text))
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(text+"."+encode(mac.Sum(nil))+"\n"), 0o600))
}

// console runs the commands of a file of testdata/console in a folder, one after the other. Each begins
// with "$ ". Behind it is what it has to print: standard output, then standard error, and "exit N" if
// that is its code. Variables stand for what environ gives them. A line of standard error that does not
// begin with "agent: " has the name of the stream before it, as has one of standard output that does.
// Lines with "# " are comments.
func console(t *testing.T, file, dir string, environ ...string) {
	t.Helper()
	text := textOf(os.ReadFile(filepath.Join("testdata/console", file)))
	text = regexp.MustCompile(`(?m)^# .*\n`).ReplaceAllString(text, "")
	steps := strings.Split("\n"+text, "\n$ ")[1:]
	if len(steps) < 10 {
		t.Fatalf("%s has %d commands", file, len(steps))
	}
	for _, step := range steps {
		command, want, _ := strings.Cut(strings.TrimSuffix(step, "\n")+"\n", "\n")
		want = os.Expand(want, func(name string) string {
			i := slices.IndexFunc(environ, func(entry string) bool { return strings.HasPrefix(entry, name+"=") })
			return environ[i][len(name)+1:]
		})
		cmd := rig.Command(t, "sh", "-c", command)
		cmd.Env, cmd.Dir = environ, dir
		r := finish(t, cmd)
		var told strings.Builder
		for stream, printed := range []string{r.stdout, r.stderr} {
			for line := range strings.Lines(printed) {
				if strings.HasPrefix(line, "agent: ") != (stream == 1) {
					told.WriteString([]string{"stdout: ", "stderr: "}[stream])
				}
				told.WriteString(line)
			}
		}
		rig.Is(t, ending(told.String(), r.code), want, "%s", command)
	}
}
