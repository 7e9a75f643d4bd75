package snapshot

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/procs"
	"github.com/execagent/execagent/test/rig"
)

// TestCollector: only what is between marks is kept, however it comes in, and what somebody
// else prints in between is noticed.
func TestCollector(t *testing.T) {
	t.Parallel()
	k := kind{parts: 1, code: func(parts []string) string { return strings.Join(parts, "") }}
	const state = "code\x00A=1\x00PWD=/x\x00"
	for _, tt := range []struct {
		output string
		err    error
	}{
		{"noise MARMARK\x00" + state + "MARK\x00" + state + "MARK\x00 more", nil},
		{"MARK\x00" + state + "noiseMARK\x00" + state + "MARK\x00", errDiffers},
	} {
		for _, size := range []int{1, 3, len(tt.output)} {
			c := collector{mark: "MARK\x00", done: make(chan error, 1)}
			c.take(procs.Event{Kind: procs.Output, Stream: procs.Stderr, Data: []byte("MARK\x00")})
			for piece := range slices.Chunk([]byte(tt.output), size) {
				c.take(procs.Event{Kind: procs.Output, Stream: procs.Stdout, Data: piece})
			}
			c.take(procs.Event{Kind: procs.Exited, ExitCode: 1}) // its end has come before
			rig.Must(t, <-c.done)
			s, err := parse(k, c.output(), "MARK", []string{"not-one=2", "B=3", "BASH_FUNC_f%%=x"})
			if !errors.Is(err, tt.err) {
				t.Fatalf("%q in pieces of %d: %v", tt.output, size, err)
			}
			if err == nil && (s.code != "code" || strings.Join(s.environ, " ") != "A=1 not-one=2") {
				t.Errorf("%q in pieces of %d: %+v", tt.output, size, s)
			}
		}
	}
}

// TestTries: a capture that fails is tried again after a pause, and three times in all.
func TestTries(t *testing.T) {
	t.Parallel()
	set := Set{Budget: NewBudget()}
	defer set.Close()
	tries := 0
	get := func() {
		t.Helper()
		state, err := set.Get(t.Context(), "key", func() error { return nil }, func(context.Context) (*State, error) {
			tries++
			return nil, errDiffers
		})
		rig.Is(t, state == nil && err == nil, true, "%v, %v", state, err)
	}
	failed := func(at time.Time) {
		set.mu.Lock()
		defer set.mu.Unlock()
		set.entries[0].failed = at
	}
	for want := 1; want <= maxTries; want++ {
		get()
		failed(time.Now().Add(time.Hour)) // less than a pause ago
		get()
		rig.Is(t, tries, want, "tries")
		failed(time.Now().Add(-time.Hour))
	}
	get()
	rig.Is(t, tries, maxTries, "tries in all")
}

// TestTime: a capture ends with its time, which is bounded where nobody has said how long it is,
// and counts as one that has failed.
func TestTime(t *testing.T) {
	t.Parallel()
	for given, most := range map[time.Duration]time.Duration{0: maxTime, time.Millisecond: time.Millisecond} {
		set := Set{Budget: NewBudget(), Time: given}
		state, err := set.Get(t.Context(), "key", func() error { return nil }, func(ctx context.Context) (*State, error) {
			deadline, ok := ctx.Deadline()
			rig.Is(t, ok && time.Until(deadline) <= most, true, "it may last until %v", deadline)
			if given == 0 {
				return nil, context.DeadlineExceeded
			}
			<-ctx.Done()
			return nil, context.Cause(ctx)
		})
		if state != nil || err != nil || set.entries[0].tries != 1 {
			t.Errorf("%v, %v, %d tries", state, err, set.entries[0].tries)
		}
		set.Close()
	}
}

// TestKept: a set has so many states, the budget so many bytes, and both are given back.
func TestKept(t *testing.T) {
	t.Parallel()
	budget := NewBudget()
	set := Set{Budget: budget}
	size := 3 * maxBytes / maxStates / 8
	for i := range 2 * maxStates {
		state, err := set.Get(t.Context(), strconv.Itoa(i), func() error { return nil }, func(context.Context) (*State, error) {
			return &State{code: strings.Repeat("x", size)}, nil
		})
		if state == nil || err != nil {
			t.Fatalf("state %d: %v", i, err)
		}
	}
	rig.Is(t, len(set.entries), maxStates, "states")
	rig.Is(t, budget.Used(), int64(maxStates*size), "bytes")
	other := Set{Budget: budget}
	state, err := other.Get(t.Context(), "key", func() error { return nil }, func(context.Context) (*State, error) {
		return &State{code: strings.Repeat("x", maxBytes/2)}, nil
	})
	rig.Is(t, state == nil && err == nil, true, "beyond the budget: %v, %v", state != nil, err)
	set.Close()
	other.Close()
	rig.Is(t, budget.Used(), 0, "bytes are still taken")
	state, err = set.Get(t.Context(), "0", nil, nil)
	rig.Is(t, state == nil && err == nil, true, "after Close: %v, %v", state, err)
}

// FuzzParse: whatever a shell prints, what is taken is within the bounds.
func FuzzParse(f *testing.F) {
	k, _ := kinds("sh")
	f.Add("set -o noglob\n\x00a='b\nc'\nalias d=\"e\"\n\x00A=1\x00_=x\x00")
	f.Add("\x00\x00")
	f.Fuzz(func(t *testing.T, output string) {
		s, err := parse(k, output+"MARK\x00"+output, "MARK", nil)
		if err != nil {
			return
		}
		if len(s.code) > maxCode || s.size() > 32*maxEnviron {
			t.Fatalf("%d bytes", s.size())
		}
		for _, record := range s.environ {
			if name, _, ok := strings.Cut(record, "="); !ok || !isVariable(name) || strings.Contains(record, "\x00") {
				t.Fatalf("%q", record)
			}
		}
		s.Apply([]string{"sh", "-lc", "true"}, nil, nil)
	})
}
