package rendezvous

import (
	"runtime/debug"
	"sync"
	"time"
)

const (
	// calm is the time without a new websocket after which memory is returned.
	calm = time.Second
	// storm is the number of new websockets after which memory is returned. For fewer
	// websockets the cost, tens of milliseconds of processor time, is too high.
	storm = 200
)

// aftermath returns memory to the system after many websockets were opened at once.
// Each upgrade leaves a stack that grew and buffers of net/http behind. Together they
// are larger than an idle websocket, and the runtime alone would take minutes to return
// them. The zero value is ready for use.
type aftermath struct {
	mu     sync.Mutex // protects the fields below
	opened int        // websockets since memory was returned
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

// giveBack runs when no websocket was opened for calm.
func (a *aftermath) giveBack() {
	a.mu.Lock()
	worth := a.opened >= storm
	if worth {
		a.opened = 0
	}
	a.mu.Unlock()
	if worth {
		// Twice, because the content of a sync.Pool survives the first collection.
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
