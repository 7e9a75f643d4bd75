package placeholder

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"os"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"
)

// ledger says where one agent has placeholders, or is about to. It is a file
// that the agent keeps locked: when another agent can lock it, the first one is
// dead, whatever it died of and in whichever pid namespace it ran. Nothing is
// synced: the file has to outlive the process, not the kernel.
type ledger struct {
	file *os.File
	// step is set by tests. It is called between the steps of making and removing
	// a placeholder, with the name of what was just done.
	step func(string)

	mu   sync.Mutex
	free []slot // below end
	end  slot   // the first that was never used
}

// slot is the number of a record in a ledger.
type slot int64

// record is one placeholder, written before the first step of making it and
// again when more is known.
type record struct {
	parent string   // canonical
	in     objectID // the directory at parent
	name   string
	// temp is the temporary name at which the placeholder is made, or removed. It
	// is chosen anew and recorded before each use, so that nobody can have put
	// anything there.
	temp   string
	object objectID // the placeholder; zero until it is made
}

// note is a record and its slot in the ledger. Its methods may not be called at
// once.
type note struct {
	record
	ledger *ledger
	slot   slot
}

const (
	ledgerPrefix = "placeholders-"
	// tempPrefix is what a temporary name begins with.
	tempPrefix = ".execagent-"
	// slotSize is the size of a slot in bytes. It has room for a path (PATH_MAX),
	// a name (NAME_MAX), a temporary name, the identities and the header.
	slotSize   = 4608
	slotHeader = 8     // length and checksum of what follows; length 0: free
	identities = 4 * 8 // device and inode number of the directory and the object
	// maxLedger is how many slots are read of the ledger of a dead agent.
	maxLedger = 1 << 16
)

// newLedger makes a ledger in dir.
func newLedger(dir string) (*ledger, error) {
	for {
		path := filepath.Join(dir, ledgerPrefix+rand.Text())
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return nil, err
		}
		ok, err := lockLedger(file)
		if err == nil && ok {
			return &ledger{file: file}, nil
		}
		_ = file.Close()
		if err != nil {
			return nil, err
		}
		// Between our two calls another agent locked the file: it took the file
		// for a dead agent's.
	}
}

// lockLedger reports whether it has locked the file, and the file still has its
// name. If not, the ledger's agent lives, or another agent is settling it or has.
func lockLedger(file *os.File) (bool, error) {
	switch err := unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB); err {
	case nil:
	case unix.EWOULDBLOCK:
		return false, nil
	default:
		return false, &os.PathError{Op: "flock", Path: file.Name(), Err: err}
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(file.Fd()), &st); err != nil {
		return false, &os.PathError{Op: "fstat", Path: file.Name(), Err: err}
	}
	return st.Nlink > 0, nil
}

// isLedger reports whether file is one that an agent of this user can have made
// and nobody else can.
func isLedger(file *os.File) bool {
	var st unix.Stat_t
	return unix.Fstat(int(file.Fd()), &st) == nil && st.Mode&unix.S_IFMT == unix.S_IFREG &&
		st.Nlink == 1 && int(st.Uid) == os.Geteuid() && st.Mode&0o7177 == 0
}

// deadLedgers opens and locks the ledgers in dir whose agents are dead. It leaves
// alone what is no ledger. The caller has to close the files, also after an error.
func deadLedgers(dir string) ([]*os.File, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var dead []*os.File
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), ledgerPrefix) || !entry.Type().IsRegular() {
			continue
		}
		file, err := os.OpenFile(filepath.Join(dir, entry.Name()), os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if errors.Is(err, os.ErrNotExist) {
			continue // its agent has ended
		}
		if err != nil {
			return dead, err
		}
		if !isLedger(file) {
			_ = file.Close()
			continue
		}
		switch ok, err := lockLedger(file); {
		case err != nil:
			return append(dead, file), err
		case ok:
			dead = append(dead, file)
		default:
			_ = file.Close()
		}
	}
	return dead, nil
}

