package placeholder

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Missing is a name under a writable root that does not exist and must not be
// created. Before a process may write Parent, there must be a placeholder at the
// name (sandbox.md 14.2).
type Missing struct {
	Parent string // canonical, exists
	Name   string // a single one
	Dir    bool   // the placeholder is a directory, else an empty file
	// Barred says that this user can create nothing in Parent, nor give itself
	// the permission: no placeholder is needed.
	Barred bool
}

// Placeholders prevents the creation of protected and denied names that are
// missing in a writable root. A mount can cover a name only if there is a real
// object (sandbox.md 14.2). So Placeholders makes one, empty and read-only, and
// keeps it as long as a confined process needs it.
//
// Anybody can see that an object is a placeholder, and so may be removed: it is
// empty, nobody may write to it, and its modification time is placeholderTime,
// which the kernel changes as soon as anything is put into it. Every agent that
// needs a placeholder holds a shared lock on it (flock(2)), whatever the agent's
// user or container; the lock ends with the agent's process. To remove a
// placeholder, an agent has to get the exclusive lock. The ledger says where to
// look after a crash, and for which object (device and inode number). No other
// object is removed, and none gets a protected name that it did not have just
// before.
//
// A process that can read a placeholder can also lock it, even in a sandbox, and
// so keep the empty object on the host for as long as the process lives. The
// agent tries to remove it at each release and in Close; later the next agent of
// this user tries.
//
// The methods may be called at once.
type Placeholders struct {
	ledger *ledger

	mu     sync.Mutex
	closed bool
	held   map[Missing]*placeholder
	// left are the placeholders that another process still had locked when this
	// agent wanted to remove them.
	left []*note

	retrying sync.Mutex // held by retry and by Close, so that the notes are settled one by one
}

// placeholder is a name that this agent holds, or is about to hold.
type placeholder struct {
	users int // guarded by Placeholders.mu

	mu   sync.Mutex // held while the object is made or removed
	fd   int        // the object, with our lock; -1: we have none
	note *note      // of the object, if fd is not -1
}

const (
	// maxPlaceTries is how often a name is checked while others create and remove
	// objects there.
	maxPlaceTries = 512
	// maxLocked is how long others may lock a placeholder before we replace it,
	// in milliseconds.
	maxLocked = 100
)

// Open removes what dead agents left, and begins a ledger in dir, which StateDir
// chose. The caller has to Close the Placeholders.
func Open(dir string) (*Placeholders, error) {
	own, err := newLedger(dir)
	if err != nil {
		return nil, fmt.Errorf("opening the ledger of placeholders: %w", err)
	}
	p := &Placeholders{ledger: own, held: map[Missing]*placeholder{}}
	if err := p.sweep(dir); err != nil {
		return nil, errors.Join(fmt.Errorf("sweeping placeholders: %w", err), p.Close())
	}
	return p, nil
}

// sweep settles the ledgers of dead agents.
func (p *Placeholders) sweep(dir string) error {
	dead, err := deadLedgers(dir)
	for _, file := range dead {
		err = errors.Join(err, p.adopt(file), file.Close())
	}
	return err
}

// adopt settles one ledger and removes its file. Our own ledger takes the
// records of placeholders that cannot be removed yet.
func (p *Placeholders) adopt(file *os.File) error {
	records, err := readLedger(file)
	if err != nil {
		return err
	}
	for _, r := range records {
		n := p.ledger.note(r)
		if err := n.put(); err != nil {
			n.drop()
			return err // the dead agent's ledger stays
		}
		p.settle(n)
	}
	return os.Remove(file.Name())
}

// Hold makes sure that there is an object at each of the names until release is
// called. Further calls of release have no effect. An existing object that is no
// placeholder stays as it is. A name needs no object if this user can create
// nothing in its parent, because the parent is read-only or belongs to somebody
// else.
//
// The error names the path that could not be held; nothing is held then. After
// Close the error is os.ErrClosed.
func (p *Placeholders) Hold(missing []Missing) (release func(), err error) {
	users := make([]Missing, 0, len(missing))
	release = sync.OnceFunc(func() {
		parent := parentDir{fd: -1}
		defer parent.close()
		for _, m := range users {
			p.release(m, &parent)
		}
		p.retry()
	})
	parent := parentDir{fd: -1}
	defer parent.close()
	for _, m := range missing {
		if m.Barred {
			continue
		}
		h, err := p.user(m)
		if err == nil {
			users = append(users, m)
			err = h.hold(p, &parent, m)
		}
		if err != nil {
			release()
			return nil, fmt.Errorf("holding %s/%s: %w", m.Parent, m.Name, err)
		}
	}
	return release, nil
}

