package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux/usernotify"
)

// measureTime runs a shell script and prints how long it took, in seconds.
func measureTime(args []string) error {
	cmd := exec.Command("sh", "-c", args[0])
	cmd.Stderr = os.Stderr
	begun := time.Now()
	err := cmd.Run()
	fmt.Println(time.Since(begun).Seconds())
	return err
}

// measureCalls makes each call often and prints the median time of each, in seconds. With the
// argument writes it also makes the calls that need a workspace.
func measureCalls(args []string) error {
	runtime.LockOSThread()
	took := map[string]float64{}
	measure := func(name string, often int, call func(i int) error) error {
		times := make([]time.Duration, often)
		for i := range times {
			begun := time.Now()
			err := call(i)
			times[i] = time.Since(begun)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		slices.Sort(times)
		took[name] = times[often/2].Seconds()
		return nil
	}
	open := func(path string, flags int) error {
		fd, err := unix.Open(path, flags|unix.O_CLOEXEC, 0o644)
		if err == nil {
			unix.Close(fd)
		}
		return err
	}
	var st unix.Stat_t
	const file = "files.tar" // of the workspace
	err := errors.Join(
		measure(callOpen, 5000, func(int) error { return open(file, unix.O_RDONLY) }),
		measure(callStat, 5000, func(int) error { return unix.Stat(file, &st) }),
		measure(callExec, 200, func(int) error {
			pid, err := syscall.ForkExec("/bin/true", []string{"true"}, &syscall.ProcAttr{})
			if err == nil {
				_, err = syscall.Wait4(pid, nil, 0, nil)
			}
			return err
		}),
	)
	if slices.Contains(args, "writes") {
		name := func(i int) string { return "call-" + strconv.Itoa(i) }
		err = errors.Join(err,
			measure(callCreate, 3000, func(i int) error { return open(name(i), unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL) }),
			measure(callWrite, 3000, func(i int) error { return open(name(i), unix.O_WRONLY) }),
			measure(callUnlink, 3000, func(i int) error { return unix.Unlink(name(i)) }),
		)
	}
	return errors.Join(err, json.NewEncoder(os.Stdout).Encode(took))
}

// continueCreations runs a command under a filter that leaves every open which may make a file to
// a listener, and has the kernel go on with each: nothing that is left to a supervisor can cost
// less.
func continueCreations(argv []string) error {
	path, err := exec.LookPath(argv[0])
	if err != nil {
		return err
	}
	type started struct {
		pid int
		err error
	}
	start := make(chan started)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread with the filter ends with this func
		listener, err := filterCreations()
		if err != nil {
			start <- started{err: err}
			return
		}
		go serveContinued(listener)
		pid, err := syscall.ForkExec(path, argv, &syscall.ProcAttr{Env: os.Environ(), Files: []uintptr{0, 1, 2}})
		start <- started{pid, err}
	}()
	s := <-start
	if s.err != nil {
		return s.err
	}
	var status syscall.WaitStatus
	for {
		_, err := syscall.Wait4(s.pid, &status, 0, nil)
		if err == nil && status.ExitStatus() != 0 {
			err = fmt.Errorf("%s ended with %d", strings.Join(argv, " "), status.ExitStatus())
		}
		if err != syscall.EINTR {
			return err
		}
	}
}

func serveContinued(listener int) {
	runtime.LockOSThread()
	for {
		var call usernotify.Call
		switch err := usernotify.Receive(listener, &call); {
		case err == nil:
			_ = usernotify.Continue(listener, call.ID)
		case err != unix.EINTR && usernotify.HungUp(listener):
			return
		}
	}
}

// filterCreations puts that filter on the calling thread.
func filterCreations() (listener int, err error) {
	const number, arguments = 0, 16 // in struct seccomp_data; the low half of an argument comes first
	load := func(at uint32) unix.SockFilter {
		return unix.SockFilter{Code: unix.BPF_LD | unix.BPF_W | unix.BPF_ABS, K: at}
	}
	program := []unix.SockFilter{
		load(number),
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.SYS_OPENAT, Jf: 3},
		load(arguments + 2*8), // the flags
		{Code: unix.BPF_JMP | unix.BPF_JSET | unix.BPF_K, K: unix.O_CREAT, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_USER_NOTIF},
		{Code: unix.BPF_RET | unix.BPF_K, K: unix.SECCOMP_RET_ALLOW},
	}
	arg := unix.SockFprog{Len: uint16(len(program)), Filter: &program[0]}
	const flags = unix.SECCOMP_FILTER_FLAG_NEW_LISTENER | unix.SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
	n, _, errno := unix.Syscall(unix.SYS_SECCOMP, unix.SECCOMP_SET_MODE_FILTER, flags, uintptr(unsafe.Pointer(&arg)))
	if errno != 0 {
		return 0, os.NewSyscallError("seccomp", errno)
	}
	return int(n), nil
}
