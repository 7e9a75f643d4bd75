package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/cmd/agent/internal/executor"
	"github.com/execagent/execagent/cmd/agent/internal/health"
	"github.com/execagent/execagent/cmd/agent/internal/policyfile"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/build"
	"github.com/execagent/execagent/internal/egress"
	"github.com/execagent/execagent/internal/linux"
	"github.com/execagent/execagent/internal/netproxy"
	"github.com/execagent/execagent/internal/secretfile"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/transport"
)

// shutdownPatience is how long connections may take to end after a signal. After that the agent
// kills its processes, even if connections are still open.
const shutdownPatience = time.Second

// run serves until a signal or the end of standard input.
func (f *serverFlags) run(sys program.System) int {
	if len(sys.Args) == 0 && program.NewTerminal(sys.Stderr) != nil {
		program.Complain(sys.Stderr, "serving on a local port until Ctrl-C; agent --help lists the other commands")
	}
	linux.NoteScore()
	return serveUntilSignal(f.loggingErrors(sys), 0, func(ctx context.Context) error { return serve(ctx, sys, f) })
}

// serve serves as the flags say, until ctx ends or the transport has ended.
func serve(ctx context.Context, sys program.System, flags *serverFlags) (err error) {
	if sys, err = flags.Withhold(sys); err != nil {
		// As with other keys: no command inherits them.
		sys.Tell(fmt.Errorf("AWS credentials stay readable in /proc/%d/environ: %w", os.Getpid(), err))
	}
	plan := planShares()
	if flags.RetainTotalBytes != nil {
		plan.output = int64(*flags.RetainTotalBytes)
	}
	netproxy.Memory.SetMax(plan.proxies)
	s := &server{sys: sys, flags: flags, logger: flags.logger(sys.Stderr), memory: plan, budget: rpc.NewBudget(plan.messages)}
	s.metrics = newMetrics(s.budget)
	if err := s.configure(); err != nil {
		return err
	}
	policy, network, err := flags.networkFlags.read(sys.Environ)
	if err != nil {
		return fmt.Errorf("--network-policy: %w", err)
	}
	word, err := flags.wordFlags.read(sys.Environ)
	if err != nil {
		return err
	}
	s.sandboxFiles = word.files
	if policy != nil && len(policy.Masking) > 0 {
		if err := sys.Conceal(egress.HiddenNames(policy.Masking, sys.Environ)); err != nil {
			sys.Tell(fmt.Errorf("masked variables stay readable in /proc/%d/environ: %w", os.Getpid(), err))
		}
	}
	sys.Keys.Clear()
	defer func() { s.probes.Close() }()
	commands, err := flags.ReadPolicy(s.logger)
	if err != nil {
		return err
	}
	cgroups, err := flags.cgroups(s.logger)
	if err != nil {
		return err
	}
	if cgroups != nil {
		defer func() { err = errors.Join(err, cgroups.Close()) }()
	}
	var tool *agent.Tool
	if flags.ProvideApplyPatch {
		if tool, err = agent.ProvideTool(); err != nil {
			return fmt.Errorf("--provide-apply-patch: %w", err)
		}
		defer func() { err = errors.Join(err, tool.Close()) }()
	}
	secrets, secretFolders := s.secrets()
	guard, reaper := newGuard()
	defer reaper.Close()
	cfg := agent.Config{
		Version:            build.ExecutorVersion(),
		Environ:            sys.Environ,
		Logger:             s.logger,
		ConcurrentRequests: flags.ConcurrentRequests,
		SessionTTL:         flags.SessionTTL,
		NamedSessionTTL:    flags.NamedSessionTTL,
		KeepRevoked:        flags.KeepRevokedSessions,
		RetainTotalBytes:   plan.output,
		ContentBytes:       plan.content,
		SocketBytes:        plan.sockets,
		Metrics:            s.metrics,
		Transport:          flags.transport(),
		Reaper:             reaper,
		Guard:              guard,
		Confines:           true,
		StateDir:           flags.StateDir,
		Tool:               tool,
		Secrets:            secrets,
		SecretFolders:      secretFolders,
		Listening:          s.listening(),
		Operator:           flags.operator(),
		ExecPolicy:         commands,
		Network:            network,

		RequireNetworkEnforcement: flags.RequireNetworkEnforcement,
		TransparentTCP:            flags.TransparentTCP,
		UnixSockets:               flags.UnixSockets,
		SandboxDefault:            word.byDefault,
		SandboxCeiling:            word.ceiling,
		TellRefusals:              flags.TellRefusals,
		RequireSandbox:            flags.RequireSandbox,

		Limits:  sandbox.Limits{Processes: flags.MaxProcesses, AddressSpace: uint64(flags.MaxAddressSpace), CPUSeconds: flags.MaxCPUSeconds},
		Cgroups: cgroups,
	}
	if flags.RetainBytes != nil {
		cfg.RetainBytes = int64(*flags.RetainBytes)
	}

	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	linux.ForgetStarter()
	hangups, rereads := flags.hangups()
	serving, err := s.begin(ctx, cfg)
	if err != nil {
		return err
	}
	defer s.follow(policy, hangups, serving.agent)()
	defer policyfile.FollowRules(commands, rereads, s.logger)()
	level := slog.LevelInfo
	if flags.transport() == "stdio" {
		level = slog.LevelDebug // a client may show the agent's standard error to its user
	}
	this := build.This("agent")
	s.logger.Log(ctx, level, "serving", "version", this.Version, "commit", this.Commit)
	select {
	case err = <-serving.done:
	case <-ctx.Done():
		select {
		case err = <-serving.done:
		case <-time.After(shutdownPatience):
			s.logger.Warn("connections were still open when the time for shutting down ended")
		}
	}
	return errors.Join(err, serving.agent.Close(), guard.Close())
}

