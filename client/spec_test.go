package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/fstest"

	"github.com/execagent/execagent/agent"
	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/test/rig"
	"github.com/execagent/execagent/transport"
)

// listen starts an agent that listens, with a token if that is not "", and returns its
// URL.
func listen(t rig.T, token string) string {
	t.Helper()
	a := agent.New(agent.Config{Version: "0.171.0+execagent.test", Environ: os.Environ(), SessionTTL: patience})
	t.Cleanup(func() { rig.Check(t, a.Close()) })
	var auth *transport.Authenticator
	if token != "" {
		file := filepath.Join(t.TempDir(), "token")
		rig.Must(t, os.WriteFile(file, []byte(token), 0o600))
		var err error
		auth, err = transport.AuthOptions{Mode: "capability-token", TokenFile: file}.Authenticator()
		rig.Must(t, err)
	}
	return serve(t, a, auth)
}

func TestDialURL(t *testing.T) {
	t.Parallel()
	const token = "0123456789abcdef0123456789abcdef"
	url := listen(t, token)
	c, err := client.DialURL(t.Context(), url, client.Token(token), client.Settings(client.Config{ClientName: "test"}))
	rig.Must(t, err)
	defer c.Close()
	rig.Is(t, string(rig.Value(c.Run(t.Context(), client.Spec{Argv: []string{"echo", "hello"}}, nil)).Stdout), "hello\n", "Run gives")
	rig.Must(t, c.Close())
	for _, tt := range []struct {
		name, url string
		options   []client.Option
		final     bool
		want      string
	}{
		{"no token", url, nil, true, "status 401"},
		{"another token", url, []client.Option{client.Token("other")}, true, "status 401"},
		{"an unknown session", url, []client.Option{client.Token(token), client.Session("nobody")}, true, "unknown session id nobody"},
		{"nobody listens", "ws://127.0.0.1:1", nil, false, "connection refused"},
		{"no URL", "http://127.0.0.1:1", nil, true, "must use ws://, wss:// or unix://"},
		{"a token in plain text", "ws://192.0.2.1:1", []client.Option{client.Token(token)}, true, "exec-server WebSocket headers require wss:// or a loopback destination"},
	} {
		_, err := client.DialURL(t.Context(), tt.url, tt.options...)
		if err == nil || !strings.Contains(err.Error(), tt.want) || client.Retryable(err) == tt.final {
			t.Errorf("%s: got %v, retryable %v; want %q", tt.name, err, client.Retryable(err), tt.want)
		}
	}
}

// TestCommand: a program that speaks by its standard streams, and is not started again.
func TestCommand(t *testing.T) {
	t.Parallel()
	c := connect(t, client.Command(os.Args[0], asAgent))
	rig.Is(t, rig.Value(c.Run(t.Context(), client.Spec{Argv: []string{"sh", "-c", "exit 7"}}, nil)).ExitCode, 7, "Run gives")
	// The agent is the parent of its commands.
	_, err := c.Run(t.Context(), client.Spec{Argv: []string{"sh", "-c", "kill -9 $PPID"}}, nil)
	wantError[*client.DisconnectedError](t, err, "a command that ends its agent")
	<-c.Done()
	_, err = client.Connect(t.Context(), client.Command("/nonexistent/program"))
	rig.Is(t, err, fs.ErrNotExist, "a program that is not there")
	rig.Is(t, client.Retryable(err), false, "it can be tried again")
}

func TestRun(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *client.Client) {
		dir := t.TempDir()
		for _, tt := range []struct {
			name   string
			spec   client.Spec
			input  string
			stdout string
			stderr string
			code   int
		}{
			{"both streams", client.Spec{Argv: []string{"sh", "-c", "echo out; echo err >&2; exit 3"}}, "", "out\n", "err\n", 3},
			{"a signal", client.Spec{Argv: []string{"sh", "-c", "kill -9 $$"}}, "", "", "", 137},
			{"input", client.Spec{Argv: []string{"tr", "a-z", "A-Z"}}, "words", "WORDS", "", 0},
			{"input that nobody wants", client.Spec{Argv: []string{"true"}}, strings.Repeat("words", 1<<20), "", "", 0},
			{"no input", client.Spec{Argv: []string{"cat"}}, "", "", "", 0},
			{"a directory", client.Spec{Argv: []string{"pwd"}, Dir: dir}, "", dir + "\n", "", 0},
			{"a variable", client.Spec{Argv: []string{"sh", "-c", `echo $A; test -n "$PATH"`}, Env: []string{"A=b=c"}}, "", "b=c\n", "", 0},
			{"a terminal", client.Spec{Argv: []string{"stty", "size"}, TTY: &client.TTY{Rows: 33, Cols: 7}}, "", "33 7\r\n", "", 0},
			{"any terminal", client.Spec{Argv: []string{"stty", "size"}, TTY: &client.TTY{}}, "", "24 80\r\n", "", 0},
		} {
			r, err := c.Run(t.Context(), tt.spec, []byte(tt.input))
			if err != nil || string(r.Stdout) != tt.stdout || string(r.Stderr) != tt.stderr || r.ExitCode != tt.code {
				t.Errorf("%s: got %+v, %v", tt.name, r, err)
			}
		}
		for _, tt := range []struct {
			spec client.Spec
			want string
		}{
			{client.Spec{}, "the command is empty"},
			{client.Spec{Argv: []string{"env"}, Env: []string{"A"}}, `environment entry "A" is not KEY=VALUE`},
			{client.Spec{Argv: []string{"cat"}, TTY: &client.TTY{}}, "input needs a pipe"},
		} {
			rig.Says(t, rig.Err(c.Run(t.Context(), tt.spec, []byte("x"))), tt.want, "Run")
		}
	})
}

