package agent

import (
	"context"
	"errors"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/confine"
	"github.com/execagent/execagent/internal/sandbox/enforce"
	"github.com/execagent/execagent/internal/sandbox/files"
	"github.com/execagent/execagent/internal/sandbox/placeholder"
	"github.com/execagent/execagent/internal/sandbox/probe"
	"github.com/execagent/execagent/internal/sandbox/resolve"
	"github.com/execagent/execagent/internal/share"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/sandbox"
)

// sandboxes confines the file requests and commands of an agent.
type sandboxes struct {
	confines bool // see Config
	offline  bool // see Config.offline
	helpers  *files.Pool
	door     confine.Door // for commands
	dials    share.Pool   // processes that connect for sockets
	// probed returns what this host can enforce. The first call finds it out;
	// concurrent calls wait for it.
	probed func() sandbox.Host
	// judges reports whether this host can judge the programs that a command executes. Calls try
	// again until it can.
	judges func() bool
	// placeholders is nil if no directory for its records can be used;
	// placeholdersErr is the reason.
	placeholders    *placeholder.Placeholders
	placeholdersErr error
	tmpDir          string // TMPDIR of the agent, for file requests
	first           sync.Once
	over            atomic.Bool // the probe
	holds           func() bool // reports, after the probe, whether connections can be transparent
	prober          sync.WaitGroup
}

// retryJudged is how long a negative answer of judges holds. A command that takes all
// processes, or all time, of the host can make one try fail.
const retryJudged = time.Minute

// untilTrue returns a func that calls try until try has returned true, at most once per period
// while.
func untilTrue(while time.Duration, try func() bool) func() bool {
	var mu sync.Mutex
	var found, failed bool
	var last time.Time
	return func() bool {
		mu.Lock()
		defer mu.Unlock()
		if !found && (!failed || time.Since(last) >= while) {
			found = try()
			failed, last = !found, time.Now()
		}
		return found
	}
}

func newSandboxes(cfg *Config) *sandboxes {
	served := &resolve.Served{Log: cfg.Logger}
	ports, sockets := portsAndPaths(cfg.Listening)
	var s *sandboxes
	pool := files.Config{Argv0: os.Args[0], Fork: cfg.Reaper.Fork, Reaped: cfg.Reaper.Reaped, Served: served, Log: cfg.Logger}
	if cfg.hasFileCeiling() {
		pool.Ceiling = func() (*sandbox.Policy, error) { return s.door.Ceiling() } // New sets it
	}
	s = &sandboxes{
		dials:    share.Pool{Max: maxConfinedDials},
		confines: cfg.Confines,
		offline:  cfg.offline(),
		helpers:  files.NewPool(pool),
		tmpDir:   sandbox.TmpDir(cfg.Environ),
	}
	s.probed = sync.OnceValue(func() sandbox.Host {
		host, err := probe.Host(context.Background(), os.Args[0])
		if err != nil {
			cfg.Logger.Warn("this host's sandbox cannot be examined; confined commands are refused", "error", err)
		}
		s.over.Store(true)
		return host
	})
	s.judges = untilTrue(retryJudged, func() bool {
		var err error = errNoHelpers
		if cfg.Confines {
			err = confine.TryJudged(cfg.Reaper)
		}
		if err != nil {
			cfg.Logger.Warn("rules of clients are asked about what they start, and not about what that executes", "reason", err)
		}
		return err == nil
	})
	for _, secret := range cfg.Secrets {
		var st unix.Stat_t
		if unix.Stat(secret, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink > 1 {
			cfg.Logger.Warn("a secret file has other names (hard links): what is confined can read it by those that its policy shows",
				"file", secret, "names", st.Nlink)
		}
	}
	dirs := placeholder.StateDirs()
	if cfg.StateDir != "" {
		dirs = []string{cfg.StateDir}
	}
	dir, err := placeholder.StateDir(dirs...)
	if err == nil {
		s.placeholders, err = placeholder.Open(dir)
	}
	if err != nil {
		s.placeholdersErr = err
		cfg.Logger.Warn("names that a sandbox protects cannot be held; commands that need it are refused", "error", err)
	}
	s.door = confine.Door{
		Host:           func() (sandbox.Host, error) { return s.probed(), nil },
		Operator:       cfg.Operator,
		Refuses:        func(p *sandbox.Policy) error { return refuseOpenListeners(cfg.Listening, p) },
		Private:        slices.Concat(cfg.Secrets, cfg.ExecPolicy.folder(), sockets),
		StateDir:       dir,
		PrivateFolders: cfg.SecretFolders,
		KeepPrivate:    cfg.ExecPolicy != nil, // its rules are among them
		Served:         served,
		Placeholders: func() (*placeholder.Placeholders, error) {
			if s.placeholders == nil {
				return nil, errors.Join(errors.New("protected names that do not exist cannot be held"), s.placeholdersErr)
			}
			return s.placeholders, nil
		},
		Limits:     confine.Limits(cfg.Limits),
		AgentPorts: ports,
	}
	s.holds = sync.OnceValue(func() bool {
		policy, err := sandbox.Profile{
			Entries: []sandbox.Entry{{Place: sandbox.PlaceRoot, Access: sandbox.Read}}, Network: sandbox.NetworkManaged, Transparent: true,
		}.Compile()
		if err == nil {
			_, err = s.door.Choose(policy)
		}
		return err == nil
	})
	return s
}

// errNoHelpers refuses confinement in a program that does not run the hidden
// modes of package helper.
var errNoHelpers = protocol.InvalidRequest("sandbox: this program cannot confine: it is no agent's own; nothing was run")

// probeOnce starts, at its first call, to find out how this host can confine. A
// probe starts a few programs. It runs as soon as there is a client, because
// the first confined command would have to wait for it.
func (s *sandboxes) probeOnce() {
	if !s.confines {
		return
	}
	s.first.Do(func() { s.prober.Go(func() { s.probed() }) })
}

// transparent reports whether connections can be transparent here. The answer to the first client must
// not wait for the probe. So before the probe is over, transparent looks only for what a managed network
// does not need otherwise: then it is wrong only about a host that can enforce no managed network.
func (s *sandboxes) transparent() bool {
	if !s.confines || s.offline {
		return false
	}
	if !s.over.Load() {
		return enforce.HoldsConnections()
	}
	return s.holds()
}

// close waits for the probe and ends the helpers. The caller ends all commands
// first.
func (s *sandboxes) close() error {
	s.prober.Wait()
	s.helpers.Close()
	if s.placeholders == nil {
		return nil
	}
	return s.placeholders.Close()
}
