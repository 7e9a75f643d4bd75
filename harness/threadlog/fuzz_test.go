package threadlog

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"testing"

	"github.com/execagent/execagent/internal/strictjson"
	"github.com/execagent/execagent/test/rig"
)

const (
	fuzzID   = "01890a5d-ac96-774b-bcce-b302099a8057"
	fuzzMeta = `{"timestamp":"2026-03-01T12:00:00Z","ordinal":0,"type":"session_meta","payload":{"id":"` + fuzzID + `","timestamp":"2026-03-01T12:00:00Z",` +
		`"selected_capability_roots":[{"id":"a"}],"environments":[],"forked_from_id":"x","history_base":{"thread_id":"` + fuzzID + `",` +
		`"end_ordinal_exclusive":1,"end_byte_offset":9,"start":{"thread_id":"` + fuzzID + `","ordinal":1,"byte_offset":9}}}}`
)

// FuzzDecode: whatever is decoded as a record is the same when it was encoded again, and what is
// in it is decoded or refused.
func FuzzDecode(f *testing.F) {
	for _, line := range []string{
		fuzzMeta,
		`{"timestamp":"2026-03-01T12:00:00.5+01:00","ordinal":0,"type":"turn_started","payload":{"turn_id":"x","environments":[{"cwd":"<&>"}]}}`,
		`{"type":"turn_ended","payload":{"turn_id":"x","status":"completed"}}`,
		`{"type":"note","payload":null,"more":1e400}`,
		`{"type":""}`,
		`[1]`,
		`{"type":"a","type":"b"}`,
		"{\"type\":\"\xff\"}",
		`{"id":"` + fuzzID + `","thread_name":" a\u001b ","updated_at":"2026-03-01T12:00:00Z"}`,
	} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var n naming
		if err := strictjson.Unmarshal(text, &n); err == nil && n.Name != "" && checkName(n.Name) != nil {
			t.Errorf("a name was read that could not be given: %q", n.Name)
		}
		r, err := decodeRecord(text, fuzzID, 0)
		if err != nil {
			return
		}
		if m, err := decodeMeta(r); err == nil {
			rig.Is(t, m.ID, fuzzID, "the meta of thread")
			again, err := decodeMeta(encoded(t, TypeSessionMeta, m))
			rig.Is(t, err == nil && reflect.DeepEqual(m, again), true, "%+v became %+v, %v", m, again, err)
		}
		if environments, err := chosen(r); err == nil && environments != nil && checkSelection(environments) != nil {
			t.Errorf("the selection is %s", environments)
		}
		var payload any
		if r.Payload != nil {
			payload = r.Payload
		}
		again := encoded(t, r.Type, payload)
		rig.Is(t, again.Type == r.Type && sameValue(again.Payload, r.Payload), true, "%+v became %+v", r, again)
	})
}

// encoded encodes a record and decodes it.
func encoded(t *testing.T, recordType string, payload any) Record {
	t.Helper()
	text, err := encodeRecord(0, recordType, payload)
	if errors.Is(err, ErrTooLarge) {
		t.Skip("the line has become longer")
	}
	rig.Must(t, err)
	return rig.Value(decodeRecord(bytes.TrimSuffix(text, []byte("\n")), fuzzID, 0))
}

// sameValue compares JSON without the spaces between its tokens.
func sameValue(a, b []byte) bool {
	if a == nil || b == nil {
		return a == nil && b == nil
	}
	x, err := marshal(rawJSON(a))
	y, err2 := marshal(rawJSON(b))
	return errors.Join(err, err2) == nil && bytes.Equal(x, y)
}

type rawJSON []byte

func (r rawJSON) MarshalJSON() ([]byte, error) { return r, nil }

// FuzzFiles: no file of a thread and no file of names brings a reader down, and none is changed
// but for its last line.
func FuzzFiles(f *testing.F) {
	turns := `{"type":"session_meta","payload":{"id":"` + fuzzID + `"}}` + "\n" +
		`{"type":"turn_started","payload":{"environments":[1]}}` + "\n" + `{"type":"turn_started","payload":{}}` + "\n"
	name := `{"id":"` + fuzzID + `","thread_name":"x"}` + "\n"
	f.Add([]byte(turns), []byte(name))
	f.Add([]byte(turns+`{"type":"no`), []byte(name+name[:9]))
	f.Add([]byte(fuzzMeta+"\n"), []byte("\n"))
	f.Add([]byte("\x00\n"), []byte{})
	f.Add([]byte{}, []byte(`{}`+"\n"))
	f.Fuzz(func(t *testing.T, thread, names []byte) {
		dir := t.TempDir()
		s := rig.Value(OpenStore(dir))
		defer s.Close()
		path := filepath.Join(dir, file(fuzzID))
		for name, text := range map[string][]byte{path: thread, filepath.Join(dir, indexFile): names} {
			rig.Must(t, os.WriteFile(name, text, 0o600))
		}
		for _, turns := range []int{0, 1, AllTurns} {
			if fork, err := s.Fork(fuzzID, turns); err == nil {
				for _, err := range s.History(fork.ID()) {
					rig.Check(t, err)
				}
				rig.Check(t, fork.Close())
			}
		}
		for r, err := range s.History(fuzzID) {
			rig.Is(t, err != nil && r.Type != "", false, "%+v comes with %v", r, err)
		}
		kept := thread
		if th, err := s.Open(fuzzID); err == nil {
			kept = thread[:bytes.LastIndexByte(thread, '\n')+1]
			rig.Check(t, th.Close())
		}
		rig.Is(t, string(rig.Value(os.ReadFile(path))), string(kept), "the file became")
		if _, err := s.Names(); err == nil {
			rig.Check(t, s.SetName(fuzzID, "new"))
			rig.Is(t, rig.Value(s.Find("new")), fuzzID, "found")
		}
	})
}
