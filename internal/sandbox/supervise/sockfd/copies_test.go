package sockfd

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/sandbox/sandboxtest"
	"github.com/execagent/execagent/test/rig"
)

// newCopies returns a table that is closed with the test.
func newCopies(t *testing.T) *Copies {
	t.Helper()
	s := NewCopies()
	t.Cleanup(s.Close)
	return s
}

// made makes a socket, of which the table has a copy that nobody uses, and returns
// the copy and a descriptor of the socket, as the command would have it.
func made(t *testing.T, s *Copies, family, kind int) (c *Copy, own *os.File) {
	t.Helper()
	c = rig.Value(s.Make(family, kind, 0))
	fd := rig.Value(unix.FcntlInt(uintptr(c.FD), unix.F_DUPFD_CLOEXEC, 0))
	own = os.NewFile(uintptr(fd), "own")
	t.Cleanup(func() { _ = own.Close() })
	c.Given(nil)
	return c, own
}

// has reports whether the table has the copy, and whether that is found.
func has(s *Copies, c *Copy) bool {
	found := s.Of(c.inode)
	if found != nil {
		found.Release()
	}
	return found == c
}

func TestInUse(t *testing.T) {
	t.Parallel()
	s := newCopies(t)
	c, own := made(t, s, unix.AF_INET, unix.SOCK_DGRAM)
	var st unix.Stat_t
	if err := unix.Fstat(int(own.Fd()), &st); err != nil || !has(s, c) || c.inode != st.Ino {
		t.Errorf("inode %d of %+v, %v", st.Ino, c, err)
	}
	rig.Is(t, fmt.Sprint(c.Family, c.Kind, c.Connects()), fmt.Sprint(unix.AF_INET, unix.SOCK_DGRAM, false), "the copy")
	rig.Is(t, s.Of(c.inode), c, "the copy")
	rig.Is(t, s.Sweep(), false, "a copy in use was dropped")
	c.Drop()
	rig.Is(t, [2]bool{has(s, c), c.FD < 0}, [2]bool{}, "after Drop, in use: the table has it, it is closed")
	c.Release()
	rig.Is(t, c.FD, -1, "after the last Release: the descriptor")
	c.Drop() // nothing more happens
	if _, err := s.Make(unix.AF_INET, 99, 0); err != unix.EINVAL && err != unix.ESOCKTNOSUPPORT {
		t.Error(err)
	}
}

// TestSweep: a socket counts as open if any process below has it, also one whose
// parent has closed it, and one that has it in a thread with its own descriptors.
func TestSweep(t *testing.T) {
	t.Parallel()
	for name, args := range map[string][]string{
		"a child":      {"sh", "-c", "echo; exec sleep 1000"},
		"a grandchild": {"sh", "-c", "sleep 1000 & exec 3<&-; echo; wait"},
		"a thread":     {"/proc/self/exe", ownTableChild},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newCopies(t)
			c, own := made(t, s, unix.AF_INET, unix.SOCK_STREAM)
			holder := exec.Command(args[0], args[1:]...)
			holder.ExtraFiles = []*os.File{own}
			holder.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			ready := rig.Value(holder.StdoutPipe())
			rig.Must(t, holder.Start())
			rig.Check(t, rig.Err(bufio.NewReader(ready).ReadByte()))
			rig.Is(t, [2]bool{s.Sweep(), has(s, c)}, [2]bool{false, true}, "the socket is open: swept, and there")
			_ = unix.Kill(-holder.Process.Pid, unix.SIGKILL)
			_, _ = io.Copy(io.Discard, ready)
			_ = holder.Wait()
			// A grandchild has another parent now, and may be a zombie for a moment.
			for begun := time.Now(); has(s, c) && time.Since(begun) < sandboxtest.Enough; time.Sleep(time.Millisecond) {
				s.Sweep()
			}
			rig.Is(t, [2]bool{has(s, c), c.FD >= 0}, [2]bool{}, "the socket is closed: there, and open")
		})
	}
}

const ownTableChild = "own-table-child"

// ownTableChildMain keeps descriptor 3 in one thread alone.
func ownTableChildMain() int {
	apart := make(chan error)
	go func() {
		runtime.LockOSThread()
		apart <- unix.Unshare(unix.CLONE_FILES)
		select {}
	}()
	if err := <-apart; err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	_ = unix.Close(3) // of the other threads
	fmt.Println()
	time.Sleep(time.Hour)
	return 0
}

// TestLook: the copy of a socket that is closed goes away by itself.
func TestLook(t *testing.T) {
	t.Parallel()
	s := newCopies(t)
	c, _ := made(t, s, unix.AF_INET, unix.SOCK_DGRAM)
	for begun := time.Now(); has(s, c); time.Sleep(10 * time.Millisecond) {
		if time.Since(begun) > sandboxtest.Enough {
			t.Fatal("the copy is still there")
		}
	}
	// The timer stops without copies, and starts again with one.
	d, _ := made(t, s, unix.AF_INET, unix.SOCK_DGRAM)
	for begun := time.Now(); has(s, d); time.Sleep(10 * time.Millisecond) {
		if time.Since(begun) > sandboxtest.Enough {
			t.Fatal("the second copy is still there")
		}
	}
}

