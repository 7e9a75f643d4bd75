package kernels

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/test/rig"
)

var (
	flagCache = flag.String("kernels", "", "folder for downloaded kernels; empty skips the tests (make kernels)")
	flagAccel = flag.String("accel", "tcg", "accelerator of qemu")
	// An emulated machine makes 15 to 50 connections in a second.
	flagConnects = flag.Int("connects", 5_000, "how many connections commands make through a managed network, on each kernel")
)

const (
	// bootTime is how long one virtual machine may take for all it does.
	bootTime = 30 * time.Minute
	// attempts are the tests of test/e2e that run in one.
	attempts = "^(TestEscape|TestEscapeDaemon|TestEscapeFiles)$"
)

// The packages of the kernels. The names of those that have a version in them
// are what these depend on.
const (
	linux61  = "linux-image-cloud-amd64"      // Debian 12's own: Linux 6.1, Landlock ABI 2
	linux612 = "linux-image-6.12-cloud-amd64" // of its backports: Linux 6.12, Landlock ABI 6
)

// hosts are the kernels, and what is taken away from them.
var hosts = []struct {
	name    string
	kernel  string // its package
	boot    string // more of the kernel's command line
	guest   []string
	missing string // layers, as agent doctor names them
	abi     int    // of Landlock
	means   string // E2E_MEANS of the attempts
}{
	{
		name: "6.1", kernel: linux61,
		missing: "", abi: 2, means: "unguarded",
	},
	{
		name: "6.1 without Landlock", kernel: linux61, boot: "lsm=yama",
		missing: "supervised landlock", means: "unguarded",
	},
	{
		name: "6.1 without a fresh procfs", kernel: linux61, guest: []string{"MASK_PROC=1"},
		missing: "procfs", abi: 2, means: "shared-unguarded",
	},
	{
		name: "6.1 without Landlock and a fresh procfs", kernel: linux61, boot: "lsm=yama", guest: []string{"MASK_PROC=1"},
		missing: "procfs supervised landlock", means: "shared-unguarded",
	},
	{
		name: "6.1 without user namespaces", kernel: linux61, guest: []string{"NO_USERNS=1"},
		missing: "userns mountns pidns procfs ipcns netns", abi: 2, means: "old-supervisor",
	},
	{
		name: "6.12 without user namespaces", kernel: linux612, guest: []string{"NO_USERNS=1"},
		missing: "userns mountns pidns procfs ipcns netns", abi: 6, means: "supervisor",
	},
	{
		name: "6.12", kernel: linux612,
		missing: "", abi: 6,
	},
}

// TestKernels tries the escapes on each kernel, and has commands make connections there.
func TestKernels(t *testing.T) {
	if *flagCache == "" {
		t.Skip("takes minutes: make kernels")
	}
	programs := buildPrograms(t)
	for _, h := range hosts {
		t.Run(h.name, func(t *testing.T) {
			image := vmlinuz(t, h.kernel)
			parameters := []string{h.boot, "E2E_MEANS=" + h.means}
			switch {
			case !slices.Contains(h.guest, "NO_USERNS=1"):
				parameters = append(parameters, "ONLY=namespaces", fmt.Sprint("CONNECTS=", *flagConnects))
			case h.abi >= 6: // a supervisor with an older Landlock refuses commands that have a network
				parameters = append(parameters, "ONLY=supervised", fmt.Sprint("CONNECTS=", *flagConnects))
			}
			said := boot(t, image, programs, append(parameters, h.guest...))
			judgeDoctor(t, said, h.missing, h.abi)
			passed := bytes.Count(said, []byte("--- PASS: "))
			if end := lineAfter(said, "guest: ended with "); end != "0" || passed == 0 {
				t.Errorf("the attempts ended with %q\n%s", end, said)
			}
			if end := lineAfter(said, "guest: connected with "); end != "0" && len(parameters) > 2 {
				t.Errorf("the connections ended with %q\n%s", end, said)
			}
			for line := range strings.Lines(string(said)) {
				if strings.Contains(line, "--- ") || strings.Contains(line, " connects in ") {
					t.Log(strings.TrimRight(line, "\r\n"))
				}
			}
		})
	}
}

