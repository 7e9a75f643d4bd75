package threadlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/uuid"
)

// ErrInUse says that a thread is open already, in this program or in another one.
var ErrInUse = errors.New("the thread is in use")

// A Store is a folder of threads and their names. Any number of programs may use the same
// folder. All methods may be called concurrently.
type Store struct {
	root *os.Root
}

// OpenStore opens the folder dir, which it creates with the mode 0700 if it is missing; one that
// exists keeps its mode. Close it when done.
func OpenStore(dir string) (*Store, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("opening a store: %w", err)
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, fmt.Errorf("opening a store: %w", err)
	}
	return &Store{root}, nil
}

// Close closes the folder. Threads that are open stay open.
func (s *Store) Close() error { return s.root.Close() }

// Create makes a thread and opens it. After a crash, the thread either exists with its first record
// on disk, or does not exist. The store sets the ID, the Timestamp and the members about forks of
// m. It refuses a selection that is no JSON array, and with [ErrTooLarge] a selection of more than
// [MaxSelection] bytes.
func (s *Store) Create(m Meta) (*Thread, error) {
	m.ForkedFromID, m.HistoryBase = "", nil
	t, err := s.create(m)
	if err != nil {
		return nil, fmt.Errorf("creating a thread: %w", err)
	}
	return t, nil
}

func (s *Store) create(m Meta) (_ *Thread, err error) {
	if m.SelectedCapabilityRoots, err = compactSelection("selected_capability_roots", m.SelectedCapabilityRoots); err != nil {
		return nil, err
	}
	if m.Environments, err = compactSelection("environments", m.Environments); err != nil {
		return nil, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	m.ID, m.Timestamp = id.String(), now()
	// The file gets its name when the first record is on disk. A file that a crash leaves under the
	// other name is never read.
	name := m.ID + ".new"
	f, err := s.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), s.root.Remove(name))
		}
	}()
	if err := lock(f); err != nil {
		return nil, err
	}
	t := &Thread{file: f, meta: m, environments: m.Environments}
	if err := t.append(TypeSessionMeta, m); err != nil {
		return nil, err
	}
	if err := t.Sync(); err != nil {
		return nil, err
	}
	if err := s.root.Rename(name, file(m.ID)); err != nil {
		return nil, err
	}
	name = file(m.ID)
	return t, s.sync()
}

// Open resumes a thread: it restores its first record and the last selection of environments, and
// new records are appended. The rest of a record that a crash cut short is removed. The id is a
// UUID in its usual form of 36 characters; [Store.Find] returns the id for a name. Open reads the
// whole file, but no file of an ancestor.
//
// The error is [ErrInUse] if the thread is open, [fs.ErrNotExist] if there is none, and a
// [CorruptError] if a line is not a record.
func (s *Store) Open(id string) (*Thread, error) {
	t, err := s.open(id)
	if err != nil {
		return nil, fmt.Errorf("opening thread %.64q: %w", id, err)
	}
	return t, nil
}

func (s *Store) open(id string) (_ *Thread, err error) {
	if id, err = canonical(id); err != nil {
		return nil, err
	}
	f, _, err := s.openThread(id, os.O_RDWR)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, unlock(f), f.Close())
		}
	}()
	if err := lock(f); err != nil {
		return nil, err
	}
	t := &Thread{file: f}
	r := newReader(f.Name(), f, MaxRecord, filePlace{})
	if t.meta, err = r.meta(id); err != nil {
		return nil, err
	}
	t.environments = t.meta.Environments
	for {
		record, err := r.record(id)
		if errors.Is(err, errTorn) {
			if err := f.Truncate(r.at.offset); err != nil {
				return nil, fmt.Errorf("cutting off what a crash left of a record: %w", err)
			}
			t.dirty = true
		}
		if atEnd(err) {
			t.end = r.at
			return t, nil
		} else if err != nil {
			return nil, err
		}
		if chosen, err := chosen(record); err != nil {
			return nil, r.corrupt(err)
		} else if chosen != nil {
			t.environments = chosen
		}
	}
}

// openThread opens the file of a thread and returns its size.
func (s *Store) openThread(id string, flag int) (*os.File, int64, error) {
	return s.openFile(file(id), flag, MaxThread)
}

// stat describes a file of the folder. Anything but a regular file is refused, because a link could
// lead to the file of another thread, which would be locked and appended to, and opening a FIFO
// does not return.
func (s *Store) stat(name string) (fs.FileInfo, error) {
	info, err := s.root.Lstat(name)
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file", s.path(name))
	}
	return info, err
}

// openFile opens a file of the folder and returns its size, which must not exceed limit.
func (s *Store) openFile(name string, flag int, limit int64) (*os.File, int64, error) {
	before, err := s.stat(name)
	if err != nil {
		return nil, 0, err
	}
	f, err := s.root.OpenFile(name, flag, 0)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !os.SameFile(before, info):
		err = fmt.Errorf("%s was replaced while it was opened", f.Name())
	case info.Size() > limit:
		err = fmt.Errorf("%w: %s has %d bytes, %d are allowed", ErrTooLarge, f.Name(), info.Size(), limit)
	default:
		return f, info.Size(), nil
	}
	return nil, 0, errors.Join(err, f.Close())
}

// sync waits until the names in the folder are on disk.
func (s *Store) sync() error {
	d, err := s.root.Open(".")
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// file returns the name of the file of a thread.
func file(id string) string { return id + ".jsonl" }

// path returns the name of a file of the store, for errors.
func (s *Store) path(name string) string { return filepath.Join(s.root.Name(), name) }

// canonical returns a UUID in small letters. It refuses anything else, because that could name
// another file.
func canonical(id string) (string, error) {
	u, err := uuid.Parse(id)
	if err != nil || len(id) != len(u.String()) {
		return "", fmt.Errorf("%.64q is not a UUID", id)
	}
	return u.String(), nil
}
