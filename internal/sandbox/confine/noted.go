package confine

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/execagent/execagent/internal/pack"
	"github.com/execagent/execagent/internal/sandbox/changes"
	"github.com/execagent/execagent/internal/sandbox/refusals"
	"github.com/execagent/execagent/sandbox"
)

// An init that answers calls of a command knows what it refuses, and what the command changes. It notes that in
// a file in memory, which is its last descriptor, and the agent reads the file when the command has ended. So
// nobody waits for anybody, and a command that tries very much fills no pipe. The changes come after the refusals.

// noted is the file of one command.
type noted struct {
	ours    *os.File
	theirs  *os.File // the stage of the command closes it
	closing sync.Once
}

func (n *noted) close() {
	if n != nil {
		n.closing.Do(func() {
			_ = n.ours.Close()
			_ = n.theirs.Close()
		})
	}
}

// notes reports whether there is a file.
func (c *config) notes() bool { return c.NotesRefusals || len(c.ChangesApart) > 0 }

// notesFD is the descriptor of the file.
func (c *config) notesFD() int {
	if c.Rules != nil {
		return c.judgeFD() + 1
	}
	return c.judgeFD()
}

// refusals returns the Log of the init that answers calls; nil: nobody wants to know.
func (t *target) refusals() *refusals.Log {
	if !t.config.NotesRefusals || t.role == roleOuter {
		return nil
	}
	return refusals.ToFile(t.config.notesFD())
}

// changes returns the Log of the init that answers calls; nil: nobody wants to know.
func (t *target) changes() *changes.Log {
	if len(t.config.ChangesApart) == 0 || t.role == roleOuter {
		return nil
	}
	return changes.ToFile(t.config.notesFD(), refusals.FileSize, t.config.ChangesApart...)
}

// NoteRefusals makes the init note what it refuses, for [Held.Refused]. It is called before the command is
// started. Without an init that answers calls of the command it does nothing.
func (h *Held) NoteRefusals() error {
	if h == nil || h.refusal != nil || !h.answersCalls() {
		return nil
	}
	h.command.NotesRefusals = true
	return h.note()
}

// NoteChanges makes the init note the folders in which the command changes something, for [Held.Changed]. It is
// called before the command is started, which has to be supervised. apart is as in [changes.New], and not empty.
func (h *Held) NoteChanges(apart []string) error {
	if !h.command.Backend.Has(sandbox.Supervised) {
		return errors.New("what the command changes is known only if a supervisor confines it")
	}
	h.command.ChangesApart = apart
	return h.note()
}

// note makes the file.
func (h *Held) note() error {
	if h.noted != nil {
		return nil
	}
	fd, err := pack.SizedFile("notes", refusals.FileSize+changes.FileSize)
	if err != nil {
		return fmt.Errorf("making a file for notes: %w", err)
	}
	theirs, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		unix.Close(fd)
		return fmt.Errorf("making a file for notes: %w", os.NewSyscallError("fcntl", err))
	}
	h.noted = &noted{ours: os.NewFile(uintptr(fd), "notes"), theirs: os.NewFile(uintptr(theirs), "notes")}
	return nil
}

// answersCalls reports whether an init answers calls of the command that it may refuse.
func (h *Held) answersCalls() bool {
	return h.command.Policy.Confined && (h.command.Backend.Has(sandbox.Supervised) || h.command.Policy.Network != sandbox.NetworkRestricted)
}

// read calls use with the file, if there is one.
func (n *noted) read(use func(fd int)) {
	if n == nil {
		return
	}
	if raw, err := n.ours.SyscallConn(); err == nil { // else it is closed, and its number may belong to the file of another command
		_ = raw.Control(func(fd uintptr) { use(int(fd)) })
	}
}

// Changed adds the folders in which the command has changed something to l. The command has ended.
func (h *Held) Changed(l *changes.Log) {
	h.noted.read(func(fd int) { l.ReadFile(fd, refusals.FileSize) })
}

// Refused adds what the init has refused to l. The command has ended.
func (h *Held) Refused(l *refusals.Log) {
	if h == nil {
		return
	}
	var found refusals.Log
	h.noted.read(found.ReadFile)
	all, more := found.All()
	if h.ceiling != nil {
		refusals.UnderCeiling(all, h.asked, h.ceiling)
	}
	l.AddAll(all, more)
}

// Limits says what the sandbox withholds if the command has failed with an exit code and nobody knows what was
// refused; "" if there is nothing to say. told says that some refusals are known.
func (h *Held) Limits(code int, told bool, ask refusals.Asker) string {
	switch {
	case h == nil || h.refusal != nil:
		return ""
	case h.command.Backend.Has(sandbox.Supervised):
		if told {
			return h.Untold(code, ask)
		}
		return ""
	case told:
		return ""
	}
	return refusals.Limits(h.command.Policy, code, ask)
}

// Untold says that the command, which has failed, has no network; "" if it has one.
func (h *Held) Untold(code int, ask refusals.Asker) string {
	if h == nil || h.refusal != nil || h.Unconfined() {
		return ""
	}
	return refusals.Untold(h.command.Policy, code, ask)
}
