package threadlog

import (
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
)

const (
	// MaxGenerations is how many threads a history may span: the thread, its parent, its
	// grandparent, and so on.
	MaxGenerations = 64
	// MaxForkTurns is how many turns a bounded history may have at its beginning.
	MaxForkTurns = 10_000
	// AllTurns is a fork with the whole history.
	AllTurns = -1
)

// segment is the part of a history that is in one file.
type segment struct {
	thread string
	begin  filePlace
	end    *filePlace // nil: the end of the file
	fork   string     // the file that refers to this part, if end is given
}

// placedRecord is a record of a history with its place, and where the next one is.
type placedRecord struct {
	Record
	at, next filePlace
}

// History returns the records of a thread, oldest first, with those of its ancestors that belong to
// it. First records ([Meta]) are left out. It takes no lock: the thread may be open, and records
// appended at the same time may or may not be seen.
//
// The last pair has the error, if there is one, and no record: an [fs.ErrNotExist] if the file of
// the thread or an ancestor is missing, and a [CorruptError] if a line is not a record or a fork
// refers to a missing record.
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

// Fork makes a thread that continues another one as it is now, and opens it. The other may be open.
// Roots and environments are inherited. The history of the fork is the history of the other thread,
// without copying records: all of it for [AllTurns], else the given number of last turns, at most
// [MaxForkTurns], including a running turn. With 0 the fork has no history.
//
// The error is [ErrTooLarge] for more than [MaxGenerations], else as of [Store.History].
func (s *Store) Fork(id string, lastTurns int) (*Thread, error) {
	t, err := s.fork(id, lastTurns)
	if err != nil {
		return nil, fmt.Errorf("forking thread %.64q: %w", id, err)
	}
	return t, nil
}

func (s *Store) fork(id string, lastTurns int) (*Thread, error) {
	if lastTurns < AllTurns || lastTurns > MaxForkTurns {
		return nil, fmt.Errorf("%d turns: 0 to %d are allowed, or AllTurns", lastTurns, MaxForkTurns)
	}
	m, segments, err := s.segments(id)
	if err != nil {
		return nil, err
	}
	end, starts, err := s.survey(&m, segments, lastTurns)
	if err != nil {
		return nil, err
	}
	m.ForkedFromID, m.HistoryBase = m.ID, nil
	if lastTurns == 0 {
		return s.create(m)
	}
	base := &HistoryBase{ThreadID: m.ID, EndOrdinalExclusive: end.ordinal, EndByteOffset: end.offset}
	files := len(segments)
	if lastTurns > 0 && len(starts) > lastTurns {
		base.Start = &starts[1]
		files -= slices.IndexFunc(segments, func(part segment) bool { return part.thread == base.Start.ThreadID })
	}
	if files >= MaxGenerations {
		return nil, fmt.Errorf("%w: the history would be spread over %d threads, %d are allowed", ErrTooLarge, files+1, MaxGenerations)
	}
	// The history must be on disk before the fork that refers to it.
	f, _, err := s.openThread(m.ID, os.O_RDONLY)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return nil, err
	}
	m.HistoryBase = base
	return s.create(m)
}

// survey reads the facts for a fork of the thread of m: where its file ends now, and where its last
// turns began, one more than asked for if there are more. It sets in m the selection of
// environments in effect there.
func (s *Store) survey(m *Meta, segments []segment, lastTurns int) (end filePlace, starts []HistoryStart, err error) {
	own := segments[len(segments)-1]
	end = own.begin
	if lastTurns <= 0 {
		segments = []segment{own}
	}
	for e, err := range s.walk(segments) {
		if err != nil {
			return filePlace{}, nil, err
		}
		if e.Type == TypeTurnStarted && lastTurns > 0 {
			if len(starts) > lastTurns {
				starts = slices.Delete(starts, 0, 1)
			}
			starts = append(starts, HistoryStart{e.ThreadID, e.Ordinal, e.at.offset})
		}
		if e.ThreadID != own.thread {
			continue
		}
		end = e.next
		chosen, err := chosen(e.Record)
		if err != nil {
			return filePlace{}, nil, &CorruptError{s.path(file(own.thread)), e.Ordinal + 1, err}
		}
		if chosen != nil {
			m.Environments = chosen
		}
	}
	return end, starts, nil
}

