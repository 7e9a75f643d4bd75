package sandbox

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

// journal says where one agent has placeholders, or is about to. It is a file
// that its agent keeps locked; who can lock it knows that the agent is dead,
// whatever it died of and in whichever pid namespace it ran. Nothing is synced:
// the file has to outlive the process, not the kernel.
type journal struct {
	file *os.File

	mu   sync.Mutex
	free []slot
	end  slot
}

// slot is the number of a record in a journal.
type slot int64

// record is one placeholder, written before the first step of making it.
type record struct {
	parent string // canonical
	name   string
	// temp is where it is made and, with a "-" behind, where it is removed.
	// Nobody else has chosen such a name.
	temp string
	dir  bool
}

const (
	journalPrefix = "placeholders-"
	// tempPrefix is what a temporary name begins with.
	tempPrefix = ".execagent-"
	// slotSize is in bytes: a path (PATH_MAX), a name (NAME_MAX), a temporary
	// name and the header.
	slotSize   = 4608
	slotHeader = 8 // length and checksum of what follows; length 0: free
	// maxJournal bounds what is read of the journal of a dead agent, in slots.
	maxJournal = 1 << 16
)

// newJournal makes a journal in dir.
func newJournal(dir string) (*journal, error) {
	for {
		path := filepath.Join(dir, journalPrefix+rand.Text())
		file, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
		if err != nil {
			return nil, err
		}
		ok, err := lockJournal(file)
		if err == nil && ok {
			return &journal{file: file}, nil
		}
		_ = file.Close()
		if err != nil {
			return nil, err
		}
		// Somebody who sweeps saw it before it was locked.
	}
}

// lockJournal tells whether file is now ours and still has its name.
func lockJournal(file *os.File) (bool, error) {
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

// deadJournals opens and locks the journals in dir whose agents are dead. The
// caller has to close them.
func deadJournals(dir string) ([]*os.File, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var dead []*os.File
	for _, entry := range entries {
		if !strings.HasPrefix(entry.Name(), journalPrefix) {
			continue
		}
		file, err := os.OpenFile(filepath.Join(dir, entry.Name()), os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
		if errors.Is(err, os.ErrNotExist) {
			continue // its agent has ended
		}
		if err != nil {
			return dead, err
		}
		switch ok, err := lockJournal(file); {
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

// readJournal returns the records of a dead agent. One that was being written
// when the agent died is not complete, and nothing was made for it.
func readJournal(file *os.File) ([]record, error) {
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	var records []record
	buf := make([]byte, slotSize)
	for at := range min((info.Size()+slotSize-1)/slotSize, maxJournal) {
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

// add writes a record.
func (j *journal) add(r record) (slot, error) {
	data, err := r.encode()
	if err != nil {
		return 0, err
	}
	j.mu.Lock()
	at := j.end
	if n := len(j.free); n > 0 {
		at, j.free = j.free[n-1], j.free[:n-1]
	} else {
		j.end++
	}
	j.mu.Unlock()
	if _, err := j.file.WriteAt(data, int64(at)*slotSize); err != nil {
		j.drop(at)
		return 0, fmt.Errorf("recording the placeholder %s/%s: %w", r.parent, r.name, err)
	}
	return at, nil
}

// drop forgets a record, whose object is gone or not ours any more.
func (j *journal) drop(at slot) {
	// If it cannot be written, a sweep looks at what is there and finds
	// nothing of ours.
	_, _ = j.file.WriteAt(make([]byte, slotHeader), int64(at)*slotSize)
	j.mu.Lock()
	defer j.mu.Unlock()
	j.free = append(j.free, at)
}

// close ends the journal. One that still has records stays for who sweeps.
func (j *journal) close(empty bool) error {
	var err error
	if empty {
		err = os.Remove(j.file.Name())
	}
	return errors.Join(err, j.file.Close())
}

func (r record) encode() ([]byte, error) {
	kind := "file"
	if r.dir {
		kind = "dir"
	}
	fields := []string{r.parent, r.name, r.temp, kind}
	data := append(make([]byte, slotHeader), strings.Join(fields, "\x00")...)
	if len(data) > slotSize {
		return nil, fmt.Errorf("the path of the placeholder %s/%s is too long", r.parent, r.name)
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
	if size == 0 || uint64(size) > uint64(len(data)) || crc32.ChecksumIEEE(data[:size]) != sum {
		return record{}, false
	}
	fields := bytes.Split(data[:size], []byte{0})
	if len(fields) != 4 {
		return record{}, false
	}
	r := record{parent: string(fields[0]), name: string(fields[1]), temp: string(fields[2]), dir: string(fields[3]) == "dir"}
	plain := filepath.IsAbs(r.parent) && validName(r.name) && validName(r.temp) && strings.HasPrefix(r.temp, tempPrefix)
	return r, plain
}

// validName tells whether name can be one of a directory's.
func validName(name string) bool {
	return name != "" && name != "." && name != ".." && !strings.ContainsAny(name, "/\x00")
}
