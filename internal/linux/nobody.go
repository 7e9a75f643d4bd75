package linux

import (
	"errors"
	"fmt"
	"io/fs"
	"iter"
	"os"
	"strconv"
	"strings"
	"sync"
)

// IsNobody reports whether a uid from the kernel is the overflow uid, which stands for all users
// without a uid in the user namespace of this process (user_namespaces(7)). If the overflow uid is
// mapped, it names the user it is mapped to, and IsNobody returns false.
func IsNobody(uid uint32) bool {
	return uid == overflowUID() && !mapped(uid, uidMap())
}

// overflowUID returns the overflow uid, which sysctl(8) can change.
var overflowUID = sync.OnceValue(func() uint32 {
	const usual = 65534
	text, err := os.ReadFile("/proc/sys/kernel/overflowuid")
	uid, parseErr := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 32)
	if err != nil || parseErr != nil {
		return usual
	}
	return uint32(uid)
})

var uidMap = sync.OnceValue(func() string {
	text, err := os.ReadFile("/proc/self/uid_map")
	if errors.Is(err, fs.ErrNotExist) {
		if _, err := os.Stat("/proc/self"); err == nil {
			return "0 0 4294967295" // a kernel without user namespaces
		}
	}
	return string(text) // if the file cannot be read, no uid counts as mapped
})

// mapped reports whether a map in the format of /proc/self/uid_map contains a uid.
func mapped(uid uint32, text string) bool {
	for first, count := range ranges(text) {
		if uint64(uid) >= first && uint64(uid)-first < count {
			return true
		}
	}
	return false
}

// users returns how many uids such a map contains.
func users(text string) (n uint64) {
	for _, count := range ranges(text) {
		n += count
	}
	return n
}

// ranges are the lines of such a map: the first uid in the namespace, and how many follow.
func ranges(text string) iter.Seq2[uint64, uint64] {
	return func(yield func(first, count uint64) bool) {
		for line := range strings.Lines(text) {
			var first, outside, count uint64
			if _, err := fmt.Sscan(line, &first, &outside, &count); err == nil && !yield(first, count) {
				return
			}
		}
	}
}
