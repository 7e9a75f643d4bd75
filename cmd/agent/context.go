package main

import (
	"cmp"
	"errors"
	"fmt"
	"strings"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/cmd/agent/internal/target"
	"github.com/execagent/execagent/cmd/internal/program"
)

// contextFlags are the commands about contexts.
type contextFlags struct {
	Add    contextAddFlags    `cmd:"" help:"Name an agent or a registry."`
	List   contextListFlags   `cmd:"" aliases:"ls" help:"List the contexts."`
	Use    contextUseFlags    `cmd:"" help:"Make a context the current one."`
	Show   contextShowFlags   `cmd:"" help:"Show a context, without its token."`
	Remove contextRemoveFlags `cmd:"" aliases:"rm" help:"Remove contexts."`
}

func (*contextFlags) Help() string {
	return `A context is a name for an agent. It holds the agent's URL, or a registry and an environment, and says where the token is. A command uses the context of --context, else of AGENT_CONTEXT, else the current context. --url, --registry, AGENT_URL and AGENT_REGISTRY override AGENT_CONTEXT and the current context. --context overrides all variables.

Contexts are stored in a TOML file, config.toml in the folder execagent of XDG_CONFIG_HOME or ~/.config. The file must belong to you or to root, and nobody else may be able to write it, because commands in it run as you. A token in the file itself is used only if nobody else can read the file.

Examples:

    agent context add box --url 127.0.0.1:7000 --token-file ~/box.token
    agent context add prod --registry https://registry.example.com --environment-id build-1 --token-command 'pass show prod'
    agent context use prod
    agent exec -- make test
    agent exec --context box -- make test
    agent exec --local -- make test`
}

// configFlags name the file of contexts.
type configFlags struct {
	Config string `env:"AGENT_CONFIG" type:"path" placeholder:"FILE" help:"File with contexts and options. Default: execagent/config.toml in XDG_CONFIG_HOME or ~/.config."`
}

// read reads the file of contexts.
func (f *configFlags) read() (*target.ContextFile, error) {
	path, err := target.LocateContexts(f.Config)
	if err != nil {
		return nil, err
	}
	return target.ReadContexts(path)
}

// inForce returns the name of the context that commands use, or "" for none. It tells the user if a
// variable overrides the current context.
func inForce(sys program.System, file *target.ContextFile) string {
	for _, name := range []string{"AGENT_URL", "AGENT_REGISTRY", "AGENT_CONTEXT"} {
		value, set := sys.Lookup(name)
		switch {
		case name == "AGENT_CONTEXT" && set && value != file.Current:
			program.Complain(sys.Stderr, "AGENT_CONTEXT is set and overrides the current context")
			return value
		case name != "AGENT_CONTEXT" && value != "":
			program.Complain(sys.Stderr, name+" is set and overrides the current context; --context overrides it")
			return ""
		}
	}
	return file.Current
}

// change changes the file of contexts.
func (f *configFlags) change(change func(*target.ContextFile) error) error {
	path, err := target.LocateContexts(f.Config)
	if err != nil {
		return err
	}
	return target.ChangeContexts(path, change)
}

// contextAddFlags are the values of a context. They have no variables, because variables are for
// commands that use an agent.
type contextAddFlags struct {
	Name          string `arg:"" help:"Name of the context: letters, digits, . _ and -."`
	URL           string `name:"url" placeholder:"URL" help:"URL of an agent that listens: ws://HOST:PORT, HOST:PORT or wss://."`
	Registry      string `placeholder:"URL" help:"URL of the registry through which to reach agents."`
	EnvironmentID string `name:"environment-id" placeholder:"ID" help:"Environment to use. Without it, each command must name one."`
	Transport     string `default:"" enum:",noise,direct" placeholder:"NAME" help:"How to reach agents through the registry (see agent exec --help). Default: what each command says, else noise."`
	TokenFile     string `type:"path" placeholder:"FILE" help:"File with the token. Default for a registry: the same variables as without a context."`
	TokenCommand  string `placeholder:"COMMAND" help:"Command that prints the token when it is needed. The text is split at blanks, and run without a shell."`
	TLSCA         string `name:"tls-ca" type:"path" placeholder:"FILE" help:"Certificate authorities (PEM) to trust for --url or --registry."`
	TLSCert       string `name:"tls-cert" type:"path" placeholder:"FILE" help:"Certificate (PEM) to show to the agent."`
	TLSKey        string `name:"tls-key" type:"path" placeholder:"FILE" help:"Private key (PEM) of --tls-cert."`
	TLSServerName string `name:"tls-server-name" placeholder:"NAME" help:"Name that the certificate of --url must be for."`
	Use           bool   `help:"Make this the current context."`
	Replace       bool   `help:"Replace the existing context of that name."`
	configFlags
}

