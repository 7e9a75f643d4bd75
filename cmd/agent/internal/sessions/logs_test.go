package sessions

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/execagent/execagent/protocol"
	"github.com/execagent/execagent/test/rig"
)

// TestLastLines: what is cut down to n lines is what tail(1) prints, however it came in pieces.
func TestLastLines(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		text := rapid.StringOf(rapid.RuneFrom([]rune("ab\n"))).Draw(t, "text")
		n := rapid.IntRange(0, 6).Draw(t, "lines")
		var chunks []protocol.OutputChunk
		for rest := text; rest != ""; {
			size := rapid.IntRange(0, len(rest)).Draw(t, "piece")
			chunks = append(chunks, protocol.OutputChunk{Chunk: []byte(rest[:size])})
			rest = rest[size:]
		}
		lines := strings.SplitAfter(text, "\n")
		if lines[len(lines)-1] == "" {
			lines = lines[:len(lines)-1]
		}
		want := strings.Join(lines[max(0, len(lines)-n):], "")
		rest, cut := lastLines(chunks, uint64(n))
		var got strings.Builder
		for _, chunk := range rest {
			got.Write(chunk.Chunk)
		}
		if got.String() != want || cut != (len(want) < len(text)) && text != "" {
			t.Fatalf("the last %d lines of %q are %q (cut: %v), want %q", n, text, &got, cut, want)
		}
	})
}

// TestMissing: output that was not kept is told from events that are no output.
func TestMissing(t *testing.T) {
	t.Parallel()
	type result struct {
		seqs    []uint64
		next    uint64
		exited  bool
		closed  bool
		missing bool
	}
	for name, results := range map[string][]result{
		"all":                  {{[]uint64{1, 2}, 3, false, false, false}, {[]uint64{3}, 4, false, false, false}, {nil, 6, true, true, false}},
		"the exit in between":  {{[]uint64{1}, 2, false, false, false}, {[]uint64{3}, 4, true, false, false}, {nil, 5, true, true, false}},
		"front":                {{[]uint64{7}, 8, false, false, true}, {[]uint64{8}, 9, true, false, false}},
		"front and the exit":   {{[]uint64{7, 9}, 10, true, false, true}, {nil, 11, true, true, false}},
		"nothing was kept":     {{nil, 9, true, true, true}},
		"nothing was printed":  {{nil, 3, true, true, false}},
		"front, and the end":   {{[]uint64{7, 8}, 11, true, true, true}, {nil, 11, true, true, false}},
		"front in pieces":      {{[]uint64{7}, 8, true, true, true}, {[]uint64{8}, 9, true, true, false}, {nil, 11, true, true, false}},
		"one piece, or exit":   {{[]uint64{2}, 3, true, true, false}, {nil, 5, true, true, false}},
		"in the middle":        {{[]uint64{1}, 2, false, false, false}, {[]uint64{5, 6}, 7, false, false, true}},
		"after the exit":       {{nil, 2, true, false, false}, {[]uint64{3}, 4, true, false, true}},
		"the same again":       {{[]uint64{1}, 2, false, false, false}, {nil, 2, false, false, false}},
		"a server that is off": {{[]uint64{1, 2, 3, 4}, 3, false, false, false}},
	} {
		var l Logs
		for i, r := range results {
			answer := protocol.ReadResult{NextSeq: r.next, Exited: r.exited, Closed: r.closed}
			for _, seq := range r.seqs {
				answer.Chunks = append(answer.Chunks, protocol.OutputChunk{Seq: seq})
			}
			rig.Is(t, l.note(&answer), r.missing, "%s: result %d: missing", name, i)
		}
	}
}

// TestWrite: each stream goes to its place, lines have their times, and what is old is left out.
func TestWrite(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	missing := 0
	l := Logs{Stdout: &stdout, Stderr: &stderr, Timestamps: true, Since: time.UnixMilli(2000), Missing: func() { missing++ }, missing: true}
	for i, piece := range []string{"stdout old\n", "stdout a", "stderr e\n", "stdout b\nc", "pty \n\n", "stderr f", "stderr g\n"} {
		stream, text, _ := strings.Cut(piece, " ")
		rig.Must(t, l.write(&protocol.OutputChunk{Stream: stream, Chunk: []byte(text), AtMs: new(int64(1000 + 1000*i))}))
		if i == 2 {
			l.missing = true
		}
	}
	stamp := func(second int, line string) string {
		return fmt.Sprintf("1970-01-01T00:00:%02d.000Z %s", second, line)
	}
	want := stamp(2, "ab\n") + stamp(4, "c\n") + stamp(5, "\n")
	rig.Is(t, stdout.String(), want, "printed")
	rig.Is(t, stderr.String(), stamp(3, "e\n")+stamp(6, "fg\n"), "errors printed")
	rig.Is(t, missing, 1, "times something was missing")
}

// TestBroken: where the beginning is missing a stream begins with a whole line, if it has one.
func TestBroken(t *testing.T) {
	t.Parallel()
	var stdout, stderr bytes.Buffer
	l := Logs{Stdout: &stdout, Stderr: &stderr, Missing: func() {}, missing: true}
	for _, piece := range []string{"stdout 07\n8\n", "stderr no line", "stdout 9\n"} {
		stream, text, _ := strings.Cut(piece, " ")
		rig.Must(t, l.write(&protocol.OutputChunk{Stream: stream, Chunk: []byte(text)}))
	}
	rig.Is(t, stdout.String()+stderr.String(), "8\n9\nno line", "printed")
}