// cgroups returns the maker of control groups, one for each confined command.
// On a host that delegates no control group it returns nil and writes a line to the log. The agent
// still kills processes that a command leaves behind, by ending the command's namespace. But only a
// control group can enforce --cgroup-pids and the like. If such a flag is given, a host without
// delegation is an error.
func (f *serverFlags) cgroups(log *slog.Logger) (*procs.Cgroups, error) {
	limits := procs.CgroupLimits{PIDs: f.CgroupPIDs, MemoryMax: uint64(f.CgroupMemory), CPUMax: f.CgroupCPU}
	cgroups, err := procs.NewCgroups(limits)
	if errors.Is(err, procs.ErrNotDelegated) && limits == (procs.CgroupLimits{}) {
		log.Debug("no control groups for commands", "reason", err)
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("control groups: %w", err)
	}
	return cgroups, nil
}

// server is agent exec-server without its agent.
type server struct {
	sys     program.System
	flags   *serverFlags
	logger  *slog.Logger
	memory  memoryShares             // bounds for the memory that clients use
	budget  *rpc.Budget              // for the messages of all connections
	auth    *transport.Authenticator // checks clients; nil: clients need no authentication
	tls     *tls.Config              // of the listener; nil: it has no TLS
	remote  *executor.Remote         // nil: the server listens or uses stdio
	probes  *health.Server           // nil: no address for probes
	metrics *agent.Metrics
	// sandboxFiles are the files that --sandbox-default and --sandbox-ceiling name.
	sandboxFiles []string
}

// configure checks everything that can be checked before the start, and starts to answer probes.
func (s *server) configure() (err error) {
	if s.flags.Remote != nil {
		s.remote, err = newRemote(s.sys, &s.flags.Flags, &s.flags.authFlags, s.logger)
	} else {
		s.auth, err = s.flags.auth().Authenticator()
	}
	if err != nil {
		return err
	}
	if err := checkSecrets(s.logger, s.secretFiles()); err != nil {
		return err
	}
	if s.tls, err = s.flags.listenerTLS.config(s.logger); err != nil {
		return err
	}
	if s.tls != nil {
		measureCertificate(s.metrics, s.tls)
	}
	s.probes, err = health.Listen(s.flags.HealthListen, s.flags.AllowUID, s.metrics, s.logger)
	return err
}

