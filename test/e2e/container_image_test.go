package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// imageUser is the user and group that the images run as. The manifest of the registry names the
// same.
const imageUser = 65532

// TestImages: the programs of the images run as a user that owns nothing but the registry's
// folder. They also run without any capability and with a root directory that is read-only.
func TestImages(t *testing.T) {
	t.Parallel()
	newContainers(t)
	volume := "--volume=images:/data"
	run := func(t *testing.T, flags ...string) (stdout string, code int) {
		t.Helper()
		cmd := podman(slices.Concat([]string{"run"}, runFlags, []string{"--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"}, flags)...)
		var out, complaints bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &complaints
		err := cmd.Run()
		if code := cmd.ProcessState.ExitCode(); err != nil && (code < 0 || code == 125) {
			t.Fatalf("%s: %v\n%s", flags, err, &complaints)
		}
		return out.String() + complaints.String(), cmd.ProcessState.ExitCode()
	}
	for _, image := range []string{"agent", "registry"} {
		for _, id := range []string{"-u", "-g", "-G"} {
			out, _ := run(t, "--volume="+busybox+":/busybox:ro", "--entrypoint=/busybox", "localhost/execagent/"+image, "id", id)
			if out != fmt.Sprintln(imageUser) {
				t.Errorf("%s: id %s is %q, want %d", image, id, out, imageUser)
			}
		}
	}
	if out, code := run(t, "localhost/execagent/agent", "version"); code != 0 || !strings.HasPrefix(out, "agent ") {
		t.Errorf("agent version: exit code %d, %q", code, out)
	}

	// What is in a volume is there for the next container.
	key := regexp.MustCompile(`(?m)^xa_\S{43}$`)
	if out, code := run(t, volume, "localhost/execagent/registry", "keys", "create", "--role=executor", "--environment=*"); code != 0 || !key.MatchString(out) {
		t.Fatalf("keys create: exit code %d, %q", code, out)
	}
	if out, code := run(t, volume, "localhost/execagent/registry", "keys", "list"); code != 0 || !strings.Contains(out, "executor") {
		t.Errorf("keys list: exit code %d, %q", code, out)
	}

	// A folder of the host must belong to that user; the registry refuses others.
	folder := filepath.Join(t.TempDir(), "data")
	if err := os.Mkdir(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, code := run(t, "--volume="+folder+":/data", "localhost/execagent/registry", "keys", "list"); code == 0 || !strings.Contains(out, "permission denied") {
		t.Errorf("in a folder of root: exit code %d, %q", code, out)
	}
	if err := os.Chown(folder, imageUser, imageUser); err != nil {
		t.Fatal(err)
	}
	if out, code := run(t, "--volume="+folder+":/data", "localhost/execagent/registry", "keys", "list"); code != 0 {
		t.Errorf("in a folder of its own: exit code %d, %q", code, out)
	}
}
