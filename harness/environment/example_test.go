package environment_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/harness/environment"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/transport"
)

// The local environment is an agent in the same process. A program that has no local
// environment leaves Config.Local out.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	a := agent.New(agent.Config{Environ: os.Environ()})
	var served sync.WaitGroup
	defer func() {
		cancel()
		served.Wait()
		_ = a.Close()
	}()
	local := func(context.Context) (rpc.Conn, error) {
		ours, theirs := rpc.Pipe()
		served.Go(func() { _ = a.ServeConn(ctx, theirs) })
		return ours, nil
	}

	set, err := environment.New(environment.Config{Local: local}, environment.FromURL(""))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer set.Close()

	step := set.Step("1", []environment.Selection{{ID: set.DefaultID(), Cwd: protocol.NewPathURI("/")}})
	defer step.Release()
	captured := step.Environments[0]
	fmt.Println(captured.ID, captured.State)
	c, err := captured.Environment.Client(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	p, err := c.Start(ctx, protocol.StartParams{Argv: []string{"echo", "hello"}, Cwd: captured.Cwd})
	if err != nil {
		fmt.Println(err)
		return
	}
	code, err := p.CopyOutput(ctx, os.Stdout, os.Stderr)
	fmt.Println(code, err)
	// Output:
	// local ready
	// hello
	// 0 <nil>
}

// A connector for URLs and programs, and what becomes of an environment that nobody has
// used yet.
func ExampleSet_Status() {
	connect := func(t environment.Transport) (client.Config, error) {
		switch t := t.(type) {
		case environment.URL:
			return client.Config{Dial: func(ctx context.Context) (rpc.Conn, error) {
				return transport.Dial(ctx, t.URL, transport.DialConfig{Header: t.Headers()})
			}}, nil
		case environment.Stdio:
			return client.Config{Dial: func(context.Context) (rpc.Conn, error) {
				return transport.StartCommand(transport.CommandConfig{Argv: append([]string{t.Program}, t.Args...), Dir: t.Dir})
			}}, nil
		}
		return client.Config{}, fmt.Errorf("environments of type %T are not supported", t)
	}
	plan := environment.Plan{
		Entries: []environment.Entry{{ID: "build", Transport: environment.Stdio{Program: "/no/such/agent"}}},
		Default: "build",
	}
	set, err := environment.New(environment.Config{Connect: connect}, plan)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer set.Close()

	fmt.Println(set.Status(context.Background(), "build"))
	e, _ := set.Default()
	_, err = e.Client(context.Background())
	fmt.Println(errors.Is(err, fs.ErrNotExist))
	fmt.Println(set.Status(context.Background(), "build").Value)
	fmt.Println(set.Status(context.Background(), "test"))
	// Output:
	// {pending <nil>}
	// true
	// disconnected
	// {unknown unknown environment id `test`}
}

func ExampleReadFile() {
	dir, err := os.MkdirTemp("", "")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, environment.FileName)
	text := `
default = "build"

[[environments]]
id = "build"
url = "wss://build.example"
auth_bearer_token = "secret"

[[environments]]
id = "test"
program = "ssh"
args = ["test.example", "agent", "--listen", "stdio"]
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		fmt.Println(err)
		return
	}
	plan, err := environment.ReadFile(path)
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, entry := range plan.Entries {
		fmt.Println(entry.ID, entry.Transport)
	}
	fmt.Println(plan.Default, plan.IncludeLocal)
	// Output:
	// build wss://build.example
	// test ssh
	// build true
}
