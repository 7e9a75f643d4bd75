package sessions

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/execagent/execagent/client"
	"github.com/execagent/execagent/protocol"
)

// Logs prints the output of a process. Its fields say which part, and how.
type Logs struct {
	Stdout, Stderr io.Writer
	// Missing is called at a gap, where the agent has not kept output.
	Missing func()
	// Omitted is called where a bound on the output has left out bytes.
	Omitted    func(bytes uint64)
	Follow     bool      // also print later output, until the process ends
	Timestamps bool      // print the time before each line
	Since      time.Time // print no earlier output
	Tail       *uint64   // print at most this many lines of the output so far; nil: all

	after   uint64  // the number of the last event that was seen
	exited  bool    // the exit event was seen
	guessed bool    // exited is a guess, because the missing number may be that of lost output
	late    bool    // the guess was wrong, because the exit came later: output is missing
	missing bool    // output is missing, and nothing was printed after the gap
	within  [2]bool // the output is within a line: of standard output, of standard error
	begun   [2]bool // something was printed: to standard output, to standard error
	broken  bool    // the first printed line may have lost its beginning
	line    []byte  // memory for stamped
}

// Print prints the output of a process.
func (l *Logs) Print(ctx context.Context, o *client.Observer, processID string) error {
	if l.Tail != nil {
		if err := l.printTail(ctx, o, processID); err != nil || !l.Follow {
			return err
		}
	}
	for r, err := range o.Follow(ctx, processID, l.after, l.Follow) {
		if err != nil {
			return err
		}
		if l.note(r) {
			l.missing = true
		}
		for i := range r.Chunks {
			if err := l.write(&r.Chunks[i]); err != nil {
				return err
			}
		}
	}
	if (l.missing || l.late) && l.Since.IsZero() {
		l.Missing()
	}
	return nil
}

// printTail prints the last lines of the output that is kept. It holds no more than these lines in
// memory.
func (l *Logs) printTail(ctx context.Context, o *client.Observer, processID string) error {
	var (
		kept  []protocol.OutputChunk
		lines uint64 // newlines in kept
		whole = true // nothing was dropped
	)
	for r, err := range o.Follow(ctx, processID, 0, false) {
		if err != nil {
			return err
		}
		if l.note(r) {
			kept, lines, whole, l.missing = nil, 0, true, true
		}
		for _, chunk := range r.Chunks {
			kept = append(kept, chunk)
			lines += uint64(bytes.Count(chunk.Chunk, []byte{'\n'}))
		}
		// Keep one line more than requested, because the last line may not have ended.
		for len(kept) > 1 {
			n := uint64(bytes.Count(kept[0].Chunk, []byte{'\n'}))
			if lines-n <= *l.Tail {
				break
			}
			kept, lines, whole = kept[1:], lines-n, false
		}
	}
	kept, cut := lastLines(kept, *l.Tail)
	l.missing = (l.missing || l.late) && whole && !cut
	l.late = false
	for i := range kept {
		if err := l.write(&kept[i]); err != nil {
			return err
		}
	}
	if l.missing && !l.Follow && l.Since.IsZero() {
		l.Missing()
	}
	return nil
}

// lastLines cuts chunks down to the last n lines of both streams together, and reports whether
// anything was cut.
func lastLines(chunks []protocol.OutputChunk, n uint64) (rest []protocol.OutputChunk, cut bool) {
	if n == 0 {
		return nil, len(chunks) > 0
	}
	last := true
	for i := len(chunks) - 1; i >= 0; i-- {
		data := chunks[i].Chunk
		end := len(data)
		if last && end > 0 && data[end-1] == '\n' {
			end-- // this newline ends the last line, and begins no other
		}
		last = last && len(data) == 0
		for {
			at := bytes.LastIndexByte(data[:end], '\n')
			if at < 0 {
				break
			}
			if n--; n == 0 {
				chunks[i].Chunk = data[at+1:]
				return chunks[i:], true
			}
			end = at
		}
	}
	return chunks, false
}

// note records a result, and reports whether output is missing before it. An agent drops only
// output that is older than all output that it keeps. So a missing number between or after chunks
// is the number of the exit or of the end, not of output.
func (l *Logs) note(r *protocol.ReadResult) (missing bool) {
	through := r.NextSeq - 1
	if through <= l.after {
		return false
	}
	others := through - l.after - min(uint64(len(r.Chunks)), through-l.after)
	before := others // the first chunk
	if len(r.Chunks) > 0 {
		first := r.Chunks[0].Seq
		before = min(others, first-min(first, l.after+1))
	}
	l.after = through
	switch exit := r.Exited && !l.exited; {
	case len(r.Chunks) == 0:
		if r.Closed && before > 0 {
			before--
		}
		if before > 0 && r.Exited && (exit || l.guessed) {
			before--
			l.exited, l.guessed, l.late = true, false, l.guessed
		}
	case others > before:
		l.exited = l.exited || r.Exited
	case before == 1 && exit:
		l.exited, l.guessed, before = true, true, 0
	}
	return before > 0
}

// write prints a chunk.
func (l *Logs) write(chunk *protocol.OutputChunk) error {
	var atMs int64
	if chunk.AtMs != nil {
		atMs = *chunk.AtMs
	}
	if !l.Since.IsZero() && atMs < l.Since.UnixMilli() {
		l.missing = false // the missing output is older
		return nil
	}
	if l.missing {
		l.missing = false
		l.Missing()
		l.broken = true
	}
	w, i := l.Stdout, 0
	if chunk.Stream == protocol.StreamStderr {
		w, i = l.Stderr, 1
	}
	if chunk.Omitted > 0 {
		l.Omitted(chunk.Omitted)
	}
	data, within := chunk.Chunk, &l.within[i]
	if l.broken && !l.begun[i] {
		if _, lines, ok := bytes.Cut(data, []byte{'\n'}); ok && len(lines) > 0 {
			data = lines
		}
	}
	l.begun[i] = true
	if l.Timestamps {
		data = l.stamped(data, within, atMs)
	}
	_, err := w.Write(data)
	return err
}

// stamped puts the time before each line.
func (l *Logs) stamped(data []byte, within *bool, atMs int64) []byte {
	stamp := at(atMs).Format("2006-01-02T15:04:05.000Z ")
	l.line = l.line[:0]
	for line := range bytes.Lines(data) {
		if !*within {
			l.line = append(l.line, stamp...)
		}
		l.line = append(l.line, line...)
		*within = line[len(line)-1] != '\n'
	}
	return l.line
}

// ParseSince reads a point in time: a duration before now, seconds since 1970, or a date with or
// without a time.
func ParseSince(text string, now time.Time) (time.Time, error) {
	if d, err := time.ParseDuration(text); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	if seconds, err := strconv.ParseInt(text, 10, 64); err == nil && seconds >= 0 {
		return time.Unix(seconds, 0), nil
	}
	for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05", "2006-01-02T15:04", time.DateTime, time.DateOnly} {
		if t, err := time.ParseInLocation(layout, text, now.Location()); err == nil {
			return t, nil
		}
	}
	return time.Time{}, fmt.Errorf("%.64q is not a duration such as 10m or a time such as 2026-01-31T15:04:05Z", text)
}
