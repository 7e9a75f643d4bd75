package client_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
)

// withAgent runs an example with an agent that listens at a URL.
func withAgent(token string, example func(url string) error) {
	err := rig.Outside(context.Background(), func(t rig.T) {
		rig.Must(t, example(listen(t, token)))
	})
	if err != nil {
		fmt.Println(err)
	}
}

// A command on an agent that listens at a URL.
func ExampleDialURL() {
	withAgent("", func(url string) error {
		ctx := context.Background()
		c, err := client.DialURL(ctx, url)
		if err != nil {
			return err
		}
		defer c.Close()
		r, err := c.Run(ctx, client.Spec{Argv: []string{"sh", "-c", "echo hello; exit 3"}}, nil)
		if err != nil {
			return err
		}
		fmt.Printf("%s%d\n", r.Stdout, r.ExitCode)
		return nil
	})
	// Output:
	// hello
	// 3
}

// A token, and how to tell that another attempt is of no use.
func ExampleToken() {
	const token = "0123456789abcdef0123456789abcdef"
	withAgent(token, func(url string) error {
		_, err := client.DialURL(context.Background(), url, client.Token("not this one"))
		fmt.Println(err != nil, client.Retryable(err))

		c, err := client.DialURL(context.Background(), url, client.Token(token))
		if err != nil {
			return err
		}
		defer c.Close()
		status, err := c.Status(context.Background())
		fmt.Println(status)
		return err
	})
	// Output:
	// true false
	// ready
}

// A program in a terminal that is typed at, and whose window changes.
func ExampleClient_Spawn_pty() {
	withAgent("", func(url string) error {
		ctx := context.Background()
		c, err := client.DialURL(ctx, url)
		if err != nil {
			return err
		}
		defer c.Close()
		p, err := c.Spawn(ctx, client.Spec{
			Argv: []string{"sh", "-c", "stty -echo; read word; stty size; echo $word $TERM"},
			Env:  []string{"TERM=dumb"},
			TTY:  &client.TTY{Rows: 24, Cols: 80},
		})
		if err != nil {
			return err
		}
		if err := p.Resize(ctx, 50, 132); err != nil {
			return err
		}
		if _, err := io.WriteString(p.Stdin(), "typed\n"); err != nil {
			return err
		}
		output, err := io.ReadAll(p.Stdout())
		if err != nil {
			return err
		}
		lines := strings.Split(strings.TrimSpace(string(output)), "\r\n")
		fmt.Println(strings.Join(lines[len(lines)-2:], "\n"))
		return nil
	})
	// Output:
	// 50 132
	// typed dumb
}

// A session that a later program comes back to: it finds the process that still runs,
// and all that it has printed meanwhile.
func ExampleClient_Attach() {
	withAgent("", func(url string) error {
		ctx := context.Background()
		first, err := client.DialURL(ctx, url)
		if err != nil {
			return err
		}
		p, err := first.Spawn(ctx, client.Spec{ID: "job", Argv: []string{"sh", "-c", "echo one; read go; echo two"}, PipeStdin: true})
		if err != nil {
			return err
		}
		session := first.SessionID()
		p.Close()     // gives up the handle
		first.Close() // gives up the connection; the session lives on for 80 s

		second, err := client.DialURL(ctx, url, client.Session(session))
		for client.Retryable(err) { // the agent may not have noticed the end yet
			second, err = client.DialURL(ctx, url, client.Session(session))
		}
		if err != nil {
			return err
		}
		defer second.Close()
		listed, err := second.Processes(ctx)
		if err != nil {
			return err
		}
		again, err := second.Attach(ctx, listed[0].ProcessID)
		if err != nil {
			return err
		}
		if _, err := io.WriteString(again.Stdin(), "go\n"); err != nil {
			return err
		}
		code, err := again.CopyOutput(ctx, os.Stdout, os.Stderr)
		fmt.Println(listed[0].ProcessID, code)
		return err
	})
	// Output:
	// one
	// two
	// job 0
}

