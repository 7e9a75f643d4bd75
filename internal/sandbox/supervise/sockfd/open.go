package sockfd

import (
	"errors"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/linux"
)

// maxRounds bounds how often the processes of a command are listed until no new one
// turns up.
const maxRounds = 64

// errRestless is the error where new processes turn up all the time.
var errRestless = errors.New("the processes of the command do not come to an end")

// findOpen removes from wanted the inodes of sockets that a process below this one
// has open. After an error it is not known who has the others.
//
// A process can fork while the others are looked at, close a socket that its child
// goes on to use, and end. So the descriptors of a process are looked at before its
// children are listed, and all is listed again until there is no new process.
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
			continue // it has ended
		}
		for number := range strings.FieldsSeq(string(list)) {
			if child, err := strconv.Atoi(number); err == nil {
				pids = append(pids, child)
			}
		}
	}
	return pids
}

// names lists a directory of procfs; it has no names once its process has ended.
func names(dir string) []string {
	d, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	list, _ := d.Readdirnames(-1) // what came before an error counts
	return list
}

// findIn removes from wanted what a process has open. Nearly always all its threads
// have the descriptors of the first one. Those of the others are looked at too
// where something is still wanted then.
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

// findAt removes from wanted what the thread with that directory has open.
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

// hasEnded reports whether a thread is gone or a zombie, whose descriptors nobody
// but uid 0 may list.
func hasEnded(thread string) bool {
	stat, err := linux.ReadStat(thread)
	return err != nil || stat.Dead()
}

// Inode returns the inode of the socket that a link in /proc/PID/fd leads to, if it
// leads to a socket; proc_pid_fd(5).
func Inode(link string) (inode uint64, ok bool) {
	number, ok := strings.CutPrefix(link, "socket:[")
	if !ok || !strings.HasSuffix(number, "]") {
		return 0, false
	}
	inode, err := strconv.ParseUint(number[:len(number)-1], 10, 64)
	return inode, err == nil
}
