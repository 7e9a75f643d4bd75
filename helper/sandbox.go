package helper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"

	"github.com/execagent/execagent/internal/sandbox/confine"
	"github.com/execagent/execagent/internal/sandbox/placeholder"
	"github.com/execagent/execagent/internal/sandbox/probe"
	"github.com/execagent/execagent/internal/sandbox/resolve"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/sandbox"
)

// SandboxConfig configures a [Sandbox]. The zero value is usable.
type SandboxConfig struct {
	// Operator says which layers are acceptable where several would be exact.
	Operator sandbox.Operator
	// Limits apply to each process of each command.
	Limits sandbox.Limits
	// StateDir is for records of what running commands have in workspaces, for cleaning up after a
	// crash. All agents and sandboxes of a user need the same folder. If it is empty, the usual
	// folder of the user is used.
	StateDir string
	// Log gets warnings about links that commands of an earlier sandbox could have made; nil
	// discards.
	Log *slog.Logger
}

// Sandbox confines commands of this program, as an agent confines those of its clients.
// [NewSandbox] makes one. Its methods may be called concurrently.
type Sandbox struct {
	door    confine.Door
	state   string // folder of records
	noState error  // why there is none

	mu    sync.Mutex
	holds *placeholder.Placeholders // nil until a profile needs it
}

// NewSandbox returns a sandbox. The caller closes it when all its commands have ended. The first
// command finds out what the host can enforce.
func NewSandbox(cfg SandboxConfig) *Sandbox {
	dirs := placeholder.StateDirs()
	if cfg.StateDir != "" {
		dirs = []string{cfg.StateDir}
	}
	s := new(Sandbox)
	s.state, s.noState = placeholder.StateDir(dirs...)
	s.door = confine.Door{
		Host:         sync.OnceValues(func() (sandbox.Host, error) { return probe.Host(context.Background(), os.Args[0]) }),
		Operator:     cfg.Operator,
		Limits:       confine.Limits(cfg.Limits),
		Served:       &resolve.Served{Log: cfg.Log},
		Placeholders: s.placeholders,
	}
	if s.noState == nil {
		s.door.Private = []string{s.state} // a profile may grant the folder around it
	}
	return s
}

func (s *Sandbox) placeholders() (*placeholder.Placeholders, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.noState != nil {
		return nil, fmt.Errorf("names that the profile protects cannot be held: %w", s.noState)
	}
	if s.holds != nil {
		return s.holds, nil
	}
	holds, err := placeholder.Open(s.state)
	if err == nil {
		s.holds = holds
	}
	return holds, err
}

// Close removes what the sandbox still has on the host.
func (s *Sandbox) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holds == nil {
		return nil
	}
	return s.holds.Close()
}

// Run runs a program under a profile and returns its exit code, or 128+n after signal n. The files
// are its descriptors 0 to 2; the given signals are passed on to it instead of to this program. Its
// environment is only [procs.Program.Env].
//
// If this host cannot enforce the profile exactly, the error is a *[sandbox.UnenforceableError],
// and nothing runs; agent doctor shows what a host can enforce. If the sandbox fails later, the
// code is 101 and the third file gets the reason.
func (s *Sandbox) Run(profile sandbox.Profile, p procs.Program, files [3]*os.File, signals ...os.Signal) (code int, err error) {
	c, err := s.Enter(profile)
	if err != nil {
		return 0, err
	}
	defer c.Release()
	return c.held.Run(p, files, func(to chan<- os.Signal) {
		if len(signals) > 0 { // without arguments, Notify would take all signals
			signal.Notify(to, signals...)
		}
	})
}

// Confined is the sandbox of one command.
type Confined struct{ held *confine.Held }

// Enter chooses the layers that enforce a profile exactly, and takes from the host what they need.
// The caller releases it once no process of the command runs any more. It is for commands that
// package procs starts, with [Confined.Stage] as their [procs.Spec.Stage]; for others use
// [Sandbox.Run].
func (s *Sandbox) Enter(profile sandbox.Profile) (*Confined, error) {
	held, err := s.door.Enter(profile)
	if err != nil {
		return nil, err
	}
	if held.Unconfined() {
		return nil, errors.New("the profile restricts nothing: its command needs no sandbox")
	}
	return &Confined{held}, nil
}

// Layers returns the names of the layers that enforce the profile, as in agent doctor.
func (c *Confined) Layers() []string { return c.held.Names() }

// Stage makes the program that is started in place of p: it confines p and ends as p does.
func (c *Confined) Stage(p procs.Program) (*procs.Stage, error) { return c.held.Stage(p) }

// Release releases everything that Enter took from the host. It may be called several times.
func (c *Confined) Release() { c.held.Release() }
