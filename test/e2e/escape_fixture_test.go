package e2e

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/rpc"
	"github.com/execagent/execagent/test/rig"
	"github.com/execagent/execagent/transport"
)

// escapeRig is what the attempts are made on: a workspace, things to be protected in it and
// around it, an agent, and a process of the same user that is not confined. In a container
// everything has the same paths as on this machine.
type escapeRig struct {
	site             escapeSite
	base, repo, out  string
	secret, abstract string
	shm              int
	agent            *exec.Cmd // or the container with it
	client           *client.Client
	outside          *outside
}

// newEscapeRig makes one. What it starts ends with the test.
func newEscapeRig(t *testing.T, site escapeSite) *escapeRig {
	t.Helper()
	base := rig.Public(t)
	r := &escapeRig{
		site: site, base: base, repo: base + "/repo", out: base + "/out",
		secret: "secret-" + rand.Text(), abstract: "escape-" + rand.Text(),
		shm: int(time.Now().UnixNano()&0xffffff) | 1<<28,
	}
	r.fill(t)
	r.startAgent(t)
	r.startOutside(t)
	return r
}

// fill makes the files.
func (r *escapeRig) fill(t *testing.T) {
	t.Helper()
	for _, dir := range []string{"", "repo", "repo/.git", "repo/vault", "repo/dir", "repo/a", "repo/a/b", "repo/a/b/locked", "out"} {
		rig.Must(t, os.MkdirAll(filepath.Join(r.base, dir), 0o755))
	}
	for _, file := range []string{
		"repo/.git/HEAD", "repo/.git/config", "repo/vault/x", "repo/a.env", "repo/file", "repo/a/b/locked/x", "repo/dir/x", "out/file",
	} {
		rig.Must(t, os.WriteFile(filepath.Join(r.base, file), []byte(r.secret), 0o644))
	}
	rig.Must(t, os.Symlink(r.out+"/file", r.repo+"/link"))
	install(t, map[string]string{r.base + "/agent": rig.Agent(t), r.base + "/escape": escapeBinary(t)})
	err := filepath.WalkDir(r.base, func(path string, _ fs.DirEntry, err error) error {
		return errors.Join(err, os.Lchown(path, r.site.uid, r.site.uid))
	})
	rig.Must(t, err, os.Chmod(r.base, 0o755))
	install(t, map[string]string{r.base + "/suid": r.base + "/escape"})
	rig.Must(t, os.Chmod(r.base+"/suid", 0o4755))
}

// startAgent starts the agent and connects to it.
func (r *escapeRig) startAgent(t *testing.T) {
	t.Helper()
	r.agent = r.site.agent(t, r, "stdio")
	r.agent.Stderr, r.agent.WaitDelay = t.Output(), patience // commands may have it, too
	in, err := r.agent.StdinPipe()
	rig.Must(t, err)
	out, err := r.agent.StdoutPipe()
	rig.Must(t, err)
	rig.Must(t, r.agent.Start())
	r.client, err = client.Connect(rig.Context(t), client.Config{Single: true, InitializeTimeout: patience, Dial: func(context.Context) (rpc.Conn, error) {
		return transport.Stdio(out, in, nil), nil
	}})
	t.Cleanup(func() {
		late := time.AfterFunc(patience, func() { _ = r.agent.Process.Kill() })
		defer late.Stop()
		if r.client != nil {
			_ = r.client.Close() // it may be gone
		}
		_ = r.agent.Wait()
	})
	rig.Must(t, err)
}

// outside is the process that is not confined: the program escape with the argument "outside".
type outside struct {
	process  *client.Process
	output   *io.PipeReader
	lines    *bufio.Reader // of it
	tcp, pts string
	pid      int
}

// startOutside starts it, by way of the agent.
func (r *escapeRig) startOutside(t *testing.T) {
	t.Helper()
	rig.Is(t, outcome(t, r.startFree(t, "count")).code, 0, "counting: exit code")
	p := r.startFree(t, "outside", r.secret)
	lines, output := io.Pipe()
	go func() {
		_, err := p.CopyOutput(context.WithoutCancel(t.Context()), output, os.Stderr)
		output.CloseWithError(err)
	}()
	r.outside = &outside{process: p, output: lines, lines: bufio.NewReader(lines)}
	var said struct {
		TCP, PTS string
		PID      int
	}
	r.outside.read(t, &said)
	r.outside.tcp, r.outside.pts, r.outside.pid = said.TCP, said.PTS, said.PID
}

func (o *outside) read(t *testing.T, into any) {
	t.Helper()
	late := time.AfterFunc(patience, func() { o.output.CloseWithError(errors.New("it says nothing")) })
	defer late.Stop()
	line, err := o.lines.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, into)
	}
	rig.Must(t, err)
}

// unreached ends the process and fails if a connection, a datagram or a signal has reached it.
func (o *outside) unreached(t *testing.T) {
	t.Helper()
	rig.Must(t, o.process.CloseStdin(rig.Context(t)))
	var noticed struct{ Reached, Signals int }
	o.read(t, &noticed)
	rig.Is(t, noticed, struct{ Reached, Signals int }{}, "outside: connections and datagrams, and signals")
}

// environ tells the program of attempts where things are.
func (r *escapeRig) environ() map[string]string {
	env := map[string]string{
		"ESCAPE_REPO": r.repo, "ESCAPE_OUT": r.out, "ESCAPE_STREAM": r.out + "/stream", "ESCAPE_DGRAM": r.out + "/dgram",
		"ESCAPE_ABSTRACT": r.abstract, "ESCAPE_SUID": r.base + "/suid", "ESCAPE_SECRET": r.secret,
		"ESCAPE_AGENT": strconv.Itoa(r.agentPID()), "ESCAPE_SHM": strconv.Itoa(r.shm),
	}
	if r.outside != nil {
		env["ESCAPE_TCP"], env["ESCAPE_PTS"], env["ESCAPE_PID"] = r.outside.tcp, r.outside.pts, strconv.Itoa(r.outside.pid)
	}
	return env
}

// startFree starts the program of attempts as one that is not confined.
func (r *escapeRig) startFree(t *testing.T, args ...string) *client.Process {
	t.Helper()
	p, err := r.client.Start(rig.Context(t), protocol.StartParams{
		Argv: append([]string{r.base + "/escape"}, args...), Cwd: protocol.NewPathURI("/"), Env: r.environ(), PipeStdin: true,
	})
	rig.Must(t, err)
	return p
}

// start starts the program of attempts, confined.
func (r *escapeRig) start(t *testing.T, mode string, args ...string) *client.Process {
	t.Helper()
	p, err := r.client.Start(rig.Context(t), protocol.StartParams{
		TTY: mode == "tty", Argv: append([]string{r.base + "/escape"}, args...), Cwd: protocol.NewPathURI(r.repo),
		Env: r.environ(), Sandbox: r.policy(mode),
	})
	rig.Must(t, err)
	return p
}

// escapeBinary returns the program of attempts, which is built with the agent.
func escapeBinary(t *testing.T) string {
	t.Helper()
	return filepath.Join(filepath.Dir(rig.Agent(t)), "escape")
}
