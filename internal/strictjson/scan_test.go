package strictjson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/execagent/execagent/test/rig"
)

// inParams returns a request whose params are the given JSON.
func inParams(params string) string {
	return `{"id":1,"method":"m","params":` + params + `}`
}

// scan checks a text and returns its member params.
func scan(text []byte) (params []byte, err error) {
	_, err = Members(text, func(name, value []byte) {
		if string(name) == "params" {
			params = value
		}
	})
	return params, err
}

// scans fails a test if the error about a text lacks another text, or if there is one where there is
// none.
func scans(t *testing.T, in, want string) {
	t.Helper()
	_, err := scan([]byte(in))
	rig.Is(t, (err != nil) == (want != "") && strings.Contains(fmt.Sprint(err), want), true, "%.80q: %v has %q", in, err, want)
}

func TestScanGrammar(t *testing.T) {
	t.Parallel()
	tests := []struct {
		in   string
		want string // of the error, empty where the value is fine
	}{
		{`0`, ""}, {`-0`, ""}, {`10`, ""}, {`-1`, ""}, {`0.5`, ""}, {`1e5`, ""}, {`1E+05`, ""}, {`1e-5`, ""},
		{`-0.0e0`, ""}, {`1e999`, ""}, {`123456789012345678901234567890`, ""},
		{`01`, "expected `,` or `}`"}, {`-01`, "expected `,` or `}`"}, {`-`, "invalid number"}, {`+1`, "expected a value"},
		{`.5`, "expected a value"}, {`1.`, "invalid number"}, {`1.e5`, "invalid number"}, {`1e`, "invalid number"},
		{`1e+`, "invalid number"}, {`1ee5`, "invalid number"}, {`0x10`, "expected `,` or `}`"}, {`1_000`, "expected `,` or `}`"},
		{`--1`, "invalid number"}, {`1.2.3`, "expected `,` or `}`"}, {`NaN`, "expected a value"}, {`Infinity`, "expected a value"},
		{`-Infinity`, "invalid number"}, {"\u0661", "expected a value"},

		{`true`, ""}, {`false`, ""}, {`null`, ""}, {`True`, "expected a value"}, {`tru`, "expected a value"},
		{`nullx`, "expected `,` or `}`"}, {`nul`, "expected a value"}, {`truetrue`, "expected `,` or `}`"},

		{`[]`, ""}, {`[ ]`, ""}, {`[1,[2],{}]`, ""}, {`[1,]`, "expected a value"}, {`[,1]`, "expected a value"},
		{`[1 2]`, "expected `,` or `]`"}, {`[1`, "expected `,` or `]`"}, {`[}`, "expected a value"},
		{`{}`, ""}, {`{ }`, ""}, {`{"":1}`, ""}, {`{"a":1,}`, "expected a member name"}, {`{,}`, "expected a member name"},
		{`{a:1}`, "expected a member name"}, {`{'a':1}`, "expected a member name"}, {`{1:1}`, "expected a member name"},
		{`{"a"}`, "expected `:`"}, {`{"a" 1}`, "expected `:`"}, {`{"a":}`, "expected a value"}, {`{"a"::1}`, "expected a value"},
		{`{"a":1 "b":2}`, "expected `,` or `}`"}, {`{"a":1]`, "expected `,` or `}`"},
		{`/* c */ 1`, "expected a value"}, {"\u00a01", "expected a value"}, {"\f1", "expected a value"},

		{`""`, ""}, {`"\"\\\/\b\f\n\r\t"`, ""}, {`"\u0000"`, ""}, {`"\uABCD\uabcd"`, ""}, {"\"\x7f\"", ""},
		{`"é😀\ud83d\ude00"`, ""}, {"\"\ufeff\"", ""}, {"\"\ufffd\"", ""}, {`"0123456"`, ""}, {`"01234567"`, ""}, {`"012345678"`, ""},
		{`"\x"`, "invalid escape"}, {`"\'"`, "invalid escape"}, {`"\u12"`, "invalid escape"}, {`"\u12g4"`, "invalid escape"},
		{`"\U0041"`, "invalid escape"}, {`"\`, "invalid escape"}, {`'a'`, "expected a value"},
		{`"\ud800"`, "lone surrogate"}, {`"\udc00"`, "lone surrogate"}, {`"\ud800\ud800"`, "lone surrogate"},
		{`"\ud800x"`, "lone surrogate"}, {`"\ud800\n"`, "lone surrogate"}, {`"\ud800\u0041"`, "lone surrogate"},
		{`"\udc00\ud800"`, "lone surrogate"}, {`"\udc00\udc00"`, "lone surrogate"}, {`"\ud83d\ude"`, "lone surrogate"},
		{"\"\xff\"", "invalid UTF-8"}, {"\"\xc3\"", "invalid UTF-8"}, {"\"\xed\xa0\x80\"", "invalid UTF-8"},
		{"\"\xc0\x80\"", "invalid UTF-8"}, {"\"\xf4\x90\x80\x80\"", "invalid UTF-8"}, {"\"aaaaaaaaaaaa\x80\"", "invalid UTF-8"},
	}
	for _, cut := range []string{`"`, `"abc`, `"\`, `"\u12`, `"\ud83d\`} {
		rig.Is(t, rig.Err(scan([]byte(`{"method":`+cut))) != nil, true, "a message that ends in %s is refused", cut)
	}
	for c := range 0x20 {
		tests = append(tests, struct{ in, want string }{fmt.Sprintf("\"aaaaaaaaa%caaaaaaaaaaaaaaaa\"", c), "control character inside a string"})
	}
	for _, tt := range tests {
		msg := inParams(tt.in)
		scans(t, msg, tt.want)
		if params, _ := scan([]byte(msg)); tt.want == "" {
			rig.Is(t, string(params), tt.in, "params")
			rig.Is(t, json.Valid([]byte(msg)), true, "params %q are valid JSON", tt.in)
		}
	}
}

// TestPlainEnd compares the eight bytes at a time with one at a time.
func TestPlainEnd(t *testing.T) {
	t.Parallel()
	check := func(t interface{ Errorf(string, ...any) }, data []byte, pos int) {
		want := pos
		for want < len(data) && data[want] >= 0x20 && data[want] < 0x80 && data[want] != '"' && data[want] != '\\' {
			want++
		}
		if got := plainEnd(data, pos); got != want {
			t.Errorf("plainEnd(%q, %d) = %d, want %d", data, pos, got, want)
		}
	}
	for n := range 26 {
		for at := range n {
			for c := range 256 {
				data := bytes.Repeat([]byte{' '}, n)
				data[at] = byte(c)
				check(t, data, 0)
				check(t, data, at)
				data[0] = 0x7f
				check(t, data, 0)
			}
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		bytes := rapid.OneOf(rapid.Byte(), rapid.ByteRange(0x1e, 0x24), rapid.ByteRange(0x5a, 0x5e), rapid.ByteRange(0x7e, 0x82))
		data := rapid.SliceOfN(bytes, 0, 40).Draw(t, "data")
		check(t, data, rapid.IntRange(0, len(data)).Draw(t, "pos"))
	})
}

func TestScanPositions(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ in, want string }{
		{"{\n\"id\":1,\n  x}", "expected a member name in quotes at line 3 column 3"},
		{"{\"id\":1,\"method\":\"m\",\"params\":{\"q\":1,\n\n \"q\":2}}", "duplicate member name \"q\" at line 3 column 5"},
		{`{"id":1,"method":"m","params":"ab` + "\x01" + `"}`, "control character inside a string at line 1 column 34"},
	} {
		rig.Is(t, fmt.Sprint(rig.Err(scan([]byte(tt.in)))), tt.want, "%q", tt.in)
	}
}

