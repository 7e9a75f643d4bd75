package supervise

import (
	"slices"
	"strconv"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
)

// controllingTerminal returns the number of the controlling terminal of a thread; ENXIO if
// it has none.
func controllingTerminal(thread int) (uint64, error) {
	stat, err := linux.StatOf(thread)
	if err != nil {
		return 0, err
	}
	number := stat.Number(linux.StatTerminal)
	if number == 0 {
		return 0, unix.ENXIO
	}
	n := uint32(number)
	return unix.Mkdev(n>>8&0xfff, n&0xff|n>>12&0xfff00), nil
}

// ptyPath returns the path of the pseudoterminal with that number; pts(4).
func ptyPath(number int) string { return "/dev/pts/" + strconv.Itoa(number) }

// maxTerminals bounds how many terminals are known at the same time.
const maxTerminals = 512

// knownTerminals are the terminals of one command: those that it was given, and those that it made.
// A new terminal may get the number of an ended one, so a terminal is identified by its object,
// which is held without keeping the terminal in use. The zero value knows none. All methods may run
// at once.
type knownTerminals struct {
	mu  sync.Mutex
	fds []int // with O_PATH, which keeps no terminal in use
}

// noteStdio notes the terminals at descriptors 0 to 2 of this process, which the
// command has too.
func (k *knownTerminals) noteStdio() error {
	for fd := range 3 {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFCHR {
			continue
		}
		if _, err := unix.IoctlGetTermios(fd, unix.TCGETS); err != nil || k.has(&st) {
			continue
		}
		if err := k.note("/proc/self/fd/" + strconv.Itoa(fd)); err != nil {
			return err
		}
	}
	return nil
}

// note notes the terminal at path. Ended terminals are forgotten, because a new
// one may get the same number and belong to somebody else.
func (k *knownTerminals) note(path string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.fds = slices.DeleteFunc(k.fds, func(fd int) bool {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err == nil && st.Nlink > 0 {
			return false
		}
		unix.Close(fd)
		return true
	})
	if len(k.fds) >= maxTerminals {
		return unix.ENOSPC
	}
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err == nil {
		k.fds = append(k.fds, fd)
	}
	return err
}

// has reports whether a terminal with that description may be opened.
func (k *knownTerminals) has(st *unix.Stat_t) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return slices.ContainsFunc(k.fds, func(fd int) bool {
		var own unix.Stat_t
		err := unix.Fstat(fd, &own)
		return err == nil && own.Nlink > 0 && own.Dev == st.Dev && own.Ino == st.Ino && own.Rdev == st.Rdev
	})
}

// open opens the terminal with that number, with O_PATH: a known one or, because
// the controlling terminal may be another, a pseudoterminal.
func (k *knownTerminals) open(device uint64) (int, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	is := func(fd int) bool {
		var st unix.Stat_t
		return unix.Fstat(fd, &st) == nil && st.Nlink > 0 && st.Rdev == device
	}
	if i := slices.IndexFunc(k.fds, is); i >= 0 {
		return unix.FcntlInt(uintptr(k.fds[i]), unix.F_DUPFD_CLOEXEC, 0)
	}
	const first, last, minors = 136, 143, 1 << 20 // UNIX98_PTY_SLAVE_MAJOR, and so on
	major, minor := unix.Major(device), unix.Minor(device)
	if major < first || major > last {
		return -1, unix.ENXIO
	}
	fd, err := unix.Open(ptyPath(int(major-first)*minors+int(minor)), unix.O_PATH|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, unix.ENXIO
	}
	if !is(fd) {
		unix.Close(fd)
		return -1, unix.ENXIO
	}
	return fd, nil
}
