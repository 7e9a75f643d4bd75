package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/execagent/execagent/cmd/agent/internal/executor"
	"github.com/execagent/execagent/cmd/agent/internal/health"
	"github.com/execagent/execagent/cmd/agent/internal/policyfile"
	"github.com/execagent/execagent/cmd/agent/internal/target"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/transport"
)

// defaultListen is the URL to listen on without --listen.
const defaultListen = "ws://127.0.0.1:0"

// serverFlags are the flags of exec-server: the flags of the reference (rpc.md 1) and our own.
//
// Their tags repeat defaults of other packages as text; TestDefaultsInTags compares
// the two.
type serverFlags struct {
	Listen               *string `env:"AGENT_LISTEN" placeholder:"URL" help:"Where to listen: ws://IP:PORT or IP:PORT (port 0 takes a free one; without IP all IPv4 addresses), wss://IP:PORT with --tls-cert, unix:///PATH, or stdio. The bound URL is printed on one line, except with --log-format json. Default: ws://127.0.0.1:0."`
	AllowUnauthenticated bool    `env:"AGENT_ALLOW_UNAUTHENTICATED" help:"Allow listening on an address that other machines can reach without --ws-auth or --tls-client-ca."`
	uidFlags
	health.ListenFlags
	Metrics bool `env:"AGENT_METRICS" help:"Answer GET /metrics (Prometheus) on the listener too, for everybody who can connect there as a client."`

	ConcurrentRequests int           `default:"64" env:"AGENT_CONCURRENT_REQUESTS" placeholder:"N" help:"Number of requests of one connection that may run at once; 1 runs them strictly in order. Default: ${default}."`
	RetainBytes        *program.Size `env:"AGENT_RETAIN_BYTES" placeholder:"N" help:"Bytes of output kept for each process. Default: 1048576; for a process whose request bounds its output, twice that bound if it is more."`
	RetainTotalBytes   *program.Size `env:"AGENT_RETAIN_TOTAL_BYTES" placeholder:"N" help:"Bytes of output kept for all processes together. Default: 268435456, less where memory is limited."`
	NamedSessionTTL    time.Duration `default:"24h" env:"AGENT_NAMED_SESSION_TTL" name:"named-session-ttl" placeholder:"DURATION" help:"How long named sessions and their ended processes are kept at most while nobody is attached and nothing runs in them. Default: ${default}."`
	SessionTTL         time.Duration `default:"1m20s" env:"AGENT_SESSION_TTL" name:"session-ttl" placeholder:"DURATION" help:"How long detached sessions and ended processes are kept. Default: ${default}."`

	ProvideApplyPatch bool `env:"AGENT_PROVIDE_APPLY_PATCH" name:"provide-apply-patch" help:"Give commands the tool apply_patch for models' patches, in a folder at the front of their PATH. Confined commands can use the tool too, and cannot replace it."`

	executor.Flags
	KeepRevokedSessions bool `env:"AGENT_KEEP_REVOKED_SESSIONS" group:"remote" help:"When a client's key is revoked, keep the client's commands for --session-ttl, as after a lost connection. Without this flag they are killed at once."`
	authFlags
	listenerTLS
	hostFlags
	policyfile.RuleFlags
	networkFlags
	wordFlags
	MaxProcesses    uint64       `env:"AGENT_MAX_PROCESSES" group:"sandbox" placeholder:"N" help:"Limit of processes and threads of the user that a confined command runs as (RLIMIT_NPROC). Default: as inherited."`
	MaxAddressSpace program.Size `env:"AGENT_MAX_ADDRESS_SPACE" group:"sandbox" placeholder:"BYTES" help:"Limit of memory that each process of a confined command may map (RLIMIT_AS). Default: as inherited."`
	MaxCPUSeconds   uint64       `env:"AGENT_MAX_CPU_SECONDS" name:"max-cpu-seconds" group:"sandbox" placeholder:"N" help:"Limit of CPU time of each process of a confined command (RLIMIT_CPU). Default: as inherited."`
	CgroupPIDs      uint64       `env:"AGENT_CGROUP_PIDS" name:"cgroup-pids" group:"sandbox" placeholder:"N" help:"Limit of processes and threads of each confined command as a whole (pids.max). Needs a delegated cgroup v2."`
	CgroupMemory    program.Size `env:"AGENT_CGROUP_MEMORY" group:"sandbox" placeholder:"BYTES" help:"Limit of memory of each confined command as a whole (memory.max). Needs a delegated cgroup v2."`
	CgroupCPU       string       `env:"AGENT_CGROUP_CPU" name:"cgroup-cpu" group:"sandbox" placeholder:"QUOTA PERIOD" help:"Limit of CPU time of each confined command as a whole, in microseconds (cpu.max). Needs a delegated cgroup v2."`

	logFlags
}