// Files go up in one call, or piece by piece; a tree is an fs.FS.
func ExampleClient_FS_upload() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	withAgent("", func(url string) error {
		ctx := context.Background()
		c, err := client.DialURL(ctx, url)
		if err != nil {
			return err
		}
		defer c.Close()
		files := c.FS(nil)
		if err := files.WriteFile(ctx, filepath.Join(dir, "small"), []byte("in one request")); err != nil {
			return err
		}
		large, err := files.Open(ctx, filepath.Join(dir, "large"), protocol.OpenReplace)
		if err != nil {
			return err
		}
		n, err := io.Copy(io.NewOffsetWriter(large, 0), bytes.NewReader(make([]byte, 5_000_000)))
		if err != nil {
			return err
		}
		if err := large.Close(); err != nil {
			return err
		}
		names, err := fs.Glob(files.Tree(ctx, dir), "*")
		fmt.Println(n, names)
		return err
	})
	// Output:
	// 5000000 [large small]
}

// A watch tells what changes in a tree, also over lost connections: then it says that everything
// has to be looked at.
func ExampleFS_Watch() {
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	withAgent("", func(url string) error {
		ctx := context.Background()
		c, err := client.DialURL(ctx, url)
		if err != nil {
			return err
		}
		defer c.Close()
		files := c.FS(nil)
		watch, err := files.Watch(ctx, dir, true)
		if err != nil {
			return err
		}
		defer watch.Close()
		if err := files.Mkdir(ctx, filepath.Join(dir, "new"), false); err != nil {
			return err
		}
		changes, err := watch.Next(ctx)
		if changes.Overflow {
			fmt.Println("anything may have changed")
		}
		for _, change := range changes.List {
			fmt.Println(change.Kind, filepath.Base(change.Path))
		}
		return err
	})
	// Output:
	// created new
}

// An agent in the same process, reached over a pipe: Dial may be anything that yields
// an rpc.Conn.
func ExampleConnect() {
	ctx, cancel := context.WithCancel(context.Background())
	a := agent.New(agent.Config{Environ: os.Environ()})
	var serving sync.WaitGroup
	defer func() {
		cancel()
		serving.Wait()
		_ = a.Close()
	}()
	c, err := client.Connect(ctx, client.Config{Dial: func(context.Context) (rpc.Conn, error) {
		ours, theirs := rpc.Pipe()
		serving.Go(func() { _ = a.ServeConn(ctx, theirs) })
		return ours, nil
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	r, err := c.Run(ctx, client.Spec{Argv: []string{"tr", "a-z", "A-Z"}}, []byte("hello"))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Printf("%s\n", r.Stdout)
	// Output: HELLO
}

// A harness that an executor connects to: when the connection is lost, the harness hands
// over the next one.
func ExampleAccept() {
	ctx, cancel := context.WithCancel(context.Background())
	a := agent.New(agent.Config{Environ: os.Environ()})
	var serving sync.WaitGroup
	defer func() {
		cancel()
		serving.Wait()
		_ = a.Close()
	}()
	arrive := func() (here, there rpc.Conn) {
		here, there = rpc.Pipe()
		serving.Go(func() { _ = a.ServeConn(ctx, there) })
		return here, there
	}
	here, there := arrive()
	c, err := client.Accept(ctx, here, client.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer c.Close()
	p, err := c.Spawn(ctx, client.Spec{Argv: []string{"cat"}, PipeStdin: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	_ = there.Close() // the network fails
	next, _ := arrive()
	if err := c.Replace(next); err != nil {
		fmt.Println(err)
		return
	}
	in := p.Stdin()
	fmt.Fprintln(in, "still there")
	_ = in.Close()
	code, err := p.CopyOutput(ctx, os.Stdout, os.Stderr)
	fmt.Println(code, err)
	// Output:
	// still there
	// 0 <nil>
}
