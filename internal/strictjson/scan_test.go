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
	type row struct{ in, want string }
	var tests []row
	for _, r := range rig.Rows(t, "testdata/grammar.txt", "values", 2) {
		tests = append(tests, row{r[0], r[1]})
	}
	for _, cut := range []string{`"`, `"abc`, `"\`, `"\u12`, `"\ud83d\`} {
		rig.Is(t, rig.Err(scan([]byte(`{"method":`+cut))) != nil, true, "a message that ends in %s is refused", cut)
	}
	for c := range 0x20 {
		tests = append(tests, row{fmt.Sprintf("\"aaaaaaaaa%caaaaaaaaaaaaaaaa\"", c), "control character inside a string"})
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
