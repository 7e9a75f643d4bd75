package execcheck

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"unsafe"

	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux/usernotify"
	"github.com/execagent/execagent/test/rig"
)

const (
	supervisorArg = "execcheck-supervisor"
	setupVariable = "EXECCHECK_SETUP"
	reportFD      = 4
	nobody        = 65534
)

// What a supervisor of a test does with an execve.
const (
	bare     = "bare"     // there is no filter
	notified = "notified" // it lets the kernel go on
	judged   = "judged"   // it judges it, and lets the kernel go on
	checked  = "checked"  // what this package is for
)

// setup tells a supervisor what to do.
type setup struct {
	Mode string
	// Denied is a file that may not be executed: EACCES. DeniedWord may not be the
	// first argument: EPERM.
	Denied, DeniedWord string
	Argv               []string
	Dir                string

	nobody bool // the supervisor is not run by uid 0
}

// report is what a supervisor has counted.
type report struct {
	Code    int   // of the command
	Refused int64 // before the kernel went on
	// Replaced are the images that were not those that had been judged, by what was
	// wrong with them; Let those with which nothing was.
	ReplacedFile, ReplacedArgv, Let int64
	First                           int64 // calls of Config.First
	Leaked                          string
}

// supervisorMain is the main of a supervisor. It does what sandbox-init does.
func supervisorMain() int {
	// The thread that forks the command waits until its execve is done. A collection
	// would wait for that thread, and whoever answers the call for the collection.
	debug.SetGCPercent(-1)
	// That thread keeps its processor, too, and whoever answers the call needs another one.
	runtime.GOMAXPROCS(4)
	unix.CloseOnExec(reportFD)
	var s supervisor
	if err := json.Unmarshal([]byte(os.Getenv(setupVariable)), &s.setup); err != nil {
		fmt.Println(err)
		return 2
	}
	os.Unsetenv(setupVariable)
	if err := s.run(); err != nil {
		fmt.Println(err)
		return 2
	}
	// The threads of workers end with their goroutines.
	if err := goleak.Find(); err != nil {
		s.report.Leaked = err.Error()
	}
	file := os.NewFile(reportFD, "report")
	if err := json.NewEncoder(file).Encode(&s.report); err != nil {
		fmt.Println(err)
		return 2
	}
	return 0
}

type supervisor struct {
	setup
	report
	checker *Checker // nil in some modes
}

func (s *supervisor) run() error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return err
	}
	config := Config{Find: s.find, Decide: s.decide, First: func() error { atomic.AddInt64(&s.First, 1); return nil }}
	served := make(chan struct{})
	if s.Mode == checked {
		s.checker = New(config)
	}
	type started struct {
		pid int
		err error
	}
	start := make(chan started)
	go apart(func() {
		if s.Mode == bare {
			close(served)
		} else {
			listener, err := filterExec()
			if err != nil {
				start <- started{err: err}
				return
			}
			go func() {
				defer close(served)
				s.serve(listener, New(config))
				unix.Close(listener)
			}()
		}
		pid, err := syscall.ForkExec(s.Argv[0], s.Argv, &syscall.ProcAttr{
			Dir: s.Dir, Env: os.Environ(), Files: []uintptr{0, 1, 2, marksFD},
		})
		start <- started{pid, err}
	})
	command := <-start
	if command.err != nil {
		return fmt.Errorf("starting: %w", command.err)
	}
	for ended := false; !ended; {
		pid, err := s.checker.Ended()
		if err != nil {
			return err
		}
		var status syscall.WaitStatus
		_, err = syscall.Wait4(pid, &status, 0, nil)
		s.checker.Reaped(pid)
		if err != nil {
			return fmt.Errorf("waiting for %d: %w", pid, err)
		}
		if ended = pid == command.pid; ended {
			s.Code = status.ExitStatus()
			if status.Signaled() {
				s.Code = 128 + int(status.Signal())
			}
		}
	}
	killRest()
	<-served
	return nil
}

// apart calls do on a thread that is not the main one, and that ends afterwards.
func apart(do func()) {
	runtime.LockOSThread() // unlocked only on the main thread; another one ends with the goroutine
	if unix.Gettid() == os.Getpid() {
		done := make(chan struct{})
		go func() { defer close(done); apart(do) }()
		<-done
		runtime.UnlockOSThread()
		return
	}
	do()
}

// killRest kills and reaps all descendants.
func killRest() {
	for {
		for _, pid := range rig.Children(os.Getpid()) {
			_ = unix.Kill(pid, unix.SIGKILL)
		}
		if _, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil); err == syscall.ECHILD {
			return
		}
		runtime.Gosched()
	}
}

