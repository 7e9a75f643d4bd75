package threadlog_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/execagent/execagent/harness/threadlog"
	"github.com/execagent/execagent/test/rig"
)

func TestFork(t *testing.T) {
	t.Parallel()
	s, dir := open(t)
	parent := must[*threadlog.Thread](t)(s.Create(threadlog.Meta{
		Originator: "test", SelectedCapabilityRoots: json.RawMessage(roots), Environments: json.RawMessage(`["a"]`)}))
	note(t, parent, "0")
	turn(t, parent, "1")
	must[string](t)(parent.StartTurn(json.RawMessage(envs)))
	note(t, parent, "2") // the turn runs

	fork := must[*threadlog.Thread](t)(s.Fork(parent.ID(), threadlog.AllTurns))
	m := fork.Meta()
	if m.ID == parent.ID() || m.ForkedFromID != parent.ID() || m.Originator != "test" ||
		string(m.SelectedCapabilityRoots) != roots || string(m.Environments) != envs || string(fork.Environments()) != envs {
		t.Errorf("the fork begins with %+v", m)
	}
	info := must[fs.FileInfo](t)(os.Stat(filepath.Join(dir, parent.ID()+".jsonl")))
	if b := m.HistoryBase; b.ThreadID != parent.ID() || b.EndByteOffset != info.Size() || b.EndOrdinalExclusive != 7 || b.Start != nil {
		t.Errorf("the fork refers to %+v", b)
	}
	// Each goes on by itself. The turn that runs in the parent does not run in the fork.
	note(t, parent, "3")
	rig.Must(t, parent.EndTurn(threadlog.TurnCompleted))
	turn(t, fork, "4")
	wantNotes(t, s, parent.ID(), "0", "1", "2", "3")
	wantNotes(t, s, fork.ID(), "0", "1", "2", "4")

	second := must[*threadlog.Thread](t)(s.Fork(fork.ID(), threadlog.AllTurns))
	turn(t, second, "5")
	turn(t, fork, "6")
	wantNotes(t, s, second.ID(), "0", "1", "2", "4", "5")
	records := rig.Value(readAll(s, second.ID()))
	counts := map[string]int{}
	for _, r := range records {
		counts[r.ThreadID]++
		rig.Is(t, r.Type == threadlog.TypeSessionMeta, false, "the first record of %s is in the history", r.ThreadID)
	}
	rig.Is(t, counts[parent.ID()] == 6 && counts[fork.ID()] == 3 && counts[second.ID()] == 3, true, "records by thread: %v", counts)

	// A resumed fork has everything, and a resumed parent does not disturb it.
	for _, th := range []*threadlog.Thread{parent, fork, second} {
		rig.Must(t, th.Close())
	}
	again := must[*threadlog.Thread](t)(s.Open(second.ID()))
	turn(t, again, "7")
	rig.Is(t, string(again.Environments()), envs, "the fork resumes with")
	rig.Is(t, string(again.Meta().SelectedCapabilityRoots), roots, "and the roots")
	rig.Must(t, again.Close())
	wantNotes(t, s, second.ID(), "0", "1", "2", "4", "5", "7")

	// The reader may stop anywhere.
	for range s.History(second.ID()) {
		break
	}
}

// TestBoundedFork takes the last turns of a history that is spread over three files:
// n0 [1] n1 [2] | n2 [3] [4 | n5 [5] n6
func TestBoundedFork(t *testing.T) {
	t.Parallel()
	s, _ := open(t)
	a := must[*threadlog.Thread](t)(s.Create(threadlog.Meta{}))
	note(t, a, "n0")
	turn(t, a, "1")
	note(t, a, "n1")
	turn(t, a, "2")
	b := must[*threadlog.Thread](t)(s.Fork(a.ID(), threadlog.AllTurns))
	note(t, b, "n2")
	turn(t, b, "3")
	must[string](t)(b.StartTurn(nil))
	note(t, b, "4") // it never ends
	c := must[*threadlog.Thread](t)(s.Fork(b.ID(), threadlog.AllTurns))
	note(t, c, "n5")
	turn(t, c, "5")
	note(t, c, "n6")
	all := []string{"n0", "1", "n1", "2", "n2", "3", "4", "n5", "5", "n6"}
	for _, test := range []struct {
		turns int
		want  []string
		start string // the thread where the history begins
	}{
		{threadlog.AllTurns, all, ""},
		{0, nil, ""},
		{1, all[8:], c.ID()},
		{2, all[6:], b.ID()},
		{3, all[5:], b.ID()},
		{4, all[3:], a.ID()},
		{5, all, ""}, // all turns, so what comes before the first one too
		{6, all, ""},
		{threadlog.MaxForkTurns, all, ""},
	} {
		fork := must[*threadlog.Thread](t)(s.Fork(c.ID(), test.turns))
		wantNotes(t, s, fork.ID(), test.want...)
		start := ""
		if base := fork.Meta().HistoryBase; base == nil {
			rig.Is(t, test.turns, 0, "turns: there is no base")
		} else if base.Start != nil {
			start = base.Start.ThreadID
		}
		rig.Is(t, start, test.start, "%d turns: the history begins in", test.turns)
		rig.Is(t, fork.Meta().ForkedFromID, c.ID(), "%d turns: it was forked from", test.turns)
		// What is forked from a bounded history is bounded by it.
		turn(t, fork, "x")
		next := must[*threadlog.Thread](t)(s.Fork(fork.ID(), threadlog.AllTurns))
		wantNotes(t, s, next.ID(), append(slices.Clip(test.want), "x")...)
		if test.turns > 0 {
			next := must[*threadlog.Thread](t)(s.Fork(fork.ID(), threadlog.MaxForkTurns))
			wantNotes(t, s, next.ID(), append(slices.Clip(test.want), "x")...)
		}
		next = must[*threadlog.Thread](t)(s.Fork(fork.ID(), 1))
		wantNotes(t, s, next.ID(), "x")
	}
	for _, turns := range []int{-2, threadlog.MaxForkTurns + 1} {
		rig.Is(t, rig.Err(s.Fork(c.ID(), turns)) != nil, true, "a fork with %d turns is refused", turns)
	}
}