// TestRunGivenUp: a command that nobody waits for any more is terminated, and what it
// has printed is there.
func TestRunGivenUp(t *testing.T) {
	t.Parallel()
	c := reach(t, overWebSocket(t, newAgent(t)))
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	pid := filepath.Join(t.TempDir(), "pid")
	go func() {
		for {
			if content, err := os.ReadFile(pid); err == nil && strings.HasSuffix(string(content), "\n") {
				break
			}
			if t.Context().Err() != nil {
				break
			}
		}
		cancel(cause)
	}()
	spec := client.Spec{ID: "p", Argv: []string{"sh", "-c", "echo begun; echo $$ > " + pid + "; cat; sleep 1000"}}
	r, err := c.Run(ctx, spec, []byte("words"))
	// The command may run before the answer to its start is here: then there is no
	// result.
	if !errors.Is(err, cause) || r != nil && len(r.Stderr) > 0 {
		t.Fatalf("got %+v, %v", r, err)
	}
	// The handle of a new process gets the id as soon as the old one is gone.
	for {
		p, err := c.Spawn(t.Context(), client.Spec{ID: "q", Argv: []string{"true"}})
		if err == nil {
			p.Close()
			break
		}
	}
	for {
		listed := rig.Value(c.Processes(t.Context()))
		running := false
		for _, p := range listed {
			running = running || p.ProcessID == "p" && !p.Exited
		}
		if !running {
			break
		}
	}
}

// TestReaders: the output as two readers, each of which gets all of its stream.
func TestReaders(t *testing.T) {
	t.Parallel()
	eachTransport(t, func(t *testing.T, c *client.Client) {
		const lines = 50_000
		p := rig.Value(c.Spawn(t.Context(), client.Spec{Argv: []string{"sh", "-c", "seq 50000; seq 50000 >&2; read x; echo $x"}, PipeStdin: true}))
		var stdout, stderr []byte
		var errs [2]error
		var reading sync.WaitGroup
		reading.Go(func() { stdout, errs[0] = io.ReadAll(p.Stdout()) })
		reading.Go(func() { stderr, errs[1] = io.ReadAll(p.Stderr()) })
		rig.Check(t, rig.Err(io.WriteString(p.Stdin(), "last\n")))
		reading.Wait()
		rig.Must(t, errors.Join(errs[:]...))
		all := strings.TrimSuffix(string(stdout), "last\n")
		rig.Is(t, all == string(stderr), true, "both streams, of %d and %d bytes, are the same", len(stdout), len(stderr))
		rig.Is(t, strings.Count(all, "\n"), lines, "lines")
		rig.Is(t, fmt.Sprint(p.Wait(t.Context())), "0 <nil>", "Wait gives")
	})
}

// TestReaderClosed: output that nobody wants holds nothing up.
func TestReaderClosed(t *testing.T) {
	t.Parallel()
	c := reach(t, overWebSocket(t, newAgent(t)))
	p := rig.Value(c.Spawn(t.Context(), client.Spec{Argv: []string{"sh", "-c", "head -c 20000000 /dev/zero; echo end >&2"}}))
	rig.Must(t, p.Stdout().Close())
	rig.Is(t, string(rig.Value(io.ReadAll(p.Stderr()))), "end\n", "the other stream")
	rig.Is(t, rig.Err(p.Stdout().Read(make([]byte, 1))) != nil, true, "a closed reader fails")
	// A handle that is given up ends its readers, also one that is full.
	q := rig.Value(c.Spawn(t.Context(), client.Spec{Argv: []string{"cat", "/dev/zero"}}))
	rig.Check(t, rig.Err(io.ReadFull(q.Stdout(), make([]byte, 1<<20))))
	defer q.Terminate(context.Background())
	q.Close()
	rig.Is(t, rig.Err(io.ReadAll(q.Stdout())) != nil, true, "the reader of a closed handle fails")
}

