package threadlog

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
)

// MaxForks is how many threads a history may be spread over: the thread, its parent, the parent
// of that, and so on.
const MaxForks = 64

// segment is the part of a history that is in one file.
type segment struct {
	thread     string
	begin, end int64  // bytes of the file; end is -1 for all of it
	records    uint64 // before begin
	until      uint64 // records before end, unless that is -1
}

// entry is a record of a history with its place.
type entry struct {
	Record
	begin, end int64 // bytes of its file
}

// History returns the records of a thread, oldest first, with those of its ancestors that
// belong to it. First records ([Meta]) are left out. It takes no lock: the thread may be open,
// and what is appended meanwhile may be seen or not.
//
// The last pair has the error, if there is one, and no record: an [fs.ErrNotExist] if the file
// of the thread or an ancestor is missing, and a [CorruptError] if a line is not a record or
// a fork refers to what is not there.
func (s *Store) History(id string) iter.Seq2[Record, error] {
	return func(yield func(Record, error) bool) {
		_, segments, err := s.segments(id)
		if err == nil {
			for e, walked := range s.walk(segments) {
				if walked != nil {
					err = walked
				} else if !yield(e.Record, nil) {
					return
				}
			}
		}
		if err != nil {
			yield(Record{}, fmt.Errorf("history of thread %.64q: %w", id, err))
		}
	}
}

// Fork makes a thread that continues another one as it is now, and opens it. The other may be
// open. Roots and environments are inherited. The history of the fork is that of the other, of
// which no record is copied: all of it for [AllTurns], else its last turns, as many as given, a
// turn that runs included. With 0 the fork has no history.
//
// The error is [ErrTooLarge] for more than [MaxForks] generations, else as of [Store.Open] and
// [Store.Create]; ErrInUse is never returned.
func (s *Store) Fork(id string, lastTurns int) (*Thread, error) {
	t, err := s.fork(id, lastTurns)
	if err != nil {
		return nil, fmt.Errorf("forking thread %.64q: %w", id, err)
	}
	return t, nil
}

func (s *Store) fork(id string, lastTurns int) (*Thread, error) {
	if lastTurns < AllTurns {
		return nil, fmt.Errorf("%d turns: 0 or more are allowed, or AllTurns", lastTurns)
	}
	m, segments, err := s.segments(id)
	if err != nil {
		return nil, err
	}
	own := segments[len(segments)-1]
	base := &HistoryBase{ThreadID: own.thread, EndOrdinalExclusive: own.records, EndByteOffset: own.begin}
	if lastTurns <= 0 {
		segments = segments[len(segments)-1:] // for the end, and the selection in effect
	}
	var starts []HistoryStart // of the last turns, one more than asked for if there are more
	for e, err := range s.walk(segments) {
		if err != nil {
			return nil, err
		}
		if e.Type == TypeTurnStarted && lastTurns > 0 {
			if starts = append(starts, HistoryStart{e.ThreadID, e.Ordinal, e.begin}); len(starts) > lastTurns+1 {
				starts = slices.Delete(starts, 0, 1)
			}
		}
		if e.ThreadID != own.thread {
			continue
		}
		base.EndOrdinalExclusive, base.EndByteOffset = e.Ordinal+1, e.end
		chosen, err := chosen(e.Record)
		if err != nil {
			return nil, &CorruptError{s.path(file(own.thread)), e.Ordinal + 1, err}
		}
		if chosen != nil {
			m.Environments = chosen
		}
	}
	if lastTurns > 0 && len(starts) > lastTurns {
		base.Start = &starts[1]
	}
	m.ForkedFromID, m.HistoryBase = own.thread, base
	if lastTurns == 0 {
		m.HistoryBase = nil
	} else if err := s.settle(own.thread, base, len(segments)); err != nil {
		return nil, err
	}
	return s.create(m)
}