// readLedger returns the records of a dead agent. It leaves out a record that the
// agent was writing when it died, as no object was made for that yet.
func readLedger(file *os.File) ([]record, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	var records []record
	buf := make([]byte, slotSize)
	for at := range min((info.Size()+slotSize-1)/slotSize, maxLedger) {
		n, err := file.ReadAt(buf, at*slotSize)
		if n == 0 {
			return records, err
		}
		if r, ok := decodeRecord(buf[:n]); ok {
			records = append(records, r)
		}
	}
	return records, nil
}

// note finds a slot for a record; put writes the record into it.
func (l *ledger) note(r record) *note {
	l.mu.Lock()
	defer l.mu.Unlock()
	at := l.end
	if n := len(l.free); n > 0 {
		at, l.free = l.free[n-1], l.free[:n-1]
	} else {
		l.end++
	}
	return &note{record: r, ledger: l, slot: at}
}

// put writes the record as it is now.
func (n *note) put() error {
	data, err := n.encode()
	if err == nil {
		_, err = n.ledger.file.WriteAt(data, int64(n.slot)*slotSize)
	}
	if err != nil {
		return fmt.Errorf("recording the placeholder %s/%s: %w", n.parent, n.name, err)
	}
	return nil
}

// drop frees the slot of a note whose object is gone or not ours any more.
func (n *note) drop() {
	// If this fails, the record stays in the file: the next agent will look
	// there and find nothing of ours.
	_, _ = n.ledger.file.WriteAt(make([]byte, slotHeader), int64(n.slot)*slotSize)
	n.ledger.mu.Lock()
	defer n.ledger.mu.Unlock()
	n.ledger.free = append(n.ledger.free, n.slot)
}

// at tells a test that a step was done.
func (l *ledger) at(step string) {
	if l.step != nil {
		l.step(step)
	}
}

// close ends the ledger. Unless it is empty, the file stays for the next agent.
func (l *ledger) close(empty bool) error {
	var err error
	if empty {
		err = os.Remove(l.file.Name())
	}
	return errors.Join(err, l.file.Close())
}

func (r record) encode() ([]byte, error) {
	data := make([]byte, slotHeader, slotHeader+identities+len(r.parent)+len(r.name)+len(r.temp)+2)
	for _, n := range []uint64{r.in.dev, r.in.ino, r.object.dev, r.object.ino} {
		data = binary.NativeEndian.AppendUint64(data, n)
	}
	data = append(data, r.parent+"\x00"+r.name+"\x00"+r.temp...)
	if len(data) > slotSize {
		return nil, errors.New("the path is too long")
	}
	binary.NativeEndian.PutUint32(data, uint32(len(data)-slotHeader))
	binary.NativeEndian.PutUint32(data[4:], crc32.ChecksumIEEE(data[slotHeader:]))
	return data, nil
}

func decodeRecord(data []byte) (record, bool) {
	if len(data) < slotHeader {
		return record{}, false
	}
	size, sum := binary.NativeEndian.Uint32(data), binary.NativeEndian.Uint32(data[4:])
	data = data[slotHeader:]
	if size < identities || uint64(size) > uint64(len(data)) || crc32.ChecksumIEEE(data[:size]) != sum {
		return record{}, false
	}
	number := func(i int) uint64 { return binary.NativeEndian.Uint64(data[8*i:]) }
	fields := bytes.Split(data[identities:size], []byte{0})
	if len(fields) != 3 {
		return record{}, false
	}
	r := record{
		parent: string(fields[0]), name: string(fields[1]), temp: string(fields[2]),
		in: objectID{number(0), number(1)}, object: objectID{number(2), number(3)},
	}
	return r, plainPath(r.parent) && validName(r.name) && validName(r.temp) && strings.HasPrefix(r.temp, tempPrefix)
}

// plainPath reports whether path is absolute, clean and without a NUL.
func plainPath(path string) bool {
	return filepath.IsAbs(path) && filepath.Clean(path) == path && !strings.Contains(path, "\x00")
}

// validName reports whether name can be the name of an object in a directory.
func validName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}
