package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/client/remote"
	"github.com/execagent/execagent/test/rig"
)

// programs are the paths of what is measured.
type programs struct {
	agent, registry, reference string
}

// bench is a registry with executors behind it.
type bench struct {
	*rig.Site
	t         rig.T
	cfg       programs
	dir       string
	executors []*executor
}

// executor is one of the programs that are compared. It has two environments:
// one straight at the registry, one behind a proxy that can hold up and cut.
type executor struct {
	bench   *bench
	name    string
	pid     int
	proxied struct {
		pid   int
		proxy *rig.Proxy
	}
}

// with measures something with programs of its own.
func (cfg programs) with(ctx context.Context, measure func(*bench, context.Context) error) error {
	return rig.Outside(ctx, func(t rig.T) {
		b := newBench(t, cfg)
		if err := measure(b, t.Context()); err != nil {
			t.Fatalf("%w", err)
		}
	})
}

func newBench(t rig.T, cfg programs) *bench {
	b := &bench{t: t, cfg: cfg, dir: t.TempDir()}
	b.Site = &rig.Site{
		Pattern: "*", Program: cfg.registry, Environ: os.Environ(), Data: filepath.Join(b.dir, "data"),
		// No limits: they are not what is measured.
		Args: []string{"--log-level", "warn", "--requests=-1", "--request-burst=-1", "--connections=-1", "--streams=-1", "--bytes=-1"},
	}
	b.Open(t)
	t.Cleanup(func() {
		for line := range strings.Lines(b.Log.String()) {
			if strings.Contains(line, "level=") { // a warning
				fmt.Fprint(os.Stderr, line)
			}
		}
	})
	names := []string{"ours"}
	if cfg.reference != "" {
		names = append(names, "reference")
	}
	for _, name := range names {
		e := &executor{bench: b, name: name}
		e.pid = b.startExecutor(name, name, b.Address)
		e.proxied.proxy = rig.NewProxy(t, b.Address)
		e.proxied.pid = b.startExecutor(name, name+"-proxied", e.proxied.proxy.Address())
		b.executors = append(b.executors, e)
	}
	return b
}

// startExecutor starts the program as the executor of an environment and
// returns its PID when it can be reached.
func (b *bench) startExecutor(name, environment, address string) (pid int) {
	args := []string{"--remote", "http://" + address, "--environment-id", environment}
	program := b.cfg.agent
	home := filepath.Join(b.dir, environment)
	if err := os.MkdirAll(home, 0o700); err != nil {
		b.t.Fatalf("%w", err)
	}
	if name == "reference" {
		program, args = b.cfg.reference, slices.Insert(args, 0, "exec-server")
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(os.Environ(), "CODEX_API_KEY="+b.Executor, "CODEX_HOME="+home)
	p := rig.Start(b.t, cmd)
	b.t.Cleanup(func() { // before the rig kills it: the reference's commands would outlive that
		killed := time.AfterFunc(5*time.Second, func() { _ = p.Process.Signal(syscall.SIGKILL) })
		defer killed.Stop()
		p.Stop(b.t)
	})
	c, err := b.connect(b.t.Context(), environment)
	if err == nil {
		err = c.Close()
	}
	if err != nil {
		b.t.Fatalf("%s does not come online: %w", environment, err)
	}
	return cmd.Process.Pid
}

// connect opens a session in an environment.
func (b *bench) connect(ctx context.Context, environment string) (*client.Client, error) {
	return client.Connect(ctx, client.Config{Dial: b.harness(b.Site, environment).Dial, ConnectTimeout: 20 * time.Second})
}

// harness returns how to connect to an environment of a site.
func (b *bench) harness(site *rig.Site, environment string) client.Config {
	cfg, err := remote.Registry(site.URL(), environment, site.Harness)
	if err != nil {
		b.t.Fatalf("%w", err)
	}
	b.t.Cleanup(cfg.Release)
	return cfg
}
