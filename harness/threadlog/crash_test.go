package threadlog_test

import (
	"bytes"
	"encoding/json"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/execagent/execagent/harness/threadlog"
	"github.com/execagent/execagent/test/rig"
)

// TestTornAnywhere cuts the file of a thread at every byte. Whole records stay, and what follows
// is written after them.
func TestTornAnywhere(t *testing.T) {
	t.Parallel()
	s, dir := open(t)
	th := must[*threadlog.Thread](t)(s.Create(threadlog.Meta{Environments: json.RawMessage(`["a"]`)}))
	note(t, th, "é1")
	must[string](t)(th.StartTurn(json.RawMessage(`["b"]`)))
	note(t, th, "2")
	rig.Must(t, th.Close())
	file := filepath.Join(dir, th.ID()+".jsonl")
	whole := must[[]byte](t)(os.ReadFile(file))
	first := bytes.IndexByte(whole, '\n') + 1

	for n := range len(whole) + 1 {
		rig.Must(t, os.WriteFile(file, whole[:n], 0o600))
		again, err := s.Open(th.ID())
		if n < first {
			wantCorrupt(t, err, th.ID()+".jsonl", 1, "no whole first record")
			wantCorrupt(t, rig.Err(readAll(s, th.ID())), th.ID()+".jsonl", 1, "no whole first record")
			continue
		}
		rig.Must(t, err)
		lines := bytes.Count(whole[:n], []byte("\n"))
		rig.Is(t, len(rig.Value(readAll(s, th.ID()))), lines-1, "of %d bytes, records", n)
		selected := `["a"]`
		if lines >= 3 {
			selected = `["b"]`
		}
		rig.Is(t, string(again.Environments()), selected, "of %d bytes, the selection", n)
		note(t, again, "3")
		rig.Must(t, again.Close())
		written := must[[]byte](t)(os.ReadFile(file))
		kept := bytes.LastIndexByte(whole[:n], '\n') + 1
		if !bytes.HasPrefix(written, whole[:kept]) || bytes.Count(written, []byte("\n")) != lines+1 {
			t.Fatalf("of %d bytes the file became %q", n, written)
		}
		rig.Must(t, rig.Err(readAll(s, th.ID())))
	}
}

// TestTornIsReadOnly: readers and forks pass over a torn line and do not cut it off: it may be a
// record that is just being written.
func TestTornIsReadOnly(t *testing.T) {
	t.Parallel()
	s, dir := open(t)
	th := must[*threadlog.Thread](t)(s.Create(threadlog.Meta{}))
	note(t, th, "1")
	rig.Must(t, th.Close())
	file := filepath.Join(dir, th.ID()+".jsonl")
	torn := append(must[[]byte](t)(os.ReadFile(file)), `{"type":"no`...)
	rig.Must(t, os.WriteFile(file, torn, 0o600))
	wantNotes(t, s, th.ID(), "1")
	fork := must[*threadlog.Thread](t)(s.Fork(th.ID(), threadlog.AllTurns))
	wantNotes(t, s, fork.ID(), "1")
	rig.Is(t, string(must[[]byte](t)(os.ReadFile(file))), string(torn), "after readers the file is")
	// What takes the place of the torn line is not of the fork.
	th = must[*threadlog.Thread](t)(s.Open(th.ID()))
	note(t, th, "2")
	rig.Must(t, th.Close())
	note(t, fork, "3")
	rig.Must(t, fork.Close())
	wantNotes(t, s, th.ID(), "1", "2")
	wantNotes(t, s, fork.ID(), "1", "3")
}

// TestCorrupt: a line that is no record is an error with its place, whoever reads, and the file
// stays as it is.
func TestCorrupt(t *testing.T) {
	t.Parallel()
	const id = "01890a5d-ac96-774b-bcce-b302099a8057"
	meta := `{"timestamp":"2026-03-01T12:00:00Z","ordinal":0,"type":"session_meta","payload":{"id":"` + id + `"}}`
	note := `{"timestamp":"2026-03-01T12:00:00Z","ordinal":1,"type":"note","payload":1}`
	end := `{"timestamp":"2026-03-01T12:00:00Z","ordinal":3,"type":"note","payload":2}`
	tests := append(rig.Rows(t, "testdata/corrupt.txt", "line", 4),
		[]string{"deep", `{"type":"a","payload":` + strings.Repeat("[", 10_000) + `}`, "", "all"},
		[]string{"too long", `{"type":"` + strings.Repeat("x", threadlog.MaxRecord) + `"}`, "more than 1048576 bytes", "all"},
		[]string{"selection beyond its bound", `{"type":"turn_started","payload":{"environments":["` + strings.Repeat("x", threadlog.MaxSelection) + `"]}}`,
			"payload: environments: too large", "open"},
	)
	for _, tt := range tests {
		name, line, want, refused := tt[0], tt[1], tt[2], tt[3]
		t.Log(name)
		s, dir := open(t)
		file := filepath.Join(dir, id+".jsonl")
		text := []byte(strings.Join([]string{meta, note, line, end, ""}, "\n"))
		rig.Must(t, os.WriteFile(file, text, 0o600))
		wantCorrupt(t, rig.Err(s.Open(id)), id+".jsonl", 3, want)
		wantCorrupt(t, rig.Err(s.Fork(id, threadlog.AllTurns)), id+".jsonl", 3, want)
		records, err := readAll(s, id)
		if refused == "open" { // a reader passes the line on
			rig.Must(t, err)
		} else {
			wantCorrupt(t, err, id+".jsonl", 3, want)
			rig.Is(t, len(records), 1, "records come before the error")
		}
		rig.Is(t, string(must[[]byte](t)(os.ReadFile(file))) == string(text), true, "the file is as it was")
		rig.Is(t, len(entries(t, dir)), 1, "files in the folder")
	}
}