// segments returns the first record of the thread, and the parts of its history, oldest first, the
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
	refuse := func(child, format string, args ...any) (Meta, []segment, error) {
		return Meta{}, nil, &CorruptError{child, 1, fmt.Errorf("payload: history_base: "+format, args...)}
	}
	// The nearest descendant with a bounded history says where the history begins: the beginnings
	// of ancestors lie before that.
	var start *HistoryStart
	var startIn string // the file that says so
	for m := own; m.HistoryBase != nil; {
		base, child := m.HistoryBase, s.path(file(m.ID))
		if start == nil {
			start, startIn = base.Start, child
		}
		if slices.ContainsFunc(segments, func(part segment) bool { return part.thread == base.ThreadID }) {
			return refuse(child, "thread_id: the thread is an ancestor of itself")
		}
		if len(segments) == MaxGenerations {
			return refuse(child, "thread_id: %w: the history is spread over more than %d threads", ErrTooLarge, MaxGenerations)
		}
		if m, next, err = s.segment(base.ThreadID); err != nil {
			return Meta{}, nil, fmt.Errorf("ancestor: %w", err)
		}
		next.end, next.fork = &filePlace{base.EndOrdinalExclusive, base.EndByteOffset}, child
		if !next.begin.notAfter(*next.end) {
			return refuse(child, "the end lies in the first record")
		}
		begins := start != nil && start.ThreadID == base.ThreadID
		if begins {
			at := filePlace{start.Ordinal, start.ByteOffset}
			if !next.begin.notAfter(at) || !at.notAfter(*next.end) {
				return refuse(startIn, "start: it lies outside of the history")
			}
			next.begin = at
		}
		segments = append(segments, next)
		if begins {
			start = nil
			break
		}
	}
	if start != nil {
		return refuse(startIn, "start: thread_id: %s is no ancestor", start.ThreadID)
	}
	slices.Reverse(segments)
	return own, segments, nil
}

// notAfter reports whether p comes before q in a file, or is the same place.
func (p filePlace) notAfter(q filePlace) bool { return p.ordinal <= q.ordinal && p.offset <= q.offset }

// segment returns the first record of a thread, and the rest of its file.
func (s *Store) segment(id string) (Meta, segment, error) {
	f, _, err := s.openThread(id, os.O_RDONLY)
	if err != nil {
		return Meta{}, segment{}, err
	}
	defer f.Close()
	r := newReader(f.Name(), f, MaxRecord, filePlace{})
	m, err := r.meta(id)
	return m, segment{thread: id, begin: r.at}, err
}

// walk returns the records of segments. It ends after an error.
func (s *Store) walk(segments []segment) iter.Seq2[placedRecord, error] {
	return func(yield func(placedRecord, error) bool) {
		for _, part := range segments {
			if more, err := s.walkOne(part, yield); err != nil {
				yield(placedRecord{}, err)
				return
			} else if !more {
				return
			}
		}
	}
}

// walkOne yields the records of one segment, and returns false once yield does.
func (s *Store) walkOne(part segment, yield func(placedRecord, error) bool) (more bool, err error) {
	f, size, err := s.openThread(part.thread, os.O_RDONLY)
	if err != nil {
		return false, err
	}
	defer f.Close()
	end := size
	if part.end != nil {
		end = part.end.offset
	}
	r := newReader(f.Name(), io.NewSectionReader(f, part.begin.offset, end-part.begin.offset), MaxRecord, part.begin)
	for {
		at := r.at
		record, err := r.record(part.thread)
		switch {
		case err == nil:
			if !yield(placedRecord{record, at, r.at}, nil) {
				return false, nil
			}
		case !atEnd(err):
			return false, err
		case part.end != nil && r.at != *part.end:
			return false, &CorruptError{part.fork, 1, fmt.Errorf("payload: history_base: %s has no %d records in %d bytes",
				f.Name(), part.end.ordinal, part.end.offset)}
		default:
			return true, nil
		}
	}
}
