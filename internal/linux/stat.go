package linux

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// A Stat has the fields of a stat file, proc_pid_stat(5), beginning with the third.
type Stat []string

// A statField is the number of a field in proc_pid_stat(5). Times are in units of USER_HZ, a
// hundredth of a second.
type statField int

// The fields that this program reads.
const (
	StatParent       statField = 4
	StatGroup        statField = 5
	StatSession      statField = 6
	StatTerminal     statField = 7 // controlling terminal: major<<8 and minor, as the old dev_t
	StatUserTime     statField = 14
	StatSystemTime   statField = 15
	StatStart        statField = 22 // since boot
	StatEnvironStart statField = 50 // an address; 0 if the reader may not trace the process
	StatEnvironEnd   statField = 51
)

// StatOf returns the stat of a process, or of a thread by its number. The error is that of
// os.ReadFile: fs.ErrNotExist or ESRCH if it is gone.
func StatOf(id int) (Stat, error) { return ReadStat("/proc/" + strconv.Itoa(id)) }

// ReadStat is like StatOf for the process or thread with this folder in procfs.
func ReadStat(dir string) (Stat, error) {
	text, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return nil, err
	}
	// The name in parentheses comes before the other fields and may contain any character.
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	if len(fields) <= int(StatStart-firstStatField) {
		return nil, fmt.Errorf("%s/stat has too few fields", dir)
	}
	return fields, nil
}

const firstStatField = 3 // the state

// Dead reports whether the process has ended and its parent has not waited for it yet.
func (s Stat) Dead() bool { return s[0] == "Z" || s[0] == "X" }

// Number returns a field, or 0 if the kernel has no field of that number: those of the
// environment exist since Linux 3.5.
func (s Stat) Number(f statField) int {
	if int(f-firstStatField) >= len(s) {
		return 0
	}
	n, _ := strconv.Atoi(s[f-firstStatField])
	return n
}

// PIDs returns the numbers of the processes in /proc. If reading fails, it also returns the numbers
// that it has read before.
func PIDs() ([]int, error) {
	dir, err := os.Open("/proc")
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	names, err := dir.Readdirnames(-1)
	ids := make([]int, 0, len(names))
	for _, name := range names {
		if id, err := strconv.Atoi(name); err == nil {
			ids = append(ids, id)
		}
	}
	return ids, err
}
