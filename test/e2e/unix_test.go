package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/test/rig"
)

// socketFolder is a folder with a short path that everybody can enter, with the agent in it.
func socketFolder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "sock")
	rig.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	program, err := os.ReadFile(rig.Agent(t))
	if err == nil {
		err = errors.Join(os.Chmod(dir, 0o755), rig.WriteProgram(dir+"/agent", program))
	}
	rig.Must(t, err)
	return dir
}

// listenAt starts an agent at a UNIX socket.
func listenAt(t *testing.T, path string, flags ...string) *rig.Program {
	t.Helper()
	p := rig.Start(t, exec.Command(rig.Agent(t), append([]string{"--listen", "unix://" + path}, flags...)...))
	if url := p.Line(t); url != "unix://"+path {
		t.Fatalf("it prints %q", url)
	}
	return p
}

// said runs an agent and returns its output and exit code.
func said(t *testing.T, uid int, argv ...string) (string, int) {
	t.Helper()
	cmd := rig.Command(t, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = "/", []string{"PATH=" + os.Getenv("PATH")}
	if uid != os.Geteuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(uid)}}
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return withoutWaits(out.String()), cmd.ProcessState.ExitCode()
}

// TestUnixSocket: an agent at a UNIX socket has everything that others have, takes the place of
// one that was killed, and leaves no socket behind.
func TestUnixSocket(t *testing.T) {
	t.Parallel()
	dir := socketFolder(t)
	path, own := dir+"/s", os.Geteuid()
	url := "unix://" + path
	first := listenAt(t, path)
	if out, code := said(t, own, rig.Agent(t), "exec", "--url", url, "--", "sh", "-c", "echo here; exit 3"); out != "here\n" || code != 3 {
		t.Errorf("exec: %q, %d", out, code)
	}
	if out, code := said(t, own, rig.Agent(t), "health", "--url", url); out != "" || code != 0 {
		t.Errorf("health: %q, %d", out, code)
	}
	if out, code := said(t, own, rig.Agent(t), "--listen", url); out != "agent: listening on "+url+": another program already listens at "+path+"\n" || code != 1 {
		t.Errorf("a second agent: %q, %d", out, code)
	}
	first.Kill(t)
	rig.Must(t, rig.Err(os.Lstat(path)))
	// A child that the agent had just forked may hold the listener for a moment.
	rig.Until(t, "nobody listens", func() bool {
		conn, err := net.Dial("unix", path)
		if err == nil {
			conn.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
	if out, code := said(t, own, rig.Agent(t), "health", "--url", url); out != "agent: "+url+": dial unix "+path+": connect: connection refused\n" || code != 1 {
		t.Errorf("health without an agent: %q, %d", out, code)
	}
	second := listenAt(t, path)
	c, err := client.DialURL(rig.Context(t), url)
	rig.Must(t, err)
	defer c.Close()
	r, err := c.Run(rig.Context(t), client.Spec{Argv: []string{"cat"}, Dir: "/"}, bytes.Repeat([]byte("\u0888"), 1<<20))
	if err != nil || len(r.Stdout) != 3<<20 {
		t.Errorf("%d bytes come back, %v", len(r.Stdout), err)
	}
	second.Terminate(t)
	rig.Is(t, rig.Err(os.Lstat(path)), fs.ErrNotExist, "after SIGTERM")
}

// TestUnixSocketOfOthers: who may connect and who may not, and what they are told.
func TestUnixSocketOfOthers(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	dir := socketFolder(t)
	listenAt(t, dir+"/closed")
	listenAt(t, dir+"/few", "--allow-uid", "1,2")
	listenAt(t, dir+"/open", "--allow-uid", "1", "--allow-uid", fmt.Sprint(nobody))
	for name, want := range map[string]string{
		"closed": fmt.Sprintf("agent: unix://%s/closed: dial unix %[1]s/closed: connect: permission denied: the socket belongs to uid 0, who does not let other users connect\n", dir),
		"few":    fmt.Sprintf("agent: unix://%s/few: upgrade answered with status 403, \"uid %d may not connect: the agent was not started with --allow-uid %[2]d\"\n", dir, nobody),
		"open":   "uid 0\n",
	} {
		if out, _ := said(t, nobody, dir+"/agent", "exec", "--url", "unix://"+dir+"/"+name, "--", "sh", "-c", "echo uid $(id -u)"); out != want {
			t.Errorf("%s: %q, want %q", name, out, want)
		}
	}
}

// TestUnixSocketMetrics: at a socket that everybody can connect to, those who may not be clients
// get 403 for the metrics too, and none of them.
func TestUnixSocketMetrics(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip(err)
	}
	dir := socketFolder(t)
	listenAt(t, dir+"/s", "--metrics", "--allow-uid", "1")
	for uid, want := range map[int]string{0: "200", 1: "200", nobody: "403"} {
		out, code := said(t, uid, "curl", "-s", "-w", "%{http_code}", "--unix-socket", dir+"/s", "http://agent/metrics")
		if code != 0 || !strings.HasSuffix(out, want) || strings.Contains(out, "agent_build_info") != (want == "200") {
			t.Errorf("uid %d: exit code %d, %.200s ... %.3s", uid, code, out, out[max(0, len(out)-3):])
		}
	}
}

// TestUnixSocketChain: connect and forward pass UNIX sockets on to each other. No token is made
// where the kernel says who connects.
func TestUnixSocketChain(t *testing.T) {
	t.Parallel()
	dir := socketFolder(t)
	listenAt(t, dir+"/agent.sock")
	s := rig.NewSite(t)
	forwarder := s.Start(t, rig.Agent(t), []string{"CODEX_API_KEY=" + s.Executor}, nil,
		"forward", "--connect", "unix://"+dir+"/agent.sock", "--remote", s.URL(), "--environment-id", "ci-1")
	forwarder.Says(t, "connected to the rendezvous", 1)
	var stderr rig.Transcript
	cmd := connectTo(t, s, "ci-1", "--listen", "unix://"+dir+"/near.sock")
	cmd.Stderr = &stderr
	near := rig.Start(t, cmd)
	rig.Is(t, near.Line(t), "unix://"+dir+"/near.sock", "it prints")
	if out, code := said(t, os.Geteuid(), rig.Agent(t), "exec", "--url", "unix://"+dir+"/near.sock", "--", "echo", "through all"); out != "through all\n" || code != 0 {
		t.Errorf("exec: %q, %d", out, code)
	}
	if said := stderr.String(); strings.Contains(said, "token") {
		t.Errorf("it says %q", said)
	}
	near.Terminate(t)
	if left, err := filepath.Glob(dir + "/near*"); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}
