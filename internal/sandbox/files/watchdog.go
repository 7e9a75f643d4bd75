package files

import (
	"fmt"
	"time"
)

// A helper that hangs is found out without a cost for each request: the watch
// is set when a request is sent and none is set, and looks when it fires
// whether anything has come since. If not, and something is outstanding, it
// pings; the helper has a reader that does nothing but hear that.

// watchLocked sets the watch unless it is.
func (w *worker) watchLocked() {
	if w.watching {
		return
	}
	w.watching, w.pinged, w.watched = true, false, w.heard
	w.running.Add(1) // until it fires or is stopped for good
	if w.watch == nil {
		w.watch = time.AfterFunc(w.quiet, w.look)
		return
	}
	w.watch.Reset(w.quiet)
}

// look runs when the watch fires: it pings a helper that has said nothing, and
// ends one that has not answered a ping.
func (w *worker) look() {
	defer w.running.Done()
	ping, hung := w.decide()
	switch {
	case hung:
		w.fail(fmt.Errorf("the helper has not answered a ping for %v", w.hang))
	case ping:
		if err := w.write(request{op: opPing}); err != nil {
			w.lost("sending a ping", err)
		}
	}
}

// decide reports whether the helper is to be pinged, or has hung, and sets the
// watch again if it goes on.
func (w *worker) decide() (ping, hung bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.watching = false
	if w.broken != nil || w.free == 1<<maxInFlight-1 {
		return false, false
	}
	if w.heard == w.watched && w.pinged {
		return false, true
	}
	ping = w.heard == w.watched
	w.watching, w.pinged, w.watched = true, ping, w.heard
	w.running.Add(1)
	if ping {
		w.watch.Reset(w.hang)
	} else {
		w.watch.Reset(w.quiet)
	}
	return ping, false
}
