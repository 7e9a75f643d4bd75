// Package procstat reads which processes there are and what the kernel tells of each
// in its stat file: proc_pid_stat(5). Linux only.
package linux

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// A Stat has the fields of a stat file from the third one on.
type Stat []string

// A Field is the number of a field as in proc_pid_stat(5). Times are in the unit of
// USER_HZ, a hundredth of a second.
type StatField int

// The fields that are used here.
const (
	Parent       StatField = 4
	Group        StatField = 5
	Session      StatField = 6
	Terminal     StatField = 7 // the controlling one: major<<8 and minor, as the old dev_t
	UserTime     StatField = 14
	SystemTime   StatField = 15
	Start        StatField = 22 // since boot
	EnvironStart StatField = 50 // an address; 0 for who may not trace the process
	EnvironEnd   StatField = 51
)

// Of returns the stat of a process, or of a thread by its number. The error is that of
// os.ReadFile: fs.ErrNotExist or ESRCH if it is gone.
func StatOf(id int) (Stat, error) { return ReadStat("/proc/" + strconv.Itoa(id)) }

// ReadStat is Of for the process or thread that has this folder in procfs.
func ReadStat(dir string) (Stat, error) {
	text, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return nil, err
	}
	// The name before, in parentheses, may have anything in it.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) <= int(Start-firstStatField) {
		return nil, fmt.Errorf("%s/stat has too few fields", dir)
	}
	return fields, nil
}

const firstStatField = 3 // the state

// Dead tells whether the process has ended and waits for its parent to notice.
func (s Stat) Dead() bool { return s[0] == "Z" || s[0] == "X" }

// Number returns a field; 0 if the kernel has none with that number, as of those of the
// environment before Linux 3.5.
func (s Stat) Number(f StatField) int {
	if int(f-firstStatField) >= len(s) {
		return 0
	}
	n, _ := strconv.Atoi(s[f-firstStatField])
	return n
}

// PIDs returns the numbers of the processes in /proc: those read before an error.
func PIDs() []int {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer dir.Close()
	names, _ := dir.Readdirnames(-1)
	ids := make([]int, 0, len(names))
	for _, name := range names {
		if id, err := strconv.Atoi(name); err == nil {
			ids = append(ids, id)
		}
	}
	return ids
}
