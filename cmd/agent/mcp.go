package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/execagent/execagent/cmd/agent/internal/mcpconfig"
	"github.com/execagent/execagent/cmd/agent/internal/sessions"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/internal/build"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/transport"
)

// mcpFlags say where the commands of an MCP server run, what they may do, and who asks for them.
type mcpFlags struct {
	agentFlags
	Local bool   `help:"Run the commands on this machine, whatever the current context is."`
	Dir   string `short:"C" bytes:"" env:"AGENT_MCP_DIR" placeholder:"DIR" help:"Directory of commands, and of relative paths of the tools. Default: the current directory; on another agent, that agent's working directory."`

	Root []string `sep:"none" env:"AGENT_MCP_ROOT" bytes:"" placeholder:"DIR" help:"Refuse paths outside of this directory to the tools for files, and as directories of commands. Only a sandbox limits what a command itself does. Can be repeated."`
	Env  []string `short:"e" bytes:"" sep:"none" env:"AGENT_MCP_ENV" secret:"" placeholder:"NAME[=VALUE]" help:"Set a variable for all commands; NAME alone passes on this process's variable. Can be repeated."`

	Session   string         `env:"AGENT_MCP_SESSION" placeholder:"NAME" help:"Name of the agent's session that has the commands. A later MCP server with the same name finds them again. Default: a new name."`
	Retain    *time.Duration `env:"AGENT_MCP_RETAIN" placeholder:"DURATION" help:"How long the agent keeps the session when nothing runs in it and no MCP server uses it. Default: a day, or what the agent allows."`
	Questions string         `default:"ask" enum:"ask,refuse" env:"AGENT_MCP_QUESTIONS" placeholder:"ask|refuse" help:"What happens if rules, or --network, leave a decision to the user: ask asks through the MCP client, if it can ask; refuse always refuses. Default: ${default}."`

	Data bool `env:"AGENT_MCP_DATA" help:"Give each answer as data (structuredContent), too, for programs. Not for assistants, because Claude Code and Codex show a model the data instead of the text."`

	confineFlags
	execRuleFlags
	limitFlags

	Listen string   `default:"stdio" env:"AGENT_MCP_LISTEN" placeholder:"stdio|http://IP:PORT" help:"Where to serve: stdio for one client that has started this program, or http://IP:PORT (port 0 takes a free one) for many, at the path /mcp. The URL is printed on one line. Default: ${default}."`
	Origin []string `sep:"none" env:"AGENT_MCP_ORIGIN" placeholder:"URL" help:"Let web pages of this origin, such as https://app.example.com, use --listen http://. Can be repeated. Default: none."`
	authFlags

	// ServeAgent is a servedAgent as JSON: serve as the agent of agent-mcp, on standard input and output.
	ServeAgent string `hidden:""`
}

// servedAgent is what the agent of agent-mcp needs of the command line. The line itself may have secrets (-e), and all
// users of the machine could read it for as long as that agent runs.
type servedAgent struct {
	Rules    execRuleFlags
	Limits   protocol.ProcessLimits
	LogLevel string
}

func (*mcpFlags) Help() string {
	return `Gives a coding assistant that speaks MCP (Claude Code, Codex, editors and others) nine tools: exec, read_output, write_stdin, signal, processes, read_file, write_file, edit and search. Commands and files are those of this machine, or of the agent that --url, --context or --registry names.

No call takes longer than 45 seconds. If a command still runs then, the answer has its id (p7), and read_output waits for more. A cancelled call ends no command.

Life: on another agent, commands belong to a session with a name (--session), and outlive the client and this program. Without --session each start makes a new session. It stays only if something still runs in it. On this machine, commands end with this program.

Sandbox: --read-only, --workspace, --network and the like confine all commands and the tools for files, as agent exec does. Without such a flag nothing is confined, and commands can do what the user of the agent can do.

Questions: if rules (--exec-policy, or those of the agent) or --network leave a decision to the user, the MCP client asks. The user allows it once, allows it for this session, or denies it. If the client cannot ask, the answer is no, and the result says why.

HTTP: with --listen http:// clients need a token: the one of --ws-auth, or else a new one in a file that standard error names. Web pages are refused, except those of --origin.

The program agent-mcp, which comes with this one, does the work.

Examples:

    claude mcp add box -- agent mcp --workspace .
    codex mcp add box -- agent mcp --url ws://127.0.0.1:7000 --token-file ~/box.token
    agent mcp --context box --session site --workspace /srv/site --network allow=packages.example.net
    agent mcp --local --workspace . --exec-policy ~/rules
    agent mcp --listen http://127.0.0.1:7100 --root /srv/site

Exit codes: 0 after the end of standard input or a signal, 1 when it cannot serve, 2 for a wrong command line.`
}

