package linux

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// DuplicateFD returns a new descriptor of this process for the open file that fd
// is in the thread. The caller closes it.
func DuplicateFD(thread, fd int) (int, error) {
	const ofThread = unix.O_EXCL // PIDFD_THREAD, Linux 6.9
	pidfd, err := unix.PidfdOpen(thread, ofThread)
	if err == unix.EINVAL {
		// An older kernel opens processes only. The threads of a process nearly
		// always share their descriptors. If this one does not, fd is another
		// file of the same program, and the caller judges that one.
		var leader int
		if leader, err = leaderOf(thread); err == nil {
			pidfd, err = unix.PidfdOpen(leader, 0)
		}
	}
	if err != nil {
		return -1, err
	}
	defer unix.Close(pidfd)
	return unix.PidfdGetfd(pidfd, fd, 0)
}

// leaderOf returns the process that a thread belongs to.
func leaderOf(thread int) (pid int, err error) { return ThreadStatus(thread, "Tgid", 10) }

// maxStatus bounds what is read of a status, in bytes. The numbers that are asked
// for are in its first lines.
const maxStatus = 4096

// ProcessOf returns the process that a thread belongs to, and the parent of that. A
// parent that this process cannot see is 0.
func ProcessOf(thread int) (pid, parent int, err error) {
	status, err := readStatus(thread)
	if err != nil {
		return 0, 0, err
	}
	if pid, err = number(status, "Tgid", 10); err == nil {
		parent, err = number(status, "PPid", 10)
	}
	return pid, parent, err
}

// ThreadStatus returns the number, written in base, that the line name of the
// thread's /proc/PID/status has; proc_pid_status(5). If there is no such number
// the error is ESRCH.
func ThreadStatus(thread int, name string, base int) (int, error) {
	status, err := readStatus(thread)
	if err != nil {
		return 0, err
	}
	return number(status, name, base)
}

func readStatus(thread int) (string, error) {
	fd, err := unix.Open(fmt.Sprintf("/proc/%d/status", thread), unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd)
	var status [maxStatus]byte
	n, err := unix.Read(fd, status[:])
	return string(status[:max(n, 0)]), err
}

// number returns the number that the line name of a status has.
func number(status, name string, base int) (int, error) {
	_, rest, _ := strings.Cut(status, "\n"+name+":")
	line, _, _ := strings.Cut(rest, "\n")
	n, err := strconv.ParseInt(strings.TrimSpace(line), base, 32)
	if err != nil {
		return 0, unix.ESRCH
	}
	return int(n), nil
}

// ReadMemory returns a copy of the n bytes at addr in the memory of the thread; the caller
// bounds n. If some of them cannot be read the error is EFAULT.
func ReadMemory(thread int, addr uint64, n int) ([]byte, error) {
	b := make([]byte, n)
	if n == 0 {
		return b, nil
	}
	got, err := readOnce(thread, addr, b)
	if err != nil {
		return nil, err
	}
	if got != n {
		return nil, unix.EFAULT
	}
	return b, nil
}

// readOnce reads from addr on into b, which is not empty, and returns how many bytes it has read.
func readOnce(thread int, addr uint64, b []byte) (int, error) {
	local := unix.Iovec{Base: &b[0]}
	local.SetLen(len(b))
	return unix.ProcessVMReadv(thread, []unix.Iovec{local}, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}, 0)
}

// PathBuffer is where [ReadString] reads to. It can be used again.
type PathBuffer [unix.PathMax]byte

// ReadString returns a copy of the string at addr in the memory of the thread, up to
// the NUL that ends it. A string of PATH_MAX bytes or more is ENAMETOOLONG; one
// that runs into memory which cannot be read is EFAULT. What else is in buf
// afterwards is of no use.
func ReadString(thread int, addr uint64, buf *PathBuffer) (string, error) {
	n, found, err := readString(thread, addr, buf[:])
	if err == nil && !found {
		err = unix.ENAMETOOLONG
	}
	if err != nil {
		return "", err
	}
	return string(buf[:n]), nil
}

// MemoryPages reads the memory of a thread page by page, and holds the page that it has read last.
// It is for one goroutine.
type MemoryPages struct {
	Thread int

	at   uint64 // the page that is held; only if held has something
	held []byte
}

// Rest returns what is in the memory from addr on to the end of that page, until the next call.
func (p *MemoryPages) Rest(addr uint64) ([]byte, error) {
	size := uint64(os.Getpagesize())
	page := addr - addr%size
	if p.held == nil || p.at != page {
		held, err := ReadMemory(p.Thread, page, int(size))
		if err != nil {
			return nil, err
		}
		p.at, p.held = page, held
	}
	return p.held[addr-page:], nil
}

// String does what [ReadString] does, for a string of at most limit bytes with its NUL; a longer one
// is E2BIG.
func (p *MemoryPages) String(addr uint64, limit int) (string, error) {
	var b []byte
	for {
		rest, err := p.Rest(addr + uint64(len(b)))
		if err != nil {
			return "", err
		}
		n := bytes.IndexByte(rest, 0)
		switch {
		case n >= 0 && len(b)+n < limit && b == nil:
			return string(rest[:n]), nil
		case n >= 0 && len(b)+n < limit:
			return string(append(b, rest[:n]...)), nil
		case n >= 0 || len(b)+len(rest) >= limit:
			return "", unix.E2BIG
		}
		b = append(b, rest...)
	}
}

// readString fills buf from addr on, until it has found a NUL, and returns how many
// bytes lie before that. It goes on page by page: the next one may not be mapped.
func readString(thread int, addr uint64, buf []byte) (n int, found bool, err error) {
	page := uint64(os.Getpagesize())
	for n < len(buf) {
		at := addr + uint64(n)
		size := min(int(page-at%page), len(buf)-n)
		got, err := readOnce(thread, at, buf[n:n+size])
		if err != nil {
			return n, false, err
		}
		if end := bytes.IndexByte(buf[n:n+got], 0); end >= 0 {
			return n + end, true, nil
		}
		if n += got; got != size {
			return n, false, unix.EFAULT
		}
	}
	return n, false, nil
}

// WriteMemory writes b to addr in the memory of the thread. It calls still once that
// memory is open, and writes only if still confirms, by a nil error, that the thread
// is the one that the caller means. What cannot be written is EFAULT.
func WriteMemory(thread int, addr uint64, b []byte, still func() error) error {
	mem, err := unix.Open(fmt.Sprintf("/proc/%d/mem", thread), unix.O_WRONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(mem)
	if err := still(); err != nil {
		return err
	}
	if n, err := unix.Pwrite(mem, b, int64(addr)); err != nil || n != len(b) {
		return unix.EFAULT
	}
	return nil
}
