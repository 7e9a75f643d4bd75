package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// copySize is how large the file of BenchmarkCopy is, in bytes.
const copySize = 1 << 30

// BenchmarkCopy copies 1 GiB each way, in turns with reading the same by fs/readBlock, eight blocks
// outstanding (stream). A ratio above 1 is faster than that.
func BenchmarkCopy(b *testing.B) {
	dir, url := benchAgent(b)
	from := filepath.Join(dir, "from")
	f, err := os.Create(from)
	rig.Must(b, err)
	random, block := rand.NewChaCha8([32]byte{1}), make([]byte, 1<<20)
	for range copySize / len(block) {
		_, _ = random.Read(block) // it never fails
		_, err = f.Write(block)
		rig.Must(b, err)
	}
	rig.Must(b, f.Close())
	c, err := client.DialURL(b.Context(), url)
	rig.Must(b, err)
	defer c.Close()
	var up, down, stream time.Duration
	for b.Loop() {
		stream += took(b, func() { streamFile(b, c, from) })
		up += took(b, func() { run(b, rig.Agent(b), "cp", "--url", url, from, ":"+filepath.Join(dir, "up")) })
		stream += took(b, func() { streamFile(b, c, from) })
		down += took(b, func() { run(b, rig.Agent(b), "cp", "--url", url, ":"+from, filepath.Join(dir, "down")) })
		run(b, "cmp", from, filepath.Join(dir, "up"))
		run(b, "cmp", from, filepath.Join(dir, "down"))
		run(b, "rm", filepath.Join(dir, "up"), filepath.Join(dir, "down"))
	}
	rate := func(d time.Duration) float64 { return copySize * float64(b.N) / 1e6 / d.Seconds() }
	b.ReportMetric(rate(up), "up-MB/s")
	b.ReportMetric(rate(down), "down-MB/s")
	b.ReportMetric(rate(stream/2), "stream-MB/s")
	b.ReportMetric(rate(up)/rate(stream/2), "up/stream")
	b.ReportMetric(rate(down)/rate(stream/2), "down/stream")
}

// BenchmarkCopySmall copies 10,000 small files each way, in turns with cp -r.
func BenchmarkCopySmall(b *testing.B) {
	dir, url := benchAgent(b)
	from := filepath.Join(dir, "from")
	for i := range 10_000 {
		path := filepath.Join(from, fmt.Sprint(i/100), fmt.Sprint(i))
		rig.Must(b, os.MkdirAll(filepath.Dir(path), 0o755))
		rig.Must(b, os.WriteFile(path, make([]byte, i%4096), 0o644))
	}
	var up, down, here time.Duration
	to := filepath.Join(dir, "to")
	for b.Loop() {
		here += took(b, func() { run(b, "cp", "-r", from, to) })
		run(b, "rm", "-r", to)
		up += took(b, func() { run(b, rig.Agent(b), "cp", "--url", url, from, ":"+to) })
		run(b, "rm", "-r", to)
		here += took(b, func() { run(b, "cp", "-r", from, to) })
		run(b, "rm", "-r", to)
		down += took(b, func() { run(b, rig.Agent(b), "cp", "--url", url, ":"+from, to) })
		run(b, "diff", "-r", from, to)
		run(b, "rm", "-r", to)
	}
	b.ReportMetric(up.Seconds()/float64(b.N), "up-s")
	b.ReportMetric(down.Seconds()/float64(b.N), "down-s")
	b.ReportMetric(up.Seconds()/(here.Seconds()/2), "up/cp")
	b.ReportMetric(down.Seconds()/(here.Seconds()/2), "down/cp")
}

// benchAgent starts an agent, and makes a folder where there is memory instead of a disk.
func benchAgent(b *testing.B) (dir, url string) {
	b.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "copy-")
	if err != nil {
		dir = b.TempDir()
	}
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir, rig.Start(b, exec.Command(rig.Agent(b), "--listen", "ws://127.0.0.1:0")).Line(b)
}

func run(b *testing.B, name string, args ...string) {
	b.Helper()
	if out, err := exec.CommandContext(b.Context(), name, args...).CombinedOutput(); err != nil {
		b.Fatalf("%s %q: %v\n%s", name, args, err, out)
	}
}

func took(b *testing.B, do func()) time.Duration {
	b.Helper()
	start := time.Now()
	do()
	return time.Since(start)
}

// streamFile reads a file in blocks of 1 MiB, eight at once.
func streamFile(b *testing.B, c *client.Client, path string) {
	b.Helper()
	f, err := c.FS(nil).Open(b.Context(), path, protocol.OpenRead)
	rig.Must(b, err)
	defer f.Close()
	var next, got atomic.Int64
	var readers sync.WaitGroup
	for range 8 {
		readers.Go(func() {
			block := make([]byte, 1<<20)
			for {
				at := next.Add(int64(len(block))) - int64(len(block))
				if at >= copySize {
					return
				}
				n, _ := f.ReadAt(block, at) // what is missing is seen below
				got.Add(int64(n))
			}
		})
	}
	readers.Wait()
	if got.Load() != copySize {
		b.Fatalf("%d bytes were read", got.Load())
	}
}