// newRemote refuses the flags of a server that listens, and then contradictions among the flags of
// remote mode.
func newRemote(sys program.System, flags *executor.Flags, listening *authFlags, logger *slog.Logger) (*executor.Remote, error) {
	if err := listening.refuse(); err != nil {
		return nil, err
	}
	return executor.NewRemote(sys, flags, logger)
}

// checkSecrets refuses files with secrets that other users can change. It logs the files that other
// users can read.
func checkSecrets(logger *slog.Logger, paths []string) error {
	return secretfile.Report(func(warning string) { logger.Warn("other users can read a secret", "reason", warning) }, paths...)
}

// secretFiles returns the files with credentials: of clients, of the listener, and of this agent at a
// registry.
func (s *server) secretFiles() []string {
	var paths []string
	for _, path := range []string{s.flags.WSTokenFile, s.flags.WSSharedSecretFile} {
		if path != "" {
			paths = append(paths, path)
		}
	}
	if s.flags.TLSKey != "" {
		paths = append(paths, s.flags.TLSKey)
	}
	if s.remote != nil {
		paths = append(paths, s.remote.SignIn.Secrets(s.remote.Flags)...)
	}
	return paths
}

// secrets returns absolute paths that no confined command may read or change. They are the files of
// secretFiles, and others: the authorities of clients, because a command could let itself in; the
// policy for the network, and the files of --sandbox-default and --sandbox-ceiling, because a command
// could let itself out. The agent itself hides
// the rules about commands. The folders have only secrets. They are hidden because secrets may be
// added to them later.
func (s *server) secrets() (files, folders []string) {
	paths := s.secretFiles()
	used := secretfile.Used(s.sys.Environ, paths)
	if s.remote != nil && !s.remote.SignIn.Mounted(s.remote.Flags) {
		for _, path := range s.remote.SignIn.Secrets(s.remote.Flags) {
			used = append(used, filepath.Dir(path)) // CODEX_HOME, which also has other files
		}
	}
	for _, path := range paths {
		hidden, in := secretfile.Hide(path, used)
		files, folders = append(files, hidden...), append(folders, in...)
	}
	for _, path := range append([]string{s.flags.TLSClientCA, s.flags.NetworkPolicy}, s.sandboxFiles...) {
		if path != "" {
			hidden, _ := secretfile.Hide(path, nil)
			files = append(files, hidden...)
		}
	}
	return files, folders
}

// listening returns the address for probes, which no confined command may reach. It counts as
// authenticated, because nobody becomes a client there. Otherwise the agent would refuse confined
// commands that use the network.
func (s *server) listening() []agent.Listening {
	switch address := s.probes.Addr().(type) {
	case *net.UnixAddr:
		return []agent.Listening{{Path: address.Name, Authenticated: true}}
	case *net.TCPAddr:
		return []agent.Listening{{Addr: address.AddrPort(), Authenticated: true}}
	}
	return nil
}

// ending returns the reason why no client can connect any more, or "" until ctx ends.
func ending(ctx context.Context) string {
	if ctx.Err() != nil {
		return "it ends"
	}
	return ""
}

// serving is a running agent. done yields its error or nil, once, when it has ended.
type serving struct {
	agent *agent.Agent
	done  <-chan error
}

// begin starts to serve as the flags say.
func (s *server) begin(ctx context.Context, cfg agent.Config) (*serving, error) {
	switch s.flags.transport() {
	case "relay":
		return s.beginRemote(ctx, cfg), nil
	case "stdio":
		return s.beginStdio(ctx, cfg)
	}
	return s.beginListener(ctx, cfg)
}

func (s *server) beginRemote(ctx context.Context, cfg agent.Config) *serving {
	done := make(chan error, 1)
	a := agent.New(cfg)
	s.remote.Budget, s.remote.Reserve, s.remote.Metrics = s.budget, s.memory.streams, s.metrics
	s.remote.Holders, s.remote.Revoked = a.Holders, a.Revoke
	go func() { done <- s.remote.Run(ctx, s.probes, a.Serve) }()
	return &serving{a, done}
}

