package suite

import (
	"errors"
	"fmt"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// grace is how long a program has to end by itself.
const grace = 2 * time.Second

// shell is a command for sh, in its own process group.
func shell(command string, args ...string) *exec.Cmd {
	cmd := exec.Command("sh", append([]string{"-c", command + ` "$@"`, "sh"}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	return cmd
}

// killGroup kills a command, which may have left its group, and what it has started.
func killGroup(cmd *exec.Cmd) {
	_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
	_ = cmd.Process.Kill()
}

// ending returns a function that waits for a command to end by itself, kills it and what it has started
// otherwise, and may be called again.
func ending(cmd *exec.Cmd) func() {
	return sync.OnceFunc(func() {
		late := time.AfterFunc(grace, func() { killGroup(cmd) })
		_ = cmd.Wait()
		late.Stop()
	})
}

// deadPort returns a port that refuses connections, and that nobody else gets before free: a socket is bound to it
// and does not listen.
func deadPort() (port int, free func(), err error) {
	fd, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, nil, err
	}
	free = func() { _ = syscall.Close(fd) }
	err = syscall.Bind(fd, &syscall.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}})
	address, nameErr := syscall.Getsockname(fd)
	at, ok := address.(*syscall.SockaddrInet4)
	if err = errors.Join(err, nameErr); err != nil || !ok {
		free()
		return 0, nil, fmt.Errorf("binding a socket: %w", err)
	}
	return at.Port, free, nil
}