func TestScanDuplicates(t *testing.T) {
	t.Parallel()
	many := func(n int, last string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, `"k%d":{"k0":1,"k1":2},`, i)
		}
		return "{" + b.String() + last + "}"
	}
	for _, tt := range []struct {
		name, in string
		dup      string // empty: none
	}{
		{"top level", `{"id":1,"method":"m","id":1}`, "id"},
		{"unknown members", `{"id":1,"method":"m","x":1,"x":1}`, "x"},
		{"params", inParams(`{"q":1,"q":2}`), "q"},
		{"empty names", inParams(`{"":1,"":2}`), ""},
		{"deep", inParams(`[[{"a":[{"b":{"c":1,"d":2,"c":3}}]}]]`), "c"},
		{"in an ignored member", `{"id":1,"method":"m","jsonrpc":{"v":1,"v":1}}`, "v"},
		{"escape equals plain", inParams(`{"a":1,"\u0061":2}`), "a"},
		{"plain equals escape", inParams(`{"\u0061":1,"a":2}`), "a"},
		{"two spellings", inParams(`{"\/":1,"\u002F":2}`), "/"},
		{"surrogate pair equals plain", inParams(`{"😀":1,"\uD83D\ude00":2}`), "😀"},
		{"after a container", inParams(`{"q":{"r":[{"q":1}]},"q":2}`), "q"},
		{"of 24", inParams(many(23, `"k7":1`)), "k7"},
		{"of 25", inParams(many(24, `"k0":1`)), "k0"},
		{"of 26", inParams(many(25, `"k24":1`)), "k24"},
		{"of 1000", inParams(many(999, `"k3":1`)), "k3"},
		{"of 1000, the last two", inParams(many(999, `"k998":1`)), "k998"},
	} {
		scans(t, tt.in, fmt.Sprintf("duplicate member name %q at line 1", tt.dup))
	}
	for _, in := range []string{
		inParams(`{"a":{"a":{"a":1}},"b":{"a":1},"A":1}`),
		inParams(`[{"a":1},{"a":1}]`),
		inParams(many(23, `"z":1`)), inParams(many(24, `"z":1`)), inParams(many(1000, `"z":1`)),
		inParams(`{"é":1,"e\u0301":2}`),
	} {
		scans(t, in, "")
	}
}

