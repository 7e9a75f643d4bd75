package threadlog_test

import (
	"encoding/json"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/execagent/execagent/harness/threadlog"
	"github.com/execagent/execagent/test/rig"
)

// Selections with what a decoder and encoder would change: unknown members, large numbers, order,
// names twice in different places, characters that some encoders escape.
const (
	roots = `[{"id":"demo@1","location":{"type":"environment","environmentId":"w","path":"file:///srv/w/a%20b"},"x":1e400}]`
	envs  = `[{"cwd":"file:///srv/w","environmentId":"w","new":[123456789012345678901234567890,0.10,"<&>` + "\u2028" + `\u00e9\/"]},{"environmentId":"local"}]`
)

func TestRoundTrip(t *testing.T) {
	t.Parallel()
	s, dir := open(t)
	before := time.Now().Add(-time.Second)
	th := must[*threadlog.Thread](t)(s.Create(threadlog.Meta{
		Originator: "test", Cwd: "/srv/w", SelectedCapabilityRoots: json.RawMessage(roots), Environments: json.RawMessage(envs),
		ForkedFromID: "of no effect", HistoryBase: &threadlog.HistoryBase{},
	}))
	first := must[string](t)(th.StartTurn(nil))
	code := 3
	process := threadlog.ProcessRef{ProcessID: "7", EnvironmentID: "w", Argv: []string{"sh", "-c", "exit 3"}, Status: threadlog.Exited, ExitCode: &code, Output: "out\n"}
	rig.Must(t, th.AppendProcess(process))
	rig.Must(t, th.EndTurn(threadlog.TurnFailed))
	second := must[string](t)(th.StartTurn(json.RawMessage(` [ {"environmentId" : "local"} ] `)))
	rig.Must(t, th.Append("decision", map[string]string{"what": "<allowed> & \u2028"}))
	rig.Must(t, th.Close())

	again := must[*threadlog.Thread](t)(s.Open(strings.ToUpper(th.ID())))
	rig.Same(t, "what the thread began with, written and read", th.Meta(), again.Meta())
	m := again.Meta()
	if string(m.SelectedCapabilityRoots) != roots || string(m.Environments) != envs || m.ForkedFromID != "" || m.HistoryBase != nil {
		t.Errorf("the thread began with %+v", m)
	}
	rig.Is(t, !m.Timestamp.Before(before) && !m.Timestamp.After(time.Now()), true, "the thread is of %v", m.Timestamp)
	for _, id := range []string{m.ID, first, second} {
		rig.Is(t, must[uuid.UUID](t)(uuid.Parse(id)).Version(), 7, "the version of %s", id)
	}
	rig.Is(t, string(again.Environments()), `[{"environmentId":"local"}]`, "in effect")
	// The turn that the program did not end no longer runs.
	rig.Is(t, again.EndTurn(threadlog.TurnCompleted) != nil, true, "no turn of the past is ended")
	third := must[string](t)(again.StartTurn(nil))
	rig.Must(t, again.Close())

	records := rig.Value(readAll(s, m.ID))
	processText := must[[]byte](t)(json.Marshal(process))
	want := []struct{ kind, payload string }{
		{"turn_started", `{"turn_id":"` + first + `","environments":` + envs + `}`},
		{"process", string(processText)},
		{"turn_ended", `{"turn_id":"` + first + `","status":"failed"}`},
		{"turn_started", `{"turn_id":"` + second + `","environments":[{"environmentId":"local"}]}`},
		{"decision", `{"what":"<allowed> & \u2028"}`},
		{"turn_started", `{"turn_id":"` + third + `","environments":[{"environmentId":"local"}]}`},
	}
	if len(records) != len(want) {
		t.Fatalf("%d records, want %d", len(records), len(want))
	}
	for i, r := range records {
		rig.Is(t, r.Type+" "+string(r.Payload), want[i].kind+" "+want[i].payload, "record %d", i)
		if r.ThreadID != m.ID || r.Ordinal != uint64(i+1) || r.Timestamp.Before(m.Timestamp) {
			t.Errorf("record %d is %+v", i, r)
		}
	}
	got := entries(t, dir)
	rig.Is(t, len(got) == 1 && got[0].Name() == m.ID+".jsonl", true, "the folder has %v", got)
}