// TestGenerations: a chain of forks has a bound. A bounded history begins a shorter one.
func TestGenerations(t *testing.T) {
	t.Parallel()
	s, dir := open(t)
	th := must[*threadlog.Thread](t)(s.Create(threadlog.Meta{}))
	turn(t, th, "1")
	for n := 2; n <= threadlog.MaxGenerations; n++ {
		next := must[*threadlog.Thread](t)(s.Fork(th.ID(), threadlog.AllTurns))
		turn(t, next, fmt.Sprint(n))
		rig.Must(t, th.Close())
		th = next
	}
	rig.Is(t, len(notes(t, s, th.ID())), threadlog.MaxGenerations, "turns")
	before := len(entries(t, dir))
	// 64 turns would begin in the first file and so need all of them, too.
	for _, turns := range []int{threadlog.AllTurns, threadlog.MaxForkTurns, threadlog.MaxGenerations} {
		rig.Is(t, rig.Err(s.Fork(th.ID(), turns)), threadlog.ErrTooLarge, "a fork of the last generation with %d turns", turns)
	}
	rig.Is(t, len(entries(t, dir)), before, "files")
	fork := must[*threadlog.Thread](t)(s.Fork(th.ID(), threadlog.MaxGenerations-1))
	rig.Is(t, len(notes(t, s, fork.ID())), threadlog.MaxGenerations-1, "turns")
	rig.Is(t, rig.Err(s.Fork(fork.ID(), threadlog.AllTurns)), threadlog.ErrTooLarge, "a fork of it")
	fork = must[*threadlog.Thread](t)(s.Fork(th.ID(), 0))
	wantNotes(t, s, fork.ID())
	must[*threadlog.Thread](t)(s.Fork(fork.ID(), threadlog.AllTurns))
}

// ids for files that tests write themselves.
const (
	idA = "01890a5d-ac96-774b-bcce-b302099a8051"
	idB = "01890a5d-ac96-774b-bcce-b302099a8052"
	idC = "01890a5d-ac96-774b-bcce-b302099a8053"
)

// put writes the file of a thread with a history base and notes.
func put(t *testing.T, dir, id, base string, notes ...string) (size int) {
	t.Helper()
	if base == "" {
		base = "null"
	}
	lines := []string{`{"type":"session_meta","payload":{"id":"` + id + `","history_base":` + base + `}}`}
	for _, n := range notes {
		lines = append(lines, `{"type":"note","payload":"`+n+`"}`)
	}
	text := strings.Join(lines, "\n") + "\n"
	rig.Must(t, os.WriteFile(filepath.Join(dir, id+".jsonl"), []byte(text), 0o600))
	return len(text)
}

// base returns the text of a history base.
func base(id string, ordinal, offset int, start string) string {
	if start == "" {
		start = "null"
	}
	return fmt.Sprintf(`{"thread_id":%q,"end_ordinal_exclusive":%d,"end_byte_offset":%d,"start":%s}`, id, ordinal, offset, start)
}

// TestCycles: threads that are their own ancestors.
func TestCycles(t *testing.T) {
	t.Parallel()
	s, dir := open(t)
	put(t, dir, idA, base(idA, 9, 900, ""), "1")
	put(t, dir, idB, base(strings.ToUpper(idC), 9, 900, ""), "2")
	put(t, dir, idC, base(idB, 9, 900, ""), "3")
	for id, in := range map[string]string{idA: idA, idB: idC, idC: idB} {
		wantCorrupt(t, rig.Err(readAll(s, id)), in+".jsonl", 1, "payload: history_base: thread_id: the thread is an ancestor of itself")
		wantCorrupt(t, rig.Err(s.Fork(id, 1)), in+".jsonl", 1, "ancestor of itself")
		// What is in its own file can be read and continued.
		rig.Must(t, must[*threadlog.Thread](t)(s.Open(id)).Close())
	}
}

