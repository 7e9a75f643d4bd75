package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/execagent/execagent/auth"
	"github.com/execagent/execagent/cmd/agent/internal/target"
	"github.com/execagent/execagent/cmd/internal/program"
	"github.com/execagent/execagent/relay"
)

const (
	// askRegistry bounds how long a command waits for the answer of a registry.
	askRegistry = 30 * time.Second
	// maxKey bounds a key that is typed or piped in, in bytes.
	maxKey = 64 << 10
)

// loginFlags name a registry and a key for it.
type loginFlags struct {
	Registry      string `arg:"" help:"URL or host of the registry."`
	Name          string `placeholder:"NAME" help:"Name of the context. Default: the host of the registry."`
	EnvironmentID string `name:"environment-id" placeholder:"ID" help:"Environment of the context. Without it, each command must name one."`
	KeyFile       string `type:"path" placeholder:"FILE" help:"File with the key. Default: standard input; a terminal does not show the key."`
	TLSCA         string `name:"tls-ca" type:"path" placeholder:"FILE" help:"Certificate authorities (PEM) to trust for the registry, also in the context. Default: those of this system and of SSL_CERT_FILE."`
	Use           bool   `help:"Make this the current context."`
	configFlags
}

func (*loginFlags) Help() string {
	return `Asks the registry whether it accepts the key, which must be a harness's. Then it stores the key in a file that only you can read, below the folder of the contexts. An existing context of that name gets the new key.

Examples:

    agent login https://registry.example.com
    agent login https://registry.example.com --name prod --environment-id build-1 --key-file harness.key
    agent environments --context prod
    agent exec --context prod -- make test`
}

// Check finds wrong values. The parser calls it.
func (f *loginFlags) Check() error {
	if f.Registry == "" {
		return errors.New("which registry? give its URL")
	}
	if !strings.Contains(f.Registry, "://") {
		scheme := "https://"
		if u, err := url.Parse("//" + f.Registry); err == nil && auth.IsLoopback(u.Hostname()) {
			scheme = "http://"
		}
		f.Registry = scheme + f.Registry
	}
	if _, err := auth.CheckBase(f.Registry, nil); err != nil {
		return fmt.Errorf("registry %w", err)
	}
	if !target.ValidContextName(f.name()) {
		return fmt.Errorf("%.128q is not a valid name for a context: give one with --name", f.name())
	}
	return target.CheckEnvironment(f.EnvironmentID)
}

// name returns the name of the context.
func (f *loginFlags) name() string {
	if f.Name != "" {
		return f.Name
	}
	u, err := url.Parse(f.Registry)
	if err != nil {
		return ""
	}
	return u.Hostname()
}

func (f *loginFlags) run(sys program.System) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	return sys.Exit(f.login(ctx, sys))
}

func (f *loginFlags) login(ctx context.Context, sys program.System) error {
	path, err := target.LocateContexts(f.Config)
	if err != nil {
		return err
	}
	key, err := f.key(ctx, sys)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, askRegistry)
	defer cancel()
	environments, err := target.ListEnvironments(ctx, sys, f.Registry, f.TLSCA, key)
	if refused, ok := errors.AsType[*relay.RegistryError](err); ok && refused.Status == http.StatusForbidden {
		return fmt.Errorf("%w: login needs the key of a harness, not the key of an agent", err)
	}
	if err != nil {
		return err
	}
	current := ""
	c := target.Context{Name: f.name(), Registry: f.Registry, EnvironmentID: f.EnvironmentID, TLSCA: f.TLSCA}
	err = target.ChangeContexts(path, func(file *target.ContextFile) error {
		if old, err := file.Find(c.Name); err == nil {
			if old.Registry != c.Registry {
				return fmt.Errorf("context %s already exists for %s: give another --name", c.Name, old.URL+old.Registry)
			}
			if c.EnvironmentID == "" {
				c.EnvironmentID = old.EnvironmentID
			}
			c.Transport = old.Transport
			if c.TLSCA == "" {
				c.TLSCA = old.TLSCA
			}
		}
		var err error
		if c.TokenFile, err = target.SaveKey(path, c.Name, key); err != nil {
			return err
		}
		if err = file.Put(c); err == nil && f.Use {
			err = file.Use(c.Name)
		}
		current = file.Current
		return err
	})
	if err != nil {
		return err
	}
	online := 0
	for _, e := range environments {
		if e.Online {
			online++
		}
	}
	if current == "" {
		program.Complain(sys.Stderr, fmt.Sprintf("there is no current context: agent context use %s chooses this one", c.Name))
	}
	_, err = fmt.Fprintf(sys.Stdout, "context %s: environments %d, online %d\n", c.Name, len(environments), online)
	return err
}

// key reads the key.
func (f *loginFlags) key(ctx context.Context, sys program.System) (string, error) {
	if f.KeyFile != "" {
		return target.ReadToken(sys, f.KeyFile)
	}
	terminal := program.NewTerminal(sys.Stdin)
	if terminal != nil {
		if err := terminal.Hide(); err != nil {
			return "", err
		}
		defer fmt.Fprintln(sys.Stderr) // the terminal also hides the newline that the user types
		defer terminal.Restore()
		if _, err := fmt.Fprintf(sys.Stderr, "key for %s: ", f.Registry); err != nil {
			return "", err
		}
	}
	type read struct {
		line string
		err  error
	}
	done := make(chan read, 1)
	// The goroutine may last until the program ends, because a read of a terminal cannot be
	// interrupted.
	go func() {
		line, err := bufio.NewReader(io.LimitReader(sys.Stdin, maxKey)).ReadString('\n')
		if errors.Is(err, io.EOF) {
			err = nil
		}
		done <- read{line, err}
	}()
	select {
	case r := <-done:
		if r.err != nil {
			return "", fmt.Errorf("reading the key: %w", r.err)
		}
		return target.CheckToken("the key", r.line)
	case <-ctx.Done():
		return "", errors.New("interrupted")
	}
}
