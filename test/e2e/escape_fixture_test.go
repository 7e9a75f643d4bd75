package e2e

import (
	"bufio"
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
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
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

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
	rig.Must(t, err)
	rig.Must(t, json.Unmarshal(line, into))
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

// nobody is the ordinary user of these tests.
const nobody = 65534

// metadataVisible is a flag of the agent that has it take level R for S.
const metadataVisible = "--sandbox-metadata=visible"

// escapeSite is where the attempts are made: on this machine, or in a kind of container.
type escapeSite struct {
	name       string
	uid        int
	containers *containers // nil: on this machine
	kind       containerKind
	flags      []string // of the agent
	through    []string // a command that executes the agent
}

// machineSites are this machine, as root and as an ordinary user. E2E_MEANS says which of the means
// a virtual machine with another kernel has (test/kernels).
func machineSites() []escapeSite {
	kind := containerKind{means: machineMeans[os.Getenv("E2E_MEANS")]}
	if uid := os.Geteuid(); uid != 0 {
		return inEveryLevel([]escapeSite{{name: fmt.Sprint("uid ", uid), uid: uid, kind: kind}})
	}
	return inEveryLevel([]escapeSite{{name: "uid 0", kind: kind}, {name: fmt.Sprint("uid ", nobody), uid: nobody, kind: kind}})
}

// inEveryLevel returns the sites, and each where a supervisor confines commands a second time, with
// an operator who lets metadata be seen: level R takes the place of S.
func inEveryLevel(sites []escapeSite) []escapeSite {
	var all []escapeSite
	for _, site := range sites {
		all = append(all, site)
		if site.is("supervised", "") {
			site.name += ", metadata visible"
			site.flags = []string{metadataVisible}
			all = append(all, site)
		}
	}
	return all
}

// machineMeans are the values of E2E_MEANS. An ordinary machine has everything.
var machineMeans = map[string]means{
	"": namespaces, "unguarded": noLandlock, "shared": sharedPIDs, "shared-unguarded": sharedUnguarded,
	"supervisor": supervisor, "old-supervisor": oldSupervisor,
}

// containerSites are containers of those kinds.
func containerSites(t *testing.T, kinds []containerKind) []escapeSite {
	t.Helper()
	c := newContainers(t)
	var sites []escapeSite
	for _, kind := range kinds {
		sites = append(sites, escapeSite{name: kind.name, uid: kind.uid, containers: c, kind: kind})
	}
	return inEveryLevel(sites)
}

// modes returns the policies that the site can enforce for processes, and those that it refuses.
func (s escapeSite) modes() (enforced, refused []string) {
	for _, mode := range []string{"ro", "ww", "net", "tty", "plain", "work", "view"} {
		// Which of the doctor's policies a mode is like. The first four deny paths.
		policy := map[string]string{"net": "workspace-write-network", "plain": "read-only", "work": "workspace-write", "view": "view-only"}[mode]
		if layers[s.kind.means][cmp.Or(policy, "deny")] != "" {
			enforced = append(enforced, mode)
		} else {
			refused = append(refused, mode)
		}
	}
	return enforced, refused
}

// agent is the agent of a rig there.
func (s escapeSite) agent(t *testing.T, r *escapeRig, listen string) *exec.Cmd {
	t.Helper()
	argv := slices.Concat(s.through, []string{r.base + "/agent", "--listen", listen, "--log-level", "warn"}, s.flags)
	env := []string{"PATH=/usr/bin:/bin", "E2E_SECRET=" + r.secret, "E2E_MARK=" + r.secret}
	if s.containers != nil {
		options := []string{"--volume=" + r.base + ":" + r.base}
		for _, variable := range env {
			options = append(options, "--env="+variable)
		}
		return s.containers.command(t, s.kind, options, argv...)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Dir = env, "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential(s.uid)}
	return cmd
}

// credential is that of a user who is in no other group than their own.
func credential(uid int) *syscall.Credential {
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid), NoSetGroups: os.Geteuid() != 0}
}

// agentPID returns the PID of the agent as processes beside it see it.
func (r *escapeRig) agentPID() int {
	if r.site.containers != nil {
		return 1
	}
	return r.agent.Process.Pid
}

// killAgent kills the agent, and with it the container.
func (r *escapeRig) killAgent(t *testing.T) {
	t.Helper()
	pids := []string{strconv.Itoa(r.agent.Process.Pid)}
	if r.site.containers != nil {
		pids = marked(r.secret)
	}
	if len(pids) == 0 {
		t.Fatal("there is no agent")
	}
	for _, pid := range pids {
		if n, err := strconv.Atoi(strings.TrimPrefix(pid, "/proc/")); err != nil || syscall.Kill(n, syscall.SIGKILL) == syscall.EPERM {
			t.Fatalf("process %s cannot be killed: %v", pid, err)
		}
	}
	// Until it has ended, the next agent sees that this one still has its ledger of placeholders.
	rig.Must(t, unix.Waitid(unix.P_PID, r.agent.Process.Pid, nil, unix.WEXITED|unix.WNOWAIT, nil))
}