// TestChain: a chain of references that is longer than any that is made.
func TestChain(t *testing.T) {
	t.Parallel()
	s, dir := open(t)
	id := func(n int) string { return fmt.Sprintf("01890a5d-ac96-774b-bcce-%012x", n) }
	size := put(t, dir, id(0), "", "x")
	for n := 1; n <= threadlog.MaxGenerations; n++ {
		size = put(t, dir, id(n), base(id(n-1), 2, size, ""), "x")
	}
	rig.Is(t, len(notes(t, s, id(threadlog.MaxGenerations-1))), threadlog.MaxGenerations, "notes")
	const long = "history_base: thread_id: too large: the history is spread over more than 64 threads"
	wantCorrupt(t, rig.Err(readAll(s, id(threadlog.MaxGenerations))), id(1)+".jsonl", 1, long)
}

// TestMissingParent: histories need the files of ancestors, and their own records do not.
func TestMissingParent(t *testing.T) {
	t.Parallel()
	s, dir := open(t)
	parent := must[*threadlog.Thread](t)(s.Create(threadlog.Meta{Environments: json.RawMessage(`["a"]`)}))
	turn(t, parent, "1")
	fork := must[*threadlog.Thread](t)(s.Fork(parent.ID(), threadlog.AllTurns))
	rig.Must(t, errors.Join(parent.Close(), fork.Close(), os.Remove(filepath.Join(dir, parent.ID()+".jsonl"))))
	for what, err := range map[string]error{"history": rig.Err(readAll(s, fork.ID())), "fork": rig.Err(s.Fork(fork.ID(), 1))} {
		rig.Is(t, errors.Is(err, fs.ErrNotExist) && strings.Contains(err.Error(), parent.ID()), true, "%s: %v", what, err)
	}
	again := must[*threadlog.Thread](t)(s.Open(fork.ID()))
	rig.Is(t, string(again.Environments()), `["a"]`, "in effect is")
	turn(t, again, "2")
	rig.Must(t, again.Close())
}

// TestReferences: references to what is not there.
func TestReferences(t *testing.T) {
	t.Parallel()
	s, dir := open(t)
	size := put(t, dir, idA, "", "1", "2")
	first := put(t, dir, idA, "")
	each := (size - first) / 2
	put(t, dir, idA, "", "1", "2")
	start := func(id string, ordinal, offset int) string {
		return fmt.Sprintf(`{"thread_id":%q,"ordinal":%d,"byte_offset":%d}`, id, ordinal, offset)
	}
	const none = "has no"
	for _, test := range []struct {
		name, base, want string // no want: it is fine
	}{
		{"all", base(idA, 3, size, ""), ""},
		{"a part", base(idA, 2, first+each, ""), ""},
		{"nothing", base(idA, 1, first, ""), ""},
		{"bounded", base(idA, 3, size, start(idA, 2, first+each)), ""},
		{"bounded to nothing", base(idA, 3, size, start(idA, 3, size)), ""},
		{"more records", base(idA, 4, size, ""), none},
		{"less records", base(idA, 2, size, ""), none},
		{"more bytes", base(idA, 3, size+1, ""), none},
		{"far more bytes", base(idA, 3, threadlog.MaxThread, ""), none},
		{"within a line", base(idA, 3, size-1, ""), none},
		{"within the first record", base(idA, 1, first-1, ""), "the end lies in the first record"},
		{"no records", base(idA, 0, first, ""), "the end lies in the first record"},
		{"start in the first record", base(idA, 3, size, start(idA, 0, 0)), "start: it lies outside of the history"},
		{"start after the end", base(idA, 2, first+each, start(idA, 3, size)), "start: it lies outside of the history"},
		{"start elsewhere", base(idA, 3, size, start(idC, 1, 100)), "start: thread_id: " + idC + " is no ancestor"},
		{"start in itself", base(idA, 3, size, start(idB, 1, 100)), "start: thread_id: " + idB + " is no ancestor"},
		{"start with too few records", base(idA, 3, size, start(idA, 1, first+each)), none},
	} {
		put(t, dir, idB, test.base, "3")
		_, err := readAll(s, idB)
		if test.want == "" {
			rig.Must(t, err)
			continue
		}
		t.Log(test.name)
		wantCorrupt(t, err, idB+".jsonl", 1, test.want)
		wantCorrupt(t, rig.Err(s.Fork(idB, 1)), idB+".jsonl", 1, test.want)
	}
	// A start within a line is found when it is no record.
	put(t, dir, idB, base(idA, 3, size, start(idA, 2, first+each+1)), "3")
	rig.Is(t, rig.Err(readAll(s, idB)) != nil, true, "no record is read from within a line")
	// The file of a parent that has become shorter.
	put(t, dir, idB, base(idA, 3, size, ""), "3")
	put(t, dir, idA, "", "1")
	records, err := readAll(s, idB)
	wantCorrupt(t, err, idB+".jsonl", 1, none)
	rig.Is(t, len(records), 1, "records come before the error")
}
