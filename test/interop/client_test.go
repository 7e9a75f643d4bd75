package interop_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestClient runs one suite of our client against our agent and against the reference, each
// behind a proxy that cuts their connections. Where the reference differs, the suite says so.
func TestClient(t *testing.T) {
	t.Parallel()
	t.Run("agent", func(t *testing.T) {
		t.Parallel()
		testClient(t, &server{t: t, cmd: exec.Command(rig.Agent(t), "--listen", "ws://127.0.0.1:0")})
	})
	t.Run("reference", func(t *testing.T) {
		t.Parallel()
		codex := codexCLI(t)
		home := codexHome(t)
		cmd := exec.Command(codex, "exec-server", "--listen", "ws://127.0.0.1:0")
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "HOME=" + home, "CODEX_HOME=" + home}
		testClient(t, &server{t: t, cmd: cmd, home: home, reference: true})
	})
}

// server is what the suite runs against.
type server struct {
	t         *testing.T
	cmd       *exec.Cmd
	proxy     *rig.Proxy
	home      string // of the reference
	reference bool
}

func (s *server) connect(t *testing.T, options ...client.Option) *client.Client {
	t.Helper()
	c, err := client.DialURL(t.Context(), "ws://"+s.proxy.Address(), options...)
	for client.Retryable(err) {
		c, err = client.DialURL(t.Context(), "ws://"+s.proxy.Address(), options...)
	}
	rig.Must(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

func testClient(t *testing.T, s *server) {
	url := rig.Start(t, s.cmd).Line(t)
	s.proxy = rig.NewProxy(t, strings.TrimPrefix(url, "ws://"))
	c := s.connect(t)
	s.uncut(t, c)
	rig.Must(t, c.Close()) // what follows counts the connections of one client
	// In these every connection is, so they come one after another.
	for _, tt := range []struct {
		name string
		test func(*testing.T, *server)
	}{
		{"cut output", testCutOutput},
		{"cut input", testCutInput},
		{"cut at every message of a start", testCutStart},
		{"retention", testRetention},
		{"another program", testSession},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if !s.reference && os.Getenv("CODEX_BIN") == "" {
				rig.Tier(t, rig.Merge)
			}
			tt.test(t, s)
		})
	}
}

// uncut runs the part of the suite in which no connection is cut.
func (s *server) uncut(t *testing.T, c *client.Client) {
	for name, test := range map[string]func(*testing.T, *server, *client.Client){
		"run":         testRun,
		"input":       testInput,
		"terminal":    testTTY,
		"files":       testTree,
		"refusals":    testRefusals,
		"pressure":    testPressure,
		"differences": testDifferences,
	} {
		t.Run(name, func(t *testing.T) { test(t, s, c) })
	}
}

func testRun(t *testing.T, s *server, c *client.Client) {
	for script, want := range map[string]string{
		"echo out; echo err >&2; exit 3": "out\n|err\n|3", "exit 0": "||0", "exit 42": "||42",
		"no-such-program 2>/dev/null": "||127", "kill -9 $$": "||137",
	} {
		r, err := c.Run(t.Context(), client.Spec{Argv: []string{"sh", "-c", script}, Dir: "/"}, nil)
		rig.Must(t, err)
		rig.Is(t, fmt.Sprintf("%s|%s|%d", r.Stdout, r.Stderr, r.ExitCode), want, "%s", script)
	}
	r, err := c.Run(t.Context(), client.Spec{Argv: []string{"cat"}, Dir: "/"}, []byte("input"))
	if s.reference {
		// It has no way to end the input of a process, and is not asked to.
		if _, ok := errors.AsType[*client.UnsupportedError](err); !ok {
			t.Errorf("got %+v, %v", r, err)
		}
		return
	}
	if err != nil || string(r.Stdout) != "input" {
		t.Errorf("got %+v, %v", r, err)
	}
}

// testInput: what is written comes back, other bytes than text too.
func testInput(t *testing.T, _ *server, c *client.Client) {
	sent := make([]byte, 1<<20)
	_, _ = rand.Read(sent) // it has no error
	// The reference cannot close standard input.
	script := fmt.Sprintf("head -c %d; exit 3", len(sent))
	p, err := c.Spawn(t.Context(), client.Spec{Argv: []string{"sh", "-c", script}, PipeStdin: true, Dir: "/"})
	rig.Must(t, err)
	var writing sync.WaitGroup
	writing.Go(func() {
		for block := range slices.Chunk(sent, 64<<10) {
			if err := p.Write(t.Context(), block); err != nil {
				t.Error(err)
				return
			}
		}
	})
	back := printed(t, p, 3)
	writing.Wait()
	rig.Is(t, back == string(sent), true, "%d bytes that come back are those that were written", len(back))
}

