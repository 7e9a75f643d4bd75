package protocol

import (
	"encoding/json"
	"math"

	"github.com/google/uuid"

	"github.com/execagent/execagent/internal/strictjson"
)

// Methods of rpc.md 4; the second group is ours (rpc.md 8).
const (
	MethodProcessStart     = "process/start"
	MethodProcessRead      = "process/read"
	MethodProcessWrite     = "process/write"
	MethodProcessSignal    = "process/signal"
	MethodProcessTerminate = "process/terminate"

	MethodProcessResize     = "process/resize"
	MethodProcessCloseStdin = "process/closeStdin"
	MethodProcessList       = "process/list"

	// Notifications, server to client.
	MethodProcessOutput = "process/output"
	MethodProcessExited = "process/exited"
	MethodProcessClosed = "process/closed"
)

// StartParams starts a process (rpc.md 4.1). ProcessID is chosen by the
// client and names the process inside its session.
type StartParams struct {
	ProcessID string            `json:"processId"`
	Metadata  *StartMetadata    `json:"metadata,omitempty"`
	Argv      []string          `json:"argv"`
	Cwd       PathURI           `json:"cwd"`
	EnvPolicy *EnvPolicy        `json:"envPolicy,omitempty"`
	Env       map[string]string `json:"env"`
	TTY       bool              `json:"tty"`
	// Rows and Cols are the size of the terminal, 24 and 80 when nil. Only
	// with TTY, and only where the server has processResize (rpc.md 8).
	Rows      *uint16 `json:"rows,omitempty"`
	Cols      *uint16 `json:"cols,omitempty"`
	PipeStdin bool    `json:"pipeStdin"`
	// ExecApproval tightens which commands may run (execpolicy.md 8.1).
	ExecApproval *ExecApproval `json:"execApproval,omitempty"`

	Arg0    *string  `json:"arg0,omitempty"`
	Sandbox *Sandbox `json:"sandbox,omitempty"`
	// EnforceManagedNetwork asks for no network but a managed one (network.md 9).
	// Without a sandbox it has no effect (rpc.md 4.1).
	EnforceManagedNetwork bool `json:"enforceManagedNetwork,omitempty"`
	// ShellSnapshot lets a login shell skip its startup files (capabilities.md 4). Only
	// where the server has shellSnapshotV2.
	ShellSnapshot *ShellSnapshot `json:"shellSnapshot,omitempty"`
	// Builtin: Argv[0] names a built-in tool of the server. Only where the server
	// has processBuiltins (rpc.md 8.3).
	Builtin        bool            `json:"builtin,omitempty"`
	ManagedNetwork *ManagedNetwork `json:"managedNetwork,omitempty"`
	// NetworkProxy gives the process its own proxy, which is its only network if
	// EnforceManagedNetwork is set too. Only where the server has networkProxyLaunch.
	NetworkProxy *NetworkProxy `json:"networkProxy,omitempty"`

	// TimeoutMs is how long the process may run, in milliseconds. Only where the server has processTimeout
	// (rpc.md 8.9).
	TimeoutMs *uint64 `json:"timeoutMs,omitempty"`
	// MaxOutputBytes bounds the output of each stream, at most [MaxOutputBytes]: its head and its tail are
	// sent. Only where the server has processMaxOutput.
	MaxOutputBytes *uint64 `json:"maxOutputBytes,omitempty"`
	// Limits bound the process with its children. Only where the server has processLimits.
	Limits *ProcessLimits `json:"limits,omitempty"`
	// RunAs is the user that the process runs as. Only where the server has processRunAs.
	RunAs *RunAs `json:"runAs,omitempty"`
	// StartID is another one for each start. The server carries out a start with a given StartID only once, so
	// a client may repeat it if the answer was lost. Only where the server has processStartId (rpc.md 8.12).
	StartID string `json:"startId,omitempty"`
}

// MaxOutputBytes is the most that a StartParams can ask for as its MaxOutputBytes.
const MaxOutputBytes = 8 << 20

