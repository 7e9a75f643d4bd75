package e2e

import (
	"debug/elf"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// maxBinary is in bytes, stripped; decision D3.
const maxBinary = 12_000_000

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