func TestTree(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, content := range map[string]string{"a.txt": "alpha", "sub/b.txt": "beta", "sub/deep/c.txt": "gamma"} {
		path := filepath.Join(dir, name)
		rig.Must(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o644)))
	}
	rig.Must(t, os.Mkdir(filepath.Join(dir, "empty"), 0o755))
	eachTransport(t, func(t *testing.T, c *client.Client) {
		tree := c.FS(nil).Tree(t.Context(), dir)
		rig.Must(t, fstest.TestFS(tree, "a.txt", "sub/b.txt", "sub/deep/c.txt", "empty"))
		_, err := fs.ReadFile(tree, "missing")
		named, ok := errors.AsType[*fs.PathError](err)
		rig.Is(t, errors.Is(err, fs.ErrNotExist) && ok && named.Path == "missing", true, "a missing file gives %v", err)
		var served strings.Builder
		err = fs.WalkDir(tree, ".", func(path string, d fs.DirEntry, err error) error {
			served.WriteString(path + " ")
			return err
		})
		rig.Must(t, err)
		rig.Is(t, served.String(), ". a.txt empty sub sub/b.txt sub/deep sub/deep/c.txt ", "walked")
		_ = http.FS(tree)
	})
}

// TestAttach: a process that another client of the session has started.
func TestAttach(t *testing.T) {
	t.Parallel()
	dial := overPipe(t, newAgent(t))
	first := connect(t, client.Config{Dial: dial})
	p := rig.Value(first.Spawn(t.Context(), client.Spec{ID: "p", Argv: []string{"sh", "-c", "seq 3; read x; echo $x; exit 5"}, PipeStdin: true}))
	var got strings.Builder
	var seen uint64
	for e, err := range p.Events(t.Context()) {
		rig.Must(t, err)
		got.Write(e.Data)
		if seen = e.Seq; got.String() == "1\n2\n3\n" {
			break
		}
	}
	err := rig.Err(client.Connect(t.Context(), client.Config{Dial: dial, ResumeSessionID: first.SessionID()}))
	rig.Is(t, isAttached(err), true, "resuming an attached session gives %v", err)
	rig.Must(t, first.Close())
	resumed := func() *client.Client {
		for {
			c, err := client.Connect(t.Context(), client.Config{Dial: dial, ResumeSessionID: first.SessionID()})
			if err == nil {
				return c
			}
			if !isAttached(err) {
				t.Fatal(err)
			}
		}
	}
	second := resumed()
	rig.Is(t, second.SessionID(), first.SessionID(), "the session")
	rig.Is(t, len(rig.Value(second.Processes(t.Context()))), 1, "processes of the session")
	rig.Is(t, rig.Err(second.Attach(t.Context(), "nobody")) != nil, true, "there is no handle of nobody")
	again := rig.Value(second.Attach(t.Context(), "p"))
	rig.Is(t, again.Skipped(), 0, "skipped events")
	wantError[*client.ProtocolError](t, rig.Err(second.Attach(t.Context(), "p")), "a second handle")
	rig.Must(t, again.Write(t.Context(), []byte("word\n")))
	ends(t, again, "1\n2\n3\nword\n", 5)
	rig.Must(t, second.Close())
	third := resumed()
	defer third.Close()
	rest, err := third.AttachAfter(t.Context(), "p", seen)
	rig.Must(t, err)
	ends(t, rest, "word\n", 5)
}

// TestAttachAfterLoss: output that the server has dropped is skipped by Attach, and an
// error of AttachAfter.
func TestAttachAfterLoss(t *testing.T) {
	t.Parallel()
	c := reach(t, overWebSocket(t, newAgent(t)))
	p := rig.Value(c.Spawn(t.Context(), client.Spec{ID: "p", Argv: []string{"head", "-c", "2500000", "/dev/zero"}}))
	p.Discard()
	rig.Must(t, rig.Err(p.Wait(t.Context())))
	_, err := c.AttachAfter(t.Context(), "p", 1)
	gap, ok := errors.AsType[*client.GapError](err)
	rig.Is(t, ok && gap.After == 1 && gap.Through >= 2, true, "got %v", err)
	q := rig.Value(c.Attach(t.Context(), "p"))
	n, last := 0, q.Skipped()
	for e, err := range q.Events(t.Context()) {
		rig.Must(t, err)
		last++
		rig.Is(t, e.Seq, last, "the number of an event")
		n += len(e.Data)
	}
	rig.Is(t, q.Skipped() != 0 && n >= 1<<19 && n <= 2<<20, true, "skipped %d events, got %d bytes", q.Skipped(), n)
	rig.Is(t, fmt.Sprint(q.Wait(t.Context())), "0 <nil>", "Wait gives")
}

var _ interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
} = (*client.File)(nil)
