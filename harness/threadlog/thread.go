package threadlog

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"unicode/utf8"

	"github.com/google/uuid"
)

// A Thread is a thread open for appending, by only one program. All methods may be called
// concurrently; records are in the order of the calls.
//
// A failed method has written nothing, and may be called again. But if a disk error leaves the
// content of the file unknown, all later calls fail with that error, and the thread must be opened
// again.
type Thread struct {
	file *os.File
	meta Meta

	mu           sync.Mutex
	environments json.RawMessage // the selection in effect
	turn         string          // the turn that runs; empty if none does
	end          filePlace       // of the next record
	dirty        bool            // records may not be on disk yet
	err          error           // the reason why nothing can be written any more
}

// ID returns the id of the thread.
func (t *Thread) ID() string { return t.meta.ID }

// Meta returns the payload of the first record. Its parts must not be changed.
func (t *Thread) Meta() Meta { return t.meta }

// Environments returns the selection of environments in effect: of the last turn with a selection,
// else of the first record. Nil means that there was no choice.
func (t *Thread) Environments() json.RawMessage {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Clone(t.environments)
}

// StartTurn records that a turn begins, and returns its id, a UUIDv7. The environments are a JSON
// array as in [Meta.Environments] and hold for this turn and later ones; nil leaves those in effect
// as they are. A running turn must be ended first. A turn that a crash interrupted no longer runs.
func (t *Thread) StartTurn(environments json.RawMessage) (turnID string, err error) {
	if turnID, err = t.startTurn(environments); err != nil {
		return "", t.failed("starting a turn", err)
	}
	return turnID, nil
}

func (t *Thread) startTurn(environments json.RawMessage) (string, error) {
	environments, err := compactSelection("environments", environments)
	if err != nil {
		return "", err
	}
	id, err := uuid.NewV7()
	if err != nil {
		return "", err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if environments == nil {
		environments = t.environments
	}
	if t.turn != "" {
		return "", fmt.Errorf("turn %s has not ended", t.turn)
	}
	if err := t.appendLocked(TypeTurnStarted, TurnStarted{id.String(), environments}); err != nil {
		return "", err
	}
	t.turn, t.environments = id.String(), environments
	return t.turn, nil
}

// EndTurn records the end of the turn, and waits until all records are on disk. It fails if no turn
// runs, or if the status is no [TurnStatus].
func (t *Thread) EndTurn(status TurnStatus) error {
	if err := t.endTurn(status); err != nil {
		return t.failed("ending a turn", err)
	}
	return nil
}

func (t *Thread) endTurn(status TurnStatus) error {
	switch status {
	case TurnCompleted, TurnInterrupted, TurnFailed:
	default:
		return fmt.Errorf("%.64q is no status of a turn", status)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.turn == "" {
		return errors.New("no turn runs")
	}
	if err := t.appendLocked(TypeTurnEnded, TurnEnded{t.turn, status}); err != nil {
		return err
	}
	t.turn = ""
	return t.syncLocked()
}

// AppendProcess records the status of a process, in a turn or outside. It cuts the output to
// [MaxOutput]; a command line that is too long for a record is refused with [ErrTooLarge]. Bytes
// that are not UTF-8 are replaced by U+FFFD.
func (t *Thread) AppendProcess(p ProcessRef) error {
	if err := t.appendProcess(p); err != nil {
		return t.failed("recording a process", err)
	}
	return nil
}

func (t *Thread) appendProcess(p ProcessRef) error {
	if p.ProcessID == "" {
		return errors.New("the process has no id")
	}
	switch p.Status {
	case Running, Exited, Failed, Lost:
	default:
		return fmt.Errorf("%.64q is no status of a process", p.Status)
	}
	var cut bool
	p.Output, cut = summary(p.Output)
	p.OutputCut = p.OutputCut || cut
	return t.append(TypeProcess, p)
}

// Append adds a record of a type of the harness's own, of 1 to 64 bytes, with a payload that
// encoding/json encodes. The types of this package are refused. Records of more than [MaxRecord]
// bytes, and records that would let the file exceed [MaxThread], are refused with [ErrTooLarge].
func (t *Thread) Append(recordType string, payload any) error {
	switch recordType {
	case TypeSessionMeta, TypeTurnStarted, TypeTurnEnded, TypeProcess:
		return t.failed("appending a record", fmt.Errorf("%s is a type of this package", recordType))
	}
	if recordType == "" || len(recordType) > maxType || !utf8.ValidString(recordType) {
		return t.failed("appending a record", fmt.Errorf("the type is %.64q; 1 to %d bytes of UTF-8 are allowed", recordType, maxType))
	}
	if err := t.append(recordType, payload); err != nil {
		return t.failed("appending a record", err)
	}
	return nil
}

// Sync waits until all records are on disk.
func (t *Thread) Sync() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.syncLocked(); err != nil {
		return t.failed("syncing", err)
	}
	return nil
}

// Close waits until all records are on disk, and lets others open the thread. It does not end a
// turn. Later calls of Append and similar methods, and a second Close, fail with [fs.ErrClosed].
func (t *Thread) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if errors.Is(t.err, fs.ErrClosed) {
		return t.failed("closing", t.err)
	}
	err := t.syncLocked()
	t.err = fs.ErrClosed
	if err := errors.Join(err, unlock(t.file), t.file.Close()); err != nil {
		return t.failed("closing", err)
	}
	return nil
}

func (t *Thread) append(recordType string, payload any) error {
	raw, err := marshal(payload) // before the mutex is taken, because it may call methods of the payload
	if err != nil {
		return fmt.Errorf("encoding a record of type %q: %w", recordType, err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.appendLocked(recordType, json.RawMessage(raw))
}

func (t *Thread) appendLocked(recordType string, payload any) error {
	if t.err != nil {
		return t.err
	}
	text, err := encodeRecord(t.end.ordinal, recordType, payload)
	if err != nil {
		return err
	}
	next := filePlace{t.end.ordinal + 1, t.end.offset + int64(len(text))}
	if next.offset > MaxThread {
		return fmt.Errorf("%w: the thread has %d bytes, %d are allowed", ErrTooLarge, t.end.offset, MaxThread)
	}
	t.dirty = true
	if _, err := t.file.WriteAt(text, t.end.offset); err != nil {
		// Part of the line may be written, and the next record must not follow it.
		if undone := t.file.Truncate(t.end.offset); undone != nil {
			t.err = errors.Join(err, undone)
		}
		return err
	}
	t.end = next
	return nil
}

func (t *Thread) syncLocked() error {
	if t.err != nil || !t.dirty {
		return t.err
	}
	// After a failed fsync, the kernel may treat pages as clean that are not on disk: a second
	// fsync would succeed and prove nothing.
	if t.err = t.file.Sync(); t.err == nil {
		t.dirty = false
	}
	return t.err
}

// failed adds the failed step and the thread to an error.
func (t *Thread) failed(step string, err error) error {
	return fmt.Errorf("thread %s: %s: %w", t.meta.ID, step, err)
}