// TestLimit: what nobody has open makes room, and otherwise there is EMFILE. It runs
// alone: a process that another test starts has all copies open until it executes
// its program.
func TestLimit(t *testing.T) {
	s := newCopies(t)
	s.limit = 4
	for range 100 {
		c := rig.Value(s.Make(unix.AF_INET, unix.SOCK_STREAM, 0))
		c.Given(nil)
	}
	var used []*Copy
	for {
		c, err := s.Make(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err == unix.EMFILE {
			break
		}
		rig.Must(t, err)
		used = append(used, s.Of(c.inode))
		c.Given(nil)
	}
	rig.Is(t, len(used), s.limit, "copies in use")
	for _, c := range used {
		c.Release()
	}
}

// connect does connect(2) on the copy and tells the copy.
func connect(c *Copy, to unix.Sockaddr) error {
	err := unix.Connect(c.FD, to)
	c.Attempted(err)
	return err
}

// TestAttempted: a socket that is connected loses its copy, also when the connection
// comes about later. One that was refused keeps it, and can be connected again.
func TestAttempted(t *testing.T) {
	t.Parallel()
	s := newCopies(t)
	listener := rig.Value(unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0))
	defer unix.Close(listener)
	rig.Must(t, unix.Bind(listener, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	to := rig.Value(unix.Getsockname(listener))
	nonblocking := unix.SOCK_STREAM | unix.SOCK_NONBLOCK
	c, own := made(t, s, unix.AF_INET, nonblocking)
	s.Of(c.inode)
	if err := connect(c, to); err != unix.EINPROGRESS || !has(s, c) {
		t.Errorf("refused: %v, copy %v", err, has(s, c))
	}
	told := rig.Value(unix.GetsockoptInt(int(own.Fd()), unix.SOL_SOCKET, unix.SO_ERROR))
	rig.Is(t, syscall.Errno(told), unix.ECONNREFUSED, "SO_ERROR")
	rig.Must(t, unix.Listen(listener, 0))
	for err := connect(c, to); err != unix.EINPROGRESS; err = connect(c, to) {
		if err != unix.ECONNABORTED { // the kernel ends the first attempt with this
			t.Fatal(err)
		}
	}
	rig.Is(t, has(s, c), false, "connected, and the copy is still there")
	c.Release()

	// Over the backlog attempts go on until there is room.
	var waiting []*Copy
	for len(waiting) < 4 {
		c, _ := made(t, s, unix.AF_INET, nonblocking)
		s.Of(c.inode)
		if err := connect(c, to); err != unix.EINPROGRESS {
			t.Fatal(err)
		}
		if has(s, c) {
			if err := connect(c, to); err != unix.EALREADY || !has(s, c) {
				t.Errorf("a second attempt: %v, copy %v", err, has(s, c))
			}
			waiting = append(waiting, c)
		}
		c.Release()
	}
	waiting[3].Drop() // while it is watched
	go func() {
		for {
			fd, _, err := unix.Accept4(listener, unix.SOCK_CLOEXEC)
			if err != nil {
				return
			}
			unix.Close(fd)
		}
	}()
	for _, c := range waiting {
		for begun := time.Now(); has(s, c); time.Sleep(time.Millisecond) {
			if time.Since(begun) > sandboxtest.Enough {
				t.Fatal("connected later, and the copy is still there")
			}
		}
	}
	_ = unix.Shutdown(listener, unix.SHUT_RDWR) // ends accept
}

// TestHasEnded: a zombie has no descriptors, which an ordinary user may not look at.
func TestHasEnded(t *testing.T) {
	t.Parallel()
	child := exec.Command("sleep", "1000")
	rig.Must(t, child.Start())
	process := fmt.Sprintf("/proc/%d", child.Process.Pid)
	rig.Is(t, hasEnded(process), false, "a process that runs has ended")
	_ = child.Process.Kill()
	sandboxtest.Eventually(t, "it is a zombie", func() bool { return hasEnded(process) })
	_ = child.Wait()
	rig.Is(t, hasEnded(process), true, "a process that is gone has ended")
}

// TestQuestions: a socket for questions leads to its other end, whatever address a message has, and
// there are only so many.
func TestQuestions(t *testing.T) {
	s := newCopies(t)
	c, other, err := s.MakeQuestions(unix.AF_INET6, unix.SOCK_DGRAM|unix.SOCK_NONBLOCK)
	rig.Must(t, err)
	defer unix.Close(other)
	rig.Is(t, [2]int{c.Family, c.Kind}, [2]int{unix.AF_INET6, unix.SOCK_DGRAM}, "family and kind")
	rig.Must(t, unix.Sendto(c.FD, []byte("who"), 0, &unix.SockaddrInet4{Port: 9, Addr: [4]byte{192, 0, 2, 1}}))
	b := make([]byte, 10)
	rig.Is(t, string(b[:rig.Value(unix.Read(other, b))]), "who", "what arrives")
	rig.Is(t, c.Server().IsValid(), false, "it has a server")
	c.SetServer(netip.MustParseAddrPort("192.0.2.1:53"))
	rig.Is(t, c.Server().String(), "192.0.2.1:53", "the server")
	used := []*Copy{c} // so that no sweep drops them
	for range maxQuestions - 1 {
		c, other, err := s.MakeQuestions(unix.AF_INET, unix.SOCK_DGRAM)
		rig.Must(t, err, unix.Close(other))
		used = append(used, c)
	}
	_, _, err = s.MakeQuestions(unix.AF_INET, unix.SOCK_DGRAM)
	rig.Is(t, err, error(unix.EMFILE), "one more")
	for _, c := range used {
		c.Given(nil)
	}
}