func (s *server) beginStdio(ctx context.Context, cfg agent.Config) (*serving, error) {
	if s.auth != nil {
		return nil, errors.New("--ws-auth cannot be used with --listen stdio")
	}
	conn := transport.Stdio(s.sys.Stdin, s.sys.Stdout, s.budget)
	// Stdio makes a pipe non-blocking, and os.NewFile checks whether its file is non-blocking. So
	// duplicate must come after Stdio, because otherwise Close could not interrupt a Read of rest.
	rest, err := duplicate(s.sys.Stdin)
	if err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	done := make(chan error, 1)
	a := agent.New(cfg)
	go func() {
		defer rest.Close()
		err := a.ServeConn(ctx, conn)
		if ctx.Err() == nil { // a signal ends the program without the end of input
			outliveStdin(err, rest)
		}
		done <- nil
	}()
	s.probes.Follow(func() string { return ending(ctx) })
	return &serving{a, done}, nil
}

func (s *server) beginListener(ctx context.Context, cfg agent.Config) (*serving, error) {
	listener, err := transport.Listen(transport.Config{
		URL:                  s.flags.listen(),
		TLS:                  s.tls,
		Auth:                 s.auth,
		AllowUIDs:            s.flags.AllowUID,
		AllowUnauthenticated: s.flags.AllowUnauthenticated,
		Budget:               s.budget,
		Metrics:              s.page(),
		Refused:              measureRefusals(s.metrics),
		Log:                  s.logger,
	})
	if err != nil {
		if errors.Is(err, transport.ErrUnauthenticated) {
			err = fmt.Errorf("%w (see --ws-auth, --tls-client-ca and --allow-unauthenticated)", err)
		}
		return nil, err
	}
	switch address := listener.Addr().(type) {
	case *net.UnixAddr:
		cfg.Listening = append(cfg.Listening, agent.Listening{Path: address.Name, Authenticated: true})
	case *net.TCPAddr:
		authenticated := s.auth != nil || s.flags.TLSClientCA != ""
		switch {
		case !authenticated:
			warnOfClients(s.logger, address.AddrPort(), listener.URL())
		case s.tls == nil:
			warnOfPlainTokens(s.logger, address.AddrPort(), listener.URL())
		}
		cfg.Listening = append(cfg.Listening, agent.Listening{Addr: address.AddrPort(), Authenticated: authenticated})
	}
	done := make(chan error, 1)
	a := agent.New(cfg)
	go func() { done <- a.Serve(ctx, listener) }()
	s.probes.Follow(func() string { return ending(ctx) })
	// Everything is ready before the line is printed, because a program that waits for the line
	// connects at once.
	s.logger.Info("listening", "url", listener.URL())
	if s.flags.LogFormat == "json" {
		return &serving{a, done}, nil
	}
	if _, err := fmt.Fprintln(s.sys.Stdout, listener.URL()); err != nil {
		return nil, errors.Join(fmt.Errorf("printing the URL: %w", err), listener.Close())
	}
	return &serving{a, done}, nil
}

// outliveStdin waits for the end of standard input. err says why the connection has ended. If a
// client breaks the protocol, the connection ends earlier than the input. The program then reads on
// until the input ends too. Only after a line that is too long, the program does not wait (rpc.md
// 1.4).
func outliveStdin(err error, stdin io.Reader) {
	if !errors.Is(err, transport.ErrTooLarge) {
		// If reading fails, there is no more input either.
		_, _ = io.Copy(io.Discard, stdin)
	}
}

// duplicate returns another descriptor of the same open file. The caller closes
// it.
func duplicate(f *os.File) (*os.File, error) {
	raw, err := f.SyscallConn()
	if err != nil {
		return nil, err
	}
	var fd int
	var dupErr error
	if err := raw.Control(func(original uintptr) {
		fd, dupErr = unix.FcntlInt(original, unix.F_DUPFD_CLOEXEC, 0)
	}); err != nil {
		return nil, err
	}
	if dupErr != nil {
		return nil, fmt.Errorf("duplicating %s: %w", f.Name(), dupErr)
	}
	return os.NewFile(uintptr(fd), f.Name()), nil
}
