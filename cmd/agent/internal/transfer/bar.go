package transfer

import (
	"fmt"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/execagent/execagent/cmd/internal/program"
)

const (
	// refresh is the time between two drawings, late the time before the first drawing.
	refresh, late = 200 * time.Millisecond, 500 * time.Millisecond
	// maxBar bounds the bar itself, in characters.
	maxBar = 40
	// longest is the longest remaining time that is shown, in seconds.
	longest = 999 * 3600
)

// bar shows the progress of a copy on a terminal. A nil bar shows nothing.
type bar struct {
	out      *os.File
	terminal *program.Terminal
	color    bool
	started  time.Time
	stop     chan struct{}
	drawing  sync.WaitGroup

	mu          sync.Mutex // guards the fields below
	done, total int64      // bytes; total is -1 while it is not known
	shown       bool       // the line is on the screen
}

// newBar returns a bar, or nil where standard error is no terminal. The caller calls end.
func newBar(sys program.System) *bar {
	terminal := program.NewTerminal(sys.Stderr)
	if terminal == nil {
		return nil
	}
	none, set := sys.Lookup("NO_COLOR")
	b := &bar{out: sys.Stderr, terminal: terminal, color: !set || none == "", started: time.Now(), stop: make(chan struct{}), total: -1}
	b.drawing.Go(func() {
		tick := time.NewTicker(refresh)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
			case <-b.stop:
				return
			}
			if time.Since(b.started) >= late {
				b.mu.Lock()
				b.drawLocked(time.Since(b.started))
				b.mu.Unlock()
			}
		}
	})
	return b
}

// progress notes that n more bytes have been copied, of total.
func (b *bar) progress(n, total int64) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.done, b.total = b.done+n, total
}

// clear removes the line, so that another line can be written. The next drawing shows it again.
func (b *bar) clear() {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shown {
		_, _ = fmt.Fprint(b.out, "\r\x1b[K") // without a bar, the copy goes on
		b.shown = false
	}
}

// end ends the bar. After a successful copy the line stays, if it was shown.
func (b *bar) end(succeeded bool) {
	if b == nil {
		return
	}
	close(b.stop)
	b.drawing.Wait()
	if !succeeded {
		b.clear()
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.shown {
		b.total = b.done
		b.drawLocked(time.Since(b.started))
		_, _ = fmt.Fprintln(b.out)
	}
}

func (b *bar) drawLocked(took time.Duration) {
	_, cols, ok := b.terminal.Size()
	if !ok {
		cols = 80
	}
	_, _ = fmt.Fprint(b.out, "\r"+line(b.done, b.total, took, int(cols), b.color)+"\x1b[K\r")
	b.shown = true
}

// line returns the bar for a terminal of this many columns.
func line(done, total int64, took time.Duration, cols int, color bool) string {
	rate := int64(float64(done) / max(took.Seconds(), 0.001))
	text := fmt.Sprintf("%s  %s/s", size(done), size(rate))
	if total <= 0 {
		return clip(text, cols)
	}
	done = min(done, total)
	part := float64(done) / float64(total)
	text = fmt.Sprintf("%3d%%  %s of %s  %s/s", int(100*part), size(done), size(total), size(rate))
	if done < total && rate > 0 {
		text += "  " + clock(time.Duration(min(float64(total-done)/float64(rate), longest)*float64(time.Second))) + " left"
	} else if done == total {
		text += "  in " + clock(took)
	}
	width := min(cols-len(text)-4, maxBar)
	if width < 8 {
		return clip(text, cols)
	}
	filled := int(float64(width) * part)
	full, rest := strings.Repeat("=", filled), strings.Repeat(" ", width-filled)
	if color {
		full = "\x1b[32m" + full + "\x1b[0m"
	}
	return "[" + full + rest + "] " + text
}

// clip leaves the last column free, because a line that fills it would wrap.
func clip(text string, cols int) string { return text[:min(len(text), max(cols-1, 0))] }

// size returns a number of bytes for people.
func size(n int64) string {
	if n < 1000 {
		return fmt.Sprintf("%d B", n)
	}
	value, unit := float64(n), ""
	for _, unit = range []string{"kB", "MB", "GB", "TB", "PB"} {
		if value /= 1000; value < 999.95 {
			break
		}
	}
	return fmt.Sprintf("%.1f %s", value, unit)
}

// clock returns a duration for people, in whole seconds.
func clock(d time.Duration) string {
	s := int64(d.Round(time.Second) / time.Second)
	if s < 3600 {
		return fmt.Sprintf("%d:%02d", s/60, s%60)
	}
	return fmt.Sprintf("%d:%02d:%02d", s/3600, s/60%60, s%60)
}
