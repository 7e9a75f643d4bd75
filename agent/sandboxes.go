package agent

import (
	"context"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/helper/confine"
	"github.com/execagent/execagent/helper/files"
	"github.com/execagent/execagent/helper/probe"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/sandbox/hold"
	"github.com/execagent/execagent/sandbox/resolve"
)

// sandboxes is what an agent keeps to confine with.
type sandboxes struct {
	confines bool // see Config
	helpers  *files.Pool
	served   *resolve.Served
	// probed is what can be enforced here, found out by the first who asks.
	probed func() sandbox.Host
	// placeholders is nil where there is no place for its records; then
	// placeholdersErr says why.
	placeholders    *hold.Placeholders
	placeholdersErr error
	tmpDir          string   // TMPDIR of the agent, for file requests
	private         []string // what nothing confined may see
	first           sync.Once
	prober          sync.WaitGroup
}

func newSandboxes(cfg *Config, h *host) *sandboxes {
	tmpdir, _ := h.lookup("TMPDIR")
	served := &resolve.Served{Log: cfg.Logger}
	s := &sandboxes{
		confines: cfg.Confines,
		served:   served,
		helpers: files.NewPool(files.Config{
			Argv0: os.Args[0], Fork: cfg.Reaper.Fork, Reaped: cfg.Reaper.Reaped, Served: served, Log: cfg.Logger,
		}),
		tmpDir:  absolute(tmpdir),
		private: cfg.Secrets,
	}
	s.probed = sync.OnceValue(func() sandbox.Host {
		host, err := probe.Host(context.Background(), os.Args[0])
		if err != nil {
			cfg.Logger.Warn("this host's sandbox cannot be examined; confined commands are refused", "error", err)
		}
		return host
	})
	for _, secret := range cfg.Secrets {
		var st unix.Stat_t
		if unix.Stat(secret, &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG && st.Nlink > 1 {
			cfg.Logger.Warn("a secret file has other names (hard links): what is confined can read it by those that its policy shows",
				"file", secret, "names", st.Nlink)
		}
	}
	dirs := hold.StateDirs()
	if cfg.StateDir != "" {
		dirs = []string{cfg.StateDir}
	}
	dir, err := hold.StateDir(dirs...)
	if err == nil {
		// Also below /dev: a grant on /dev/shm shows the host's.
		s.private = append([]string{dir}, s.private...)
		s.placeholders, err = hold.Open(dir)
	}
	if err != nil {
		s.placeholdersErr = err
		cfg.Logger.Warn("names that a sandbox protects cannot be held; commands that need it are refused", "error", err)
	}
	return s
}

// errNoHelpers is for an agent in a program that has no helpers in itself.
var errNoHelpers = protocol.InvalidRequest("sandbox: this program cannot confine: it is no agent's own; nothing was run")

// probeOnce begins to look at the host, the first time that it is called: when
// there is a client, which may soon ask for a confined command. A probe starts a
// few programs, and whoever asks first would wait for them.
func (s *sandboxes) probeOnce() {
	if !s.confines {
		return
	}
	s.first.Do(func() { s.prober.Go(func() { s.probed() }) })
}

// close ends the helpers. What is confined has ended before.
func (s *sandboxes) close() error {
	s.prober.Wait()
	s.helpers.Close()
	if s.placeholders == nil {
		return nil
	}
	return s.placeholders.Close()
}

// stage lets a process start through the first stage of a confined command.
func stage(command confine.Command) func(procs.Program) (*procs.Stage, error) {
	return func(p procs.Program) (*procs.Stage, error) {
		command.Argv, command.Arg0, command.Env, command.Dir, command.TTY = p.Argv, p.Arg0, p.Env, p.Dir, p.TTY
		command.NewSession = true
		command.Argv0 = os.Args[0]
		stage, err := command.Prepare()
		if err != nil {
			stage = confine.Refuse(os.Args[0], err)
		}
		return stage, nil
	}
}

// refuse lets a process say why it does not run.
func refuse(why error) func(procs.Program) (*procs.Stage, error) {
	return func(procs.Program) (*procs.Stage, error) { return confine.Refuse(os.Args[0], why), nil }
}
