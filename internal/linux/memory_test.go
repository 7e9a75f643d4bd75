package linux

import (
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"testing"
)

// TestCgroupMemory: the least limit of all groups that can be seen counts.
func TestCgroupMemory(t *testing.T) {
	t.Parallel()
	const none = math.MaxInt64
	for _, tt := range []struct {
		name   string
		cgroup string
		mount  string            // ROOT FSTYPE OPTIONS of the one mounted at DIR
		limits map[string]string // below DIR
		want   int64
	}{
		{"own", "0::/a/b\n", "/ cgroup2 rw", map[string]string{"a/b/memory.max": "100\n"}, 100},
		{"above", "0::/a/b\n", "/ cgroup2 rw", map[string]string{"memory.max": "70\n", "a/memory.max": "80\n", "a/b/memory.max": "100\n"}, 70},
		{"between", "0::/a/b\n", "/ cgroup2 rw", map[string]string{"memory.max": "max\n", "a/memory.max": "80\n", "a/b/memory.max": "max\n"}, 80},
		{"unlimited", "0::/a/b\n", "/ cgroup2 rw", map[string]string{"a/memory.max": "max\n"}, none},
		{"namespace", "0::/\n", "/ cgroup2 rw", map[string]string{"memory.max": "90\n"}, 90},
		{"beside", "0::/a\n", "/ cgroup2 rw", map[string]string{"b/memory.max": "10\n"}, none},
		{"v1", "9:name=systemd:/x\n4:memory:/a/b\n", "/ cgroup rw,memory",
			map[string]string{"memory.limit_in_bytes": "9223372036854771712\n", "a/memory.limit_in_bytes": "60\n", "a/b/memory.limit_in_bytes": "65\n"}, 60},
		{"v1 in a container", "4:memory:/docker/1\n", "/docker/1 cgroup rw,memory", map[string]string{"memory.limit_in_bytes": "50\n"}, 50},
		{"v1 of several controllers", "4:cpu,memory:/a\n", "/ cgroup rw,cpu,memory", map[string]string{"a/memory.limit_in_bytes": "40\n"}, 40},
		{"another controller", "4:cpu:/a\n", "/ cgroup rw,cpu", map[string]string{"a/memory.limit_in_bytes": "40\n"}, none},
		{"not mounted", "0::/a\n", "/ tmpfs rw", map[string]string{"a/memory.max": "40\n"}, none},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			groups := filepath.Join(dir, "groups")
			write := func(path, text string) error {
				return errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(text), 0o600))
			}
			var root, kind, options string
			if _, err := fmt.Sscan(tt.mount, &root, &kind, &options); err != nil {
				t.Fatal(err)
			}
			err := errors.Join(write(dir+"/cgroup", tt.cgroup),
				write(dir+"/mountinfo", "35 24 0:30 "+root+" "+groups+" rw - "+kind+" "+kind+" "+options+"\n"))
			for file, text := range tt.limits {
				err = errors.Join(err, write(filepath.Join(groups, file), text))
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := cgroupMemory(dir+"/cgroup", dir+"/mountinfo"); got != tt.want {
				t.Errorf("%d, want %d", got, tt.want)
			}
		})
	}
}

// TestMemoryLimit: there is always a limit, if nothing else the memory of the
// machine.
func TestMemoryLimit(t *testing.T) {
	t.Parallel()
	if got := MemoryLimit(); got < 1<<20 || got == math.MaxInt64 {
		t.Errorf("%d bytes", got)
	}
}
