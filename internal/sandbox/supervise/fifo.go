package supervise

import (
	"time"

	"golang.org/x/sys/unix"
)

// openFIFO opens a FIFO as in fifo(7): for reading, the caller waits for a
// writer, and the other way round.
func (r *request) openFIFO(p *place, o opening) callResult {
	if o.flags&unix.O_ACCMODE != unix.O_RDONLY {
		// With O_NONBLOCK this fails instead of waiting.
		fd, err := r.reopen(p.FD, o)
		if err != unix.ENXIO {
			return opened(fd, err, o)
		}
	}
	return r.openApart(p, o)
}

// openApart opens the object of the place on its own thread, because another
// process decides how long that takes.
func (r *request) openApart(p *place, o opening) callResult {
	own, err := unix.FcntlInt(uintptr(p.FD), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return fail(err)
	}
	isFIFO, at := p.Stat.Mode&unix.S_IFMT == unix.S_IFIFO, p.Path
	return r.apart(func(r *request) callResult {
		defer unix.Close(own)
		opened := make(chan struct{})
		defer close(opened)
		if isFIFO {
			go r.giveUp(own, o, opened)
		}
		const atFirst = unix.O_CREAT | unix.O_EXCL | unix.O_NOFOLLOW
		fd, err := unix.Open(ownPath(own), o.flags&^atFirst|unix.O_CLOEXEC|unix.O_NOCTTY, 0)
		if err != nil {
			return fail(err)
		}
		if !isFIFO && o.writes() {
			return r.changed(o.given(fd), at, false)
		}
		return o.given(fd)
	}, func() { unix.Close(own) })
}

// patience is the interval between checks of a call that waits for an open.
const patience = 200 * time.Millisecond

// giveUp ends a waiting open of the FIFO fd whose caller is gone, and repeats
// that until opened is closed. A signal would not end it, because Go makes the
// kernel restart the call. So giveUp opens the other end for a moment. Other
// processes that wait at the same end see the other end open and close.
func (r *request) giveUp(fd int, o opening, opened <-chan struct{}) {
	other := unix.O_RDONLY
	if o.flags&unix.O_ACCMODE == unix.O_RDONLY {
		other = unix.O_WRONLY
	}
	look := time.NewTicker(patience)
	defer look.Stop()
	for {
		select {
		case <-opened:
			return
		case <-look.C:
		}
		if r.there(nil) == nil {
			continue
		}
		if end, err := unix.Open(ownPath(fd), other|unix.O_NONBLOCK|unix.O_CLOEXEC, 0); err == nil {
			unix.Close(end)
		}
	}
}
