// Package e2e tests the agent as its users meet it: a program that is started, talked to and ended.
package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"
)

// patience is how long a test waits for what must come, before it fails. The machine may have much else to do.
const patience = 5 * time.Minute

// agentBinary returns the path of the agent, built as it is released, once for all tests.
func agentBinary(t *testing.T) string {
	t.Helper()
	path, err := buildOnce()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// leash has a program end with this one, also if that ends before its tests do.
func leash(cmd *exec.Cmd) *exec.Cmd {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return cmd
}

var buildOnce = sync.OnceValues(func() (string, error) {
	path, err := filepath.Abs("../../bin/agent")
	if err != nil {
		return "", err
	}
	if out, err := exec.Command("make", "-C", "../..", "build").CombinedOutput(); err != nil {
		return "", fmt.Errorf("make build: %w\n%s", err, out)
	}
	return path, nil
})