// judgeDoctor compares what agent doctor said in the machine with what it has to say.
func judgeDoctor(t *testing.T, said []byte, missing string, abi int) {
	t.Helper()
	var d struct {
		Layers []struct {
			Name string
			OK   bool
			ABI  int
		}
		Policies []struct {
			Name      string
			Processes struct {
				OK     bool
				Layers []string
			}
		}
	}
	if err := json.Unmarshal([]byte(lineAfter(said, "guest: doctor ")), &d); err != nil {
		t.Fatalf("agent doctor: %v\n%s", err, said)
	}
	var got []string
	for _, l := range d.Layers {
		if !l.OK {
			got = append(got, l.Name)
		}
		if l.Name == "landlock" && l.ABI != abi {
			t.Errorf("Landlock ABI %d, want %d", l.ABI, abi)
		}
	}
	rig.Is(t, strings.Join(got, " "), missing, "missing")
	for _, p := range d.Policies {
		t.Logf("%s: %v %v", p.Name, p.Processes.OK, p.Processes.Layers)
	}
}

// lineAfter returns the rest of the line that begins with a mark.
func lineAfter(said []byte, mark string) string {
	for line := range strings.Lines(string(said)) {
		if rest, ok := strings.CutPrefix(line, mark); ok {
			return strings.TrimSpace(rest)
		}
	}
	return ""
}

// vmlinuz returns a kernel of that package, downloaded once.
func vmlinuz(t *testing.T, name string) string {
	t.Helper()
	depends, err := exec.CommandContext(t.Context(), "apt-cache", "depends", name).Output()
	rig.Must(t, err)
	_, image, ok := strings.Cut(string(depends), "Depends: ")
	if !ok {
		t.Fatalf("%s depends on no kernel: %s", name, depends)
	}
	image, _, _ = strings.Cut(image, "\n")
	root := filepath.Join(*flagCache, image)
	pattern := filepath.Join(root, "boot", "vmlinuz-*")
	if found, _ := filepath.Glob(pattern); len(found) == 1 {
		return found[0]
	}
	dir := t.TempDir()
	run(t, dir, nil, "apt-get", "download", image)
	rig.Must(t, os.MkdirAll(*flagCache, 0o755))
	run(t, dir, nil, "dpkg-deb", "-x", one(t, filepath.Join(dir, "*.deb")), root)
	return one(t, pattern)
}

// one returns the only file with a name like that.
func one(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	if err != nil || len(found) != 1 {
		t.Fatalf("%s: %v, %v", pattern, found, err)
	}
	return found[0]
}

// buildPrograms returns the initramfs of the machines: static programs alone.
func buildPrograms(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	module, err := filepath.Abs("../..")
	rig.Must(t, err)
	static := append(os.Environ(), "CGO_ENABLED=0", "GOARCH=amd64")
	files := []file{}
	for _, p := range []struct {
		name  string
		build []string
	}{
		{"init", []string{"build", "./test/kernels/guest"}},
		{"agent", []string{"build", "./cmd/agent"}},
		{"escape", []string{"build", "./test/e2e/escape"}},
		{"e2e.test", []string{"test", "-c", "./test/e2e"}},
		{"netbench", []string{"build", "./test/netbench"}},
	} {
		path := filepath.Join(dir, p.name)
		run(t, module, static, "go", slices.Concat(p.build[:len(p.build)-1], []string{"-trimpath", "-ldflags", "-s -w", "-o", path}, p.build[len(p.build)-1:])...)
		files = append(files, file{p.name, path})
	}
	image := filepath.Join(dir, "initramfs")
	rig.Must(t, writeImage(image, files))
	return image
}

// boot runs a virtual machine to its end, and returns what it has written to its serial console.
// The kernel hands parameters with a "=" that it does not know to /init as its environment.
func boot(t *testing.T, kernel, initramfs string, parameters []string) []byte {
	t.Helper()
	line := "console=ttyS0 quiet panic=-1 E2E_TESTS=" + attempts + " " + strings.Join(parameters, " ")
	cmd := exec.CommandContext(t.Context(), "qemu-system-x86_64", "-accel", *flagAccel, "-cpu", "max,-arch-capabilities", "-smp", "2", "-m", "1024",
		"-nodefaults", "-nographic", "-no-reboot", "-serial", "stdio", "-kernel", kernel, "-initrd", initramfs, "-append", line)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	late := time.AfterFunc(bootTime, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	start := time.Now()
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v\n%s", err, &said)
	}
	t.Logf("%s: %v", filepath.Base(kernel), time.Since(start).Round(time.Second))
	return bytes.ReplaceAll(said.Bytes(), []byte("\r"), nil)
}

// run runs a command, which has to succeed.
func run(t *testing.T, dir string, env []string, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	cmd.Dir, cmd.Env = dir, env
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatal(fmt.Errorf("%s %v: %w\n%s", name, args, err, out))
	}
}
