package e2e

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/test/rig"
)

// TestDocsContainer builds the image of docs/containers.md on the tests' own base and runs the
// commands for it, with the flags of the tests added. TestDocs says which blocks these are.
func TestDocsContainer(t *testing.T) {
	t.Parallel()
	newContainers(t)
	dir, path := t.TempDir(), t.TempDir()
	rig.Must(t, os.Mkdir(filepath.Join(dir, "bin"), 0o755))
	install(t, map[string]string{filepath.Join(dir, "bin", "agent"): rig.Agent(t)})
	// Docker is podman under Docker's profile. The commands of the page drop all capabilities.
	for engine, flags := range map[string][]string{"podman": nil, "docker": {seccompFlag(t, dockerProfile(t, nil, nil))}} {
		rig.Must(t, rig.WriteProgram(filepath.Join(path, engine), []byte(podmanScript(flags))))
	}
	images, commands := 0, 0
	blocks := fenced(t, "../../docs/containers.md")
	for i, b := range blocks {
		switch b.info {
		case "dockerfile tested":
			images++
			write(t, filepath.Join(dir, "Dockerfile"), b.text)
		case "sh by=container":
			commands++
			r := shell(t, dir, append(os.Environ(), "PATH="+path+":"+os.Getenv("PATH")), b.text)
			if r.code != 0 {
				t.Fatalf("containers.md:%d: %+v", b.line, r)
			}
			if i+1 < len(blocks) && blocks[i+1].info == "text output" {
				rig.Is(t, anyLandlock(r.stdout), anyLandlock(blocks[i+1].text), "containers.md:%d, %s: prints", b.line, r.stderr)
			}
		}
	}
	if images != 1 || commands == 0 {
		t.Errorf("containers.md has %d blocks dockerfile tested and %d sh by=container", images, commands)
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
build) set -- --build-arg=BASE=localhost/exectest --pull=never "$@" ;;
run) set -- ` + quote(slices.Concat(runFlags, more)) + ` "$@" ;;
esac
exec env ` + quote(env) + " " + quote(cmd.Args) + ` "$verb" "$@"
`
}
