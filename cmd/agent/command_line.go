package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/alecthomas/kong"

	"github.com/execagent/execagent/cmd/agent/target"
	"github.com/execagent/execagent/cmd/internal/commandline"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/build"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/sandbox/hold"
	"github.com/execagent/execagent/transport"
)

// commandLine is the grammar of the command line: the only place that reads
// flags and AGENT_ variables.
type commandLine struct {
	ExecServer   serverFlags       `cmd:"" default:"withargs" help:"Serve clients over WebSocket or stdio. This is the default command."`
	Forward      forwardFlags      `cmd:"" help:"Register a WebSocket exec-server as a remote environment."`
	Connect      connectFlags      `cmd:"" help:"Offer an agent behind a registry to programs on this machine."`
	Exec         execFlags         `cmd:"" help:"Run a command on an agent, as if it ran here."`
	Cp           cpFlags           `cmd:"" help:"Copy files and directories to an agent, or from it."`
	Ls           lsFlags           `cmd:"" help:"List files of an agent."`
	Cat          catFlags          `cmd:"" help:"Print files of an agent."`
	Rm           rmFlags           `cmd:"" help:"Remove files of an agent."`
	Mkdir        mkdirFlags        `cmd:"" help:"Make directories at an agent."`
	Sandbox      sandboxFlags      `cmd:"" help:"Run a command here, confined."`
	Doctor       doctorFlags       `cmd:"" help:"Tell what this host can enforce, and how to get what is missing."`
	PortForward  portForwardFlags  `cmd:"" help:"Bring ports of this machine to ports on an agent's side."`
	ProxyCommand proxyCommandFlags `cmd:"" help:"Join standard input and output with a port on an agent's side, as ssh's ProxyCommand."`
	Health       askFlags          `cmd:"" help:"Ask an agent whether it serves, for health checks."`

	Ps     psFlags     `cmd:"" help:"List the sessions with a name, and what runs in them."`
	Logs   logsFlags   `cmd:"" help:"Print what a command in a session has printed."`
	Attach attachFlags `cmd:"" help:"Join a command that runs in a session."`
	Wait   waitFlags   `cmd:"" help:"Wait for the commands of sessions, and end as they do."`
	Kill   killFlags   `cmd:"" help:"Send a signal to what runs in sessions."`
	End    endFlags    `cmd:"" help:"End sessions: forget them, with what they have printed."`

	Context      contextFlags      `cmd:"" help:"Name agents, and choose the one that commands use."`
	Login        loginFlags        `cmd:"" help:"Store the key for a registry, and name it."`
	Environments environmentsFlags `cmd:"" help:"List the environments of a registry that the key is for."`

	Version    versionFlags    `cmd:"" help:"Print the version and what it is compatible with."`
	Completion completionFlags `cmd:"" help:"Print a completion script for a shell."`
	Man        manFlags        `cmd:"" help:"Print a man page."`
	Complete   completeFlags   `cmd:"" hidden:"" help:"Print words for a completion script."`

	ShowVersion versionFlag `name:"version" help:"Print the version, as agent version does."`
}

const description = `Runs processes, file operations and HTTP requests for clients that speak the protocol of codex exec-server.

The options of the server need no command before them: agent exec-server --help lists them (--listen, --ws-auth and the rest).

Every option can also be given as an environment variable, named in its help. Secrets are read from files.

Examples:

  agent exec -- make test                          run a command through an embedded agent
  agent --listen ws://127.0.0.1:7000               serve on a port
  agent exec --url ws://127.0.0.1:7000 -t -- bash  and use it
  agent exec --url ... -d --name job -- make test  start it and go; agent ps, logs -f, attach, wait, kill
  agent cp --url ws://127.0.0.1:7000 site :/srv    copy files to it
  agent --listen stdio                             serve on standard input and output
  agent --remote https://HOST --environment-id ID  serve as a remote environment
  agent sandbox --workspace . -- make test         run a command that can write only here
  agent doctor                                     tell which sandboxes can be enforced here`

// defaultListen is where the server listens unless it is told otherwise.
const defaultListen = "ws://127.0.0.1:0"

