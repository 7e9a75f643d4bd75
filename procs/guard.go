package procs

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Guard kills the process groups and sessions of an agent that has died, for
// whatever reason, because the parent-death signal reaches only the leaders
// (rpc.md 1.5). [Process.KillGroup] says which processes are killed and which
// are not.
//
// A second process waits on a pipe that ends with the agent. Then it reads the groups
// from memory that both processes share, so that a start needs no message. The second
// process is started with the first process of the agent, and if it was killed, again
// with the next one. All methods of a Guard may run concurrently. A nil Guard guards
// nothing.
type Guard struct {
	// Path and Argv start the second process: the executable of the agent, with
	// arguments that make it call [GuardMain]. Its environment is empty.
	Path string
	Argv []string
	// Reaper is as in Spec.
	Reaper *Reaper

	mu      sync.Mutex
	closed  bool
	alive   *os.File // the pipe's write end, while the second process runs
	table   *os.File
	slots   []atomic.Uint64 // the shared memory; 0 is a free slot
	free    []guardSlot
	used    guardSlot // slots from here on were never used
	running sync.WaitGroup
}

// guardSlot is an index into the table plus one; 0: not guarded.
type guardSlot uint32

const (
	// guardSlots bounds the process groups at any one time. Only pages of the
	// table that are in use take memory.
	guardSlots = 1 << 16
	// guardPID is how many bits of an entry are the number of a group, which is
	// below 2^22 (proc(5), pid_max). The other bits are zero until the leader of
	// the group is about to be reaped; then they hold the time, in ticks.
	guardPID = 24
)

// errGuardFull reports too many process groups at once.
var errGuardFull = fmt.Errorf("more than %d process groups", guardSlots)

// start starts the second process unless it runs, and takes a slot.
func (g *Guard) start() (guardSlot, error) {
	if g == nil {
		return 0, nil
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return 0, os.ErrClosed
	}
	if err := g.launchLocked(); err != nil {
		return 0, atStep("starting the guard "+g.Path, err)
	}
	if n := len(g.free); n > 0 {
		slot := g.free[n-1]
		g.free = g.free[:n-1]
		return slot, nil
	}
	if g.used == guardSlots {
		return 0, errGuardFull
	}
	g.used++
	return g.used, nil
}

// add guards the group pgid.
func (g *Guard) add(slot guardSlot, pgid int) { g.set(slot, uint64(pgid)) }

// orphan notes the time, in ticks, just before the leader is reaped. From then on
// the number of the leader may be given to another process, once its session is
// empty.
func (g *Guard) orphan(slot guardSlot, now uint64) {
	if slot != 0 {
		g.slots[slot-1].Or(now << guardPID)
	}
}

// remove frees a slot: its session is empty, or was killed. It may be called
// once for each slot, and any number of times for the zero slot.
func (g *Guard) remove(slot guardSlot) {
	if slot == 0 {
		return
	}
	g.set(slot, 0)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.free = append(g.free, slot)
}

func (g *Guard) set(slot guardSlot, v uint64) {
	if slot != 0 {
		g.slots[slot-1].Store(v)
	}
}

// launchLocked starts the second process unless it runs.
func (g *Guard) launchLocked() error {
	if g.alive != nil {
		return nil
	}
	if g.table == nil {
		if err := g.mapLocked(); err != nil {
			return err
		}
	}
	var ends [2]int
	if err := unix.Pipe2(ends[:], unix.O_CLOEXEC); err != nil {
		return os.NewSyscallError("pipe2", err)
	}
	read, alive := os.NewFile(uintptr(ends[0]), "guard"), os.NewFile(uintptr(ends[1]), "guard")
	defer read.Close()
	child, err := newGroup(g.Reaper, g.Path, g.Argv, &syscall.ProcAttr{
		Env:   []string{},
		Files: []uintptr{read.Fd(), g.table.Fd(), 2},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return errors.Join(err, alive.Close())
	}
	g.alive = alive
	g.running.Go(func() {
		child.await()
		child.reap(ticks())
		child.abandon()
		g.mu.Lock()
		defer g.mu.Unlock()
		_ = g.alive.Close() // fails if Guard.Close has closed it
		g.alive = nil
	})
	return nil
}

// mapLocked makes the table and maps it.
func (g *Guard) mapLocked() error {
	fd, err := unix.MemfdCreate("guard", unix.MFD_CLOEXEC)
	if err != nil {
		return os.NewSyscallError("memfd_create", err)
	}
	table := os.NewFile(uintptr(fd), "guard")
	const size = guardSlots * 8
	if err := table.Truncate(size); err != nil {
		return errors.Join(err, table.Close())
	}
	mem, err := unix.Mmap(fd, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return errors.Join(os.NewSyscallError("mmap", err), table.Close())
	}
	g.table = table
	g.slots = unsafe.Slice((*atomic.Uint64)(unsafe.Pointer(&mem[0])), guardSlots)
	return nil
}

// Close ends the second process and waits for it. The second process kills the
// groups that are still guarded, so every Process should be closed before. A start
// after Close fails.
func (g *Guard) Close() error {
	if g == nil {
		return nil
	}
	g.mu.Lock()
	g.closed = true
	if g.alive != nil {
		_ = g.alive.Close() // the second process waits for this
	}
	g.mu.Unlock()
	g.running.Wait()
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.table == nil {
		return nil
	}
	// The memory stays mapped: a process that is closed after this still writes
	// to it.
	err := g.table.Close()
	g.table = nil
	return err
}

// GuardMain is the main function of the second process. It waits for the end of
// alive and kills the groups and sessions in table. [Guard] passes them as
// descriptors 0 and 1.
func GuardMain(alive io.Reader, table io.ReaderAt) error {
	// A signal to the whole group or container of the agent also reaches this
	// process, which must outlive the agent.
	signal.Ignore(syscall.SIGHUP, syscall.SIGINT, syscall.SIGTERM)
	if _, err := io.Copy(io.Discard, alive); err != nil {
		return fmt.Errorf("waiting for the end of the agent: %w", err)
	}
	return killGuarded(table)
}

// killGuarded kills the groups in table, and the sessions of the same numbers.
func killGuarded(table io.ReaderAt) error {
	entries, err := io.ReadAll(io.NewSectionReader(table, 0, guardSlots*8))
	if err != nil {
		return fmt.Errorf("reading the table of groups: %w", err)
	}
	now, left, until := ticks(), leftGroups(), map[int]uint64{}
	for ; len(entries) >= 8; entries = entries[8:] {
		v := binary.NativeEndian.Uint64(entries)
		pgid, known := int(v&(1<<guardPID-1)), v>>guardPID
		if pgid <= 1 {
			continue
		}
		reaped := known != 0
		if !reaped {
			known = now
		}
		until[pgid] = max(until[pgid], known)
		// If the leader was reaped and a process has its number, the group is
		// gone: see groupLeft.
		if left.groups[pgid] && (!reaped || !left.pids[pgid]) {
			_ = syscall.Kill(-pgid, syscall.SIGKILL) // it may have ended by now
		}
	}
	if len(until) > 0 {
		killSessions(until)
	}
	return nil
}