func testTTY(t *testing.T, s *server, c *client.Client) {
	tty, size := &client.TTY{Rows: 30, Cols: 90}, "30 90"
	if s.reference {
		tty, size = &client.TTY{}, "24 80" // its terminals have one size
	}
	const script = `stty size; test -t 0 && test -t 1 && echo "is a" terminal; read x; echo "got <$x>"; exit 7`
	p, err := c.Spawn(t.Context(), client.Spec{Argv: []string{"sh", "-c", script}, TTY: tty, Dir: "/"})
	rig.Must(t, err)
	var text strings.Builder
	typed := false
	for event, err := range p.Events(t.Context()) {
		rig.Must(t, err)
		text.Write(event.Data)
		if !typed && strings.Contains(text.String(), "is a terminal") {
			typed = true
			rig.Must(t, p.Write(t.Context(), []byte("word\n")))
		}
		if event.Kind == client.Exited {
			rig.Is(t, event.ExitCode, 7, "exit code")
		}
	}
	// The terminal's echo, then what the command makes of it.
	rig.Is(t, text.String(), size+"\r\nis a terminal\r\nword\r\ngot <word>\r\n", "the terminal shows")
}

func testTree(t *testing.T, _ *server, c *client.Client) {
	dir, files := t.TempDir(), c.FS(nil)
	const name = "zażółć.bin"
	data := make([]byte, 3<<20)
	_, _ = rand.Read(data) // it has no error
	rig.Must(t, files.WriteFile(t.Context(), filepath.Join(dir, name), data))
	rig.Must(t, files.Mkdir(t.Context(), filepath.Join(dir, "a/b"), true))
	tree := files.Tree(t.Context(), dir)
	for _, read := range []func() ([]byte, error){
		func() ([]byte, error) { return os.ReadFile(filepath.Join(dir, name)) },
		func() ([]byte, error) { return files.ReadFile(t.Context(), filepath.Join(dir, name)) },
		func() ([]byte, error) { return fs.ReadFile(tree, name) },
	} {
		if got, err := read(); err != nil || !bytes.Equal(got, data) {
			t.Errorf("read %d bytes, or others than were written: %v", len(got), err)
		}
	}
	f, err := files.Open(t.Context(), filepath.Join(dir, name), protocol.OpenRead)
	rig.Must(t, err)
	block := make([]byte, 1<<20)
	for _, offset := range []int{2 << 20, 1, 0} {
		n, err := f.ReadAt(block, int64(offset))
		if err != nil || !bytes.Equal(block[:n], data[offset:offset+n]) || n != len(block) {
			t.Errorf("block at %d: %d bytes, %v", offset, n, err)
		}
	}
	if n, err := f.ReadAt(block, int64(len(data)-10)); n != 10 || !errors.Is(err, io.EOF) {
		t.Errorf("block at the end: %d bytes, %v", n, err)
	}
	rig.Check(t, f.Close())
	for _, err := range []error{
		rig.Err(files.Stat(t.Context(), filepath.Join(dir, "missing"))), rig.Err(files.ReadFile(t.Context(), filepath.Join(dir, "missing"))),
	} {
		rig.Is(t, err, fs.ErrNotExist, "a missing file")
	}
	names, err := fs.Glob(tree, "*")
	rig.Must(t, err)
	rig.Is(t, strings.Join(names, " "), "a "+name, "names")
}

// testDifferences: what the reference does otherwise (docs/compatibility.md), as far as a client sees it in
// every run.
func testDifferences(t *testing.T, s *server, c *client.Client) {
	end := func(spec client.Spec) (output string, code int, err error) {
		t.Helper()
		p, err := c.Spawn(t.Context(), spec)
		if err != nil {
			return "", 0, err
		}
		var printed bytes.Buffer
		code, err = p.CopyOutput(t.Context(), &printed, &printed)
		return printed.String(), code, err
	}
	killed, home, kept := 137, "", "content"
	if s.reference {
		killed, home, kept = 1, s.home+"\r\n", ""
	}
	_, code, err := end(client.Spec{Argv: []string{"sh", "-c", "kill -9 $$"}, TTY: &client.TTY{}, Dir: "/"})
	if code != killed || err != nil {
		t.Errorf("death by a signal on a terminal gives %d, %v, want %d", code, err, killed)
	}
	output, _, err := end(client.Spec{Argv: []string{"pwd"}, TTY: &client.TTY{}, Dir: "/nonexistent"})
	if _, refused := errors.AsType[*client.ServerError](err); output != home || refused == s.reference {
		t.Errorf("a terminal in a directory that does not exist gives %q, %v", output, err)
	}

	file, files := filepath.Join(t.TempDir(), "file"), c.FS(nil)
	rig.Must(t, files.WriteFile(t.Context(), file, []byte("content")))
	info, err := files.Stat(t.Context(), file)
	if err != nil || (info.CreatedAtMs == 0) != s.reference {
		t.Errorf("the file was created at %+v, %v", info, err)
	}
	err = files.Copy(t.Context(), file, file)
	content, readErr := os.ReadFile(file)
	if string(content) != kept || (err == nil) != s.reference || readErr != nil {
		t.Errorf("a copy onto itself gives %v and leaves %q, want %q, %v", err, content, kept, readErr)
	}
}