// ProcessLimits are limits of a process with all its children (rpc.md 8.9). Zero is no limit.
type ProcessLimits struct {
	MemoryBytes   uint64 `json:"memoryBytes,omitempty"`
	MilliCPUs     uint64 `json:"milliCpus,omitempty"` // thousandths of a processor
	Processes     uint64 `json:"processes,omitempty"` // and threads
	FileSizeBytes uint64 `json:"fileSizeBytes,omitempty"`
}

// Bounds of [ProcessLimits], which the kernel has.
const (
	minMilliCPUs = 10 // a thousandth of a second of each tenth
	maxMilliCPUs = 1_000_000
	maxProcesses = 1 << 22 // PID_MAX_LIMIT
	maxBytes     = 1 << 62
)

func (l *ProcessLimits) UnmarshalObject(o *Object) {
	o.Only("memoryBytes", "milliCpus", "processes", "fileSizeBytes")
	l.MemoryBytes = between(o, "memoryBytes", 1, maxBytes)
	l.MilliCPUs = between(o, "milliCpus", minMilliCPUs, maxMilliCPUs)
	l.Processes = between(o, "processes", 1, maxProcesses)
	l.FileSizeBytes = between(o, "fileSizeBytes", 1, maxBytes)
}

// between returns a member, 0 if it is absent or null.
func between(o *Object, name string, least, most uint64) uint64 {
	n := o.OptUint64(name)
	if n == nil {
		return 0
	}
	if *n < least || *n > most {
		o.Fail(name, "is %d, must be %d to %d", *n, least, most)
	}
	return *n
}

// RunAs names a user, and perhaps a group, each by name or number (rpc.md 8.9).
type RunAs struct {
	User  string `json:"user"`
	Group string `json:"group,omitempty"` // "": the one of the user
}

// maxAccount bounds the name of a user or a group, in bytes.
const maxAccount = 256

func (r *RunAs) UnmarshalObject(o *Object) {
	o.Only("user", "group")
	r.User = o.String("user")
	if g := o.OptString("group"); g != nil {
		r.Group = *g
		checkAccount(o, "group", r.Group)
	}
	checkAccount(o, "user", r.User)
}

func checkAccount(o *Object, member, name string) {
	if n := len(name); n == 0 || n > maxAccount {
		o.Fail(member, "is %d bytes, must be 1 to %d", n, maxAccount)
	}
}

// StartMetadata is for telemetry only.
type StartMetadata struct {
	ThreadID   *string `json:"threadId,omitempty"` // a UUID
	ToolCallID *string `json:"toolCallId,omitempty"`
}

// EnvPolicy says which variables a process inherits from the server's
// environment (rpc.md 4.4).
type EnvPolicy struct {
	Inherit               string            `json:"inherit"` // core, all or none
	IgnoreDefaultExcludes bool              `json:"ignoreDefaultExcludes"`
	Exclude               []string          `json:"exclude"`
	Set                   map[string]string `json:"set"`
	IncludeOnly           []string          `json:"includeOnly"`
}

// ShellSnapshot asks to run the startup files of a login shell only once, and not for each
// command. Only requests with the same ScopeID share snapshots.
type ShellSnapshot struct {
	ScopeID string `json:"scopeId"`
	Shell   Shell  `json:"shell"`
}

// The values of EnvPolicy.Inherit.
const (
	InheritCore = "core"
	InheritAll  = "all"
	InheritNone = "none"
)

// MaxProcessID is the greatest length of a new process's id, in bytes, because
// every message about the process repeats it.
const MaxProcessID = 4096

// maxStartID bounds the id of a start, in bytes (rpc.md 8.12).
const maxStartID = 128

// maxSnapshotScope bounds the scope of a shell snapshot, in bytes (rpc.md 4.11).
const maxSnapshotScope = 256

// HoldsMessage says that the command line and the environment may be as large as
// the message.
func (*StartParams) HoldsMessage() {}