// errUser says why there is no --user.
var errUser = errors.New("-u, --user: a command runs as the user of its agent, who cannot become another one; start an agent as that user")

// Validate finds flags that contradict each other, and a command that is none. The parser
// calls it.
func (f *execFlags) Validate() error {
	switch {
	case f.User != "":
		return errUser
	case f.Workdir != "" && f.Dir != "":
		return errors.New("-C and --workdir are the same: give one of them")
	case f.Local && (f.URL != "" || f.Registry != "" || f.Context != nil):
		return errors.New("--local says where the agent is: --context, --url and --registry have no meaning with it")
	}
	if f.Local {
		f.Context = new("")
	}
	for _, entry := range f.Env {
		if name, _, _ := strings.Cut(entry, "="); name == "" {
			return fmt.Errorf("-e %q has no name", entry)
		}
	}
	if err := f.Flags.Validate(); err != nil {
		return err
	}
	if err := f.namedFlags.validate(f.Elsewhere()); err != nil {
		return err
	}
	return validCommand(f.Command, f)
}

// dir is the directory that the flags name.
func (f *execFlags) dir() string { return cmp.Or(f.Workdir, f.Dir) }

// validCommand refuses a command line of another program that is empty, or that begins with
// what looks like a flag of ours and is not.
func validCommand(command []string, flags any) error {
	switch first := first(command); {
	case first == "" || first == "--" && (len(command) == 1 || command[1] == ""):
		return errors.New("the command is empty")
	case first != "--" && strings.HasPrefix(first, "-") && first != "-":
		return errors.New(unknownFlag(first, flags) + " (a command that begins with - comes after --)")
	}
	return nil
}

func first(words []string) string {
	if len(words) == 0 {
		return ""
	}
	return words[0]
}

// parse returns the flags of the command that the arguments name. Their type, for
// example *execFlags, tells which command it is. If the command line is wrong, the
// error is a *wrongLine.
//
// parse builds the parser only for a line that parsePlain cannot read. --help is
// such a line, and so is every wrong one: only the parser can say what is wrong.
func parse(args []string, stdout, stderr io.Writer) (flags any, err error) {
	if len(args) > 0 && args[0] == "help" {
		args = append(slices.Clone(args[1:]), "--help")
	}
	line := givenOn(args)
	line.prefer()
	if err := line.nameless(); err != nil {
		return nil, &wrongLine{commandOf(args), err}
	}
	if flags = parseOne(args); flags == nil {
		if flags, err = parseAny(args, stdout, stderr); err != nil {
			return nil, err
		}
	}
	if err := line.homeless(flags); err != nil {
		return nil, &wrongLine{commandOf(args), err}
	}
	return flags, nil
}

// parseAny is parse with the parser.
func parseAny(args []string, stdout, stderr io.Writer) (flags any, err error) {
	parser, err := newParser(stdout, stderr)
	if err != nil {
		return nil, err
	}
	command, err := commandline.Command(parser.Model, args, commandHabits)
	if err != nil {
		return nil, &wrongLine{command, err}
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		return nil, &wrongLine{command, wrong(command, err)}
	}
	return parsed.Selected().Target.Addr().Interface(), nil
}

// wrongLine is the error of a command line that is wrong.
type wrongLine struct {
	command string // whose help has the right ones; "" for none
	err     error
}

func (e *wrongLine) Error() string { return e.err.Error() }

// help names the help of the command.
func (e *wrongLine) help() string {
	if e.command == "" {
		return "see agent --help, for the options of the server agent exec-server --help"
	}
	return fmt.Sprintf("see agent %s --help", e.command)
}

// commandOf is the word of a command line that names the command, or "".
func commandOf(args []string) string {
	if first := first(args); !strings.HasPrefix(first, "-") {
		return first
	}
	return ""
}

// parseOne returns the flags of a plain line, without the parser. It returns nil
// for every other line.
func parseOne(args []string) (flags any) {
	name := "exec-server" // the default
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name, args = args[0], args[1:]
	}
	if flags = newFlags(name); flags == nil || !parsePlain(args, flags) {
		return nil
	}
	return flags
}

