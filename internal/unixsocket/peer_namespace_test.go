//go:build linux

package unixsocket

import (
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestPeerOutside: in a user namespace, who has no uid there is nobody, and not the user with the
// number that the kernel gives for all of them.
func TestPeerOutside(t *testing.T) {
	const variable, other = "UNIXSOCKET_TEST_PATH", 4321
	if path := os.Getenv(variable); path != "" {
		conn, err := net.Dial("unix", path)
		rig.Must(t, err)
		defer conn.Close()
		uid, err := Peer(conn.(*net.UnixConn))
		rig.Is(t, err != nil, true, "uid %d, %v: somebody from outside is nobody", uid, err)
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("only root gives another user a namespace")
	}
	dir, err := os.MkdirTemp("/tmp", "peer")
	rig.Must(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	path := filepath.Join(dir, "socket")
	listener, err := net.Listen("unix", path)
	rig.Must(t, err)
	defer listener.Close()
	program := filepath.Join(dir, "test") // the one that go test has made lies where others may not look
	text, err := os.ReadFile("/proc/self/exe")
	rig.Must(t, errors.Join(err, rig.WriteProgram(program, text), os.Chown(program, other, other), os.Chmod(dir, 0o755), os.Chmod(path, 0o666)))
	cmd := exec.CommandContext(t.Context(), program, "-test.run=^TestPeerOutside$")
	cmd.Dir, cmd.Env = dir, append(os.Environ(), variable+"="+path)
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: other, Size: 1}}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, Credential: &syscall.Credential{Uid: 0, Gid: 0},
	}
	out, err := cmd.CombinedOutput()
	if errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) {
		t.Skip("no user namespaces: ", err)
	}
	rig.Is(t, err, nil, "%s", out)
}