func testRefusals(t *testing.T, _ *server, c *client.Client) {
	_, err := c.Spawn(t.Context(), client.Spec{Argv: []string{"/nonexistent"}, Dir: "/"})
	if _, ok := errors.AsType[*client.ServerError](err); !ok || client.Retryable(err) {
		t.Errorf("a missing program gives %v", err)
	}
	rig.Is(t, rig.Err(c.Attach(t.Context(), "nobody")) != nil, true, "a handle of nobody is refused")
	_, err = client.Connect(t.Context(), client.Config{Dial: client.URL("ws://127.0.0.1:1").Dial})
	rig.Is(t, client.Retryable(err), true, "%v of a server that does not listen is to be tried again", err)
}

// testPressure: a process that nobody listens to for a while loses nothing of its 9 MB. The reference keeps 1 MiB, and
// can lose more.
func testPressure(t *testing.T, s *server, c *client.Client) {
	n := 1_300_000
	if s.reference {
		n /= 10
	}
	p, err := c.Spawn(t.Context(), client.Spec{Argv: []string{"sh", "-c", fmt.Sprint("echo to-stderr >&2; seq ", n)}, Dir: "/"})
	rig.Must(t, err)
	var got, complaints bytes.Buffer
	if code, err := p.CopyOutput(t.Context(), &got, &complaints); code != 0 || err != nil {
		t.Fatal(code, err)
	}
	rig.Is(t, complaints.String(), "to-stderr\n", "stderr")
	lines(t, got.String(), n)
}

// printed waits for the end of a process, which has to have this code, and returns its standard output.
func printed(t *testing.T, p *client.Process, code int) string {
	t.Helper()
	var out bytes.Buffer
	got, err := p.CopyOutput(t.Context(), &out, io.Discard)
	rig.Must(t, err)
	rig.Is(t, got, code, "exit code")
	return out.String()
}

// lines checks that text is the lines 1 to n.
func lines(t *testing.T, text string, n int) {
	t.Helper()
	all := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for i, line := range all {
		if line != strconv.Itoa(i+1) {
			t.Fatalf("line %d is %q", i+1, line)
		}
	}
	if len(all) != n {
		t.Fatalf("got %d lines, want %d", len(all), n)
	}
}

func testCutOutput(t *testing.T, s *server) {
	c := s.connect(t)
	p, err := c.Spawn(t.Context(), client.Spec{Argv: []string{"sh", "-c", "for i in $(seq 500); do echo $i; sleep 0.005; done; exit 9"}, Dir: "/"})
	rig.Must(t, err)
	stop := s.proxy.CutEach(6000)
	got := printed(t, p, 9)
	stop()
	lines(t, got, 500)
	if c.Generation() < 3 {
		t.Errorf("the connection was cut %d times", c.Generation()-1)
	}
	t.Logf("%d connections", c.Generation())
}

func testCutInput(t *testing.T, s *server) {
	c := s.connect(t)
	p, err := c.Spawn(t.Context(), client.Spec{Argv: []string{"sh", "-c", "while read x; do test $x = end && exit 4; echo $x; done"}, PipeStdin: true, Dir: "/"})
	rig.Must(t, err)
	var writing sync.WaitGroup
	defer writing.Wait()
	stop := s.proxy.CutEach(3000)
	defer stop()
	writing.Go(func() {
		for i := range 400 {
			if err := p.Write(t.Context(), []byte(strconv.Itoa(i+1)+"\n")); err != nil {
				t.Error(err)
				return
			}
		}
		rig.Check(t, p.Write(t.Context(), []byte("end\n")))
	})
	lines(t, printed(t, p, 4), 400)
	t.Logf("%d connections", c.Generation())
}

