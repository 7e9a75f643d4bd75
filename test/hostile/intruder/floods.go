package main

import (
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// floods are calls that cost a supervisor much, by name. Each gets a folder of its own.
var floods = map[string]func(own string){
	"calls": func(own string) { _ = unix.Rmdir(own + "/nothing") },
	"opens of FIFOs": func(own string) {
		_ = unix.Mkfifo(own+"/fifo", 0o644) // it may be there
		// The thread waits for a reader, or is told that too many wait.
		if fd, err := unix.Open(own+"/fifo", unix.O_WRONLY|unix.O_CLOEXEC, 0); err == nil {
			_ = unix.Close(fd) // it is open
		}
	},
	"long paths": func(own string) {
		const longest = 4095
		path := own + strings.Repeat("/.", (longest-len(own)-len("/new"))/len("/.")) + "/new"
		// It is there but once. To make and remove folders would keep the disk's journal busy,
		// for which other commands wait too, confined or not.
		_ = unix.Mkdir(path, 0o755)
	},
	"links": func(own string) {
		const most = 40 // that the kernel follows
		for i := range most {
			if unix.Symlink(strconv.Itoa(i+1), own+"/"+strconv.Itoa(i)) != nil {
				break // they are all there
			}
		}
		if fd, err := unix.Open(own+"/0", unix.O_WRONLY|unix.O_CREAT|unix.O_CLOEXEC, 0o644); err == nil {
			_ = unix.Close(fd) // it is open
		}
	},
}

// startFlood makes calls of a kind from many threads, says "ready", and goes on until it is killed.
// Its arguments are the kind, the folder, and the number of threads.
func startFlood(args []string) error {
	if len(args) != 3 || floods[args[0]] == nil {
		return fmt.Errorf("which flood, which folder, how many threads? %q", args)
	}
	threads, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	if err := onCPU(0); err != nil {
		return err
	}
	own := args[1] + "/repo/flood"
	if err := unix.Mkdir(own, 0o755); err != nil && err != unix.EEXIST {
		return err
	}
	var begun sync.Once
	for range threads {
		go func() {
			runtime.LockOSThread()
			for {
				begun.Do(func() { fmt.Println("ready") })
				floods[args[0]](own)
			}
		}()
	}
	select {}
}

// startPace creates and removes files and prints how often it could, per second. Its arguments are
// the folder, and for how long, in milliseconds.
func startPace(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("which folder, for how long? %q", args)
	}
	ms, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	if err := onCPU(runtime.NumCPU() - 1); err != nil {
		return err
	}
	runtime.LockOSThread()
	var done atomic.Bool
	time.AfterFunc(time.Duration(ms)*time.Millisecond, func() { done.Store(true) })
	path := args[0] + "/repo/pace"
	begun := time.Now()
	turns := 0
	for ; !done.Load() || turns == 0; turns++ {
		if err := opening(path, unix.O_CREAT|unix.O_EXCL|unix.O_WRONLY); err != nil {
			return os.NewSyscallError("open", err)
		}
		if err := unix.Unlink(path); err != nil {
			return os.NewSyscallError("unlink", err)
		}
	}
	fmt.Println(float64(turns) / time.Since(begun).Seconds())
	return nil
}

// onCPU has this process and its threads run on one CPU.
func onCPU(cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		if err != nil {
			return err
		}
		if err := unix.SchedSetaffinity(tid, &set); err != nil && err != unix.ESRCH {
			return os.NewSyscallError("sched_setaffinity", err)
		}
	}
	return nil
}