// newFlags returns empty flags for a command. It returns nil for a word that is no
// command, and for those with arguments of their own, which only the parser reads.
func newFlags(command string) any {
	switch command {
	case "exec-server":
		return new(serverFlags)
	case "forward":
		return new(forwardFlags)
	case "connect":
		return new(connectFlags)
	case "exec":
		return new(execFlags)
	case "cp":
		return new(cpFlags)
	case "ls":
		return new(lsFlags)
	case "cat":
		return new(catFlags)
	case "rm":
		return new(rmFlags)
	case "mkdir":
		return new(mkdirFlags)
	case "sandbox":
		return new(sandboxFlags)
	case "doctor":
		return new(doctorFlags)
	case "ps":
		return new(psFlags)
	case "logs":
		return new(logsFlags)
	case "attach":
		return new(attachFlags)
	case "wait":
		return new(waitFlags)
	case "kill":
		return new(killFlags)
	case "end":
		return new(endFlags)
	case "port-forward":
		return new(portForwardFlags)
	case "proxy-command":
		return new(proxyCommandFlags)
	case "health":
		return new(askFlags)
	case "environments":
		return new(environmentsFlags)
	case "version":
		return new(versionFlags)
	}
	return nil
}

// newParser makes the parser of the whole command line.
func newParser(stdout, stderr io.Writer) (*kong.Kong, error) {
	var grammar commandLine
	parser, err := kong.New(&grammar,
		kong.Name("agent"),
		kong.Description(description),
		kong.Writers(stdout, stderr),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, NoAppDescFormat: true, FlagsLast: true}),
		kong.ExplicitGroups([]kong.Group{
			{Key: "remote", Title: "Remote mode:"},
			{Key: "auth", Title: "Authentication of WebSocket clients:"},
			{Key: "sandbox", Title: "Confined commands:"},
			{Key: "log", Title: "Log:"},
		}))
	if err != nil {
		return nil, err
	}
	for _, command := range parser.Model.Children {
		for _, flag := range command.Flags {
			// forward takes the flags of this group only to say that they have no
			// meaning there, so its help does not list them.
			flag.Hidden = flag.Hidden || command.Name == "forward" && flag.Group != nil && flag.Group.Key == "auth"
		}
	}
	return parser, nil
}

// serverFlags are the flags of the reference (rpc.md 1) and our own.
//
// Their tags repeat defaults of other packages as text; TestDefaultsInTags compares
// the two. kong could fill them in from variables (kong.Vars), but it does that
// again for each text of each flag, and a start would take longer.
type serverFlags struct {
	Listen               *string `env:"AGENT_LISTEN" placeholder:"URL" help:"Where to listen: ws://IP:PORT or IP:PORT (port 0 takes a free one; without IP all IPv4 addresses), unix:///PATH, or stdio. The bound URL is printed as one line. Default: ws://127.0.0.1:0."`
	AllowUnauthenticated bool    `env:"AGENT_ALLOW_UNAUTHENTICATED" help:"Listen on an address that is not a loopback one without --ws-auth."`
	uidFlags
	healthFlags

	ConcurrentRequests int           `default:"64" env:"AGENT_CONCURRENT_REQUESTS" placeholder:"N" help:"Requests of one connection that run at once; 1 is strict order. Default: ${default}."`
	RetainBytes        program.Size  `default:"1048576" env:"AGENT_RETAIN_BYTES" placeholder:"N" help:"Bytes of output kept for each process. Default: ${default}."`
	RetainTotalBytes   *program.Size `env:"AGENT_RETAIN_TOTAL_BYTES" placeholder:"N" help:"Bytes of output kept for all processes together. Default: 268435456, less where memory is limited."`
	NamedSessionTTL    time.Duration `default:"24h" env:"AGENT_NAMED_SESSION_TTL" name:"named-session-ttl" placeholder:"DURATION" help:"How long sessions with a name are kept at most, with their ended processes, when nobody is attached and nothing runs in them. Default: ${default}."`
	SessionTTL         time.Duration `default:"1m20s" env:"AGENT_SESSION_TTL" name:"session-ttl" placeholder:"DURATION" help:"How long detached sessions and ended processes are kept. Default: ${default}."`

	remoteFlags
	KeepRevokedSessions bool `env:"AGENT_KEEP_REVOKED_SESSIONS" group:"remote" help:"Keep the commands of a client whose key is revoked for --session-ttl, as after any lost connection, instead of killing them at once."`
	authFlags
	hostFlags
	MaxProcesses    uint64       `env:"AGENT_MAX_PROCESSES" group:"sandbox" placeholder:"N" help:"Processes and threads that the user of a confined command may have (RLIMIT_NPROC). Default: as inherited."`
	MaxAddressSpace program.Size `env:"AGENT_MAX_ADDRESS_SPACE" group:"sandbox" placeholder:"BYTES" help:"Memory that each process of a confined command may map (RLIMIT_AS). Default: as inherited."`
	MaxCPUSeconds   uint64       `env:"AGENT_MAX_CPU_SECONDS" name:"max-cpu-seconds" group:"sandbox" placeholder:"N" help:"CPU time of each process of a confined command (RLIMIT_CPU). Default: as inherited."`
	CgroupPIDs      uint64       `env:"AGENT_CGROUP_PIDS" name:"cgroup-pids" group:"sandbox" placeholder:"N" help:"Processes and threads of each confined command together, where a cgroup v2 is delegated (pids.max)."`
	CgroupMemory    program.Size `env:"AGENT_CGROUP_MEMORY" group:"sandbox" placeholder:"BYTES" help:"Memory of each confined command together, where a cgroup v2 is delegated (memory.max)."`
	CgroupCPU       string       `env:"AGENT_CGROUP_CPU" name:"cgroup-cpu" group:"sandbox" placeholder:"QUOTA PERIOD" help:"CPU time of each confined command together, in microseconds, where a cgroup v2 is delegated (cpu.max)."`

	logFlags
}

