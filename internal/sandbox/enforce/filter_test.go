package enforce

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/enforce/internal/seccomp"
	"github.com/execagent/execagent/test/rig"
)

// architectures are the ones with committed programs, with their value in struct
// seccomp_data.
var architectures = map[string]uint32{
	"amd64": unix.AUDIT_ARCH_X86_64,
	"arm64": unix.AUDIT_ARCH_AARCH64,
}

// x32Bit marks the calls of the x32 ABI.
const x32Bit = 0x40000000

// TestFiltersAreCompiled compiles the tables again and compares the result with
// the committed programs.
func TestFiltersAreCompiled(t *testing.T) {
	rig.Tier(t, rig.Merge) // it builds the generator with cgo
	t.Parallel()
	missing := func(reason string) {
		t.Helper()
		if os.Getenv("CI") != "" {
			t.Fatal(reason)
		}
		t.Skip(reason)
	}
	cc, err := exec.LookPath("gcc")
	if err != nil {
		missing("the generator needs a C compiler")
	}
	header := exec.CommandContext(t.Context(), cc, "-E", "-x", "c", "-")
	header.Stdin = strings.NewReader("#include <seccomp.h>\n")
	if err := header.Run(); err != nil {
		missing("the generator needs the headers of libseccomp")
	}
	generator := filepath.Join(t.TempDir(), "filtergen")
	build := exec.CommandContext(t.Context(), "go", "build", "-tags", "filtergen", "-o", generator, "./filtergen")
	build.Env = append(os.Environ(), "CGO_ENABLED=1")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("building the generator: %v\n%s", err, out)
	}
	out, err := exec.CommandContext(t.Context(), generator, "-check").CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.ExitCode() == 3 {
		t.Skipf("%s", out)
	} else if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestFilterTables compares every program with a naive reading of its table, for
// all call numbers, for numbers that do not exist, and for many arguments.
func TestFilterTables(t *testing.T) {
	t.Parallel()
	numbers := systemCalls(t)
	tables := seccomp.Tables()
	for arch := range architectures {
		committed := rig.Value(filepath.Glob(filepath.Join("filters", arch, "*.bpf")))
		rig.Is(t, len(committed), len(tables), "programs of %s", arch)
		names := map[uint32]string{}
		for name, number := range numbers[arch] {
			names[number] = name
		}
		for _, table := range tables {
			t.Run(arch+"/"+table.Name, func(t *testing.T) {
				t.Parallel()
				machine := newMachine(t, arch, Filter(table.Name))
				for number := range uint32(1100) {
					call := names[number]
					for _, args := range interestingArguments(table, call) {
						got, want := machine.run(t, number, args), reading(table, call, number, args)
						if got != want {
							t.Fatalf("%s (%d) with %#x: %v, want %v", call, number, args, got, want)
						}
					}
				}
				for _, number := range []uint32{x32Bit, x32Bit | 41, x32Bit | 520, 1 << 31, 0xffffffff} {
					rig.Is(t, machine.run(t, number, [6]uint64{}), errno(unix.ENOSYS), "call %#x", number)
				}
			})
		}
	}
}

// reading decides about a call by going through the table from top to bottom.
func reading(table seccomp.Table, call string, number uint32, args [6]uint64) verdict {
	if number > seccomp.MaxReviewed {
		return errno(unix.ENOSYS)
	}
	for _, rule := range table.Rules {
		if !slices.Contains(rule.Calls, call) {
			continue
		}
		if !slices.ContainsFunc(rule.When, func(c seccomp.Cond) bool { return args[c.Arg]&c.Mask != c.Value }) {
			return verdict(rule.Action)
		}
	}
	return verdict(table.Default)
}

// interestingArguments returns arguments for a call: zeros; for each rule, values
// that fulfil all its conditions, and the same with one bit changed; and noise.
func interestingArguments(table seccomp.Table, call string) [][6]uint64 {
	all := [][6]uint64{{}}
	for _, rule := range table.Rules {
		if !slices.Contains(rule.Calls, call) {
			continue
		}
		var args [6]uint64
		for _, c := range rule.When {
			args[c.Arg] |= c.Value
		}
		all = append(all, args)
		for _, c := range rule.When {
			for bit := range 64 {
				more := args
				more[c.Arg] ^= 1 << bit
				all = append(all, more)
			}
		}
	}
	noise := rand.New(rand.NewPCG(1, 2))
	for range 10 {
		var args [6]uint64
		for i := range args {
			args[i] = noise.Uint64() >> noise.UintN(64)
		}
		all = append(all, args)
	}
	return all
}

