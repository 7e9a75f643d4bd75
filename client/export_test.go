package client

// Held tells how many events wait for the consumer of a process, or for an earlier event,
// and how many bytes of output they are.
func (p *Process) Held() (queued, queuedBytes, pending, pendingBytes int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	queued, queuedBytes = p.events.Held()
	return queued, queuedBytes, len(p.order.pending), p.order.bytes
}
