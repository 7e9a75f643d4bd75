package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// order asks for a sequence of calls: the numbers of its steps. Step i of a seed is the same
// whatever other steps there are, so a sequence can be made shorter.
type order struct {
	Seed  uint64
	Steps []int
}

// made tells what became of one step.
type made struct {
	Call, Args, Result string
}

// A process is the state in which a sequence begins, and in which the next one has to begin too.
type process struct {
	base string // the folder with the workspace "repo"
	home int    // a descriptor of the working directory
}

// Descriptors of a sequence have these numbers: from firstSlot on, and as many as slots. The lowest
// are open at its start.
const (
	firstSlot = 20
	slots     = 7
)

// starting are the paths that are open at the start of a sequence, and how.
var starting = []struct {
	path  string
	flags int
}{
	{"/repo", unix.O_RDONLY | unix.O_DIRECTORY},
	{"/repo/dir", unix.O_PATH},
	{"/repo/file", unix.O_RDONLY},
	{"/out", unix.O_RDONLY | unix.O_DIRECTORY},
}

// makeCalls answers orders on stdin with what became of their steps, each in one line of JSON.
func makeCalls(args []string) error {
	if len(args) != 1 {
		return fmt.Errorf("which folder? %q", args)
	}
	runtime.LockOSThread() // /proc/thread-self is always the same thread
	p := &process{base: args[0]}
	var err error
	if p.home, err = unix.Open(p.base+"/repo", unix.O_PATH|unix.O_CLOEXEC, 0); err != nil {
		return fmt.Errorf("opening the workspace: %w", err)
	}
	fmt.Println("ready")
	answers := json.NewEncoder(os.Stdout)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		var o order
		if err := json.Unmarshal(lines.Bytes(), &o); err != nil {
			return err
		}
		all, err := p.sequence(o)
		if err != nil {
			return err
		}
		if err := answers.Encode(all); err != nil {
			return err
		}
	}
	return lines.Err()
}

// sequence makes the calls of an order.
func (p *process) sequence(o order) (all []made, err error) {
	if err := unix.Fchdir(p.home); err != nil {
		return nil, err
	}
	unix.Umask(0o022)
	for i, s := range starting {
		fd, err := unix.Open(p.base+s.path, s.flags|unix.O_CLOEXEC, 0)
		if err != nil {
			return nil, fmt.Errorf("opening %s: %w", s.path, err)
		}
		if err := place(fd, firstSlot+i, unix.O_CLOEXEC); err != nil {
			return nil, err
		}
	}
	for _, number := range o.Steps {
		g := &generator{process: p, Rand: rand.New(rand.NewPCG(o.Seed, uint64(number)))}
		all = append(all, g.step())
	}
	for fd := firstSlot; fd < firstSlot+slots; fd++ {
		_ = unix.Close(fd) // it need not be open
	}
	return all, nil
}

// place gives a descriptor another number.
func place(fd, number, flags int) error {
	err := unix.Dup3(fd, number, flags&unix.O_CLOEXEC)
	_ = unix.Close(fd) // it is open
	return err
}

// hide replaces in a text what differs between two places: the folder, and the number of this
// process.
func (p *process) hide(text string) string {
	text = strings.ReplaceAll(text, p.base, "%")
	text = strings.ReplaceAll(text, strings.Repeat("n", 255), "n{255}")
	text = strings.ReplaceAll(text, "/proc/"+strconv.Itoa(os.Getpid())+"/", "/proc/PID/")
	return strings.ReplaceAll(text, "/task/"+strconv.Itoa(unix.Gettid())+"/", "/task/TID/")
}

// A generator makes one step. What it chooses depends on its seed alone.
type generator struct {
	*process
	*rand.Rand
	kept []any // memory that the call has pointers to
}

// step makes one call.
func (g *generator) step() made {
	c := pick(g.Rand, callTable())
	if c.do != nil {
		args, result := c.do(g)
		return made{c.name, g.hide(args), g.hide(result)}
	}
	var texts []string
	var values []uintptr
	var after []func(value int) string
	for kind := range strings.FieldsSeq(c.args) {
		a := kinds[kind](g)
		texts = append(texts, a.text)
		values = append(values, a.value)
		if sized[kind] {
			values = append(values, a.size)
		}
		if a.after != nil {
			after = append(after, a.after)
		}
	}
	result := g.made(c, [6]uintptr(append(values, make([]uintptr, 6)...)), after)
	runtime.KeepAlive(g)
	return made{c.name, g.hide(strings.Join(texts, ", ")), g.hide(result)}
}

// made makes the call and returns what came of it.
func (g *generator) made(c *callOf, a [6]uintptr, after []func(value int) string) string {
	r, _, errno := unix.RawSyscall6(c.number, a[0], a[1], a[2], a[3], a[4], a[5])
	if errno != 0 {
		return unix.ErrnoName(errno)
	}
	if c.opens {
		return g.opened(int(r))
	}
	var result strings.Builder
	result.WriteString(strconv.Itoa(int(r)))
	for _, tell := range after {
		result.WriteString(" " + tell(int(r)))
	}
	return result.String()
}

// opened puts a new descriptor into a slot and tells what it is.
func (g *generator) opened(fd int) string {
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
	flags &^= unix.O_NOFOLLOW // a supervisor opens what it has found, or makes it, and has no use for the caller's flag
	onExec, err2 := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	var st unix.Stat_t
	err3 := unix.Fstat(fd, &st)
	if err != nil || err2 != nil || err3 != nil {
		return fmt.Sprint("a broken descriptor: ", err, err2, err3)
	}
	slot := firstSlot + g.IntN(slots)
	if err := place(fd, slot, onExec*unix.O_CLOEXEC); err != nil {
		return fmt.Sprint("a broken descriptor: ", err)
	}
	return fmt.Sprintf("descriptor %d flags %#o,%d %s", slot, flags, onExec, describe(&st))
}

// describe tells of a file what is the same in equal trees.
func describe(st *unix.Stat_t) string {
	size := ""
	if st.Mode&unix.S_IFMT != unix.S_IFDIR { // how large a folder is depends on what was in it, and placeholders are in it
		size = fmt.Sprint(" links ", st.Nlink, " size ", st.Size)
	}
	owner := "others" // a user namespace has no number for them
	if st.Uid == uint32(unix.Getuid()) && st.Gid == uint32(unix.Getgid()) {
		owner = "own"
	}
	return fmt.Sprintf("mode %#o owner %s%s mtime %s", st.Mode, owner, size, whenOf(st.Mtim.Sec))
}

// whenOf tells a time that a call has set. All others are after the year 2001.
func whenOf(seconds int64) string {
	if seconds > 1e9 {
		return "now"
	}
	return strconv.FormatInt(seconds, 10)
}

// pick chooses by weight.
func pick[T interface{ odds() int }](r *rand.Rand, from []T) T {
	sum := 0
	for _, one := range from {
		sum += one.odds()
	}
	n := r.IntN(sum)
	i := slices.IndexFunc(from, func(one T) bool {
		n -= one.odds()
		return n < 0
	})
	return from[i]
}
