package files

import (
	"fmt"
	"time"
)

// The watch detects a helper that hangs, without a cost for each request. It is a
// timer that is set when a request is sent and the timer is not set. When the timer
// fires while requests are in flight, and no packet has come since it was set, the
// watch sends a ping. The helper always has a free reader that answers a ping.

// watchLocked sets the watch, if it is not set.
func (w *worker) watchLocked() {
	if w.watching {
		return
	}
	w.watching, w.pinged, w.watched = true, false, w.heard
	w.running.Add(1) // until it fires or is stopped by fail
	if w.watch == nil {
		w.watch = time.AfterFunc(w.quiet, w.look)
		return
	}
	w.watch.Reset(w.quiet)
}

// look runs when the watch fires. It pings a helper that has sent nothing, and
// ends a helper that has not answered a ping.
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

// decide reports whether to ping the helper, and whether the helper hangs. It sets the
// watch again if requests are in flight and the helper does not hang.
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
