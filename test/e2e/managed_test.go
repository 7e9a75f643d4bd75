package e2e

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestManagedNetwork: the escapes from a managed network that the tests of internal/sandbox/confine
// try hold for an ordinary user too, and where nobody can make namespaces.
func TestManagedNetwork(t *testing.T) {
	rig.Tier(t, rig.Merge)
	t.Parallel()
	tools := rig.Public(t)
	launcher, escapes := rig.Launcher(t, tools), filepath.Join(tools, "escapes")
	build := rig.Command(t, "go", "test", "-c", "-o", escapes, "../../internal/sandbox/confine")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	built := finish(t, build)
	rig.Is(t, built.code, 0, "%+v: go test -c ends with", built)
	user := credential(1000)
	for name, tt := range map[string]struct {
		launch []string
		user   *syscall.Credential
		layer  string
	}{
		"namespaces":                {nil, nil, "proxy:netns"},
		"namespaces, ordinary user": {nil, user, "proxy:netns"},
		"supervised":                {[]string{launcher, "--"}, nil, "proxy:supervised"},
		"supervised, ordinary user": {[]string{launcher, "-uid", "1000", "--"}, nil, "proxy:supervised"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if strings.Contains(name, "ordinary user") && os.Getuid() != 0 {
				t.Skip("the test is one of an ordinary user already")
			}
			argv := append(tt.launch, escapes, "-test.v", "-test.run", "^(TestManaged.*|TestBridged.*|TestGateOnce)$/^"+tt.layer+"$")
			ctx, stop := context.WithTimeout(t.Context(), 4*patience)
			defer stop()
			cmd := rig.Leash(exec.CommandContext(ctx, argv[0], argv[1:]...))
			cmd.WaitDelay = patience
			cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/bin:/bin", "TMPDIR=/tmp"}
			cmd.SysProcAttr.Credential = tt.user
			out, err := cmd.CombinedOutput()
			if want := "--- PASS: TestManaged/" + tt.layer; err != nil || !strings.Contains(string(out), want) {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}
