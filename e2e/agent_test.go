// Package e2e tests the agent as its users meet it: a program that is started, talked to and ended.
package e2e

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

// agentBinary returns the path of the agent, built as it is released, once for all tests.
func agentBinary(t *testing.T) string {
	t.Helper()
	path, err := buildOnce()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

var buildOnce = sync.OnceValues(func() (string, error) {
	path, err := filepath.Abs("../bin/agent")
	if err != nil {
		return "", err
	}
	if out, err := exec.Command("make", "-C", "..", "build").CombinedOutput(); err != nil {
		return "", fmt.Errorf("make build: %w\n%s", err, out)
	}
	return path, nil
})
