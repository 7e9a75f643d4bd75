package e2e

import (
	"debug/elf"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// What is released is small; decision D3.
const (
	maxBinary = 12_000_000 // bytes, stripped
	maxIdle   = 15 << 10   // KiB resident
)

// TestBinary holds what is released to its promises: static, for both machines, and small.
func TestBinary(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		arch    string
		machine elf.Machine
	}{
		{"amd64", elf.EM_X86_64},
		{"arm64", elf.EM_AARCH64},
	} {
		t.Run(tt.arch, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), "agent")
			build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w", "-o", path, "../cmd/agent")
			build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH="+tt.arch)
			if out, err := build.CombinedOutput(); err != nil {
				t.Fatalf("building: %v\n%s", err, out)
			}
			f, err := elf.Open(path)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			if f.Machine != tt.machine {
				t.Errorf("machine %v, want %v", f.Machine, tt.machine)
			}
			for _, p := range f.Progs {
				if p.Type == elf.PT_INTERP || p.Type == elf.PT_DYNAMIC {
					t.Errorf("not static: it has a program header %v", p.Type)
				}
			}
			if f.Section(".symtab") != nil {
				t.Error("not stripped: it has a symbol table")
			}
			info, err := os.Stat(path)
			if err != nil {
				t.Fatal(err)
			}
			if info.Size() > maxBinary {
				t.Errorf("%d bytes, more than %d", info.Size(), maxBinary)
			}
			t.Logf("%d bytes", info.Size())
		})
	}
}

// TestIdleMemory: an agent that has said hello and waits is small.
func TestIdleMemory(t *testing.T) {
	t.Parallel()
	a := startAgent(t, "none", "--listen", "stdio")
	if answer := a.ask(t, `{"id":1,"method":"initialize","params":{"clientName":"e2e"}}`); !strings.Contains(answer, "sessionId") {
		t.Fatal(answer)
	}
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`(?m)^VmRSS:\s+(\d+) kB$`).FindSubmatch(status)
	if found == nil {
		t.Fatalf("no VmRSS in\n%s", status)
	}
	resident, err := strconv.Atoi(string(found[1]))
	if err != nil {
		t.Fatal(err)
	}
	if resident > maxIdle {
		t.Errorf("%d KiB resident, more than %d", resident, maxIdle)
	}
	t.Logf("%d KiB resident", resident)
}

// TestDockerfile: the image is made of what the build leaves, and its context lets that in.
func TestDockerfile(t *testing.T) {
	t.Parallel()
	agentBinary(t)
	page, err := os.ReadFile("../Dockerfile")
	if err != nil {
		t.Fatal(err)
	}
	context, err := os.ReadFile("../.dockerignore")
	if err != nil {
		t.Fatal(err)
	}
	copied := 0
	for line := range strings.Lines(string(page)) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] != "COPY" && words[0] != "ADD" {
			continue
		}
		for _, source := range words[1 : len(words)-1] {
			copied++
			if _, err := os.Stat(filepath.Join("..", source)); err != nil {
				t.Errorf("%s: %v", strings.TrimSpace(line), err)
			}
			if !strings.Contains(string(context), "\n!"+source+"\n") {
				t.Errorf("%s: .dockerignore keeps %s out", strings.TrimSpace(line), source)
			}
		}
	}
	if copied == 0 {
		t.Error("the Dockerfile copies nothing")
	}
}