func (*serverFlags) Help() string {
	return `Serves until SIGTERM or SIGINT, with stdio also until the end of standard input. Everything it has started is then killed.

With --remote it registers with a registry and serves what comes through its relay, encrypted end to end. It signs in with one of the flags below, else with CODEX_API_KEY, with CODEX_EXEC_SERVER_REMOTE_BEARER_TOKEN, or with auth.json in CODEX_HOME (~/.codex), in this order.

Examples:

    agent --listen ws://127.0.0.1:7000
    agent --listen ws://0.0.0.0:7000 --ws-auth capability-token --ws-token-file /run/secrets/token
    agent --listen unix:///run/user/1000/agent.sock
    agent --listen stdio
    CODEX_API_KEY=... agent --remote https://registry.example.com --environment-id build-1

Exit codes: 0 after an orderly end, 1 when it cannot serve, 2 for a wrong command line.`
}

// Validate finds flags that contradict each other. The parser calls it.
func (f *serverFlags) Validate() error {
	switch {
	case f.ConcurrentRequests < 1:
		return fmt.Errorf("--concurrent-requests %d is not at least 1", f.ConcurrentRequests)
	case f.RetainBytes < 1:
		return fmt.Errorf("--retain-bytes %d is not at least 1", f.RetainBytes)
	case f.RetainTotalBytes != nil && *f.RetainTotalBytes < 1:
		return fmt.Errorf("--retain-total-bytes %d is not at least 1", *f.RetainTotalBytes)
	case f.MaxAddressSpace < 0:
		return fmt.Errorf("--max-address-space %d is negative", f.MaxAddressSpace)
	case f.CgroupMemory < 0:
		return fmt.Errorf("--cgroup-memory %d is negative", f.CgroupMemory)
	case f.SessionTTL <= 0:
		return fmt.Errorf("--session-ttl %v is not positive", f.SessionTTL)
	case f.NamedSessionTTL <= 0:
		return fmt.Errorf("--named-session-ttl %v is not positive", f.NamedSessionTTL)
	case f.Remote != nil && f.Listen != nil:
		return errors.New("--remote and --listen (AGENT_LISTEN) exclude each other")
	case f.Remote == nil && f.KeepRevokedSessions:
		return errors.New("--keep-revoked-sessions needs --remote")
	}
	if err := errors.Join(f.uidFlags.validate(f.listen()), f.auth().Validate()); err != nil {
		return err
	}
	return f.remoteFlags.usage()
}

