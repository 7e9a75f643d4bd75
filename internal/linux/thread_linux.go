package linux

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// DuplicateFD returns a new descriptor of this process for the open file that is descriptor fd in
// the thread. The caller must close it.
func DuplicateFD(thread, fd int) (int, error) {
	const ofThread = unix.O_EXCL // PIDFD_THREAD, Linux 6.9
	pidfd, err := unix.PidfdOpen(thread, ofThread)
	if err == unix.EINVAL {
		// Older kernels can open only processes. The threads of a process nearly always share their
		// descriptors. If this thread does not, fd is another file of the same program, and the caller
		// judges that file.
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

// maxStatus bounds the bytes of a status file that are read. The needed numbers are in its first
// lines.
const maxStatus = 4096

// ProcessOf returns the process of a thread, and the parent of this process. parent is 0 if this
// process cannot see the parent.
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

// ThreadStatus returns a number from the thread's /proc/PID/status (proc_pid_status(5)). The number
// stands in the line with this name and is written in base. If there is no such number, the error
// is ESRCH.
func ThreadStatus(thread int, name string, base int) (int, error) {
	status, err := readStatus(thread)
	if err != nil {
		return 0, err
	}
	return number(status, name, base)
}

// PendingSignals returns the signals that wait for a thread, and that it does not block. A set has the
// bit 1<<(n-1) for signal n. Only this thread will take those in own, and any thread of its process
// those in shared. If the thread is gone, the error is ENOENT or ESRCH.
func PendingSignals(thread int) (own, shared uint64, err error) {
	status, err := readStatus(thread)
	if err != nil {
		return 0, 0, err
	}
	threads, err := number(status, "Threads", 10)
	if err != nil {
		return 0, 0, err
	}
	var sets [3]uint64
	for i, name := range []string{"SigPnd", "ShdPnd", "SigBlk"} {
		if sets[i], err = strconv.ParseUint(line(status, name), 16, 64); err != nil {
			return 0, 0, unix.ESRCH
		}
	}
	own, shared = sets[0]&^sets[2], sets[1]&^sets[2]
	if threads == 1 {
		own, shared = own|shared, 0
	}
	return own, shared, nil
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

// number returns the number in the line with this name of a status.
func number(status, name string, base int) (int, error) {
	n, err := strconv.ParseInt(line(status, name), base, 32)
	if err != nil {
		return 0, unix.ESRCH
	}
	return int(n), nil
}

// line returns the rest of the line with this name of a status.
func line(status, name string) string {
	_, rest, _ := strings.Cut(status, "\n"+name+":")
	rest, _, _ = strings.Cut(rest, "\n")
	return strings.TrimSpace(rest)
}

// ReadMemory returns a copy of the n bytes at addr in the memory of the thread. The caller must
// bound n. If some of the bytes cannot be read, the error is EFAULT.
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

// readOnce reads from addr into b, which must not be empty, and returns the number of bytes read.
func readOnce(thread int, addr uint64, b []byte) (int, error) {
	local := unix.Iovec{Base: &b[0]}
	local.SetLen(len(b))
	return unix.ProcessVMReadv(thread, []unix.Iovec{local}, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}, 0)
}

// A PathBuffer is a buffer for [ReadString]. It can be reused.
type PathBuffer [unix.PathMax]byte

// ReadString returns a copy of the NUL-terminated string at addr in the memory of the thread. The
// error is ENAMETOOLONG for a string of PATH_MAX bytes or more, and EFAULT if a part of the string
// cannot be read. After the call, the content of buf is undefined.
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

// MemoryPages reads the memory of a thread page by page, and keeps the last page that it has read.
// It must be used by one goroutine.
type MemoryPages struct {
	Thread int

	at   uint64 // address of the kept page; valid if held is not nil
	held []byte
}

// Rest returns the memory from addr to the end of its page. The result is valid until the next
// call.
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

// String is like [ReadString] for a string of at most limit bytes including its NUL. For a longer
// string the error is E2BIG.
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

// readString reads from addr into buf until it finds a NUL, and returns the number of bytes before
// the NUL. It reads page by page, because the next page may not be mapped.
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

// WriteMemory writes b to addr in the memory of the thread. It calls still after it has opened the
// memory, and writes only if still returns nil. still must check that the thread is the one that
// the caller means. If b cannot be written completely, the error is EFAULT.
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

// WriteMemoryOf does what WriteMemory does without procfs. The thread must be one of those that may be
// written in any case, because another thread may get its number at that moment.
func WriteMemoryOf(thread int, addr uint64, b []byte) error {
	if len(b) == 0 {
		return nil
	}
	local := unix.Iovec{Base: &b[0]}
	local.SetLen(len(b))
	n, err := unix.ProcessVMWritev(thread, []unix.Iovec{local}, []unix.RemoteIovec{{Base: uintptr(addr), Len: len(b)}}, 0)
	if err == nil && n != len(b) {
		err = unix.EFAULT
	}
	return err
}