// settle makes sure that a fork may refer to base: its history is not spread over too many
// files, and what it refers to is on disk.
func (s *Store) settle(id string, base *HistoryBase, files int) error {
	if files >= MaxForks && base.Start == nil {
		return fmt.Errorf("%w: the history is spread over %d files, %d are allowed", ErrTooLarge, files+1, MaxForks)
	}
	f, _, err := s.openFile(id, os.O_RDONLY)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// segments returns what the thread began with, and the parts of its history, oldest first, the
// last one in its own file.
func (s *Store) segments(id string) (Meta, []segment, error) {
	id, err := canonical(id)
	if err != nil {
		return Meta{}, nil, err
	}
	own, next, err := s.segment(id)
	if err != nil {
		return Meta{}, nil, err
	}
	segments := []segment{next}
	var start *HistoryStart // the nearest one counts: those of ancestors lie before it
	for m := own; m.HistoryBase != nil; {
		base := m.HistoryBase
		refuse := func(format string, args ...any) (Meta, []segment, error) {
			return Meta{}, nil, &CorruptError{s.path(file(m.ID)), 1, fmt.Errorf(format, args...)}
		}
		if start == nil {
			start = base.Start
		}
		parent, err := canonical(base.ThreadID)
		if err != nil {
			return refuse("the thread that this one was forked from: %w", err)
		}
		if slices.ContainsFunc(segments, func(s segment) bool { return s.thread == parent }) {
			return refuse("the thread is an ancestor of itself")
		}
		if len(segments) == MaxForks {
			return refuse("%w: the history is spread over more than %d files", ErrTooLarge, MaxForks)
		}
		if m, next, err = s.segment(parent); err != nil {
			return Meta{}, nil, err
		}
		next.end, next.until = base.EndByteOffset, base.EndOrdinalExclusive
		starts := start != nil && start.ThreadID == parent
		if starts {
			next.begin, next.records = start.ByteOffset, start.Ordinal
		}
		if next.begin < 0 || next.begin > next.end || next.records > next.until {
			return refuse("the history in %s has no bytes from %d to %d", file(parent), next.begin, next.end)
		}
		segments = append(segments, next)
		if starts {
			start = nil
			break
		}
	}
	if start != nil {
		return Meta{}, nil, &CorruptError{s.path(file(id)), 1, fmt.Errorf("the history begins in %.64q, which is no ancestor", start.ThreadID)}
	}
	slices.Reverse(segments)
	return own, segments, nil
}

// segment returns what a thread began with, and all that follows in its file.
func (s *Store) segment(id string) (Meta, segment, error) {
	f, _, err := s.openFile(id, os.O_RDONLY)
	if err != nil {
		return Meta{}, segment{}, err
	}
	defer f.Close()
	r := newReader(f.Name(), f, MaxRecord, 0, 0)
	m, err := readMeta(r, id)
	return m, segment{thread: id, begin: r.offset, end: -1, records: r.lines}, err
}

// walk returns the records of segments. It ends after an error.
func (s *Store) walk(segments []segment) iter.Seq2[entry, error] {
	return func(yield func(entry, error) bool) {
		for _, part := range segments {
			if more, err := s.walkOne(part, yield); err != nil {
				yield(entry{}, err)
				return
			} else if !more {
				return
			}
		}
	}
}

// walkOne yields the records of one segment, and returns false once nobody wants more.
func (s *Store) walkOne(part segment, yield func(entry, error) bool) (more bool, err error) {
	f, size, err := s.openFile(part.thread, os.O_RDONLY)
	if err != nil {
		return false, err
	}
	defer f.Close()
	end := part.end
	if end < 0 {
		end = size
	}
	r := newReader(f.Name(), io.NewSectionReader(f, part.begin, end-part.begin), MaxRecord, part.records, part.begin)
	for {
		begin := r.offset
		record, err := r.record(part.thread)
		switch {
		case err == nil:
			if !yield(entry{record, begin, r.offset}, nil) {
				return false, nil
			}
		case part.end < 0 && (errors.Is(err, io.EOF) || errors.Is(err, errTorn)):
			return true, nil
		case errors.Is(err, io.EOF) && r.offset == part.end && r.lines == part.until:
			return true, nil
		case errors.Is(err, io.EOF) || errors.Is(err, errTorn):
			return false, r.corrupt(fmt.Errorf("a fork refers to %d records in %d bytes, which are not there", part.until, part.end))
		default:
			return false, err
		}
	}
}
