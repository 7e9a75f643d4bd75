package execcheck

import (
	"encoding/binary"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/test/rig"
)

// TestMain is also the main of the supervisors that tests start. The process of the
// test itself cannot be one: it waits for children in its own way.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == supervisorArg {
		os.Exit(supervisorMain())
	}
	sandboxtest.Main(m) // inC is in the temporary directory
}

// missing ends a test for which the machine lacks something. In CI it fails.
func missing(t testing.TB, reason string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal(reason)
	}
	t.Skip(reason)
}

// inC is a program that executes others in all ways.
var inC = rig.CProgram{Source: "testdata/programs.c"}

// programs returns the path of inC.
func programs(t testing.TB) string {
	t.Helper()
	if _, err := exec.LookPath("gcc"); err != nil {
		missing(t, "the programs of these tests are in C, and there is no gcc")
	}
	return inC.Path(t)
}

// write writes a file that may be executed.
func write(t testing.TB, path string, content []byte) {
	t.Helper()
	rig.Must(t, rig.WriteProgram(path, content))
}

// marksFD is where the smallest programs leave their mark.
const marksFD = 3

// smallest returns a static program that writes one byte to marksFD with its first
// instructions, and ends with that code: the byte mark, or the first one of its
// argument 1 if mark is 0. It makes no call before.
func smallest(t testing.TB, mark, code byte) []byte {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("the smallest program is written for amd64")
	}
	const base, headers = 0x400000, 64 + 56
	text := []byte{
		0xb8, 1, 0, 0, 0, // mov eax, 1 (write)
		0xbf, marksFD, 0, 0, 0, // mov edi, 3
		0xba, 1, 0, 0, 0, // mov edx, 1
	}
	if mark == 0 {
		text = append(text, 0x48, 0x8b, 0x74, 0x24, 16) // mov rsi, [rsp+16] (argv[1])
	} else {
		text = append(text, 0x48, 0x8d, 0x35, 14, 0, 0, 0) // lea rsi, [rip+14] (the byte behind the end)
	}
	text = append(text,
		0x0f, 0x05, // syscall
		0xb8, 60, 0, 0, 0, // mov eax, 60 (exit)
		0xbf, code, 0, 0, 0, // mov edi, code
		0x0f, 0x05, // syscall
		mark)
	size := uint64(headers + len(text))
	b := []byte{0x7f, 'E', 'L', 'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	le := binary.LittleEndian
	b = le.AppendUint16(b, 2)    // an executable file
	b = le.AppendUint16(b, 0x3e) // of amd64
	b = le.AppendUint32(b, 1)
	b = le.AppendUint64(b, base+headers) // where it begins
	b = le.AppendUint64(b, 64)           // the program headers
	b = le.AppendUint64(b, 0)
	b = le.AppendUint32(b, 0)
	for _, n := range []uint16{64, 56, 1, 0, 0, 0} {
		b = le.AppendUint16(b, n)
	}
	b = le.AppendUint32(b, 1) // one segment to load
	b = le.AppendUint32(b, 5) // to be read and executed
	for _, n := range []uint64{0, base, base, size, size, 0x1000} {
		b = le.AppendUint64(b, n)
	}
	return append(b, text...)
}
