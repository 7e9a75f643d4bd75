package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"testing"

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
	run := func(code int, flags ...string) string {
		t.Helper()
		hardened := []string{"--read-only", "--cap-drop=ALL", "--security-opt=no-new-privileges"}
		r := finish(t, podman(slices.Concat([]string{"run"}, runFlags, hardened, flags)...))
		rig.Is(t, r.code, code, "%s: %s: exit code", flags, r.stderr)
		return r.stdout + r.stderr
	}
	for _, image := range []string{"agent", "registry"} {
		for _, id := range []string{"-u", "-g", "-G"} {
			out := run(0, "--volume="+busybox+":/busybox:ro", "--entrypoint=/busybox", "localhost/execagent/"+image, "id", id)
			rig.Is(t, out, fmt.Sprintln(imageUser), "%s: id %s", image, id)
		}
	}
	matches(t, run(0, "localhost/execagent/agent", "version"), "^agent ")

	// What is in a volume is there for the next container.
	matches(t, run(0, volume, "localhost/execagent/registry", "keys", "create", "--role=executor", "--environment=*"), `(?m)^xa_\S{43}$`)
	has(t, run(0, volume, "localhost/execagent/registry", "keys", "list"), "executor")

	// A folder of the host must belong to that user; the registry refuses others.
	folder := filepath.Join(t.TempDir(), "data")
	rig.Must(t, os.Mkdir(folder, 0o755))
	create := []string{"--volume=" + folder + ":/data", "localhost/execagent/registry", "keys", "create", "--role=executor", "--environment=*"}
	has(t, run(1, create...), "permission denied")
	rig.Must(t, os.Chown(folder, imageUser, imageUser))
	run(0, create...)
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
	made := finish(t, rig.Command(t, "make", "-C", "../..", "images", "CONTAINERS="+engine))
	rig.Is(t, made.code, 0, "%+v: make images ends with", made)
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
		rig.Is(t, !slices.Equal(platforms, []string{"linux/amd64", "linux/arm64"}), false, "%s is for %q", image, platforms)

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
		labelled := regexp.QuoteMeta(name + " " + d.Config.Labels["org.opencontainers.image.version"])
		matches(t, succeeds(t, "exec", container, "/"+name, "version"), "^"+labelled+"\n")
		rig.Until(t, image+" is healthy", func() bool { return podman("healthcheck", "run", container).Run() == nil })
	}
}

// succeeds runs podman, which must succeed, and returns what it prints.
func succeeds(t *testing.T, args ...string) string {
	t.Helper()
	cmd := podman(args...)
	cmd.Env = append(cmd.Env, "DISABLE_HC_SYSTEMD=true") // health is asked for here, not by a timer
	r := finish(t, cmd)
	if r.code != 0 {
		t.Fatalf("podman %s: %+v", args, r)
	}
	return r.stdout
}

// inspected decodes what podman prints.
func inspected(t *testing.T, to any, args ...string) {
	t.Helper()
	if out := succeeds(t, args...); json.Unmarshal([]byte(out), to) != nil {
		t.Fatalf("podman %s prints\n%s", args, out)
	}
}

// TestDocsContainer runs docs/containers.md. TestDocs says which blocks these are.
func TestDocsContainer(t *testing.T) {
	t.Parallel()
	runContainerPage(t, "containers.md")
}

// runContainerPage builds the image of a page of docs on the tests' own base and runs the commands
// for it, with the flags of the tests added.
func runContainerPage(t *testing.T, page string) {
	t.Helper()
	newContainers(t)
	dir, path := t.TempDir(), t.TempDir()
	rig.Must(t, os.Mkdir(filepath.Join(dir, "bin"), 0o755))
	install(t, map[string]string{filepath.Join(dir, "bin", "agent"): rig.Agent(t)})
	// Docker is podman under Docker's profile. The commands of the page drop all capabilities.
	for engine, flags := range map[string][]string{"podman": nil, "docker": {seccompFlag(t, dockerProfile(t, nil, nil))}} {
		rig.Must(t, rig.WriteProgram(filepath.Join(path, engine), []byte(podmanScript(flags))))
	}
	images, commands := 0, 0
	blocks := fenced(t, "../../docs/"+page)
	for i, b := range blocks {
		switch b.info {
		case "toml": // its first line has its name
			write(t, filepath.Join(dir, strings.Fields(b.text)[1]), b.text)
		case "dockerfile tested":
			images++
			write(t, filepath.Join(dir, "Dockerfile"), b.text)
		case "sh by=container":
			commands++
			r := shell(t, dir, append(os.Environ(), "PATH="+path+":"+os.Getenv("PATH")), b.text)
			if r.code != 0 {
				t.Fatalf("%s:%d: %+v", page, b.line, r)
			}
			if i+1 < len(blocks) && blocks[i+1].info == "text output" {
				rig.Is(t, anyLandlock(r.stdout), anyLandlock(blocks[i+1].text), "%s:%d, %s: prints", page, b.line, r.stderr)
			}
		}
	}
	if images != 1 || commands == 0 {
		t.Errorf("%s has %d blocks dockerfile tested and %d sh by=container", page, images, commands)
	}
}

// anyLandlock replaces the version of Landlock, which is the kernel's.
func anyLandlock(text string) string {
	return regexp.MustCompile(`landlock:\d+`).ReplaceAllString(text, "landlock:N")
}

// podmanScript is a podman of the tests' own as a script: build takes their base, and run their
// flags and more.
func podmanScript(more []string) string {
	quote := func(words []string) string {
		var quoted []string
		for _, w := range words {
			quoted = append(quoted, "'"+strings.ReplaceAll(w, "'", `'\''`)+"'")
		}
		return strings.Join(quoted, " ")
	}
	cmd := podman()
	// The script is the first podman on the PATH.
	env := append(cmd.Env[len(cmd.Env)-2:], "PATH="+os.Getenv("PATH"))
	return `#!/bin/sh
verb=$1
shift
case $verb in
build) set -- --build-arg=BASE=localhost/exectest --pull=never --isolation=chroot "$@" ;;
run) set -- ` + quote(slices.Concat(runFlags, more)) + ` "$@" ;;
esac
exec env ` + quote(env) + " " + quote(cmd.Args) + ` "$verb" "$@"
`
}
