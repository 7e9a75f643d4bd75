package share

import (
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

const (
	// reserve is the number of descriptors that stay free for what is short: connections that were
	// just accepted, and programs that are being started.
	reserve = 64
	// maxStrangers is the most that [Strangers] returns.
	maxStrangers = 1024
)

// Descriptors are the descriptors that clients can keep open in this process: connections, sockets,
// files, the ends of pipes of commands, connections of proxies. Three quarters of the limit are for
// them, less the reserve. The last quarter is for strangers, and for what a request opens besides.
var Descriptors = sync.OnceValue(func() *Pool {
	return &Pool{What: "open descriptors (ulimit -n)", Max: max(Limit()/4*3-reserve, Limit()/8)}
})

// Connections are the connections of clients that have shown that they may connect.
var Connections = &Pool{What: "connections", Max: 4096}

// Strangers is how many connections may be open at once whose client is not known yet: one in 16 of
// the limit.
func Strangers() int { return int(min(max(Limit()/16, 8), maxStrangers)) }

// A Shortage warns that descriptors are used up. The zero value is ready for use, and its methods may
// be called concurrently.
type Shortage struct{ told atomic.Int64 }

// often is the shortest time between two warnings.
const often = time.Minute

// Note warns if an error says that no descriptor is left. What failed is the message.
func (s *Shortage) Note(log *slog.Logger, failed string, err error) {
	if !errors.Is(err, syscall.EMFILE) && !errors.Is(err, syscall.ENFILE) {
		return
	}
	now, last := time.Now().UnixNano(), s.told.Load()
	if last != 0 && now-last < int64(often) || !s.told.CompareAndSwap(last, now) {
		return
	}
	log.Warn(failed+": no descriptor is left; raise the limit (ulimit -n, LimitNOFILE=)", "limit", Limit(), "error", err)
}
