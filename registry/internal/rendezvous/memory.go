package rendezvous

import (
	"runtime/debug"
	"sync"
	"time"
)

const (
	// calm is the time without a new websocket after which memory is given back.
	calm = time.Second
	// storm is the number of new websockets from which on giving memory back is worth
	// its price, tens of milliseconds of the processor.
	storm = 200
)

// aftermath gives memory back to the system after many websockets were opened at once.
// Each upgrade leaves a stack that grew and buffers of net/http behind, together more
// than an idle websocket takes, and the runtime alone would take minutes to give them
// back. The zero value is ready.
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

// giveBack runs when nothing has connected for calm.
func (a *aftermath) giveBack() {
	a.mu.Lock()
	worth := a.opened >= storm
	if worth {
		a.opened = 0
	}
	a.mu.Unlock()
	if worth {
		// Twice, since what lies in a sync.Pool survives the first collection.
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
