package threadlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	// MaxRecord is how many bytes a record may have in its file, with the line break.
	MaxRecord = 1 << 20
	// MaxThread is how many bytes the file of a thread may have. A fork begins a new file.
	MaxThread = 1 << 30
	// MaxSelection is how many bytes the selected roots may have, and how many a selection of
	// environments.
	MaxSelection = 256 << 10
	// MaxOutput is how many bytes of its output are kept of a process.
	MaxOutput = 10_000

	maxType = 64 // bytes of the type of a record
)

// The types of records that this package writes. Payloads of TypeSessionMeta are a [Meta],
// of TypeTurnStarted a [TurnStarted], of TypeTurnEnded a [TurnEnded], of TypeProcess a
// [Process].
const (
	TypeSessionMeta = "session_meta"
	TypeTurnStarted = "turn_started"
	TypeTurnEnded   = "turn_ended"
	TypeProcess     = "process"
)

// ErrTooLarge says that something has more bytes than its bound, which the text names. Nothing
// of it was written.
var ErrTooLarge = errors.New("too large")

// A Record is one line of a thread.
type Record struct {
	ThreadID  string // the thread in whose file it is: in the history of a fork often an ancestor
	Ordinal   uint64 // the number of records before it in that file
	Timestamp time.Time
	Type      string
	Payload   json.RawMessage // nil if the line has none
}

// Meta is what a thread begins with: the payload of its first record.
type Meta struct {
	ID        string    `json:"id"` // a UUIDv7, which the store chooses
	Timestamp time.Time `json:"timestamp"`
	// Originator is the program that writes the thread, and Cwd its working directory. Both may
	// be empty.
	Originator string `json:"originator,omitempty"`
	Cwd        string `json:"cwd,omitempty"`
	// SelectedCapabilityRoots is a JSON array as written, of at most [MaxSelection] bytes, or nil.
	// Nothing changes it, and forks inherit it (client.md 5.2).
	SelectedCapabilityRoots json.RawMessage `json:"selected_capability_roots,omitempty"`
	// Environments is the selection that the thread began with: a JSON array as written, of at
	// most MaxSelection bytes. Nil if there was no choice, which is not the same as an empty one.
	Environments json.RawMessage `json:"environments,omitempty"`
	// ForkedFromID is the thread that this one was forked from, if any.
	ForkedFromID string `json:"forked_from_id,omitempty"`
	// HistoryBase is the part of the history that is in other files; nil if none is.
	HistoryBase *HistoryBase `json:"history_base,omitempty"`
}

// HistoryBase refers to the history of another thread, up to an end.
type HistoryBase struct {
	ThreadID            string `json:"thread_id"`
	EndOrdinalExclusive uint64 `json:"end_ordinal_exclusive"` // records of its file before the end
	EndByteOffset       int64  `json:"end_byte_offset"`
	// Start is where a bounded history begins, in that thread or in an ancestor of it; nil for
	// its beginning.
	Start *HistoryStart `json:"start,omitempty"`
}

// HistoryStart is the place of a record.
type HistoryStart struct {
	ThreadID   string `json:"thread_id"`
	Ordinal    uint64 `json:"ordinal"`
	ByteOffset int64  `json:"byte_offset"`
}

// TurnStarted says that a turn has begun.
type TurnStarted struct {
	TurnID string `json:"turn_id"` // a UUIDv7
	// Environments is the selection that this turn works with, as [Meta.Environments] is that
	// of the beginning; nil if neither the thread nor a turn ever had one.
	Environments json.RawMessage `json:"environments,omitempty"`
}

// TurnEnded says that a turn has ended, and how.
type TurnEnded struct {
	TurnID string     `json:"turn_id"`
	Status TurnStatus `json:"status"`
}

// TurnStatus is how a turn ended. Other versions may write other words.
type TurnStatus string

// How a turn ends.
const (
	TurnCompleted   TurnStatus = "completed"
	TurnInterrupted TurnStatus = "interrupted" // somebody stopped it
	TurnFailed      TurnStatus = "failed"
)

// Process refers to a process that the thread ran. A process may have several records, one when
// it is started and one when it has ended: the last one says what is known.
type Process struct {
	ProcessID     string        `json:"process_id"`     // as in process/start; not empty
	EnvironmentID string        `json:"environment_id"` // where it ran
	Argv          []string      `json:"argv"`
	Status        ProcessStatus `json:"status"`
	ExitCode      *int          `json:"exit_code,omitempty"` // nil unless it is known
	// Output is a summary for people and models: the first [MaxOutput] bytes at most. Bytes that
	// are not UTF-8 are replaced by U+FFFD.
	Output    string `json:"output,omitempty"`
	OutputCut bool   `json:"output_cut,omitempty"` // there was more output than Output
}

