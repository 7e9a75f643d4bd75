package agent

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"maps"
	"net"
	"runtime/debug"
	"slices"
	"sync"
	"time"

	"github.com/execagent/execagent/agent/internal/answers"
	"github.com/execagent/execagent/agent/internal/audit"
	"github.com/execagent/execagent/agent/internal/skills"
	"github.com/execagent/execagent/agent/internal/snapshot"
	"github.com/execagent/execagent/internal/applypatch"
	"github.com/execagent/execagent/internal/egress"
	"github.com/execagent/execagent/internal/execpolicy"
	"github.com/execagent/execagent/internal/fswatch"
	"github.com/execagent/execagent/internal/httpclient"
	"github.com/execagent/execagent/internal/inotify"
	"github.com/execagent/execagent/internal/share"
	"github.com/execagent/execagent/internal/sockets"
	"github.com/execagent/execagent/internal/sockowner"
	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/sandbox"
)

// Defaults of [Config] (rpc.md 3.3, 4.8).
const (
	DefaultSessionTTL       = 80 * time.Second
	DefaultRetainBytes      = procs.DefaultRetainBytes
	DefaultRetainTotalBytes = 256 << 20 // as procs.Budget
	DefaultContentBytes     = answers.DefaultBytes
)

const (
	// maxEnded is how many ended processes of all sessions are kept for
	// process/read. Beyond it, one is forgotten early.
	maxEnded = 16384
	// maxShelved is how many sessions are kept to which nobody is attached and in which
	// nothing runs. Beyond it, one ends early.
	maxShelved = 8192
)

// idleAfter is how long the agent must be without connections before it returns
// memory to the system.
const idleAfter = time.Second

// Config configures an [Agent]. The zero value serves with all defaults and an
// empty environment.
type Config struct {
	// Version is reported as executorVersion. It begins with the version of the
	// reference that this agent is compatible with, because clients gate
	// features on that version.
	Version string
	// Environ is the environment that processes may inherit, as "K=V".
	Environ []string
	// Logger logs connections, commands that run or are refused, and faults; nil discards.
	Logger *slog.Logger
	// ConcurrentRequests is how many requests of one connection run at once; 0
	// means 64, 1 means strict order (rpc.md 2.6).
	ConcurrentRequests int
	// SessionTTL is how long a detached session and an ended process are kept;
	// 0 means 80 s.
	SessionTTL time.Duration
	// NamedSessionTTL is the longest time that a session with a name is kept
	// while neither a client nor a process holds it; 0 means 24 hours.
	NamedSessionTTL time.Duration
	// KeepRevoked keeps a session whose client lost its right to connect as long
	// as any other detached session. If false, such a session ends at once.
	KeepRevoked bool
	// RetainBytes of output are kept for each process, RetainTotalBytes for all
	// together; 0 means 1 MiB and 256 MiB. A request that bounds its output can
	// have more than that 1 MiB, and no more than RetainBytes if that is not 0.
	RetainBytes, RetainTotalBytes int64
	// ContentBytes bounds, over all connections, the content that was read for
	// clients and is not sent yet: files and listings above 1 MiB, HTTP bodies
	// of 64 KiB and more. 0 means 1 GiB. A single larger answer is refused.
	ContentBytes int64
	// SocketBytes bounds the bytes, of all sockets together, that came from their
	// other ends and are not acknowledged yet; 0 means 64 MiB.
	SocketBytes int64
	// Metrics gets the metrics of the agent; nil: there is no page of them.
	Metrics *Metrics
	// Transport is the metrics' word for how clients connect.
	Transport string
	// Reaper reaps orphans. It is required if the agent is PID 1 or becomes a
	// subreaper.
	Reaper *procs.Reaper
	// Guard kills all processes of the agent when the agent dies; nil: none.
	Guard *procs.Guard

	// Confines says that main of this program runs the hidden modes of package
	// helper. Only then can the agent start its own program again as a helper;
	// otherwise it refuses requests that ask for confinement.
	Confines bool
	// StateDir is for records of what running commands have in workspaces, so
	// that the next agent can clean up after a crash. If it is empty, the agent
	// uses a folder of its own in /dev/shm, else in XDG_RUNTIME_DIR, /run or
	// /tmp.
	StateDir string
	// Tool is in the PATH of commands, including confined commands; nil: no tool is.
	Tool *Tool
	// Secrets are files that no confined command may see.
	Secrets []string
	// SecretFolders hold only secrets. No confined command may see them, unless a
	// policy names something in them or lets commands write them.
	SecretFolders []string
	// Listening are all listeners of this program: no confined command may
	// reach them.
	Listening []Listening
	// Operator says which layers are acceptable where several would be exact
	// (sandbox.md 15).
	Operator sandbox.Operator
	// ExecPolicy says which commands clients may start; nil: all. No confined command may see the
	// folder of its rules.
	ExecPolicy *ExecPolicy
	// Network is the operator's policy for the network of all commands, see [Agent.SetNetwork];
	// nil: clients decide alone, and no upstream proxy is used.
	Network *Network
	// RequireNetworkEnforcement refuses commands that could reach the network without their proxy.
	RequireNetworkEnforcement bool
	// TransparentTCP makes connections transparent for every command whose network is enforced and that
	// has a proxy, even if its client does not ask for that.
	TransparentTCP bool
	// UnixSockets lets every command whose network is enforced connect to the UNIX sockets that its client allows
	// by unixSockets and allowUnixSockets, which have no effect otherwise.
	UnixSockets bool
	// SandboxDefault is the sandbox of requests that have no sandbox; nil: they are not confined.
	SandboxDefault *protocol.Sandbox
	// SandboxCeiling is the sandbox that no request exceeds. For each path a request gets the lesser access
	// of its own sandbox and the ceiling. The paths of the ceiling do not depend on a request. If the ceiling
	// cannot be compiled or restricts nothing, the agent refuses every request that it applies to. nil: there
	// is no ceiling.
	SandboxCeiling *protocol.Sandbox
	// RequireSandbox refuses requests that would not be confined: those without a sandbox, and those whose
	// sandbox does not restrict files. Such a request gets SandboxDefault instead, if there is one, or
	// SandboxCeiling, if that restricts files.
	RequireSandbox bool
	// TellRefusals lets every process end with lines on its standard error about what its sandbox has
	// refused, whether or not its client asks for that.
	TellRefusals bool
	// Limits apply to every confined command.
	Limits sandbox.Limits
	// Cgroups gives each confined command a control group; nil: none.
	Cgroups *procs.Cgroups
}