// TestCorruptBeginning: a first record that is none of this thread.
func TestCorruptBeginning(t *testing.T) {
	t.Parallel()
	const id = "01890a5d-ac96-774b-bcce-b302099a8057"
	s, dir := open(t)
	for _, row := range rig.Rows(t, "testdata/corrupt.txt", "beginning", 2) {
		rig.Must(t, os.WriteFile(filepath.Join(dir, id+".jsonl"), []byte(strings.ReplaceAll(row[0], "ID", id)+"\n"), 0o600))
		for _, err := range []error{rig.Err(s.Open(id)), rig.Err(readAll(s, id)), rig.Err(s.Fork(id, 0))} {
			wantCorrupt(t, err, id+".jsonl", 1, row[1])
		}
	}
}

// TestOtherVersion: a file by somebody else, with lines without ordinals and times, types and
// members that nobody here knows.
func TestOtherVersion(t *testing.T) {
	t.Parallel()
	const id = "01890a5d-ac96-774b-bcce-b302099a8057"
	s, dir := open(t)
	text := `{"timestamp":"2025-06-30T10:11:12.123456+02:00","type":"session_meta","payload":{"id":"` + id + `","model_provider":"x","selected_capability_roots":null}}
{"type":"event_msg","payload":{"type":"task_started"},"more":[1]}
 {"type":"turn_started","payload":{"environments":["a"],"more":1}}
{"type":"turn_ended","payload":{"status":"vanished"}}
{"type":"turn_started","payload":{}}
`
	file := filepath.Join(dir, id+".jsonl")
	rig.Must(t, os.WriteFile(file, []byte(text), 0o600))
	th := must[*threadlog.Thread](t)(s.Open(id))
	if m := th.Meta(); m.SelectedCapabilityRoots != nil || !m.Timestamp.IsZero() || string(th.Environments()) != `["a"]` {
		t.Errorf("%+v with %s", m, th.Environments())
	}
	note(t, th, "1")
	rig.Must(t, th.Close())
	records := rig.Value(readAll(s, id))
	if len(records) != 5 || string(records[0].Payload) != `{"type":"task_started"}` || records[4].Ordinal != 5 {
		t.Errorf("the records are %+v", records)
	}
	got := must[[]byte](t)(os.ReadFile(file))
	rig.Is(t, bytes.HasPrefix(got, []byte(text)), true, "the file became %q", got)
}

// TestKilled kills a program while it writes. Each turn of which it has told is there, and
// whatever else is there is whole.
func TestKilled(t *testing.T) {
	t.Parallel()
	s, dir := open(t)
	id := create(t, s)
	told := map[string]bool{}
	for range 3 {
		p := start(t, "write", dir, id)
		for n := 0; p.out.Scan(); n++ {
			told[p.out.Text()] = true
			if n == 20 {
				rig.Must(t, p.Process.Kill())
			}
		}
		_ = p.Wait()
		rig.Must(t, must[*threadlog.Thread](t)(s.Open(id)).Close())
		for r, err := range s.History(id) {
			rig.Must(t, err)
			if r.Type == threadlog.TypeTurnEnded {
				var e threadlog.TurnEnded
				rig.Must(t, json.Unmarshal(r.Payload, &e))
				delete(told, e.TurnID)
			}
		}
		if len(told) != 0 {
			t.Fatalf("turns that had ended are not there: %v", told)
		}
	}
}

// TestNoRoom: a record that cannot be written as a whole leaves nothing, and later ones follow.
func TestNoRoom(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("no limit of the size of files")
	}
	s, dir := open(t)
	th := must[*threadlog.Thread](t)(s.Create(threadlog.Meta{}))
	note(t, th, "before")
	rig.Must(t, th.Close())
	p := start(t, "full", dir, th.ID())
	p.say(t, "")
	rig.Must(t, p.Wait())
	wantNotes(t, s, th.ID(), "before", "small")
}

// TestUnfinishedCreate: a thread of which a crash left only the beginning is not there.
func TestUnfinishedCreate(t *testing.T) {
	t.Parallel()
	const id = "01890a5d-ac96-774b-bcce-b302099a8057"
	s, dir := open(t)
	rig.Must(t, os.WriteFile(filepath.Join(dir, id+".new"), []byte(`{"type":"session_meta","payload":{"id":"`+id+`"}}`+"\n"), 0o600))
	rig.Is(t, rig.Err(s.Open(id)), fs.ErrNotExist, "the error")
}