// Check finds flags that contradict each other. The parser calls it.
func (f *mcpFlags) Check() error {
	if f.ServeAgent != "" {
		return nil // all that counts was checked
	}
	if err := f.checkHere(f.Local, "runs commands here"); err != nil {
		return err
	}
	switch {
	case f.Session != "" && !f.Elsewhere():
		return errors.New("--session needs an agent that keeps running: name one with --context, --url or --registry")
	case f.Retain != nil && !f.Elsewhere():
		return errors.New("--retain needs an agent that keeps running: name one with --context, --url or --registry")
	case f.Retain != nil && *f.Retain < 0:
		return fmt.Errorf("--retain %v is negative", *f.Retain)
	case slices.Contains(f.Root, ""):
		return errors.New("--root is empty")
	case f.Listen == mcpconfig.Stdio && len(f.Origin) > 0:
		return errors.New("--origin needs --listen http://IP:PORT")
	}
	if f.Session != "" {
		if err := sessions.CheckName(f.Session); err != nil {
			return fmt.Errorf("--session: %w", err)
		}
	}
	if f.Listen != mcpconfig.Stdio {
		if _, err := f.address(); err != nil {
			return err
		}
	}
	for _, origin := range f.Origin {
		if scheme, host, ok := strings.Cut(origin, "://"); !ok || scheme == "" || host == "" || strings.Contains(host, "/") {
			return fmt.Errorf("--origin %q is not an origin such as https://app.example.com", origin)
		}
	}
	if err := checkVariables(f.Env); err != nil {
		return err
	}
	return errors.Join(f.confineFlags.Check(), f.execRuleFlags.check(f.Elsewhere()), f.limitFlags.check(), f.auth().Validate())
}

// address returns the host and the port of --listen.
func (f *mcpFlags) address() (string, error) {
	address, ok := strings.CutPrefix(f.Listen, "http://")
	host, port, err := net.SplitHostPort(address)
	if !ok || err != nil || net.ParseIP(host) == nil || port == "" {
		return "", fmt.Errorf("--listen %q is not stdio or http://IP:PORT", f.Listen)
	}
	return address, nil
}

// run becomes agent-mcp.
func (f *mcpFlags) run(sys program.System) int {
	if f.ServeAgent != "" {
		return serveUntilSignal(sys, 0, func(ctx context.Context) error { return unlessEnded(ctx, f.serveAgent(ctx, sys)) })
	}
	path, err := mcpconfig.Find()
	var config *mcpconfig.Config
	if err == nil {
		config, err = f.config(sys)
	}
	if err == nil {
		environ := slices.Clone(sys.Environ)
		for _, key := range sys.Keys {
			environ = append(environ, string(key))
		}
		err = config.Become(path, environ)
		if config.Token != "" {
			err = errors.Join(err, os.Remove(config.Token))
		}
	}
	return sys.Fail(err)
}

// serveAgent serves as the agent of agent-mcp.
func (f *mcpFlags) serveAgent(ctx context.Context, sys program.System) error {
	var told servedAgent
	if err := json.Unmarshal([]byte(f.ServeAgent), &told); err != nil {
		return fmt.Errorf("--serve-agent: %w", err)
	}
	limits := &limitFlags{Memory: program.Size(told.Limits.MemoryBytes), CPUs: processors(told.Limits.MilliCPUs), PIDs: told.Limits.Processes}
	f.LogLevel = told.LogLevel
	m, err := embed(sys, &told.Rules, limits, f.Logger(sys))
	if err != nil {
		return err
	}
	defer m.close()
	conn := transport.Stdio(sys.Stdin, sys.Stdout, rpc.NewBudget(planShares().messages))
	defer conn.Close()
	return m.serve(ctx, conn)
}

// config returns what agent-mcp has to know.
func (f *mcpFlags) config(sys program.System) (*mcpconfig.Config, error) {
	c := &mcpconfig.Config{
		Version: build.Version(), Target: f.Again(),
		Policy: f.confineFlags.Flags, Confined: f.FileFlag() != "" || len(f.Network) > 0, NetworkOn: f.network.On, Plain: f.NoTransparent,
		Refusals: !f.NoRefusals, Start: &mcpconfig.Start{Limits: f.limits()},
		Env: variablesOf(sys, f.Env), Dir: f.Dir, Roots: f.Root,
		Session: f.Session, Retain: f.Retain, Ask: f.Questions == "ask", Data: f.Data,
		Listen: f.Listen, Auth: f.auth(), Origins: f.Origin,
	}
	if f.network.Managed {
		c.Start.EnforceManagedNetwork, c.Start.NetworkProxy = true, f.network.Proxy(true)
	}
	var err error
	if c.Start.ExecApproval, err = f.ofRequest(f.Elsewhere()); err != nil {
		return nil, err
	}
	if !f.Elsewhere() {
		self, err := os.Executable()
		if err != nil {
			return nil, fmt.Errorf("finding this program: %w", err)
		}
		told := servedAgent{Rules: f.execRuleFlags, LogLevel: f.LogLevel}
		if limits := f.limits(); limits != nil {
			told.Limits = *limits
		}
		line, err := json.Marshal(told)
		if err != nil {
			return nil, err
		}
		c.Agent = []string{self, "mcp", "--serve-agent=" + string(line)}
		if c.Dir, err = program.Abs(c.Dir); err != nil {
			return nil, err
		}
	}
	if f.Listen != mcpconfig.Stdio {
		if c.Listen, err = f.address(); err == nil && c.Auth.Mode == "" {
			c.Token, err = newToken()
			c.Auth = transport.AuthOptions{Mode: "capability-token", TokenFile: c.Token}
		}
	}
	for _, file := range []*string{&c.Auth.TokenFile, &c.Auth.SecretFile} {
		if *file != "" && err == nil {
			*file, err = filepath.Abs(*file)
		}
	}
	return c, err
}
