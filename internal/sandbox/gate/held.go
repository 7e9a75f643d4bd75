package gate

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A command with transparent connections connects to any address. Its supervisor holds each
// connect(2) until the agent has judged and dialled the destination. Held is the agent's end, and
// [Holder] the supervisor's.

const (
	// MaxAsked bounds the connections of one command that are held. Further ones fail with EAGAIN.
	MaxAsked = 512
	// patience is how long a connection may be held. It is less than the time after which the kernel
	// itself gives up, which sends its last SYN of the usual six after 63 s and waits 64 s more.
	patience = 120 * time.Second
)

// Prepared is a connection to a destination. It ends by Join or by Close, which may be called after
// each other.
type Prepared interface {
	// Join joins the command's connection with the prepared one. It does not wait for their end.
	Join(conn *net.TCPConn)
	Close()
}

// Resolver answers a command's questions about names, and closes the sockets at its end.
type Resolver interface {
	Datagrams(conn net.PacketConn)
	Packets(conn net.Conn)
	Listen(l net.Listener)
}

// Handler says what happens with the connections of a command.
type Handler struct {
	// Prepare judges and dials. Its context ends when the command gives up, or after two minutes. The
	// errno is the one that the command gets.
	Prepare  func(ctx context.Context, to, from netip.AddrPort) (Prepared, syscall.Errno)
	Resolver Resolver
}

// Held is the agent's end of the held connections of one command.
type Held struct {
	conn *net.UnixConn
	work sync.WaitGroup

	mu    sync.Mutex
	asked map[uint32]*asked
}

// asked is one held connection.
type asked struct {
	giveUp   context.CancelFunc
	prepared Prepared // nil until it is dialled
}

// Hold adds to the gate the means for held connections. Its supervisor uses the descriptor theirs for
// a [Holder]; the caller closes theirs here. It is called before the gate is used.
func (g *Gate) Hold() (theirs *os.File, err error) {
	pair, theirs, err := seqpacket()
	if err != nil {
		return nil, err
	}
	made, err := net.FileConn(pair)
	_ = pair.Close() // made has its own
	if err != nil {
		_ = theirs.Close()
		return nil, os.NewSyscallError("dup", err)
	}
	g.held = &Held{conn: made.(*net.UnixConn), asked: map[uint32]*asked{}}
	return theirs, nil
}

// Held returns the agent's end of the held connections; nil if there are none.
func (g *Gate) Held() *Held { return g.held }

// close ends all held connections, and waits for their end. It may be called on nil.
func (h *Held) close() {
	if h == nil {
		return
	}
	_ = h.conn.Close()
	h.work.Wait()
}

// Serve serves the command, until the gate is closed or the supervisor has ended. It does not wait
// for that.
func (h *Held) Serve(with Handler) {
	h.work.Go(func() {
		defer h.end()
		b, control := make([]byte, noteSize+1), make([]byte, unix.CmsgSpace(4*resolverSockets))
		for {
			size, controlSize, _, _, err := h.conn.ReadMsgUnix(b, control)
			if err != nil || size == 0 {
				return
			}
			files := rights(control[:controlSize])
			n, ok := decodeNote(b[:size])
			ok = ok && len(files) == n.descriptors() && h.take(n, files, with)
			for _, f := range files {
				_ = f.Close() // what uses one has its own
			}
			if !ok {
				return
			}
		}
	})
}

// take handles a packet. It returns false if the packet has no meaning.
func (h *Held) take(n note, files []*os.File, with Handler) bool {
	switch n.kind {
	case ask:
		return h.ask(n, with)
	case left:
		if a := h.remove(n.number); a != nil {
			a.end()
		}
		return true
	case joined:
		a := h.remove(n.number)
		if a == nil || a.prepared == nil {
			return false
		}
		a.giveUp()
		conn, err := net.FileConn(files[0])
		if tcp, ok := conn.(*net.TCPConn); ok {
			a.prepared.Join(tcp)
			return true
		}
		if err == nil {
			_ = conn.Close()
		}
		a.prepared.Close()
		return err != nil // descriptors may be short; a socket of another kind has no meaning
	case questions:
		if conn, err := net.FileConn(files[0]); err == nil {
			with.Resolver.Packets(conn)
		}
		return true
	case resolvers:
		return serveResolvers(files, with.Resolver) == nil
	}
	return false
}

// serveResolvers serves the resolver's sockets in the namespace of the command.
func serveResolvers(files []*os.File, r Resolver) error {
	for i, f := range files {
		if i%2 == 0 {
			conn, err := net.FilePacketConn(f)
			if err != nil {
				return err
			}
			r.Datagrams(conn)
			continue
		}
		l, err := net.FileListener(f)
		if err != nil {
			return err
		}
		r.Listen(l)
	}
	return nil
}

// ask has a connection prepared, and answers.
func (h *Held) ask(n note, with Handler) bool {
	ctx, giveUp := context.WithTimeout(context.Background(), patience)
	a := &asked{giveUp: giveUp}
	h.mu.Lock()
	_, known := h.asked[n.number]
	full := len(h.asked) >= MaxAsked
	if !known && !full {
		h.asked[n.number] = a
	}
	h.mu.Unlock()
	if known || full {
		giveUp()
		if full && !known {
			h.answer(n.number, syscall.EAGAIN)
		}
		return !known
	}
	h.work.Go(func() {
		prepared, errno := with.Prepare(ctx, n.to, n.from)
		if errors.Is(ctx.Err(), context.DeadlineExceeded) && errno != 0 {
			errno = syscall.ETIMEDOUT
		}
		h.mu.Lock()
		held := h.asked[n.number] == a
		if held && errno == 0 {
			a.prepared = prepared
		} else if held {
			delete(h.asked, n.number)
		}
		h.mu.Unlock()
		switch {
		case held:
			h.answer(n.number, errno)
		case errno == 0:
			prepared.Close()
		}
		if errno != 0 {
			giveUp()
		}
	})
	return true
}

// answer answers an ask. An error means that the supervisor is gone.
func (h *Held) answer(number uint32, errno syscall.Errno) {
	_, _ = h.conn.Write(note{kind: answer, number: number, errno: errno}.encode())
}

func (h *Held) remove(number uint32) *asked {
	h.mu.Lock()
	defer h.mu.Unlock()
	a := h.asked[number]
	delete(h.asked, number)
	return a
}

// end ends what was asked for. Nothing else uses it any more, except for the goroutine that prepares
// it, which finds that it was removed.
func (a *asked) end() {
	a.giveUp()
	if a.prepared != nil {
		a.prepared.Close()
	}
}

// end ends all held connections, because nobody can join them any more.
func (h *Held) end() {
	_ = h.conn.Close()
	h.mu.Lock()
	all := h.asked
	h.asked = map[uint32]*asked{}
	h.mu.Unlock()
	for _, a := range all {
		a.end()
	}
}
