package threadlog

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/google/uuid"
)

// ErrInUse says that a thread is open already, in this program or in another one.
var ErrInUse = errors.New("the thread is in use")

// AllTurns is a fork with the whole history.
const AllTurns = -1

// A Store is a folder of threads and their names. Any number of programs may have the same
// one. All methods may be called at once.
type Store struct {
	root *os.Root
}

// OpenStore opens the folder dir, which it creates with the mode 0700 if it is missing. Close
// it when done.
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

// Create makes a thread and opens it. Its first record is on disk then. Of m, the ID, the
// Timestamp and what a fork has are set by the store. Selections that are no JSON arrays are
// refused, and [ErrTooLarge] those with too many bytes.
func (s *Store) Create(m Meta) (*Thread, error) {
	m.ForkedFromID, m.HistoryBase = "", nil
	t, err := s.create(m)
	if err != nil {
		return nil, fmt.Errorf("creating a thread: %w", err)
	}
	return t, nil
}

func (s *Store) create(m Meta) (_ *Thread, err error) {
	if m.SelectedCapabilityRoots, err = selection("selected capability roots", m.SelectedCapabilityRoots); err != nil {
		return nil, err
	}
	if m.Environments, err = selection("environments", m.Environments); err != nil {
		return nil, err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	m.ID, m.Timestamp = id.String(), now()
	name := file(m.ID)
	f, err := s.root.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, err
	}
	t := &Thread{file: f, meta: m, environments: m.Environments}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close(), s.root.Remove(name))
		}
	}()
	if err := lock(f); err != nil {
		return nil, err
	}
	if err := t.append(TypeSessionMeta, m); err != nil {
		return nil, err
	}
	if err := t.Sync(); err != nil {
		return nil, err
	}
	return t, s.sync()
}

// Open resumes a thread: what it was created with and the last selection of environments are
// there again, and records are appended to those that there are. What a crash left of a last
// record is cut off. The id is a UUID in its usual form of 36 characters.
//
// The error is [ErrInUse] if the thread is open, [fs.ErrNotExist] if there is none or a crash
// left nothing of it, and a [CorruptError] if a line is not a record.
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
	f, _, err := s.openFile(id, os.O_RDWR)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, f.Close())
		}
	}()
	if err := lock(f); err != nil {
		return nil, err
	}
	t := &Thread{file: f}
	r := newReader(f.Name(), f, MaxRecord, 0, 0)
	if t.meta, err = readMeta(r, id); err != nil {
		return nil, err
	}
	t.environments = t.meta.Environments
	for {
		record, err := r.record(id)
		if errors.Is(err, errTorn) {
			if err := f.Truncate(r.offset); err != nil {
				return nil, fmt.Errorf("cutting off what a crash left of a record: %w", err)
			}
			t.dirty = true
		} else if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		t.size, t.records = r.offset, r.lines
		if err != nil {
			return t, nil
		}
		if chosen, err := chosen(record); err != nil {
			return nil, r.corrupt(err)
		} else if chosen != nil {
			t.environments = chosen
		}
	}
}

// openFile opens the file of a thread and returns its size.
func (s *Store) openFile(id string, flag int) (*os.File, int64, error) {
	f, err := s.root.OpenFile(file(id), flag, 0)
	if err != nil {
		return nil, 0, err
	}
	info, err := f.Stat()
	switch {
	case err != nil:
	case !info.Mode().IsRegular():
		err = fmt.Errorf("%s is not a regular file", f.Name())
	case info.Size() > MaxThread:
		err = fmt.Errorf("%w: %s has %d bytes, %d are allowed", ErrTooLarge, f.Name(), info.Size(), MaxThread)
	default:
		return f, info.Size(), nil
	}
	return nil, 0, errors.Join(err, f.Close())
}

// readMeta reads the first record of the thread id.
func readMeta(r *reader, id string) (Meta, error) {
	record, err := r.record(id)
	if errors.Is(err, errTorn) || errors.Is(err, io.EOF) {
		return Meta{}, fmt.Errorf("%s: %w: a crash left no whole record", r.file, fs.ErrNotExist)
	} else if err != nil {
		return Meta{}, err
	}
	m, err := decodeMeta(record, id)
	if err != nil {
		return Meta{}, r.corrupt(err)
	}
	return m, nil
}

// sync has the names of the folder on disk.
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

// canonical returns a UUID in small letters. Whatever else could name a file is refused.
func canonical(id string) (string, error) {
	u, err := uuid.Parse(id)
	if err != nil || len(id) != len(u.String()) {
		return "", fmt.Errorf("%.64q is not a UUID", id)
	}
	return u.String(), nil
}