func (p *StartParams) UnmarshalObject(o *Object) {
	p.ProcessID = o.String("processId")
	if n := len(p.ProcessID); n > MaxProcessID {
		o.Fail("processId", "is %d bytes, at most %d", n, MaxProcessID)
	}
	o.OptIn("metadata", func(o *strictjson.Object) {
		p.Metadata = &StartMetadata{ThreadID: o.OptString("threadId"), ToolCallID: o.OptString("toolCallId")}
		if id := p.Metadata.ThreadID; id != nil && uuid.Validate(*id) != nil {
			o.Fail("threadId", "%.64q is not a UUID", *id)
		}
	})
	p.Argv = o.Strings("argv")
	p.Cwd = pathMember(o, "cwd")
	o.OptIn("envPolicy", func(o *strictjson.Object) {
		p.EnvPolicy = &EnvPolicy{
			Inherit:               o.OneOf("inherit", InheritCore, InheritAll, InheritNone),
			IgnoreDefaultExcludes: o.Bool("ignoreDefaultExcludes"),
			Exclude:               o.Strings("exclude"),
			Set:                   o.StringMap("set"),
			IncludeOnly:           o.Strings("includeOnly"),
		}
	})
	o.OptIn("shellSnapshot", func(o *strictjson.Object) {
		p.ShellSnapshot = &ShellSnapshot{ScopeID: o.String("scopeId")}
		if n := len(p.ShellSnapshot.ScopeID); n == 0 || n > maxSnapshotScope {
			o.Fail("scopeId", "is %d bytes, must be 1 to %d", n, maxSnapshotScope)
		}
		o.In("shell", func(o *strictjson.Object) {
			p.ShellSnapshot.Shell = Shell{Name: o.String("name"), Path: o.String("path")}
		})
	})
	p.Env = o.StringMap("env")
	p.TTY = o.Bool("tty")
	p.Rows, p.Cols = o.OptUint16("rows"), o.OptUint16("cols")
	checkSize(o, p.Rows, p.Cols)
	p.PipeStdin = o.BoolDefault("pipeStdin", false)
	p.ExecApproval = unmarshalExecApproval(o)
	p.Arg0 = o.OptString("arg0")
	p.Sandbox = sandbox(o)
	p.EnforceManagedNetwork = o.BoolDefault("enforceManagedNetwork", false)
	p.Builtin = o.BoolDefault("builtin", false)
	if o.Has("managedNetwork") {
		p.ManagedNetwork = new(ManagedNetwork)
		o.In("managedNetwork", p.ManagedNetwork.UnmarshalObject)
	}
	if o.Has("networkProxy") {
		p.NetworkProxy = new(NetworkProxy)
		o.In("networkProxy", p.NetworkProxy.UnmarshalObject)
	}
	if n := between(o, "timeoutMs", 1, math.MaxUint64); n > 0 {
		p.TimeoutMs = &n
	}
	if n := between(o, "maxOutputBytes", 1, MaxOutputBytes); n > 0 {
		p.MaxOutputBytes = &n
	}
	if o.Has("limits") {
		p.Limits = new(ProcessLimits)
		o.In("limits", p.Limits.UnmarshalObject)
	}
	if o.Has("runAs") {
		p.RunAs = new(RunAs)
		o.In("runAs", p.RunAs.UnmarshalObject)
	}
	if id := o.OptString("startId"); id != nil {
		p.StartID = *id
		if n := len(p.StartID); n == 0 || n > maxStartID {
			o.Fail("startId", "is %d bytes, must be 1 to %d", n, maxStartID)
		}
	}
	if len(p.Argv) == 0 {
		o.Fail("argv", "must not be empty")
	}
}

func checkSize(o *strictjson.Object, rows, cols *uint16) {
	if rows != nil && *rows == 0 {
		o.Fail("rows", "must be 1 to 65535")
	}
	if cols != nil && *cols == 0 {
		o.Fail("cols", "must be 1 to 65535")
	}
}

// StartResult answers process/start.
type StartResult struct {
	ProcessID   string `json:"processId"`
	SandboxType string `json:"sandboxType"`
	// SandboxLayers is present when the request carried a sandbox (sandbox.md 1).
	SandboxLayers []string `json:"sandboxLayers,omitempty"`
	// Network is NetworkAdvisory for a process that has a proxy but can bypass it.
	Network string `json:"network,omitempty"`
	// Approval is ApprovalPending for a command that runs only if the client allows it.
	Approval string `json:"approval,omitempty"`
	// Limits says what holds each limit of the request.
	Limits *HeldLimits `json:"limits,omitempty"`
}