// ProcessStatus is what is known of a process. Other versions may write other words.
type ProcessStatus string

// What is known of a process.
const (
	Running ProcessStatus = "running"
	Exited  ProcessStatus = "exited" // by itself or by a signal
	Failed  ProcessStatus = "failed" // it was not started
	Lost    ProcessStatus = "lost"   // its session ended before its end was known
)

// summary returns the beginning of output, of at most MaxOutput bytes and with whole runes,
// and whether that is not all of it.
func summary(output string) (beginning string, cut bool) {
	beginning = strings.ToValidUTF8(prefix(output), string(utf8.RuneError))
	beginning = prefix(beginning) // replacements may be longer than what they replace
	return beginning, len(beginning) < len(output) && !strings.HasSuffix(output, beginning)
}

// prefix cuts s at the beginning of a rune, after at most MaxOutput bytes.
func prefix(s string) string {
	if len(s) <= MaxOutput {
		return s
	}
	n := MaxOutput
	for range utf8.UTFMax - 1 {
		if utf8.RuneStart(s[n]) {
			break
		}
		n--
	}
	return s[:n]
}

// line is a record as it is in its file. Ordinal is nil if the line has none.
type line struct {
	Timestamp time.Time       `json:"timestamp"`
	Ordinal   *uint64         `json:"ordinal"`
	Type      string          `json:"type"`
	Payload   json.RawMessage `json:"payload"`
}

// encodeRecord returns the line of a record, with its line break.
func encodeRecord(ordinal uint64, recordType string, payload any) ([]byte, error) {
	raw, err := marshal(payload)
	if err == nil {
		raw, err = marshal(line{now(), &ordinal, recordType, raw})
	}
	if err != nil {
		return nil, fmt.Errorf("encoding a record of type %q: %w", recordType, err)
	}
	if len(raw) > MaxRecord {
		return nil, fmt.Errorf("%w: a record of type %q has %d bytes, %d are allowed", ErrTooLarge, recordType, len(raw), MaxRecord)
	}
	return raw, nil
}

// marshal encodes v on one line, with its line break, and leaves <, > and & as they are.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b.Bytes(), err
}

// decodeRecord decodes a line of the thread id that has the given ordinal. A line may have no
// ordinal, but not a wrong one: then lines are missing.
func decodeRecord(text []byte, id string, ordinal uint64) (Record, error) {
	var l line
	if err := json.Unmarshal(text, &l); err != nil {
		return Record{}, err
	}
	if l.Type == "" {
		return Record{}, errors.New("there is no type")
	}
	if l.Ordinal != nil && *l.Ordinal != ordinal {
		return Record{}, fmt.Errorf("the ordinal is %d, and not %d", *l.Ordinal, ordinal)
	}
	return Record{ThreadID: id, Ordinal: ordinal, Timestamp: l.Timestamp, Type: l.Type, Payload: l.Payload}, nil
}

// decodeMeta decodes the first record of the thread id.
func decodeMeta(r Record, id string) (Meta, error) {
	var m Meta
	if r.Type != TypeSessionMeta {
		return Meta{}, fmt.Errorf("the first record is of type %.64q", r.Type)
	}
	if err := json.Unmarshal(r.Payload, &m); err != nil {
		return Meta{}, err
	}
	if m.ID != id {
		return Meta{}, fmt.Errorf("it is of the thread %.64q", m.ID)
	}
	m.SelectedCapabilityRoots = present(m.SelectedCapabilityRoots)
	m.Environments = present(m.Environments)
	return m, nil
}

// selection checks a JSON array that is to be written and returns it without spaces; nil for
// null.
func selection(what string, raw json.RawMessage) (json.RawMessage, error) {
	if raw = present(raw); raw == nil {
		return nil, nil
	}
	if len(raw) > MaxSelection {
		return nil, fmt.Errorf("%w: %s has %d bytes, %d are allowed", ErrTooLarge, what, len(raw), MaxSelection)
	}
	var b bytes.Buffer
	if err := json.Compact(&b, raw); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	if b.Bytes()[0] != '[' {
		return nil, fmt.Errorf("%s is not a JSON array", what)
	}
	return b.Bytes(), nil
}

// present returns raw, or nil if it is empty or null.
func present(raw json.RawMessage) json.RawMessage {
	if s := bytes.TrimSpace(raw); len(s) == 0 || string(s) == "null" {
		return nil
	}
	return raw
}

// now is the time of a record.
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }
