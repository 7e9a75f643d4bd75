package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/execagent/execagent/registry"
	"github.com/execagent/execagent/registry/store"
)

const (
	demoEnvironment = "demo"
	demoCommand     = `echo "hello from $(uname -n), as user $(id -u)"`

	// demoPatience bounds the whole demonstration, which takes about a second.
	demoPatience = 30 * time.Second
	// stopPatience is how long the agent may take to end after SIGTERM, if the
	// demonstration was broken off. Then it is killed.
	stopPatience = 5 * time.Second
	// maxLogLine is how long a line of the agent's log may be, in bytes. A longer
	// one ends the reading of the log.
	maxLogLine = 64 << 10
)

// demoFlags say which agent the demonstration starts.
type demoFlags struct {
	Agent string `type:"path" placeholder:"FILE" help:"The agent to start. Default: the one beside this program."`
}

func (*demoFlags) Help() string {
	return `Starts a registry with its rendezvous, an agent and a command that runs on it through the encrypted relay, all on loopback, and tells what happens. Nothing is left behind.`
}

// demo is one run of the demonstration.
type demo struct {
	agent string
	out   io.Writer
	steps int   // printed so far
	err   error // the first error of writing to out
}

// runDemo finds the agent and shows remote mode, step by step. The end of ctx ends
// the demonstration early.
func runDemo(ctx context.Context, out io.Writer, flags *demoFlags) (err error) {
	ctx, cancel := context.WithTimeout(ctx, demoPatience)
	defer cancel()
	d := &demo{agent: flags.Agent, out: out}
	if d.agent == "" {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("finding the agent: %w", err)
		}
		d.agent = filepath.Join(filepath.Dir(self), "agent")
	}
	if _, err := os.Stat(d.agent); err != nil {
		return fmt.Errorf("finding the agent: %w", err)
	}
	dir, err := os.MkdirTemp("", "registry-demo-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := d.run(ctx, dir); err != nil {
		return err
	}
	d.step("all of it has ended, and the folder is removed")
	return d.err
}

// step prints a numbered line.
func (d *demo) step(format string, args ...any) {
	d.steps++
	d.print(fmt.Sprintf("%2d  "+format, append([]any{d.steps}, args...)...))
}

// detail prints a line that belongs to the step before it.
func (d *demo) detail(line string) { d.print("      " + line) }

func (d *demo) print(line string) {
	if _, err := fmt.Fprintln(d.out, line); d.err == nil {
		d.err = err
	}
}

// run keeps all data in dir. When it returns, nothing runs any more.
func (d *demo) run(ctx context.Context, dir string) (err error) {
	d.print("Remote mode on this machine: a registry with its rendezvous, an agent, and somebody who runs a command on it.")
	st, err := store.Open(ctx, store.Config{Dir: dir})
	if err != nil {
		return fmt.Errorf("opening the store: %w", err)
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	server, err := registry.New(ctx, registry.Config{Store: st})
	if err != nil {
		return fmt.Errorf("starting the registry: %w", err)
	}
	defer func() { err = errors.Join(err, server.Close()) }()
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	rendezvous := &tap{Listener: listener}
	front := registry.NewFront(server, rendezvous, nil)
	served := make(chan error, 1)
	go func() { served <- front.Serve() }()
	defer func() { err = errors.Join(err, front.Close(), <-served) }()
	url := "http://" + listener.Addr().String()
	d.step("registry with an embedded NATS on %s, its data in a temporary folder", url)

	executorKey, err := d.createKey(ctx, st, "executor")
	if err != nil {
		return err
	}
	harnessKey, err := d.createKey(ctx, st, "harness")
	if err != nil {
		return err
	}
	agent, err := d.startAgent(ctx, url, executorKey)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, agent.stop()) }()
	if err := d.watch(ctx, agent); err != nil {
		return err
	}
	output, err := d.command(ctx, url, harnessKey)
	if err != nil {
		return err
	}
	return d.explain(rendezvous.look(), output)
}

// createKey makes a key, and prints its id and role but not the key itself.
func (d *demo) createKey(ctx context.Context, st *store.Store, role string) (string, error) {
	text, key, err := st.CreateKey(ctx, store.Key{Label: "demo", Role: role, Environments: demoEnvironment})
	if err != nil {
		return "", fmt.Errorf("creating a key: %w", err)
	}
	d.step("API key %s: may be %s of the environment %q", key.ID, role, demoEnvironment)
	return text, nil
}

// demoAgent is the agent, a child of this process.
type demoAgent struct {
	cmd   *exec.Cmd
	began time.Time
	log   <-chan demoLine // closed at the end of the log
}

// demoLine has what the demonstration needs of a line of the agent's log.
type demoLine struct {
	Message      string `json:"msg"`
	Registration string `json:"registration"`
}