// Agent serves connections. Its methods may be called concurrently.
type Agent struct {
	cfg    Config
	rules  *execpolicy.Current  // of Config.ExecPolicy
	tool   *applypatch.Provided // of Config.Tool
	host   *host
	budget *procs.Budget
	http   *httpclient.Clients
	// content bounds the answers that all connections together hold and have
	// not sent yet, and decoders what the decoders of HTTP bodies take.
	content  *answers.Memory
	decoders *answers.Decoders
	// sockets bounds the bytes that the sockets of all sessions keep.
	sockets *sockets.Budget
	// snapshots bounds the shell snapshots of all sessions, and snapshotTime is the time of each,
	// zero but in tests.
	snapshots    *share.Pool
	snapshotTime time.Duration
	// sandboxes confines requests and commands.
	sandboxes *sandboxes
	// networks makes the proxies of processes.
	networks egress.Networks
	// inotify watches files: for fs/watchMissing, for watcher and for skills.
	inotify inotify.Group
	watcher *fswatch.Watcher
	// ports follows the TCP ports of the host that listen. searches bounds the searches that run at once.
	ports    sockowner.Watch
	searches share.Pool
	short    share.Shortage
	audit    *audit.AgentLog
	metrics  counters
	start    func(procs.Spec) (proc, error) // execute but in tests
	skills   *skills.Discovery

	mu       sync.Mutex // guards what follows
	sessions map[string]*Session
	named    directory
	ended    share.Shelf[endedProcess]
	shelved  share.Shelf[*Session] // see shelve
	closed   bool

	connections map[*connection]struct{}
	idle        *time.Timer

	ending sync.WaitGroup // sessions that end by themselves
}

// endedProcess is a process that has ended and is kept.
type endedProcess struct {
	session *Session
	process *process
}

