package threadlog

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/execagent/execagent/internal/strictjson"
)

const (
	// MaxRecord is how many bytes a record may have in its file, with the line break.
	MaxRecord = 1 << 20
	// MaxThread is how many bytes the file of a thread may have. A fork begins a new file.
	MaxThread = 1 << 30
	// MaxSelection is how many bytes the selected roots may have, and how many a selection of
	// environments.
	MaxSelection = 256 << 10
	// MaxOutput is how many bytes of a process's output are kept.
	MaxOutput = 10_000

	maxType = 64 // bytes of the type of a record that is written
)

// The types of records that this package writes. Payloads of TypeSessionMeta are a [Meta],
// of TypeTurnStarted a [TurnStarted], of TypeTurnEnded a [TurnEnded], of TypeProcess a
// [ProcessRef].
const (
	TypeSessionMeta = "session_meta"
	TypeTurnStarted = "turn_started"
	TypeTurnEnded   = "turn_ended"
	TypeProcess     = "process"
)

// ErrTooLarge says that something exceeds the bound that the text names. Nothing of it was written.
var ErrTooLarge = errors.New("too large")

// A Record is one line of a thread.
type Record struct {
	ThreadID  string // the thread whose file has it: in the history of a fork often an ancestor
	Ordinal   uint64 // the number of records before it in that file
	Timestamp time.Time
	Type      string
	Payload   json.RawMessage // nil if the line has none
}

// Meta is the payload of a thread's first record.
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
	// Environments is the selection that the thread began with: a JSON array as written, of at most
	// MaxSelection bytes. Nil if there was no choice, which differs from an empty selection.
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
	// Environments is the selection of this turn, in the form of [Meta.Environments]; nil if
	// neither the thread nor a turn ever had one.
	Environments json.RawMessage `json:"environments,omitempty"`
}

// TurnEnded says that a turn has ended, and how.
type TurnEnded struct {
	TurnID string     `json:"turn_id"`
	Status TurnStatus `json:"status"`
}

// TurnStatus is the outcome of a turn. Only the words below are written; a file of another version
// may have others.
type TurnStatus string

// The outcomes of a turn.
const (
	TurnCompleted   TurnStatus = "completed"
	TurnInterrupted TurnStatus = "interrupted" // somebody stopped it
	TurnFailed      TurnStatus = "failed"
)

// ProcessRef refers to a process that the thread ran. A process may have several records, one at
// its start and one at its end: the last one counts.
type ProcessRef struct {
	ProcessID     string        `json:"process_id"`               // as in process/start; not empty
	EnvironmentID string        `json:"environment_id,omitempty"` // environment in which it ran
	Argv          []string      `json:"argv,omitempty"`
	Status        ProcessStatus `json:"status"`
	ExitCode      *int          `json:"exit_code,omitempty"` // nil unless it is known
	// Output is a summary for people and models: the first [MaxOutput] bytes at most. Bytes that
	// are not UTF-8 are replaced by U+FFFD, several in a row by one.
	Output    string `json:"output,omitempty"`
	OutputCut bool   `json:"output_cut,omitempty"` // there was more output than Output
}

// ProcessStatus is the known status of a process. Only the words below are written; a file
// of another version may have others.
type ProcessStatus string

// The statuses of a process.
const (
	Running ProcessStatus = "running"
	Exited  ProcessStatus = "exited" // by itself or by a signal
	Failed  ProcessStatus = "failed" // it was not started
	Lost    ProcessStatus = "lost"   // its session ended before its end was known
)

// summary returns the beginning of output, at most MaxOutput bytes and whole runes, and
// reports whether there is more.
func summary(output string) (beginning string, cut bool) {
	first := prefix(output)
	valid := strings.ToValidUTF8(first, string(utf8.RuneError))
	beginning = prefix(valid) // replacements may be longer than the replaced bytes
	return beginning, len(first) < len(output) || len(beginning) < len(valid)
}

// prefix cuts s at the beginning of a rune, after at most MaxOutput bytes.
func prefix(s string) string {
	if len(s) <= MaxOutput {
		return s
	}
	n := MaxOutput
	for !utf8.RuneStart(s[n]) && n > MaxOutput-utf8.UTFMax {
		n--
	}
	return s[:n]
}

// line is a record in the form of its file.
type line struct {
	Timestamp time.Time `json:"timestamp"`
	Ordinal   *uint64   `json:"ordinal"` // nil if the line has none
	Type      string    `json:"type"`
	Payload   any       `json:"payload"` // a json.RawMessage if the line was read
}

// UnmarshalObject reads the line. Only the type is required.
func (l *line) UnmarshalObject(o *strictjson.Object) {
	l.Timestamp = moment(o, "timestamp")
	l.Ordinal = o.OptUint64("ordinal")
	if l.Type = o.String("type"); l.Type == "" {
		o.Fail("type", "it is empty")
	}
	if o.Has("payload") {
		l.Payload = json.RawMessage(bytes.Clone(o.Require("payload")))
	}
}

// decodeRecord decodes a line of the thread id that has the given ordinal. A line may lack an
// ordinal, but a wrong one means that lines are missing.
func decodeRecord(text []byte, id string, ordinal uint64) (Record, error) {
	var l line
	if err := strictjson.Unmarshal(text, &l); err != nil {
		return Record{}, err
	}
	raw, _ := l.Payload.(json.RawMessage)
	if l.Ordinal != nil && *l.Ordinal != ordinal {
		return Record{}, fmt.Errorf("ordinal: it is %d, and %d records come before", *l.Ordinal, ordinal)
	}
	return Record{ThreadID: id, Ordinal: ordinal, Timestamp: l.Timestamp, Type: l.Type, Payload: raw}, nil
}

