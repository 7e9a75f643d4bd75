package e2e

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// socketFolder is a folder with a short path that everybody can enter, with the agent in it.
func socketFolder(t *testing.T) string {
	t.Helper()
	dir := rig.Public(t)
	install(t, map[string]string{dir + "/agent": rig.Agent(t)})
	rig.Must(t, os.Chmod(dir, 0o755))
	return dir
}

// listenAt starts an agent at a UNIX socket.
func listenAt(t *testing.T, path string, flags ...string) *rig.Program {
	t.Helper()
	p := rig.Start(t, exec.Command(rig.Agent(t), append([]string{"--listen", "unix://" + path}, flags...)...))
	rig.Is(t, p.Line(t), "unix://"+path, "it prints")
	return p
}

// said runs a program as a user, and returns what says does.
func said(t *testing.T, uid int, argv ...string) string {
	t.Helper()
	cmd := rig.Command(t, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = "/", []string{"PATH=" + os.Getenv("PATH")}
	if uid != os.Geteuid() {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential(uid)}
	}
	return says(t, cmd)
}

// TestUnixSocket: an agent at a UNIX socket has everything that others have, takes the place of
// one that was killed, and leaves no socket behind.
func TestUnixSocket(t *testing.T) {
	t.Parallel()
	dir := socketFolder(t)
	path := dir + "/s"
	url := "unix://" + path
	run := func(args ...string) string {
		t.Helper()
		return said(t, os.Geteuid(), append([]string{rig.Agent(t)}, args...)...)
	}
	first := listenAt(t, path)
	rig.Is(t, run("exec", "--url", url, "--", "sh", "-c", "echo here; exit 3"), "here\nexit 3\n", "exec")
	rig.Is(t, run("health", "--url", url), "", "health")
	rig.Is(t, run("--listen", url), "agent: listening on "+url+": another program already listens at "+path+"\nexit 1\n", "a second agent")
	first.Kill(t)
	rig.Must(t, rig.Err(os.Lstat(path)))
	rig.Silent(t, "unix", path)
	rig.Is(t, run("health", "--url", url), "agent: "+url+": dial unix "+path+": connect: connection refused\nexit 1\n", "health without an agent")
	second := listenAt(t, path)
	c := dialed(t, url)
	rig.Is(t, len(answer(t, c, strings.Repeat("\u0888", 1<<20), "cat")), 3<<20, "bytes that come back")
	second.Terminate(t)
	rig.Is(t, rig.Err(os.Lstat(path)), fs.ErrNotExist, "after SIGTERM")
}

// TestUnixSocketOfOthers: who may connect and who may not, and what they are told. At a socket that
// everybody can connect to, those who may not be clients get 403 for the metrics too, and none of them.
func TestUnixSocketOfOthers(t *testing.T) {
	t.Parallel()
	if os.Geteuid() != 0 {
		t.Skip("only root can become another user")
	}
	dir := socketFolder(t)
	listenAt(t, dir+"/closed")
	listenAt(t, dir+"/few", "--allow-uid", "1,2", "--metrics")
	listenAt(t, dir+"/open", "--allow-uid", "1", "--allow-uid", fmt.Sprint(nobody))
	for name, want := range map[string]string{
		"closed": fmt.Sprintf("agent: unix://%s/closed: dial unix %[1]s/closed: connect: permission denied: the socket belongs to uid 0, who does not let other users connect\nexit 125\n", dir),
		"few":    fmt.Sprintf("agent: unix://%s/few: upgrade answered with status 403, \"uid %d may not connect: the agent was not started with --allow-uid %[2]d\"\nexit 125\n", dir, nobody),
	} {
		rig.Is(t, said(t, nobody, dir+"/agent", "exec", "--url", "unix://"+dir+"/"+name, "--", "sh", "-c", "echo uid $(id -u)"), want, "%s", name)
	}
	need(t, skip, "curl")
	for uid, want := range map[int]string{0: "200", 1: "200", nobody: "403"} {
		out := said(t, uid, "curl", "-s", "-w", "%{http_code}", "--unix-socket", dir+"/few", "http://agent/metrics")
		matches(t, out, want+"$")
		rig.Is(t, strings.Contains(out, "agent_build_info"), want == "200", "uid %d has metrics", uid)
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
	rig.Is(t, said(t, os.Geteuid(), rig.Agent(t), "exec", "--url", "unix://"+dir+"/near.sock", "--", "echo", "through all"), "through all\n", "exec")
	lacks(t, stderr.String(), "token")
	near.Terminate(t)
	rig.Is(t, fmt.Sprint(filepath.Glob(dir+"/near*")), "[] <nil>", "left")
}
