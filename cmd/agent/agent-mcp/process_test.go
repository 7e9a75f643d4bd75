package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/modelcontextprotocol/go-sdk/mcp"
	"pgregory.net/rapid"

	"github.com/execagent/execagent/test/rig"
)

// TestTokens: the tools take few tokens of every conversation. A token of such texts has four bytes or more, and
// three are counted for one, because the tokens of models differ.
func TestTokens(t *testing.T) {
	t.Parallel()
	var all []*mcp.Tool
	rig.Must(t, json.Unmarshal(tools, &all))
	tokens := len(rig.Value(json.Marshal(all))) / 3
	t.Logf("%d tokens", tokens)
	rig.Is(t, len(all), 9, "the tools")
	rig.Is(t, len(handlers), 9, "the handlers")
	rig.Is(t, tokens < 2500, true, "%d tokens are fewer than 2500", tokens)
}

// TestExcerpt: an excerpt is a beginning and an end of the output, and says how much is between them and where that is.
func TestExcerpt(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		p := newProcess("test")
		var whole strings.Builder
		starts := []int{0} // the bytes after each event
		sizes := rapid.SliceOfN(rapid.OneOf(rapid.IntRange(0, 40), rapid.IntRange(0, 400<<10)), 0, 12).Draw(t, "sizes")
		for i, n := range sizes {
			data := strings.Repeat(string(rune('a'+i)), n)
			whole.WriteString(data)
			p.now.seq++
			p.add(p.now.seq, []byte(data))
			starts = append(starts, whole.Len())
		}
		after := rapid.IntRange(0, len(sizes)).Draw(t, "after")
		most := rapid.SampledFrom([]int{leastBytes, defaultBytes, mostBytes}).Draw(t, "most")
		tail := rapid.Bool().Draw(t, "tail")
		from := p.after(uint64(after))
		rig.Is(t, from.lost || from.bytes == uint64(starts[after]), true, "the place after event %d is %d", after, from.bytes)
		want := whole.String()[from.bytes:]
		out := p.excerpt(from, most, tail)
		rig.Is(t, out.next, uint64(len(sizes)), "the next event")
		if out.omitted == 0 {
			rig.Is(t, out.text == want, true, "everything is there: %d of %d bytes", len(out.text), len(want))
			return
		}
		head, end, found := strings.Cut(out.text, gapMark(out.omitted))
		rig.Is(t, found && len(head)+len(end) <= most, true, "a gap is marked, and %d+%d bytes are enough", len(head), len(end))
		rig.Is(t, strings.HasPrefix(want, head) && strings.HasSuffix(want, end), true, "the beginning and the end")
		rig.Is(t, len(head)+len(end)+int(out.omitted) == len(want), true, "%d+%d+%d bytes of %d", len(head), out.omitted, len(end), len(want))
		kept := out.omitted - out.gone
		rig.Is(t, (out.reread == nil) == (kept == 0), true, "%d of %d bytes can be read again", kept, out.omitted)
		if out.reread != nil {
			again := p.excerpt(p.after(*out.reread), 1<<30, false)
			rig.Is(t, strings.HasSuffix(want, again.text) || strings.HasSuffix(again.text, want), true, "what is read again")
			rig.Is(t, len(again.text) >= int(kept)+len(end), true, "%d bytes hold the %d omitted ones", len(again.text), kept)
		}
	})
}

// TestTinyPieces: a command that prints byte by byte cannot fill the memory, and costs little for each byte.
func TestTinyPieces(t *testing.T) {
	t.Parallel()
	p := newProcess("test")
	for i := range uint64(4 * maxPieces) {
		p.add(i+1, []byte("x"))
	}
	rig.Is(t, len(p.pieces), maxPieces, "the pieces")
	rig.Is(t, cap(p.pieces) < 3*maxPieces, true, "%d pieces have room", cap(p.pieces))
	rig.Is(t, p.kept, maxPieces, "the bytes")
	rig.Is(t, p.after(3*maxPieces), place{seq: 3 * maxPieces, bytes: 3 * maxPieces, lost: true}, "the place of the oldest piece")
}