// startAgent starts the agent and reads its log. The caller stops it.
func (d *demo) startAgent(ctx context.Context, url, key string) (*demoAgent, error) {
	args := []string{"--remote", url, "--environment-id", demoEnvironment}
	cmd := exec.CommandContext(ctx, d.agent, append(args, "--log-format", "json")...)
	cmd.Env = demoEnviron("CODEX_API_KEY=" + key)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = stopPatience
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return nil, err
	}
	a := &demoAgent{cmd: cmd, began: time.Now()}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the agent: %w", err)
	}
	d.step("started: CODEX_API_KEY=... agent %s", strings.Join(args, " "))
	// An agent of the demonstration logs fewer lines than this. If there are more,
	// the rest is dropped: otherwise the pipe would fill up, and the agent would
	// wait to write its log.
	lines := make(chan demoLine, 64)
	a.log = lines
	go func() {
		defer close(lines)
		scanner := bufio.NewScanner(stderr)
		scanner.Buffer(nil, maxLogLine)
		for scanner.Scan() {
			var line demoLine
			if json.Unmarshal(scanner.Bytes(), &line) != nil {
				line.Message = scanner.Text() // why an agent fails is plain text, not JSON
			}
			select {
			case lines <- line:
			default:
			}
		}
	}()
	return a, nil
}

// watch waits until the agent is online, and prints the steps on the way.
func (d *demo) watch(ctx context.Context, a *demoAgent) error {
	last := "nothing"
	for {
		select {
		case line, ok := <-a.log:
			switch {
			case !ok:
				return fmt.Errorf("the agent has ended, its last words: %s", last)
			case line.Message == "registered":
				d.step("the agent has registered its public key: registration %s", line.Registration)
			case line.Message == "connected to the rendezvous":
				d.step("its websocket to the rendezvous is up, %d ms after its start", time.Since(a.began).Milliseconds())
				return nil
			}
			last = line.Message
		case <-ctx.Done():
			return fmt.Errorf("waiting for the agent: %w", ctx.Err())
		}
	}
}

// stop ends the agent. An exit code other than 0 is an error.
func (a *demoAgent) stop() error {
	_ = a.cmd.Process.Signal(syscall.SIGTERM) // the agent may have ended already
	for range a.log {
		// Wait would close the pipe, so the log is read to its end before.
	}
	if err := a.cmd.Wait(); err != nil {
		return fmt.Errorf("ending the agent: %w", err)
	}
	return nil
}

// command runs a command as a harness and returns its output.
func (d *demo) command(ctx context.Context, url, key string) (string, error) {
	args := []string{"exec", "--registry", url, "--environment-id", demoEnvironment, "--", "sh", "-c"}
	d.step("started: AGENT_REGISTRY_TOKEN=... agent %s '%s'", strings.Join(args, " "), demoCommand)
	cmd := exec.CommandContext(ctx, d.agent, append(args, demoCommand)...)
	cmd.Env = demoEnviron("AGENT_REGISTRY_TOKEN=" + key)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		first, _, _ := strings.Cut(stderr.String(), "\n")
		return "", fmt.Errorf("running the command: %w, %.512s", err, first)
	}
	return stdout.String(), nil
}

// explain prints the output of the command and what the rendezvous has seen of it.
// It returns an error if the rendezvous could read any of it.
func (d *demo) explain(s seen, output string) error {
	if len(s.handshakes) != 2 || len(s.record) == 0 {
		return fmt.Errorf("the rendezvous has seen %d handshake messages and records of %d bytes", len(s.handshakes), len(s.record))
	}
	d.step("handshake of the two ends (Noise with X25519 and ML-KEM-768): %s bytes to the agent, %s bytes back",
		thousands(s.handshakes[0]), thousands(s.handshakes[1]))
	d.step("the command has ended with exit code 0; its output:")
	for line := range strings.Lines(output) {
		d.detail(strings.TrimRight(line, "\n"))
	}
	d.step("the rendezvous has passed on %d frames, %s bytes; the first record begins with", s.frames, thousands(s.bytes))
	d.detail(fmt.Sprintf("% x", s.record[:min(len(s.record), 32)]))
	for _, plain := range []string{"process/start", demoCommand, "hello", strings.TrimSpace(output)} {
		if bytes.Contains(s.content, []byte(plain)) {
			return fmt.Errorf("the rendezvous has seen %q", plain)
		}
	}
	d.step("nothing of the command, its output or the protocol is readable in any of them")
	return nil
}

// demoEnviron is the environment of a child: the variables that commands need, and
// the child's key.
func demoEnviron(key string) []string {
	environ := []string{key}
	for _, name := range []string{"PATH", "HOME", "TMPDIR", "LANG"} {
		if value, ok := os.LookupEnv(name); ok {
			environ = append(environ, name+"="+value)
		}
	}
	return environ
}

// thousands writes a number with a comma between thousands.
func thousands(n int) string {
	text := strconv.Itoa(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
