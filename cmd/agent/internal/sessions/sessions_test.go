package sessions

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

func TestNames(t *testing.T) {
	t.Parallel()
	seen := map[string]bool{}
	for range 1000 {
		name := NewName()
		if err := CheckName(name); err != nil || len(name) > 24 {
			t.Fatalf("%q: %v", name, err)
		}
		seen[name] = true
	}
	rig.Is(t, len(seen) < 990, false, "%d names of 1000 are different", len(seen))
	for _, name := range []string{"a", "A.b_c-9", "0", strings.Repeat("a", 128)} {
		rig.Check(t, CheckName(name))
	}
	for _, name := range []string{"", "-a", ".a", "_a", "a b", "a/b", "a\n", "ä", strings.Repeat("a", 129)} {
		rig.Is(t, CheckName(name) != nil, true, "%q is no name", name)
	}
}

func TestParseSignal(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]protocol.Signal{
		"TERM": protocol.SignalTerminate, "sigterm": protocol.SignalTerminate, "15": protocol.SignalTerminate, "9": protocol.SignalKill,
		"HUP": protocol.SignalHangup, "int": protocol.SignalInterrupt, "SIGQUIT": protocol.SignalQuit, "10": protocol.SignalUser1, "USR2": protocol.SignalUser2, "STOP": "stop", "18": "continue", "winch": "windowChange",
	} {
		got, err := ParseSignal(text)
		rig.Is(t, got == want && err == nil, true, "%s is %s, %v", text, got, err)
	}
	for _, text := range []string{"", "SIG", "TSTP", "20", "0", "-9", "TERMS"} {
		rig.Is(t, rig.Err(ParseSignal(text)) != nil, true, "%q is no signal", text)
	}
}

func TestParseSince(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 2, 3, 4, 5, 6, 0, time.UTC)
	for text, want := range map[string]time.Time{
		"10m": now.Add(-10 * time.Minute), "0s": now, "2026-02-01T00:00:00Z": time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC),
		"2026-02-01T01:00:00.5+01:00": time.Date(2026, 2, 1, 0, 0, 0, 5e8, time.UTC), "2026-02-01": time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC),
		"2026-02-01 03:04:05": time.Date(2026, 2, 1, 3, 4, 5, 0, time.UTC), "1700000000": time.Unix(1_700_000_000, 0),
	} {
		got, err := ParseSince(text, now)
		rig.Is(t, got.Equal(want) && err == nil, true, "%s is %v, %v", text, got, err)
	}
	for _, text := range []string{"", "-5m", "yesterday", "10 m", "2026-13-01"} {
		rig.Is(t, rig.Err(ParseSince(text, now)) != nil, true, "%q is no time", text)
	}
}

// TestPick: a process is named only where there are several.
func TestPick(t *testing.T) {
	t.Parallel()
	of := func(ids ...string) *Found {
		f := &Found{ListedSession: protocol.ListedSession{Name: "s"}}
		for _, id := range ids {
			f.Processes = append(f.Processes, protocol.ListedProcess{ProcessID: id, Exited: strings.HasPrefix(id, "x") || strings.HasPrefix(id, "left"), Closed: strings.HasPrefix(id, "x")})
		}
		return f
	}
	for _, tt := range []struct {
		found            *Found
		id               string
		process, joining string
	}{
		{of("main"), "", "main", "main"},
		{of("main"), "main", "main", "main"},
		{of("main"), "other", `session s has no process "other": it has main`, `session s has no process "other": it has main`},
		{of(), "", "session s has no process", "nothing runs in session s: agent logs s shows its output"},
		{of("xa"), "", "xa", "nothing runs in session s: agent logs s shows its output"},
		{of("left"), "", "left", "the command of session s has ended, and only processes that it has left behind run: agent logs -f s follows their output, agent kill s ends them"},
		{of("xa", "b"), "", "session s has several processes: name one of xa, b", "b"},
		{of("a", "b\x1b"), "", "session s has several processes: name one of a, b\uFFFD", "session s has several processes: name one of a, b\uFFFD"},
		{of("1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"), "11", "11", "11"},
	} {
		for want, pick := range map[string]func(string) (protocol.ListedProcess, error){"p" + tt.process: tt.found.Process, "j" + tt.joining: tt.found.Joinable} {
			got, err := pick(tt.id)
			text := got.ProcessID
			if err != nil {
				text = err.Error()
			}
			rig.Is(t, text, want[1:], "%q of %d processes", tt.id, len(tt.found.Processes))
		}
	}
}

// TestTable: every session is listed, and nothing in a command line reaches the terminal as it is.
func TestTable(t *testing.T) {
	t.Parallel()
	now := time.UnixMilli(1_800_000_000_000)
	ms := func(ago time.Duration) int64 { return now.Add(-ago).UnixMilli() }
	all := []*Found{
		{ListedSession: protocol.ListedSession{Name: "empty"}},
		{ListedSession: protocol.ListedSession{Name: "job", Attached: true, ClientName: "c", SessionID: "id", RetainMs: 60_000}, Processes: []protocol.ListedProcess{
			{ProcessID: "main", Argv: []string{"sh", "-c", "echo it's $HOME"}, StartedAtMs: ms(90 * time.Second)},
			{ProcessID: "p\n2", Argv: []string{"\x1b[2J", ""}, StartedAtMs: ms(49 * time.Hour), Exited: true, ExitCode: new(3), Closed: true, ExitedAtMs: new(ms(time.Hour))},
			{ProcessID: "3", Argv: []string{strings.Repeat("x", 100)}, StartedAtMs: ms(-time.Hour), Exited: true, ExitCode: new(0)},
		}},
	}
	var table strings.Builder
	for _, row := range Rows(all, now) {
		table.WriteString(strings.Join(row, " | ") + "\n")
	}
	want := `empty | - | empty | - | -
job | main | running (attached) | 1 minute ago | sh -c 'echo it'\''s $HOME'
job | p` + "\uFFFD" + `2 | exited 3 (attached) | 2 days ago | '` + "\uFFFD" + `[2J' ''
job | 3 | exited 0, children running (attached) | now | ` + strings.Repeat("x", 60) + "…\n"
	rig.Is(t, table.String(), want, "the table\n")
	out := rig.Value(json.MarshalIndent(JSON(all), "", "  "))
	for _, part := range []string{
		`"name": "empty"`, `"processes": []`, `"retain": "1m0s"`, `"argv": [`, `"\u001b[2J"`, `"exitCode": 3`, `"running": false`,
		`"exited": "` + at(ms(time.Hour)).Format(time.RFC3339) + `"`,
	} {
		rig.Is(t, strings.Contains(string(out), part), true, "%s is in\n%s", part, out)
	}
}