// New makes an agent. Close ends it.
func New(cfg Config) *Agent {
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.SessionTTL <= 0 {
		cfg.SessionTTL = DefaultSessionTTL
	}
	if cfg.NamedSessionTTL <= 0 {
		cfg.NamedSessionTTL = DefaultNamedSessionTTL
	}
	if cfg.RetainTotalBytes <= 0 {
		cfg.RetainTotalBytes = DefaultRetainTotalBytes
	}
	if cfg.ContentBytes <= 0 {
		cfg.ContentBytes = DefaultContentBytes
	}
	if cfg.SocketBytes <= 0 {
		cfg.SocketBytes = sockets.DefaultBudget
	}
	h := newHost(&cfg)
	idle := time.AfterFunc(idleAfter, debug.FreeOSMemory)
	idle.Stop() // nothing to give back yet
	a := &Agent{
		cfg:       cfg,
		rules:     cfg.ExecPolicy.inForce(),
		tool:      cfg.Tool.folder(),
		host:      h,
		budget:    &procs.Budget{Max: cfg.RetainTotalBytes},
		content:   answers.NewMemory(cfg.ContentBytes),
		decoders:  answers.NewDecoders(cfg.ContentBytes),
		sockets:   sockets.NewBudget(cfg.SocketBytes),
		audit:     audit.New(cfg.Logger),
		snapshots: snapshot.NewBudget(),
		named:     newDirectory(),
		ended:     share.Shelf[endedProcess]{Max: maxEnded},
		shelved:   share.Shelf[*Session]{Max: maxShelved},
		sandboxes: newSandboxes(&cfg),
		ports:     sockowner.Watch{Most: protocol.MaxPorts},
		searches:  share.Pool{Max: maxSearches},
		sessions:  map[string]*Session{},
		idle:      idle,
		start:     execute,

		connections: map[*connection]struct{}{},
	}
	a.http = httpclient.NewClients(a.httpConfig())
	a.watcher = fswatch.NewWatcher(&a.inotify)
	a.skills = skills.New(skills.Config{
		Files: a.files, Hold: a.content.Hold, ErrorText: errorText, Places: h.places,
		// A watcher of its own, so that installed skills take away none of the directories that
		// clients may watch.
		Watcher: fswatch.NewWatcher(&a.inotify),
	})
	a.networks.Ports, _ = portsAndPaths(cfg.Listening)
	a.networks.OpenPorts, _ = portsAndPaths(slices.DeleteFunc(slices.Clone(cfg.Listening), func(l Listening) bool { return !l.open() }))
	a.networks.Log, a.networks.Environ, a.networks.Roots = cfg.Logger, cfg.Environ, sync.OnceValue(httpclient.TrustedRoots)
	a.sandboxes.door.Kept = a.networks.Folder
	if cfg.SandboxCeiling != nil {
		a.sandboxes.door.Ceiling = sync.OnceValues(a.ceiling)
	}
	a.SetNetwork(cfg.Network)
	a.measure()
	return a
}

// Serve accepts connections until ctx ends or the listener fails, and returns
// when all of them have ended. Sessions live on until [Agent.Close].
func (a *Agent) Serve(ctx context.Context, l rpc.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	var connections sync.WaitGroup
	defer func() {
		stop()
		cancel()
		connections.Wait()
	}()
	for {
		conn, err := l.Accept()
		if err != nil {
			_ = l.Close()
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		connections.Go(func() {
			if err := a.ServeConn(ctx, conn); err != nil {
				a.cfg.Logger.Debug("connection ended", "error", err)
			}
		})
	}
}

// ServeConn serves one connection until it or ctx ends; an orderly end is nil.
func (a *Agent) ServeConn(ctx context.Context, conn rpc.Conn) error {
	c := newConnection(a, conn)
	a.update(func() { a.connections[c] = struct{}{} })
	defer a.update(func() { delete(a.connections, c) })
	return c.serve(ctx)
}

// update changes the connections. When no client has been connected for a while,
// free memory goes back to the system, so that an idle agent is small. Doing so
// while clients work would empty the pools of buffers that they need again.
func (a *Agent) update(connections func()) {
	a.mu.Lock()
	defer a.mu.Unlock()
	connections()
	a.idle.Stop()
	if len(a.connections) == 0 && !a.closed {
		a.idle.Reset(idleAfter)
	}
}

// Close ends all sessions and kills their processes. Connections should have
// ended before; otherwise they lose their session.
func (a *Agent) Close() error {
	a.mu.Lock()
	a.closed = true
	a.idle.Stop()
	var all []*Session
	for _, s := range a.sessions {
		all = append(all, s)
	}
	clear(a.sessions)
	a.named = newDirectory()
	a.mu.Unlock()
	var wg sync.WaitGroup
	for _, s := range all {
		s.audit.Ended("the agent ends")
		wg.Go(s.end)
	}
	wg.Wait()
	a.ending.Wait()
	a.audit.Close()
	a.skills.Close()
	a.inotify.Close()
	return errors.Join(a.networks.Close(), a.sandboxes.close())
}

// probe starts to find out how this host can confine. It is called once the
// first client has its answer to initialize.
func (a *Agent) probe() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if !a.closed {
		a.sandboxes.probeOnce()
	}
}