// encodeRecord returns the line of a record, with its line break. It refuses what could not be
// read again: raw JSON that encoding/json takes and package strictjson does not.
func encodeRecord(ordinal uint64, recordType string, payload any) ([]byte, error) {
	text, err := marshal(line{now(), &ordinal, recordType, payload})
	if err != nil {
		return nil, fmt.Errorf("encoding a record of type %q: %w", recordType, err)
	}
	if len(text) > MaxRecord {
		return nil, fmt.Errorf("%w: a record of type %q has %d bytes, %d are allowed", ErrTooLarge, recordType, len(text), MaxRecord)
	}
	if _, err := decodeRecord(text, "", ordinal); err != nil {
		return nil, fmt.Errorf("a record of type %q could not be read again: %w", recordType, err)
	}
	return text, nil
}

// marshal encodes v on one line, with its line break, and leaves <, > and & as they are.
func marshal(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	err := e.Encode(v)
	return b.Bytes(), err
}

// decodeMeta decodes the first record of a thread.
func decodeMeta(r Record) (Meta, error) {
	if r.Type != TypeSessionMeta {
		return Meta{}, fmt.Errorf("type: it is %.64q, a thread begins with %q", r.Type, TypeSessionMeta)
	}
	o, err := payload(r)
	if err != nil {
		return Meta{}, err
	}
	var m Meta
	if m.ID = o.String("id"); m.ID != r.ThreadID {
		o.Fail("id", "it is %.64q, and not that of the file", m.ID)
	}
	m.Timestamp = moment(o, "timestamp")
	m.Originator = optional(o, "originator")
	m.Cwd = optional(o, "cwd")
	m.SelectedCapabilityRoots = selected(o, "selected_capability_roots")
	m.Environments = selected(o, "environments")
	m.ForkedFromID = optional(o, "forked_from_id")
	o.OptIn("history_base", func(o *strictjson.Object) {
		b := &HistoryBase{ThreadID: threadID(o), EndOrdinalExclusive: o.Uint64("end_ordinal_exclusive"), EndByteOffset: offset(o, "end_byte_offset")}
		o.OptIn("start", func(o *strictjson.Object) {
			b.Start = &HistoryStart{threadID(o), o.Uint64("ordinal"), offset(o, "byte_offset")}
		})
		m.HistoryBase = b
	})
	return m, inPayload(o.Err())
}

// chosen returns the selection of environments that a record puts into effect, or nil.
func chosen(r Record) (json.RawMessage, error) {
	if r.Type != TypeTurnStarted {
		return nil, nil
	}
	o, err := payload(r)
	if err != nil {
		return nil, err
	}
	environments := selected(o, "environments")
	return environments, inPayload(o.Err())
}

// payload parses the payload of a record.
func payload(r Record) (*strictjson.Object, error) {
	o, err := strictjson.ParseObject(r.Payload)
	return o, inPayload(err)
}

// inPayload says that an error is about the payload; nil stays nil.
func inPayload(err *strictjson.Error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("payload: %w", err)
}

// moment reads a time that may be missing.
func moment(o *strictjson.Object, name string) (at time.Time) {
	if o.Has(name) {
		o.Parse(name, func(text string) (err error) {
			at, err = time.Parse(time.RFC3339, text)
			return err
		})
	}
	return at
}

// optional reads a string that may be missing.
func optional(o *strictjson.Object, name string) string {
	if s := o.OptString(name); s != nil {
		return *s
	}
	return ""
}

// threadID reads the id of another thread.
func threadID(o *strictjson.Object) (id string) {
	o.Parse("thread_id", func(text string) (err error) {
		id, err = canonical(text)
		return err
	})
	return id
}

// offset reads a place in the file of a thread.
func offset(o *strictjson.Object, name string) int64 {
	n := o.Uint64(name)
	if n > MaxThread {
		o.Fail(name, "it is %d, a thread has at most %d bytes", n, MaxThread)
	}
	return int64(n)
}

// selected reads a selection, nil if it is missing.
func selected(o *strictjson.Object, name string) json.RawMessage {
	if !o.Has(name) {
		return nil
	}
	raw := o.Require(name)
	if err := checkSelection(raw); err != nil {
		o.Fail(name, "%v", err)
	}
	return bytes.Clone(raw)
}

// compactSelection returns a selection that is to be written without spaces; nil for null.
func compactSelection(name string, raw json.RawMessage) (json.RawMessage, error) {
	if s := bytes.TrimSpace(raw); len(s) == 0 || string(s) == "null" {
		return nil, nil
	}
	if len(raw) > MaxSelection { // before work is done on it
		return nil, fmt.Errorf("%s: %w: it has %d bytes, %d are allowed", name, ErrTooLarge, len(raw), MaxSelection)
	}
	var b bytes.Buffer
	err := json.Compact(&b, raw)
	if err == nil {
		err = checkSelection(b.Bytes())
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return b.Bytes(), nil
}

// checkSelection refuses a JSON value that is no array, or too large a one.
func checkSelection(raw []byte) error {
	if kind := strictjson.TypeOf(raw); kind != "sequence" {
		return fmt.Errorf("invalid type: %s, expected a sequence", kind)
	}
	if len(raw) > MaxSelection {
		return fmt.Errorf("%w: it has %d bytes, %d are allowed", ErrTooLarge, len(raw), MaxSelection)
	}
	return nil
}

// now is the time of a record.
func now() time.Time { return time.Now().UTC().Truncate(time.Millisecond) }
