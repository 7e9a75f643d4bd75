package threadlog

import (
	"bufio"
	"errors"
	"fmt"
	"io"
)

// CorruptError says that a line of a file is malformed. Nothing was changed.
type CorruptError struct {
	File string
	Line uint64 // from 1
	Err  error  // names the member of the line
}

// Error returns the file, the line and the cause.
func (e *CorruptError) Error() string { return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err) }

func (e *CorruptError) Unwrap() error { return e.Err }

// errTorn says that a file ends within a line.
var errTorn = errors.New("the line does not end")

// atEnd reports whether err says that there are no more whole lines.
func atEnd(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, errTorn) }

// filePlace is where a line of a file begins.
type filePlace struct {
	ordinal uint64 // lines before it
	offset  int64  // bytes before it
}

// reader reads whole lines and knows where they are.
type reader struct {
	file   string
	max    int // bytes of a line, with the line break
	source *bufio.Reader
	text   []byte    // the last line
	at     filePlace // of the next line
	last   uint64    // the line that was read last, from 1
}

// newReader reads the lines of source, the first of which is at the given place.
func newReader(file string, source io.Reader, limit int, at filePlace) *reader {
	return &reader{file: file, max: limit, source: bufio.NewReader(source), at: at}
}

// next returns a line without its line break, until the next call. At the end of the source
// it returns io.EOF, or errTorn if that is within a line.
func (r *reader) next() ([]byte, error) {
	r.text, r.last = r.text[:0], r.at.ordinal+1
	for {
		part, err := r.source.ReadSlice('\n')
		if len(r.text)+len(part) > r.max {
			return nil, r.corrupt(fmt.Errorf("the line has more than %d bytes", r.max))
		}
		r.text = append(r.text, part...)
		switch {
		case err == nil:
			r.at = filePlace{r.at.ordinal + 1, r.at.offset + int64(len(r.text))}
			return r.text[:len(r.text)-1], nil
		case errors.Is(err, bufio.ErrBufferFull):
		case errors.Is(err, io.EOF) && len(r.text) > 0:
			return nil, errTorn
		case errors.Is(err, io.EOF):
			return nil, io.EOF
		default:
			return nil, fmt.Errorf("reading %s: %w", r.file, err)
		}
	}
}

// record reads a line of the thread id as a record.
func (r *reader) record(id string) (Record, error) {
	ordinal := r.at.ordinal
	text, err := r.next()
	if err != nil {
		return Record{}, err
	}
	record, err := decodeRecord(text, id, ordinal)
	if err != nil {
		return Record{}, r.corrupt(err)
	}
	return record, nil
}

// meta reads the first record of the thread id. Every thread has one, because its file gets its
// name only after that record is on disk.
func (r *reader) meta(id string) (Meta, error) {
	record, err := r.record(id)
	if atEnd(err) {
		return Meta{}, r.corrupt(errors.New("there is no whole first record"))
	} else if err != nil {
		return Meta{}, err
	}
	m, err := decodeMeta(record)
	if err != nil {
		return Meta{}, r.corrupt(err)
	}
	return m, nil
}

// corrupt returns the error of the line that was read last.
func (r *reader) corrupt(err error) error { return &CorruptError{r.file, r.last, err} }
