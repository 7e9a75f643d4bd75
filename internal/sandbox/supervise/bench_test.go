package supervise

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// BenchmarkCalls has the median time of calls, bare and in each level.
func BenchmarkCalls(b *testing.B) {
	for _, level := range []sandbox.Level{sandbox.NoLevel, sandbox.LevelWrites, sandbox.LevelMetadata} {
		for line := range strings.Lines(timed(b, level, max(b.N, 3000))) {
			name, ns, _ := strings.Cut(strings.TrimSpace(line), " ")
			value, err := strconv.ParseFloat(ns, 64)
			if err != nil {
				b.Fatal(line)
			}
			b.ReportMetric(value, name+"-"+cmp.Or(level.String(), "bare")+"-ns")
		}
	}
}

func timed(b *testing.B, level sandbox.Level, n int) string {
	dir, err := os.MkdirTemp(devShm, "supervise-bench-") // without a disk
	if err != nil {
		b.Skip(err)
	}
	defer os.RemoveAll(dir)
	return supervised(b, Config{Policy: workspace(b, dir)}, level, "timed", dir, strconv.Itoa(n))
}

var _ = child("timed", func(t rig.T, args []string) {
	rig.Must(t, unix.Chdir(args[0]))
	n := rig.Value(strconv.Atoi(args[1]))
	rig.Must(t, unix.Mkdir("d", 0o755))
	open := func(path string, flags int, mode uint32) func() (int, error) {
		return func() (int, error) { return unix.Open(path, flags, mode) }
	}
	var st unix.Stat_t
	for _, c := range []struct {
		name string
		do   func() (int, error)
		then func(fd int)
	}{
		// The supervisor lets the kernel go on with it: the floor.
		{"umask", func() (int, error) { return -1 - unix.Umask(0o22), nil }, nil},
		{"create", open("f", unix.O_RDWR|unix.O_CREAT, 0o644), func(int) { _ = unix.Unlink("f") }},
		{"create-x", open("f", unix.O_RDWR|unix.O_CREAT, 0o755), nil},
		{"write", open("f", unix.O_RDWR, 0), nil},
		{"write-abs", open(filepath.Join(args[0], "f"), unix.O_RDWR, 0), nil},
		{"read", open("f", unix.O_RDONLY, 0), nil},
		{"null", open("/dev/null", unix.O_RDWR, 0), nil},
		{"refused", open("/etc/passwd", unix.O_RDWR, 0), nil},
		{"stat", func() (int, error) { return -1, unix.Lstat("f", &st) }, nil},
		{"chmod", func() (int, error) { return -1, unix.Chmod("f", 0o600) }, nil},
		{"mkdir", func() (int, error) { return -1, unix.Mkdir("d/e", 0o700) }, func(int) { _ = unix.Rmdir("d/e") }},
		{"chdir", func() (int, error) { return -1, unix.Chdir(".") }, nil},
	} {
		took := make([]time.Duration, n)
		for i := range took {
			begun := time.Now()
			fd, _ := c.do()
			took[i] = time.Since(begun)
			if fd >= 0 {
				unix.Close(fd)
			}
			if c.then != nil {
				c.then(fd)
			}
		}
		slices.Sort(took)
		fmt.Println(c.name, took[n/2].Nanoseconds())
	}
})