// serve answers the calls that come to listener.
func (s *supervisor) serve(listener int, plain *Checker) {
	runtime.LockOSThread() // never unlocked, so that the thread ends with this func
	var all unix.Sigset_t
	for i := range all.Val {
		all.Val[i] = ^all.Val[i]
	}
	if err := unix.PthreadSigmask(unix.SIG_SETMASK, &all, nil); err != nil {
		panic(err)
	}
	defer plain.Close()
	if s.checker != nil {
		defer s.checker.Close()
	}
	for {
		var call usernotify.Call
		err := usernotify.Receive(listener, &call)
		switch {
		case err == unix.EINTR || err == unix.ENOENT && !usernotify.HungUp(listener):
			continue
		case err != nil:
			return
		case s.checker != nil:
			s.checker.Check(listener, call)
			continue
		case s.Mode == judged:
			_, opened, err := plain.judge(&call)
			for _, fd := range opened {
				unix.Close(fd)
			}
			if err != nil {
				(&job{listener, call}).refuse(err)
				continue
			}
		}
		_ = usernotify.Continue(listener, call.ID)
	}
}

// filterExec puts a filter on the calling thread that leaves execve and execveat to
// a listener.
func filterExec() (listener int, err error) {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return 0, err
	}
	program := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: 0}, // the number of the call
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_EXECVE, Jt: 1},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_EXECVEAT, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	arg := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	n, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&arg)))
	runtime.KeepAlive(program)
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// find is Config.Find. The test's programs have no paths into procfs.
func (s *supervisor) find(call *usernotify.Call, dir int, path string, flags int) (int, string, error) {
	base, name := fmt.Sprintf("/proc/%d/cwd", call.Thread), "."
	if dir != unix.AT_FDCWD {
		base = fmt.Sprintf("/proc/%d/fd/%d", call.Thread, dir)
	}
	how := unix.O_PATH | unix.O_CLOEXEC
	if flags&unix.AT_SYMLINK_NOFOLLOW != 0 {
		how |= unix.O_NOFOLLOW
	}
	switch {
	case path == "" && flags&unix.AT_EMPTY_PATH == 0:
		return -1, "", unix.ENOENT
	case path != "" && path[0] == '/':
		base, name = "/", path
	case path != "":
		name = path
	}
	start, err := unix.Open(base, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err == unix.ENOENT {
		err = unix.EBADF
	}
	if err != nil {
		return -1, "", err
	}
	fd := start
	if path != "" {
		fd, err = unix.Openat(start, name, how, 0)
		unix.Close(start)
		if err != nil {
			return -1, "", err
		}
	}
	canonical, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	var st unix.Stat_t
	if err == nil {
		err = unix.Fstat(fd, &st)
	}
	if err == nil && st.Mode&unix.S_IFMT == unix.S_IFLNK {
		err = unix.ELOOP
	}
	if err == nil && canonical == s.Denied {
		atomic.AddInt64(&s.Refused, 1)
		err = unix.EACCES
	}
	if err != nil {
		unix.Close(fd)
		return -1, "", err
	}
	return fd, canonical, nil
}

// decide is Config.Decide.
func (s *supervisor) decide(i Image) error {
	file, word := i.Program == s.Denied, s.DeniedWord != "" && (len(i.Argv) > 1 && i.Argv[1] == s.DeniedWord || len(i.Final) > 1 && i.Final[1] == s.DeniedWord)
	switch {
	case i.Real && file:
		atomic.AddInt64(&s.ReplacedFile, 1)
	case i.Real && word:
		atomic.AddInt64(&s.ReplacedArgv, 1)
	case i.Real:
		atomic.AddInt64(&s.Let, 1)
	case word:
		atomic.AddInt64(&s.Refused, 1)
	}
	if file || word {
		return unix.EPERM
	}
	return nil
}

// supervise runs a command under a supervisor, and returns what that has counted
// and what the command has printed. The file marks is descriptor 3 of the command;
// nil is none.
func supervise(t testing.TB, s setup, marks *os.File) (report, string) {
	t.Helper()
	cmd, readReport := supervisorCommand(t, s, marks)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Fatalf("the supervisor of %q: %v\n%s", s.Argv, err, out.String())
	}
	r := readReport()
	rig.Is(t, r.Leaked, "", "the supervisor of %q has left", s.Argv)
	return r, out.String()
}

// supervisorCommand returns the command that is a supervisor, and what reads its
// report when it has ended.
func supervisorCommand(t testing.TB, s setup, marks *os.File) (*exec.Cmd, func() report) {
	t.Helper()
	encoded := rig.Value(json.Marshal(s))
	if marks == nil {
		marks = rig.Value(os.OpenFile(os.DevNull, os.O_RDWR, 0))
		t.Cleanup(func() { marks.Close() })
	}
	file := rig.Value(os.CreateTemp(t.TempDir(), "report"))
	t.Cleanup(func() { file.Close() })
	cmd := exec.CommandContext(t.Context(), "/proc/self/exe", supervisorArg)
	cmd.Env = append(os.Environ(), setupVariable+"="+string(encoded), "GORACE=atexit_sleep_ms=0", "GODEBUG=containermaxprocs=0", "LANG=C")
	cmd.ExtraFiles = []*os.File{marks, file}
	// A test that fails leaves nothing behind.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	if s.nobody && os.Getuid() == 0 {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: nobody, Gid: nobody}
	}
	return cmd, func() report {
		var r report
		rig.Must(t, json.Unmarshal(rig.Value(os.ReadFile(file.Name())), &r))
		return r
	}
}