func TestScanDepth(t *testing.T) {
	t.Parallel()
	nested := func(n int) string { return strings.Repeat("[", n) + "1" + strings.Repeat("]", n) }
	objects := func(n int) string { return strings.Repeat(`{"a":`, n) + "1" + strings.Repeat("}", n) }
	const beyond = "nesting exceeds the limit of 127 levels at line 1"
	for _, tt := range []struct{ name, in, want string }{
		{"125 arrays inside params", inParams(`{"a":` + nested(125) + `}`), ""},
		{"126 arrays inside params", inParams(`{"a":` + nested(126) + `}`), beyond},
		{"126 objects", inParams(objects(126)), ""},
		{"127 objects", inParams(objects(127)), beyond},
		{"siblings do not add up", inParams(`[` + nested(125) + `,` + nested(125) + `,{}]`), ""},
		{"far too many", inParams(nested(1 << 20)), beyond},
		{"never closed", strings.Repeat("[", 1<<20), beyond},
	} {
		t.Run(tt.name, func(t *testing.T) { scans(t, tt.in, tt.want) })
	}
}

func TestScanValues(t *testing.T) {
	t.Parallel()
	// A message of n values: itself, id, method, params, the array or object
	// in it, and what that holds.
	array := func(n int) string { return inParams(`{"a":[1` + strings.Repeat(",1", n-6) + `]}`) }
	objects := func(n int) string { return inParams(`{"a":[{}` + strings.Repeat(",{}", n-6) + `]}`) }
	for _, of := range []func(int) string{array, objects} {
		scans(t, of(MaxValues), "")
		scans(t, of(MaxValues+1), "exceeds the limit of 262144 JSON values at line 1")
	}
}
