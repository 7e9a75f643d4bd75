// Package e2e tests the agent as its users meet it: a program that is started, talked to and ended.
package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// patience is how long a test waits for what must come, before it fails.
const patience = rig.Patience

// waits are the lines by which users learn, after a second or two, that they have to wait.
var waits = regexp.MustCompile(`(?m)^agent: (waiting for .+|the connection is (lost, waiting for it to come back.*|back))\r?\n`)

// withoutWaits is what a program has said, without the lines that a machine makes it say which
// has much else to do.
func withoutWaits(said string) string { return waits.ReplaceAllString(said, "") }

// result is what a program has left that has come to its end.
type result struct {
	stdout, stderr string
	code           int
}

// finish runs a program to its end. What it says of waits is left out.
func finish(t *testing.T, cmd *exec.Cmd) result {
	t.Helper()
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return result{out.String(), withoutWaits(complaints.String()), cmd.ProcessState.ExitCode()}
}

// says runs a program to its end and returns what it prints to both outputs, as ending does.
func says(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return ending(withoutWaits(out.String()), cmd.ProcessState.ExitCode())
}

// ending adds a line with the exit code to what a program has printed, unless the code is 0.
func ending(printed string, code int) string {
	if code != 0 {
		printed += fmt.Sprintf("exit %d\n", code)
	}
	return printed
}

// textOf is what was read, and behind it why not all was, if so.
func textOf(content []byte, err error) string {
	if err != nil {
		return fmt.Sprintf("%s: %v", content, err)
	}
	return string(content)
}

// has fails a test unless all of these parts are in a text.
func has(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("there is no %q in\n%s", part, text)
		}
	}
}

// lacks fails a test if one of these parts is in a text.
func lacks(t *testing.T, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if strings.Contains(text, part) {
			t.Errorf("there is %q in\n%s", part, text)
		}
	}
}

// isEmpty fails a test unless a folder is there and has nothing in it.
func isEmpty(t *testing.T, dir string) {
	t.Helper()
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("in %s there are %v, %v", dir, left, err)
	}
}

// missing leaves out a test for which the machine lacks something. In CI it fails.
func missing(t *testing.T, why any) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal(why)
	}
	t.Skip(why)
}

// need leaves out a test where one of these programs is not there: by missing, or by skip, for those that CI
// may lack too.
func need(t *testing.T, lack func(t *testing.T, why any), programs ...string) {
	t.Helper()
	for _, program := range programs {
		if _, err := exec.LookPath(program); err != nil {
			lack(t, err)
		}
	}
}

func skip(t *testing.T, why any) {
	t.Helper()
	t.Skip(why)
}

// memoryOf is what a process that lives says of its memory, in KiB.
func memoryOf(t *testing.T, pid int, member string) int {
	t.Helper()
	kib, ok := rig.Memory(pid, member)
	if !ok {
		t.Fatalf("process %d is gone", pid)
	}
	return kib
}

// install copies programs.
func install(t *testing.T, programs map[string]string) {
	t.Helper()
	for to, from := range programs {
		rig.Must(t, rig.WriteProgram(to, rig.Value(os.ReadFile(from))))
	}
}

// dialed is a client of an agent, until the test ends.
func dialed(t *testing.T, url string, options ...client.Option) *client.Client {
	t.Helper()
	c, err := client.DialURL(rig.Context(t), url, options...)
	rig.Must(t, err)
	t.Cleanup(func() { _ = c.Close() }) // the agent may be gone
	return c
}

// allJSON fails a test unless each line of a log is JSON.
func allJSON(t *testing.T, log string) {
	t.Helper()
	for line := range strings.Lines(log) {
		if !json.Valid([]byte(line)) {
			t.Errorf("no JSON: %s", line)
		}
	}
}

// outcome is what a process leaves.
func outcome(t *testing.T, p *client.Process) result {
	t.Helper()
	var out, complaints strings.Builder
	code, err := p.CopyOutput(rig.Context(t), &out, &complaints)
	if err != nil {
		t.Fatalf("%v\n%s%s", err, &out, &complaints)
	}
	return result{out.String(), complaints.String(), code}
}

// inside runs a command of a client under a policy, in a folder.
func inside(t *testing.T, c *client.Client, box *protocol.Sandbox, dir string, argv ...string) result {
	t.Helper()
	p, err := c.Start(rig.Context(t), protocol.StartParams{
		Argv: argv, Cwd: protocol.NewPathURI(dir), Sandbox: box, Env: map[string]string{"PATH": os.Getenv("PATH"), "HOME": dir},
	})
	rig.Must(t, err)
	return outcome(t, p)
}

// answer is what a client's command without a sandbox prints that is given an input.
func answer(t *testing.T, c *client.Client, input string, argv ...string) string {
	t.Helper()
	r, err := c.Run(rig.Context(t), client.Spec{Argv: argv, Dir: "/"}, []byte(input))
	rig.Must(t, err)
	return ending(string(r.Stdout)+string(r.Stderr), r.ExitCode)
}

// initialize says hello to an agent on stdio.
func (a *running) initialize(t *testing.T) {
	t.Helper()
	has(t, a.ask(t, `{"id":1,"method":"initialize","params":{"clientName":"e2e"}}`), "sessionId")
	rig.Must(t, rig.Err(io.WriteString(a.stdin, `{"method":"initialized"}`+"\n")))
}