// TestFilterArchitecture: calls of another architecture end the process.
func TestFilterArchitecture(t *testing.T) {
	t.Parallel()
	for arch := range architectures {
		for _, table := range seccomp.Tables() {
			machine := newMachine(t, arch, Filter(table.Name))
			for name, foreign := range map[string]uint32{
				"i386": unix.AUDIT_ARCH_I386, "arm": unix.AUDIT_ARCH_ARM, "riscv64": unix.AUDIT_ARCH_RISCV64,
				"amd64": unix.AUDIT_ARCH_X86_64, "arm64": unix.AUDIT_ARCH_AARCH64,
			} {
				if name == arch {
					continue
				}
				machine.arch = foreign
				for number := range uint32(500) {
					if got := machine.run(t, number, [6]uint64{}); got != kill {
						t.Fatalf("%s/%s: call %d of %s: %v, want to be killed", arch, table.Name, number, name, got)
					}
				}
			}
		}
	}
}

// systemCalls returns the numbers of all calls by architecture and name. They come
// from x/sys, which has them from the kernel's headers, and so from another source
// than the programs, whose numbers come from libseccomp.
func systemCalls(t *testing.T) map[string]map[string]uint32 {
	t.Helper()
	dir := rig.Value(exec.CommandContext(t.Context(), "go", "list", "-f", "{{.Dir}}", "golang.org/x/sys/unix").Output())
	line := regexp.MustCompile(`(?m)^\tSYS_([A-Z0-9_]+) += ([0-9]+)$`)
	all := map[string]map[string]uint32{}
	for arch := range architectures {
		source := rig.Value(os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "zsysnum_linux_"+arch+".go")))
		all[arch] = map[string]uint32{}
		for _, match := range line.FindAllStringSubmatch(string(source), -1) {
			number := rig.Value(strconv.ParseUint(match[2], 10, 32))
			all[arch][strings.ToLower(match[1])] = uint32(number)
		}
		rig.Is(t, len(all[arch]) >= 300, true, "%d calls of %s found", len(all[arch]), arch)
	}
	return all
}

// verdict is what a program returns.
type verdict uint32

const (
	allow  = verdict(unix.SECCOMP_RET_ALLOW)
	notify = verdict(unix.SECCOMP_RET_USER_NOTIF)
	kill   = verdict(unix.SECCOMP_RET_KILL_PROCESS)
)

func errno(e unix.Errno) verdict { return verdict(unix.SECCOMP_RET_ERRNO | uint32(e)) }

func (a verdict) String() string {
	switch a {
	case allow:
		return "allow"
	case notify:
		return "notify"
	case kill:
		return "kill"
	}
	if uint32(a)&unix.SECCOMP_RET_ACTION_FULL == unix.SECCOMP_RET_ERRNO {
		return unix.ErrnoName(unix.Errno(uint32(a) & unix.SECCOMP_RET_DATA))
	}
	return fmt.Sprintf("verdict %#x", uint32(a))
}

// machine is a program in an interpreter.
type machine struct {
	vm   *bpf.VM
	arch uint32
}

// newMachine loads the committed program of any architecture.
func newMachine(t *testing.T, arch string, filter Filter) *machine {
	t.Helper()
	raw := rig.Value(os.ReadFile(filepath.Join("filters", arch, string(filter)+".bpf")))
	program := rig.Value(decodeProgram(raw))
	instructions := make([]bpf.Instruction, len(program))
	for i, raw := range program {
		instructions[i] = bpf.RawInstruction{Op: raw.Code, Jt: raw.Jt, Jf: raw.Jf, K: raw.K}.Disassemble()
	}
	vm := rig.Value(bpf.NewVM(instructions))
	return &machine{vm, architectures[arch]}
}

// run returns what the program answers. The program reads struct seccomp_data in
// 32-bit words. The kernel has them in the machine's byte order, but the
// interpreter is made for packets, and reads big endian.
func (m *machine) run(t *testing.T, number uint32, args [6]uint64) verdict {
	t.Helper()
	data := binary.BigEndian.AppendUint32(nil, number)
	data = binary.BigEndian.AppendUint32(data, m.arch)
	data = append(data, make([]byte, 8)...) // the instruction pointer
	for _, arg := range args {
		data = binary.BigEndian.AppendUint32(data, uint32(arg))
		data = binary.BigEndian.AppendUint32(data, uint32(arg>>32))
	}
	got := rig.Value(m.vm.Run(data))
	return verdict(got)
}

// TestFilterProgram: the embedded programs are those of this architecture, and a
// filter without a program is an error and not one that allows everything.
func TestFilterProgram(t *testing.T) {
	t.Parallel()
	for _, table := range seccomp.Tables() {
		program, err := Filter(table.Name).program()
		if err != nil || len(program) == 0 || len(program) > maxInstructions {
			t.Errorf("%s on %s has %d instructions, %v", table.Name, runtime.GOARCH, len(program), err)
		}
	}
	for _, name := range []Filter{"", "none", "../amd64/helper"} {
		if _, err := name.program(); !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, fs.ErrInvalid) {
			t.Errorf("a filter called %q: %v", name, err)
		}
	}
	for _, raw := range []string{"", "1234567", strings.Repeat("x", 8*(maxInstructions+1))} {
		rig.Is(t, rig.Err(decodeProgram([]byte(raw))) != nil, true, "%d bytes are refused", len(raw))
	}
}