func (*contextAddFlags) Help() string {
	return `The token itself is never an argument, because other users could see it. Name a file that holds the token, or a command that prints it. agent login stores a key for a registry.

Comments in the file of contexts are kept, except those inside a context that is replaced.

Examples:

    agent context add box --url 127.0.0.1:7000 --token-file ~/box.token
    agent context add prod --registry https://registry.example.com --environment-id build-1 --token-command 'pass show prod' --use`
}

func (f *contextAddFlags) Check() error {
	switch {
	case f.Name == "":
		return errors.New("give the context a name")
	case !target.ValidContextName(f.Name):
		return fmt.Errorf("%.128q is not a valid name for a context: use 1 to 128 of A-Z a-z 0-9 . _ - and begin with a letter or a digit", f.Name)
	case f.URL != "" && f.Registry != "":
		return errors.New("--url and --registry cannot be used together")
	case f.URL == "" && f.Registry == "":
		return errors.New("which agent? name it with --url or --registry")
	case f.URL != "" && f.EnvironmentID != "":
		return errors.New("--environment-id cannot be used with --url")
	case f.URL != "" && f.Transport != "":
		return errors.New("--transport cannot be used with --url")
	case f.TokenFile != "" && f.TokenCommand != "":
		return errors.New("--token-file and --token-command cannot be used together")
	case f.TokenCommand != "" && strings.TrimSpace(f.TokenCommand) == "":
		return errors.New("--token-command is empty")
	}
	if err := f.tls().CheckTLS(f.URL, f.Registry); err != nil {
		return err
	}
	if f.URL != "" {
		return target.CheckURL(f.URL)
	}
	if _, err := auth.CheckBase(f.Registry, nil); err != nil {
		return fmt.Errorf("--registry %w", err)
	}
	return target.CheckEnvironment(f.EnvironmentID)
}

func (f *contextAddFlags) tls() *target.TLSFlags {
	return &target.TLSFlags{TLSCA: f.TLSCA, TLSCert: f.TLSCert, TLSKey: f.TLSKey, TLSServerName: f.TLSServerName}
}

func (f *contextAddFlags) run(sys program.System) int {
	err := f.change(func(file *target.ContextFile) error {
		if _, err := file.Find(f.Name); err == nil && !f.Replace {
			return fmt.Errorf("context %s already exists: --replace replaces it", f.Name)
		}
		err := file.Put(target.Context{
			Name: f.Name, URL: f.URL, Registry: f.Registry, EnvironmentID: f.EnvironmentID, Transport: f.Transport,
			TokenFile: f.TokenFile, TokenCommand: strings.Fields(f.TokenCommand),
			TLSCA: f.TLSCA, TLSCert: f.TLSCert, TLSKey: f.TLSKey, TLSServerName: f.TLSServerName,
		})
		if err == nil && f.Use {
			err = file.Use(f.Name)
		}
		return err
	})
	if err == nil {
		text := "context " + f.Name
		if f.Use {
			text = "current " + text
		}
		_, err = fmt.Fprintln(sys.Stdout, text)
	}
	return sys.Exit(err)
}

// contextListFlags say how to print the contexts.
type contextListFlags struct {
	listFlags
	configFlags
}

// shownContext is a context as it is listed.
type shownContext struct {
	target.Context

	Current bool `json:"current"`
}

