package hostile

import (
	"bytes"
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
	"github.com/execagent/execagent/transport"
)

// agent is one that runs where there are no namespaces.
type agent struct {
	programs
	uid    int
	cmd    *exec.Cmd
	client *client.Client
	stderr *rig.Transcript
}

// startAgent starts an agent and connects to it. It ends with the test.
func startAgent(t *testing.T, p programs, b backend, uid int) *agent {
	t.Helper()
	argv := slices.Concat(b.through(p), []string{p.agent, "--listen", "stdio", "--log-level", "warn"})
	a := &agent{programs: p, uid: uid, cmd: as(exec.Command(argv[0], argv[1:]...), uid), stderr: &rig.Transcript{}}
	a.cmd.Env, a.cmd.Dir, a.cmd.Stderr = []string{"PATH=/usr/bin:/bin"}, "/", a.stderr
	in, err := a.cmd.StdinPipe()
	rig.Must(t, err)
	out, err := a.cmd.StdoutPipe()
	rig.Must(t, err)
	rig.Must(t, a.cmd.Start())
	a.client, err = client.Connect(t.Context(), client.Config{Single: true, Dial: func(context.Context) (rpc.Conn, error) {
		return transport.Stdio(out, in, nil), nil
	}})
	t.Cleanup(func() {
		if a.client != nil {
			_ = a.client.Close() // it may be gone
		}
		late := time.AfterFunc(rig.Patience, func() { _ = a.cmd.Process.Kill() })
		defer late.Stop()
		_ = a.cmd.Wait()
		if t.Failed() {
			t.Logf("the agent: %v\n%s", a.cmd.ProcessState, a.stderr)
		}
	})
	rig.Must(t, err)
	return a
}

// command is a confined process of an agent.
type command struct {
	*client.Process
	agent *agent
	mark  string // in the environment of all processes of the command
}

// start starts the intruder on a ground.
func (a *agent) start(t *testing.T, g ground, args ...string) *command {
	t.Helper()
	c := &command{agent: a, mark: "hostile-" + rand.Text()}
	p, err := a.client.Start(t.Context(), protocol.StartParams{
		Argv: append([]string{a.intruder}, args...), Cwd: protocol.NewPathURI(g.base + "/repo"),
		Env: map[string]string{"MARK": c.mark}, Sandbox: g.policy(), PipeStdin: true,
	})
	rig.Must(t, err)
	c.Process = p
	t.Cleanup(func() { // what a failed test leaves would disturb all later ones
		for _, stat := range marked(c.mark) {
			if pid, err := strconv.Atoi(strings.Fields(stat)[0]); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
	})
	return c
}

// ended is how a command has ended.
type ended struct {
	code           int
	stdout, stderr string
}

// finish waits for the end, at most as long as patience lasts. It calls begun, if that is not nil,
// once the command has printed "ready".
func (c *command) finish(t *testing.T, begun func()) ended {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), rig.Patience)
	defer cancel()
	var out ready
	out.begun = begun
	var complaints strings.Builder
	code, err := c.CopyOutput(ctx, &out, &complaints)
	if err != nil {
		t.Fatalf("%v; left: %v\n%s%s%s", err, marked(c.mark), &out.text, &complaints, c.agent.stderr)
	}
	return ended{code, out.text.String(), complaints.String()}
}

// ready keeps what is written, and calls begun at the line "ready".
type ready struct {
	text  strings.Builder
	begun func()
}

// Write has no error.
func (r *ready) Write(p []byte) (int, error) {
	r.text.Write(p)
	if r.begun != nil && strings.Contains(r.text.String(), "ready\n") {
		begun := r.begun
		r.begun = nil
		begun()
	}
	return len(p), nil
}

// inits returns the two inits of the agent's only command. The second is 0 where there is one.
func (a *agent) inits() (outer, inner int) {
	return initOf(a.cmd.Process.Pid), initOf(initOf(a.cmd.Process.Pid))
}

// initOf returns the child of a process that is an init of a command, 0 if none is.
func initOf(pid int) int {
	children := rig.Children(pid)
	if i := slices.IndexFunc(children, isInit); i >= 0 {
		return children[i]
	}
	return 0
}

// isInit reports whether a process is an init of a command.
func isInit(pid int) bool {
	line, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return bytes.Contains(line, []byte("sandbox-init"))
}

// marked are the processes with a mark in their environment.
func marked(mark string) (found []string) {
	environs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, path := range environs {
		if env, err := os.ReadFile(path); err == nil && bytes.Contains(env, []byte("MARK="+mark)) {
			stat, _ := os.ReadFile(filepath.Dir(path) + "/stat")
			found = append(found, string(stat))
		}
	}
	return found
}

// gone waits until nothing of the command is left.
func (c *command) gone(t *testing.T) {
	t.Helper()
	var err error
	defer func() { rig.Check(t, err) }()
	rig.Until(t, "nothing of it is left", func() bool { err = c.left(); return err == nil })
}

// left is an error if something of the command still runs, or has not been reaped.
func (c *command) left() error {
	if processes := marked(c.mark); len(processes) > 0 {
		return fmt.Errorf("left: %q", processes)
	}
	for _, pid := range rig.Children(c.agent.cmd.Process.Pid) {
		if isInit(pid) {
			return fmt.Errorf("the init %d is left", pid)
		}
		if stat, err := linux.StatOf(pid); err == nil && stat.Dead() {
			return fmt.Errorf("nobody has reaped %d: %q", pid, stat)
		}
	}
	return nil
}

// send sends a signal, which may come too late.
func send(t *testing.T, pid int, sig syscall.Signal) {
	t.Helper()
	if pid <= 0 {
		t.Fatalf("there is no process %d to send %v to", pid, sig)
	}
	if err := syscall.Kill(pid, sig); err != nil && err != syscall.ESRCH {
		t.Error(err)
	}
}