func (*serverFlags) Help() string {
	return `Serves until SIGTERM or SIGINT; with stdio, also until the end of standard input. Then it kills everything it has started.

With --remote it registers with a registry and serves the clients that come through the registry. Their traffic is encrypted end to end unless --transport says otherwise. To sign in, it uses a flag below such as --api-key-file, else the first of these: CODEX_API_KEY, CODEX_EXEC_SERVER_REMOTE_BEARER_TOKEN, auth.json in CODEX_HOME (~/.codex).

Options can also be set in files (see agent config --help). $AGENT_CONFIG names the user's file; the default is config.toml in the folder execagent of XDG_CONFIG_HOME or ~/.config. If commands can write that folder, set AGENT_CONFIG to a file that they cannot write, or to /dev/null for no file.

Examples:

    agent --listen ws://127.0.0.1:7000
    agent --listen ws://0.0.0.0:7000 --ws-auth capability-token --ws-token-file /run/secrets/token
    agent --listen 0.0.0.0:7000 --tls-cert tls.crt --tls-key tls.key --ws-auth capability-token --ws-token-file /run/secrets/token
    agent --listen 0.0.0.0:7000 --tls-cert tls.crt --tls-key tls.key --tls-client-ca clients.crt
    agent --listen unix:///run/user/1000/agent.sock
    agent --listen stdio
    CODEX_API_KEY=... agent --remote https://registry.example.com --environment-id build-1

Exit codes: 0 after an orderly end, 1 when it cannot serve, 2 for a wrong command line.`
}

func (f *serverFlags) Check() error {
	switch {
	case f.ConcurrentRequests < 1:
		return fmt.Errorf("--concurrent-requests %d is less than 1", f.ConcurrentRequests)
	case f.RetainBytes != nil && *f.RetainBytes < 1:
		return fmt.Errorf("--retain-bytes %d is less than 1", *f.RetainBytes)
	case f.RetainTotalBytes != nil && *f.RetainTotalBytes < 1:
		return fmt.Errorf("--retain-total-bytes %d is less than 1", *f.RetainTotalBytes)
	case f.MaxAddressSpace < 0:
		return fmt.Errorf("--max-address-space %d is negative", f.MaxAddressSpace)
	case f.CgroupMemory < 0:
		return fmt.Errorf("--cgroup-memory %d is negative", f.CgroupMemory)
	case f.SessionTTL <= 0:
		return fmt.Errorf("--session-ttl %v is not positive", f.SessionTTL)
	case f.NamedSessionTTL <= 0:
		return fmt.Errorf("--named-session-ttl %v is not positive", f.NamedSessionTTL)
	case f.Remote != nil && f.Listen != nil:
		return errors.New("--remote and --listen (AGENT_LISTEN) cannot be used together")
	case f.Metrics && (f.transport() == "relay" || f.transport() == "stdio"):
		return errors.New("--metrics needs a listener; --health-listen always answers /metrics")
	case f.Remote == nil && f.KeepRevokedSessions:
		return errors.New("--keep-revoked-sessions needs --remote")
	}
	given := ""
	if f.Listen != nil {
		given = *f.Listen
	}
	if err := errors.Join(f.uidFlags.validate(f.listen(), f.HealthListen), f.CheckHealth(), f.auth().Validate(), f.listenerTLS.check(given, f.Remote != nil), f.CheckPolicy(), f.checkUpstream()); err != nil {
		return err
	}
	if f.transport() == "unix" || f.transport() == "websocket" {
		if err := transport.CheckURL(f.listen()); err != nil {
			return err
		}
	}
	return f.Flags.Usage()
}

// uidFlags say who may connect to a UNIX socket.
type uidFlags struct {
	AllowUID []uint32 `env:"AGENT_ALLOW_UID" name:"allow-uid" placeholder:"UID" help:"User who may also connect to the UNIX sockets of --listen and --health-listen, in addition to this user and root. Can be repeated."`
}