func (f *contextListFlags) run(sys program.System) int {
	file, err := f.read()
	if err != nil {
		return sys.Fail(err)
	}
	current := inForce(sys, file)
	list := make([]shownContext, 0, len(file.Contexts))
	for _, c := range file.Contexts {
		list = append(list, shownContext{c, c.Name == current})
	}
	return sys.Exit(printList(sys.Stdout, f.listFlags, list, func(c shownContext) string { return c.Name },
		"NAME\tCURRENT\tAGENT\tENVIRONMENT\tTOKEN", func(c shownContext) []string {
			current := ""
			if c.Current {
				current = "*"
			}
			return []string{c.Name, current, c.URL + c.Registry, c.EnvironmentID, c.TokenSource()}
		}))
}

// contextUseFlags name the new current context.
type contextUseFlags struct {
	Name string `arg:"" optional:"" complete:"contexts" help:"Name of the context."`
	None bool   `help:"Have no current context. Each command must then name its agent, and agent exec needs --local to run here."`
	configFlags
}

func (f *contextUseFlags) Check() error {
	if (f.Name == "") != f.None {
		return errors.New("which context? name it, or give --none")
	}
	return nil
}

func (f *contextUseFlags) run(sys program.System) int {
	err := f.change(func(file *target.ContextFile) error { return file.Use(f.Name) })
	if err == nil {
		_, err = fmt.Fprintf(sys.Stdout, "current context: %s\n", cmp.Or(f.Name, "none"))
	}
	if file, broken := f.read(); err == nil && broken == nil {
		inForce(sys, file) // it tells the user if this context is overridden
	}
	return sys.Exit(err)
}

// contextShowFlags name a context and say how to print it.
type contextShowFlags struct {
	Name   string `arg:"" optional:"" complete:"contexts" help:"Name of the context. Default: the current one."`
	Output string `short:"o" default:"text" enum:"text,json" placeholder:"FORMAT" help:"Output format: text, or json for programs. Default: ${default}."`
	configFlags
}

func (f *contextShowFlags) run(sys program.System) int {
	file, err := f.read()
	if err != nil {
		return sys.Fail(err)
	}
	name, current := f.Name, inForce(sys, file)
	if name == "" {
		name = cmp.Or(current, file.Current)
	}
	if name == "" {
		return sys.Fail(errors.New("there is no current context: name a context, or choose one with agent context use"))
	}
	c, err := file.Find(name)
	if err != nil {
		return sys.Fail(err)
	}
	if f.Output == "json" {
		return sys.Exit(program.PrintJSON(sys.Stdout, shownContext{*c, c.Name == current}))
	}
	for _, row := range []struct{ key, value string }{
		{"name", c.Name}, {"url", c.URL}, {"registry", c.Registry}, {"environment", c.EnvironmentID}, {"transport", c.Transport}, {"token", c.TokenSource()},
	} {
		if row.value == "" {
			continue
		}
		if _, err := fmt.Fprintf(sys.Stdout, "%s: %s\n", row.key, row.value); err != nil {
			return sys.Fail(err)
		}
	}
	return program.ExitOK
}

// contextRemoveFlags name contexts.
type contextRemoveFlags struct {
	Force bool     `short:"f" name:"force" help:"Also remove the current context. Then no context is current."`
	Names []string `arg:"" name:"name" complete:"contexts" help:"Names of the contexts."`
	configFlags
}

func (*contextRemoveFlags) Help() string {
	return `This also removes the key that agent login has stored for the context. Other token files are kept.`
}

func (f *contextRemoveFlags) run(sys program.System) int {
	var removed []target.Context
	err := f.change(func(file *target.ContextFile) error {
		for _, name := range f.Names {
			c, err := file.Find(name)
			if err != nil {
				return err
			}
			if name == file.Current && !f.Force {
				return fmt.Errorf("context %s is the current one: --force removes it anyway", name)
			}
			removed = append(removed, *c)
			if err := file.Remove(name); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return sys.Fail(err)
	}
	path, err := target.LocateContexts(f.Config)
	for i := range removed {
		err = errors.Join(err, target.ForgetKey(path, &removed[i]))
	}
	return sys.Exit(err)
}
