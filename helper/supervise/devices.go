package supervise

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"
)

// A command may open the devices that tell nothing and keep nothing, and its own
// terminals: those at its descriptors 0 to 2, those that it makes with /dev/ptmx,
// and its controlling one, which is /dev/tty. All others are EACCES. A device is
// known by its number, whatever its path is.

// openDevice opens the device at the place.
func (r *request) openDevice(p *place, o opening) answer {
	if p.Stat.Mode&unix.S_IFMT != unix.S_IFCHR {
		return fail(unix.EACCES)
	}
	o.alone = true
	major, minor := unix.Major(p.Stat.Rdev), unix.Minor(p.Stat.Rdev)
	const memory, terminal = 1, 5 // the kernel's admin-guide/devices.txt
	switch {
	case major == memory && slices.Contains([]uint32{3, 5, 7, 8, 9}, minor): // null, zero, full, random, urandom
		o.alone = false
	case major == terminal && minor == 0:
		return r.openControlling(o)
	case major == terminal && minor == 2:
		return r.openPTMX(p, o)
	case r.n.terminals.has(&p.Stat):
	default:
		return fail(unix.EACCES)
	}
	fd, err := r.reopen(p.FD, o)
	return opened(fd, err, o)
}

// openControlling opens the controlling terminal of the caller. The device itself
// would be that of this process.
func (r *request) openControlling(o opening) answer {
	device, err := controlling(r.thread())
	if err = r.there(err); err != nil {
		return fail(err)
	}
	own, err := r.n.terminals.open(device)
	if err != nil {
		return fail(err)
	}
	defer unix.Close(own)
	fd, err := r.reopen(own, o)
	return opened(fd, err, o)
}

// controlling returns the number of the controlling terminal of a thread; ENXIO if
// it has none.
func controlling(thread int) (uint64, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", thread))
	if err != nil {
		return 0, err
	}
	// Before the last parenthesis is the name of the program, which may be
	// anything. After it come the state, the parent, the group, the session, and
	// the terminal; proc_pid_stat(5).
	fields := bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])
	if len(fields) < 5 {
		return 0, unix.ENXIO
	}
	number, err := strconv.ParseInt(string(fields[4]), 10, 64)
	if err != nil || number == 0 {
		return 0, unix.ENXIO
	}
	n := uint32(number)
	return unix.Mkdev(n>>8&0xfff, n&0xff|n>>12&0xfff00), nil
}

// openPTMX makes a new pair of terminals, and notes the one that the caller will
// open by its path.
func (r *request) openPTMX(p *place, o opening) answer {
	fd, err := r.reopen(p.FD, o)
	if err != nil {
		return fail(err)
	}
	number, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err == nil {
		err = r.n.terminals.note(pts(number))
	}
	if err != nil {
		unix.Close(fd)
		return fail(err)
	}
	return o.given(fd)
}

func pts(number int) string { return "/dev/pts/" + strconv.Itoa(number) }

// maxTerminals bounds the terminals that one command has at the same time.
const maxTerminals = 512

// terminals are those that the command may open.
type terminals struct {
	mu    sync.Mutex
	known []int // descriptors with O_PATH, which keep no terminal in use
}

// noteStdio notes the terminals at descriptors 0 to 2 of this process, which the
// command has too.
func (t *terminals) noteStdio() error {
	for fd := range 3 {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
			continue
		}
		if _, err := unix.IoctlGetTermios(fd, unix.TCGETS); err != nil || t.has(&st) {
			continue
		}
		if err := t.note(ownPath(fd)); err != nil {
			return err
		}
	}
	return nil
}

// note notes the terminal at path. Terminals that have ended are forgotten: a new
// one may get the same number, and be somebody else's.
func (t *terminals) note(path string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known = slices.DeleteFunc(t.known, func(fd int) bool {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err == nil && st.Nlink > 0 {
			return false
		}
		unix.Close(fd)
		return true
	})
	if len(t.known) >= maxTerminals {
		return unix.ENOSPC
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err == nil {
		t.known = append(t.known, fd)
	}
	return err
}

// has tells whether a terminal with that description may be opened.
func (t *terminals) has(st *unix.Stat_t) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.ContainsFunc(t.known, func(fd int) bool {
		var own unix.Stat_t
		err := unix.Fstat(fd, &own)
		return err == nil && own.Nlink > 0 && own.Dev == st.Dev && own.Ino == st.Ino && own.Rdev == st.Rdev
	})
}

// open opens the terminal with that number, with O_PATH: one that is known or, as
// the controlling terminal may be another, a pseudoterminal.
func (t *terminals) open(device uint64) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	is := func(fd int) bool {
		var st unix.Stat_t
		return unix.Fstat(fd, &st) == nil && st.Nlink > 0 && st.Rdev == device
	}
	if i := slices.IndexFunc(t.known, is); i >= 0 {
		return unix.FcntlInt(uintptr(t.known[i]), unix.F_DUPFD_CLOEXEC, 0)
	}
	const first, last, minors = 136, 143, 1 << 20 // UNIX98_PTY_SLAVE_MAJOR, and so on
	major, minor := unix.Major(device), unix.Minor(device)
	if major < first || major > last {
		return -1, unix.ENXIO
	}
	fd, err := unix.Open(pts(int(major-first)*minors+int(minor)), unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, unix.ENXIO
	}
	if !is(fd) {
		unix.Close(fd)
		return -1, unix.ENXIO
	}
	return fd, nil
}
