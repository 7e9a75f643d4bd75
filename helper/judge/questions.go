package judge

import (
	"encoding/binary"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/pack"
)

// Questions is the agent's end of the socket of a [Judge]. Its methods may be called at once.
type Questions struct{ socket int }

// Pair returns both ends. The caller closes the judge's after the process has it.
func Pair() (ours *Questions, theirs int, err error) {
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, -1, err
	}
	return &Questions{socket: ends[0]}, ends[1], nil
}

// Serve calls take for each event, one after the other, until the judge is gone, sends what is no
// event, or [Questions.Hang] is called.
func (q *Questions) Serve(take func(Event)) {
	b := make([]byte, maxPacket)
	for {
		n, err := unix.Read(q.socket, b)
		if err == unix.EINTR {
			continue
		}
		if err != nil || n == 0 {
			return
		}
		e, err := decode(b[:n])
		if err != nil {
			return
		}
		take(e)
	}
}

// Answer answers the question of an event that is [Asked]. A judge that is gone needs no answer.
func (q *Questions) Answer(id uint32, allowed bool) {
	b := append(binary.LittleEndian.AppendUint32(nil, id), pack.Bool(allowed))
	_ = unix.Send(q.socket, b, unix.MSG_NOSIGNAL|unix.MSG_DONTWAIT)
}

// Hang ends Serve, and refuses what waits.
func (q *Questions) Hang() { _ = unix.Shutdown(q.socket, unix.SHUT_RDWR) }

// Close gives the descriptor back, once Serve has returned.
func (q *Questions) Close() { unix.Close(q.socket) }
