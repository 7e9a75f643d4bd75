package threadlog_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/execagent/execagent/harness/threadlog"
	"github.com/execagent/execagent/test/rig"
)

const index = "session_index.jsonl"

// create makes a thread and closes it.
func create(t *testing.T, s *threadlog.Store) (id string) {
	t.Helper()
	th := must[*threadlog.Thread](t)(s.Create(threadlog.Meta{}))
	rig.Must(t, th.Close())
	return th.ID()
}

func wantFound(t *testing.T, s *threadlog.Store, name, want string) {
	t.Helper()
	got, err := s.Find(name)
	if want == "" && errors.Is(err, fs.ErrNotExist) {
		return
	}
	rig.Is(t, got == want && err == nil, true, "the name %q finds %q, %v; want %q", name, got, err, want)
}

func wantNames(t *testing.T, s *threadlog.Store, want ...string) {
	t.Helper()
	var got []string
	for _, n := range must[[]threadlog.Name](t)(s.Names()) {
		got = append(got, n.ID, n.Name)
	}
	rig.Is(t, slices.Equal(got, want), true, "the names are %q, of %q", got, want)
}

func TestNames(t *testing.T) {
	t.Parallel()
	s, dir := open(t)
	wantNames(t, s)
	wantFound(t, s, "x", "")
	a, b := create(t, s), create(t, s)
	before := time.Now().Add(-time.Second)
	rig.Must(t, s.SetName(a, " \tthe flaky tést <&>\u00a0\n"))
	wantFound(t, s, "the flaky tést <&>", a)
	wantFound(t, s, "  the flaky tést <&>", a)
	wantFound(t, s, "The flaky tést <&>", "")
	wantFound(t, s, "the flaky", "")
	wantFound(t, s, "", "")
	n := must[[]threadlog.Name](t)(s.Names())[0]
	rig.Is(t, !n.UpdatedAt.Before(before) && !n.UpdatedAt.After(time.Now()), true, "it was named at %v", n.UpdatedAt)

	// The name that was given last wins, on both sides.
	rig.Must(t, s.SetName(a, "one"))
	wantFound(t, s, "the flaky tést <&>", "")
	rig.Must(t, s.SetName(strings.ToUpper(b), "one"))
	wantFound(t, s, "one", b)
	wantNames(t, s, b, "one", a, "one")
	rig.Must(t, s.SetName(a, "one"))
	wantFound(t, s, "one", a)
	rig.Must(t, s.SetName(a, "two"))
	wantFound(t, s, "one", b)
	wantNames(t, s, a, "two", b, "one")

	// By name to a thread that goes on.
	th := must[*threadlog.Thread](t)(s.Open(must[string](t)(openIn(t, dir).Find("two"))))
	note(t, th, "1")
	rig.Must(t, s.SetName(a, "three")) // it is open
	rig.Must(t, th.Close())
	wantNotes(t, s, must[string](t)(s.Find("three")), "1")

	// A thread whose file is gone is not found; an older one of that name is.
	rig.Must(t, s.SetName(b, "three"))
	wantFound(t, s, "three", b)
	rig.Must(t, os.Remove(filepath.Join(dir, b+".jsonl")))
	wantFound(t, s, "three", a)
	wantNames(t, s, a, "three")

	// A fork has a name of its own.
	fork := must[*threadlog.Thread](t)(s.Fork(a, threadlog.AllTurns))
	wantNames(t, s, a, "three")
	rig.Must(t, s.SetName(fork.ID(), "three"))
	wantFound(t, s, "three", fork.ID())
}

func TestNamesRefused(t *testing.T) {
	t.Parallel()
	s, dir := open(t)
	id := create(t, s)
	for name, want := range map[string]string{
		"":                                       "the name is empty",
		" \t\u00a0 ":                             "the name is empty",
		"a\xff":                                  "not UTF-8",
		"a\nb":                                   "control characters",
		"a\x1b[31m":                              "control characters",
		"a\u0085b":                               "control characters",
		strings.Repeat("x", threadlog.MaxName+1): "the name has 513 bytes, 512 are allowed",
	} {
		err := s.SetName(id, name)
		rig.Is(t, err != nil && strings.Contains(err.Error(), want), true, "%.64q: %v, want %q", name, err, want)
	}
	rig.Is(t, rig.Err(os.Stat(filepath.Join(dir, index))), fs.ErrNotExist, "a name was written")
	for _, name := range []string{strings.Repeat("x", threadlog.MaxName), strings.Repeat(`"`, threadlog.MaxName), "x" + strings.Repeat("\u2028", 100) + "x", "../../etc"} {
		rig.Must(t, s.SetName(id, name))
		wantFound(t, s, name, id)
	}
}