// expire ends a session whose retention is over, unless the session was resumed after
// the attachment with that number.
func (a *Agent) expire(s *Session, attachment int) {
	if a.forgetIf(s, func() bool { return s.detachedSince(attachment) }) {
		s.audit.Ended("expired")
		s.end()
		a.ending.Done()
	}
}

// revoke ends a session whose client may not come back. It does not wait for
// the end; Close does.
func (a *Agent) revoke(s *Session) {
	if a.forgetIf(s, func() bool { return true }) {
		s.audit.Ended("revoked")
		go func() {
			defer a.ending.Done()
			if c := s.silence(); c != nil {
				c.peer.Close() // a process may wait for its client to read
			}
			s.end()
		}()
	}
}

// Holders returns the holders that made a session or started a process in one, see [rpc.Revocable].
func (a *Agent) Holders() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	found := make(map[string]struct{})
	for _, s := range a.sessions {
		for _, holder := range s.has() {
			found[holder] = struct{}{}
		}
	}
	return slices.Collect(maps.Keys(found))
}

// Revoke ends every session, named or not, that the holder made or started a process in,
// because the holder may not connect any more. Config.KeepRevoked prevents that. It does
// not wait for the end; Close does.
func (a *Agent) Revoke(holder string) {
	if a.cfg.KeepRevoked {
		return
	}
	var all []*Session
	a.mu.Lock()
	for _, s := range a.sessions {
		if slices.Contains(s.has(), holder) {
			all = append(all, s)
		}
	}
	a.mu.Unlock()
	for _, s := range all {
		a.revoke(s)
	}
}

// forgetIf takes a session out of the agent if it is still there and the
// condition holds. When it returns true, the caller ends the session and then
// calls a.ending.Done.
func (a *Agent) forgetIf(s *Session, condition func() bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.closed || a.sessions[s.id] != s || !condition() {
		return false
	}
	delete(a.sessions, s.id)
	a.named.remove(s)
	a.shelved.Remove(s.owner, s)
	a.ending.Add(1)
	return true
}

// retain notes an ended process. If there are too many, it forgets the process that ended
// first, of the owner who has the most.
func (a *Agent) retain(s *Session, p *process) {
	a.mu.Lock()
	oldest, full := a.ended.Put(s.owner, endedProcess{s, p})
	a.mu.Unlock()
	if full {
		oldest.session.forget(oldest.process)
	}
}

// release undoes retain.
func (a *Agent) release(s *Session, p *process) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.ended.Remove(s.owner, endedProcess{s, p})
}

// shelve notes a session to which nobody is attached and in which nothing runs. If there are too many
// of them, it ends the one that was shelved first, of the owner who has the most. Its retention time,
// see startExpiryLocked, may have begun earlier.
func (a *Agent) shelve(s *Session) {
	a.mu.Lock()
	var oldest *Session
	full := false
	if !a.closed && a.sessions[s.id] == s && s.isIdle() {
		a.shelved.Remove(s.owner, s)
		oldest, full = a.shelved.Put(s.owner, s)
	}
	a.mu.Unlock()
	if full && a.forgetIf(oldest, oldest.isIdle) {
		oldest.audit.Ended("too many sessions without a client")
		go func() {
			defer a.ending.Done()
			oldest.end()
		}()
	}
}

// perProcess is how many descriptors a process takes while it runs: the ends of three pipes, its
// pidfd, and one more. A sandbox and a network take as many. One of them, the pidfd, stays after the end
// of the process, as long as a process that it left is in its group.
const perProcess = 5

// takeDescriptors counts n more descriptors of an owner, until release is called. Only file handles are
// counted otherwise, see withHandle.
func takeDescriptors(owner string, n int64) (release func(), err error) {
	if err := share.Descriptors().Take(owner, n); err != nil {
		return nil, err
	}
	return sync.OnceFunc(func() { share.Descriptors().Give(owner, n) }), nil
}