// Close removes the placeholders that are still held, and tries once more to
// remove those that other processes had locked. Nothing can be held afterwards,
// and a release does nothing.
func (p *Placeholders) Close() error {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil
	}
	p.closed = true
	held := p.held
	p.held = map[Missing]*placeholder{}
	p.mu.Unlock()
	parent := parentDir{fd: -1}
	defer parent.close()
	for _, h := range held {
		h.mu.Lock()
		h.removeLocked(p, &parent)
		h.mu.Unlock()
	}
	// A release that is under way may retry, too: it has ended, or finds the ledger
	// closed and does nothing.
	p.retrying.Lock()
	defer p.retrying.Unlock()
	p.retryLocked()
	p.mu.Lock()
	empty := len(p.left) == 0
	p.mu.Unlock()
	return p.ledger.close(empty)
}

// user counts one more user of m, and makes the entry for the first user.
func (p *Placeholders) user(m Missing) (*placeholder, error) {
	if !validName(m.Name) {
		return nil, fmt.Errorf("%q is not a name", m.Name)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, os.ErrClosed
	}
	h := p.held[m]
	if h == nil {
		h = &placeholder{fd: -1}
		p.held[m] = h
	}
	h.users++
	return h, nil
}

// release counts one user of m less, and removes the object when that was the
// last.
func (p *Placeholders) release(m Missing, parent *parentDir) {
	p.mu.Lock()
	h := p.held[m]
	p.mu.Unlock()
	if h == nil {
		return // closed
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	p.mu.Lock()
	h.users--
	last := h.users == 0
	p.mu.Unlock()
	if !last {
		return
	}
	h.removeLocked(p, parent)
	p.mu.Lock()
	defer p.mu.Unlock()
	if h.users == 0 && p.held[m] == h {
		delete(p.held, m)
	}
}

// retry tries again to remove the placeholders that are left, unless Close does.
func (p *Placeholders) retry() {
	p.retrying.Lock()
	defer p.retrying.Unlock()
	if !p.isClosed() {
		p.retryLocked()
	}
}

// retryLocked is retry for a caller that has locked retrying.
func (p *Placeholders) retryLocked() {
	p.mu.Lock()
	left := p.left
	p.left = nil
	p.mu.Unlock()
	for _, n := range left {
		p.settle(n)
	}
}

// settle removes the placeholder of a note, or keeps the note for retry.
func (p *Placeholders) settle(n *note) {
	if n.settle() {
		n.drop()
	} else {
		p.leave(n)
	}
}

// leave keeps the note for retry, unless there is another one of its object.
func (p *Placeholders) leave(n *note) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if slices.ContainsFunc(p.left, func(l *note) bool { return l.object == n.object && l.in == n.in && l.name == n.name }) {
		n.drop()
		return
	}
	p.left = append(p.left, n)
}

func (p *Placeholders) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// hold makes the object, or takes a share in the existing one.
func (h *placeholder) hold(p *Placeholders, parent *parentDir, m Missing) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p.isClosed() {
		return os.ErrClosed // nothing would remove a new object
	}
	if err := parent.open(m.Parent); err != nil {
		return err
	}
	if h.fd >= 0 {
		var st unix.Stat_t
		if err := unix.Fstat(h.fd, &st); err != nil {
			return os.NewSyscallError("fstat", err)
		}
		if sameObject(parent.fd, m.Name, &st) {
			return nil
		}
		// Somebody moved our object or removed it. removeLocked follows it, and
		// so may leave another directory open as parent.
		h.removeLocked(p, parent)
		if err := parent.open(m.Parent); err != nil {
			return err
		}
	}
	n := p.ledger.note(record{parent: m.Parent, in: parent.id, name: m.Name, temp: tempName()})
	for locked, tries := 0, 0; tries < maxPlaceTries; tries++ {
		fd, err := n.join(parent.fd)
		if err == unix.ENOENT {
			fd, err = n.make(parent.fd, m.Dir)
		}
		switch {
		case err == nil:
			h.fd, h.note = fd, n
			return nil
		case err == errNotOurs:
			n.drop()
			return nil
		case err == errLocked && locked < maxLocked:
			// Another agent is removing the placeholder, which takes
			// microseconds. A flock that waits would wait without a limit, and
			// any process that can read the object can keep it locked.
			locked++
			time.Sleep(time.Millisecond)
		case err == errLocked:
			if err = n.replace(parent.fd, filepath.Dir(p.ledger.file.Name())); err != nil {
				n.drop()
				if err == errNotOurs { // it stays, as any other object of that user would
					return nil
				}
				return err
			}
			locked = 0
		case err != errChanged && err != unix.EEXIST:
			p.settle(n)
			if cannotCreate(parent.fd, err) {
				return nil
			}
			if err == unix.EACCES {
				err = fmt.Errorf("%w: this user owns the folder but cannot write to it, so the name cannot be protected: "+
					"run chmod u+w on the folder, or do not let commands write to it", err)
			}
			return err
		}
	}
	n.drop()
	return errors.New("others keep changing what is there")
}

// removeLocked gives the object up, and removes it unless another agent needs it.
func (h *placeholder) removeLocked(p *Placeholders, parent *parentDir) {
	if h.fd < 0 {
		return
	}
	if h.note.retire(parent, h.fd) {
		h.note.drop()
	} else {
		p.leave(h.note)
	}
	_ = unix.Close(h.fd)
	h.fd = -1
}