// validate refuses the flag without a UNIX socket among the URLs to listen on.
func (f *uidFlags) validate(listen ...string) error {
	if len(f.AllowUID) > 0 && !slices.ContainsFunc(listen, isUnix) {
		return errors.New("--allow-uid needs --listen unix:///PATH")
	}
	if slices.Contains(f.AllowUID, math.MaxUint32) {
		return errors.New("--allow-uid 4294967295 is not a user")
	}
	return nil
}

// isUnix reports whether a URL is the URL of a UNIX socket.
func isUnix(url string) bool { return strings.HasPrefix(url, "unix:") }

// listen returns the URL to listen on.
func (f *serverFlags) listen() string {
	if f.Listen == nil {
		return f.listenerTLS.secure(defaultListen)
	}
	return f.listenerTLS.secure(target.ListenURL(*f.Listen))
}

// transport returns the way by which clients connect.
func (f *serverFlags) transport() string {
	switch listen := f.listen(); {
	case f.Remote != nil:
		return "relay"
	case isUnix(listen):
		return "unix"
	case listen == "stdio", listen == "stdio://":
		return "stdio"
	}
	return "websocket"
}

// authFlags say how WebSocket clients prove that they may connect.
type authFlags struct {
	WSAuth                string `default:"" enum:",capability-token,signed-bearer-token" env:"AGENT_WS_AUTH" name:"ws-auth" group:"auth" placeholder:"MODE" help:"How WebSocket clients authenticate: capability-token or signed-bearer-token."`
	WSTokenFile           string `env:"AGENT_WS_TOKEN_FILE" name:"ws-token-file" group:"auth" type:"path" placeholder:"FILE" help:"File with the capability token."`
	WSTokenSHA256         string `env:"AGENT_WS_TOKEN_SHA256" name:"ws-token-sha256" group:"auth" secret:"" placeholder:"HEX" help:"SHA-256 of the capability token, instead of the token itself."`
	WSSharedSecretFile    string `env:"AGENT_WS_SHARED_SECRET_FILE" name:"ws-shared-secret-file" group:"auth" type:"path" placeholder:"FILE" help:"File with the secret, at least 32 bytes, that signs bearer tokens (JWT, HS256)."`
	WSIssuer              string `env:"AGENT_WS_ISSUER" name:"ws-issuer" group:"auth" placeholder:"TEXT" help:"Issuer that bearer tokens must name."`
	WSAudience            string `env:"AGENT_WS_AUDIENCE" name:"ws-audience" group:"auth" placeholder:"TEXT" help:"Audience that bearer tokens must name."`
	WSMaxClockSkewSeconds *int64 `env:"AGENT_WS_MAX_CLOCK_SKEW_SECONDS" name:"ws-max-clock-skew-seconds" group:"auth" placeholder:"N" help:"Tolerance for the times in bearer tokens. Default: 30."`
}

func (f *authFlags) auth() transport.AuthOptions {
	return transport.AuthOptions{
		Mode:         f.WSAuth,
		TokenFile:    f.WSTokenFile,
		TokenSHA256:  f.WSTokenSHA256,
		SecretFile:   f.WSSharedSecretFile,
		Issuer:       f.WSIssuer,
		Audience:     f.WSAudience,
		MaxClockSkew: f.WSMaxClockSkewSeconds,
	}
}

// refuse returns an error if any of these flags is given, because they have no meaning
// for a server that does not listen. A contradiction among them is reported first.
func (f *authFlags) refuse() error {
	if _, err := f.auth().Authenticator(); err != nil {
		return err
	}
	if *f != (authFlags{}) {
		return errors.New("--ws-auth and its options cannot be used in remote mode, because the registry decides who may connect")
	}
	return nil
}

// logFlags say what to log.
type logFlags struct {
	LogLevel  string `default:"info" enum:"debug,info,warn,error" env:"AGENT_LOG_LEVEL" group:"log" placeholder:"LEVEL" help:"What to log on standard error: debug, info, warn or error. Default: ${default}."`
	LogFormat string `default:"text" enum:"text,json" env:"AGENT_LOG_FORMAT" group:"log" placeholder:"FORMAT" help:"How to log: text or json. Default: ${default}."`
}

// loggingErrors writes complaints of the program to its log, if the log is JSON.
func (f *logFlags) loggingErrors(sys program.System) program.System {
	if f.LogFormat == "json" {
		sys.Errors = func(what any) { f.logger(sys.Stderr).Error(program.Plain(fmt.Sprint(what))) }
	}
	return sys
}

func (f *logFlags) logger(w io.Writer) *slog.Logger {
	return program.Logger(w, f.LogLevel, f.LogFormat)
}
