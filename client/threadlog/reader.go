package threadlog

import (
	"bufio"
	"errors"
	"fmt"
	"io"
)

// CorruptError says that a line of a file is not what it should be. Nothing was changed.
type CorruptError struct {
	File string
	Line uint64 // from 1
	Err  error
}

// Error returns the file, the line and the cause.
func (e *CorruptError) Error() string { return fmt.Sprintf("%s:%d: %v", e.File, e.Line, e.Err) }

// Unwrap returns the cause.
func (e *CorruptError) Unwrap() error { return e.Err }

// errTorn says that a file ends within a line.
var errTorn = errors.New("the line does not end")

// reader reads whole lines and knows where they are.
type reader struct {
	file   string
	max    int // bytes of a line, with the line break
	source *bufio.Reader
	text   []byte // the last line

	lines  uint64 // of the file, that come before the next line
	offset int64  // of the next line
}

// newReader reads the lines of source. lines and offset are what of the file comes before it.
func newReader(file string, source io.Reader, limit int, lines uint64, offset int64) *reader {
	return &reader{file: file, max: limit, source: bufio.NewReader(source), lines: lines, offset: offset}
}

// next returns a line without its line break, until the next call. At the end of the source
// it returns io.EOF, or errTorn if that is within a line.
func (r *reader) next() ([]byte, error) {
	r.text = r.text[:0]
	for {
		part, err := r.source.ReadSlice('\n')
		if len(r.text)+len(part) > r.max {
			r.lines++
			return nil, r.corrupt(fmt.Errorf("the line has more than %d bytes", r.max))
		}
		r.text = append(r.text, part...)
		switch {
		case err == nil:
			r.lines++
			r.offset += int64(len(r.text))
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
	text, err := r.next()
	if err != nil {
		return Record{}, err
	}
	record, err := decodeRecord(text, id, r.lines-1)
	if err != nil {
		return Record{}, r.corrupt(err)
	}
	return record, nil
}

// corrupt returns the error of the line that was read last.
func (r *reader) corrupt(err error) error { return &CorruptError{r.file, r.lines, err} }