// TestNoChoice: no selection and an empty one are told apart.
func TestNoChoice(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	for _, test := range []struct{ given, want string }{{"", "nil"}, {"null", "nil"}, {" [ ] ", "[]"}} {
		th := must[*threadlog.Thread](t)(s.Create(threadlog.Meta{SelectedCapabilityRoots: json.RawMessage(test.given), Environments: json.RawMessage(test.given)}))
		rig.Must(t, th.Close())
		th = must[*threadlog.Thread](t)(s.Open(th.ID()))
		for _, got := range []json.RawMessage{th.Meta().SelectedCapabilityRoots, th.Environments()} {
			if got == nil && test.want != "nil" || got != nil && string(got) != test.want {
				t.Errorf("%q is read as %q, want %s", test.given, got, test.want)
			}
		}
		rig.Must(t, th.Close())
	}
}

func TestModes(t *testing.T) {
	t.Parallel()
	s, dir := open(t)
	th := must[*threadlog.Thread](t)(s.Create(threadlog.Meta{}))
	rig.Must(t, s.SetName(th.ID(), "x"))
	for _, name := range []string{dir, filepath.Dir(dir)} {
		rig.Is(t, must[fs.FileInfo](t)(os.Stat(name)).Mode(), fs.ModeDir|0o700, "%s has the mode", name)
	}
	files := entries(t, dir)
	for _, e := range files {
		rig.Is(t, must[fs.FileInfo](t)(e.Info()).Mode(), 0o600, "%s has the mode", e.Name())
	}
	rig.Is(t, len(files), 2, "files %v", files)
}

// TestRefused: what could not be read again, or is beyond a bound, is not written.
func TestRefused(t *testing.T) {
	t.Parallel()
	s, dir := open(t)
	large := `["` + strings.Repeat("x", threadlog.MaxSelection-4) + `"]`
	deep := strings.Repeat("[", 200) + strings.Repeat("]", 200)
	for _, test := range []struct{ name, selection, want string }{
		{"no array", `{"a":1}`, "environments: invalid type: map, expected a sequence"},
		{"no JSON", `[1,`, "environments: unexpected end"},
		{"two values", `[] []`, "environments: invalid character"},
		{"too large", strings.Replace(large, "x", "xx", 1), "environments: too large: it has 262145 bytes, 262144 are allowed"},
		{"name twice", `[{"a":1,"a":2}]`, "could not be read again"},
		{"not UTF-8", "[\"\xff\"]", "could not be read again"},
		{"lone surrogate", `["\ud800"]`, "could not be read again"},
		{"too deep", deep, "could not be read again"},
	} {
		_, err := s.Create(threadlog.Meta{Environments: json.RawMessage(test.selection)})
		rig.Is(t, err != nil && strings.Contains(err.Error(), test.want), true, "%s: %v, want %q", test.name, err, test.want)
		if strings.HasPrefix(test.name, "too large") && !errors.Is(err, threadlog.ErrTooLarge) {
			t.Errorf("%s: %v is not ErrTooLarge", test.name, err)
		}
	}
	rig.Is(t, len(entries(t, dir)), 0, "files of threads that were refused")

	th := must[*threadlog.Thread](t)(s.Create(threadlog.Meta{SelectedCapabilityRoots: json.RawMessage(large), Environments: json.RawMessage(large)}))
	size := func() int64 {
		return must[fs.FileInfo](t)(os.Stat(filepath.Join(dir, th.ID()+".jsonl"))).Size()
	}
	begin := size()
	for name, err := range map[string]error{
		"a turn that does not run":    th.EndTurn(threadlog.TurnCompleted),
		"a type of the package":       th.Append(threadlog.TypeProcess, nil),
		"no type":                     th.Append("", nil),
		"a long type":                 th.Append(strings.Repeat("x", 65), nil),
		"a type that is not UTF-8":    th.Append("\xff", nil),
		"a payload without JSON":      th.Append("note", func() {}),
		"a name twice":                th.Append("note", json.RawMessage(`{"a":1,"a":2}`)),
		"a large record":              th.Append("note", strings.Repeat("x", threadlog.MaxRecord)),
		"a process without an id":     th.AppendProcess(threadlog.ProcessRef{Status: threadlog.Running}),
		"a process without a status":  th.AppendProcess(threadlog.ProcessRef{ProcessID: "1"}),
		"a command line without room": th.AppendProcess(threadlog.ProcessRef{ProcessID: "1", Status: threadlog.Running, Argv: []string{strings.Repeat("x", threadlog.MaxRecord)}}),
	} {
		rig.Is(t, err != nil, true, "%s is refused", name)
		if strings.Contains(name, "large") != errors.Is(err, threadlog.ErrTooLarge) && !strings.Contains(name, "room") {
			t.Errorf("%s: %v", name, err)
		}
	}
	rig.Is(t, rig.Err(th.StartTurn(json.RawMessage(`1`))) != nil, true, "a selection that is a number is refused")
	rig.Is(t, size(), begin, "something was written that was refused")
	must[string](t)(th.StartTurn(nil))
	rig.Is(t, rig.Err(th.StartTurn(nil)) != nil, true, "no turn begins in a turn")
	rig.Is(t, th.EndTurn("done") != nil, true, "no turn ends with a status of its own")
	rig.Must(t, th.Append(strings.Repeat("x", 64), nil))
	rig.Must(t, th.EndTurn(threadlog.TurnInterrupted))
	rig.Must(t, th.Close())
	for name, err := range map[string]error{"Close": th.Close(), "Append": th.Append("note", 1), "Sync": th.Sync()} {
		rig.Is(t, err, fs.ErrClosed, "%s of a closed thread", name)
	}
	rig.Must(t, must[*threadlog.Thread](t)(s.Open(th.ID())).Close())
}

