package agent

import (
	"bytes"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/execagent/execagent/internal/buffer"
	"github.com/execagent/execagent/test/rig"
)

// TestRetainTotal ends many processes of 1 MiB: what all of them keep stays
// within RetainTotalBytes, the longest-ended have lost theirs, and the memory
// is bounded too (rpc.md 4.8).
func TestRetainTotal(t *testing.T) {
	processes := 64
	if rig.Runs(rig.Nightly) {
		processes = 1000 // a gigabyte
	}
	const (
		total  = 16 << 20
		atOnce = 8
		slack  = 96 << 20 // of heap, for the race detector and for buffers in use
		// Each stream may be one chunk over while the oldest output goes.
		over = atOnce * (64<<10 + 64)
	)
	// No process is forgotten, however long the test takes.
	r := newHarness(t, Config{RetainTotalBytes: total, SessionTTL: time.Hour})
	a := r.attach("")
	a.drop()
	// Messages are not decoded: with the race detector that would take minutes.
	conn, _ := r.dial()
	var before runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)

	slots := make(chan struct{}, atOnce)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for closed := 0; closed < processes; {
			message, err := conn.Read()
			if err != nil {
				t.Error(err)
				return
			}
			switch {
			case bytes.HasPrefix(message, []byte(`{"method":"process/closed"`)):
				closed++
				<-slots
				used := r.agent.budget.Used()
				rig.Is(t, used <= total+over, true, "%d bytes are kept after %d processes, the limit is %d", used, closed, total)
			case bytes.HasPrefix(message, []byte(`{"error"`)):
				t.Errorf("%s", message)
				closed++
				<-slots
			}
			buffer.Recycle(message)
		}
	}()
	send := func(format string, args ...any) {
		rig.Check(t, conn.Write(fmt.Appendf(nil, format, args...)))
	}
	send(`{"id":"","method":"initialize","params":{"clientName":"t","resumeSessionId":%q}}`, a.session)
	send(`{"method":"initialized"}`)
	for i := range processes {
		slots <- struct{}{}
		send(`{"id":%d,"method":"process/start","params":{"processId":"%[1]d","argv":["/usr/bin/head","-c","1048576","/dev/zero"],"cwd":"file:///","env":{},"tty":false}}`, i)
	}
	waitFor(t, ended, "the end of all processes")

	var after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&after)
	if after.HeapInuse > before.HeapInuse+total+slack {
		t.Errorf("the heap grew from %d to %d MiB, want at most %d more", before.HeapInuse>>20, after.HeapInuse>>20, (total+slack)>>20)
	}
	got := r.process(a.session, "0").Read(0, nil)
	rig.Is(t, len(got.Chunks) == 0 && got.Closed, true, "the longest-ended process still has %d chunks", len(got.Chunks))
	rig.Is(t, len(r.process(a.session, fmt.Sprint(processes-1)).Read(0, nil).Chunks) > 0, true, "the last process has its output")
}
