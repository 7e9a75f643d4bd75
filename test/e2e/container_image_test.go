package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
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
	rig.Must(t, os.Mkdir(folder, 0o755))
	if out, code := run(t, "--volume="+folder+":/data", "localhost/execagent/registry", "keys", "list"); code == 0 || !strings.Contains(out, "permission denied") {
		t.Errorf("in a folder of root: exit code %d, %q", code, out)
	}
	rig.Must(t, os.Chown(folder, imageUser, imageUser))
	if out, code := run(t, "--volume="+folder+":/data", "localhost/execagent/registry", "keys", "list"); code != 0 {
		t.Errorf("in a folder of its own: exit code %d, %q", code, out)
	}
}

// TestImageLists makes the images as make images does: for amd64 and arm64. That of this machine
// says what it is, where its state lies and what it listens at, and the engine finds its container
// healthy, without anything in it but the program.
func TestImageLists(t *testing.T) {
	rig.Tier(t, rig.Nightly)
	t.Parallel()
	newContainers(t)
	engine := filepath.Join(t.TempDir(), "podman")
	rig.Must(t, rig.WriteProgram(engine, []byte(podmanScript(nil))))
	if out, err := rig.Command(t, "make", "-C", "../..", "images", "CONTAINERS="+engine).CombinedOutput(); err != nil {
		t.Fatalf("make images: %v\n%s", err, out)
	}
	for name, want := range map[string]struct{ port, volume string }{"agent": {"7000/tcp", ""}, "registry": {"8080/tcp", "/data"}} {
		image := "localhost/execagent/" + name + ":all"
		var list struct {
			Manifests []struct {
				Platform struct{ OS, Architecture string }
			}
		}
		inspected(t, &list, "manifest", "inspect", image)
		var platforms []string
		for _, m := range list.Manifests {
			platforms = append(platforms, m.Platform.OS+"/"+m.Platform.Architecture)
		}
		slices.Sort(platforms)
		if !slices.Equal(platforms, []string{"linux/amd64", "linux/arm64"}) {
			t.Errorf("%s is for %q", image, platforms)
		}

		flags := slices.DeleteFunc(slices.Clone(runFlags), func(flag string) bool { return flag == "--rm" || flag == "-i" })
		container := strings.TrimSpace(succeeds(t, slices.Concat([]string{"run", "-d", "--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"}, flags, []string{image})...))
		defer func() { _ = podman("rm", "-f", "-t", "0", container).Run() }()
		var details []struct {
			Architecture string
			Config       struct {
				Labels       map[string]string
				ExposedPorts map[string]struct{}
				Volumes      map[string]struct{}
			}
		}
		var running []struct{ Image string }
		inspected(t, &running, "inspect", container)
		inspected(t, &details, "image", "inspect", running[0].Image)
		d := details[0]
		rig.Is(t, d.Architecture, runtime.GOARCH, "%s: the container has an image for", image)
		if _, ok := d.Config.ExposedPorts[want.port]; !ok || len(d.Config.ExposedPorts) != 1 {
			t.Errorf("%s exposes %v, want %s", image, d.Config.ExposedPorts, want.port)
		}
		if _, ok := d.Config.Volumes[want.volume]; !ok && want.volume != "" {
			t.Errorf("%s has the volumes %v, want %s", image, d.Config.Volumes, want.volume)
		}
		for _, label := range []string{"title", "description", "source", "licenses", "version", "revision"} {
			if value := d.Config.Labels["org.opencontainers.image."+label]; value == "" || value == "unknown" && label != "revision" {
				t.Errorf("%s: the label %s is %q", image, label, value)
			}
		}
		if version := strings.TrimSpace(succeeds(t, "exec", container, "/"+name, "version")); !strings.HasPrefix(version, name+" "+d.Config.Labels["org.opencontainers.image.version"]+"\n") {
			t.Errorf("%s: labelled %q, and says %q", image, d.Config.Labels["org.opencontainers.image.version"], version)
		}
		var out []byte
		err := fmt.Errorf("not tried")
		for deadline := time.Now().Add(patience); err != nil && time.Now().Before(deadline); time.Sleep(200 * time.Millisecond) {
			out, err = podman("healthcheck", "run", container).CombinedOutput()
		}
		if err != nil {
			t.Errorf("%s does not become healthy: %v\n%s", image, err, out)
		}
	}
}

// succeeds runs podman, which must succeed, and returns what it prints.
func succeeds(t *testing.T, args ...string) string {
	t.Helper()
	cmd := podman(args...)
	cmd.Env = append(cmd.Env, "DISABLE_HC_SYSTEMD=true") // health is asked for here, not by a timer
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("podman %s: %v\n%s%s", args, err, &stdout, &stderr)
	}
	return stdout.String()
}

// inspected decodes what podman prints.
func inspected(t *testing.T, to any, args ...string) {
	t.Helper()
	if out := succeeds(t, args...); json.Unmarshal([]byte(out), to) != nil {
		t.Fatalf("podman %s prints\n%s", args, out)
	}
}
