package sockfd

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
)

// maxRounds bounds how often the processes of a command are listed until the list has no
// new process.
const maxRounds = 64

// errRestless is the error after maxRounds lists that all had new processes.
var errRestless = errors.New("the processes of the command do not come to an end")

// findOpen removes from wanted the inodes of sockets that a descendant of this process has
// open. After an error it is unknown whether a process has the remaining sockets open.
//
// While findOpen looks at other processes, a process can fork, close a socket that its
// child goes on to use, and end. So findOpen looks at the descriptors of a process before
// it lists the children, and lists all processes again until there is no new process.
func findOpen(wanted map[uint64]bool) error {
	looked := map[int]bool{}
	for range maxRounds {
		news := false
		for pending := childrenOf(os.Getpid()); len(pending) > 0; {
			pid := pending[len(pending)-1]
			pending = pending[:len(pending)-1]
			if !looked[pid] {
				looked[pid], news = true, true
				if err := findIn(pid, wanted); err != nil || len(wanted) == 0 {
					return err
				}
			}
			pending = append(pending, childrenOf(pid)...)
		}
		if !news {
			return nil
		}
	}
	return errRestless
}

// childrenOf lists the children of all threads of a process; proc_tid_children(5).
func childrenOf(pid int) (pids []int) {
	tasks := "/proc/" + strconv.Itoa(pid) + "/task/"
	for _, thread := range names(tasks) {
		list, err := os.ReadFile(tasks + thread + "/children")
		if err != nil {
			continue // the thread has ended
		}
		for number := range strings.FieldsSeq(string(list)) {
			if child, err := strconv.Atoi(number); err == nil {
				pids = append(pids, child)
			}
		}
	}
	return pids
}

// names lists a directory of procfs. The result is empty once its process has ended.
func names(dir string) []string {
	d, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	list, _ := d.Readdirnames(-1) // the names before an error count
	return list
}

// findIn removes from wanted the sockets that a process has open. Nearly always all threads
// share the descriptors of the first thread. If something is still wanted after the first
// thread, findIn looks at the descriptors of the other threads too.
func findIn(pid int, wanted map[uint64]bool) error {
	process := "/proc/" + strconv.Itoa(pid)
	if err := findAt(process, wanted); err != nil || len(wanted) == 0 {
		return err
	}
	for _, thread := range names(process + "/task") {
		if thread == strconv.Itoa(pid) {
			continue
		}
		if err := findAt(process+"/task/"+thread, wanted); err != nil || len(wanted) == 0 {
			return err
		}
	}
	return nil
}

// findAt removes from wanted the sockets that a thread has open. thread is its directory in
// procfs.
func findAt(thread string, wanted map[uint64]bool) error {
	fds, err := unix.Open(thread+"/fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	switch {
	case err == unix.ENOENT, err == unix.ESRCH, err != nil && hasEnded(thread):
		return nil
	case err != nil:
		return err
	}
	d := os.NewFile(uintptr(fds), thread)
	defer d.Close()
	list, err := d.Readdirnames(-1)
	if err != nil && !hasEnded(thread) {
		return err
	}
	var text [64]byte
	for _, number := range list {
		n, err := unix.Readlinkat(fds, number, text[:])
		if err != nil {
			continue // closed meanwhile
		}
		if inode, ok := Inode(string(text[:n])); ok {
			delete(wanted, inode)
		}
	}
	return nil
}

// hasEnded reports whether a thread is gone or a zombie. Only uid 0 may list the
// descriptors of a zombie.
func hasEnded(thread string) bool {
	stat, err := linux.ReadStat(thread)
	return err != nil || stat.Dead()
}

// Inode returns the inode of a socket from the text of a link in /proc/PID/fd;
// proc_pid_fd(5). ok reports whether the link leads to a socket.
func Inode(link string) (inode uint64, ok bool) {
	number, ok := strings.CutPrefix(link, "socket:[")
	if !ok || !strings.HasSuffix(number, "]") {
		return 0, false
	}
	inode, err := strconv.ParseUint(number[:len(number)-1], 10, 64)
	return inode, err == nil
}
