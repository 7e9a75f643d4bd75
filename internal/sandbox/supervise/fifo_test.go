package supervise

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/sandbox"
	"github.com/execagent/execagent/test/rig"
)

// TestFIFO: an open of a FIFO waits for the other end, and other calls do not wait
// for it. If its caller ends, so does the waiting.
func TestFIFO(t *testing.T) {
	t.Parallel()
	dir := rig.Value(filepath.EvalSymlinks(t.TempDir()))
	fifo := filepath.Join(dir, "fifo")
	rig.Must(t, unix.Mkfifo(fifo, 0o600))
	c := Config{Policy: workspace(t, dir)}
	rig.Is(t, supervised(t, c, sandbox.LevelMetadata, "fifo", fifo), "", "out")
	rig.Is(t, supervised(t, c, sandbox.LevelMetadata, "fifo-left", fifo), "", "out")
	// Nobody is left who reads.
	sandboxtest.Eventually(t, "nobody reads", func() bool {
		fd, err := unix.Open(fifo, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err == nil {
			unix.Close(fd)
		}
		return err == unix.ENXIO
	})
}

var _ = child("fifo", func(t rig.T, args []string) {
	for own, other := range map[int]int{unix.O_RDONLY: unix.O_WRONLY, unix.O_WRONLY: unix.O_RDONLY} {
		// The supervisor closes its own descriptor a moment after the command got one.
		for {
			fd, err := unix.Open(args[0], unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
			if err == unix.ENXIO {
				break
			}
			unix.Close(fd)
		}
		ended := make(chan int)
		begun := time.Now()
		go func() { // a thread without the filter
			time.Sleep(50 * time.Millisecond)
			fd, err := unix.Open(args[0], other|unix.O_CLOEXEC, 0)
			if err != nil {
				fmt.Println("the other end:", err)
			}
			ended <- fd
		}()
		fd := rig.Value(unix.Open(args[0], own|unix.O_CLOEXEC, 0))
		if waited := time.Since(begun); waited < 50*time.Millisecond {
			t.Errorf("it has not waited, only %v", waited)
		}
		rig.Is(t, rig.Value(unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0))&unix.O_NONBLOCK, 0, "O_NONBLOCK")
		unix.Close(<-ended)
		unix.Close(fd)
	}
	rig.Is[error](t, rig.Err(unix.Open(args[0], unix.O_WRONLY|unix.O_NONBLOCK, 0)), unix.ENXIO, "without waiting")
	unix.Close(rig.Value(unix.Open(args[0], unix.O_RDWR, 0))) // for both
})

var _ = child("fifo-left", func(t rig.T, args []string) {
	go func() {
		time.Sleep(50 * time.Millisecond)
		os.Exit(0)
	}()
	rig.Must(t, rig.Err(unix.Open(args[0], unix.O_RDONLY, 0)))
})
