package rendezvous

import (
	"runtime/debug"
	"sync"
	"time"
)

const (
	// calm is how long nothing connects before memory is given back.
	calm = time.Second
	// storm is after how many websockets that is worth what it costs, tens of
	// milliseconds.
	storm = 200
)

// aftermath gives memory back to the system after many websockets were opened at once:
// stacks that grew and buffers of net/http, together more than an idle websocket
// takes. The runtime alone would take minutes. The zero value is ready.
type aftermath struct {
	mu     sync.Mutex // protects the fields below
	opened int        // websockets since memory was given back
	timer  *time.Timer
}

// connected counts a websocket that was opened.
func (a *aftermath) connected() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.opened++
	if a.timer == nil {
		a.timer = time.AfterFunc(calm, a.giveBack)
		return
	}
	a.timer.Reset(calm)
}

func (a *aftermath) giveBack() {
	a.mu.Lock()
	worth := a.opened >= storm
	if worth {
		a.opened = 0
	}
	a.mu.Unlock()
	if worth {
		// Twice: what lies in pools survives once.
		debug.FreeOSMemory()
		debug.FreeOSMemory()
	}
}

// stop ends the timer.
func (a *aftermath) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.timer != nil {
		a.timer.Stop()
	}
}