// uidFlags say who may connect to a UNIX socket.
type uidFlags struct {
	AllowUID []uint32 `env:"AGENT_ALLOW_UID" name:"allow-uid" placeholder:"UID" help:"User who may connect to a UNIX socket too, besides this one and root. Can be repeated."`
}

// validate refuses what says nothing about the URL that is listened on.
func (f *uidFlags) validate(listen string) error {
	if len(f.AllowUID) > 0 && !isUnix(listen) {
		return errors.New("--allow-uid needs --listen unix:///PATH")
	}
	if slices.Contains(f.AllowUID, math.MaxUint32) {
		return errors.New("--allow-uid 4294967295 is no user")
	}
	return nil
}

// isUnix tells whether a URL is that of a UNIX socket.
func isUnix(url string) bool { return strings.HasPrefix(url, "unix:") }

// listen returns the URL to listen on.
func (f *serverFlags) listen() string {
	if f.Listen == nil {
		return defaultListen
	}
	return target.ListenURL(*f.Listen)
}

// authFlags say how WebSocket clients prove that they may connect.
type authFlags struct {
	WSAuth                string `default:"" enum:",capability-token,signed-bearer-token" env:"AGENT_WS_AUTH" name:"ws-auth" group:"auth" placeholder:"MODE" help:"How WebSocket clients prove who they are: capability-token or signed-bearer-token."`
	WSTokenFile           string `env:"AGENT_WS_TOKEN_FILE" name:"ws-token-file" group:"auth" type:"path" placeholder:"FILE" help:"File with the capability token."`
	WSTokenSHA256         string `env:"AGENT_WS_TOKEN_SHA256" name:"ws-token-sha256" group:"auth" placeholder:"HEX" help:"SHA-256 of the capability token, instead of the token itself."`
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

// refuse returns an error if any of these flags is given: the server does not
// listen, so they have no meaning. If they do not fit each other either, the error
// says that.
func (f *authFlags) refuse() error {
	if _, err := f.auth().Authenticator(); err != nil {
		return err
	}
	if *f != (authFlags{}) {
		return errors.New("--ws-auth and what belongs to it have no meaning in remote mode: the registry says who may connect")
	}
	return nil
}

// logFlags say what to log.
type logFlags struct {
	LogLevel  string `default:"info" enum:"debug,info,warn,error" env:"AGENT_LOG_LEVEL" group:"log" placeholder:"LEVEL" help:"What to log on standard error: debug, info, warn or error. Default: ${default}."`
	LogFormat string `default:"text" enum:"text,json" env:"AGENT_LOG_FORMAT" group:"log" placeholder:"FORMAT" help:"How to log: text or json. Default: ${default}."`
}

func (f *logFlags) logger(w io.Writer) *slog.Logger {
	return program.Logger(w, f.LogLevel, f.LogFormat)
}

// execFlags say what to run, where and how.
type execFlags struct {
	target.Flags

	Interactive bool     `short:"i" name:"interactive" help:"Nothing without -d: standard input is always passed on, see -n. For the habit of typing -it. With -d the command gets a standard input, from who attaches."`
	TTY         bool     `short:"t" name:"tty" env:"AGENT_TTY" help:"Give the command a terminal, which follows the size of this one."`
	NoStdin     bool     `short:"n" env:"AGENT_NO_STDIN" help:"Do not pass standard input."`
	Env         []string `short:"e" sep:"none" env:"AGENT_ENV" placeholder:"NAME[=VALUE]" help:"Set a variable for the command, or pass the one of this name on. Can be repeated."`
	EnvFile     []string `name:"env-file" type:"path" sep:"none" env:"AGENT_ENV_FILE" placeholder:"FILE" help:"Set the variables in a file, NAME=VALUE or NAME on each line, before those of -e. Can be repeated."`
	Dir         string   `short:"C" env:"AGENT_DIR" placeholder:"DIR" help:"Directory to run in. Default: this one; elsewhere the agent's."`
	Workdir     string   `short:"w" name:"workdir" placeholder:"DIR" help:"The same as -C."`
	User        string   `short:"u" name:"user" hidden:"" help:"Refused."`
	Local       bool     `help:"Embed an agent, whatever the current context is."`
	namedFlags

	Command []string `arg:"" passthrough:"" name:"cmd" help:"Command with its arguments."`
}

func (*execFlags) Help() string {
	return `Standard input, output and error, signals (INT, TERM, HUP, QUIT) and the size of the terminal are passed through. Nothing of the output is lost, however slowly it is read. Of its own, agent writes only lines that begin with "agent:" to standard error: what it warns of, and why it fails.

Where: on the agent of --url, of --registry and --environment-id, or of --context; else of AGENT_URL, AGENT_REGISTRY or AGENT_CONTEXT; else of the current context (see agent context); without any of these, and with --local, in an agent that is embedded here.

Environment: an embedded agent passes the variables of this process on, but for keys of the agent itself such as OPENAI_API_KEY: name those with -e. Elsewhere the command gets the core variables of the agent (HOME, PATH, USER, LANG, SHELL, TMPDIR and the like). -e comes on top; -t adds TERM.

It ends when all output has ended, or one second after the command has exited and its background processes, if any, have been silent. Those are killed: at once, or elsewhere when the agent gives up the session.

With --name the command belongs to a session of that name at the agent, and does not end with its client: the keys of --detach-keys (or ~.) leave it running, as a lost connection does, and so does -d, which prints the name and returns at once. agent ps, logs, attach, wait and kill find it by the name, from any machine, until it has ended and a day has passed (--retain), or agent end has ended the session. A name is free again when what it stands for has ended.

Examples:

    agent exec -- sh -c 'echo $HOME; exit 3'
    agent exec -t -- bash
    agent exec --url ws://127.0.0.1:7000 -C /srv/w -e CI=1 -- make test
    agent exec --url ws://127.0.0.1:7000 -d --name nightly -- make test
    tar c . | agent exec --url ws://127.0.0.1:7000 -- tar x -C /tmp
    CODEX_API_KEY=... agent exec --registry https://registry.example.com --environment-id build-1 -- make test

Exit codes: that of the command, 128+n when signal n ended it, 127 when it was not found, 126 when it could not be executed, 125 when agent itself failed, 2 for a wrong command line.`
}

// sandboxFlags say what to run, and what it may do.
type sandboxFlags struct {
	ReadOnly  bool     `env:"AGENT_SANDBOX_READ_ONLY" help:"Read everything, write nothing. This is the default."`
	Workspace []string `sep:"none" env:"AGENT_SANDBOX_WORKSPACE" placeholder:"DIR" help:"Write in this directory too, in /tmp and in TMPDIR. Can be repeated."`
	Policy    string   `env:"AGENT_SANDBOX_POLICY" type:"path" placeholder:"FILE" help:"Do what the policy in a JSON file says; - is standard input."`
	Network   string   `default:"" enum:",on,off" env:"AGENT_SANDBOX_NETWORK" placeholder:"on|off" help:"Whether the network of this host can be used. Default: off."`
	hostFlags

	Command []string `arg:"" passthrough:"" name:"cmd" help:"Command with its arguments."`
}

func (*sandboxFlags) Help() string {
	return `The command runs as if agent sandbox were not there: same terminal, same standard input, output and error, same directory, same environment but for keys of the agent itself such as OPENAI_API_KEY. What the policy forbids fails with errors such as "Read-only file system", "Permission denied" or "Operation not permitted". Names like .git at the top of a workspace stay read-only, whether they exist or not. A policy that this host cannot enforce exactly is refused, and nothing runs: see agent doctor.

A policy file has what the member sandbox of a request has: permissions, cwd, workspaceRoots and the rest. cwd is the current directory if it is not given.

Examples:

    agent sandbox -- git log
    agent sandbox --workspace . -- make test
    agent sandbox --workspace . --workspace ~/.cache --network on -- npm install
    agent sandbox --policy policy.json -- sh

Exit codes: that of the command, 128+n when signal n ended it, 127 when it was not found, 126 when it could not be executed, 101 when something else kept it from running in the sandbox, 2 for a wrong command line.`
}

// Validate finds flags that contradict each other. The parser calls it.
func (f *sandboxFlags) Validate() error {
	switch {
	case f.ReadOnly && len(f.Workspace) > 0:
		return errors.New("--read-only and --workspace exclude each other")
	case f.Policy != "" && (f.ReadOnly || len(f.Workspace) > 0):
		return errors.New("--policy says what can be read and written: --read-only and --workspace have no meaning with it")
	case f.Policy != "" && f.Network != "":
		return errors.New("--policy says whether there is a network: --network has no meaning with it")
	}
	return validCommand(f.Command, f)
}

// doctorFlags say how to print, and for which agent to look.
type doctorFlags struct {
	JSON bool `name:"json" env:"AGENT_DOCTOR_JSON" help:"Print it as a JSON object."`
	hostFlags
}

// hostFlags are settings of a host. They have to be the same for every agent there
// and for agent sandbox and agent doctor, so all of these have them.
type hostFlags struct {
	SandboxMinimum  string `default:"" enum:",full" env:"AGENT_SANDBOX_MINIMUM" group:"sandbox" placeholder:"LAYERS" help:"full refuses commands that could only be confined without namespaces, even where that is exact."`
	SandboxMetadata string `default:"hidden" enum:"hidden,visible" env:"AGENT_SANDBOX_METADATA" group:"sandbox" placeholder:"hidden|visible" help:"Where there are no namespaces: visible lets a command that may not read a file learn its size and times; looking at files costs less then."`
	StateDir        string `env:"AGENT_STATE_DIR" group:"sandbox" type:"path" placeholder:"DIR" help:"Private folder for records of placeholders (an empty .git and the like, while a command runs), to clean up after a crash. All agents of a user need the same. Default: one in /dev/shm, XDG_RUNTIME_DIR, /run or /tmp."`
}

// stateDir returns the folder for records of placeholders, and makes it if needed.
// An error says why there is none.
func (f *hostFlags) stateDir() (string, error) {
	if f.StateDir != "" {
		return hold.StateDir(f.StateDir)
	}
	return hold.StateDir(hold.StateDirs()...)
}

// operator returns which layers will do.
func (f *hostFlags) operator() sandbox.Operator {
	return sandbox.Operator{RequireNamespaces: f.SandboxMinimum == "full", VisibleMetadata: f.SandboxMetadata == "visible"}
}

func (*doctorFlags) Help() string {
	return `Every layer is tried in a process that ends at once; nothing is inferred from versions. For each kind of policy it says whether it is enforced exactly, for processes and for file requests, or refused.

Exit codes: 0 when everything can be enforced, 1 when something cannot, 2 for a wrong command line.`
}

// askFlags name the agent to ask.
type askFlags struct{ target.Flags }

func (*askFlags) Help() string {
	return `Connects as a client does and asks for the status, so it needs what a client needs: --token-file, or a key for --registry. It prints nothing if all is well. Without --wait it tries once; it takes 10 s at most, or --timeout.

Examples:

    agent health --url 127.0.0.1:7000
    HEALTHCHECK CMD ["agent", "health", "--url", "127.0.0.1:7000"]

Exit codes: 0 when the agent serves, 1 when it does not, 2 for a wrong command line.`
}

// Validate finds flags that contradict each other. The parser calls it.
func (f *askFlags) Validate() error {
	if !f.Elsewhere() {
		return errNowhere
	}
	return f.Flags.Validate()
}

// versionFlag is --version. Like --help it takes effect before the parser looks at
// the rest of the line.
type versionFlag bool

// BeforeReset prints the version and exits. The parser calls it.
func (versionFlag) BeforeReset(app *kong.Kong) error {
	if err := build.This("agent").Print(app.Stdout, false); err != nil {
		return err
	}
	app.Exit(program.ExitOK)
	return nil
}

// versionFlags say how to print the version.
type versionFlags struct {
	JSON bool `name:"json" env:"AGENT_VERSION_JSON" help:"Print it as a JSON object."`
}

// completionFlags say for which shell the script is.
type completionFlags struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

func (*completionFlags) Help() string {
	return `Examples:

    source <(agent completion bash)
    agent completion zsh > "${fpath[1]}/_agent"
    agent completion fish > ~/.config/fish/completions/agent.fish`
}