// HeldLimits says for each of the [ProcessLimits] that were asked for what holds it: HeldByCgroup or HeldByRlimit.
type HeldLimits struct {
	MemoryBytes   string `json:"memoryBytes,omitempty"`
	MilliCPUs     string `json:"milliCpus,omitempty"`
	Processes     string `json:"processes,omitempty"`
	FileSizeBytes string `json:"fileSizeBytes,omitempty"`
}

// What holds a limit: a control group of the process (cgroups(7)), or a limit that its children inherit
// (setrlimit(2)).
const (
	HeldByCgroup = "cgroup"
	HeldByRlimit = "rlimit"
)

// NetworkAdvisory says that nothing prevents a process from bypassing its proxy (network.md 9).
const NetworkAdvisory = "advisory"

// Values of sandboxType: for a process without a sandbox, and for a process with a
// sandbox, whatever the sandbox allows (sandbox.md 1).
const (
	SandboxNone         = "none"
	SandboxLinuxSeccomp = "linuxSeccomp"
)

func (r *StartResult) AppendJSON(dst []byte) []byte {
	dst = appendText(dst, `{"processId":`, r.ProcessID)
	dst = appendText(dst, `,"sandboxType":`, r.SandboxType)
	if r.SandboxLayers != nil {
		dst = append(dst, `,"sandboxLayers":`...)
		dst = strictjson.AppendStrings(dst, r.SandboxLayers)
	}
	if r.Network != "" {
		dst = appendText(dst, `,"network":`, r.Network)
	}
	if r.Approval != "" {
		dst = appendText(dst, `,"approval":`, r.Approval)
	}
	if r.Limits != nil {
		limits, _ := json.Marshal(r.Limits) // it has only words
		dst = append(append(dst, `,"limits":`...), limits...)
	}
	return append(dst, '}')
}

// ProcessParams names a process and nothing else: the params of process/closeStdin.
type ProcessParams struct {
	ProcessID string `json:"processId"`
}

func (p *ProcessParams) UnmarshalObject(o *Object) { p.ProcessID = o.String("processId") }

// TerminateParams names a process to kill. SessionID is a session other than the
// caller's (rpc.md 8.2).
type TerminateParams struct {
	SessionID *string `json:"sessionId,omitempty"`
	ProcessID string  `json:"processId"`
}

func (p *TerminateParams) UnmarshalObject(o *Object) {
	p.SessionID = o.OptString("sessionId")
	p.ProcessID = o.String("processId")
}

// TerminateResult answers process/terminate. Running is true when the process
// had not exited.
type TerminateResult struct {
	Running bool `json:"running"`
}

// WriteParams sends bytes to a process's stdin. The server carries out a write with
// a given WriteID only once, so a client may repeat it if the answer was lost. A
// decoded Chunk lies in the memory of the message and is valid as long as the
// message.
type WriteParams struct {
	ProcessID string `json:"processId"`
	Chunk     []byte `json:"chunk"`
	WriteID   string `json:"writeId"`
}

// HoldsMessage says that Chunk lies in the message.
func (*WriteParams) HoldsMessage() {}

func (p *WriteParams) AppendJSON(dst []byte) []byte {
	dst = appendText(dst, `{"processId":`, p.ProcessID)
	dst = appendText(dst, `,"writeId":`, p.WriteID) // before the chunk, because servers look for it
	dst = appendBytes(dst, `,"chunk":`, p.Chunk)
	return append(dst, '}')
}

func (p *WriteParams) UnmarshalObject(o *Object) {
	p.ProcessID = o.String("processId")
	p.Chunk = o.Base64InPlace("chunk")
	p.WriteID = o.String("writeId")
	if p.WriteID == "" {
		o.Fail("writeId", "must not be empty")
	}
}

