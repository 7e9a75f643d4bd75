package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/relay"
	"github.com/execagent/execagent/relay/noise"
)

type rigConfig struct {
	agent, registry, reference string // programs
}

// rig is a registry with executors behind it.
type rig struct {
	cfg       rigConfig
	dir       string
	address   string // of the registry
	harness   string // keys
	executor  string
	processes []*exec.Cmd
	proxies   []*proxy
	executors []*executor
}

// executor is one of the programs that are compared. It has two environments:
// one straight at the registry, one behind a proxy that can stop and cut.
type executor struct {
	rig     *rig
	name    string
	pid     int
	proxied struct {
		pid   int
		proxy *proxy
	}
}

func newRig(ctx context.Context, cfg rigConfig) (_ *rig, err error) {
	r := &rig{cfg: cfg}
	defer func() {
		if err != nil {
			r.close()
		}
	}()
	if r.dir, err = os.MkdirTemp("", "relaybench"); err != nil {
		return nil, err
	}
	data := filepath.Join(r.dir, "data")
	if r.executor, err = r.createKey(ctx, "executor", "--data", data); err != nil {
		return nil, err
	}
	if r.harness, err = r.createKey(ctx, "harness", "--data", data); err != nil {
		return nil, err
	}
	if r.address, err = r.startRegistry(ctx, nil, "--data", data); err != nil {
		return nil, err
	}
	names := []string{"ours"}
	if cfg.reference != "" {
		names = append(names, "reference")
	}
	for _, name := range names {
		e := &executor{rig: r, name: name}
		if e.pid, err = r.startExecutor(ctx, name, name, r.address); err != nil {
			return nil, err
		}
		if e.proxied.proxy, err = newProxy(r.address); err != nil {
			return nil, err
		}
		r.proxies = append(r.proxies, e.proxied.proxy)
		if e.proxied.pid, err = r.startExecutor(ctx, name, name+"-proxied", e.proxied.proxy.address()); err != nil {
			return nil, err
		}
		r.executors = append(r.executors, e)
	}
	return r, nil
}

// close ends everything that was started.
func (r *rig) close() {
	for _, p := range slices.Backward(r.processes) {
		_ = p.Process.Signal(syscall.SIGTERM)
	}
	for _, p := range slices.Backward(r.processes) {
		killed := time.AfterFunc(5*time.Second, func() { _ = p.Process.Kill() })
		_ = p.Wait() // killed by us: its status says nothing
		killed.Stop()
	}
	for _, p := range r.proxies {
		p.close()
	}
	_ = os.RemoveAll(r.dir)
}

// createKey is the registry's own way to make one.
func (r *rig) createKey(ctx context.Context, role string, args ...string) (string, error) {
	args = append([]string{"keys", "create", "--role", role, "--environment", "*"}, args...)
	out, err := exec.CommandContext(ctx, r.cfg.registry, args...).Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return "", fmt.Errorf("creating a key: %w", err)
	}
	return strings.TrimSpace(string(out)), nil
}

// startRegistry starts a registry on a free port and waits until it is ready.
func (r *rig) startRegistry(ctx context.Context, env []string, args ...string) (address string, err error) {
	if address, err = freeAddress(); err != nil {
		return "", err
	}
	// No limits: they are not what is measured.
	args = append([]string{"serve", "--listen", address, "--log-level", "warn",
		"--requests=-1", "--request-burst=-1", "--connections=-1", "--streams=-1", "--bytes=-1"}, args...)
	cmd := exec.Command(r.cfg.registry, args...)
	cmd.Env = append(os.Environ(), env...)
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		return "", err
	}
	r.processes = append(r.processes, cmd)
	return address, r.ready(ctx, address)
}

// startExecutor starts the program as the executor of an environment.
func (r *rig) startExecutor(ctx context.Context, name, environment, address string) (pid int, err error) {
	args := []string{"--remote", "http://" + address, "--environment-id", environment}
	program := r.cfg.agent
	home := filepath.Join(r.dir, environment)
	if err := os.MkdirAll(home, 0o700); err != nil {
		return 0, err
	}
	if name == "reference" {
		program, args = r.cfg.reference, append([]string{"exec-server"}, args...)
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "CODEX_API_KEY="+r.executor, "CODEX_HOME="+home)
	var log bytes.Buffer
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		return 0, err
	}
	r.processes = append(r.processes, cmd)
	c, err := r.connect(ctx, environment)
	if err != nil {
		return 0, fmt.Errorf("%s does not come online: %w", environment, err)
	}
	return cmd.Process.Pid, c.Close()
}

// dialer reaches an environment.
func (r *rig) dialer(environment string) (*relay.Dialer, error) {
	return r.dialerAt(r.address, environment)
}

// dialerAt reaches it through a certain registry process.
func (r *rig) dialerAt(address, environment string) (*relay.Dialer, error) {
	identity, err := noise.NewIdentity()
	if err != nil {
		return nil, err
	}
	registry, err := relay.NewRegistry(relay.RegistryConfig{
		BaseURL:       "http://" + address,
		EnvironmentID: environment,
		Tokens:        auth.APIKey(r.harness),
	})
	if err != nil {
		return nil, err
	}
	return &relay.Dialer{Registry: registry, Identity: identity}, nil
}

func (r *rig) connect(ctx context.Context, environment string) (*client.Client, error) {
	d, err := r.dialer(environment)
	if err != nil {
		return nil, err
	}
	return client.Connect(ctx, client.Config{Dial: d.Dial, ConnectTimeout: 20 * time.Second})
}

func freeAddress() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}

// ready waits until something listens at the address.
func (r *rig) ready(ctx context.Context, address string) error {
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := net.Dial("tcp", address)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return err
		}
	}
}

// proxy passes TCP connections on. It can stop passing on what comes from the
// client, and cut what is open.
type proxy struct {
	listener net.Listener
	target   string
	passing  sync.RWMutex // held for writing while stopped

	mu    sync.Mutex
	conns []net.Conn
}

func newProxy(target string) (*proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &proxy{listener: l, target: target}
	go p.serve()
	return p, nil
}

func (p *proxy) address() string { return p.listener.Addr().String() }

func (p *proxy) serve() {
	for {
		from, err := p.listener.Accept()
		if err != nil {
			return
		}
		to, err := net.Dial("tcp", p.target)
		if err != nil {
			from.Close()
			continue
		}
		p.mu.Lock()
		p.conns = append(p.conns, from, to)
		p.mu.Unlock()
		go p.pass(to, from, &p.passing)
		go p.pass(from, to, nil)
	}
}

func (p *proxy) pass(to, from net.Conn, gate *sync.RWMutex) {
	defer to.Close()
	defer from.Close()
	if gate == nil {
		_, _ = io.Copy(to, from)
		return
	}
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if err != nil {
			return
		}
		gate.RLock()
		_, err = to.Write(buffer[:n])
		gate.RUnlock()
		if err != nil {
			return
		}
	}
}

// cut ends every open connection.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range p.conns {
		c.Close()
	}
	p.conns = nil
}

func (p *proxy) close() {
	p.listener.Close()
	p.cut()
}