// testCutStart: a start whose answer is lost is an error, and its process is ended; the next one
// works, with the same id once that is free.
func testCutStart(t *testing.T, s *server) {
	for bytes := int64(300); bytes < 1500; bytes += 40 {
		s.proxy.CutAfter(1<<60, nil)
		c := s.connect(t)
		s.proxy.CutAfter(bytes, nil)
		s.proxy.Cut()
		spec := client.Spec{ID: "p", Argv: []string{"sh", "-c", "echo $$; exec sleep 1000"}, Dir: "/"}
		p, err := c.Spawn(t.Context(), spec)
		lost, isLost := errors.AsType[*client.DisconnectedError](err)
		if err != nil && (!isLost || !lost.Sent) {
			t.Fatalf("cut after %d bytes: %v", bytes, err)
		}
		s.proxy.CutAfter(1<<60, nil)
		if isLost {
			// The id is taken until the process is gone.
			for p, err = c.Spawn(t.Context(), spec); err != nil; p, err = c.Spawn(t.Context(), spec) {
				refused, ok := errors.AsType[*client.ServerError](err)
				_, taken := errors.AsType[*client.ProtocolError](err)
				if !taken && (!ok || !strings.Contains(refused.Err.Message, "already")) {
					t.Fatalf("cut after %d bytes, and then: %v", bytes, err)
				}
				if ok {
					break // the server keeps the id of a process that has ended for a while
				}
			}
		}
		if p != nil {
			rig.Must(t, p.Terminate(t.Context()))
			p.Discard()
			if code, err := p.Wait(t.Context()); code != 137 || err != nil {
				t.Fatalf("cut after %d bytes: %d, %v", bytes, code, err)
			}
		}
		rig.Must(t, c.Close())
	}
}

// testRetention: a process whose output the server could not keep fails alone.
func testRetention(t *testing.T, s *server) {
	s.proxy.CutAfter(1<<60, nil)
	c := s.connect(t)
	dir := t.TempDir()
	quiet, err := c.Spawn(t.Context(), client.Spec{Argv: []string{"cat"}, PipeStdin: true, Dir: "/"})
	rig.Must(t, err)
	loud, err := c.Spawn(t.Context(), client.Spec{Argv: []string{"sh", "-c", "read x; head -c 6000000 /dev/zero; touch done; read x"}, PipeStdin: true, Dir: dir})
	rig.Must(t, err)
	rig.Must(t, loud.Write(t.Context(), []byte("go\n")))
	stop := s.proxy.CutEach(1) // nobody comes through
	rig.Until(t, "all is printed", func() bool { _, err := os.Stat(filepath.Join(dir, "done")); return err == nil })
	stop()
	for _, err := range loud.Events(t.Context()) {
		if err == nil {
			continue
		}
		recover, ok := errors.AsType[*client.RecoverError](err)
		if _, gap := errors.AsType[*client.GapError](err); !ok || !gap || recover.ProcessID != loud.ID() {
			t.Errorf("the loud process ends with %v", err)
		}
	}
	rig.Is(t, rig.Err(loud.Wait(t.Context())) != nil, true, "a process whose output is missing ends with an error")
	rig.Must(t, quiet.Write(t.Context(), []byte("word\n")))
	for e, err := range quiet.Events(t.Context()) {
		if err != nil || string(e.Data) != "word\n" {
			t.Errorf("the quiet process has %q, %v", e.Data, err)
		}
		break
	}
}

// testSession: another program comes back to the session and to the process in it.
func testSession(t *testing.T, s *server) {
	first := s.connect(t)
	p, err := first.Spawn(t.Context(), client.Spec{ID: "job", Argv: []string{"sh", "-c", "seq 100; read x; seq 101 200; exit 6"}, PipeStdin: true, Dir: "/"})
	rig.Must(t, err)
	var before bytes.Buffer
	var seen uint64
	for e, err := range p.Events(t.Context()) {
		rig.Must(t, err)
		before.Write(e.Data)
		if seen = e.Seq; strings.HasSuffix(before.String(), "\n100\n") {
			break
		}
	}
	rig.Must(t, first.Close())
	second := s.connect(t, client.Session(first.SessionID()))
	again, err := second.AttachAfter(t.Context(), "job", seen)
	rig.Must(t, err)
	rig.Must(t, again.Write(t.Context(), []byte("go\n")))
	lines(t, before.String()+printed(t, again, 6), 200)
	_, err = second.Processes(t.Context())
	if _, unsupported := errors.AsType[*client.UnsupportedError](err); unsupported != s.reference || !unsupported && err != nil {
		t.Errorf("listing processes gives %v", err) // the reference has no list
	}
}
