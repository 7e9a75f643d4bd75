package threadlog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/execagent/execagent/internal/strictjson"
)

const (
	// MaxName is how many bytes a name may have.
	MaxName = 512
	// MaxIndex is how many bytes the file of names may have, enough for more than 100,000 namings.
	// Beyond it, no thread can be named.
	MaxIndex = 16 << 20

	indexFile = "session_index.jsonl"
	maxNaming = 4096 // bytes of a line of indexFile: a name whose every byte is escaped, and the rest

	// Programs that write to indexFile do so one after the other. Each takes far less than
	// indexWait, unless it was stopped just then.
	indexWait  = 5 * time.Second
	indexPause = 5 * time.Millisecond
)

// Name is the name of a thread.
type Name struct {
	ID        string    `json:"id"`
	Name      string    `json:"thread_name"`
	UpdatedAt time.Time `json:"updated_at"` // when it was given
}

// naming is a line of the file of names.
type naming Name

// UnmarshalObject reads the line. One without an id names nothing, and one
// without a name takes the name of the thread away: this package writes neither.
func (n *naming) UnmarshalObject(o *strictjson.Object) {
	if o.Has("id") {
		o.Parse("id", func(text string) (err error) {
			n.ID, err = canonical(text)
			return err
		})
	}
	if n.Name = strings.TrimSpace(optional(o, "thread_name")); n.Name != "" {
		if err := checkName(n.Name); err != nil {
			o.Fail("thread_name", "%v", err)
		}
	}
	n.UpdatedAt = moment(o, "updated_at")
}

// checkName refuses names that cannot be found or printed.
func checkName(name string) error {
	switch {
	case name == "":
		return errors.New("the name is empty")
	case len(name) > MaxName:
		return fmt.Errorf("%w: the name has %d bytes, %d are allowed", ErrTooLarge, len(name), MaxName)
	case !utf8.ValidString(name):
		return errors.New("the name is not UTF-8")
	case strings.ContainsFunc(name, unicode.IsControl):
		return errors.New("the name has control characters")
	}
	return nil
}

// SetName names a thread, which may be open, and waits until the name is on disk. Spaces around the
// name are cut off. The rest must not be empty, have more than [MaxName] bytes or control
// characters, or be anything but UTF-8. Several threads may have the same name. The error is
// [fs.ErrNotExist] if there is no such thread.
func (s *Store) SetName(id, name string) error {
	if err := s.setName(id, strings.TrimSpace(name)); err != nil {
		return fmt.Errorf("naming thread %.64q: %w", id, err)
	}
	return nil
}

func (s *Store) setName(id, name string) (err error) {
	if id, err = canonical(id); err != nil {
		return err
	}
	if err := checkName(name); err != nil {
		return err
	}
	if _, err := s.stat(file(id)); err != nil {
		return err
	}
	f, err := s.openIndex()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := lockIndex(f); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, unlock(f)) }()
	end, err := wholeLines(f)
	if err != nil {
		return err
	}
	text, err := marshal(Name{id, name, now()})
	if err != nil {
		return err
	}
	if end+int64(len(text)) > MaxIndex {
		return fmt.Errorf("%w: %s has %d bytes, %d are allowed", ErrTooLarge, f.Name(), end, MaxIndex)
	}
	// A line that was cut short by a crash, or by this write, is cut off by the next naming.
	if err := f.Truncate(end); err != nil {
		return err
	}
	if _, err := f.WriteAt(text, end); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if end > 0 {
		return nil
	}
	return s.sync()
}

// openIndex opens the file of names for writing, and makes it if it is missing.
func (s *Store) openIndex() (*os.File, error) {
	f, err := s.root.OpenFile(indexFile, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if errors.Is(err, fs.ErrExist) {
		f, _, err = s.openFile(indexFile, os.O_RDWR, MaxIndex)
	}
	return f, err
}

// lockIndex waits for the lock of the file of names.
func lockIndex(f *os.File) error {
	for deadline := time.Now().Add(indexWait); ; time.Sleep(indexPause) {
		if err := lock(f); !errors.Is(err, ErrInUse) {
			return err
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("another program has kept %s locked for %v", f.Name(), indexWait)
		}
	}
}

// wholeLines returns how many bytes of the file of names are whole lines.
func wholeLines(f *os.File) (int64, error) {
	info, err := f.Stat()
	if err != nil {
		return 0, err
	}
	begin := max(0, info.Size()-maxNaming)
	tail := make([]byte, info.Size()-begin)
	if _, err := io.ReadFull(io.NewSectionReader(f, begin, int64(len(tail))), tail); err != nil {
		return 0, err
	}
	end := bytes.LastIndexByte(tail, '\n') + 1
	if end == 0 && begin > 0 {
		return 0, fmt.Errorf("%s: the last line has more than %d bytes", f.Name(), maxNaming)
	}
	return begin + int64(end), nil
}

// Find returns the id of the thread with the name, compared exactly except for spaces around it. Of
// several threads, it is the one named last. Former names, and threads whose file is gone, are not
// found. The error is [fs.ErrNotExist] if there is none, else as of [Store.Names].
func (s *Store) Find(name string) (id string, err error) {
	names, err := s.Names()
	if err != nil {
		return "", err
	}
	name = strings.TrimSpace(name)
	for _, n := range names {
		if n.Name == name {
			return n.ID, nil
		}
	}
	return "", fmt.Errorf("no thread has the name %.64q: %w", name, fs.ErrNotExist)
}

// Names returns the name of every named thread, the latest naming first. Names of threads whose
// file is gone are left out. A line of the file of names that this package could not have written
// is a [CorruptError], because skipping it might find the wrong thread.
func (s *Store) Names() ([]Name, error) {
	names, err := s.readNames()
	if err != nil {
		return nil, fmt.Errorf("reading names: %w", err)
	}
	return slices.DeleteFunc(names, func(n Name) bool {
		_, err := s.stat(file(n.ID))
		return err != nil
	}), nil
}

// readNames returns the last name of each thread, the last one first.
func (s *Store) readNames() ([]Name, error) {
	f, size, err := s.openFile(indexFile, os.O_RDONLY, MaxIndex)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	} else if err != nil {
		return nil, err
	}
	defer f.Close()
	r := newReader(f.Name(), io.LimitReader(f, size), maxNaming, filePlace{})
	var all []Name
	for {
		text, err := r.next()
		if atEnd(err) {
			break
		} else if err != nil {
			return nil, err
		}
		var n naming
		if err := strictjson.Unmarshal(text, &n); err != nil {
			return nil, r.corrupt(err)
		}
		all = append(all, Name(n))
	}
	slices.Reverse(all)
	seen := map[string]bool{"": true} // lines without an id name nothing
	return slices.DeleteFunc(all, func(n Name) bool {
		before := seen[n.ID]
		seen[n.ID] = true
		return before || n.Name == ""
	}), nil
}