// TestNamesTorn cuts the last line of the file of names at every byte. The names before it stay,
// and the next one is written after them.
func TestNamesTorn(t *testing.T) {
	t.Parallel()
	s, dir := open(t)
	a, b := create(t, s), create(t, s)
	rig.Must(t, s.SetName(a, "one"))
	file := filepath.Join(dir, index)
	kept := len(must[[]byte](t)(os.ReadFile(file)))
	rig.Must(t, s.SetName(b, "two"))
	whole := must[[]byte](t)(os.ReadFile(file))
	for n := range len(whole) {
		rig.Must(t, os.WriteFile(file, whole[:n], 0o600))
		first := a
		if n < kept {
			first = ""
		}
		wantFound(t, s, "one", first)
		wantFound(t, s, "two", "")
		rig.Must(t, s.SetName(b, "three"))
		wantFound(t, s, "one", first)
		wantFound(t, s, "three", b)
	}
}

func TestNamesCorrupt(t *testing.T) {
	t.Parallel()
	s, dir := open(t)
	a, b := create(t, s), create(t, s)
	file := filepath.Join(dir, index)
	begin := fmt.Sprintf(`{"id":%q,"thread_name":"one"}`, a)
	for _, test := range []struct{ line, want string }{
		{``, "end of input"},
		{`[]`, "expected an object"},
		{`{"id":1}`, "id: invalid type: number"},
		{`{"id":"../x","thread_name":"x"}`, `id: "../x" is not a UUID`},
		{`{"id":"` + b + `","thread_name":1}`, "thread_name: invalid type: number"},
		{`{"id":"` + b + `","thread_name":"a\u001bb"}`, "thread_name: the name has control characters"},
		{`{"id":"` + b + `","thread_name":"` + strings.Repeat("x", 600) + `"}`, "thread_name: too large: the name has 600 bytes"},
		{`{"id":"` + b + `","thread_name":"x","updated_at":"today"}`, "updated_at: "},
		{`{"id":"` + strings.Repeat("x", 5000) + `"}`, "the line has more than 4096 bytes"},
	} {
		text := []byte(begin + "\n" + test.line + "\n" + begin + "\n")
		rig.Must(t, os.WriteFile(file, text, 0o600))
		wantCorrupt(t, rig.Err(s.Names()), index, 2, test.want)
		wantCorrupt(t, rig.Err(s.Find("one")), index, 2, test.want)
		rig.Is(t, string(must[[]byte](t)(os.ReadFile(file))), string(text), "the file")
	}

	// What somebody else may have written.
	text := begin + "\n" + `{"more":1}` + "\n" + `{"id":"` + strings.ToUpper(b) + `","thread_name":" two ","more":[]}` + "\n"
	rig.Must(t, os.WriteFile(file, []byte(text), 0o600))
	wantNames(t, s, b, "two", a, "one")
	rig.Must(t, os.WriteFile(file, []byte(text+`{"id":"`+b+`","thread_name":null}`+"\n"), 0o600))
	wantNames(t, s, a, "one")

	// A last line that none of us can have begun is not cut off.
	rig.Must(t, os.WriteFile(file, []byte(strings.Repeat("x", 5000)), 0o600))
	err := s.SetName(a, "x")
	rig.Is(t, err != nil && strings.Contains(err.Error(), "more than 4096 bytes"), true, "the error is %v", err)
	rig.Must(t, os.Truncate(file, threadlog.MaxIndex+1))
	for what, err := range map[string]error{"SetName": s.SetName(a, "x"), "Names": rig.Err(s.Names())} {
		rig.Is(t, err, threadlog.ErrTooLarge, "%s with a file that is too large", what)
	}
	// Nothing more has room.
	rig.Must(t, os.WriteFile(file, []byte(strings.Repeat(" ", threadlog.MaxIndex-1)+"\n"), 0o600))
	rig.Is(t, s.SetName(a, "x"), threadlog.ErrTooLarge, "SetName in a file that is full")
}

// TestManyNames: names that are given at once are all there.
func TestManyNames(t *testing.T) {
	t.Parallel()
	s, dir := open(t)
	var group sync.WaitGroup
	for i := range 4 {
		id := create(t, s)
		store := openIn(t, dir)
		group.Go(func() {
			for n := range 5 {
				rig.Check(t, store.SetName(id, fmt.Sprintf("%d.%d", i, n)))
			}
		})
		group.Go(func() {
			rig.Check(t, rig.Err(store.Names()))
		})
	}
	group.Wait()
	lines := bytes.Count(must[[]byte](t)(os.ReadFile(filepath.Join(dir, index))), []byte("\n"))
	rig.Is(t, lines, 20, "lines of the file")
	rig.Is(t, len(must[[]threadlog.Name](t)(s.Names())), 4, "names")
}
