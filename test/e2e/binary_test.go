package e2e

import (
	"bytes"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

// What is released is small and starts fast: it is copied into images and started once for each
// container.
const (
	maxBinary = 20_000_000 // bytes, stripped
	maxMCP    = 13_000_000 // the same of agent-mcp
	maxIdle   = 4 << 10    // KiB of its own memory
	maxHelper = 6 << 10    // KiB of an idle file helper's own
)

// TestBinary holds what is released to its promises: static and small. make cross calls it for a
// binary of another architecture, which it names in E2E_BINARY.
func TestBinary(t *testing.T) {
	t.Parallel()
	path, arch := os.Getenv("E2E_BINARY"), os.Getenv("E2E_BINARY_ARCH")
	if path == "" {
		path, arch = rig.Agent(t), runtime.GOARCH
		checkBinary(t, path+"-mcp", arch, maxMCP)
	}
	checkBinary(t, path, arch, maxBinary)
}

func checkBinary(t *testing.T, path, arch string, most int) {
	t.Helper()
	want, known := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}[arch]
	if !known {
		t.Fatalf("there is no release for %q", arch)
	}
	f, err := elf.Open(path)
	rig.Must(t, err)
	defer f.Close()
	rig.Is(t, f.Machine, want, "machine")
	for _, p := range f.Progs {
		rig.Is(t, p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC, false, "not static: it has a program header %v", p.Type)
	}
	rig.Is(t, f.Section(".symtab") != nil, false, "not stripped: it has a symbol table")
	program := rig.Value(os.ReadFile(path))
	// Where methods are looked up by names that the linker does not know, it keeps those of all
	// types (docs/adr/0001-libraries.md).
	if bytes.Contains(program, []byte("reflect.Value.MethodByName")) {
		t.Error("it looks methods up by name: go build -ldflags=-dumpdep ./cmd/agent marks with <ReflectMethod> what does so")
	}
	rig.Is(t, len(program) > most, false, "%d bytes, more than %d", len(program), most)
	t.Logf("%s: %d bytes", path, len(program))
}

// TestIdleMemory: an agent that has said hello and waits is small. This does not count pages of the program's file, of
// which the kernel maps as many as it likes: with large folios in its cache it maps 3 MB more.
func TestIdleMemory(t *testing.T) {
	t.Parallel()
	a := startAgent(t, "none", "--listen", "stdio")
	a.initialize(t)
	own := memoryOf(t, a.Process.Pid, "RssAnon")
	rig.Is(t, own > maxIdle, false, "%d KiB of its own, more than %d", own, maxIdle)
	t.Logf("%d KiB of its own", own)
}

// TestIdleHelper: the file helper of a policy gives memory back: after thousands of requests it
// is small again.
func TestIdleHelper(t *testing.T) {
	t.Parallel()
	a := startAgent(t, "none", "--listen", "stdio")
	a.initialize(t)
	dir := t.TempDir()
	sandbox := policyIn(dir, policyFile("restricted", readMinimal, writeProject))
	request := func(format string, args ...any) {
		t.Helper()
		if answer := a.ask(t, fmt.Sprintf(`{"id":2,"method":"fs/`+format, args...)); !strings.Contains(answer, `"result"`) {
			t.Fatal(answer)
		}
	}
	requests := 50
	if rig.Runs(rig.Merge) {
		requests = 1000
	}
	for i := range requests {
		request(`writeFile","params":{"path":"file://%s/%d","dataBase64":"eA==","sandbox":%s}}`, dir, i, sandbox)
		request(`readFile","params":{"path":"file://%s/%d","sandbox":%s}}`, dir, i, sandbox)
	}
	for range 3 {
		request(`walk","params":{"path":"file:///usr/lib","sandbox":%s,"options":{"maxDepth":64,"maxDirectories":10000,"maxEntries":50000,"followDirectorySymlinks":false}}}`, sandbox)
	}
	// The runtime gives the memory of large answers back a little later.
	own := 0
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if own = helperMemory(t, a.Process.Pid); own <= maxHelper {
			t.Logf("%d KiB of its own", own)
			return
		}
	}
	t.Errorf("%d KiB of its own, more than %d", own, maxHelper)
}

// helperMemory is the private memory of the file helper of an agent, in KiB: proc(5), smaps_rollup.
func helperMemory(t *testing.T, agent int) int {
	t.Helper()
	for _, pid := range children(t, agent, "") {
		args, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if !strings.Contains(string(args), "fs-helper") {
			continue
		}
		rollup := rig.Value(os.ReadFile(fmt.Sprintf("/proc/%d/smaps_rollup", pid)))
		sum := 0
		for _, m := range regexp.MustCompile(`(?m)^Private_\w+:\s+(\d+) kB$`).FindAllSubmatch(rollup, -1) {
			sum += rig.Value(strconv.Atoi(string(m[1])))
		}
		return sum
	}
	t.Fatal("the agent has no file helper")
	return 0
}

// TestDockerfile: what the Dockerfiles copy is there after a build, and .dockerignore lets it in.
func TestDockerfile(t *testing.T) {
	t.Parallel()
	rig.Agent(t)
	context := textOf(os.ReadFile("../../.dockerignore"))
	for _, file := range []string{"../../Dockerfile", "../../deploy/registry.Dockerfile"} {
		copied := 0
		for line := range strings.Lines(textOf(os.ReadFile(file))) {
			words := strings.Fields(line)
			if len(words) == 0 || words[0] != "COPY" && words[0] != "ADD" || strings.HasPrefix(words[1], "--from=") {
				continue
			}
			for _, source := range words[1 : len(words)-1] {
				copied++
				source = strings.ReplaceAll(source, "${BIN}", "bin") // the default, of make image
				rig.Check(t, rig.Err(os.Stat(filepath.Join("../..", source))))
				rig.Is(t, strings.Contains(context, "\n!"+source+"\n"), true, "%s: .dockerignore lets %s in", strings.TrimSpace(line), source)
			}
		}
		rig.Is(t, copied > 0, true, "%s copies something", file)
	}
}