// TestLargestRecord: a record has exactly as many bytes as are allowed, or one more.
func TestLargestRecord(t *testing.T) {
	t.Parallel()
	s, dir := open(t)
	th := must[*threadlog.Thread](t)(s.Create(threadlog.Meta{}))
	file := filepath.Join(dir, th.ID()+".jsonl")
	begin := len(must[[]byte](t)(os.ReadFile(file)))
	note(t, th, "")
	// The time of a record has milliseconds only if there are some: take what is written as the
	// measure, and leave room for the four characters.
	overhead := len(must[[]byte](t)(os.ReadFile(file))) - begin
	note(t, th, strings.Repeat("x", threadlog.MaxRecord-overhead-4))
	rig.Is(t, th.Append("note", strings.Repeat("x", threadlog.MaxRecord-overhead+5)), threadlog.ErrTooLarge, "a record beyond the bound")
	rig.Must(t, th.Close())
	rig.Must(t, must[*threadlog.Thread](t)(s.Open(th.ID())).Close())
}

// TestLargeFile: a file beyond the bound is not read.
func TestLargeFile(t *testing.T) {
	t.Parallel()
	s, dir := open(t)
	id := create(t, s)
	rig.Must(t, os.Truncate(filepath.Join(dir, id+".jsonl"), threadlog.MaxThread+1)) // a hole
	for what, err := range map[string]error{"open": rig.Err(s.Open(id)), "fork": rig.Err(s.Fork(id, 0)), "history": rig.Err(readAll(s, id))} {
		rig.Is(t, err, threadlog.ErrTooLarge, "%s", what)
	}
}

func TestIDs(t *testing.T) {
	t.Parallel()
	s, dir := open(t)
	id := create(t, s)
	rig.Must(t, os.WriteFile(filepath.Join(dir, "x.jsonl"), nil, 0o600))
	attempts := func(id string) map[string]error {
		return map[string]error{
			"open": rig.Err(s.Open(id)), "fork": rig.Err(s.Fork(id, threadlog.AllTurns)),
			"history": rig.Err(readAll(s, id)), "name": s.SetName(id, "x"),
		}
	}
	for _, bad := range []string{"", "x", "../x", "..", "/etc/passwd", id + "/", "./" + id, "{" + id + "}", "urn:uuid:" + id, strings.ReplaceAll(id, "-", ""), id + "\x00", strings.Repeat("a", 1<<20)} {
		for what, err := range attempts(bad) {
			if err == nil || errors.Is(err, fs.ErrNotExist) || len(err.Error()) > 1000 {
				t.Errorf("%s of %.64q: %.1000v", what, bad, err)
			}
		}
	}
	for what, err := range attempts("01890a5d-ac96-774b-bcce-b302099a8057") {
		rig.Is(t, err, fs.ErrNotExist, "%s of a thread that is missing", what)
	}
}

func entries(t *testing.T, dir string) []os.DirEntry {
	t.Helper()
	return must[[]os.DirEntry](t)(os.ReadDir(dir))
}