// WriteStatus is the outcome of process/write and process/closeStdin.
type WriteStatus string

// The outcomes (rpc.md 4.9).
const (
	WriteAccepted       WriteStatus = "accepted"
	WriteUnknownProcess WriteStatus = "unknownProcess"
	WriteStdinClosed    WriteStatus = "stdinClosed"
	WriteStarting       WriteStatus = "starting"
)

// WriteResult answers process/write and process/closeStdin.
type WriteResult struct {
	Status WriteStatus `json:"status"`
}

func (r *WriteResult) AppendJSON(dst []byte) []byte {
	dst = append(dst, `{"status":"`...)
	dst = append(dst, r.Status...)
	return append(dst, `"}`...)
}

// SignalParams sends a signal to a process group. SessionID is a session other than the
// caller's (rpc.md 8.2).
type SignalParams struct {
	SessionID *string `json:"sessionId,omitempty"`
	ProcessID string  `json:"processId"`
	Signal    Signal  `json:"signal"`
}

// Signal is the wire's name of a signal.
type Signal string

// The signals. Servers without processSignals know SignalInterrupt only (rpc.md 8).
const (
	SignalInterrupt Signal = "interrupt" // SIGINT
	SignalHangup    Signal = "hangup"    // SIGHUP
	SignalQuit      Signal = "quit"      // SIGQUIT
	SignalTerminate Signal = "terminate" // SIGTERM
	SignalKill      Signal = "kill"      // SIGKILL
	SignalUser1     Signal = "user1"     // SIGUSR1
	SignalUser2     Signal = "user2"     // SIGUSR2

	// Of ours, not of the reference.
	SignalStop         Signal = "stop"         // SIGSTOP
	SignalContinue     Signal = "continue"     // SIGCONT
	SignalWindowChange Signal = "windowChange" // SIGWINCH
)

func (p *SignalParams) UnmarshalObject(o *Object) {
	p.SessionID = o.OptString("sessionId")
	p.ProcessID = o.String("processId")
	p.Signal = Signal(o.OneOf("signal", string(SignalInterrupt), string(SignalHangup), string(SignalQuit),
		string(SignalTerminate), string(SignalKill), string(SignalUser1), string(SignalUser2), string(SignalStop), string(SignalContinue), string(SignalWindowChange)))
}

// ResizeParams sets the size of a process's terminal (rpc.md 8).
type ResizeParams struct {
	ProcessID string `json:"processId"`
	Rows      uint16 `json:"rows"`
	Cols      uint16 `json:"cols"`
}

func (p *ResizeParams) UnmarshalObject(o *Object) {
	p.ProcessID = o.String("processId")
	o.Require("rows")
	o.Require("cols")
	rows, cols := o.OptUint16("rows"), o.OptUint16("cols")
	checkSize(o, rows, cols)
	if rows == nil || cols == nil {
		o.Fail("rows and cols", "must be numbers")
		return
	}
	p.Rows, p.Cols = *rows, *cols
}

// ListParams asks for the processes of the caller's session, or of the named one
// (rpc.md 8, 8.2).
type ListParams struct {
	SessionID *string `json:"sessionId,omitempty"`
}

func (p *ListParams) UnmarshalObject(o *Object) { p.SessionID = o.OptString("sessionId") }

// ListResult answers process/list, oldest process first.
type ListResult struct {
	Processes []ListedProcess `json:"processes"`
}

// ListedProcess is one process of a session, running or retained.
type ListedProcess struct {
	ProcessID     string   `json:"processId"`
	Argv          []string `json:"argv"`
	PID           int      `json:"pid"`
	TTY           bool     `json:"tty"`
	StartedAtMs   int64    `json:"startedAtMs"`
	Exited        bool     `json:"exited"`
	ExitCode      *int     `json:"exitCode"`
	ExitedAtMs    *int64   `json:"exitedAtMs,omitempty"`
	Closed        bool     `json:"closed"`
	NextSeq       uint64   `json:"nextSeq"`
	SandboxLayers []string `json:"sandboxLayers,omitzero"` // as in the answer to process/start
}
